/* SPDX-License-Identifier: MIT */

/*
 * Messages and their memory
 *
 * A message is one piece of recycled memory with everything in it: the struct, the arrays, the
 * meta, and a small body. Larger frames have buffers of their own, so that each can be kept
 * longer than the others and freed alone. Bytes come from the socket straight to where they will
 * be read: nd_message_fill_iov() says where that is. Buffers are as long as the frame rounded up
 * to 64, so the gap behind a frame needs no place of its own: it goes into the same buffer.
 *
 * Frames whose bytes lie somewhere else, in a mapped block say, differ only in who keeps the
 * memory alive (nd_message_keeper()) and in being read-only; nothing above that knows the
 * difference.
 *
 * Nothing here refers to a bus: a message may be read and freed by any thread after its bus is gone.
 */

#include "client/message.h"
#include <string.h>
#include "client/detail.h"
#include "client/export.h"
#include "protocol/scan.h"

/* Arrays without bytes point here: an address that is aligned, and at which nothing is. */
static _Alignas(ND_ALIGN_BYTES) uint8_t empty_frame[ND_ALIGN_BYTES];

static uint64_t round_up(uint64_t n)
{
        return (n + ND_ALIGN_BYTES - 1) & ~(uint64_t)(ND_ALIGN_BYTES - 1);
}

/* What is no map is kept all the same: why it is none is asked later, if at all. */
static void message_take_meta(struct ndbus_message *m, uint8_t *to, const void *meta, size_t n)
{
        memcpy(to, meta, n);
        if (nd_scan(to, n, ND_SCAN_META, "meta", NULL) == 0) {
                m->meta = to;
                m->n_meta = n;
        } else {
                m->refused_meta = to;
                m->n_refused_meta = n;
        }
}

/* Lays out struct, arrays, frame pointers, meta and @n_body bytes in one buffer. */
static int message_alloc(struct nd_pool *pool,
                         struct nd_shared_header *shared,
                         const struct nd_prelude *prelude,
                         const void *meta,
                         uint64_t n_body,
                         struct ndbus_message **ret)
{
        size_t n = shared->header->n_frames;
        uint64_t arrays_at, frames_at, meta_at, body_at;
        struct nd_buffer *memory;
        struct ndbus_message *m;

        arrays_at = round_up(sizeof(*m));
        frames_at = arrays_at + n * sizeof(*m->arrays);
        meta_at = frames_at + n * sizeof(*m->frames);
        body_at = round_up(meta_at + prelude->meta_bytes);
        memory = nd_pool_take(pool, body_at + n_body);
        if (!memory)
                return NDBUS_ENOMEM;
        nd_buffer_populate(memory, memory->bytes);

        m = (struct ndbus_message *)(void *)memory->data;
        *m = (struct ndbus_message){
                .memory = memory,
                .shared = nd_shared_header_ref(shared),
                .flags = prelude->flags,
                .subscription = prelude->subscription,
                .source = prelude->source,
                .sequence = prelude->sequence,
                .time_ns = prelude->time_ns,
                .body_bytes = prelude->body_bytes,
                .n_arrays = n,
                .arrays = (struct ndbus_array *)(void *)(memory->data + arrays_at),
                .frames = (struct nd_buffer **)(void *)(memory->data + frames_at),
                .body = memory->data + body_at,
        };
        nd_list_init(&m->arrival.in_bus);
        nd_list_init(&m->arrival.in_subscription);
        if (n) {
                memcpy(m->arrays, shared->arrays, n * sizeof(*m->arrays));
                memset(m->frames, 0, n * sizeof(struct nd_buffer *));
        }
        if (prelude->meta_bytes)
                message_take_meta(m, memory->data + meta_at, meta, prelude->meta_bytes);
        *ret = m;
        return 0;
}

static int message_take_frames(struct nd_pool *pool, struct ndbus_message *m)
{
        const struct nd_frame *frames = m->shared->header->frames;

        for (size_t i = 0; i < m->n_arrays; ++i) {
                if (frames[i].bytes == 0) {
                        m->arrays[i].data = empty_frame;
                        continue;
                }
                m->frames[i] = nd_pool_take(pool, round_up(frames[i].bytes));
                if (!m->frames[i])
                        return NDBUS_ENOMEM;
                m->arrays[i].data = m->frames[i]->data;
        }
        return 0;
}

