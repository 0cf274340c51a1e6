/* SPDX-License-Identifier: MIT */

/*
 * ZeroMQ: PUB, an XSUB/XPUB zmq_proxy, SUB
 *
 * High-water marks are 0, because PUB drops beyond them; the harness holds the publisher back.
 * Large messages are two frames, as array users send them: the head, and a payload that ZeroMQ sends
 * from the caller's memory without a copy. That memory may not be changed until ZeroMQ says so; here
 * nobody changes it, so this is ZeroMQ at its best.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>
#include "tests/bench/harness.h"

#define ZEROMQ_ZERO_COPY_BYTES (16u << 10)
#define ZEROMQ_HEAD_BYTES      64u

struct zeromq {
        void *context;
        void *socket;
        zmq_msg_t frame;
};

static void zeromq_version(char *out, size_t n_out)
{
        int major, minor, patch;

        zmq_version(&major, &minor, &patch);
        snprintf(out, n_out, "libzmq %d.%d.%d", major, minor, patch);
}

static int zeromq_fail(const char *what)
{
        return bench_say("%s: %s", what, zmq_strerror(errno));
}

static int zeromq_address(const char *url, char *out, size_t n_out)
{
        int n;

        n = strncmp(url, "unix:", 5) ? snprintf(out, n_out, "%s", url)
                                     : snprintf(out, n_out, "ipc://%s", url + 5);

        return n > 0 && (size_t)n < n_out ? BENCH_OK : bench_say("URL %s: too long", url);
}

static int zeromq_new_socket(void *context, int type, void **ret_socket)
{
        const int none = 0, second = 1000;
        void *s;

        s = zmq_socket(context, type);
        if (!s)
                return zeromq_fail("socket");

        if (zmq_setsockopt(s, ZMQ_SNDHWM, &none, sizeof(none)) ||
            zmq_setsockopt(s, ZMQ_RCVHWM, &none, sizeof(none)) ||
            (type == ZMQ_SUB && zmq_setsockopt(s, ZMQ_RCVTIMEO, &second, sizeof(second)))) {
                zmq_close(s);
                return zeromq_fail("setsockopt");
        }

        *ret_socket = s;
        return BENCH_OK;
}

static int zeromq_open(const char *url, int type, void **ret_zeromq)
{
        const uint64_t magic = BENCH_MAGIC;
        struct zeromq *z;
        char address[256];

        z = calloc(1, sizeof(*z));
        if (!z || zeromq_address(url, address, sizeof(address)))
                return BENCH_FAILED;

        zmq_msg_init(&z->frame);
        z->context = zmq_ctx_new();
        if (!z->context || zeromq_new_socket(z->context, type, &z->socket))
                return zeromq_fail("context");
        if (type == ZMQ_SUB && zmq_setsockopt(z->socket, ZMQ_SUBSCRIBE, &magic, sizeof(magic)))
                return zeromq_fail("subscribe");
        if (zmq_connect(z->socket, address))
                return zeromq_fail("connect");

        *ret_zeromq = z;
        return BENCH_OK;
}

static int zeromq_pub_open(const struct bench_options *options, void **ret_pub)
{
        return zeromq_open(options->url, ZMQ_PUB, ret_pub);
}

static int zeromq_sub_open(const struct bench_options *options, void **ret_sub)
{
        return zeromq_open(options->backend ? options->backend : options->url, ZMQ_SUB, ret_sub);
}

static void zeromq_keep(void *data, void *hint)
{
        (void)data;
        (void)hint;
}

static int zeromq_pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        struct zeromq *z = userdata;
        const unsigned char *bytes = message;
        void *rest;
        zmq_msg_t body;

        (void)more;

        if (n_message < ZEROMQ_ZERO_COPY_BYTES)
                return zmq_send(z->socket, message, n_message, 0) < 0 ? zeromq_fail("send")
                                                                      : BENCH_OK;

        memcpy(&rest, &(const void *){bytes + ZEROMQ_HEAD_BYTES}, sizeof(rest));
        if (zmq_msg_init_data(&body, rest, n_message - ZEROMQ_HEAD_BYTES, zeromq_keep, NULL))
                return zeromq_fail("message");
        if (zmq_send(z->socket, message, ZEROMQ_HEAD_BYTES, ZMQ_SNDMORE) < 0 ||
            zmq_msg_send(&body, z->socket, 0) < 0) {
                zmq_msg_close(&body);
                return zeromq_fail("send");
        }

        return BENCH_OK;
}

static int zeromq_pub_end(void *userdata)
{
        (void)userdata; /* its I/O thread sends without being asked */
        return BENCH_OK;
}

static int zeromq_sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        static unsigned char head[ZEROMQ_HEAD_BYTES];
        struct zeromq *z = userdata;
        size_t n_all = 0;

        do {
                int n = zmq_msg_recv(&z->frame, z->socket, 0);

                if (n < 0 && (errno == EAGAIN || errno == EINTR))
                        return BENCH_TIMEOUT;
                if (n < 0)
                        return zeromq_fail("recv");
                if (!n_all && (size_t)n < sizeof(head))
                        return bench_say("a first frame of %d bytes", n);
                if (!n_all)
                        memcpy(head, zmq_msg_data(&z->frame), sizeof(head));

                n_all += zmq_msg_size(&z->frame);
        } while (zmq_msg_more(&z->frame));

        *ret_head = head;
        *ret_bytes = n_all;
        return BENCH_OK;
}

static void zeromq_close(void *userdata)
{
        struct zeromq *z = userdata;

        zmq_msg_close(&z->frame);
        zmq_close(z->socket);
        zmq_ctx_term(z->context);
        free(z);
}

static int zeromq_relay(const struct bench_options *options)
{
        char front[256], back[256];
        void *context, *xsub, *xpub;

        if (!options->backend)
                return bench_say("--backend is missing: the address for subscribers");
        if (zeromq_address(options->url, front, sizeof(front)) ||
            zeromq_address(options->backend, back, sizeof(back)))
                return BENCH_FAILED;

        context = zmq_ctx_new();
        if (!context || zeromq_new_socket(context, ZMQ_XSUB, &xsub) ||
            zeromq_new_socket(context, ZMQ_XPUB, &xpub))
                return zeromq_fail("context");
        if (zmq_bind(xsub, front) || zmq_bind(xpub, back))
                return zeromq_fail("bind");

        bench_say_ready();
        zmq_proxy(xsub, xpub, NULL);
        return zeromq_fail("proxy");
}

const struct bench_system bench_system = {
        .name = "zeromq",
        .window_messages = UINT64_MAX,
        .version = zeromq_version,
        .pub_open = zeromq_pub_open,
        .pub_send = zeromq_pub_send,
        .pub_end = zeromq_pub_end,
        .pub_close = zeromq_close,
        .sub_open = zeromq_sub_open,
        .sub_receive = zeromq_sub_receive,
        .sub_close = zeromq_close,
        .relay = zeromq_relay,
};
