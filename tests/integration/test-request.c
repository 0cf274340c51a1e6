/* SPDX-License-Identifier: MIT */

/*
 * Asking and answering, and who is there to be asked
 *
 * Whoever answers runs in a thread with a bus of its own.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <ndbus/ndbus.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "protocol/base.h"
#include "tests/support/harness.h"

static int deadline_ms(void)
{
        return nd_harness_deadline_ms(20000);
}

static struct ndbus *open_bus(const char *url)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;

        options.connect_timeout_ms = deadline_ms();
        cr_assert_eq(ndbus_open(&bus, url, &options), 0, "%s", ndbus_detail());
        return bus;
}

static void close_bus(struct ndbus *bus)
{
        cr_assert_eq(ndbus_close(bus, deadline_ms(), NULL), 0, "%s", ndbus_detail());
}

static struct ndbus_array scalar(const uint64_t *value)
{
        return (struct ndbus_array){.data = value, .dtype = "uint64"};
}

static uint64_t value_of(const struct ndbus_message *m)
{
        const struct ndbus_array *arrays;
        uint64_t value = 0;

        cr_assert_eq(ndbus_message_arrays(m, &arrays), 1);
        memcpy(&value, arrays[0].data, sizeof(value));
        return value;
}

static int ask(struct ndbus *bus, const char *topic, uint64_t value, struct ndbus_message **ret)
{
        const struct ndbus_array array = scalar(&value);

        return ndbus_request(bus, topic, &array, 1, NULL, deadline_ms(), ret);
}

/* Answers value + add, n_answers times each, until it is told to stop. That goes by a topic of its
 * own, which each replier hears: of two messages to a group, both may be for the same member. */
struct replier {
        struct ndbus *bus;
        uint64_t add;
        unsigned n_answers;
        unsigned n_asked;
        pthread_t thread;
};

static void *replier_run(void *data)
{
        struct replier *replier = data;

        for (;;) {
                struct ndbus_message *m = NULL;
                uint64_t value;
                bool stop;

                cr_assert_eq(ndbus_receive(replier->bus, &m, deadline_ms()), 0, "%s",
                             ndbus_detail());
                stop = strcmp(ndbus_message_topic(m), "stop") == 0;
                value = value_of(m);
                for (unsigned i = 0; !stop && i < replier->n_answers; ++i) {
                        const uint64_t answer = value + replier->add + i;
                        const struct ndbus_array array = scalar(&answer);

                        cr_assert_eq(ndbus_reply(replier->bus, m, &array, 1, NULL), 0, "%s",
                                     ndbus_detail());
                }
                ndbus_message_free(m);
                if (stop)
                        return NULL;
                ++replier->n_asked;
        }
}

static void replier_start(struct replier *replier, const char *url, const char *group)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;

        options.group = group;
        replier->bus = open_bus(url);
        cr_assert_eq(ndbus_subscribe(replier->bus, "ask", &options, NULL), 0);
        cr_assert_eq(ndbus_subscribe(replier->bus, "stop", NULL, NULL), 0);
        cr_assert_eq(pthread_create(&replier->thread, NULL, replier_run, replier), 0);
}

static void replier_join(struct replier *replier)
{
        pthread_join(replier->thread, NULL);
        close_bus(replier->bus);
}

static void publish(struct ndbus *bus, const char *topic, uint64_t value)
{
        const struct ndbus_array array = scalar(&value);

        cr_assert_eq(ndbus_publish(bus, topic, &array, 1, NULL), 0, "%s", ndbus_detail());
}

Test(request, is_answered)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct replier replier = {.add = 1000, .n_answers = 1};
        struct ndbus *bus = open_bus(h->tcp_url);
        struct ndbus_message *m = NULL;

        replier_start(&replier, h->unix_url, NULL);
        for (uint64_t i = 1; i <= 50; ++i) {
                char topic[64];

                cr_assert_eq(ask(bus, "ask", i, &m), 0, "%s", ndbus_detail());
                cr_expect_eq(value_of(m), i + 1000);
                snprintf(topic, sizeof(topic), "$reply/%" PRIu64 "/%" PRIu64, ndbus_source(bus), i);
                cr_expect_str_eq(ndbus_message_topic(m), topic);
                ndbus_message_free(m);
        }
        publish(bus, "stop", 0);
        replier_join(&replier);
        close_bus(bus);
        nd_harness_stop(h);
}

