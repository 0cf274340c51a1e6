/* SPDX-License-Identifier: MIT */

/*
 * ndbus: the library and ndbusd
 *
 * The subscription blocks, so nothing may be lost and publishers are held back by ndbus itself. Its
 * queue and window are deeper than the defaults, which are made for frames and not for a stream of
 * 64-byte messages; the peers' are unlimited. In shared memory it holds 256 MiB, as much as iceoryx's queue of
 * 256 messages does at 1 MiB, and of large ones 16 more. A batch greater than 1 publishes with `more`. Streams are
 * compared with streams: shared memory is off unless it is the way that is measured.
 */

#include <ndbus/ndbus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/bench/harness.h"

#define BUS_DEPTH        65536u
#define BUS_WINDOW       4096u
#define BUS_BLOCK_BYTES  (UINT64_C(128) << 20)
#define BUS_WINDOW_LEAST 16u /* messages: a window of less is granted anew with each */
#define BUS_WAIT_MS      30000

struct peer {
        struct ndbus *bus;
        enum bench_way way;
        struct ndbus_message *message;
};

static void peer_version(char *out, size_t n_out)
{
        unsigned v = ndbus_version();

        snprintf(out, n_out, "libndbus %u.%u.%u", v >> 16, v >> 8 & 0xff, v & 0xff);
}

static int peer_fail(const char *what, int error)
{
        return bench_say("%s: %s: %s", what, ndbus_strerror(error), ndbus_detail());
}

static int peer_open(const struct bench_options *options, const char *url, void **ret_peer)
{
        struct ndbus_options settings = NDBUS_OPTIONS_INIT;
        struct peer *peer;
        int r;

        peer = calloc(1, sizeof(*peer));
        if (!peer)
                return bench_say("no memory");

        peer->way = options->way;
        settings.no_shm = options->way == BENCH_STREAM;
        r = ndbus_open(&peer->bus, url, &settings);
        if (r) {
                free(peer);
                return peer_fail("open", r);
        }

        *ret_peer = peer;
        return BENCH_OK;
}

static int peer_pub_open(const struct bench_options *options, void **ret_pub)
{
        return peer_open(options, options->url, ret_pub);
}

/* Only the head is written: what it costs to write an array is nobody's merit. */
static int peer_publish_loan(const struct peer *peer,
                             struct ndbus_array array,
                             const struct ndbus_publish_options *options)
{
        const void *message = array.data;
        struct ndbus_loan *loan;
        int r;

        r = ndbus_loan(peer->bus, &array, 1, &loan);
        if (r)
                return r;
        bench_write_loan((void *)(uintptr_t)array.data, message);
        r = ndbus_publish_loan(peer->bus, BENCH_SUBJECT, loan, options);
        if (r)
                ndbus_loan_cancel(loan);
        return r;
}

static int peer_pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        const int64_t shape[1] = {(int64_t)n_message};
        const struct ndbus_array array = {.data = message, .ndim = 1, .shape = shape};
        struct peer *peer = userdata;
        int r;

        options.timeout_ms = BUS_WAIT_MS;
        options.more = more;

        r = peer->way == BENCH_LOANED
                    ? peer_publish_loan(peer, array, &options)
                    : ndbus_publish(peer->bus, BENCH_SUBJECT, &array, 1, &options);
        return r ? peer_fail("publish", r) : BENCH_OK;
}

static int peer_pub_end(void *userdata)
{
        struct peer *peer = userdata;
        int r;

        r = ndbus_flush(peer->bus, BUS_WAIT_MS);
        return r ? peer_fail("flush", r) : BENCH_OK;
}

static int peer_sub_open(const struct bench_options *options, void **ret_sub)
{
        struct ndbus_subscribe_options settings = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct peer *peer;
        void *opened;
        int r;

        if (peer_open(options, options->backend ? options->backend : options->url, &opened))
                return BENCH_FAILED;

        peer = opened;
        settings.policy = NDBUS_BLOCK;
        settings.depth = BUS_DEPTH;
        settings.window = BUS_WINDOW;
        if (options->way != BENCH_STREAM) {
                settings.bytes = BUS_BLOCK_BYTES;
                settings.window_bytes = BUS_BLOCK_BYTES;
                if (settings.window_bytes < BUS_WINDOW_LEAST * options->size)
                        settings.window_bytes = BUS_WINDOW_LEAST * options->size;
        }

        r = ndbus_subscribe(peer->bus, BENCH_SUBJECT, &settings, NULL);
        if (r) {
                ndbus_close(peer->bus, 0, NULL);
                free(peer);
                return peer_fail("subscribe", r);
        }

        *ret_sub = peer;
        return BENCH_OK;
}

static int peer_sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        struct peer *peer = userdata;
        const struct ndbus_array *arrays;
        int r;

        ndbus_message_free(peer->message);
        peer->message = NULL;

        r = ndbus_receive(peer->bus, &peer->message, 1000);
        if (r == NDBUS_ETIMEDOUT)
                return BENCH_TIMEOUT;
        if (r)
                return peer_fail("receive", r);

        *ret_bytes = ndbus_message_bytes(peer->message);
        if (ndbus_message_arrays(peer->message, &arrays) != 1 ||
            *ret_bytes < sizeof(struct bench_head))
                return bench_say("a message of %zu bytes", *ret_bytes);

        *ret_head = arrays[0].data;
        return BENCH_OK;
}

static void peer_close(void *userdata)
{
        struct peer *peer = userdata;

        ndbus_message_free(peer->message);
        ndbus_close(peer->bus, 1000, NULL);
        free(peer);
}

const struct bench_system bench_system = {
        .name = "ndbus",
        .version = peer_version,
        .pub_open = peer_pub_open,
        .pub_send = peer_pub_send,
        .pub_end = peer_pub_end,
        .pub_close = peer_close,
        .sub_open = peer_sub_open,
        .sub_receive = peer_sub_receive,
        .sub_close = peer_close,
};
