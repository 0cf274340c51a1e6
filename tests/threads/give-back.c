/* SPDX-License-Identifier: MIT */

/*
 * Messages and exports freed on other threads while their bus receives, and after it was closed
 *
 * The one thing in the library that threads share is the memory of messages. The main thread
 * publishes to itself and receives; two others free what they are handed, at once or a moment
 * later, small messages and large ones, and exports of which the message has gone already. The bus is
 * closed while they are still busy. For ThreadSanitizer; without it, a test that nothing crashes.
 */

#include <ndbus/ndbus.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "client/dlpack.h"
#include "tests/support/fake-peer.h"
#include "tests/support/pattern.h"

#define N_MESSAGES 3000u
#define N_SLOTS    64u

struct thing {
        struct ndbus_message *message;
        struct DLManagedTensorVersioned *tensor;
};

/* A queue between two threads. */
struct belt {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        struct thing slots[N_SLOTS];
        size_t n_in;
        size_t n_out;
        bool is_over;
        size_t n_wrong;
};

static struct belt belt = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void check(bool is_so, const char *what)
{
        if (is_so)
                return;
        fprintf(stderr, "not so: %s (%s)\n", what, ndbus_detail());
        exit(1);
}

static void put(struct thing thing)
{
        pthread_mutex_lock(&belt.mutex);
        while (belt.n_in - belt.n_out == N_SLOTS)
                pthread_cond_wait(&belt.changed, &belt.mutex);
        belt.slots[belt.n_in++ % N_SLOTS] = thing;
        pthread_cond_broadcast(&belt.changed);
        pthread_mutex_unlock(&belt.mutex);
}

static bool get(struct thing *ret)
{
        bool is_there;

        pthread_mutex_lock(&belt.mutex);
        while (belt.n_in == belt.n_out && !belt.is_over)
                pthread_cond_wait(&belt.changed, &belt.mutex);
        is_there = belt.n_in != belt.n_out;
        if (is_there)
                *ret = belt.slots[belt.n_out++ % N_SLOTS];
        pthread_cond_broadcast(&belt.changed);
        pthread_mutex_unlock(&belt.mutex);
        return is_there;
}

static size_t is_wrong(const void *bytes, size_t n)
{
        return nd_pattern_compare(bytes, 0, n) != n;
}

static void *free_things(void *unused)
{
        const struct ndbus_array *arrays;
        struct thing thing;
        size_t n_wrong = 0;

        while (get(&thing)) {
                if (thing.message) {
                        ndbus_message_arrays(thing.message, &arrays);
                        n_wrong += is_wrong(arrays[0].data, (size_t)arrays[0].shape[0]);
                        ndbus_message_own(thing.message);
                        ndbus_message_free(thing.message);
                }
                if (thing.tensor) {
                        n_wrong += is_wrong(thing.tensor->dl_tensor.data,
                                            (size_t)thing.tensor->dl_tensor.shape[0]);
                        thing.tensor->deleter(thing.tensor);
                }
        }
        pthread_mutex_lock(&belt.mutex);
        belt.n_wrong += n_wrong;
        pthread_mutex_unlock(&belt.mutex);
        return unused;
}

static void receive_one(struct ndbus *bus, unsigned int i)
{
        struct thing thing = {NULL, NULL};

        check(ndbus_receive(bus, &thing.message, 10000) == 0, "a message comes");
        if (i % 3 > 0)
                check(ndbus_message_export(thing.message, 0, &thing.tensor) == 0, "it is exported");
        if (i % 3 == 2) {
                ndbus_message_free(thing.message);
                thing.message = NULL;
        }
        put(thing);
}

int main(void)
{
        static uint8_t bytes[300000];
        static const int64_t sizes[] = {10, 4096, 4097, 70000, 300000, 1000};
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus_array array = {.data = bytes, .dtype = "uint8", .ndim = 1};
        pthread_t threads[2];
        struct ndbus *bus;

        nd_pattern_fill(bytes, 0, sizeof(bytes));
        check(ndbus_open(&bus, fake_peer_url(peer), NULL) == 0, "the bus opens");
        check(ndbus_subscribe(bus, "**", NULL, NULL) == 0, "it subscribes");
        for (size_t i = 0; i < 2; ++i)
                check(pthread_create(&threads[i], NULL, free_things, NULL) == 0, "a thread");

        for (unsigned int i = 0; i < N_MESSAGES; ++i) {
                array.shape = &sizes[i % (sizeof(sizes) / sizeof(*sizes))];
                check(ndbus_publish(bus, "t", &array, 1, NULL) == 0, "it publishes");
                receive_one(bus, i);
        }
        check(ndbus_close(bus, 10000, NULL) == 0, "the bus closes");
        pthread_mutex_lock(&belt.mutex);
        belt.is_over = true;
        pthread_cond_broadcast(&belt.changed);
        pthread_mutex_unlock(&belt.mutex);
        for (size_t i = 0; i < 2; ++i)
                pthread_join(threads[i], NULL);
        fake_peer_end(peer);
        check(belt.n_wrong == 0, "all bytes are as they were sent");
        return 0;
}
