/* SPDX-License-Identifier: MIT */

/*
 * Messages of a group are finished by whoever frees them
 *
 * A worker with a window of a few messages sleeps in a receiving call, or in poll() on its
 * descriptor, while other threads free what it handed out. Only their freeing can bring the next
 * message: if it did not wake the sleeper, the program would hang.
 */

#include <ndbus/ndbus.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "protocol/base.h"
#include "tests/support/harness.h"

#define N_MESSAGES 300u
#define WINDOW     4u

static struct {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        struct ndbus_message *held[WINDOW];
        size_t n_held;
        bool is_last;
} hand = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void require(bool is_true, const char *what)
{
        if (is_true)
                return;
        fprintf(stderr, "%s: %s\n", what, ndbus_detail());
        exit(1);
}

static void *free_them(void *unused)
{
        struct ndbus_message *m;

        for (;;) {
                pthread_mutex_lock(&hand.mutex);
                while (hand.n_held == 0 && !hand.is_last)
                        pthread_cond_wait(&hand.changed, &hand.mutex);
                m = hand.n_held > 0 ? hand.held[--hand.n_held] : NULL;
                pthread_mutex_unlock(&hand.mutex);
                if (!m)
                        return unused;
                ndbus_message_free(m);
        }
}

static void hand_out(struct ndbus_message *m)
{
        pthread_mutex_lock(&hand.mutex);
        require(hand.n_held < WINDOW, "more messages than the window has");
        hand.held[hand.n_held++] = m;
        pthread_cond_signal(&hand.changed);
        pthread_mutex_unlock(&hand.mutex);
}

static void *publish(void *url)
{
        struct ndbus *bus;

        require(ndbus_open(&bus, url, NULL) == 0, "publisher's ndbus_open");
        for (uint64_t i = 0; i < N_MESSAGES; ++i) {
                const struct ndbus_array array = {.data = &i, .dtype = "uint64"};

                require(ndbus_publish(bus, "threads/finish", &array, 1, NULL) == 0,
                        "ndbus_publish");
        }
        require(ndbus_close(bus, nd_harness_deadline_ms(60000), NULL) == 0, "ndbus_close");
        return NULL;
}

/* The next message, by a sleep of the library's or of our own. */
static struct ndbus_message *receive(struct ndbus *bus, bool polls)
{
        struct ndbus_message *m = NULL;
        struct pollfd p = {.events = POLLIN};
        int r;

        if (!polls) {
                r = ndbus_receive(bus, &m, nd_harness_deadline_ms(60000));
                require(r == 0, "ndbus_receive");
                return m;
        }
        p.fd = ndbus_fd(bus);
        require(p.fd >= 0, "ndbus_fd");
        while ((r = ndbus_receive(bus, &m, 0)) == NDBUS_ETIMEDOUT)
                require(poll(&p, 1, nd_harness_deadline_ms(60000)) == 1, "poll");
        require(r == 0, "ndbus_receive");
        return m;
}

static void run(const char *url, bool polls)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        pthread_t publisher, freers[2];
        struct ndbus *bus;
        char text[300];

        snprintf(text, sizeof(text), "%s", url);
        hand.is_last = false;
        require(ndbus_open(&bus, url, NULL) == 0, "ndbus_open");
        options.group = "workers";
        options.window = WINDOW;
        require(ndbus_subscribe(bus, "threads/finish", &options, NULL) == 0, "ndbus_subscribe");
        require(pthread_create(&publisher, NULL, publish, text) == 0, "pthread_create");
        for (size_t i = 0; i < nd_array_size(freers); ++i)
                require(pthread_create(&freers[i], NULL, free_them, NULL) == 0, "pthread_create");
        for (size_t i = 0; i < N_MESSAGES; ++i) {
                struct ndbus_message *m = receive(bus, polls);

                require(!ndbus_message_redelivered(m), "redelivered");
                hand_out(m);
        }
        /* the last ones may be freed while the bus is being closed, or after it */
        require(ndbus_close(bus, nd_harness_deadline_ms(60000), NULL) == 0, "ndbus_close");
        pthread_mutex_lock(&hand.mutex);
        hand.is_last = true;
        pthread_cond_broadcast(&hand.changed);
        pthread_mutex_unlock(&hand.mutex);
        for (size_t i = 0; i < nd_array_size(freers); ++i)
                pthread_join(freers[i], NULL);
        pthread_join(publisher, NULL);
}

int main(void)
{
        struct nd_harness *h = nd_harness_start(NULL);

        run(h->unix_url, false);
        run(h->tcp_url, true);
        nd_harness_stop(h);
        return 0;
}
