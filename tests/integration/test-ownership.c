/* SPDX-License-Identifier: MIT */

/*
 * T22: whose memory it is. What is published is the caller's again when the call returns, whatever
 * it returns and whatever becomes of the daemon; what is received is the message's until it is freed,
 * whatever becomes of the bus. The daemon keeps a message until its slowest receiver has it.
 *
 * Here the memory is overwritten and freed at once, so that a byte sent later shows: as a wrong byte
 * at the subscriber, or to AddressSanitizer.
 */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "client/dlpack.h"
#include "tests/support/client.h"
#include "tests/support/pattern.h"
#include "tests/support/raw-client.h"

#define MIB ((size_t)1 << 20)

/* More than a publishing window in all: no socket takes it while the daemon is stopped. */
static const int64_t sizes[3] = {100, (int64_t)MIB + 1, 20 * (int64_t)MIB};

/* The pattern that array i of message n begins with. */
static uint64_t offset_of(uint64_t number, size_t i)
{
        return number * 3 + i;
}

/* Publishes three arrays from memory that is gone when this returns. */
static int publish(struct ndbus *bus, uint64_t number, int timeout_ms)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_array arrays[3];
        uint8_t *bytes[3];
        int r;

        for (size_t i = 0; i < 3; ++i) {
                bytes[i] = malloc((size_t)sizes[i]);
                cr_assert(bytes[i]);
                nd_pattern_fill(bytes[i], offset_of(number, i), (size_t)sizes[i]);
                arrays[i] = (struct ndbus_array){
                        .data = bytes[i], .dtype = "uint8", .ndim = 1, .shape = &sizes[i]};
        }
        options.timeout_ms = timeout_ms;
        r = ndbus_publish(bus, "a", arrays, 3, &options);
        for (size_t i = 0; i < 3; ++i) {
                memset(bytes[i], 0xee, (size_t)sizes[i]);
                free(bytes[i]);
        }
        return r;
}

static void expect_bytes(const void *data, uint64_t number, size_t i)
{
        cr_assert_eq(nd_pattern_compare(data, offset_of(number, i), (size_t)sizes[i]),
                     (size_t)sizes[i], "array %zu of message %llu", i, (unsigned long long)number);
}

static void expect_message(const struct ndbus_message *m, uint64_t number)
{
        const struct ndbus_array *arrays;

        cr_assert_eq(ndbus_message_arrays(m, &arrays), 3);
        for (size_t i = 0; i < 3; ++i) {
                cr_assert_eq(arrays[i].shape[0], sizes[i]);
                expect_bytes(arrays[i].data, number, i);
        }
}

static void expect_next(struct ndbus *bus, uint64_t number)
{
        struct ndbus_message *m = nd_client_receive(bus);

        cr_assert_eq(ndbus_message_dropped(m), 0);
        expect_message(m, number);
        ndbus_message_free(m);
}

/* The slow one takes it long after the memory that it was sent from has gone, and the daemon's goes
 * then, not before. What was received outlives its bus, in whole and in part. */
Test(ownership, fast_and_slow)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct nd_raw *observer = nd_raw_open(h, false);
                struct ndbus *pub = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus *fast = nd_client_open(h, &nd_transports[t], NULL);
                struct ndbus *slow = nd_client_open(h, &nd_transports[t], NULL);
                struct DLManagedTensorVersioned *tensor;
                struct ndbus_message *whole, *part;

                nd_client_subscribe(fast, "a", NULL);
                nd_client_subscribe(slow, "a", NULL);
                for (uint64_t i = 1; i <= 2; ++i)
                        cr_assert_eq(publish(pub, i, ND_CLIENT_WAIT_MS), 0, "%s", ndbus_detail());
                nd_client_close(pub);
                whole = nd_client_receive(fast);
                part = nd_client_receive(fast);
                cr_expect_geq(nd_raw_stat(observer, "memory", "messages"), 1);
                expect_next(slow, 1);
                expect_next(slow, 2);
                cr_expect_eq(nd_raw_stat(observer, "memory", "messages"), 0);

                cr_assert_eq(ndbus_message_export(part, 1, &tensor), 0, "%s", ndbus_detail());
                ndbus_message_free(part);
                nd_client_close(fast);
                expect_message(whole, 1);
                ndbus_message_free(whole);
                expect_bytes(tensor->dl_tensor.data, 2, 1);
                tensor->deleter(tensor);
                nd_client_close(slow);
                nd_raw_close(observer);
                nd_harness_stop(h);
        }
}

