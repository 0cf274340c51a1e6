/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: headers of control packets
 *
 * The first byte chooses the kind, the rest is its header. Only the documented errors come out;
 * what unpacks packs again to bytes that unpack and pack to the same bytes.
 */

#include <string.h>
#include "protocol/base.h"
#include "protocol/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

static bool is_allowed(int r, const struct nd_fault *fault)
{
        return r == 0 || ((r == NDBUS_EHEADER || r == NDBUS_ETOPIC) && fault->code == r &&
                          fault->field[0] && fault->text[0]);
}

#define TRY(_type, _name, ...)                                                                     \
        do {                                                                                       \
                struct _type v, again;                                                             \
                int r = _name##_unpack(data, n_data __VA_ARGS__, &v, &fault);                      \
                                                                                                   \
                nd_assert(is_allowed(r, &fault));                                                  \
                if (r)                                                                             \
                        break;                                                                     \
                _name##_pack(&v __VA_ARGS__, &first);                                              \
                r = _name##_unpack(first.data, first.n __VA_ARGS__, &again, &fault);               \
                nd_assert(r == 0);                                                                 \
                _name##_pack(&again __VA_ARGS__, &second);                                         \
                nd_assert(first.n == second.n && memcmp(first.data, second.data, first.n) == 0);   \
        } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        static struct nd_control_bytes first, second;
        struct nd_fault fault = {0};
        unsigned kind;

        if (n_data == 0)
                return 0;
        kind = data[0] % 10;
        ++data;
        --n_data;

        switch (kind) {
        case 0:
                TRY(nd_connect, nd_connect, );
                break;
        case 1:
                TRY(nd_welcome, nd_welcome, );
                break;
        case 2:
                TRY(nd_error_header, nd_error_header, );
                break;
        case 3:
                TRY(nd_subscribe, nd_subscribe, );
                break;
        case 4:
                TRY(nd_subscribed, nd_subscribed, );
                break;
        case 5:
                TRY(nd_unsubscribed, nd_unsubscribed, );
                break;
        case 6:
                TRY(nd_topic_header, nd_topic_header, , false);
                break;
        case 7:
                TRY(nd_topic_header, nd_topic_header, , true);
                break;
        case 8:
                TRY(nd_goodbye, nd_goodbye, );
                break;
        case 9:
                TRY(nd_auth, nd_auth, );
                break;
        }
        return 0;
}
