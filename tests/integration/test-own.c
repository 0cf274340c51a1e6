/* SPDX-License-Identifier: MIT */

/*
 * Blocks of the daemon's own over the wire: large bodies that come by a socket are received into
 * shared memory where somebody wants them there, and nobody else notices
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>
#include "tests/support/pattern.h"
#include "tests/support/raw-shm.h"

#define KIB UINT64_C(1024)
#define MIB (KIB << 10)

/* 8 MiB of the daemon's own, of which one client may hold 2 */
static const char *const small_args[] = {"--memory-max", "64M", NULL};

struct world {
        struct nd_harness *h;
        struct nd_raw *publisher; /* by TCP */
        struct nd_raw *asker;
};

static void world_init(struct world *w, const char *const *args)
{
        const struct nd_harness_options options = {.args = args};

        w->h = nd_harness_start(&options);
        w->publisher = nd_raw_open(w->h, true);
        w->asker = nd_raw_open(w->h, false);
}

static uint64_t counter(const struct world *w, const char *name)
{
        return nd_raw_stat(w->asker, "counters", name);
}

static bool has_no_segments(void *userdata)
{
        const struct world *w = userdata;

        return nd_raw_stat(w->asker, "memory", "shm") == 0;
}

static void world_deinit(struct world *w)
{
        nd_raw_check_stats(w->asker);
        nd_raw_close(w->publisher);
        nd_raw_close(w->asker);
        nd_harness_stop(w->h);
}

static struct nd_raw *
subscriber(struct world *w, uint32_t features, bool is_tcp, const struct nd_raw_subscribe *ask)
{
        static const struct nd_raw_subscribe all = {.pattern = "**"};
        struct nd_raw *raw = features ? nd_raw_open_shm(w->h) : nd_raw_open(w->h, is_tcp);

        nd_raw_subscribe(raw, 1, ask ? ask : &all);
        return raw;
}

static void release(struct nd_raw *raw, const struct nd_prelude *message)
{
        nd_raw_grant(raw, 1, 1, message->body_bytes);
        nd_raw_release(raw, message->segment, message->place);
}

static void expect_by_socket(struct nd_raw *raw, uint64_t n_bytes)
{
        struct nd_raw_message message = nd_raw_receive(raw);

        cr_assert_eq(message.prelude.body_bytes, n_bytes);
        cr_assert_not(message.prelude.flags & ND_FLAG_BODY_IN_BLOCK);
        nd_raw_message_free(&message);
        nd_raw_grant(raw, 1, 1, n_bytes);
}

Test(own, a_body_that_comes_by_a_socket_is_received_where_it_stays)
{
        static const uint64_t sizes[] = {64 * KIB,      64 * KIB + 1, 256 * KIB,    256 * KIB + 1,
                                         1 * MIB - 100, 1 * MIB,      5 * MIB + 77, 64 * KIB};
        struct nd_prelude message;
        struct nd_raw *sub;
        struct world w;
        uint64_t n_out;

        world_init(&w, NULL);
        sub = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        for (size_t i = 0; i < nd_array_size(sizes); ++i) {
                nd_raw_publish_begin(w.publisher, "t", sizes[i], 7);
                nd_raw_send_prelude(w.publisher,
                                    (struct nd_prelude){.kind = ND_KIND_PING,
                                                        .sequence = ++w.publisher->n_requests});
                nd_raw_expect(w.publisher, ND_KIND_PONG); /* what comes now has its place */
                nd_raw_publish_rest(w.publisher, 7, 0, sizes[i]);
                message = nd_raw_receive_block(sub);
                cr_assert_eq(message.body_bytes, sizes[i]);
                cr_assert_eq(message.sequence, i + 1);
                cr_assert_eq(message.source, w.publisher->source);
                cr_assert_eq(message.place % (sizes[i] >= MIB ? 4096 : 64), 0);
                release(sub, &message);
        }
        n_out = counter(&w, "messages_out_bytes");
        cr_assert_eq(counter(&w, "body_bytes_copied"), 0);
        cr_assert_eq(counter(&w, "shm_own_messages"), nd_array_size(sizes));
        cr_assert_eq(counter(&w, "shm_deliveries"), nd_array_size(sizes));
        cr_assert_eq(counter(&w, "shm_messages"), 0);
        cr_assert_eq(counter(&w, "shm_fallback"), 0);
        cr_assert_eq(counter(&w, "shm_own_exhausted"), 0);
        cr_assert_eq(n_out, counter(&w, "messages_in_bytes"));

        nd_raw_publish(w.publisher, "t", 64 * KIB - 1); /* smaller ones are sent */
        expect_by_socket(sub, 64 * KIB - 1);
        cr_assert_eq(counter(&w, "shm_own_messages"), nd_array_size(sizes));
        nd_raw_close(sub);

        sub = subscriber(&w, 0, false, NULL); /* and what nobody wants in a block */
        nd_raw_publish(w.publisher, "t", MIB);
        expect_by_socket(sub, MIB);
        cr_assert_eq(counter(&w, "shm_own_messages"), nd_array_size(sizes));
        nd_raw_close(sub);
        world_deinit(&w);
}