/* However long the daemon is not scheduled: what was given up meanwhile never was. */
static void publish_at_last(struct ndbus *bus, uint64_t number)
{
        int r;

        do
                r = publish(bus, number, ND_CLIENT_WAIT_MS);
        while (r == NDBUS_ETIMEDOUT);
        cr_assert_eq(r, 0, "%s", ndbus_detail());
}

/* As far as it does; the daemon has returned all of it. */
static void grow_window(struct ndbus *pub, struct ndbus *sub)
{
        for (uint64_t i = 1; i <= 2; ++i) {
                publish_at_last(pub, i);
                expect_next(sub, i);
        }
        nd_client_flush(pub);
}

struct interruption {
        struct nd_harness *h;
        int signal_number; /* for the daemon; 0: none */
        int ends;          /* the wait */
};

static int interrupt(void *userdata)
{
        struct interruption *i = userdata;

        if (i->signal_number)
                nd_harness_signal(i->h, i->signal_number);
        i->signal_number = 0;
        return i->ends;
}

/* A message is half sent when the daemon stops taking bytes; then the daemon dies, or the message is
 * given up, or the wait is interrupted. It never was, and the next one is whole. */
static void fail_in_the_middle(size_t i_transport, const struct interruption *what, int expected)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct nd_harness *h = nd_harness_start(NULL);
        struct interruption interruption = {.h = h};
        struct ndbus *pub, *again, *sub;

        options.stall_ms = expected == NDBUS_ETIMEDOUT ? 500 : 60000;
        options.interrupted = interrupt;
        options.userdata = &interruption;
        pub = nd_client_open(h, &nd_transports[i_transport], &options);
        sub = nd_client_open(h, &nd_transports[i_transport], NULL);
        nd_client_subscribe(sub, "a", NULL);
        grow_window(pub, sub);

        interruption.signal_number = what->signal_number;
        interruption.ends = what->ends;
        nd_harness_signal(h, SIGSTOP);
        cr_assert_eq(publish(pub, 5, 0), expected, "%s", ndbus_detail());
        interruption.ends = 0;
        if (what->signal_number == SIGKILL) {
                cr_expect_eq(publish(pub, 6, 0), NDBUS_ENOTCONN);
                ndbus_close(sub, 0, NULL);
                nd_harness_start_again(h);
                sub = nd_client_open(h, &nd_transports[i_transport], NULL);
                nd_client_subscribe(sub, "a", NULL);
                ndbus_close(pub, 0, NULL);
        } else {
                ndbus_close(pub, 0, NULL); /* the rest of a packet has nowhere to go */
                nd_harness_signal(h, SIGCONT);
        }
        again = nd_client_open(h, &nd_transports[i_transport], NULL);
        cr_assert_eq(publish(again, 7, ND_CLIENT_WAIT_MS), 0, "%s", ndbus_detail());
        expect_next(sub, 7);
        nd_client_close(again);
        nd_client_close(sub);
        nd_harness_stop(h);
}

Test(ownership, the_daemon_dies)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t)
                fail_in_the_middle(t, &(struct interruption){.signal_number = SIGKILL},
                                   NDBUS_ENOTCONN);
}

Test(ownership, given_up)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t)
                fail_in_the_middle(t, &(struct interruption){0}, NDBUS_ETIMEDOUT);
}

Test(ownership, interrupted)
{
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t)
                fail_in_the_middle(t, &(struct interruption){.ends = 1}, NDBUS_EINTERRUPTED);
}

/* What was given up in the middle of a packet is finished by later calls of the same bus. */
Test(ownership, goes_on_after_giving_up)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;

        options.stall_ms = 500;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct nd_harness *h = nd_harness_start(NULL);
                struct ndbus *pub = nd_client_open(h, &nd_transports[t], &options);
                struct ndbus *sub = nd_client_open(h, &nd_transports[t], NULL);

                nd_client_subscribe(sub, "a", NULL);
                grow_window(pub, sub);
                nd_harness_signal(h, SIGSTOP);
                cr_assert_eq(publish(pub, 5, 0), NDBUS_ETIMEDOUT, "%s", ndbus_detail());
                nd_harness_signal(h, SIGCONT);
                publish_at_last(pub, 6);
                expect_next(sub, 6);
                nd_client_close(pub);
                nd_client_close(sub);
                nd_harness_stop(h);
        }
}
