/* SPDX-License-Identifier: MIT */

/*
 * Fault: an error as it is told to somebody
 *
 * What a fault quotes came from a peer, a file or a user, and ends on a terminal, in a journal or
 * in an ERROR packet. So it is cut to a fixed size and whatever is not printable ASCII is shown as
 * '?': nobody moves a cursor, forges a log line or makes a text of broken UTF-8 by way of an error.
 */

#include "protocol/fault.h"
#include <stdarg.h>
#include <string.h>

static void fault_copy_clean(char *to, size_t n_to, const char *from)
{
        size_t i = 0;

        for (; i + 1 < n_to && from[i]; ++i)
                to[i] = from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?';
        to[i] = '\0';
}

static void
fault_fill(struct nd_fault *fault, int code, const char *field, const char *format, va_list args)
        __attribute__((format(printf, 4, 0)));

static void
fault_fill(struct nd_fault *fault, int code, const char *field, const char *format, va_list args)
{
        char text[sizeof(fault->text)];

        if (vsnprintf(text, sizeof(text), format, args) < 0)
                text[0] = '\0';
        fault->code = code;
        fault->has_numbers = false;
        fault->value = 0;
        fault->limit = 0;
        fault_copy_clean(fault->field, sizeof(fault->field), field ? field : "");
        fault_copy_clean(fault->text, sizeof(fault->text), text);
}

int nd_fault_set(struct nd_fault *fault, int code, const char *field, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        if (fault)
                fault_fill(fault, code, field, format, args);
        va_end(args);
        return code;
}

int nd_fault_set_numbers(struct nd_fault *fault,
                         int code,
                         const char *field,
                         uint64_t value,
                         uint64_t limit,
                         const char *format,
                         ...)
{
        va_list args;

        va_start(args, format);
        if (fault) {
                fault_fill(fault, code, field, format, args);
                fault->has_numbers = true;
                fault->value = value;
                fault->limit = limit;
        }
        va_end(args);
        return code;
}

int nd_fault_set_limit(struct nd_fault *fault,
                       int code,
                       const char *field,
                       uint64_t value,
                       uint64_t limit,
                       const char *unit)
{
        const char *space = unit && *unit ? " " : "";

        if (!unit)
                unit = "";
        return nd_fault_set_numbers(fault, code, field, value, limit,
                                    "is %llu%s%s, the limit is %llu%s%s", (unsigned long long)value,
                                    space, unit, (unsigned long long)limit, space, unit);
}

int nd_fault_set_exact(struct nd_fault *fault,
                       int code,
                       const char *field,
                       uint64_t value,
                       uint64_t wanted,
                       const char *unit)
{
        const char *space = *unit ? " " : "";

        return nd_fault_set_numbers(fault, code, field, value, wanted,
                                    "is %llu%s%s, must be %llu%s%s", (unsigned long long)value,
                                    space, unit, (unsigned long long)wanted, space, unit);
}
