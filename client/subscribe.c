/* SPDX-License-Identifier: MIT */

/*
 * Subscriptions
 *
 * A subscription is the application's from ndbus_subscribe() to ndbus_unsubscribe(), through any
 * number of connections. On each it has to be asked for and acknowledged; in between it is not
 * active, and what waits in its window at the daemon is nothing. Its number stays the same.
 *
 * Its end by the daemon is an arrival like a message: it is said in its turn.
 */

#include <string.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"
#include "protocol/topic.h"

static struct ndbus_subscription **sub_bucket(struct nd_subscriptions *subs, uint32_t id)
{
        return &subs->buckets[id & (subs->n_buckets - 1)];
}

struct ndbus_subscription *nd_subscription_find(struct ndbus *bus, uint32_t id)
{
        struct nd_subscriptions *subs = &bus->subscriptions;
        struct ndbus_subscription *sub = subs->last;

        if (sub && sub->id == id)
                return sub;
        if (subs->n_buckets == 0)
                return NULL;
        for (sub = *sub_bucket(subs, id); sub; sub = sub->next)
                if (sub->id == id)
                        return subs->last = sub;
        return NULL;
}

/* Room for one more. */
static int subs_grow(struct nd_subscriptions *subs)
{
        size_t n_old = subs->n_buckets, n = n_old ? n_old * 2 : 16;
        struct ndbus_subscription **old = subs->buckets, *sub, *next;

        if (subs->n < n_old)
                return 0;
        subs->buckets = calloc(n, sizeof(struct ndbus_subscription *));
        if (!subs->buckets) {
                subs->buckets = old;
                return NDBUS_ENOMEM;
        }
        subs->n_buckets = n;
        for (size_t i = 0; i < n_old; ++i) {
                for (sub = old[i]; sub; sub = next) {
                        next = sub->next;
                        sub->next = *sub_bucket(subs, sub->id);
                        *sub_bucket(subs, sub->id) = sub;
                }
        }
        free(old);
        return 0;
}

static void sub_unlink(struct ndbus_subscription *sub)
{
        struct nd_subscriptions *subs = &sub->bus->subscriptions;
        struct ndbus_subscription **at = sub_bucket(subs, sub->id);

        while (*at != sub)
                at = &(*at)->next;
        *at = sub->next;
        nd_list_unlink(&sub->in_order);
        --subs->n;
        if (sub->is_latest)
                --subs->n_latest;
        if (subs->last == sub)
                subs->last = NULL;
}

static void sub_set_unconfirmed(struct ndbus_subscription *sub, bool is_unconfirmed)
{
        if (sub->is_unconfirmed != is_unconfirmed)
                sub->bus->subscriptions.n_unconfirmed += is_unconfirmed ? 1 : (size_t)-1;
        sub->is_unconfirmed = is_unconfirmed;
}

static void sub_free(struct ndbus_subscription *sub)
{
        nd_stream_disown(sub->bus, sub);
        nd_list_for_each_safe (i, &sub->arrivals) {
                struct nd_arrival *arrival = nd_list_entry(i, struct nd_arrival, in_subscription);

                nd_list_unlink(&arrival->in_bus);
                nd_list_unlink(&arrival->in_subscription);
                if (!arrival->is_end)
                        ndbus_message_free(nd_container_of(arrival, struct ndbus_message, arrival));
        }
        nd_list_unlink(&sub->request.node);
        sub_set_unconfirmed(sub, false);
        nd_grant_forget(sub);
        sub_unlink(sub);
        free(sub->pattern);
        free(sub->group);
        free(sub);
}

void nd_subscriptions_end(struct ndbus *bus)
{
        nd_list_for_each_safe (i, &bus->subscriptions.in_order)
                sub_free(nd_list_entry(i, struct ndbus_subscription, in_order));
}

void nd_subscriptions_deinit(struct ndbus *bus)
{
        struct nd_subscriptions *subs = &bus->subscriptions;

        nd_subscriptions_end(bus);
        free(subs->buckets);
        *subs = (struct nd_subscriptions){0};
}

