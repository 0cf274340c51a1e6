/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Prelude: the 64 bytes in front of every packet; PROTOCOL.md 3
 *
 * Pure functions; nothing is checked here but lengths: nd_reader_next() decides what is legal.
 */

#include "protocol/base.h"
#include "protocol/limit.h"

/* XX(NAME, number, "from the client", "from the daemon"): numbers are the wire's, append only */
#define ND_KIND_MAP(XX)                                                                            \
        XX(CONNECT, 1, 1, 0)                                                                       \
        XX(WELCOME, 2, 0, 1)                                                                       \
        XX(AUTH, 3, 1, 1)                                                                          \
        XX(ERROR, 4, 0, 1)                                                                         \
        XX(PING, 5, 1, 0)                                                                          \
        XX(PONG, 6, 0, 1)                                                                          \
        XX(GOODBYE, 7, 1, 1)                                                                       \
        XX(PUBLISH, 16, 1, 0)                                                                      \
        XX(MESSAGE, 17, 0, 1)                                                                      \
        XX(CHUNK, 18, 1, 1)                                                                        \
        XX(RESET, 19, 1, 1)                                                                        \
        XX(SUBSCRIBE, 32, 1, 0)                                                                    \
        XX(SUBSCRIBED, 33, 0, 1)                                                                   \
        XX(UNSUBSCRIBE, 34, 1, 0)                                                                  \
        XX(UNSUBSCRIBED, 35, 0, 1)                                                                 \
        XX(CREDIT, 36, 1, 1)                                                                       \
        XX(GAP, 37, 0, 1)                                                                          \
        XX(TOPIC, 38, 1, 1)                                                                        \
        XX(SEGMENT, 48, 1, 1)                                                                      \
        XX(SEGMENT_GONE, 49, 1, 1)                                                                 \
        XX(RELEASE, 50, 1, 1)                                                                      \
        XX(RING, 51, 1, 1)                                                                         \
        XX(WAKE, 52, 1, 0)                                                                         \
        XX(STATS, 64, 1, 0)                                                                        \
        XX(STATS_REPLY, 65, 0, 1)

enum nd_kind {
#define ND_KIND_ENUM(_name, _num, _client, _daemon) ND_KIND_##_name = (_num),
        ND_KIND_MAP(ND_KIND_ENUM)
#undef ND_KIND_ENUM
        ND_KIND_FILE_INDEX = 201, /* in files only */
};

/* "PUBLISH"; "?" for a number that is no kind */
const char *nd_kind_name(uint8_t kind);

enum nd_flag {
        ND_FLAG_BODY_IN_BLOCK = 1u << 0,  /* needs feature "shm" */
        ND_FLAG_BODY_IN_CHUNKS = 1u << 1, /* PUBLISH, MESSAGE: the body follows in CHUNKs */
        ND_FLAG_RETAINED = 1u << 2,       /* PUBLISH: retain it; MESSAGE: it is the retained one */
        ND_FLAG_REDELIVERED = 1u << 3,    /* MESSAGE: another member of the group had it before */
        ND_FLAG_FD = 1u << 4,             /* needs feature "shm" */
        ND_FLAG_LINK = 1u << 5,           /* needs feature "link" */
};

struct nd_prelude {
        uint8_t kind;     /* enum nd_kind */
        uint8_t reserved; /* 0 */
        uint16_t flags;   /* enum nd_flag */
        uint32_t header_bytes;
        uint32_t meta_bytes;
        uint32_t stream;     /* ties CHUNKs to their message; 0: none */
        uint64_t body_bytes; /* PUBLISH, MESSAGE: of the whole body; else: in this packet */
        uint64_t place;      /* CHUNK: offset in the body; GAP: count; PONG, CREDIT: last routed;
                              * BODY_IN_BLOCK: offset in the segment; SEGMENT: its size */
        uint64_t source;     /* 0 from a client */
        uint64_t sequence;
        uint64_t time_ns;      /* CLOCK_REALTIME when published */
        uint32_t subscription; /* 0: none */
        uint32_t segment;      /* BODY_IN_BLOCK, SEGMENT, SEGMENT_GONE; 0: none */
};

void nd_prelude_pack(const struct nd_prelude *prelude, uint8_t out[static ND_PRELUDE_BYTES]);
void nd_prelude_unpack(const uint8_t in[static ND_PRELUDE_BYTES], struct nd_prelude *ret);

/* Body bytes that follow header and meta in this very packet. */
static inline uint64_t nd_prelude_inline_bytes(const struct nd_prelude *p)
{
        return p->flags & (ND_FLAG_BODY_IN_BLOCK | ND_FLAG_BODY_IN_CHUNKS) ? 0 : p->body_bytes;
}