Test(request, large_ones_too)
{
        static uint8_t bytes[3000000];
        struct nd_harness *h = nd_harness_start(NULL);
        struct replier replier = {.add = 0, .n_answers = 1};
        struct ndbus *bus = open_bus(h->unix_url);
        struct ndbus_message *m = NULL;
        const int64_t shape = sizeof(bytes) / 8;
        const struct ndbus_array array = {
                .data = bytes, .dtype = "uint64", .ndim = 1, .shape = &shape};

        bytes[0] = 77;
        cr_expect_eq(ndbus_request(bus, "ask", &array, 1, NULL, deadline_ms(), &m),
                     NDBUS_ENO_SUBSCRIBER, "%s", ndbus_detail());
        replier_start(&replier, h->unix_url, NULL);
        cr_assert_eq(ndbus_request(bus, "ask", &array, 1, NULL, deadline_ms(), &m), 0, "%s",
                     ndbus_detail());
        cr_expect_eq(value_of(m), 77);
        ndbus_message_free(m);
        publish(bus, "stop", 0);
        replier_join(&replier);
        close_bus(bus);
        nd_harness_stop(h);
}

/* The second answer is thrown away, also when it comes while the next request waits. */
Test(request, first_answer_wins)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct replier replier = {.add = 100, .n_answers = 3};
        struct ndbus *bus = open_bus(h->unix_url);
        struct ndbus_message *m = NULL;

        replier_start(&replier, h->unix_url, NULL);
        for (uint64_t i = 1; i <= 20; ++i) {
                cr_assert_eq(ask(bus, "ask", i, &m), 0, "%s", ndbus_detail());
                cr_expect_eq(value_of(m), i + 100);
                ndbus_message_free(m);
        }
        publish(bus, "stop", 0);
        replier_join(&replier);
        cr_expect_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
        close_bus(bus);
        nd_harness_stop(h);
}

Test(request, one_of_a_group_answers)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct replier repliers[2] = {{.n_answers = 1}, {.n_answers = 1}};
        struct ndbus *bus = open_bus(h->unix_url);
        struct ndbus_message *m = NULL;
        uint64_t n = 0;

        for (size_t i = 0; i < 2; ++i)
                replier_start(&repliers[i], h->unix_url, "repliers");
        cr_expect_eq(ndbus_subscribers(bus, "ask", &n, deadline_ms()), 0);
        cr_expect_eq(n, 1, "a group counts as one");
        for (uint64_t i = 1; i <= 40; ++i) {
                cr_assert_eq(ask(bus, "ask", i, &m), 0, "%s", ndbus_detail());
                cr_expect_eq(value_of(m), i);
                ndbus_message_free(m);
        }
        publish(bus, "stop", 0);
        cr_assert_eq(ndbus_flush(bus, deadline_ms()), 0);
        for (size_t i = 0; i < 2; ++i)
                pthread_join(repliers[i].thread, NULL);
        cr_expect_eq(repliers[0].n_asked + repliers[1].n_asked, 40);
        for (size_t i = 0; i < 2; ++i)
                close_bus(repliers[i].bus);
        close_bus(bus);
        nd_harness_stop(h);
}

/* The daemon may say so while the question is still being sent, or when its last byte has just left:
 * neither is lost, of a request nor of a message. */
Test(request, nobody_is_said_whatever_the_size)
{
        static uint8_t bytes[1 << 20];
        const int64_t sizes[] = {1000, 60000, 65536, 100000, 131072, 140000, 200000, sizeof(bytes)};
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct nd_harness *h = nd_harness_start(NULL);
        const char *const urls[] = {h->unix_url, h->tcp_url};

        options.no_shm = 1;
        for (size_t i = 0; i < 2 * nd_array_size(sizes); ++i) {
                const struct ndbus_array array = {
                        .data = bytes, .dtype = "uint8", .ndim = 1, .shape = &sizes[i / 2]};
                struct ndbus_message *m = NULL;
                struct ndbus *bus;

                cr_assert_eq(ndbus_open(&bus, urls[i % 2], &options), 0, "%s", ndbus_detail());
                for (int k = 0; k < 10; ++k)
                        cr_assert_eq(ndbus_request(bus, "ask", &array, 1, NULL, deadline_ms(), &m),
                                     NDBUS_ENO_SUBSCRIBER, "%lld bytes: %s",
                                     (long long)sizes[i / 2], ndbus_detail());
                cr_expect_eq(ndbus_flush(bus, deadline_ms()), 0, "%s", ndbus_detail());
                close_bus(bus);
        }
        nd_harness_stop(h);
}

