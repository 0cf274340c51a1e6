/* SPDX-License-Identifier: MIT */

/*
 * Hello
 *
 * The first thing a port hears is often not meant for it: a browser, a TLS client, a scanner. So
 * the very first bytes have a fixed layout that nothing else begins with, and are judged one by
 * one: whoever is somebody else is turned away at the first wrong byte, before anything is
 * parsed, allocated or waited for. The bytes behind the versions are sent as zero and not looked
 * at, so that a later version can say more there to a peer of this one.
 *
 * There is no version 0: as an answer it means that none was chosen.
 */

#include "protocol/hello.h"
#include <string.h>

static const uint8_t hello_magic[6] = {'N', 'D', 'B', 'U', 'S', '\0'};

_Static_assert(sizeof(hello_magic) + 2 + 8 == ND_HELLO_BYTES, "hello is magic, versions, zeros");
_Static_assert(sizeof(hello_magic) + 4 + 6 == ND_HELLO_BYTES, "so is the answer");

void nd_hello_pack(const struct nd_hello *hello, uint8_t out[static ND_HELLO_BYTES])
{
        nd_assert(hello->version_min > 0 && hello->version_min <= hello->version_max);

        memset(out, 0, ND_HELLO_BYTES);
        memcpy(out, hello_magic, sizeof(hello_magic));
        out[6] = hello->version_min;
        out[7] = hello->version_max;
}

void nd_hello_reply_pack(const struct nd_hello_reply *reply, uint8_t out[static ND_HELLO_BYTES])
{
        nd_assert((reply->version == 0) == (reply->reason != 0));

        memset(out, 0, ND_HELLO_BYTES);
        memcpy(out, hello_magic, sizeof(hello_magic));
        out[6] = reply->version;
        out[7] = reply->reason;
        out[8] = reply->version_min;
        out[9] = reply->version_max;
}

static bool hello_is_magic(const uint8_t *p, size_t n)
{
        return n == 0 ||
               memcmp(p, hello_magic, n < sizeof(hello_magic) ? n : sizeof(hello_magic)) == 0;
}

int nd_hello_unpack(const void *data, size_t n_data, struct nd_hello *ret)
{
        const uint8_t *p = data;

        if (!hello_is_magic(p, n_data))
                return ND_HELLO_E_ALIEN;
        if (n_data > 6 && p[6] == 0)
                return ND_HELLO_E_ALIEN;
        if (n_data > 7 && p[7] < p[6])
                return ND_HELLO_E_ALIEN;
        if (n_data < ND_HELLO_BYTES)
                return ND_HELLO_E_SHORT;

        *ret = (struct nd_hello){.version_min = p[6], .version_max = p[7]};
        return 0;
}

int nd_hello_reply_unpack(const void *data, size_t n_data, struct nd_hello_reply *ret)
{
        const uint8_t *p = data;

        if (!hello_is_magic(p, n_data))
                return ND_HELLO_E_ALIEN;
        /* chosen, and no reason against it; or none, and a reason */
        if (n_data > 7 && (p[6] == 0) != (p[7] != 0))
                return ND_HELLO_E_ALIEN;
        if (n_data < ND_HELLO_BYTES)
                return ND_HELLO_E_SHORT;

        *ret = (struct nd_hello_reply){
                .version = p[6],
                .reason = p[7],
                .version_min = p[8],
                .version_max = p[9],
        };
        return 0;
}
