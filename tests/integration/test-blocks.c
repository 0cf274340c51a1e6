/* SPDX-License-Identifier: MIT */

/*
 * Blocks over the wire: how a body that lies in shared memory goes to those who want it, and comes
 * back to its publisher exactly once
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "tests/support/pattern.h"
#include "tests/support/raw-shm.h"

#define SEGMENT_BYTES (UINT64_C(8) << 20)

struct world {
        struct nd_harness *h;
        struct nd_raw *publisher;
        struct nd_segment segment; /* number 1 of the publisher */
};

static void world_init(struct world *w, const char *const *args)
{
        const struct nd_harness_options options = {.args = args};

        w->h = nd_harness_start(&options);
        w->publisher = nd_raw_open_shm(w->h);
        w->segment = nd_raw_segment(SEGMENT_BYTES);
        nd_raw_announce(w->publisher, 1, &w->segment);
}

static void world_deinit(struct world *w)
{
        if (w->publisher)
                nd_raw_close(w->publisher);
        nd_segment_close(&w->segment);
        nd_harness_stop(w->h);
}

static struct nd_raw *subscriber(struct world *w, uint32_t features, bool is_tcp)
{
        struct nd_raw *raw = features ? nd_raw_open_shm(w->h) : nd_raw_open(w->h, is_tcp);

        nd_raw_subscribe(raw, 1, &(struct nd_raw_subscribe){.pattern = "**"});
        return raw;
}

static void publish(struct world *w, uint64_t place, uint64_t n_bytes)
{
        nd_raw_publish_block(w->publisher, "t", &w->segment, 1, place, n_bytes);
}

Test(blocks, are_handed_on_and_come_back_when_the_last_holder_is_done)
{
        struct nd_raw *subscribers[3];
        struct world w;
        uint64_t place;

        world_init(&w, NULL);
        for (size_t i = 0; i < 3; ++i)
                subscribers[i] = subscriber(&w, ND_FEATURE_SHM, false);
        for (uint64_t k = 0; k < 3; ++k) {
                publish(&w, k << 20, 1 << 20);
                for (size_t i = 0; i < 3; ++i) {
                        struct nd_prelude message = nd_raw_receive_block(subscribers[i]);

                        cr_assert_eq(message.place, k << 20);
                        cr_assert_eq(message.body_bytes, 1 << 20);
                        cr_assert_eq(message.sequence, k + 1);
                        nd_raw_flush(
                                w.publisher); /* a RELEASE before the last one would be lost here */
                        nd_raw_release(subscribers[i], message.segment, message.place);
                }
                nd_raw_expect_released(w.publisher, 1, &place);
                cr_assert_eq(place, k << 20);
        }
        cr_assert_eq(nd_raw_stat(w.publisher, "counters", "shm_messages"), 3);
        cr_assert_eq(nd_raw_stat(w.publisher, "counters", "shm_deliveries"), 9);
        cr_assert_eq(nd_raw_stat(w.publisher, "counters", "body_bytes_copied"), 0);
        for (size_t i = 0; i < 3; ++i)
                nd_raw_close(subscribers[i]);
        world_deinit(&w);
}

Test(blocks, go_by_the_socket_to_who_has_no_shared_memory)
{
        static const uint64_t sizes[] = {1, 100, 5000, 70000, 1 << 20, (5 << 20) + 77};
        struct nd_raw *plain, *tcp;
        struct world w;

        world_init(&w, NULL);
        plain = subscriber(&w, 0, false);
        tcp = subscriber(&w, 0, true);
        for (size_t i = 0; i < nd_array_size(sizes); ++i) {
                struct nd_raw_message a, b;

                publish(&w, 64, sizes[i]);
                a = nd_raw_receive(plain);
                b = nd_raw_receive(tcp);
                cr_assert_eq(a.prelude.body_bytes, sizes[i]);
                cr_assert_eq(b.prelude.body_bytes, sizes[i]);
                nd_raw_message_free(&a);
                nd_raw_message_free(&b);
                nd_raw_expect_released(w.publisher, 1, NULL);
        }
        cr_assert_eq(nd_raw_stat(w.publisher, "counters", "shm_fallback"), 0);
        cr_assert_eq(nd_raw_stat(w.publisher, "counters", "body_bytes_copied"), 0);
        nd_raw_close(plain);
        nd_raw_close(tcp);
        world_deinit(&w);
}