Test(request, nobody_is_said_at_once)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *bus = open_bus(h->unix_url);
        struct ndbus_message *m = NULL;
        const uint64_t value = 1;
        const struct ndbus_array array = scalar(&value);

        cr_expect_eq(ndbus_request(bus, "ask", &array, 1, NULL, -1, &m), NDBUS_ENO_SUBSCRIBER);
        cr_expect_null(m);
        /* it was said; a flush does not say it again */
        cr_expect_eq(ndbus_flush(bus, deadline_ms()), 0, "%s", ndbus_detail());
        close_bus(bus);
        nd_harness_stop(h);
}

/* What comes for other subscriptions waits; an answer that is too late is thrown away. */
Test(request, times_out)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *bus = open_bus(h->unix_url), *other = open_bus(h->unix_url);
        struct ndbus_message *m = NULL, *question = NULL;
        const uint64_t value = 5;
        const struct ndbus_array array = scalar(&value);

        cr_assert_eq(ndbus_subscribe(bus, "news", NULL, NULL), 0);
        cr_assert_eq(ndbus_subscribe(other, "ask", NULL, NULL), 0);
        publish(other, "news", 42);
        cr_assert_eq(ndbus_flush(other, deadline_ms()), 0);
        /* the first one asks the daemon for all answers, which may take longer than the next one waits */
        cr_expect_eq(ask(bus, "nobody", 1, &m), NDBUS_ENO_SUBSCRIBER);
        cr_expect_eq(ndbus_request(bus, "ask", &array, 1, NULL, 20, &m), NDBUS_ETIMEDOUT);
        cr_assert_eq(ndbus_receive(other, &question, deadline_ms()), 0);
        cr_assert_eq(ndbus_reply(other, question, &array, 1, NULL), 0);
        cr_assert_eq(ndbus_flush(other, deadline_ms()), 0);
        cr_assert_eq(ndbus_receive(bus, &m, deadline_ms()), 0);
        cr_expect_str_eq(ndbus_message_topic(m), "news");
        cr_expect_eq(value_of(m), 42);
        ndbus_message_free(m);
        cr_assert_eq(ndbus_ping(bus, NULL, deadline_ms()), 0);
        cr_expect_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);

        /* nobody waits at all any more */
        close_bus(bus);
        cr_expect_eq(ndbus_reply(other, question, &array, 1, NULL), 0);
        cr_expect_eq(ndbus_flush(other, deadline_ms()), 0, "%s", ndbus_detail());
        ndbus_message_free(question);
        close_bus(other);
        nd_harness_stop(h);
}

Test(request, refuses_what_makes_no_sense)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *bus = open_bus(h->unix_url);
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_message *m = NULL;

        options.retain = 1;
        cr_expect_eq(ndbus_request(bus, "ask", NULL, 0, &options, 0, &m), NDBUS_EINVAL);
        options.retain = 0;
        options.reply = "mine";
        cr_expect_eq(ndbus_request(bus, "ask", NULL, 0, &options, 0, &m), NDBUS_EINVAL);
        cr_expect_eq(ndbus_request(bus, "a//b", NULL, 0, NULL, deadline_ms(), &m), NDBUS_ETOPIC);
        cr_expect_eq(ndbus_request(bus, NULL, NULL, 0, NULL, 0, &m), NDBUS_EINVAL);
        cr_expect_eq(ndbus_request(bus, "ask", NULL, 0, NULL, 0, NULL), NDBUS_EINVAL);
        cr_expect_eq(ndbus_reply(bus, NULL, NULL, 0, NULL), NDBUS_EINVAL);
        cr_assert_eq(ndbus_subscribe(bus, "ask", NULL, NULL), 0);
        publish(bus, "ask", 1);
        cr_assert_eq(ndbus_receive(bus, &m, deadline_ms()), 0);
        cr_expect_eq(ndbus_reply(bus, m, NULL, 0, NULL), NDBUS_EINVAL);
        cr_expect(strstr(ndbus_detail(), "asks for no answer"), "%s", ndbus_detail());
        ndbus_message_free(m);
        close_bus(bus);
        nd_harness_stop(h);
}

