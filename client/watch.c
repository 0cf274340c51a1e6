/* SPDX-License-Identifier: MIT */

/*
 * What is known of topics
 *
 * A topic is here for one of two reasons: the application asked how many subscribe to it, and is kept
 * informed from then on; or the daemon said that publishing on it is paused. The second kind goes
 * when the pause ends. A publisher looks here only if anything is paused at all.
 */

#include <string.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"
#include "protocol/topic.h"

static uint64_t topic_hash(const char *topic, size_t n)
{
        uint64_t hash = UINT64_C(14695981039346656037);

        for (size_t i = 0; i < n; ++i)
                hash = (hash ^ (uint8_t)topic[i]) * UINT64_C(1099511628211);
        return hash ^ hash >> 32;
}

static struct nd_watch **watch_bucket(struct nd_watches *watches, const char *topic, size_t n)
{
        return &watches->buckets[topic_hash(topic, n) & (watches->n_buckets - 1)];
}

struct nd_watch *nd_watch_find(struct ndbus *bus, const char *topic, size_t n_topic)
{
        struct nd_watches *watches = &bus->watches;

        if (watches->n == 0)
                return NULL;
        for (struct nd_watch *w = *watch_bucket(watches, topic, n_topic); w; w = w->next)
                if (w->n_topic == n_topic && memcmp(w->topic, topic, n_topic) == 0)
                        return w;
        return NULL;
}

static int watches_grow(struct nd_watches *watches)
{
        size_t n_old = watches->n_buckets, n = n_old ? n_old * 2 : 16;
        struct nd_watch **old = watches->buckets, **bucket, *w, *next;

        if (watches->n < n_old)
                return 0;
        watches->buckets = calloc(n, sizeof(struct nd_watch *));
        if (!watches->buckets) {
                watches->buckets = old;
                return NDBUS_ENOMEM;
        }
        watches->n_buckets = n;
        for (size_t i = 0; i < n_old; ++i) {
                for (w = old[i]; w; w = next) {
                        next = w->next;
                        bucket = watch_bucket(watches, w->topic, w->n_topic);
                        w->next = *bucket;
                        *bucket = w;
                }
        }
        free(old);
        return 0;
}

int nd_watch_get(struct ndbus *bus, const char *topic, size_t n_topic, struct nd_watch **ret)
{
        struct nd_watches *watches = &bus->watches;
        struct nd_watch *w = nd_watch_find(bus, topic, n_topic), **bucket;

        if (!w) {
                if (watches_grow(watches))
                        return NDBUS_ENOMEM;
                w = calloc(1, sizeof(*w) + n_topic + 1);
                if (!w)
                        return NDBUS_ENOMEM;
                memcpy(w->topic, topic, n_topic);
                w->n_topic = n_topic;
                bucket = watch_bucket(watches, topic, n_topic);
                w->next = *bucket;
                *bucket = w;
                ++watches->n;
        }
        *ret = w;
        return 0;
}

static void watch_set_paused(struct nd_watches *watches, struct nd_watch *w, bool is_paused)
{
        if (w->is_paused != is_paused)
                watches->n_paused += is_paused ? 1 : (size_t)-1;
        w->is_paused = is_paused;
}

/* Takes it away if nothing is left to know. */
static void watch_drop_idle(struct nd_watches *watches, struct nd_watch *w)
{
        struct nd_watch **at;

        if (w->is_watched || w->is_paused)
                return;
        at = watch_bucket(watches, w->topic, w->n_topic);
        while (*at != w)
                at = &(*at)->next;
        *at = w->next;
        --watches->n;
        free(w);
}

int nd_watch_heard(struct ndbus *bus, const struct nd_topic_header *header)
{
        struct nd_watches *watches = &bus->watches;
        struct nd_watch *w = nd_watch_find(bus, header->topic.at, header->topic.n);

        if (!w && !header->paused)
                return 0;
        if (!w && nd_watch_get(bus, header->topic.at, header->topic.n, &w))
                return NDBUS_ENOMEM;
        w->is_known = true;
        w->n_subscribers = header->subscribers;
        watch_set_paused(watches, w, header->paused);
        watch_drop_idle(watches, w);
        return 0;
}

void nd_watches_lost(struct ndbus *bus)
{
        struct nd_watches *watches = &bus->watches;
        struct nd_watch *w, *next;

        for (size_t i = 0; i < watches->n_buckets; ++i) {
                for (w = watches->buckets[i]; w; w = next) {
                        next = w->next;
                        w->is_known = false;
                        watch_set_paused(watches, w, false);
                        watch_drop_idle(watches, w);
                }
        }
}

