/* SPDX-License-Identifier: MIT */

/*
 * The bytes of a message that is to be sent
 *
 * A body is a line of bytes with frames at multiples of 64 and zeros between them. Most frames lie
 * in the caller's memory as they travel, and are sent from there. What does not, is produced when
 * the socket is ready for it: long runs as pieces of the caller's memory, short ones through one
 * buffer of fixed size. Small frames that are neighbours of such runs, or of one another, go
 * through the same buffer: a piece costs the kernel more than a short copy costs us.
 *
 * A short write makes the same range be asked for again. What was packed stays packed until the
 * position has passed it.
 */

#include "client/body.h"
#include <string.h>
#include "client/copy.h"

/* Runs at least so long are pieces of their own; frames shorter than the other are packed. */
#define RUN_BYTES_MIN     2048u
#define SMALL_FRAME_BYTES 512u

static const uint8_t zeros[ND_ALIGN_BYTES];

static int body_reserve(struct nd_body_store *store, size_t n_segments)
{
        struct nd_body_part *segments;

        if (n_segments <= store->n_segments_max)
                return 0;
        segments = realloc(store->segments, n_segments * sizeof(*segments));
        if (!segments)
                return NDBUS_ENOMEM;
        store->segments = segments;
        store->n_segments_max = n_segments;
        return 0;
}

int nd_body_init(struct nd_body *body,
                 struct nd_body_store *store,
                 const struct ndbus_array *arrays,
                 const struct nd_plan *plans,
                 size_t n_arrays,
                 uint64_t bytes)
{
        uint64_t offset = 0;
        size_t n = 0;

        if (body_reserve(store, n_arrays))
                return NDBUS_ENOMEM;
        for (size_t i = 0; i < n_arrays; ++i) {
                if (plans[i].bytes == 0)
                        continue;
                store->segments[n++] = (struct nd_body_part){
                        .offset = offset,
                        .bytes = plans[i].bytes,
                        .at = plans[i].order == ND_ORDER_GATHER ? NULL : arrays[i].data,
                        .array = &arrays[i],
                        .itemsize = plans[i].itemsize,
                };
                offset += (plans[i].bytes + ND_ALIGN_BYTES - 1) & ~(uint64_t)(ND_ALIGN_BYTES - 1);
        }
        body->store = store;
        body->segments = store->segments;
        body->n_segments = n;
        body->bytes = bytes;
        body->i_segment = 0;
        body->i_gather = SIZE_MAX;
        body->packed_from = body->packed_to = 0;
        body->is_packing = false;
        return 0;
}

void nd_body_init_flat(struct nd_body *body,
                       struct nd_body_store *store,
                       struct nd_body_part *segment,
                       const void *at,
                       uint64_t bytes)
{
        if (bytes)
                *segment = (struct nd_body_part){.bytes = bytes, .at = at};
        body->store = store;
        body->segments = segment;
        body->n_segments = bytes ? 1 : 0;
        body->bytes = bytes;
        body->i_segment = 0;
        body->i_gather = SIZE_MAX;
        body->packed_from = body->packed_to = 0;
        body->is_packing = false;
}

void nd_body_store_deinit(struct nd_body_store *store)
{
        free(store->segments);
        free(store->packed);
        *store = (struct nd_body_store){0};
}

/* The segment that holds @from or comes next after it; NULL if the rest of the body is a gap. */
static struct nd_body_part *body_seek(struct nd_body *body, uint64_t from)
{
        if (body->i_segment > 0 && (body->i_segment >= body->n_segments ||
                                    from < body->segments[body->i_segment - 1].offset +
                                                    body->segments[body->i_segment - 1].bytes))
                body->i_segment = 0;
        while (body->i_segment < body->n_segments &&
               from >= body->segments[body->i_segment].offset +
                               body->segments[body->i_segment].bytes)
                ++body->i_segment;
        return body->i_segment < body->n_segments ? &body->segments[body->i_segment] : NULL;
}