void nd_subscription_add_pending(struct ndbus_subscription *sub, uint64_t n)
{
        if (nd_add_overflow(sub->pending_dropped, n, &sub->pending_dropped))
                sub->pending_dropped = NDBUS_UNKNOWN;
}

void nd_subscription_add_dropped(struct ndbus_subscription *sub, uint64_t n)
{
        nd_subscription_add_pending(sub, n);
        if (n != NDBUS_UNKNOWN)
                sub->stats.dropped += n;
}

/* Asks the daemon for it, on whatever connection there is. */
static int sub_ask(struct ndbus_subscription *sub)
{
        const struct ndbus_subscribe_options *o = &sub->options;
        struct nd_subscribe header = {
                .pattern = {sub->pattern, strlen(sub->pattern)},
                .policy = (enum nd_policy)o->policy,
                .depth_messages = o->depth,
                .depth_bytes = o->bytes,
                .window_messages = sub->is_latest ? 0 : o->window,
                .window_bytes = o->window_bytes,
                .group = {sub->group, sub->group ? strlen(sub->group) : 0},
                .retained = o->retained && !sub->group,
        };
        struct nd_control_bytes bytes;

        sub->window_left = sub->is_latest ? 0 : (int64_t)o->window;
        sub->n_deliveries = 0;
        sub->is_active = false;
        sub->is_asked = true;
        nd_subscribe_pack(&header, &bytes);
        return nd_request_start(sub->bus, &sub->request, ND_KIND_SUBSCRIBE, sub->id, bytes.data,
                                bytes.n);
}

void nd_subscription_confirm(struct ndbus *bus, struct ndbus_subscription *sub)
{
        (void)bus;
        sub->is_active = true;
        sub_set_unconfirmed(sub, false);
}

/* Puts its end where a receiving call finds it. */
static void sub_push_end(struct ndbus_subscription *sub)
{
        nd_list_push_tail(&sub->bus->arrivals, &sub->end.in_bus);
        nd_list_push_tail(&sub->arrivals, &sub->end.in_subscription);
}

void nd_subscription_ended(struct ndbus_subscription *sub,
                           int code,
                           const struct nd_fault *fault,
                           uint64_t n_dropped)
{
        nd_stream_disown(sub->bus, sub);
        nd_subscription_add_dropped(sub, n_dropped);
        sub->is_active = sub->is_asked = false;
        sub->is_ended = true;
        sub->end_code = code;
        sub->end_fault = *fault;
        sub_set_unconfirmed(sub, false);
        nd_grant_forget(sub);
        if (!sub->is_internal)
                sub_push_end(sub);
}

void nd_subscription_refused(struct ndbus_subscription *sub)
{
        /* the first time ndbus_subscribe() waits for the answer and says it */
        if (sub->is_unconfirmed)
                nd_subscription_ended(sub, sub->request.code, &sub->request.fault, 0);
}

void nd_subscriptions_lost(struct ndbus *bus)
{
        nd_list_for_each (i, &bus->subscriptions.in_order) {
                struct ndbus_subscription *sub =
                        nd_list_entry(i, struct ndbus_subscription, in_order);

                if (sub->is_active && !sub->is_internal) {
                        nd_subscription_add_pending(sub, NDBUS_UNKNOWN);
                        ++sub->stats.gaps_unknown;
                        sub_set_unconfirmed(sub, true);
                }
                sub->is_active = sub->is_asked = false;
                nd_grant_forget(sub);
        }
}

int nd_subscriptions_renew(struct ndbus *bus)
{
        int r = 0;

        nd_list_for_each (i, &bus->subscriptions.in_order) {
                struct ndbus_subscription *sub =
                        nd_list_entry(i, struct ndbus_subscription, in_order);

                if (sub->is_unconfirmed && !r)
                        r = sub_ask(sub);
        }
        return r;
}

