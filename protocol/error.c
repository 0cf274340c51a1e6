/* SPDX-License-Identifier: MIT */

/*
 * Error texts
 *
 * Both functions are read from the one table of error.h. They are exported by the client library
 * although they live in a library of hidden symbols, because both ends speak in these numbers.
 */

#include <ndbus/error.h>

#define ERROR_EXPORT __attribute__((visibility("default")))

ERROR_EXPORT const char *ndbus_strerror(int err)
{
        switch (err) {
        case 0:
                return "success";
#define XX(_name, _num, _text)                                                                     \
        case NDBUS_E##_name:                                                                       \
                return _text;
                NDBUS_ERROR_MAP(XX)
#undef XX
        default:
                return "unknown error";
        }
}

ERROR_EXPORT const char *ndbus_errname(int err)
{
        switch (err) {
        case 0:
                return "NDBUS_OK";
#define XX(_name, _num, _text)                                                                     \
        case NDBUS_E##_name:                                                                       \
                return "NDBUS_E" #_name;
                NDBUS_ERROR_MAP(XX)
#undef XX
        default:
                return "NDBUS_E?";
        }
}