Test(blocks, are_released_at_once_when_nobody_wants_them)
{
        struct nd_error_header error;
        struct world w;
        uint64_t place;

        world_init(&w, NULL);
        publish(&w, 4096, 100); /* no subscription */
        nd_raw_expect_released(w.publisher, 1, &place);
        cr_assert_eq(place, 4096);
        publish(&w, 4096, 100); /* and so it may be used again */
        nd_raw_expect_released(w.publisher, 1, &place);

        nd_raw_publish_in(w.publisher, "a//b", 1, 8192, 10, 0);
        error = nd_raw_expect_error(w.publisher, NDBUS_ETOPIC, false);
        cr_assert_eq(error.of, ND_KIND_PUBLISH);
        nd_raw_expect_released(w.publisher, 1, &place);
        cr_assert_eq(place, 8192);

        nd_raw_publish_in(w.publisher, "$sys/x", 1, 64, 10, 0);
        nd_raw_expect_error(w.publisher, NDBUS_EDENIED, false);
        nd_raw_expect_released(w.publisher, 1, &place);
        cr_assert_eq(place, 64);
        world_deinit(&w);
}

Test(blocks, are_refused_and_released_when_memory_is_short)
{
        static const char *const args[] = {"--memory-max", "8M", NULL};
        struct nd_raw *reader;
        struct world w;
        uint64_t place;

        world_init(&w, args);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        nd_raw_publish_in(w.publisher, "t", 1, 0, (4 << 20) + 1, 0);
        nd_raw_expect_error(w.publisher, NDBUS_ETOO_BIG, false);
        nd_raw_expect_released(w.publisher, 1, &place);
        publish(&w, 64, 4 << 20);
        nd_raw_receive_block(reader);
        nd_raw_close(reader);
        nd_raw_expect_released(w.publisher, 1, &place);
        cr_assert_eq(place, 64);
        world_deinit(&w);
}

static void expect_thief_ends(struct nd_raw *thief)
{
        nd_raw_expect_error(thief, NDBUS_EPROTOCOL, true);
        nd_raw_expect_closed(thief);
        nd_raw_close(thief);
}

/* The numbers of segments are each client's own: by those of others nothing is published, and nothing
 * released, not even by who holds another block of the same segment. */
Test(blocks, of_others_are_neither_published_nor_released)
{
        struct nd_raw *holder, *thief;
        struct nd_prelude first, second;
        struct world w;
        uint64_t places;

        world_init(&w, NULL);
        holder = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 0, 1 << 20);
        first = nd_raw_receive_block(holder);
        for (uint32_t segment = 1; segment <= first.segment + 1; ++segment) {
                thief = nd_raw_open_shm(w.h);
                nd_raw_publish_in(thief, "stolen", segment, 0, 1 << 20, 0);
                expect_thief_ends(thief);
                thief = nd_raw_open_shm(w.h);
                nd_raw_release(thief, segment, 0);
                expect_thief_ends(thief);
        }
        thief = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 2 << 20, 1 << 20);
        second = nd_raw_receive_block(thief);
        nd_raw_receive_block(holder);
        nd_raw_release(thief, second.segment, first.place);
        expect_thief_ends(thief);

        nd_raw_flush(w.publisher); /* a RELEASE that has come by now is lost here */
        nd_raw_release(holder, first.segment, first.place);
        nd_raw_release(holder, first.segment, second.place);
        nd_raw_expect_released(w.publisher, 2, &places);
        cr_expect_eq(places, first.place + second.place);
        nd_raw_close(holder);
        world_deinit(&w);
}