static int check_range(const char *field, uint64_t value, uint64_t min, uint64_t max)
{
        if (value >= min && value <= max)
                return 0;
        return nd_detail_fail(NDBUS_EINVAL, "options.%s: is %llu, must be %llu to %llu", field,
                              (unsigned long long)value, (unsigned long long)min,
                              (unsigned long long)max);
}

static int options_check(const struct ndbus_subscribe_options *o)
{
        int r;

        if (o->size < sizeof(*o))
                return nd_detail_fail(NDBUS_EINVAL, "options.size: is %zu, must be %zu", o->size,
                                      sizeof(*o));
        if ((unsigned int)o->policy > NDBUS_DISCONNECT)
                return nd_detail_fail(NDBUS_EINVAL, "options.policy: %d is none", (int)o->policy);
        r = check_range("depth", o->depth, 1, UINT64_MAX);
        r = r ? r : check_range("bytes", o->bytes, 1, UINT64_MAX);
        r = r ? r : check_range("window", o->window, o->policy != NDBUS_LATEST, ND_WINDOW_MAX);
        r = r ? r : check_range("window_bytes", o->window_bytes, 0, ND_WINDOW_MAX);
        if (r)
                return r;
        if (o->group && (!*o->group || strlen(o->group) > ND_NAME_BYTES_MAX))
                return nd_detail_fail(NDBUS_EINVAL,
                                      "options.group: has %zu bytes, must have 1 to "
                                      "%u",
                                      strlen(o->group), ND_NAME_BYTES_MAX);
        return 0;
}

static int sub_new(struct ndbus *bus,
                   const char *pattern,
                   const struct ndbus_subscribe_options *options,
                   struct ndbus_subscription **ret)
{
        struct nd_subscriptions *subs = &bus->subscriptions;
        struct ndbus_subscription *sub;

        if (subs->last_id == UINT32_MAX)
                return nd_detail_fail(NDBUS_ELIMIT, "subscription: all %u numbers are used",
                                      UINT32_MAX);
        sub = calloc(1, sizeof(*sub));
        if (!sub || subs_grow(subs)) {
                free(sub);
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        }
        sub->bus = bus;
        sub->options = *options;
        sub->is_latest = options->policy == NDBUS_LATEST;
        sub->pattern = strdup(pattern);
        sub->group = options->group ? strdup(options->group) : NULL;
        sub->options.group = sub->group;
        if (sub->options.window_bytes == 0)
                sub->options.window_bytes = bus->connection.url.type == ND_URL_UNIX
                                                    ? ND_WINDOW_BYTES_UNIX_DEFAULT
                                                    : ND_WINDOW_BYTES_TCP_DEFAULT;
        sub->stats.size = sizeof(sub->stats);
        sub->end.is_end = true;
        nd_list_init(&sub->end.in_bus);
        nd_list_init(&sub->end.in_subscription);
        nd_list_init(&sub->request.node);
        nd_list_init(&sub->arrivals);
        nd_list_init(&sub->granting);
        nd_list_init(&sub->finished);
        sub->id = ++subs->last_id;
        nd_list_push_tail(&subs->in_order, &sub->in_order);
        sub->next = *sub_bucket(subs, sub->id);
        *sub_bucket(subs, sub->id) = sub;
        ++subs->n;
        if (sub->is_latest)
                ++subs->n_latest;
        if (!sub->pattern || (options->group && !sub->group)) {
                sub_free(sub);
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        }
        *ret = sub;
        return 0;
}

/* Tells the daemon that it is over; nobody waits for the answer. */
static void sub_tell_end(struct ndbus_subscription *sub)
{
        struct ndbus *bus = sub->bus;

        if (bus->connection.state != ND_STATE_READY || !sub->is_asked)
                return;
        nd_grant_collect(bus);
        if (sub->group)
                nd_grant_write(sub); /* what is finished is not to go to others */
        if (nd_output_packet(&bus->output,
                             &(struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBE,
                                                  .sequence = ++bus->connection.n_requests,
                                                  .subscription = sub->id},
                             NULL, 0, NULL, 0) == 0)
                nd_connection_send(bus);
}

