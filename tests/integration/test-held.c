/* SPDX-License-Identifier: MIT */

/*
 * An array in shared memory that a subscriber still holds never changes
 *
 * A publisher with room for a few messages uses every block again as soon as it may. One message is
 * held all the time, and compared with a copy: while others come and go, after its bus was closed,
 * after the daemon was killed and started again and its publisher went on, and after that closed. The
 * same for one that came by TCP, which the daemon received into memory of its own.
 */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/client.h"

#define MIB ((size_t)1 << 20)

static const struct nd_transport *const shm = &nd_transports[ND_WAYS_N - 1];

struct held {
        struct ndbus_message *m;
        uint8_t *copy;
};

static struct held hold_next(struct ndbus *sub)
{
        struct held held = {.m = nd_client_receive(sub), .copy = malloc(MIB)};
        const struct ndbus_array *array;

        ndbus_message_arrays(held.m, &array);
        cr_assert(array->flags & NDBUS_READ_ONLY, "it is in shared memory");
        memcpy(held.copy, array->data, MIB);
        return held;
}

static void is_as_it_was(const struct held *held, const char *when)
{
        const struct ndbus_array *array;

        ndbus_message_arrays(held->m, &array);
        cr_assert_eq(memcmp(held->copy, array->data, MIB), 0, "it has changed %s", when);
}

/* Fills every block that is free, more than once. */
static void flow(struct ndbus *pub, struct ndbus *sub)
{
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};
        uint64_t n_before;

        cr_assert_eq(ndbus_shm_stats(pub, &stats), 0);
        n_before = stats.published;
        for (uint64_t i = 1; i <= 40; ++i) {
                nd_client_publish(pub, "a", 1000 + i, MIB);
                nd_client_expect(sub, 1000 + i);
        }
        nd_client_flush(pub);
        cr_assert_eq(ndbus_shm_stats(pub, &stats), 0);
        cr_assert_geq(stats.published, n_before + 30, "not in shared memory");
        cr_assert_leq(stats.segment_bytes, 8 * MIB);
}

static void publish_after_reconnect(struct ndbus *pub)
{
        struct ndbus_message *none;

        while (nd_client_try_publish(pub, "a", 1, MIB, ND_CLIENT_WAIT_MS) == NDBUS_ENOTCONN)
                ndbus_receive(pub, &none, 1000); /* says the loss, then connects */
        ndbus_flush(pub, ND_CLIENT_WAIT_MS);     /* says what the old connection took with it */
}

/* It outlives the bus that received it, and the daemon. Returns another subscriber. */
static struct ndbus *outlive(struct nd_harness *h,
                             const struct held *held,
                             struct ndbus *pub,
                             struct ndbus *sub,
                             void (*fill)(struct ndbus *pub, struct ndbus *sub))
{
        struct ndbus *other;

        nd_client_close(sub);
        other = nd_client_open(h, shm, NULL);
        nd_client_subscribe(other, "a", NULL);
        fill(pub, other);
        is_as_it_was(held, "after its bus was closed");
        nd_client_close(other);

        nd_harness_signal(h, SIGKILL);
        cr_assert(nd_harness_wait_exit(h, ND_CLIENT_WAIT_MS, NULL));
        nd_harness_start_again(h);
        publish_after_reconnect(pub);
        other = nd_client_open(h, shm, NULL);
        nd_client_subscribe(other, "a", NULL);
        fill(pub, other);
        is_as_it_was(held, "after the daemon was started again");
        return other;
}

Test(held, never_changes)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *pub, *sub, *other;
        struct held held;

        options.shm_max = 8 * MIB;
        pub = nd_client_open(h, shm, &options);
        sub = nd_client_open(h, shm, NULL);
        nd_client_subscribe(sub, "a", NULL);
        nd_client_publish(pub, "a", 1, MIB);
        held = hold_next(sub);
        flow(pub, sub);
        is_as_it_was(&held, "while others came");

        other = outlive(h, &held, pub, sub, flow);

        ndbus_close(pub, ND_CLIENT_WAIT_MS, NULL);
        pub = nd_client_open(h, shm, &options);
        flow(pub, other);
        is_as_it_was(&held, "after its publisher was closed");

        ndbus_message_free(held.m);
        free(held.copy);
        nd_client_close(pub);
        nd_client_close(other);
        nd_harness_stop(h);
}

/* The daemon, which has room for a few messages, fills every block that is free, more than once. */
static void flow_from_tcp(struct ndbus *pub, struct ndbus *sub)
{
        for (uint64_t i = 1; i <= 40; ++i) {
                const struct ndbus_array *array;
                struct ndbus_message *m;

                nd_client_publish(pub, "a", 1000 + i, MIB);
                m = nd_client_receive(sub);
                ndbus_message_arrays(m, &array);
                cr_assert(array->flags & NDBUS_READ_ONLY, "not in shared memory");
                cr_assert_eq((uintptr_t)array->data % 64, 0);
                cr_assert_eq(nd_client_take_number(m), 1000 + i);
        }
        nd_client_flush(pub);
}

Test(held, never_changes_when_it_came_by_tcp)
{
        static const char *const args[] = {"--memory-max", "64M", NULL}; /* 8 MiB of its own */
        const struct nd_transport *tcp = &nd_transports[ND_TRANSPORTS_N - 1];
        const struct nd_harness_options options = {.args = args};
        struct nd_harness *h = nd_harness_start(&options);
        struct ndbus *pub = nd_client_open(h, tcp, NULL), *sub = nd_client_open(h, shm, NULL),
                     *other;
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};
        struct held held;

        nd_client_subscribe(sub, "a", NULL);
        nd_client_publish(pub, "a", 1, MIB);
        held = hold_next(sub);
        flow_from_tcp(pub, sub);
        is_as_it_was(&held, "while others came");
        cr_assert_eq(ndbus_shm_stats(sub, &stats), 0);
        cr_assert_eq(stats.held, 1);

        other = outlive(h, &held, pub, sub, flow_from_tcp);

        ndbus_message_free(held.m);
        free(held.copy);
        nd_client_close(other);
        nd_client_close(pub);
        nd_harness_stop(h);
}
