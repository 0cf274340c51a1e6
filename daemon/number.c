/* SPDX-License-Identifier: MIT */

/*
 * Number
 */

#include "daemon/number.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int nd_number_parse(const char *text,
                    bool is_size,
                    uint64_t least,
                    uint64_t most,
                    const char *field,
                    uint64_t *ret,
                    struct nd_fault *fault)
{
        static const char suffixes[] = "KMGT";
        const char *suffix;
        unsigned shift = 0;
        uint64_t value;
        char *end;

        errno = 0;
        value = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || errno != 0)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%s' is not a number from %" PRIu64 " to %" PRIu64, text,
                                    least, most);
        if (is_size && *end != '\0' && (suffix = strchr(suffixes, *end))) {
                shift = 10 * (unsigned)(suffix - suffixes + 1);
                ++end;
        }
        if (*end != '\0')
                return nd_fault_set(fault, NDBUS_EINVAL, field, "'%s' has the unknown suffix '%s'",
                                    text, end);
        if (value > UINT64_MAX >> shift || value << shift < least || value << shift > most)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "%s is not from %" PRIu64 " to %" PRIu64, text, least, most);
        *ret = value << shift;
        return 0;
}