static int add_finisher(struct ndbus *bus)
{
        int r = nd_fd_add_wake(bus);

        if (r)
                return r;
        bus->finisher = nd_finisher_new(&bus->guard, &bus->guard.fds[ND_FD_WAKE]);
        return bus->finisher ? 0 : nd_detail_say(NDBUS_ENOMEM, "out of memory");
}

int nd_subscription_open(struct ndbus *bus,
                         const char *pattern,
                         const struct ndbus_subscribe_options *options,
                         bool is_internal,
                         uint64_t deadline_ns,
                         struct ndbus_subscription **ret)
{
        struct ndbus_subscription *sub = NULL;
        int r;

        r = nd_bus_wait_ready(bus, deadline_ns);
        if (!r && options->group && !bus->finisher)
                r = add_finisher(bus);
        r = r ? r : sub_new(bus, pattern, options, &sub);
        if (r || !sub)
                return r;
        sub->is_internal = is_internal;
        r = sub_ask(sub);
        r = r ? r : nd_request_wait(bus, &sub->request, deadline_ns);
        if (r) {
                if (r == NDBUS_ETIMEDOUT || r == NDBUS_EINTERRUPTED)
                        sub_tell_end(sub);
                sub_free(sub);
                return r;
        }
        *ret = sub;
        return 0;
}

void nd_subscription_close(struct ndbus_subscription *sub)
{
        sub_tell_end(sub);
        sub_free(sub);
}

ND_PUBLIC int ndbus_subscribe(struct ndbus *bus,
                              const char *pattern,
                              const struct ndbus_subscribe_options *options,
                              struct ndbus_subscription **ret_sub)
{
        static const struct ndbus_subscribe_options defaults = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_subscription *sub = NULL;
        struct nd_fault fault = {0};
        int r;

        options = options ? options : &defaults;
        r = nd_bus_enter(bus);
        if (r)
                return r;
        if (!pattern)
                return nd_bus_leave(bus, nd_detail_say(NDBUS_EINVAL, "pattern: is NULL"));
        if (nd_pattern_check(pattern, strnlen(pattern, ND_TOPIC_BYTES_MAX + 1), &fault))
                return nd_bus_leave(bus, nd_detail_fault(&fault));
        r = options_check(options);
        if (r)
                return nd_bus_leave(bus, r);

        r = nd_subscription_open(bus, pattern, options, false,
                                 nd_deadline_in_ms(options->timeout_ms), &sub);
        if (!r && ret_sub)
                *ret_sub = sub;
        return nd_bus_leave(bus, r);
}

ND_PUBLIC int ndbus_unsubscribe(struct ndbus_subscription *sub)
{
        struct ndbus *bus;
        int r;

        if (!sub)
                return nd_detail_say(NDBUS_EINVAL, "sub: is NULL");
        bus = sub->bus;
        r = nd_bus_enter(bus);
        if (r)
                return r;
        nd_subscription_close(sub);
        return nd_bus_leave(bus, 0);
}

ND_PUBLIC uint32_t ndbus_subscription_id(const struct ndbus_subscription *sub)
{
        return sub->id;
}

ND_PUBLIC int ndbus_subscription_stats(const struct ndbus_subscription *sub,
                                       struct ndbus_subscription_stats *ret_stats)
{
        if (!sub || !ret_stats)
                return nd_detail_say(NDBUS_EINVAL, "sub, ret_stats: are NULL");
        if (ret_stats->size < sizeof(*ret_stats))
                return nd_detail_fail(NDBUS_EINVAL, "ret_stats->size: is %zu, must be %zu",
                                      ret_stats->size, sizeof(*ret_stats));
        *ret_stats = sub->stats;
        return 0;
}