/* Asks about a topic; an answer without a request that waits for it still says what there is. */
static int watch_ask(struct ndbus *bus, struct nd_watch *w, struct nd_request *request)
{
        struct nd_topic_header header = {.topic = {w->topic, w->n_topic}, .watch = true};
        struct nd_control_bytes bytes;

        w->is_watched = true;
        nd_topic_header_pack(&header, false, &bytes);
        if (request)
                return nd_request_start(bus, request, ND_KIND_TOPIC, 0, bytes.data, bytes.n);
        return nd_output_packet(&bus->output,
                                &(struct nd_prelude){.kind = ND_KIND_TOPIC,
                                                     .sequence = ++bus->connection.n_requests},
                                bytes.data, bytes.n, NULL, 0);
}

int nd_watches_renew(struct ndbus *bus)
{
        struct nd_watches *watches = &bus->watches;
        int r = 0;

        for (size_t i = 0; i < watches->n_buckets && !r; ++i)
                for (struct nd_watch *w = watches->buckets[i]; w && !r; w = w->next)
                        if (w->is_watched)
                                r = watch_ask(bus, w, NULL);
        return r;
}

void nd_watches_deinit(struct ndbus *bus)
{
        struct nd_watches *watches = &bus->watches;
        struct nd_watch *w, *next;

        for (size_t i = 0; i < watches->n_buckets; ++i) {
                for (w = watches->buckets[i]; w; w = next) {
                        next = w->next;
                        free(w);
                }
        }
        free(watches->buckets);
        *watches = (struct nd_watches){0};
}

int nd_watch_wait(struct ndbus *bus, const char *topic, uint64_t deadline_ns, struct nd_watch **ret)
{
        size_t n_topic = strnlen(topic, ND_TOPIC_BYTES_MAX + 1);
        struct nd_request request;
        struct nd_watch *w;
        int r;

        r = nd_bus_wait_ready(bus, deadline_ns);
        if (r)
                return r;
        if (nd_watch_get(bus, topic, n_topic, &w))
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        if (!w->is_watched || !w->is_known) {
                r = watch_ask(bus, w, &request);
                r = r ? r : nd_request_wait(bus, &request, deadline_ns);
                if (r) {
                        w->is_watched = false;
                        watch_drop_idle(&bus->watches, w);
                        return r;
                }
                if (!w->is_known)
                        return nd_detail_say(NDBUS_EPROTOCOL,
                                             "the daemon answered about another topic");
        }
        *ret = w;
        return 0;
}

static int topic_argument_check(const char *topic)
{
        struct nd_fault fault = {0};

        if (!topic)
                return nd_detail_say(NDBUS_EINVAL, "topic: is NULL");
        if (nd_topic_check(topic, strnlen(topic, ND_TOPIC_BYTES_MAX + 1), &fault))
                return nd_detail_fault(&fault);
        return 0;
}

ND_PUBLIC int
ndbus_subscribers(struct ndbus *bus, const char *topic, uint64_t *ret_n, int timeout_ms)
{
        struct nd_watch *w;
        int r;

        r = nd_bus_enter(bus);
        if (r)
                return r;
        r = topic_argument_check(topic);
        if (r)
                return nd_bus_leave(bus, r);
        nd_bus_move(bus);
        r = nd_watch_wait(bus, topic, nd_deadline_in_ms(timeout_ms), &w);
        if (!r && ret_n)
                *ret_n = w->n_subscribers;
        return nd_bus_leave(bus, r);
}

ND_PUBLIC int
ndbus_wait_subscribers(struct ndbus *bus, const char *topic, unsigned n, int timeout_ms)
{
        uint64_t deadline_ns = nd_deadline_in_ms(timeout_ms);
        struct nd_watch *w;
        int r;

        r = nd_bus_enter(bus);
        if (r)
                return r;
        r = topic_argument_check(topic);
        if (r)
                return nd_bus_leave(bus, r);
        for (;;) {
                r = nd_watch_wait(bus, topic, deadline_ns, &w);
                if (r || w->n_subscribers >= n)
                        return nd_bus_leave(bus, r);
                r = nd_bus_turn(bus, deadline_ns, false);
                if (r == 0)
                        r = nd_detail_fail(NDBUS_ETIMEDOUT, "%s: %llu subscriptions, %u are wanted",
                                           topic, (unsigned long long)w->n_subscribers, n);
                if (r < 0)
                        return nd_bus_leave(bus, r);
        }
}