Test(blocks, of_one_client_with_two_subscriptions_are_held_twice)
{
        struct nd_raw *reader;
        struct nd_prelude a, b;
        struct world w;

        world_init(&w, NULL);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        nd_raw_subscribe(reader, 2, &(struct nd_raw_subscribe){.pattern = "t"});
        publish(&w, 128, 1000);
        a = nd_raw_receive_block(reader);
        b = nd_raw_receive_block(reader);
        cr_assert_eq(a.segment, b.segment);
        cr_assert_eq(a.place, b.place);
        cr_assert_neq(a.subscription, b.subscription);
        nd_raw_release(reader, a.segment, a.place);
        nd_raw_flush(reader);
        nd_raw_flush(w.publisher); /* a RELEASE now would be lost here */
        nd_raw_release(reader, a.segment, a.place);
        nd_raw_expect_released(w.publisher, 1, NULL);

        nd_raw_release(reader, a.segment, a.place); /* once more than it had them */
        nd_raw_expect_error(reader, NDBUS_EPROTOCOL, true);
        nd_raw_expect_closed(reader);
        nd_raw_close(reader);
        world_deinit(&w);
}

Test(blocks, of_a_dead_holder_come_back)
{
        struct nd_raw *dead, *slow;
        struct nd_prelude message;
        struct world w;
        uint64_t places;

        world_init(&w, NULL);
        dead = subscriber(&w, ND_FEATURE_SHM, false);
        for (uint64_t i = 0; i < 3; ++i)
                publish(&w, i * 65536, 65536);
        for (unsigned i = 0; i < 3; ++i)
                nd_raw_receive_block(dead);
        slow = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 3 * 65536, 65536);
        nd_raw_receive_block(dead);
        message = nd_raw_receive_block(slow);

        nd_raw_close(dead);
        nd_raw_expect_released(w.publisher, 3, &places);
        cr_assert_eq(places, 3 * 65536); /* 0, 1, 2: the fourth is held by another */
        nd_raw_release(slow, message.segment, message.place);
        nd_raw_expect_released(w.publisher, 1, &places);
        cr_assert_eq(places, 3 * 65536);
        nd_raw_close(slow);
        world_deinit(&w);
}

/* The daemon keeps so many bytes of segments. */
struct kept {
        struct nd_raw *raw;
        uint64_t bytes;
};

static bool is_kept(void *userdata)
{
        const struct kept *kept = userdata;

        return nd_raw_stat(kept->raw, "memory", "shm") == kept->bytes;
}

static void wait_kept(struct world *w, struct nd_raw *raw, uint64_t bytes)
{
        struct kept kept = {raw, bytes};

        nd_harness_wait_until(w->h, "the segments that the daemon keeps", is_kept, &kept,
                              nd_harness_deadline_ms(20000));
}

static void publisher_dies(struct world *w)
{
        nd_raw_close(w->publisher);
        nd_segment_close(&w->segment);
        w->publisher = NULL;
}

Test(blocks, that_wait_in_queues_outlive_their_publisher)
{
        struct nd_raw *reader, *asker, *plain;
        struct world w;

        world_init(&w, NULL);
        asker = nd_raw_open(w.h, false);
        reader = nd_raw_open_shm(w.h);
        nd_raw_subscribe(reader, 1, &(struct nd_raw_subscribe){.pattern = "t", .window = 1});
        plain = nd_raw_open(w.h, false);
        nd_raw_subscribe(plain, 1, &(struct nd_raw_subscribe){.pattern = "t", .window = 1});
        for (uint64_t i = 0; i < 5; ++i)
                publish(&w, i << 20, 1 << 20); /* more than half of the segment */
        nd_raw_flush(w.publisher);
        publisher_dies(&w);

        for (uint64_t i = 0; i < 5; ++i) {
                struct nd_raw_message message = nd_raw_receive(plain);

                cr_assert_eq(message.prelude.sequence, i + 1);
                nd_raw_message_free(&message);
                nd_raw_grant(plain, 1, 1, 1 << 20);
        }
        wait_kept(&w, asker, SEGMENT_BYTES); /* the other needs four of them, in the segment */
        for (uint64_t i = 0; i < 5; ++i) {
                struct nd_prelude message;

                if (i < 2) {
                        message = nd_raw_receive_block(reader);
                        cr_assert_eq(message.sequence, i + 1);
                } else {
                        struct nd_raw_message moved = nd_raw_receive(reader);

                        cr_assert_eq(moved.prelude.sequence, i + 1);
                        nd_raw_message_free(&moved);
                }
                if (i == 1) { /* three are left, less than half: they are copied out */
                        wait_kept(&w, asker, 0);
                        nd_raw_expect(reader, ND_KIND_SEGMENT_GONE);
                }
                nd_raw_grant(reader, 1, 1, 1 << 20);
        }
        cr_assert_eq(nd_raw_stat(asker, "counters", "body_bytes_copied"), 3 << 20);
        nd_raw_check_stats(asker);
        nd_raw_close(reader);
        nd_raw_close(plain);
        nd_raw_close(asker);
        world_deinit(&w);
}

