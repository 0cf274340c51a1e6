/* SPDX-License-Identifier: MIT */

/*
 * The floor: a relay that does nothing but relay
 *
 * It accepts one publisher and the subscribers, then receives into one buffer of 256 KiB and sends
 * what came to each in turn, by blocking calls. No topics, no framing, no queue, no limit; the
 * slowest subscriber holds everybody. A bus cannot cost less with the same number of processes and
 * sockets, so ndbus is measured as a fraction of it.
 *
 * The subscriber of large messages receives into one
 * buffer of the message's size; that of small ones takes as many as one call gives.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "tests/bench/harness.h"

#define RAW_BUFFER_BYTES (256u << 10)
#define RAW_BATCH_BYTES  (64u << 10)

struct raw_pub {
        int fd;
        size_t n_batch;
        unsigned char batch[RAW_BATCH_BYTES];
};

struct raw_sub {
        int fd;
        size_t size;
        size_t n_buffer;
        size_t n_filled;
        size_t n_taken;
        unsigned char *buffer;
};

static void raw_version(char *out, size_t n_out)
{
        snprintf(out, n_out, "raw relay, %u KiB buffer", RAW_BUFFER_BYTES >> 10);
}

static int raw_pub_open(const struct bench_options *options, void **ret_pub)
{
        struct raw_pub *pub;

        pub = calloc(1, sizeof(*pub));
        if (!pub || bench_join(options->url, 'P', &pub->fd)) {
                free(pub);
                return BENCH_FAILED;
        }

        *ret_pub = pub;
        return BENCH_OK;
}

static int raw_pub_flush(struct raw_pub *pub)
{
        size_t n = pub->n_batch;

        pub->n_batch = 0;
        return n ? bench_send_all(pub->fd, pub->batch, n) : BENCH_OK;
}

static int raw_pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        struct raw_pub *pub = userdata;

        if (!more && !pub->n_batch)
                return bench_send_all(pub->fd, message, n_message);

        if (pub->n_batch + n_message > sizeof(pub->batch) && raw_pub_flush(pub))
                return BENCH_FAILED;
        if (n_message > sizeof(pub->batch))
                return bench_send_all(pub->fd, message, n_message);

        memcpy(pub->batch + pub->n_batch, message, n_message);
        pub->n_batch += n_message;

        return more ? BENCH_OK : raw_pub_flush(pub);
}

static int raw_pub_end(void *userdata)
{
        struct raw_pub *pub = userdata;

        if (raw_pub_flush(pub))
                return BENCH_FAILED;

        return shutdown(pub->fd, SHUT_WR) ? bench_say("shutdown: %s", strerror(errno)) : BENCH_OK;
}

static void raw_pub_close(void *userdata)
{
        struct raw_pub *pub = userdata;

        close(pub->fd);
        free(pub);
}

static int raw_sub_open(const struct bench_options *options, void **ret_sub)
{
        const struct timeval second = {.tv_sec = 1};
        struct raw_sub *sub;

        sub = calloc(1, sizeof(*sub));
        if (!sub)
                return bench_say("no memory");

        sub->size = options->size;
        sub->n_buffer = options->size < RAW_BUFFER_BYTES / 4 ? RAW_BUFFER_BYTES : options->size;
        sub->buffer = aligned_alloc(4096, (sub->n_buffer + 4095) / 4096 * 4096);
        if (!sub->buffer || bench_join(options->url, 'S', &sub->fd)) {
                free(sub->buffer);
                free(sub);
                return BENCH_FAILED;
        }

        setsockopt(sub->fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
        *ret_sub = sub;
        return BENCH_OK;
}

static int raw_sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        struct raw_sub *sub = userdata;

        if (sub->n_taken && sub->n_filled - sub->n_taken < sub->size) {
                memmove(sub->buffer, sub->buffer + sub->n_taken, sub->n_filled - sub->n_taken);
                sub->n_filled -= sub->n_taken;
                sub->n_taken = 0;
        }

        while (sub->n_filled - sub->n_taken < sub->size) {
                ssize_t n = recv(sub->fd, sub->buffer + sub->n_filled,
                                 sub->n_buffer - sub->n_filled, 0);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EAGAIN)
                        return BENCH_TIMEOUT;
                if (n < 0)
                        return bench_say("recv: %s", strerror(errno));
                if (n == 0)
                        return sub->n_filled ? bench_say("the stream ended inside a message")
                                             : BENCH_ENDED;

                sub->n_filled += (size_t)n;
        }

        *ret_head = sub->buffer + sub->n_taken;
        *ret_bytes = sub->size;
        sub->n_taken += sub->size;
        return BENCH_OK;
}

static void raw_sub_close(void *userdata)
{
        struct raw_sub *sub = userdata;

        close(sub->fd);
        free(sub->buffer);
        free(sub);
}

static int raw_relay(const struct bench_options *options)
{
        static unsigned char buffer[RAW_BUFFER_BYTES];
        int listener, pub, subs[64];

        if (bench_listen(options->url, &listener))
                return BENCH_FAILED;

        bench_say_ready();

        for (;;) {
                bool broken = false;

                if (bench_gather(listener, options->n_subscribers, &pub, subs))
                        return BENCH_FAILED;

                while (!broken) {
                        ssize_t n = recv(pub, buffer, sizeof(buffer), 0);

                        if (n <= 0)
                                break;
                        for (unsigned i = 0; i < options->n_subscribers && !broken; ++i)
                                broken = bench_send_all(subs[i], buffer, (size_t)n) != 0;
                }

                close(pub);
                for (unsigned i = 0; i < options->n_subscribers; ++i)
                        close(subs[i]);
        }
}

const struct bench_system bench_system = {
        .name = "raw",
        .is_stream = true,
        .version = raw_version,
        .pub_open = raw_pub_open,
        .pub_send = raw_pub_send,
        .pub_end = raw_pub_end,
        .pub_close = raw_pub_close,
        .sub_open = raw_sub_open,
        .sub_receive = raw_sub_receive,
        .sub_close = raw_sub_close,
        .relay = raw_relay,
};
