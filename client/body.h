/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Body: the bytes of a message that is to be sent, where they lie
 */

#include <sys/uio.h>
#include "client/gather.h"
#include "protocol/layout.h"

/* One frame. Frames without bytes have no segment. */
struct nd_body_part {
        uint64_t offset; /* in the body, a multiple of ND_ALIGN_BYTES */
        uint64_t bytes;
        const uint8_t *at;               /* the frame as it lies; NULL: it is gathered */
        const struct ndbus_array *array; /* what to gather */
        uint32_t itemsize;
};

/* Memory that lasts from message to message. */
struct nd_body_store {
        struct nd_body_part *segments;
        size_t n_segments_max;
        uint8_t *packed; /* ND_BODY_PACK_BYTES, made when first needed */
};

struct nd_body {
        struct nd_body_store *store;
        struct nd_body_part *segments;
        size_t n_segments;
        uint64_t bytes;
        size_t i_segment;     /* cursor: first segment that does not end before the last position */
        size_t i_gather;      /* segment that @gather describes; SIZE_MAX: none */
        uint64_t packed_from; /* range of the body that store->packed holds */
        uint64_t packed_to;
        bool is_packing; /* pieces given out since nd_body_start() are in that buffer */
        struct nd_gather gather;
};

/* Short runs and small frames are packed together, so much at a time. */
#define ND_BODY_PACK_BYTES (UINT64_C(256) << 10)

/**
 * nd_body_init() - lay arrays out as a body
 * @store:   borrowed as long as the body
 * @arrays:  [@n_arrays] with their @plans; borrowed as long as the body
 * @bytes:   of the whole body, as nd_layout_place() found it
 *
 * Return: 0, NDBUS_ENOMEM
 */
int nd_body_init(struct nd_body *body,
                 struct nd_body_store *store,
                 const struct ndbus_array *arrays,
                 const struct nd_plan *plans,
                 size_t n_arrays,
                 uint64_t bytes);

/* A body that lies in one piece; @segment is the caller's, not needed without bytes. */
void nd_body_init_flat(struct nd_body *body,
                       struct nd_body_store *store,
                       struct nd_body_part *segment,
                       const void *at,
                       uint64_t bytes);

void nd_body_store_deinit(struct nd_body_store *store);

/* Writes bytes [@from, @from + @n) of the body, gaps as zeros. */
void nd_body_copy(struct nd_body *body, uint64_t from, uint64_t n, uint8_t *out);

/* Pieces that were given out before are no longer needed. */
static inline void nd_body_start(struct nd_body *body)
{
        body->is_packing = false;
}

/**
 * nd_body_iov() - describe bytes [@from, @from + @n) of the body by pieces
 * @ret_bytes:  how many of them the pieces hold: fewer, or none, if @iov was too short, or where the
 *              rest has to wait for the packing buffer
 *
 * All pieces given out since nd_body_start() are valid together.
 *
 * Return: number of pieces, or NDBUS_ENOMEM
 */
int nd_body_iov(struct nd_body *body,
                uint64_t from,
                uint64_t n,
                struct iovec *iov,
                size_t n_iov,
                uint64_t *ret_bytes);