Test(blocks, that_are_retained_are_copied_out_of_a_dead_publishers_segment)
{
        static const uint64_t sizes[] = {1, 4000, 65536, 65537, (1 << 20) + 5};
        struct nd_raw *reader, *asker;
        struct world w;
        size_t n_fds;

        world_init(&w, NULL);
        asker = nd_raw_open(w.h, false);
        nd_raw_flush(asker);
        n_fds = nd_harness_fds(w.h);
        for (size_t i = 0; i < nd_array_size(sizes); ++i) {
                char topic[16];

                snprintf(topic, sizeof(topic), "r/%zu", i);
                nd_pattern_fill(w.segment.base + (i << 20), 0, sizes[i]);
                nd_raw_publish_in(w.publisher, topic, 1, i << 20, sizes[i], ND_FLAG_RETAINED);
        }
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        for (size_t i = 0; i < nd_array_size(sizes); ++i) {
                struct nd_prelude message = nd_raw_receive_block(reader);

                cr_assert_eq(message.flags & ND_FLAG_RETAINED, ND_FLAG_RETAINED);
                nd_raw_release(reader, message.segment, message.place);
        }
        publisher_dies(&w);
        wait_kept(&w, asker, 0);
        cr_assert_eq(nd_raw_expect(reader, ND_KIND_SEGMENT_GONE)->prelude.segment, 1);
        nd_raw_close(reader);

        reader = subscriber(&w, ND_FEATURE_SHM, false);
        for (size_t i = 0; i < nd_array_size(sizes); ++i) {
                struct nd_raw_message message = nd_raw_receive(reader);

                cr_assert_eq(message.prelude.body_bytes, sizes[i]);
                nd_raw_message_free(&message);
        }
        nd_raw_close(reader);
        nd_harness_wait_fds(w.h, n_fds - 2, nd_harness_deadline_ms(10000));
        nd_raw_close(asker);
        world_deinit(&w);
}

/* More than memory-max would be charged if segments stayed, although most of each is wanted. */
Test(blocks, of_dead_publishers_do_not_take_the_memory_of_others)
{
        static const char *const args[] = {"--memory-max", "16M", NULL};
        struct nd_raw_message message;
        struct nd_raw *reader, *asker;
        struct world w;

        world_init(&w, args);
        asker = nd_raw_open(w.h, false);
        reader = nd_raw_open_shm(w.h);
        nd_raw_subscribe(
                reader, 1,
                &(struct nd_raw_subscribe){.pattern = "t", .window = 1, .policy = ND_POLICY_BLOCK});
        for (unsigned i = 0; i < 3; ++i) {
                if (i > 0) {
                        w.publisher = nd_raw_open_shm(w.h);
                        w.segment = nd_raw_segment(SEGMENT_BYTES);
                        nd_raw_announce(w.publisher, 1, &w.segment);
                }
                publish(&w, 0, 4 << 20);
                nd_raw_flush(w.publisher);
                publisher_dies(&w);
        }
        wait_kept(&w, asker, SEGMENT_BYTES);
        cr_assert_leq(nd_raw_stat(asker, "memory", "used"), 16 << 20);
        nd_raw_publish(asker, "u", 1 << 20); /* there is room for others */
        nd_raw_flush(asker);
        nd_raw_receive_block(reader);
        nd_raw_expect(reader, ND_KIND_SEGMENT_GONE);
        nd_raw_grant(reader, 1, 1, 4 << 20);
        nd_raw_receive_block(reader); /* the one that could stay */
        nd_raw_expect(reader, ND_KIND_SEGMENT_GONE);
        nd_raw_grant(reader, 1, 1, 4 << 20);
        message = nd_raw_receive(reader);
        cr_assert_eq(message.prelude.body_bytes, 4 << 20);
        nd_raw_message_free(&message);
        nd_raw_check_stats(asker);
        nd_raw_close(reader);
        nd_raw_close(asker);
        world_deinit(&w);
}

