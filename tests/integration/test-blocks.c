/* SPDX-License-Identifier: MIT */

/*
 * Blocks over the wire: how a body that lies in shared memory goes to those who want it, and comes
 * back to its publisher exactly once
 */

#include <criterion/criterion.h>
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
