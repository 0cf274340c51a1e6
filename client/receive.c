/* SPDX-License-Identifier: MIT */

/*
 * Receiving
 *
 * What has come waits in one line for the bus and in one for each subscription. A call takes the
 * first of its line; only when there is none it turns to the socket. After a reconnect nothing is
 * handed out until every subscription is there again, so that a program that gets a message knows
 * that it is fully subscribed.
 *
 * The end of a subscription and the loss of the connection stand behind the messages that came before
 * them, and are said once.
 */

#include <stdio.h>
#include <string.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"
#include "client/supply.h"

static int say_end(struct ndbus_subscription *sub)
{
        const struct nd_fault *fault = &sub->end_fault;
        char value[24], limit[24];

        snprintf(value, sizeof(value), "%llu", (unsigned long long)fault->value);
        snprintf(limit, sizeof(limit), "%llu", (unsigned long long)fault->limit);
        if (fault->has_numbers && !(strstr(fault->text, value) && strstr(fault->text, limit)))
                return nd_detail_fail(sub->end_code, "subscription %u (%s): %s: %s, limit %s",
                                      sub->id, sub->pattern, fault->text, value, limit);
        return nd_detail_fail(sub->end_code, "subscription %u (%s): %s", sub->id, sub->pattern,
                              fault->text[0] ? fault->text : ndbus_strerror(sub->end_code));
}

/* Takes the arrival out of its lines and makes a result of it. */
static int take(struct ndbus *bus, struct nd_arrival *arrival, struct ndbus_message **ret_message)
{
        struct ndbus_subscription *sub;
        struct ndbus_message *m;
        const struct nd_header *header;
        int r;

        nd_list_unlink(&arrival->in_bus);
        nd_list_unlink(&arrival->in_subscription);
        if (arrival->is_end)
                return say_end(nd_container_of(arrival, struct ndbus_subscription, end));

        m = nd_container_of(arrival, struct ndbus_message, arrival);
        header = m->shared->header;
        sub = nd_subscription_find(bus, m->subscription);
        --sub->stats.waiting;
        ++sub->stats.received;
        sub->stats.received_bytes += m->body_bytes;
        nd_grant_taken(sub, m->body_bytes);
        if (header->unsupported) {
                r = nd_detail_fail(NDBUS_EUNSUPPORTED,
                                   "message %llu on %s: needs \"%s\", which this library does not "
                                   "know",
                                   (unsigned long long)m->sequence, header->topic,
                                   header->unsupported);
                ndbus_message_free(m);
                return r;
        }
        *ret_message = m;
        return 0;
}

static struct nd_arrival *first_arrival(struct ndbus *bus, struct ndbus_subscription *sub)
{
        struct nd_list *first;

        if (bus->subscriptions.n_unconfirmed > 0 && bus->connection.state == ND_STATE_READY)
                return NULL;
        if (sub) {
                first = nd_list_first(&sub->arrivals);
                return first ? nd_list_entry(first, struct nd_arrival, in_subscription) : NULL;
        }
        first = nd_list_first(&bus->arrivals);
        return first ? nd_list_entry(first, struct nd_arrival, in_bus) : NULL;
}

/* The loss of the connection, if it has not been said yet. */
static int take_loss(struct ndbus *bus)
{
        int code = bus->connection.lost;

        bus->connection.lost = 0;
        return code ? nd_detail_fault_as(code, &bus->connection.why) : 0;
}

bool nd_receive_is_ready(const struct ndbus *bus)
{
        if (bus->connection.lost)
                return true;
        return !nd_list_is_empty(&bus->arrivals) &&
               (bus->subscriptions.n_unconfirmed == 0 || bus->connection.state != ND_STATE_READY);
}

static int receive(struct ndbus *bus,
                   struct ndbus_subscription *sub,
                   struct ndbus_message **ret_message,
                   int timeout_ms)
{
        struct nd_arrival *arrival;
        uint64_t deadline_ns;
        int r;

        if (nd_output_bytes(&bus->output) > 0 && bus->connection.state == ND_STATE_READY)
                nd_connection_send(bus);
        arrival = first_arrival(bus, sub); /* a write that fails reads what came before */
        if (arrival)
                return take(bus, arrival, ret_message);

        deadline_ns = nd_deadline_in_ms(timeout_ms);
        nd_pool_trim(bus->pool, nd_clock_coarse_ns());
        nd_supply_trim(bus);
        for (;;) {
                if (bus->connection.lost && bus->connection.state != ND_STATE_READY)
                        return take_loss(bus);
                if (sub && sub->is_ended)
                        return nd_detail_fail(NDBUS_EENDED, "subscription %u (%s) has ended",
                                              sub->id, sub->pattern);
                nd_grant_ask(bus, sub);
                r = nd_bus_turn(bus, deadline_ns, false);
                arrival = first_arrival(bus, sub);
                if (arrival)
                        return take(bus, arrival, ret_message);
                if (bus->connection.lost)
                        return take_loss(bus);
                if (r < 0)
                        return r;
                if (r == 0)
                        return nd_detail_say(NDBUS_ETIMEDOUT, "no message in time");
        }
}

ND_PUBLIC int ndbus_receive(struct ndbus *bus, struct ndbus_message **ret_message, int timeout_ms)
{
        int r = nd_bus_enter(bus);

        if (r)
                return r;
        if (!ret_message)
                return nd_bus_leave(bus, nd_detail_say(NDBUS_EINVAL, "ret_message: is NULL"));
        return nd_bus_leave(bus, receive(bus, NULL, ret_message, timeout_ms));
}

ND_PUBLIC int ndbus_receive_from(struct ndbus_subscription *sub,
                                 struct ndbus_message **ret_message,
                                 int timeout_ms)
{
        int r;

        if (!sub || !ret_message)
                return nd_detail_say(NDBUS_EINVAL, "sub, ret_message: are NULL");
        r = nd_bus_enter(sub->bus);
        if (r)
                return r;
        return nd_bus_leave(sub->bus, receive(sub->bus, sub, ret_message, timeout_ms));
}
