/* SPDX-License-Identifier: MIT */

/*
 * Where the bytes of a body go, whatever pieces they come in, and what becomes of their memory
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "client/dlpack.h"
#include "client/message.h"
#include "tests/support/pattern.h"

#define FRAMES_MAX 40

static uint64_t random_state = 0x9e3779b97f4a7c15;

static uint64_t draw(uint64_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state % n;
}

/* A header of frames of raw bytes, some without any. */
static struct nd_shared_header *make_header(size_t n, uint64_t bytes_max)
{
        static int64_t shapes[FRAMES_MAX];
        struct nd_frame frames[FRAMES_MAX] = {0};
        struct nd_header header = {.topic = "t", .n_topic = 1, .n_frames = n, .frames = frames};
        struct nd_shared_header *shared = NULL;
        size_t n_data;
        void *data;

        for (size_t i = 0; i < n; ++i) {
                shapes[i] = (int64_t)(draw(4) ? draw(bytes_max) : 0);
                frames[i] = (struct nd_frame){
                        .array = {.bits = 8, .ndim = 1, .shape = &shapes[i]},
                        .bytes = (uint64_t)shapes[i],
                };
        }
        cr_assert_eq(nd_header_pack(&header, &data, &n_data), 0);
        cr_assert_eq(nd_shared_header_new(data, n_data, NULL, &shared, NULL), 0);
        free(data);
        return shared;
}

static struct ndbus_message *make_message(struct nd_pool *pool, struct nd_shared_header *shared)
{
        const struct nd_prelude p = {.body_bytes = shared->header->body_bytes};
        struct ndbus_message *m = NULL;

        cr_assert_eq(nd_message_new(pool, shared, &p, NULL, &m), 0);
        return m;
}

/* As a socket does: pieces are listed, and some of their bytes come. */
static void fill_in_pieces(struct ndbus_message *m, const uint8_t *body)
{
        struct iovec iov[5];
        uint64_t at = 0, n, part, some;

        while (at < m->body_bytes) {
                if (draw(2)) {
                        n = 1 + draw(m->body_bytes - at);
                        nd_message_fill(m, at, body + at, n);
                        at += n;
                        continue;
                }
                nd_message_fill_iov(m, at, m->body_bytes - at, iov, 1 + draw(5), &part);
                cr_assert(part > 0 && part <= m->body_bytes - at);
                n = 1 + draw(part);
                for (size_t i = 0; n > 0; ++i) {
                        some = nd_min_u64(n, iov[i].iov_len);
                        memcpy(iov[i].iov_base, body + at, some);
                        at += some;
                        n -= some;
                }
        }
}

Test(message, bytes_come_to_their_places_whatever_pieces_they_come_in)
{
        static uint8_t body[FRAMES_MAX * 20000];
        struct nd_pool *pool = nd_pool_new();

        nd_pattern_fill(body, 0, sizeof(body));
        for (int round = 0; round < 500; ++round) {
                struct nd_shared_header *shared =
                        make_header(draw(FRAMES_MAX + 1), round % 2 ? 300 : 20000);
                struct ndbus_message *m = make_message(pool, shared);

                fill_in_pieces(m, body);
                for (size_t i = 0; i < m->n_arrays; ++i) {
                        const struct nd_frame *frame = &shared->header->frames[i];

                        cr_assert_eq((uintptr_t)m->arrays[i].data % 64, 0);
                        cr_assert_eq(
                                nd_pattern_compare(m->arrays[i].data, frame->offset, frame->bytes),
                                frame->bytes);
                }
                nd_shared_header_unref(shared);
                ndbus_message_free(m);
        }
        nd_pool_close(pool);
}

Test(message, an_export_keeps_its_array_and_nothing_else)
{
        static uint8_t body[200000];
        struct nd_pool *pool = nd_pool_new();
        struct nd_shared_header *shared;
        struct nd_pool_counts counts;
        struct DLManagedTensorVersioned *t;
        struct ndbus_message *m;

        nd_pattern_fill(body, 0, sizeof(body));
        for (;;) {
                shared = make_header(2, 100000);
                if (shared->header->frames[0].bytes > 0 && shared->header->frames[1].bytes > 5000)
                        break;
                nd_shared_header_unref(shared);
        }
        m = make_message(pool, shared);
        nd_message_fill(m, 0, body, m->body_bytes);
        cr_assert_eq(ndbus_message_export(m, 1, &t), 0);
        ndbus_message_free(m);
        nd_pool_count(pool, &counts);
        cr_assert_eq(counts.n_out, 1);
        nd_pool_close(pool);
        cr_assert_eq(nd_pattern_compare(t->dl_tensor.data, shared->header->frames[1].offset,
                                        shared->header->frames[1].bytes),
                     shared->header->frames[1].bytes);
        t->deleter(t);
        nd_shared_header_unref(shared);
}