Test(own, blocks_are_used_again_and_segments_given_back)
{
        struct nd_prelude message;
        struct nd_raw *sub;
        struct world w;
        size_t n_fds;

        world_init(&w, small_args);
        nd_raw_publish(w.publisher, "t", 100);
        nd_raw_flush(w.publisher);
        n_fds = nd_harness_fds(w.h);
        for (unsigned n = 0; n < 3; ++n) {
                sub = subscriber(&w, ND_FEATURE_SHM, false, NULL);
                for (unsigned i = 0; i < 20; ++i) {
                        nd_raw_publish(w.publisher, "t", MIB + i);
                        message = nd_raw_receive_block(sub);
                        cr_assert_eq(message.body_bytes, MIB + i);
                        if (i < 19) /* what it still has comes back with its end */
                                release(sub, &message);
                }
                cr_assert_eq(nd_raw_stat(w.asker, "memory", "shm"), 4 * MIB);
                nd_raw_close(sub);
        }
        cr_assert_eq(counter(&w, "shm_own_messages"), 60);
        nd_harness_wait_until(w.h, "idle segments to be given back", has_no_segments, &w, 60000);
        nd_harness_wait_fds(w.h, n_fds, 60000);
        cr_assert_lt(nd_raw_stat(w.asker, "memory", "used"), MIB);
        world_deinit(&w);
}

/* Who has no shared memory is not kept waiting for the last byte by those who have. */
Test(own, others_are_sent_what_has_come_while_it_arrives)
{
        static const uint64_t n_bytes = 3 * MIB + 5;
        struct nd_raw *shm[2], *plain, *tcp, *member;
        struct nd_prelude message;
        struct world w;

        world_init(&w, NULL);
        shm[0] = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        shm[1] = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        plain = subscriber(&w, 0, false, NULL);
        tcp = subscriber(&w, 0, true, NULL);
        member = subscriber(&w, ND_FEATURE_SHM, false,
                            &(struct nd_raw_subscribe){.pattern = "t", .group = "g"});
        for (unsigned i = 0; i < 3; ++i) {
                nd_raw_publish_begin(w.publisher, "t", n_bytes, 3);
                nd_raw_publish_chunk(w.publisher, 3, 0, 60000);
                cr_assert_eq(nd_raw_expect(tcp, ND_KIND_MESSAGE)->prelude.body_bytes, n_bytes);
                cr_assert_eq(nd_raw_expect(plain, ND_KIND_MESSAGE)->prelude.body_bytes, n_bytes);
                for (uint64_t n = 0; n < 60000;)
                        n += nd_raw_expect(tcp, ND_KIND_CHUNK)->prelude.body_bytes;
                for (uint64_t n = 0; n < 60000;)
                        n += nd_raw_expect(plain, ND_KIND_CHUNK)->prelude.body_bytes;
                nd_raw_flush(shm[0]); /* it would be met here */
                cr_assert_not(nd_raw_has_input(shm[0]));

                nd_raw_publish_rest(w.publisher, 3, 60000, n_bytes);
                for (uint64_t n = 60000; n < n_bytes;)
                        n += nd_raw_expect(tcp, ND_KIND_CHUNK)->prelude.body_bytes;
                for (uint64_t n = 60000; n < n_bytes;)
                        n += nd_raw_expect(plain, ND_KIND_CHUNK)->prelude.body_bytes;
                for (unsigned k = 0; k < 2; ++k) {
                        message = nd_raw_receive_block(shm[k]);
                        cr_assert_eq(message.body_bytes, n_bytes);
                        release(shm[k], &message);
                }
                message = nd_raw_receive_block(member);
                nd_raw_release(member, message.segment, message.place);
        }
        cr_assert_eq(counter(&w, "messages_cut_through"), 6);
        cr_assert_eq(counter(&w, "shm_own_messages"), 3);
        cr_assert_eq(counter(&w, "shm_deliveries"), 9);
        cr_assert_eq(counter(&w, "shm_fallback"), 0);
        for (unsigned k = 0; k < 2; ++k)
                nd_raw_close(shm[k]);
        nd_raw_close(plain);
        nd_raw_close(tcp);
        nd_raw_close(member);
        world_deinit(&w);
}

