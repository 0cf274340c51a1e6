/* SPDX-License-Identifier: MIT */

/*
 * iceoryx: chunks of shared memory that RouDi, its daemon, hands out
 *
 * The daemon is in nobody's way: publisher and subscribers meet in memory that all of them may write.
 * Queues hold back rather than drop. A subscriber waits in a wait set; while there are chunks it takes
 * them without asking. RouDi must run, with pools that have the run's size.
 */

#include <iceoryx_binding_c/log.h>
#include <iceoryx_binding_c/publisher.h>
#include <iceoryx_binding_c/runtime.h>
#include <iceoryx_binding_c/subscriber.h>
#include <iceoryx_binding_c/wait_set.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/bench/harness.h"

#define ICEORYX_QUEUE_MAX 256u

/* Half of the chunks that tests/bench/run gives RouDi: the others are being written and read. */
#define ICEORYX_QUEUE_BYTES (512u << 20)

struct peer {
        bool is_loan;
        size_t size;
        iox_pub_storage_t pub_storage;
        iox_pub_t pub;
        iox_sub_storage_t sub_storage;
        iox_sub_t sub;
        iox_ws_storage_t wait_storage;
        iox_ws_t wait;
        const void *chunk; /* that the subscriber has; or NULL */
};

static void peer_version(char *out, size_t n_out)
{
        snprintf(out, n_out, "iceoryx 2.0");
}

static struct peer *peer_new(const struct bench_options *options)
{
        struct peer *peer = calloc(1, sizeof(*peer));
        char name[64];

        if (!peer) {
                bench_say("no memory");
                return NULL;
        }
        snprintf(name, sizeof(name), "ndbus-bench-%ld", (long)getpid());
        iox_set_loglevel(Iceoryx_LogLevel_Off);
        iox_runtime_init(name); /* ends the process if there is no RouDi */
        peer->is_loan = options->way == BENCH_LOANED;
        peer->size = options->size;
        return peer;
}

static int peer_pub_open(const struct bench_options *options, void **ret_pub)
{
        struct peer *peer = peer_new(options);
        iox_pub_options_t settings;

        if (!peer)
                return BENCH_FAILED;

        iox_pub_options_init(&settings);
        settings.subscriberTooSlowPolicy = ConsumerTooSlowPolicy_WAIT_FOR_CONSUMER;
        peer->pub = iox_pub_init(&peer->pub_storage, "ndbus", "bench", "stream", &settings);
        *ret_pub = peer;
        return BENCH_OK;
}

static int peer_pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        struct peer *peer = userdata;
        void *chunk;
        enum iox_AllocationResult r;

        (void)more;

        /* all chunks may be with slow subscribers */
        while ((r = iox_pub_loan_aligned_chunk(peer->pub, &chunk, (uint32_t)n_message, 64)) ==
               AllocationResult_RUNNING_OUT_OF_CHUNKS)
                bench_nap_us(1);
        if (r != AllocationResult_SUCCESS)
                return bench_say("loan of %zu bytes: result %d", n_message, (int)r);

        if (peer->is_loan)
                bench_write_loan(chunk, message);
        else
                memcpy(chunk, message, n_message);
        iox_pub_publish_chunk(peer->pub, chunk);
        return BENCH_OK;
}

static int peer_pub_end(void *userdata)
{
        (void)userdata; /* what was published is there */
        return BENCH_OK;
}

static void peer_pub_close(void *userdata)
{
        struct peer *peer = userdata;

        iox_pub_deinit(peer->pub);
        free(peer);
}

static int peer_sub_open(const struct bench_options *options, void **ret_sub)
{
        struct peer *peer = peer_new(options);
        iox_sub_options_t settings;

        if (!peer)
                return BENCH_FAILED;

        iox_sub_options_init(&settings);
        settings.queueCapacity = ICEORYX_QUEUE_BYTES / options->size;
        if (settings.queueCapacity > ICEORYX_QUEUE_MAX)
                settings.queueCapacity = ICEORYX_QUEUE_MAX;
        settings.queueFullPolicy = QueueFullPolicy_BLOCK_PRODUCER;
        peer->sub = iox_sub_init(&peer->sub_storage, "ndbus", "bench", "stream", &settings);
        peer->wait = iox_ws_init(&peer->wait_storage);
        if (iox_ws_attach_subscriber_state(peer->wait, peer->sub, SubscriberState_HAS_DATA, 1,
                                           NULL) != WaitSetResult_SUCCESS)
                return bench_say("the wait set does not take the subscriber");

        *ret_sub = peer;
        return BENCH_OK;
}

static int peer_sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        const struct timespec second = {.tv_sec = 1};
        struct peer *peer = userdata;
        iox_notification_info_t woken;
        enum iox_ChunkReceiveResult r;
        uint64_t n_missed;

        if (peer->chunk)
                iox_sub_release_chunk(peer->sub, peer->chunk);
        peer->chunk = NULL;

        while ((r = iox_sub_take_chunk(peer->sub, &peer->chunk)) ==
               ChunkReceiveResult_NO_CHUNK_AVAILABLE)
                if (iox_ws_timed_wait(peer->wait, second, &woken, 1, &n_missed) == 0)
                        return BENCH_TIMEOUT;
        if (r != ChunkReceiveResult_SUCCESS)
                return bench_say("take: result %d", (int)r);

        *ret_head = peer->chunk;
        *ret_bytes = peer->size; /* greetings and the end are shorter, and nobody measures them */
        return BENCH_OK;
}

static void peer_sub_close(void *userdata)
{
        struct peer *peer = userdata;

        if (peer->chunk)
                iox_sub_release_chunk(peer->sub, peer->chunk);
        iox_ws_detach_subscriber_state(peer->wait, peer->sub, SubscriberState_HAS_DATA);
        iox_ws_deinit(peer->wait);
        iox_sub_deinit(peer->sub);
        free(peer);
}

const struct bench_system bench_system = {
        .name = "iceoryx",
        .version = peer_version,
        .pub_open = peer_pub_open,
        .pub_send = peer_pub_send,
        .pub_end = peer_pub_end,
        .pub_close = peer_pub_close,
        .sub_open = peer_sub_open,
        .sub_receive = peer_sub_receive,
        .sub_close = peer_sub_close,
};
