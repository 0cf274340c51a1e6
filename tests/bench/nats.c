/* SPDX-License-Identifier: MIT */

/*
 * NATS: the C client and nats-server
 *
 * The client's defaults: publishes gather in its buffer and a thread of its own flushes them, except
 * in latency runs, where each is sent at once. Pending limits are lifted, because the client drops
 * beyond them; the harness holds the publisher back.
 */

#include <nats/nats.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/bench/harness.h"

struct peer {
        natsConnection *connection;
        natsSubscription *subscription;
        natsMsg *message;
};

static void peer_version(char *out, size_t n_out)
{
        snprintf(out, n_out, "libnats %s", nats_GetVersion());
}

static int peer_fail(const char *what, natsStatus status)
{
        return bench_say("%s: %s", what, natsStatus_GetText(status));
}

static int peer_open(const struct bench_options *options, struct peer **ret_peer)
{
        natsOptions *settings = NULL;
        struct peer *peer;
        natsStatus s;

        peer = calloc(1, sizeof(*peer));
        if (!peer)
                return bench_say("no memory");

        s = natsOptions_Create(&settings);
        if (s == NATS_OK)
                s = natsOptions_SetURL(settings, options->url);
        if (s == NATS_OK)
                s = natsOptions_SetSendAsap(settings, options->latency);
        if (s == NATS_OK)
                s = natsConnection_Connect(&peer->connection, settings);
        natsOptions_Destroy(settings);

        if (s != NATS_OK) {
                free(peer);
                return peer_fail("connect", s);
        }

        *ret_peer = peer;
        return BENCH_OK;
}

static int peer_pub_open(const struct bench_options *options, void **ret_pub)
{
        struct peer *peer;

        if (peer_open(options, &peer))
                return BENCH_FAILED;

        *ret_pub = peer;
        return BENCH_OK;
}

static int peer_pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        struct peer *peer = userdata;
        natsStatus s;

        (void)more;
        if (n_message > INT32_MAX)
                return bench_say("a message of %zu bytes is more than an int", n_message);

        s = natsConnection_Publish(peer->connection, BENCH_SUBJECT, message, (int)n_message);
        return s == NATS_OK ? BENCH_OK : peer_fail("publish", s);
}

static int peer_pub_end(void *userdata)
{
        struct peer *peer = userdata;
        natsStatus s;

        s = natsConnection_Flush(peer->connection);
        return s == NATS_OK ? BENCH_OK : peer_fail("flush", s);
}

static int peer_sub_open(const struct bench_options *options, void **ret_sub)
{
        struct peer *peer;
        natsStatus s;

        if (peer_open(options, &peer))
                return BENCH_FAILED;

        s = natsConnection_SubscribeSync(&peer->subscription, peer->connection, BENCH_SUBJECT);
        if (s == NATS_OK)
                s = natsSubscription_SetPendingLimits(peer->subscription, -1, -1);
        if (s == NATS_OK)
                s = natsConnection_Flush(peer->connection);
        if (s != NATS_OK)
                return peer_fail("subscribe", s);

        *ret_sub = peer;
        return BENCH_OK;
}

static int peer_sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        struct peer *peer = userdata;
        natsStatus s;

        natsMsg_Destroy(peer->message);
        peer->message = NULL;

        s = natsSubscription_NextMsg(&peer->message, peer->subscription, 1000);
        if (s == NATS_TIMEOUT)
                return BENCH_TIMEOUT;
        if (s != NATS_OK)
                return peer_fail("next message", s);

        *ret_head = natsMsg_GetData(peer->message);
        *ret_bytes = (size_t)natsMsg_GetDataLength(peer->message);
        if (*ret_bytes < sizeof(struct bench_head))
                return bench_say("a message of %zu bytes", *ret_bytes);

        return BENCH_OK;
}

static void peer_close(void *userdata)
{
        struct peer *peer = userdata;

        natsMsg_Destroy(peer->message);
        natsSubscription_Destroy(peer->subscription);
        natsConnection_Destroy(peer->connection);
        free(peer);
}

const struct bench_system bench_system = {
        .name = "nats",
        .window_messages = UINT64_MAX,
        .version = peer_version,
        .pub_open = peer_pub_open,
        .pub_send = peer_pub_send,
        .pub_end = peer_pub_end,
        .pub_close = peer_close,
        .sub_open = peer_sub_open,
        .sub_receive = peer_sub_receive,
        .sub_close = peer_close,
};