/* A body that is larger than any window is not held back by those who get it when it is whole: no
 * receiver is slow here, so nothing may wait until one is taken to be. */
Test(own, the_publisher_is_given_credit_while_nobody_is_sent_anything)
{
        static const uint64_t n_bytes = 2 * MIB;
        struct nd_prelude message;
        struct nd_raw *sub;
        struct world w;
        uint64_t place;

        world_init(&w, NULL);
        sub = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        nd_raw_publish_begin(w.publisher, "t", n_bytes, 1);
        for (place = 0; place < n_bytes; place += 16 * KIB) {
                nd_raw_await_credit(w.publisher, 32 * KIB);
                nd_raw_publish_chunk(w.publisher, 1, place, 16 * KIB);
        }
        message = nd_raw_receive_block(sub);
        release(sub, &message);
        nd_raw_close(sub);
        world_deinit(&w);
}

Test(own, what_ends_before_its_last_byte_never_was)
{
        struct nd_raw *sub, *tcp;
        struct nd_prelude message;
        struct world w;

        world_init(&w, small_args);
        sub = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        tcp = subscriber(&w, 0, true, NULL);
        for (unsigned i = 0; i < 20; ++i) {
                struct nd_raw *dying = nd_raw_open(w.h, true);

                nd_raw_publish_begin(dying, "t", 3 * MIB, 1);
                nd_raw_publish_chunk(dying, 1, 0, 50000);
                nd_raw_expect(tcp, ND_KIND_MESSAGE);
                if (i % 2 == 0) {
                        nd_raw_send_prelude(
                                dying, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 1});
                        nd_raw_flush(dying);
                }
                nd_raw_close(dying);
                for (const struct nd_raw_packet *packet = nd_raw_next_other(tcp);
                     packet->prelude.kind != ND_KIND_RESET; packet = nd_raw_next_other(tcp))
                        cr_assert_eq(packet->prelude.kind, ND_KIND_CHUNK);
        }
        cr_assert_eq(counter(&w, "messages_aborted"), 20);
        cr_assert_eq(counter(&w, "shm_own_messages"), 0);
        cr_assert_eq(counter(&w, "shm_own_exhausted"), 0);
        cr_assert_eq(nd_raw_stat(w.asker, "memory", "shm"), 4 * MIB);

        nd_raw_publish(w.publisher, "t", 3 * MIB);
        message = nd_raw_receive_block(sub);
        cr_assert_eq(message.sequence, 1);
        expect_by_socket(tcp, 3 * MIB);
        cr_assert_eq(nd_raw_stat_subscription(w.asker, sub->source, 1, "dropped"), 0);
        nd_raw_close(sub);
        nd_raw_close(tcp);
        world_deinit(&w);
}