Test(blocks, that_are_held_outlive_everybody_else)
{
        struct nd_raw *reader, *asker;
        struct nd_prelude message;
        struct world w;

        world_init(&w, NULL);
        asker = nd_raw_open(w.h, false);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 0, 3 << 20);
        message = nd_raw_receive_block(reader);
        publisher_dies(&w);
        cr_assert_eq(nd_raw_expect(reader, ND_KIND_SEGMENT_GONE)->prelude.segment, message.segment);
        wait_kept(&w, asker, 0); /* it costs the daemon nothing */
        cr_assert_eq(nd_pattern_compare(nd_raw_block_bytes(reader, &message), 0, 3 << 20), 3 << 20);
        nd_raw_release(reader, message.segment, message.place); /* still to be said, and once */
        nd_raw_flush(reader);
        nd_raw_release(reader, message.segment, message.place);
        nd_raw_expect_error(reader, NDBUS_EPROTOCOL, true);
        nd_raw_close(reader);
        nd_raw_close(asker);
        world_deinit(&w);
}

Test(blocks, beyond_a_quarter_of_shm_max_go_by_the_socket)
{
        static const char *const args[] = {"--shm-max", "8M", NULL};
        struct nd_raw *hoarder, *good;
        struct nd_raw_message message;
        struct nd_prelude held[2];
        struct world w;
        char *log;

        world_init(&w, args);
        hoarder = subscriber(&w, ND_FEATURE_SHM, false);
        good = subscriber(&w, ND_FEATURE_SHM, false);
        for (uint64_t i = 0; i < 3; ++i) {
                struct nd_prelude block;

                publish(&w, i << 20, 1 << 20);
                block = nd_raw_receive_block(good);
                nd_raw_release(good, block.segment, block.place);
                if (i < 2)
                        held[i] = nd_raw_receive_block(hoarder);
        }
        message = nd_raw_receive(hoarder); /* 2 MiB it may hold; in packets of at most 64 KiB */
        cr_assert_eq(message.n_chunks, (1 << 20) / 65536);
        nd_raw_message_free(&message);
        nd_raw_expect_released(w.publisher, 1, NULL);
        cr_assert_eq(nd_raw_stat(good, "counters", "shm_fallback"), 1);
        cr_assert_eq(nd_raw_stat(good, "counters", "body_bytes_copied"), 0);
        log = nd_harness_log(w.h);
        cr_assert_not_null(strstr(log, " identity_held_bytes="), "%s", log);
        cr_assert_null(strstr(log, "identity_held_max"), "there is none: %s", log);
        free(log);

        nd_raw_release(hoarder, held[0].segment, held[0].place);
        nd_raw_expect_released(w.publisher, 1, NULL);
        publish(&w, 3 << 20, 1 << 20);
        nd_raw_receive_block(hoarder);

        publish(&w, 4 << 20, 64); /* whoever holds nothing is not counted */
        message = nd_raw_receive(hoarder);
        nd_raw_message_free(&message);
        nd_raw_close(hoarder);
        nd_raw_close(good);
        world_deinit(&w);
}

/* Address space of the daemon beyond what it has. */
static void limit_address_space(struct world *w, uint64_t more_bytes)
{
        struct rlimit limit;

        cr_assert_eq(prlimit(w->h->pid, RLIMIT_AS, NULL, &limit), 0);
        limit.rlim_cur = more_bytes == RLIM_INFINITY
                                 ? limit.rlim_max
                                 : nd_harness_memory(w->h).vm_bytes + more_bytes;
        cr_assert_eq(prlimit(w->h->pid, RLIMIT_AS, &limit, NULL), 0);
}

