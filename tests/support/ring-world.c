/* SPDX-License-Identifier: MIT */

/*
 * Ring world
 *
 * The publisher reads nothing but what it needs credit for, and uses its blocks in turn: one comes
 * back long before its turn comes again, when the subscriber reads.
 */

#include "tests/support/ring-world.h"
#include <string.h>
#include "tests/support/pattern.h"
#include "tests/support/proc.h"

#define RING_WORLD_WAIT_MS 20000

void ring_world_join_as(struct ring_world *w, struct nd_raw *publisher)
{
        w->publisher = publisher;
        w->segment = nd_raw_segment(RING_WORLD_SEGMENT_BYTES);
        nd_raw_announce(w->publisher, 1, &w->segment);
        w->ring = nd_raw_ring(w->publisher);
        w->n_received = 0;
}

void ring_world_join(struct ring_world *w)
{
        ring_world_join_as(w, nd_raw_open_ring(w->h));
}

void ring_world_leave(struct ring_world *w)
{
        if (w->publisher)
                nd_raw_close(nd_steal(w->publisher));
        nd_ring_close(&w->ring);
        nd_segment_close(&w->segment);
}

void ring_world_init_with(struct ring_world *w, const struct nd_harness_options *options)
{
        *w = (struct ring_world){.h = nd_harness_start(options)};
        w->asker = nd_raw_open(w->h, false);
        w->subscriber = nd_raw_open(w->h, false);
        nd_raw_subscribe(w->subscriber, 1, &(struct nd_raw_subscribe){.pattern = "t"});
        ring_world_join(w);
}

void ring_world_init(struct ring_world *w, const char *const *args)
{
        ring_world_init_with(w, &(struct nd_harness_options){.args = args});
}

void ring_world_deinit(struct ring_world *w)
{
        if (w->publisher)
                ring_world_leave(w);
        nd_raw_close(w->asker);
        nd_raw_close(w->subscriber);
        nd_harness_stop(w->h);
}

/* ------------------------------------------------------------------------------------- publishing */

uint64_t ring_world_size(uint64_t k)
{
        return 1 + k % RING_WORLD_SLOT_BYTES;
}

static uint64_t world_place(uint64_t k)
{
        return k % RING_WORLD_SLOTS_N * RING_WORLD_SLOT_BYTES;
}

void ring_world_by_socket(struct ring_world *w)
{
        uint64_t k = w->publisher->n_published + 1;

        if (k % 3)
                nd_raw_publish(w->publisher, "t", ring_world_size(k));
        else
                nd_raw_publish_block(w->publisher, "t", &w->segment, 1, world_place(k),
                                     ring_world_size(k));
}

void ring_world_by_ring(struct ring_world *w)
{
        uint64_t k = w->publisher->n_published + 1;

        nd_pattern_fill(w->segment.base + world_place(k), 0, ring_world_size(k));
        nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 1, world_place(k), ring_world_size(k),
                               0);
}

/* -------------------------------------------------------------------------------------- receiving */

void ring_world_expect_bytes(struct ring_world *w, uint64_t n_bytes)
{
        struct nd_raw_message message = nd_raw_receive(w->subscriber);

        if (message.prelude.sequence != ++w->n_received || message.n_dropped != 0 ||
            message.prelude.body_bytes != n_bytes)
                nd_harness_fail(w->h,
                                "message %llu of %llu bytes came, expected was %llu of %llu bytes",
                                (unsigned long long)message.prelude.sequence,
                                (unsigned long long)message.prelude.body_bytes,
                                (unsigned long long)w->n_received, (unsigned long long)n_bytes);
        nd_raw_message_free(&message);
        nd_raw_grant(w->subscriber, 1, 1, n_bytes);
}

void ring_world_expect_up_to(struct ring_world *w, uint64_t k)
{
        while (w->n_received < k)
                ring_world_expect_bytes(w, ring_world_size(w->n_received + 1));
}

void ring_world_expect_nothing_more(struct ring_world *w)
{
        nd_raw_flush(w->asker); /* what there was to be sent is sent */
        if (nd_raw_has_input(w->subscriber))
                nd_harness_fail(w->h, "a message came, expected was none");
}

void ring_world_expect_routed(struct nd_raw *raw, uint64_t n)
{
        uint64_t number = ++raw->n_requests;
        const struct nd_raw_packet *packet;

        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = number});
        do
                packet = nd_raw_next(raw);
        while (packet && packet->prelude.kind != ND_KIND_PONG);
        if (!packet)
                nd_harness_fail(raw->harness, "the end came, expected was PONG");
        if (packet->prelude.sequence != number || packet->prelude.place != n)
                nd_harness_fail(raw->harness, "%llu messages are routed, expected were %llu",
                                (unsigned long long)packet->prelude.place, (unsigned long long)n);
}

/* ------------------------------------------------------------------------------------- the daemon */

static bool is_asleep(void *userdata)
{
        struct ring_world *w = userdata;

        nd_raw_flush(w->asker);
        return atomic_load(&w->ring.head->is_asleep) == 1;
}

void ring_world_wait_asleep(struct ring_world *w)
{
        nd_harness_wait_until(w->h, "the daemon to sleep", is_asleep, w,
                              nd_harness_deadline_ms(RING_WORLD_WAIT_MS));
}

uint64_t ring_world_taken(struct ring_world *w)
{
        return atomic_load(&w->ring.head->taken);
}

size_t ring_world_n_mappings(struct ring_world *w)
{
        size_t n = 0;

        if (!nd_proc_mappings(w->h->pid, "memfd:ndbus-ring", &n))
                nd_harness_fail(w->h, "its mappings cannot be read");
        return n;
}

static bool has_left(void *userdata)
{
        struct ring_world *w = userdata;

        return nd_raw_stat(w->asker, "memory", "shm") == 0 &&
               nd_raw_stat(w->asker, "memory", "messages") == 0 &&
               nd_harness_fds(w->h) == w->h->n_fds_ready + 2 && ring_world_n_mappings(w) == 0;
}

void ring_world_wait_left(struct ring_world *w)
{
        nd_harness_wait_until(w->h, "the daemon to keep nothing of those who left", has_left, w,
                              nd_harness_deadline_ms(RING_WORLD_WAIT_MS));
}