Test(own, when_there_is_no_block_it_goes_by_the_socket)
{
        struct nd_prelude held[2], message;
        struct nd_raw *sub;
        struct world w;
        char topic[8];

        world_init(&w, small_args);
        sub = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        nd_raw_publish(w.publisher, "t", 9 * MIB); /* than all that there may be */
        expect_by_socket(sub, 9 * MIB);
        cr_assert_eq(counter(&w, "shm_own_exhausted"), 1);

        for (unsigned i = 0; i < 2; ++i) {
                nd_raw_publish(w.publisher, "t", MIB);
                held[i] = nd_raw_receive_block(sub);
                nd_raw_grant(sub, 1, 1, MIB);
        }
        nd_raw_publish(w.publisher, "t", MIB); /* a quarter it holds */
        expect_by_socket(sub, MIB);
        cr_assert_eq(counter(&w, "shm_fallback"), 1);
        cr_assert_eq(counter(&w, "shm_own_exhausted"), 1);
        for (unsigned i = 0; i < 2; ++i)
                nd_raw_release(sub, held[i].segment, held[i].place);

        /* retained values take all, one after another */
        for (unsigned i = 0; i < 8; ++i) {
                snprintf(topic, sizeof(topic), "r/%u", i);
                nd_raw_publish_flags(w.publisher, topic, MIB, ND_FLAG_RETAINED);
                message = nd_raw_receive_block(sub);
                release(sub, &message);
        }
        cr_assert_eq(nd_raw_stat(w.asker, "memory", "shm"), 8 * MIB);
        nd_raw_publish(w.publisher, "t", 64 * KIB);
        expect_by_socket(sub, 64 * KIB);
        cr_assert_eq(counter(&w, "shm_own_exhausted"), 2);
        nd_raw_publish_flags(w.publisher, "r/3", 0, ND_FLAG_RETAINED); /* clears one */
        expect_by_socket(sub, 0);
        nd_raw_publish(w.publisher, "t", MIB);
        message = nd_raw_receive_block(sub);
        cr_assert_eq(counter(&w, "shm_own_messages"), 12);
        nd_raw_close(sub);
        world_deinit(&w);
}

Test(own, there_are_none_where_none_are_allowed)
{
        static const char *const args[] = {"--shm-own-max", "0", NULL};
        struct nd_raw *sub;
        struct world w;

        world_init(&w, args);
        sub = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        nd_raw_publish(w.publisher, "t", MIB);
        expect_by_socket(sub, MIB);
        cr_assert_eq(counter(&w, "shm_own_messages") + counter(&w, "shm_own_exhausted"), 0);
        nd_raw_close(sub);
        world_deinit(&w);
}

/* Memory that is idle in segments is there for others at once: here for messages that a publisher has in
 * blocks, because those need no window. */
Test(own, idle_segments_make_room)
{
        static const char *const args[] = {"--memory-max", "64M", "--clients-max", "8", NULL};
        static const struct nd_raw_subscribe plain = {.pattern = "plain", .window = 1};
        struct nd_raw *sub, *publisher;
        struct nd_raw_message first;
        struct nd_prelude message;
        struct nd_segment segment;
        struct world w;

        world_init(&w, args);
        sub = subscriber(&w, ND_FEATURE_SHM, false, &(struct nd_raw_subscribe){.pattern = "shm"});
        nd_raw_publish(w.publisher, "shm", 8 * MIB);
        message = nd_raw_receive_block(sub);
        release(sub, &message);
        nd_raw_flush(sub);
        nd_raw_close(w.publisher);
        w.publisher = nd_raw_open(w.h, true);
        cr_assert_eq(nd_raw_stat(w.asker, "memory", "shm"), 8 * MIB);

        publisher = nd_raw_open_shm(w.h);
        segment = nd_raw_segment(28 * MIB + 4096);
        nd_raw_announce(publisher, 1, &segment);
        nd_raw_subscribe(w.asker, 1, &plain);
        nd_raw_publish(publisher, "plain", 100); /* takes the window */
        nd_raw_publish_in(publisher, "plain", 1, 0, 28 * MIB, 0);
        nd_raw_publish_in(publisher, "plain", 1, 4096, 28 * MIB, 0);
        nd_raw_flush(publisher);
        first = nd_raw_receive(w.asker);
        nd_raw_message_free(&first);
        cr_assert_eq(nd_raw_stat(w.asker, "memory", "shm"), 28 * MIB + 4096);
        cr_assert_eq(counter(&w, "dropped_memory"), 0);
        cr_assert_eq(counter(&w, "refused_no_space"), 0);
        nd_raw_close(publisher);
        nd_segment_close(&segment);
        nd_raw_close(sub);
        world_deinit(&w);
}

