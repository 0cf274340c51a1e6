/* SPDX-License-Identifier: MIT */

/*
 * Message of the daemon: what goes in in any pieces comes out in any pieces
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/message.h"
#include "daemon/router.h"
#include "tests/support/pattern.h"

struct world {
        struct nd_router router;
        struct nd_store store;
        struct nd_topic *topic;
        struct nd_header_bytes *header;
};

static void world_init(struct world *w, uint64_t bytes_max)
{
        *w = (struct world){0};
        cr_assert_eq(nd_router_init(&w->router), 0);
        cr_assert_eq(nd_store_init(&w->store, bytes_max), 0);
        w->topic = nd_router_topic(&w->router, "t", 1);
        w->header = nd_header_bytes_new("header", 6);
        cr_assert(w->topic && w->header);
}

static void world_deinit(struct world *w)
{
        cr_expect_eq(w->store.n_messages, 0);
        cr_expect_eq(w->store.messages_bytes, 0);
        cr_expect_eq(w->store.memory.used_bytes, 0);
        nd_header_bytes_unref(w->header);
        nd_topic_unref(w->topic);
        nd_router_deinit(&w->router);
        nd_store_deinit(&w->store); /* asserts that no block is out */
}

static struct nd_message *make(struct world *w, uint64_t body_bytes)
{
        const struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH, .body_bytes = body_bytes, .meta_bytes = 3};

        return nd_message_new(&w->store, &prelude, w->header, w->topic, (const uint8_t *)"abc",
                              NULL);
}

/* Copies the next body bytes in; false if there is no block to be had. */
static bool append(struct nd_message *message, const uint8_t *data, size_t n_bytes)
{
        while (n_bytes > 0) {
                struct iovec iov;
                size_t n_iov;
                size_t n = nd_message_space(message, n_bytes, &iov, 1, &n_iov);

                if (n == 0)
                        return false;
                memcpy(iov.iov_base, data, n);
                nd_message_received(message, n);
                data += n;
                n_bytes -= n;
        }
        return true;
}

/* The range as nd_message_body() gives it, in one piece. */
static void expect_range(const struct nd_message *message, uint64_t from, uint64_t to)
{
        struct iovec iov[64];
        size_t n = nd_message_body(message, from, to, iov, nd_array_size(iov));

        for (size_t i = 0; i < n; ++i) {
                cr_assert_gt(iov[i].iov_len, 0);
                cr_assert_eq(nd_pattern_compare(iov[i].iov_base, from, iov[i].iov_len),
                             iov[i].iov_len);
                from += iov[i].iov_len;
        }
        cr_assert_eq(from, to);
}

Test(daemon_message, any_pieces)
{
        static const uint64_t sizes[] = {0,     1,      4095,   65535,    65536,
                                         65537, 131072, 200000, 1u << 20, 1500001};
        static uint8_t body[1500001];
        struct world w;
        unsigned random = 1;

        nd_pattern_fill(body, 0, sizeof(body));
        world_init(&w, 8u << 20);
        for (size_t i = 0; i < nd_array_size(sizes); ++i) {
                struct nd_message *message = make(&w, sizes[i]);

                cr_assert(message);
                cr_assert_eq(memcmp(message->meta, "abc", 3), 0);
                cr_assert(nd_message_charge(message));
                cr_assert_geq(message->cost_bytes, sizes[i]);
                while (message->received_bytes < sizes[i]) {
                        size_t n;

                        random = random * 1664525u + 1013904223u;
                        n = (size_t)nd_min_u64(1 + (random >> 8) % 150000,
                                               sizes[i] - message->received_bytes);
                        cr_assert(append(message, body + message->received_bytes, n));
                        expect_range(message, message->received_bytes - n, message->received_bytes);
                }
                for (int k = 0; k < 50 && sizes[i] > 0; ++k) {
                        uint64_t from, to;

                        random = random * 1664525u + 1013904223u;
                        from = random % sizes[i];
                        random = random * 1664525u + 1013904223u;
                        to = from + random % (sizes[i] - from + 1);
                        expect_range(message, from, to);
                }
                nd_message_unref(message);
                cr_assert_eq(w.store.arena.n_used, 0);
        }
        world_deinit(&w);
}

/* Blocks that everybody is past go back one by one; the rest stays. */
Test(daemon_message, free_before)
{
        static uint8_t body[10 * ND_BLOCK_BYTES + 100];
        struct nd_message *message;
        struct world w;

        nd_pattern_fill(body, 0, sizeof(body));
        world_init(&w, 8u << 20);
        message = make(&w, sizeof(body));
        cr_assert(append(message, body, sizeof(body)));
        cr_assert_eq(w.store.arena.n_used, 10);
        nd_message_free_before(message, ND_BLOCK_BYTES - 1);
        cr_assert_eq(w.store.arena.n_used, 10);
        nd_message_free_before(message, ND_BLOCK_BYTES);
        cr_assert_eq(w.store.arena.n_used, 9);
        nd_message_free_before(message, 5 * ND_BLOCK_BYTES + 1);
        cr_assert_eq(w.store.arena.n_used, 5);
        nd_message_free_before(message, ND_BLOCK_BYTES); /* never backwards */
        cr_assert_eq(w.store.arena.n_used, 5);
        expect_range(message, 5 * ND_BLOCK_BYTES, sizeof(body));
        nd_message_free_before(message, sizeof(body));
        cr_assert_eq(w.store.arena.n_used, 0);
        expect_range(message, 10 * ND_BLOCK_BYTES, sizeof(body));
        nd_message_unref(message);
        world_deinit(&w);
}

/* Bytes arrive where they will be sent from, across blocks, as many as there is iovec for. */
Test(daemon_message, space)
{
        struct nd_message *message;
        struct iovec iov[4];
        struct world w;
        size_t n;

        world_init(&w, 8u << 20);
        message = make(&w, 3 * ND_BLOCK_BYTES + 10);
        cr_assert_eq(w.store.arena.n_used, 0, "announcing takes no block");
        cr_assert_eq(nd_message_space(message, 100, iov, 4, &n), 100);
        cr_assert_eq(n, 1);
        cr_assert_eq(w.store.arena.n_used, 1);
        nd_message_received(message, 50);
        cr_assert_eq(nd_message_space(message, 3 * ND_BLOCK_BYTES + 10 - 50, iov, 4, &n),
                     3 * ND_BLOCK_BYTES + 10 - 50);
        cr_assert_eq(n, 4);
        cr_assert_eq(iov[0].iov_len, ND_BLOCK_BYTES - 50);
        cr_assert_eq(iov[3].iov_len, 10);
        cr_assert_eq(nd_message_space(message, 2 * ND_BLOCK_BYTES, iov, 2, &n),
                     2 * ND_BLOCK_BYTES - 50);
        cr_assert_eq(n, 2);
        nd_message_unref(message);
        world_deinit(&w);
}

/* Without a block to be had there is no space, and no harm. */
Test(daemon_message, no_blocks)
{
        static uint8_t body[64 * ND_BLOCK_BYTES];
        struct nd_message *message;
        struct world w;

        world_init(&w, 4 * ND_BLOCK_BYTES);
        message = make(&w, sizeof(body));
        cr_assert_not(nd_message_charge(message));
        cr_assert_not(append(message, body, sizeof(body)));
        cr_assert_lt(message->received_bytes, sizeof(body));
        nd_message_unref(message);
        world_deinit(&w);
}
