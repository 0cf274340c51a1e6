/* SPDX-License-Identifier: MIT */

/*
 * Bells: how they come, what their clients may do to them, and what there is when there are no more
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include "tests/support/ring-world.h"

/* One message through the ring, told of as @call does. */
static void go_on(struct ring_world *w, void (*call)(struct nd_raw *raw, struct nd_ring *ring))
{
        ring_world_wait_asleep(w);
        ring_world_by_ring(w);
        call(w->publisher, &w->ring);
        ring_world_expect_up_to(w, w->publisher->n_published);
}

/* ---------------------------------------------------------------------------------- what comes */

#define PINGS_N 1000u

static void send_pings(struct nd_raw *raw, size_t n)
{
        static uint8_t bytes[PINGS_N][ND_PRELUDE_BYTES];

        for (size_t i = 0; i < n; ++i)
                nd_prelude_pack(
                        &(struct nd_prelude){.kind = ND_KIND_PING, .sequence = ++raw->n_requests},
                        bytes[i]);
        nd_raw_send(raw, bytes, n * ND_PRELUDE_BYTES);
}

/* The next packet is the answer, and the bell comes with its first byte. */
static void expect_bell(struct nd_raw *raw, uint64_t number)
{
        cr_assert_eq(raw->n_fds, 0);
        nd_raw_expect_ring(raw, number);
        cr_assert_geq(raw->bell, 0);
}

/* In the middle of other answers; what they are is counted. */
Test(bell, comes_with_the_answer_about_its_ring)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        for (size_t i = 0; i < 100; ++i) {
                size_t n_before = i * 7;
                uint64_t number;

                w.publisher = nd_raw_open_ring(w.h);
                send_pings(w.publisher, n_before);
                number = nd_raw_ask_ring(w.publisher, &w.ring);
                send_pings(w.publisher, PINGS_N - n_before);
                for (size_t k = 0; k < n_before; ++k)
                        nd_raw_expect(w.publisher, ND_KIND_PONG);
                expect_bell(w.publisher, number);
                for (size_t k = n_before; k < PINGS_N; ++k)
                        nd_raw_expect(w.publisher, ND_KIND_PONG);
                cr_assert_eq(w.publisher->n_fds, 0);
                ring_world_leave(&w);
        }
        ring_world_wait_left(&w);
        ring_world_deinit(&w);
}

/* Behind a message that is sent in part, or one that is not begun. */
Test(bell, comes_behind_what_the_socket_did_not_take)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        for (size_t i = 0; i < 40; ++i) {
                const struct nd_raw_packet *packet;
                uint64_t number;

                w.publisher = nd_raw_open_ring(w.h);
                nd_raw_subscribe(w.publisher, 1, &(struct nd_raw_subscribe){.pattern = "many"});
                for (size_t k = 0; k < 16; ++k)
                        nd_raw_publish(w.asker, "many", 40000 + 499 * i);
                nd_raw_flush(w.asker); /* what its socket takes is there */
                number = nd_raw_ask_ring(w.publisher, &w.ring);
                nd_raw_flush(w.asker);
                while ((packet = nd_raw_next_other(w.publisher)) &&
                       packet->prelude.kind != ND_KIND_RING)
                        cr_assert_eq(w.publisher->n_fds, 0);
                cr_assert(packet);
                cr_assert_eq(packet->prelude.sequence, number);
                cr_assert_eq(packet->prelude.flags, ND_FLAG_FD);
                cr_assert_eq(w.publisher->n_fds, 1);
                ring_world_leave(&w);
        }
        ring_world_deinit(&w);
}

/* ------------------------------------------------------------------------- what a client may do */

static void empty(int bell)
{
        uint64_t n;

        while (read(bell, &n, sizeof(n)) == (ssize_t)sizeof(n))
                ;
        cr_assert_eq(errno, EAGAIN);
}

static void fill(int bell)
{
        const uint64_t n = UINT64_MAX - 1;

        empty(bell);
        cr_assert_eq(write(bell, &n, sizeof(n)), (ssize_t)sizeof(n));
}

static void block(int bell)
{
        cr_assert_eq(fcntl(bell, F_SETFL, 0), 0);
}

static void spam(int bell)
{
        const uint64_t once = 1;

        for (unsigned i = 0; i < 20000; ++i)
                cr_assert_eq(write(bell, &once, sizeof(once)), (ssize_t)sizeof(once));
}

/* WAKE is heard as before, and the bell when it is one again. */
Test(bell, that_is_misused_harms_nobody)
{
        static void (*const misuses[])(int bell) = {empty, fill, block, spam};
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (size_t i = 0; i < nd_array_size(misuses); ++i) {
                for (unsigned k = 0; k < 10; ++k) {
                        go_on(&w, nd_raw_ring_call);
                        misuses[i](w.publisher->bell);
                        go_on(&w, nd_raw_ring_wake);
                        misuses[i](w.publisher->bell);
                        ring_world_expect_routed(w.publisher, w.publisher->n_published);
                        cr_assert_eq(fcntl(w.publisher->bell, F_SETFL, O_NONBLOCK), 0);
                        empty(w.publisher->bell);
                }
                ring_world_leave(&w);
                ring_world_wait_left(&w);
                ring_world_join(&w);
        }
        ring_world_deinit(&w);
}

