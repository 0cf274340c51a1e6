/* SPDX-License-Identifier: MIT */

/*
 * The floor for messages whose bytes stay where they are: a relay that passes descriptors
 *
 * With each 64 bytes goes the descriptor of a memfd, as if the message were in it: by one sendmsg() of the
 * publisher, one recvmsg() and one sendmsg() a subscriber of the relay, one recvmsg() of the subscriber, and whoever
 * received it closes it. Nobody maps it. No topics, no queue, no limit, and blocking calls, as in raw.c.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "tests/bench/harness.h"

#define DESCRIPTORS_BYTES 64u

union control {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
};

struct pub {
        int fd;
        int memory;
};

struct sub {
        int fd;
        unsigned char message[DESCRIPTORS_BYTES];
};

static void version(char *out, size_t n_out)
{
        snprintf(out, n_out, "relay of descriptors, %u bytes with each", DESCRIPTORS_BYTES);
}

static int send_with(int fd, const void *message, int descriptor)
{
        union control control = {0};
        struct iovec iov = {(void *)(uintptr_t)message, DESCRIPTORS_BYTES};
        struct msghdr m = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control.bytes),
        };
        struct cmsghdr *head = CMSG_FIRSTHDR(&m);
        ssize_t n;

        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
        do
                n = sendmsg(fd, &m, MSG_NOSIGNAL);
        while (n < 0 && (errno == EINTR || errno == ETOOMANYREFS));
        if (n != DESCRIPTORS_BYTES)
                return bench_say("sendmsg: %s", n < 0 ? strerror(errno) : "not all of it");
        return BENCH_OK;
}

/* The kernel does not join what descriptors came with, so one call brings one message. */
static int receive_with(int fd, unsigned char *message, int *ret_descriptor)
{
        union control control;
        struct iovec iov = {message, DESCRIPTORS_BYTES};
        struct msghdr m = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof(control.bytes),
        };
        const struct cmsghdr *head;
        ssize_t n;

        do
                n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno == EAGAIN)
                return BENCH_TIMEOUT;
        if (n == 0)
                return BENCH_ENDED;
        head = n < 0 ? NULL : CMSG_FIRSTHDR(&m);
        if (n != DESCRIPTORS_BYTES || !head || head->cmsg_len != CMSG_LEN(sizeof(int)))
                return bench_say("recvmsg: %s", n < 0 ? strerror(errno) : "no message with one");
        memcpy(ret_descriptor, CMSG_DATA(head), sizeof(int));
        return BENCH_OK;
}

static int pub_open(const struct bench_options *options, void **ret_pub)
{
        struct pub *pub = calloc(1, sizeof(*pub));

        if (!pub || options->size != DESCRIPTORS_BYTES) {
                free(pub);
                return bench_say("--size: must be %u", DESCRIPTORS_BYTES);
        }
        pub->memory = memfd_create("bench", MFD_CLOEXEC);
        if (pub->memory < 0 || bench_join(options->url, 'P', &pub->fd)) {
                free(pub);
                return bench_say("no memfd, or no relay");
        }
        *ret_pub = pub;
        return BENCH_OK;
}

static int pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        struct pub *pub = userdata;

        (void)n_message;
        (void)more;
        return send_with(pub->fd, message, pub->memory);
}

static int pub_end(void *userdata)
{
        struct pub *pub = userdata;

        return shutdown(pub->fd, SHUT_WR) ? bench_say("shutdown: %s", strerror(errno)) : BENCH_OK;
}

static void pub_close(void *userdata)
{
        struct pub *pub = userdata;

        close(pub->memory);
        close(pub->fd);
        free(pub);
}

static int sub_open(const struct bench_options *options, void **ret_sub)
{
        const struct timeval second = {.tv_sec = 1};
        struct sub *sub = calloc(1, sizeof(*sub));

        if (!sub || bench_join(options->url, 'S', &sub->fd)) {
                free(sub);
                return BENCH_FAILED;
        }
        setsockopt(sub->fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
        *ret_sub = sub;
        return BENCH_OK;
}

static int sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        struct sub *sub = userdata;
        int descriptor, r = receive_with(sub->fd, sub->message, &descriptor);

        if (r)
                return r;
        close(descriptor);
        *ret_head = sub->message;
        *ret_bytes = sizeof(sub->message);
        return BENCH_OK;
}

static void sub_close(void *userdata)
{
        struct sub *sub = userdata;

        close(sub->fd);
        free(sub);
}

static int relay(const struct bench_options *options)
{
        unsigned char message[DESCRIPTORS_BYTES];
        int listener, pub, subs[64], descriptor;

        if (bench_listen(options->url, &listener))
                return BENCH_FAILED;

        bench_say_ready();

        for (;;) {
                bool is_broken = false;

                if (bench_gather(listener, options->n_subscribers, &pub, subs))
                        return BENCH_FAILED;

                while (!is_broken && receive_with(pub, message, &descriptor) == BENCH_OK) {
                        for (unsigned i = 0; i < options->n_subscribers && !is_broken; ++i)
                                is_broken = send_with(subs[i], message, descriptor) != BENCH_OK;
                        close(descriptor);
                }

                close(pub);
                for (unsigned i = 0; i < options->n_subscribers; ++i)
                        close(subs[i]);
        }
}

const struct bench_system bench_system = {
        .name = "descriptors",
        .is_stream = true,
        .version = version,
        .pub_open = pub_open,
        .pub_send = pub_send,
        .pub_end = pub_end,
        .pub_close = pub_close,
        .sub_open = sub_open,
        .sub_receive = sub_receive,
        .sub_close = sub_close,
        .relay = relay,
};