/* The connection goes while one waits; on the next one the source, and so the topics, are others. */
Test(request, survives_a_restart)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct replier replier = {.add = 1, .n_answers = 1};
        struct ndbus *bus = open_bus(h->unix_url);
        struct ndbus_message *m = NULL;
        uint64_t source;
        int r;

        replier_start(&replier, h->unix_url, NULL);
        cr_assert_eq(ask(bus, "ask", 1, &m), 0, "%s", ndbus_detail());
        ndbus_message_free(m);
        source = ndbus_source(bus);
        publish(bus, "stop", 0);
        cr_assert_eq(ndbus_flush(bus, deadline_ms()), 0, "%s", ndbus_detail());
        replier_join(&replier);

        cr_assert_eq(ndbus_subscribe(bus, "other", NULL, NULL), 0);
        nd_harness_signal(h, SIGKILL);
        nd_harness_wait_exit(h, deadline_ms(), NULL);
        cr_expect_eq(ndbus_receive(bus, &m, deadline_ms()), NDBUS_ENOTCONN);
        nd_harness_start_again(h);
        replier_start(&replier, h->unix_url, NULL);
        do
                r = ask(bus, "ask", 2, &m);
        while (r == NDBUS_ENOTCONN);
        cr_assert_eq(r, 0, "%s", ndbus_detail());
        cr_expect_eq(value_of(m), 3);
        ndbus_message_free(m);
        cr_expect_neq(ndbus_source(bus), source);
        publish(bus, "other", 9);
        cr_assert_eq(ndbus_receive(bus, &m, deadline_ms()), 0, "%s", ndbus_detail());
        cr_expect_eq(value_of(m), 9);
        ndbus_message_free(m);
        publish(bus, "stop", 0);
        replier_join(&replier);
        close_bus(bus);
        nd_harness_stop(h);
}

static void *join_late(void *data)
{
        struct ndbus *bus = data;

        cr_assert_eq(ndbus_subscribe(bus, "in/*", NULL, NULL), 0, "%s", ndbus_detail());
        return NULL;
}

Test(interest, is_counted_and_waited_for)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct ndbus *bus = open_bus(h->unix_url), *other = open_bus(h->tcp_url);
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_subscription *sub = NULL;
        struct ndbus_message *m = NULL;
        const uint64_t value = 3;
        const struct ndbus_array array = scalar(&value);
        uint64_t n = 99;
        pthread_t thread;

        cr_expect_eq(ndbus_subscribers(bus, "in/a", &n, deadline_ms()), 0);
        cr_expect_eq(n, 0);
        cr_expect_eq(ndbus_wait_subscribers(bus, "in/a", 1, 10), NDBUS_ETIMEDOUT);
        options.if_wanted = 1;
        cr_expect_eq(ndbus_publish(bus, "in/a", &array, 1, &options), 0);
        cr_assert_eq(pthread_create(&thread, NULL, join_late, other), 0);
        cr_expect_eq(ndbus_wait_subscribers(bus, "in/a", 1, deadline_ms()), 0);
        pthread_join(thread, NULL);
        cr_expect_eq(ndbus_publish(bus, "in/a", &array, 1, &options), 0);
        cr_assert_eq(ndbus_receive(other, &m, deadline_ms()), 0);
        cr_expect_eq(ndbus_message_sequence(m), 1, "the unwanted one was not sent");
        ndbus_message_free(m);
        cr_assert_eq(ndbus_subscribe(other, "in/a", NULL, &sub), 0);
        cr_expect_eq(ndbus_wait_subscribers(bus, "in/a", 2, deadline_ms()), 0);
        cr_assert_eq(ndbus_unsubscribe(sub), 0);
        close_bus(other);
        do
                cr_assert_eq(ndbus_ping(bus, NULL, deadline_ms()), 0);
        while (ndbus_subscribers(bus, "in/a", &n, deadline_ms()) == 0 && n > 0);
        cr_expect_eq(n, 0);
        close_bus(bus);
        nd_harness_stop(h);
}
