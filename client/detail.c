/* SPDX-License-Identifier: MIT */

/*
 * The last failure of a thread, in words
 *
 * Kept per thread and not per bus, because functions without a bus fail too, and because a bus
 * that could not be opened has no place to keep anything. A timeout is an ordinary result of a
 * polling loop, so its text is only pointed at, never formatted.
 */

#include "client/detail.h"
#include <ndbus/ndbus.h>
#include <stdarg.h>
#include <string.h>
#include "client/export.h"

static _Thread_local char detail_text[320];
static _Thread_local const char *detail_at = "";

ND_PUBLIC const char *ndbus_detail(void)
{
        return detail_at;
}

int nd_detail_fail(int code, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(detail_text, sizeof(detail_text), format, args);
        va_end(args);
        detail_at = detail_text;
        return code;
}

int nd_detail_say(int code, const char *text)
{
        detail_at = text;
        return code;
}

int nd_detail_fault(const struct nd_fault *fault)
{
        return nd_detail_fault_as(fault->code, fault);
}

int nd_detail_fault_as(int code, const struct nd_fault *fault)
{
        return nd_detail_fail(code, "%s%s%s", fault->field, fault->field[0] ? ": " : "",
                              fault->text);
}

int nd_detail_errno(const char *function, int error)
{
        return nd_detail_fail(NDBUS_ESYSTEM, "%s: %s", function, strerror(error));
}
