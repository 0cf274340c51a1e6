/* SPDX-License-Identifier: MIT */

/*
 * Messages are freed by whoever holds them last
 *
 * A bus belongs to one thread, but what it received may be read, exported and freed by any other, at
 * any time, also after the bus was closed: its memory goes back to a pool that the bus draws from
 * meanwhile. One thread publishes, one receives and hands out, several check and free; the bus is
 * closed while they still hold messages. Interesting under ThreadSanitizer; true everywhere.
 */

#include <ndbus/ndbus.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "client/dlpack.h"
#include "protocol/base.h"
#include "tests/support/harness.h"
#include "tests/support/pattern.h"

#define N_MESSAGES 240u
#define N_HOLDERS  3u
#define N_HELD_MAX 8u /* of one holder: the receiver waits then */

struct holder {
        pthread_t thread;
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        struct ndbus_message *held[N_HELD_MAX];
        size_t n_held;
        size_t n_done;
        bool is_last; /* no more will come */
};

static void require(bool is_true, const char *what)
{
        if (is_true)
                return;
        fprintf(stderr, "%s: %s\n", what, ndbus_detail());
        exit(1);
}

/* From a few bytes, that share a buffer, to several chunks. */
static size_t message_bytes(uint64_t i)
{
        static const size_t sizes[] = {1, 100, 5000, 70000, 300000, 1500000};

        return sizes[i % nd_array_size(sizes)] + i;
}

static void *publish(void *url)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        uint8_t *bytes = malloc(2000000);
        struct ndbus *bus;

        require(bytes != NULL, "malloc");
        require(ndbus_open(&bus, url, NULL) == 0, "publisher's ndbus_open");
        options.timeout_ms = nd_harness_deadline_ms(60000);
        for (uint64_t i = 1; i <= N_MESSAGES; ++i) {
                int64_t shape = (int64_t)message_bytes(i);
                struct ndbus_array array = {
                        .data = bytes,
                        .dtype = "uint8",
                        .ndim = 1,
                        .shape = &shape,
                };

                nd_pattern_fill(bytes, i, (size_t)shape);
                require(ndbus_publish(bus, "threads/free", &array, 1, &options) == 0,
                        "ndbus_publish");
        }
        require(ndbus_close(bus, nd_harness_deadline_ms(60000), NULL) == 0, "ndbus_close");
        free(bytes);
        return NULL;
}

/* In turn: freed as it is; made private first; an exported tensor that outlives its message. */
static void check_and_free(struct ndbus_message *message)
{
        uint64_t i = ndbus_message_sequence(message);
        const struct ndbus_array *array;
        struct DLManagedTensorVersioned *tensor = NULL;

        require(ndbus_message_arrays(message, &array) == 1, "one array");
        require((size_t)array->shape[0] == message_bytes(i), "its size");
        require(nd_pattern_compare(array->data, i, message_bytes(i)) == message_bytes(i),
                "its bytes");
        if (i % 3 == 1)
                require(ndbus_message_own(message) == 0, "ndbus_message_own");
        if (i % 3 == 2)
                require(ndbus_message_export(message, 0, &tensor) == 0, "export");
        ndbus_message_free(message);
        if (tensor) {
                require(nd_pattern_compare(tensor->dl_tensor.data, i, message_bytes(i)) ==
                                message_bytes(i),
                        "a tensor's bytes after its message");
                tensor->deleter(tensor);
        }
}

static void *hold(void *argument)
{
        struct holder *holder = argument;

        pthread_mutex_lock(&holder->mutex);
        for (;;) {
                struct ndbus_message *message;

                while (holder->n_held == 0 && !holder->is_last)
                        pthread_cond_wait(&holder->changed, &holder->mutex);
                if (holder->n_held == 0)
                        break;
                message = holder->held[--holder->n_held];
                pthread_cond_signal(&holder->changed);
                pthread_mutex_unlock(&holder->mutex);
                check_and_free(message);
                pthread_mutex_lock(&holder->mutex);
                ++holder->n_done;
        }
        pthread_mutex_unlock(&holder->mutex);
        return NULL;
}

static void hand_out(struct holder *holder, struct ndbus_message *message)
{
        pthread_mutex_lock(&holder->mutex);
        while (holder->n_held == N_HELD_MAX)
                pthread_cond_wait(&holder->changed, &holder->mutex);
        holder->held[holder->n_held++] = message;
        pthread_cond_signal(&holder->changed);
        pthread_mutex_unlock(&holder->mutex);
}

static size_t holder_finish(struct holder *holder)
{
        pthread_mutex_lock(&holder->mutex);
        holder->is_last = true;
        pthread_cond_signal(&holder->changed);
        pthread_mutex_unlock(&holder->mutex);
        pthread_join(holder->thread, NULL);
        pthread_mutex_destroy(&holder->mutex);
        pthread_cond_destroy(&holder->changed);
        return holder->n_done;
}

static void run(const char *url)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct holder holders[N_HOLDERS] = {0};
        pthread_t publisher;
        struct ndbus *bus;
        size_t n_done = 0;

        options.policy = NDBUS_BLOCK;
        require(ndbus_open(&bus, url, NULL) == 0, "ndbus_open");
        require(ndbus_subscribe(bus, "threads/*", &options, NULL) == 0, "ndbus_subscribe");
        require(pthread_create(&publisher, NULL, publish, (void *)(uintptr_t)url) == 0, "a thread");
        for (size_t i = 0; i < N_HOLDERS; ++i) {
                pthread_mutex_init(&holders[i].mutex, NULL);
                pthread_cond_init(&holders[i].changed, NULL);
                require(pthread_create(&holders[i].thread, NULL, hold, &holders[i]) == 0,
                        "a thread");
        }

        for (uint64_t i = 1; i <= N_MESSAGES; ++i) {
                struct ndbus_message *message;

                require(ndbus_receive(bus, &message, nd_harness_deadline_ms(60000)) == 0,
                        "ndbus_receive");
                require(ndbus_message_sequence(message) == i, "the order");
                hand_out(&holders[i % N_HOLDERS], message);
        }
        require(ndbus_close(bus, nd_harness_deadline_ms(60000), NULL) == 0, "ndbus_close");
        for (size_t i = 0; i < N_HOLDERS; ++i)
                n_done += holder_finish(&holders[i]);
        pthread_join(publisher, NULL);
        require(n_done == N_MESSAGES, "all of them");
}

int main(void)
{
        struct nd_harness *h = nd_harness_start(NULL);

        run(h->unix_url);
        run(h->tcp_url);
        nd_harness_stop(h);
        return 0;
}
