/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Raw client: speaks the wire packet by packet, for what the library would never send
 *
 * It obeys no rule by itself: whoever uses it decides what is sent and when. It packs and parses
 * through protocol/, keeps count of its publishing credit, and ends the test (nd_harness_fail) when
 * the daemon does what was not expected, or nothing.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/control.h"
#include "protocol/prelude.h"
#include "protocol/shm/segment.h"
#include "tests/support/harness.h"

/** What the daemon sent last; pointers are valid until the next packet is read. */
struct nd_raw_packet {
        struct nd_prelude prelude;
        const uint8_t *header;
        const uint8_t *meta;
        const uint8_t *body; /**< [nd_prelude_inline_bytes()] */
};

/** One message, whole; nd_raw_message_free(). */
struct nd_raw_message {
        struct nd_prelude prelude; /**< of the MESSAGE packet */
        uint8_t *body;             /**< [prelude.body_bytes] */
        uint64_t n_received;       /**< while it arrives */
        uint64_t n_dropped;        /**< GAP just before it */
        uint64_t n_chunks;
};

#define ND_RAW_STREAMS_MAX 16u
#define ND_RAW_HANDED_MAX  256u /**< segments that the daemon may hand over */
#define ND_RAW_FDS_MAX     8u

struct nd_raw {
        struct nd_harness *harness;
        int fd;
        uint64_t source;
        uint32_t features; /**< of WELCOME */
        uint64_t shm_max;  /**< of WELCOME */
        uint64_t credit;   /**< left of the publishing window */
        uint64_t n_requests;
        uint64_t n_published;
        uint64_t n_resets;  /**< that nd_raw_receive() met */
        uint64_t n_dropped; /**< GAP since the last message */
        uint8_t *buffer;    /**< of the last packet */
        size_t n_buffer_max;
        struct nd_raw_message streams[ND_RAW_STREAMS_MAX];
        int fds[ND_RAW_FDS_MAX]; /**< [n_fds] that came and were not taken */
        size_t n_fds;
        int bell;                                    /**< of the ring; -1: none */
        struct nd_segment handed[ND_RAW_HANDED_MAX]; /**< by number; raw-shm.h maps them */
        bool ignores_gone; /**< SEGMENT_GONE is no surprise to raw-shm.h */
};

/** What to subscribe with; zero is a sensible default of everything but the pattern. */
struct nd_raw_subscribe {
        const char *pattern;
        enum nd_policy policy;
        uint64_t depth;        /**< 0: 1000 */
        uint64_t bytes;        /**< 0: 64 MiB */
        uint64_t window;       /**< 0: 256, and 0 with policy latest */
        uint64_t window_bytes; /**< 0: 64 MiB */
        bool no_retained;
        const char *group; /**< or NULL */
};

/** Connected, hello and CONNECT answered. nd_raw_close() */
struct nd_raw *nd_raw_open(struct nd_harness *h, bool is_tcp);
/** The same, with features asked for. */
struct nd_raw *nd_raw_open_features(struct nd_harness *h, bool is_tcp, uint32_t features);
/** Hello answered, CONNECT not sent. */
struct nd_raw *nd_raw_open_hello(struct nd_harness *h, bool is_tcp);
/** Connected, nothing sent. */
struct nd_raw *nd_raw_open_bare(struct nd_harness *h, bool is_tcp);
void nd_raw_close(struct nd_raw *raw);

/** All of it; what the daemon does not want any more (EPIPE, ECONNRESET) is nobody's fault. */
void nd_raw_send(struct nd_raw *raw, const void *bytes, size_t n_bytes);

/** Packet of prelude, header, meta, body. header_bytes and meta_bytes are set from the counts. */
void nd_raw_send_packet(struct nd_raw *raw,
                        struct nd_prelude prelude,
                        const void *header,
                        size_t n_header,
                        const void *meta,
                        size_t n_meta,
                        const void *body,
                        size_t n_body);