static const struct nd_gather *body_gather(struct nd_body *body, const struct nd_body_part *segment)
{
        size_t i = (size_t)(segment - body->segments);

        if (body->i_gather != i) {
                nd_gather_init(&body->gather, segment->array, segment->itemsize);
                body->i_gather = i;
        }
        return &body->gather;
}

/* Zeros up to the segment; how many of @n bytes at @from that is. */
static uint64_t body_gap(const struct nd_body_part *segment, uint64_t from, uint64_t n)
{
        if (!segment)
                return n;
        return from < segment->offset ? nd_min_u64(segment->offset - from, n) : 0;
}

void nd_body_copy(struct nd_body *body, uint64_t from, uint64_t n, uint8_t *out)
{
        struct nd_body_part *segment;
        uint64_t part;

        for (; n > 0; from += part, out += part, n -= part) {
                segment = body_seek(body, from);
                part = body_gap(segment, from, n);
                if (part) {
                        memset(out, 0, part);
                        continue;
                }
                part = nd_min_u64(segment->offset + segment->bytes - from, n);
                if (segment->at)
                        nd_copy(out, segment->at + (from - segment->offset), part);
                else
                        nd_gather_copy(body_gather(body, segment), from - segment->offset, part,
                                       out);
        }
}

/* Does it go through the packing buffer? */
static bool body_is_packable(struct nd_body *body, const struct nd_body_part *segment)
{
        if (segment->at)
                return segment->bytes < SMALL_FRAME_BYTES && body->n_segments > 1;
        return body_gather(body, segment)->run_bytes < RUN_BYTES_MIN;
}

/* Fills the packing buffer from @from on, up to the first segment that is no business of it. */
static int body_pack(struct nd_body *body, uint64_t from)
{
        uint64_t to = from, end = nd_min_u64(body->bytes, from + ND_BODY_PACK_BYTES);

        if (!body->store->packed)
                body->store->packed = malloc(ND_BODY_PACK_BYTES);
        if (!body->store->packed)
                return NDBUS_ENOMEM;
        for (size_t i = body->i_segment; i < body->n_segments && to < end; ++i) {
                const struct nd_body_part *segment = &body->segments[i];

                if (!body_is_packable(body, segment)) {
                        end = nd_min_u64(end, segment->offset);
                        break;
                }
                to = segment->offset + segment->bytes;
        }
        body->packed_from = from;
        body->packed_to = end;
        nd_body_copy(body, from, end - from, body->store->packed);
        return 0;
}

static void iov_set(struct iovec *iov, const void *at, uint64_t n)
{
        iov->iov_base = (void *)(uintptr_t)at;
        iov->iov_len = n;
}

int nd_body_iov(struct nd_body *body,
                uint64_t from,
                uint64_t n,
                struct iovec *iov,
                size_t n_iov,
                uint64_t *ret_bytes)
{
        struct nd_body_part *segment;
        uint64_t at = from, end = from + n, part;
        size_t i = 0;

        while (at < end && i < n_iov) {
                segment = body_seek(body, at);
                part = body_gap(segment, at, end - at);
                if (part) {
                        nd_assert(part <= ND_ALIGN_BYTES);
                        iov_set(&iov[i++], zeros, part);
                } else if (body_is_packable(body, segment)) {
                        if (at < body->packed_from || at >= body->packed_to) {
                                if (body->is_packing)
                                        break;
                                if (body_pack(body, at))
                                        return NDBUS_ENOMEM;
                        }
                        body->is_packing = true;
                        part = nd_min_u64(body->packed_to - at, end - at);
                        iov_set(&iov[i++], body->store->packed + (at - body->packed_from), part);
                } else if (segment->at) {
                        part = nd_min_u64(segment->offset + segment->bytes - at, end - at);
                        iov_set(&iov[i++], segment->at + (at - segment->offset), part);
                } else {
                        part = nd_min_u64(segment->offset + segment->bytes - at, end - at);
                        i += nd_gather_iov(body_gather(body, segment), at - segment->offset, part,
                                           &iov[i], n_iov - i, &part);
                }
                at += part;
        }
        *ret_bytes = at - from;
        return (int)i;
}