Test(blocks, that_the_daemon_cannot_map_are_dropped_and_said_to_be)
{
        struct nd_raw *plain, *member, *late, *asker;
        struct nd_raw_message message;
        struct world w;

        world_init(&w, NULL);
        asker = nd_raw_open(w.h, false);
        plain = subscriber(&w, 0, false);
        member = nd_raw_open(w.h, false);
        nd_raw_subscribe(member, 1, &(struct nd_raw_subscribe){.pattern = "t", .group = "g"});
        late = nd_raw_open(w.h, false);
        nd_raw_check_stats(asker); /* what it allocates for that it has */
        if (nd_harness_memory_is_exact()) {
                limit_address_space(&w, SEGMENT_BYTES / 2);
                nd_pattern_fill(w.segment.base, 0, 1000);
                nd_raw_publish_in(w.publisher, "t", 1, 0, 1000, ND_FLAG_RETAINED);
                nd_raw_flush(w.publisher);
                nd_raw_subscribe(late, 1, &(struct nd_raw_subscribe){.pattern = "t"});
                cr_assert_eq(nd_raw_stat(asker, "counters", "dropped_memory"), 3);
                limit_address_space(&w, RLIM_INFINITY);
        } else {
                nd_raw_subscribe(late, 1, &(struct nd_raw_subscribe){.pattern = "t"});
        }
        publish(&w, 4096, 5000);
        message = nd_raw_receive(plain);
        cr_assert_eq(message.n_dropped, nd_harness_memory_is_exact());
        nd_raw_message_free(&message);
        message = nd_raw_receive(member);
        cr_assert_eq(message.n_dropped, nd_harness_memory_is_exact());
        nd_raw_message_free(&message);
        message = nd_raw_receive(late); /* it was to begin with the retained value */
        cr_assert_eq(message.prelude.body_bytes, 5000);
        cr_assert_eq(message.n_dropped, nd_harness_memory_is_exact());
        nd_raw_message_free(&message);
        nd_raw_check_stats(asker);
        nd_raw_close(plain);
        nd_raw_close(member);
        nd_raw_close(late);
        nd_raw_close(asker);
        world_deinit(&w);
}

Test(blocks, are_not_shown_to_who_may_not_see_all_that_lies_beside_them)
{
        char rule[64];
        const char *const args[] = {"--allow", rule, NULL};
        struct nd_raw_message message;
        struct nd_raw *reader;
        struct world w;

        snprintf(rule, sizeof(rule), "user:%u publish,subscribe,stats t", (unsigned)geteuid());
        world_init(&w, args);
        reader = nd_raw_open_shm(w.h);
        nd_raw_subscribe(reader, 1, &(struct nd_raw_subscribe){.pattern = "t"});
        publish(&w, 0, 70000);
        message = nd_raw_receive(reader);
        cr_assert_eq(message.prelude.body_bytes, 70000);
        nd_raw_message_free(&message);
        nd_raw_expect_released(w.publisher, 1, NULL);
        cr_assert_eq(nd_raw_stat(reader, "counters", "shm_fallback"), 1);
        cr_assert_eq(nd_raw_stat(reader, "counters", "shm_messages"), 1);
        nd_raw_close(reader);
        world_deinit(&w);
}

Test(blocks, of_any_size_pass_the_cap_one_by_one)
{
        static const char *const args[] = {"--shm-max", "8M", NULL};
        struct nd_raw *reader;
        struct world w;

        world_init(&w, args);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        for (unsigned i = 0; i < 2; ++i) {
                struct nd_prelude block;

                publish(&w, 0, SEGMENT_BYTES);
                block = nd_raw_receive_block(reader);
                nd_raw_grant(reader, 1, 1, SEGMENT_BYTES);
                nd_raw_release(reader, block.segment, block.place);
                nd_raw_expect_released(w.publisher, 1, NULL);
        }
        cr_assert_eq(nd_raw_stat(reader, "counters", "shm_fallback"), 0);
        nd_raw_close(reader);
        world_deinit(&w);
}