Test(message, what_is_held_is_one_array_as_an_export_would)
{
        static uint8_t body[200000];
        struct nd_pool *pool = nd_pool_new();
        struct nd_shared_header *shared;
        struct nd_pool_counts counts;
        struct ndbus_hold *hold;
        struct ndbus_message *m;
        const void *data;

        nd_pattern_fill(body, 0, sizeof(body));
        for (;;) {
                shared = make_header(2, 100000);
                if (shared->header->frames[0].bytes > 0 && shared->header->frames[1].bytes > 5000)
                        break;
                nd_shared_header_unref(shared);
        }
        m = make_message(pool, shared);
        nd_message_fill(m, 0, body, m->body_bytes);
        data = m->arrays[1].data;
        hold = ndbus_message_hold(m, 1);
        ndbus_message_free(m);
        nd_pool_count(pool, &counts);
        cr_assert_eq(counts.n_out, 1);
        cr_assert_eq(nd_pattern_compare(data, shared->header->frames[1].offset,
                                        shared->header->frames[1].bytes),
                     shared->header->frames[1].bytes);
        ndbus_hold_free(hold);
        ndbus_hold_free(NULL);
        nd_pool_count(pool, &counts);
        cr_assert_eq(counts.n_out, 0);
        nd_shared_header_unref(shared);
        nd_pool_close(pool);
}

Test(message, t24_a_private_copy_is_writable_and_changes_nobody)
{
        static uint8_t body[200000];
        struct nd_pool *pool = nd_pool_new();
        struct nd_shared_header *shared;
        struct DLManagedTensorVersioned *t;
        const void *before;
        struct ndbus_message *m;

        for (uint64_t bytes_max = 200; bytes_max < 100000; bytes_max *= 300) {
                for (;;) {
                        shared = make_header(1, bytes_max);
                        if (shared->header->body_bytes > 0)
                                break;
                        nd_shared_header_unref(shared);
                }
                m = make_message(pool, shared);
                nd_message_fill(m, 0, body, m->body_bytes);
                before = m->arrays[0].data;
                cr_assert_eq(ndbus_message_own(m), 0);
                cr_assert_eq(m->arrays[0].data, before, "it was private already");
                cr_assert_eq(ndbus_message_export(m, 0, &t), 0);
                cr_assert_eq(ndbus_message_own(m), 0);
                cr_assert_neq(m->arrays[0].data, before);
                memset((void *)(uintptr_t)m->arrays[0].data, 0xee, m->body_bytes);
                cr_assert_eq(((const uint8_t *)t->dl_tensor.data)[0], 0);
                t->deleter(t);
                ndbus_message_free(m);
                nd_shared_header_unref(shared);
        }
        nd_pool_close(pool);
}

Test(message, the_last_eight_headers_are_parsed_once)
{
        struct nd_header_cache cache = {0};
        struct nd_shared_header *first[ND_HEADER_CACHE_N], *again;
        void *data[ND_HEADER_CACHE_N + 1];
        size_t n_data[ND_HEADER_CACHE_N + 1];

        for (size_t i = 0; i <= ND_HEADER_CACHE_N; ++i) {
                char topic[] = {(char)('a' + i), '\0'};
                const struct nd_header header = {.topic = topic, .n_topic = 1};

                cr_assert_eq(nd_header_pack(&header, &data[i], &n_data[i]), 0);
        }
        for (size_t i = 0; i < ND_HEADER_CACHE_N; ++i)
                cr_assert_eq(nd_header_cache_get(&cache, data[i], n_data[i], NULL, &first[i], NULL),
                             0);
        for (size_t i = ND_HEADER_CACHE_N; i-- > 0;) {
                cr_assert_eq(nd_header_cache_get(&cache, data[i], n_data[i], NULL, &again, NULL),
                             0);
                cr_assert_eq(again, first[i]);
                nd_shared_header_unref(again);
        }
        cr_assert_eq(nd_header_cache_get(&cache, data[ND_HEADER_CACHE_N], n_data[ND_HEADER_CACHE_N],
                                         NULL, &again, NULL),
                     0);
        nd_shared_header_unref(again);
        cr_assert_str_eq(first[0]->header->topic, "a", "it lives as long as somebody holds it");
        nd_header_cache_deinit(&cache);
        for (size_t i = 0; i <= ND_HEADER_CACHE_N; ++i) {
                if (i < ND_HEADER_CACHE_N)
                        nd_shared_header_unref(first[i]);
                free(data[i]);
        }
}
