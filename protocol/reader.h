/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Incremental packet reader
 *
 * Finds the next packet at the start of what a socket delivered, and refuses what the framing
 * forbids: unknown kinds and flags, kinds of the wrong direction or of a feature that one end does
 * not know, set reserved bytes, sizes over the limits. It keeps no state between packets, so cuts cannot matter: the caller asks again
 * with more bytes. What needs memory of earlier packets (is this stream open? is there credit?)
 * is the connection's business.
 *
 * PUBLISH, MESSAGE and CHUNK are complete with prelude, header and meta: their body goes to its
 * own place, not through this buffer. All other kinds are complete with their body.
 */

#include "protocol/control.h"
#include "protocol/fault.h"
#include "protocol/prelude.h"

enum nd_direction {
        ND_FROM_CLIENT,
        ND_FROM_DAEMON,
};

struct nd_reader_limits {
        enum nd_direction direction;
        uint32_t header_bytes_max; /* PUBLISH, MESSAGE; control: ND_CONTROL_HEADER_BYTES_MAX */
        uint32_t meta_bytes_max;
        uint32_t
                features; /* enum nd_feature, of both ends: kinds and flags of others are unknown */
};

struct nd_packet {
        struct nd_prelude prelude;
        const uint8_t *header; /* [prelude.header_bytes], borrowed from the buffer */
        const uint8_t *meta;   /* [prelude.meta_bytes] */
        const uint8_t *body;   /* control kinds: [prelude.body_bytes]; else NULL */
        size_t n_bytes;        /* bytes of the buffer that this packet took, body of PUBLISH,
                                  MESSAGE and CHUNK not included */
};

/**
 * nd_reader_next() - take the next packet from a buffer
 * @limits:     what to accept
 * @data:       bytes as received, borrowed; @n_data of them
 * @ret_packet: written on success only; points into @data
 * @ret_wanted: if more is needed: how many bytes in all @data must have before it is worth asking
 *              again; always more than @n_data
 * @fault:      filled on error; may be NULL
 *
 * An error is said as early as the bytes show it: a wrong kind after one byte, a size over its
 * limit with the prelude.
 *
 * Return: 0 a packet is ready; 1 more bytes are wanted; NDBUS_EPROTOCOL, NDBUS_ETOO_BIG the stream
 *         cannot go on.
 */
int nd_reader_next(const struct nd_reader_limits *limits,
                   const void *data,
                   size_t n_data,
                   struct nd_packet *ret_packet,
                   size_t *ret_wanted,
                   struct nd_fault *fault);