Test(blocks, of_a_segment_that_cannot_be_mapped_are_released)
{
        struct nd_prelude gone = {.kind = ND_KIND_SEGMENT_GONE, .sequence = 1};
        struct nd_raw_message message;
        struct nd_prelude block;
        struct nd_raw *reader;
        struct world w;

        world_init(&w, NULL);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 0, 100);
        publish(&w, 4096, 100);
        block = nd_raw_receive_block(reader);
        nd_raw_receive_block(reader);
        gone.segment = block.segment;
        nd_raw_send_prelude(reader, gone);
        nd_raw_expect_released(w.publisher, 2, NULL);
        publish(&w, 0, 100);
        message = nd_raw_receive(reader);
        nd_raw_message_free(&message);
        nd_raw_expect_released(w.publisher, 1, NULL);
        cr_assert_eq(nd_raw_stat(reader, "counters", "shm_fallback"), 1);

        gone.segment = 2; /* the daemon has not given it */
        nd_raw_send_prelude(reader, gone);
        nd_raw_expect_error(reader, NDBUS_EPROTOCOL, true);
        nd_raw_close(reader);
        world_deinit(&w);
}

Test(blocks, of_a_group_are_finished_apart_from_released)
{
        struct nd_raw *members[2];
        struct nd_prelude a, b;
        struct world w;
        uint8_t number[8];

        world_init(&w, NULL);
        for (size_t i = 0; i < 2; ++i) {
                members[i] = nd_raw_open_shm(w.h);
                nd_raw_subscribe(members[i], 1,
                                 &(struct nd_raw_subscribe){
                                         .pattern = "t", .group = "g", .window = i == 0 ? 2 : 1});
        }
        for (uint64_t i = 0; i < 3; ++i)
                publish(&w, i << 16, 1000);
        a = nd_raw_receive_block(members[0]);
        b = nd_raw_receive_block(members[1]);
        nd_raw_receive_block(members[0]);

        /* released, not finished: the group may need it again */
        nd_raw_release(members[0], a.segment, a.place);
        nd_raw_flush(members[0]);
        nd_raw_flush(w.publisher); /* a RELEASE now would be lost here */

        /* finished, not released: the member still reads it */
        nd_store_le64(number, 1);
        nd_raw_send_packet(
                members[1],
                (struct nd_prelude){.kind = ND_KIND_CREDIT, .subscription = 1, .body_bytes = 8},
                NULL, 0, NULL, 0, number, sizeof(number));
        nd_raw_flush(members[1]);
        nd_raw_flush(w.publisher);
        nd_raw_release(members[1], b.segment, b.place);
        nd_raw_expect_released(w.publisher, 1, NULL);

        nd_raw_close(members[0]); /* what it had not finished goes to the other, where it lies */
        for (uint64_t i = 0; i < 2; ++i) {
                struct nd_prelude again = nd_raw_receive_block(members[1]);

                cr_assert_eq(again.flags & ND_FLAG_REDELIVERED, ND_FLAG_REDELIVERED);
                nd_store_le64(number, i + 2);
                nd_raw_send_packet(members[1],
                                   (struct nd_prelude){.kind = ND_KIND_CREDIT,
                                                       .subscription = 1,
                                                       .body_bytes = 8},
                                   NULL, 0, NULL, 0, number, sizeof(number));
                nd_raw_release(members[1], again.segment, again.place);
        }
        nd_raw_expect_released(w.publisher, 2, NULL);
        nd_raw_close(members[1]);
        world_deinit(&w);
}

Test(blocks, are_given_back_after_goodbye_and_not_before)
{
        struct nd_raw *reader, *asker;
        struct nd_raw_message message;
        struct nd_prelude block;
        struct world w;

        world_init(&w, NULL);
        asker = nd_raw_open(w.h, false);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 0, 5000);
        publish(&w, 65536, 5000);
        block = nd_raw_receive_block(reader);
        nd_raw_receive_block(reader);
        nd_raw_send_prelude(reader, (struct nd_prelude){.kind = ND_KIND_GOODBYE, .sequence = 9});
        nd_raw_expect(reader, ND_KIND_GOODBYE);
        nd_raw_flush(w.publisher); /* a RELEASE now would be lost here */
        cr_assert_eq(nd_raw_stat_holder(asker, reader->source, "blocks"), 2);
        nd_raw_release(reader, block.segment, 65536);
        nd_raw_expect_released(w.publisher, 1, NULL);
        nd_raw_close(reader);
        nd_raw_expect_released(w.publisher, 1, NULL);

        /* a publisher that says it: what it has published and not got back is the daemon's */
        reader = nd_raw_open_shm(w.h);
        nd_raw_subscribe(reader, 1, &(struct nd_raw_subscribe){.pattern = "t", .window = 1});
        publish(&w, 0, 5 << 20);
        publish(&w, 5 << 20, 3 << 20);
        nd_raw_receive_block(reader);
        nd_raw_send_prelude(w.publisher,
                            (struct nd_prelude){.kind = ND_KIND_GOODBYE, .sequence = 9});
        nd_raw_expect(w.publisher, ND_KIND_GOODBYE);
        nd_raw_expect(reader, ND_KIND_SEGMENT_GONE); /* copied out: less than half */
        nd_raw_grant(reader, 1, 1, 5 << 20);
        message = nd_raw_receive(reader);
        nd_raw_message_free(&message);
        nd_raw_close(reader);
        nd_raw_close(asker);
        world_deinit(&w);
}