/** A packet of a prelude alone. */
void nd_raw_send_prelude(struct nd_raw *raw, struct nd_prelude prelude);

/** The next packet, CREDIT for publishing included (which is added to credit). NULL: the daemon
 * closed the connection. */
const struct nd_raw_packet *nd_raw_next(struct nd_raw *raw);
/** The next packet that is not CREDIT for publishing, nor TOPIC. */
const struct nd_raw_packet *nd_raw_next_other(struct nd_raw *raw);
/** The same; it is of this kind, or the test ends. */
const struct nd_raw_packet *nd_raw_expect(struct nd_raw *raw, enum nd_kind kind);
/** An ERROR with this code; returned is what it says. closes: the daemon then closes. */
struct nd_error_header nd_raw_expect_error(struct nd_raw *raw, int code, bool closes);
/** Nothing more comes but the end. */
void nd_raw_expect_closed(struct nd_raw *raw);

/** The first descriptor that came and was not taken; -1: none. close() */
int nd_raw_take_fd(struct nd_raw *raw);

/** Is anything there to be read? */
bool nd_raw_has_input(struct nd_raw *raw);

void nd_raw_subscribe(struct nd_raw *raw, uint32_t id, const struct nd_raw_subscribe *ask);
/** The same without waiting for the answer. */
void nd_raw_ask_subscribe(struct nd_raw *raw, uint32_t id, const struct nd_raw_subscribe *ask);
void nd_raw_grant(struct nd_raw *raw, uint32_t id, uint64_t n_messages, uint64_t n_bytes);

/** Header bytes of a message with one frame of raw bytes (none if 0); free(). */
uint8_t *nd_raw_header(const char *topic, uint64_t n_bytes, size_t *ret_n);

/** Reads until there is so much credit, and no more than that. */
void nd_raw_await_credit(struct nd_raw *raw, uint64_t n_bytes);

/** Publish P(n_bytes): inline if the credit allows, else in chunks, waiting for credit. */
void nd_raw_publish(struct nd_raw *raw, const char *topic, uint64_t n_bytes);
void nd_raw_publish_flags(struct nd_raw *raw, const char *topic, uint64_t n_bytes, uint16_t flags);
/** The same without a byte: only the PUBLISH packet of a body in chunks on this stream. */
void nd_raw_publish_begin(struct nd_raw *raw, const char *topic, uint64_t n_bytes, uint32_t stream);
/** A chunk of P at this place; waits for credit. */
void nd_raw_publish_chunk(struct nd_raw *raw, uint32_t stream, uint64_t place, uint64_t n_bytes);
/** Chunks of P from place to the end. */
void nd_raw_publish_rest(struct nd_raw *raw, uint32_t stream, uint64_t place, uint64_t n_bytes);

/** PING, and everything up to PONG is passed over: all published before is routed or refused. */
void nd_raw_flush(struct nd_raw *raw);

/** The next whole message; streams may be interleaved. The body has been checked to be P. */
struct nd_raw_message nd_raw_receive(struct nd_raw *raw);
void nd_raw_message_free(struct nd_raw_message *message);

/**
 * nd_raw_stat() - a number of STATS
 * @part:  "memory", "counters"; or "subscriptions", "clients": then @id and @source choose
 */
uint64_t nd_raw_stat(struct nd_raw *raw, const char *part, const char *name);
uint64_t
nd_raw_stat_subscription(struct nd_raw *raw, uint64_t source, uint32_t id, const char *name);
/** The same of a group, all of its members together. */
uint64_t
nd_raw_stat_group(struct nd_raw *raw, const char *pattern, const char *group, const char *name);

/** The same of the list "holders". */
uint64_t nd_raw_stat_holder(struct nd_raw *raw, uint64_t source, const char *name);

/** Fails the test unless for every subscription matched = delivered + dropped + queued, and dropped
 * is the sum of its reasons. */
void nd_raw_check_stats(struct nd_raw *raw);
