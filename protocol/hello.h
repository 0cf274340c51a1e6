/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Hello: the 16 bytes that each end sends first, before any msgpack; PROTOCOL.md 2
 */

#include "protocol/base.h"
#include "protocol/limit.h"

enum {
        _ND_HELLO_E_SUCCESS,

        ND_HELLO_E_SHORT, /* what is there so far is the start of a hello; more bytes are needed */
        ND_HELLO_E_ALIEN, /* this is something else: close without a word */
};

struct nd_hello {
        uint8_t version_min;
        uint8_t version_max;
};

struct nd_hello_reply {
        uint8_t version; /* chosen; 0: refused, reason says why */
        uint8_t reason;  /* 0, or the number of NDBUS_EVERSION or NDBUS_ESERVER_FULL, positive */
        uint8_t version_min;
        uint8_t version_max;
};

void nd_hello_pack(const struct nd_hello *hello, uint8_t out[static ND_HELLO_BYTES]);
void nd_hello_reply_pack(const struct nd_hello_reply *reply, uint8_t out[static ND_HELLO_BYTES]);

/*
 * Both return 0, ND_HELLO_E_SHORT or ND_HELLO_E_ALIEN. ALIEN is said at the first byte that is
 * wrong, so that an HTTP client is not waited for. @ret is written on success only.
 */
int nd_hello_unpack(const void *data, size_t n_data, struct nd_hello *ret);
int nd_hello_reply_unpack(const void *data, size_t n_data, struct nd_hello_reply *ret);