Test(blocks, of_a_segment_that_is_withdrawn_have_all_come_back)
{
        struct nd_prelude gone = {.kind = ND_KIND_SEGMENT_GONE, .segment = 1};
        struct nd_segment other;
        struct nd_prelude block;
        struct nd_raw *reader;
        struct world w;

        world_init(&w, NULL);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 0, 100);
        block = nd_raw_receive_block(reader);
        cr_assert_eq(block.segment, 1);
        nd_raw_release(reader, block.segment, block.place);
        nd_raw_expect_released(w.publisher, 1, NULL);
        nd_raw_send_prelude(w.publisher, gone);
        cr_assert_eq(nd_raw_expect(reader, ND_KIND_SEGMENT_GONE)->prelude.segment, 1);

        /* the publisher may use its number again, the daemon never does */
        other = nd_raw_segment(1 << 20);
        nd_raw_announce(w.publisher, 1, &other);
        nd_raw_publish_block(w.publisher, "t", &other, 1, 64, 100);
        block = nd_raw_receive_block(reader);
        cr_assert_eq(block.segment, 2);
        cr_assert_eq(block.place, 64);

        nd_raw_send_prelude(w.publisher, gone); /* a block is out */
        nd_raw_expect_error(w.publisher, NDBUS_EPROTOCOL, true);
        nd_raw_expect_closed(w.publisher);
        nd_segment_close(&other);
        nd_raw_close(reader);
        world_deinit(&w);
}

Test(blocks, may_overlap_and_are_not_published_twice)
{
        struct nd_raw *reader;
        struct nd_prelude block;
        struct world w;

        world_init(&w, NULL);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        publish(&w, 64, 100);
        nd_raw_receive_block(reader);
        publish(&w, 128, 100); /* its own affair */
        block = nd_raw_receive_block(reader);
        nd_raw_release(reader, block.segment, block.place);
        nd_raw_expect_released(w.publisher, 1, NULL);
        publish(&w, 128, 50); /* it has come back */
        nd_raw_receive_block(reader);

        nd_raw_publish_in(w.publisher, "t", 1, 64, 1, 0); /* this one is out */
        nd_raw_expect_error(w.publisher, NDBUS_EPROTOCOL, true);
        nd_raw_expect_closed(w.publisher);
        nd_raw_close(reader);
        world_deinit(&w);
}

Test(blocks, are_seen_by_who_holds_them)
{
        struct nd_raw *reader;
        struct world w;

        world_init(&w, NULL);
        reader = subscriber(&w, ND_FEATURE_SHM, false);
        for (uint64_t i = 0; i < 3; ++i) {
                publish(&w, i << 16, 1000 + i);
                nd_raw_receive_block(reader);
        }
        cr_assert_eq(nd_raw_stat_holder(reader, reader->source, "blocks"), 3);
        cr_assert_eq(nd_raw_stat_holder(reader, reader->source, "bytes"), 3003);
        cr_assert_eq(nd_raw_stat_holder(reader, reader->source, "pid"), (uint64_t)getpid());
        cr_assert_gt(nd_raw_stat_holder(reader, reader->source, "oldest_ns"), 0);
        cr_assert_eq(nd_raw_stat(reader, "memory", "shm"), SEGMENT_BYTES);
        nd_raw_close(reader);
        world_deinit(&w);
}