int nd_message_new(struct nd_pool *pool,
                   struct nd_shared_header *shared,
                   const struct nd_prelude *prelude,
                   const void *meta,
                   struct ndbus_message **ret)
{
        const struct nd_frame *frames = shared->header->frames;
        bool is_small = prelude->body_bytes <= ND_SMALL_BODY_BYTES_MAX;
        struct ndbus_message *m;
        int r;

        r = message_alloc(pool, shared, prelude, meta, is_small ? round_up(prelude->body_bytes) : 0,
                          &m);
        if (r)
                return r;
        if (is_small) {
                m->place = ND_BODY_TOGETHER;
                for (size_t i = 0; i < m->n_arrays; ++i)
                        m->arrays[i].data =
                                frames[i].bytes ? m->body + frames[i].offset : empty_frame;
        } else {
                m->place = ND_BODY_APART;
                r = message_take_frames(pool, m);
                if (r) {
                        ndbus_message_free(m);
                        return r;
                }
        }
        *ret = m;
        return 0;
}

int nd_message_new_borrowed(struct nd_pool *pool,
                            struct nd_shared_header *shared,
                            const struct nd_prelude *prelude,
                            const void *meta,
                            const void *body,
                            struct ndbus_message **ret)
{
        const struct nd_frame *frames = shared->header->frames;
        struct ndbus_message *m;
        int r;

        r = message_alloc(pool, shared, prelude, meta, 0, &m);
        if (r)
                return r;
        m->place = ND_BODY_BORROWED;
        for (size_t i = 0; i < m->n_arrays; ++i) {
                m->arrays[i].data =
                        frames[i].bytes ? (const uint8_t *)body + frames[i].offset : empty_frame;
                m->arrays[i].flags |= NDBUS_READ_ONLY;
        }
        *ret = m;
        return 0;
}

int nd_message_new_in_block(struct nd_pool *pool,
                            struct nd_shared_header *shared,
                            const struct nd_prelude *prelude,
                            const void *meta,
                            struct nd_hold *hold,
                            struct ndbus_message **ret)
{
        int r = nd_message_new_borrowed(pool, shared, prelude, meta, nd_hold_body(hold), ret);

        if (r)
                return r;
        (*ret)->place = ND_BODY_IN_BLOCK;
        (*ret)->hold = hold;
        return 0;
}

/* The frame, from frame @i on, that owns byte @at of the body, its gap included. */
static size_t message_seek(const struct ndbus_message *m, size_t i, uint64_t at)
{
        const struct nd_frame *frames = m->shared->header->frames;

        while (i + 1 < m->n_arrays && at >= frames[i + 1].offset &&
               at >= frames[i].offset + round_up(frames[i].bytes))
                ++i;
        return i;
}

size_t nd_message_fill_iov(struct ndbus_message *m,
                           uint64_t from,
                           uint64_t n,
                           struct iovec *iov,
                           size_t n_iov,
                           uint64_t *ret_bytes)
{
        const struct nd_frame *frames = m->shared->header->frames;
        uint64_t at = from, end = from + n, offset, part;
        size_t n_used = 0, i = m->i_fill;

        if (m->place == ND_BODY_TOGETHER) {
                iov[0] = (struct iovec){m->body + from, n};
                *ret_bytes = n;
                return 1;
        }
        for (; at < end && n_used < n_iov; ++n_used) {
                struct nd_buffer *buffer;

                i = message_seek(m, i, at);
                if (at == from)
                        m->i_fill = i; /* not further: what is listed may not all come */
                buffer = m->frames[i];
                offset = at - frames[i].offset;
                part = nd_min_u64(round_up(frames[i].bytes) - offset, end - at);
                if (buffer->populated_bytes < offset + part)
                        nd_buffer_populate(buffer,
                                           offset + nd_min_u64(part, ND_POPULATE_AHEAD_BYTES));
                iov[n_used] = (struct iovec){buffer->data + offset, part};
                at += part;
        }
        *ret_bytes = at - from;
        return n_used;
}