/* Nor is a bell missed that its client has closed. */
Test(bell, that_is_kept_is_heard_no_longer)
{
        struct ring_world w;
        int kept;

        ring_world_init(&w, NULL);
        for (unsigned i = 0; i < 20; ++i) {
                kept = dup(w.publisher->bell);
                cr_assert_geq(kept, 0);
                close(w.publisher->bell);
                w.publisher->bell = -1;
                go_on(&w, nd_raw_ring_wake);
                ring_world_leave(&w);
                ring_world_wait_left(&w);
                spam(kept);
                ring_world_join(&w);
                spam(kept);
                go_on(&w, nd_raw_ring_call);
                close(kept);
        }
        ring_world_deinit(&w);
}

/* ------------------------------------------------------------------------- when there is none */

/* Whoever asks gets a ring with a bell, or without one. */
static void join_expecting(struct ring_world *w, bool has_bell)
{
        ring_world_join(w);
        cr_assert_eq(w->publisher->bell >= 0, has_bell);
        go_on(w, has_bell ? nd_raw_ring_call : nd_raw_ring_wake);
}

Test(bell, is_given_to_who_asks_for_it)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        ring_world_join_as(&w, nd_raw_open_features(w.h, false, ND_FEATURE_SHM | ND_FEATURE_RING));
        cr_assert_lt(w.publisher->bell, 0);
        go_on(&w, nd_raw_ring_wake);
        ring_world_deinit(&w);
}

Test(bell, is_had_by_a_sixteenth_of_all_descriptors_at_most)
{
        static const struct nd_harness_rlimit limit = {RLIMIT_NOFILE, {64, 64}};
        const struct nd_harness_options options = {.rlimits = &limit, .n_rlimits = 1};
        struct nd_ring rings[4];
        struct nd_raw *raws[4];
        struct ring_world w;

        ring_world_init_with(&w, &options);
        ring_world_leave(&w);
        ring_world_wait_left(&w);
        for (size_t i = 0; i < nd_array_size(raws); ++i) {
                raws[i] = nd_raw_open_ring(w.h);
                rings[i] = nd_raw_ring(raws[i]);
                cr_assert_geq(raws[i]->bell, 0);
        }
        join_expecting(&w, false);
        ring_world_leave(&w);
        nd_raw_close(raws[3]);
        nd_harness_wait_fds(w.h, w.h->n_fds_ready + 2 + 2 * 3, nd_harness_deadline_ms(10000));
        join_expecting(&w, true);
        for (size_t i = 0; i < nd_array_size(raws); ++i) {
                if (i != 3)
                        nd_raw_close(raws[i]);
                nd_ring_close(&rings[i]);
        }
        ring_world_leave(&w);
        ring_world_wait_left(&w);
        ring_world_deinit(&w);
}

/* The kernel lets a user have as many descriptors under way as it may have open. */
Test(bell, that_the_kernel_does_not_pass_on_is_none)
{
        static const struct nd_harness_rlimit limit = {RLIMIT_NOFILE, {64, 64}};
        const struct nd_harness_options options = {
                .rlimits = &limit, .n_rlimits = 1, .unprivileged = true};
        struct nd_segment segments[8];
        struct nd_raw *readers[10];
        struct nd_raw *raw;
        struct ring_world w;

        ring_world_init_with(&w, &options);
        ring_world_leave(&w);
        raw = nd_raw_open_shm(w.h);
        for (size_t i = 0; i < nd_array_size(readers); ++i) {
                readers[i] = nd_raw_open_shm(w.h);
                nd_raw_subscribe(readers[i], 1, &(struct nd_raw_subscribe){.pattern = "many"});
        }
        for (uint32_t i = 0; i < nd_array_size(segments); ++i) {
                segments[i] = nd_raw_segment(4096);
                nd_raw_announce(raw, i + 1, &segments[i]);
                nd_raw_publish_block(raw, "many", &segments[i], i + 1, 64, 1000);
        }
        nd_raw_flush(raw);
        join_expecting(&w, false);
        ring_world_leave(&w);
        for (size_t i = 0; i < nd_array_size(readers); ++i)
                nd_raw_close(readers[i]); /* and what it did not read */
        nd_raw_close(raw);
        ring_world_wait_left(&w);
        join_expecting(&w, true);
        for (size_t i = 0; i < nd_array_size(segments); ++i)
                nd_segment_close(&segments[i]);
        ring_world_deinit(&w);
}
