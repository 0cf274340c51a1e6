/* SPDX-License-Identifier: MIT */

/*
 * NNG: pub0, a device between raw sub0 and pub0, sub0
 *
 * Queues hold their largest number of messages and drop beyond it, so the window is well below.
 */

#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>
#include <nng/protocol/pubsub0/sub.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/bench/harness.h"

#define NNG_QUEUE  8192
#define NNG_WINDOW 1024

struct peer {
        nng_socket socket;
        nng_msg *message;
};

static void peer_version(char *out, size_t n_out)
{
        snprintf(out, n_out, "nng %s", nng_version());
}

static int peer_fail(const char *what, int error)
{
        return bench_say("%s: %s", what, nng_strerror(error));
}

static int peer_address(const char *url, char *out, size_t n_out)
{
        int n;

        n = strncmp(url, "unix:", 5) ? snprintf(out, n_out, "%s", url)
                                     : snprintf(out, n_out, "ipc://%s", url + 5);

        return n > 0 && (size_t)n < n_out ? BENCH_OK : bench_say("URL %s: too long", url);
}

static int peer_tune(nng_socket s, bool sends)
{
        int r;

        r = nng_socket_set_size(s, NNG_OPT_RECVMAXSZ, 0);
        if (!r)
                r = nng_socket_set_int(s, sends ? NNG_OPT_SENDBUF : NNG_OPT_RECVBUF, NNG_QUEUE);

        return r ? peer_fail("option", r) : BENCH_OK;
}

static int peer_pub_open(const struct bench_options *options, void **ret_pub)
{
        struct peer *peer;
        char address[256];
        int r;

        peer = calloc(1, sizeof(*peer));
        if (!peer || peer_address(options->url, address, sizeof(address)))
                return BENCH_FAILED;

        r = nng_pub0_open(&peer->socket);
        if (r)
                return peer_fail("open", r);
        if (peer_tune(peer->socket, true))
                return BENCH_FAILED;

        r = nng_dial(peer->socket, address, NULL, 0);
        if (r)
                return peer_fail("dial", r);

        *ret_pub = peer;
        return BENCH_OK;
}

static int peer_pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        struct peer *peer = userdata;
        void *data;
        int r;

        (void)more;

        memcpy(&data, &message, sizeof(data)); /* sent from, never written */
        r = nng_send(peer->socket, data, n_message, 0);

        return r ? peer_fail("send", r) : BENCH_OK;
}

static int peer_pub_end(void *userdata)
{
        (void)userdata; /* its threads send without being asked */
        return BENCH_OK;
}

static int peer_sub_open(const struct bench_options *options, void **ret_sub)
{
        const uint64_t magic = BENCH_MAGIC;
        struct peer *peer;
        char address[256];
        int r;

        peer = calloc(1, sizeof(*peer));
        if (!peer || peer_address(options->backend ? options->backend : options->url, address,
                                  sizeof(address)))
                return BENCH_FAILED;

        r = nng_sub0_open(&peer->socket);
        if (r)
                return peer_fail("open", r);
        if (peer_tune(peer->socket, false))
                return BENCH_FAILED;

        r = nng_socket_set(peer->socket, NNG_OPT_SUB_SUBSCRIBE, &magic, sizeof(magic));
        if (!r)
                r = nng_socket_set_ms(peer->socket, NNG_OPT_RECVTIMEO, 1000);
        if (!r)
                r = nng_dial(peer->socket, address, NULL, 0);
        if (r)
                return peer_fail("subscribe", r);

        *ret_sub = peer;
        return BENCH_OK;
}

static int peer_sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        struct peer *peer = userdata;
        int r;

        if (peer->message)
                nng_msg_free(peer->message);
        peer->message = NULL;

        r = nng_recvmsg(peer->socket, &peer->message, 0);
        if (r == NNG_ETIMEDOUT)
                return BENCH_TIMEOUT;
        if (r)
                return peer_fail("recv", r);

        *ret_head = nng_msg_body(peer->message);
        *ret_bytes = nng_msg_len(peer->message);
        if (*ret_bytes < sizeof(struct bench_head))
                return bench_say("a message of %zu bytes", *ret_bytes);

        return BENCH_OK;
}

static void peer_close(void *userdata)
{
        struct peer *peer = userdata;

        if (peer->message)
                nng_msg_free(peer->message);
        nng_close(peer->socket);
        free(peer);
}

static int peer_relay(const struct bench_options *options)
{
        char front[256], back[256];
        nng_socket in, out;
        int r;

        if (!options->backend)
                return bench_say("--backend is missing: the address for subscribers");
        if (peer_address(options->url, front, sizeof(front)) ||
            peer_address(options->backend, back, sizeof(back)))
                return BENCH_FAILED;

        r = nng_sub0_open_raw(&in);
        if (!r)
                r = nng_pub0_open_raw(&out);
        if (r)
                return peer_fail("open", r);
        if (peer_tune(in, false) || peer_tune(out, true))
                return BENCH_FAILED;

        r = nng_listen(in, front, NULL, 0);
        if (!r)
                r = nng_listen(out, back, NULL, 0);
        if (r)
                return peer_fail("listen", r);

        bench_say_ready();
        return peer_fail("device", nng_device(in, out));
}

const struct bench_system bench_system = {
        .name = "nng",
        .window_messages = NNG_WINDOW,
        .version = peer_version,
        .pub_open = peer_pub_open,
        .pub_send = peer_pub_send,
        .pub_end = peer_pub_end,
        .pub_close = peer_close,
        .sub_open = peer_sub_open,
        .sub_receive = peer_sub_receive,
        .sub_close = peer_close,
        .relay = peer_relay,
};