void nd_message_fill(struct ndbus_message *m, uint64_t from, const void *data, uint64_t n)
{
        struct iovec iov;
        uint64_t part;

        for (; n > 0; from += part, n -= part) {
                nd_message_fill_iov(m, from, n, &iov, 1, &part);
                memcpy(iov.iov_base, data, part);
                data = (const uint8_t *)data + part;
        }
}

struct nd_buffer *nd_message_keeper(const struct ndbus_message *m, size_t i_array)
{
        if (m->frames[i_array])
                return m->frames[i_array];
        return m->hold ? &m->hold->keeper : m->memory;
}

ND_PUBLIC struct ndbus_hold *ndbus_message_hold(const struct ndbus_message *m, size_t i_array)
{
        nd_assert(i_array < m->n_arrays);
        return (struct ndbus_hold *)nd_buffer_ref(nd_message_keeper(m, i_array));
}

ND_PUBLIC void ndbus_hold_free(struct ndbus_hold *hold)
{
        nd_buffer_unref((struct nd_buffer *)hold);
}

ND_PUBLIC void ndbus_message_free(struct ndbus_message *m)
{
        if (!m)
                return;
        if (m->place == ND_BODY_APART || m->has_left_place)
                for (size_t i = 0; i < m->n_arrays; ++i)
                        nd_buffer_unref(m->frames[i]);
        if (m->hold)
                nd_buffer_unref(&m->hold->keeper);
        nd_shared_header_unref(m->shared);
        if (m->finish)
                nd_finish_done(m->finish);
        nd_buffer_unref(m->memory); /* m is in there */
}

ND_PUBLIC const char *ndbus_message_topic(const struct ndbus_message *m)
{
        return m->shared->header->topic;
}

ND_PUBLIC const char *ndbus_message_reply(const struct ndbus_message *m)
{
        return m->shared->header->reply;
}

ND_PUBLIC const char *ndbus_message_encoding(const struct ndbus_message *m)
{
        return m->shared->header->encoding;
}

ND_PUBLIC uint64_t ndbus_message_source(const struct ndbus_message *m)
{
        return m->source;
}

ND_PUBLIC uint64_t ndbus_message_sequence(const struct ndbus_message *m)
{
        return m->sequence;
}

ND_PUBLIC uint64_t ndbus_message_time_ns(const struct ndbus_message *m)
{
        return m->time_ns;
}

ND_PUBLIC uint64_t ndbus_message_dropped(const struct ndbus_message *m)
{
        return m->dropped;
}

ND_PUBLIC int ndbus_message_retained(const struct ndbus_message *m)
{
        return (m->flags & ND_FLAG_RETAINED) != 0;
}

ND_PUBLIC int ndbus_message_redelivered(const struct ndbus_message *m)
{
        return (m->flags & ND_FLAG_REDELIVERED) != 0;
}

ND_PUBLIC uint32_t ndbus_message_subscription(const struct ndbus_message *m)
{
        return m->subscription;
}

ND_PUBLIC void *ndbus_message_userdata(const struct ndbus_message *m)
{
        return m->userdata;
}

ND_PUBLIC int ndbus_message_check_meta(const struct ndbus_message *m)
{
        struct nd_fault fault;

        if (!m->refused_meta)
                return 0;
        nd_scan(m->refused_meta, m->n_refused_meta, ND_SCAN_META, "meta", &fault);
        return nd_detail_fault_as(NDBUS_EMETA, &fault);
}

ND_PUBLIC size_t ndbus_message_meta(const struct ndbus_message *m, const void **ret_meta)
{
        *ret_meta = m->meta;
        return m->n_meta;
}

ND_PUBLIC size_t ndbus_message_header(const struct ndbus_message *m, const void **ret_header)
{
        *ret_header = m->shared->bytes;
        return m->shared->n_bytes;
}

ND_PUBLIC size_t ndbus_message_arrays(const struct ndbus_message *m,
                                      const struct ndbus_array **ret_arrays)
{
        *ret_arrays = m->arrays;
        return m->n_arrays;
}

ND_PUBLIC uint64_t ndbus_message_bytes(const struct ndbus_message *m)
{
        return m->body_bytes;
}