/* Window 2, depth 3: of twenty fifteen are dropped, and said to be where they were. */
Test(own, what_a_full_queue_drops_is_said)
{
        static const enum nd_policy policies[] = {ND_POLICY_DROP_OLDEST, ND_POLICY_DROP_NEWEST};

        static const uint64_t n_bytes = 300 * KIB;
        struct world w;

        world_init(&w, NULL);
        for (unsigned k = 0; k < 2; ++k) {
                const struct nd_raw_subscribe ask = {
                        .pattern = "**", .policy = policies[k], .depth = 3, .window = 2};
                struct nd_raw *sub = subscriber(&w, ND_FEATURE_SHM, false, &ask);

                for (unsigned i = 0; i < 20; ++i)
                        nd_raw_publish(w.publisher, "t", n_bytes);
                nd_raw_flush(w.publisher);
                nd_raw_check_stats(w.asker);
                for (unsigned i = 0; i < 5; ++i) {
                        unsigned n_before = i >= 2 && k == 0 ? 15 : 0;
                        struct nd_prelude message;

                        if (i == 2 && k == 0)
                                cr_assert_eq(nd_raw_expect(sub, ND_KIND_GAP)->prelude.place, 15);
                        message = nd_raw_receive_block(sub);
                        cr_assert_eq(message.sequence, 20 * k + i + n_before + 1);
                        release(sub, &message);
                }
                if (k == 1)
                        cr_assert_eq(nd_raw_expect(sub, ND_KIND_GAP)->prelude.place, 15);
                cr_assert_eq(counter(&w, "shm_own_messages"), 20 * (k + 1));
                nd_raw_close(sub);
        }
        world_deinit(&w);
}

Test(own, who_releases_what_it_does_not_hold_ends_alone)
{
        struct nd_raw *good, *bad;
        struct nd_prelude message;
        struct world w;

        world_init(&w, small_args);
        good = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        for (unsigned i = 0; i < 8; ++i) {
                struct nd_prelude theirs;

                bad = subscriber(&w, ND_FEATURE_SHM, false, NULL);
                nd_raw_publish(w.publisher, "t", MIB);
                message = nd_raw_receive_block(good);
                theirs = nd_raw_receive_block(bad);
                switch (i % 4) {
                case 0: /* twice */
                        nd_raw_release(bad, theirs.segment, theirs.place);
                        break;
                case 1: /* a place beside it */
                        theirs.place += 64;
                        break;
                case 2: /* a segment that it was not handed */
                        theirs.segment += 1;
                        break;
                default: /* that its own is gone */
                        nd_raw_send_prelude(bad, (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE,
                                                                     .segment = theirs.segment});
                }
                nd_raw_release(bad, theirs.segment, theirs.place);
                nd_raw_expect_error(bad, NDBUS_EPROTOCOL, true);
                nd_raw_close(bad);
                cr_assert_eq(nd_pattern_compare(nd_raw_block_bytes(good, &message), 0, MIB), MIB);
                release(good, &message);
        }
        /* it cannot map them: it is sent what lies in them, the next time and from then on */
        bad = subscriber(&w, ND_FEATURE_SHM, false, NULL);
        nd_raw_publish(w.publisher, "t", MIB);
        message = nd_raw_receive_block(bad);
        nd_raw_send_prelude(bad, (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE,
                                                     .segment = message.segment,
                                                     .sequence = 1});
        nd_raw_flush(bad);
        nd_raw_publish(w.publisher, "t", MIB);
        expect_by_socket(bad, MIB);
        nd_raw_close(bad);
        nd_raw_close(good);
        world_deinit(&w);
}
