/* SPDX-License-Identifier: MIT */

/*
 * Granting
 *
 * A subscription's window is what the daemon may send before the application has taken what came.
 * It is opened again as messages are taken, not as they arrive, so that what waits, waits in the
 * daemon. Half a window at a time: one CREDIT then serves many messages. What is less than half is
 * granted a moment later, when nothing more has come: a message larger than the rest of the window
 * may be waiting for exactly that. A moment, because in a flow of small messages the next one
 * comes sooner: a packet for each would double the traffic, and meet the next one in the daemon.
 *
 * A CREDIT that is due is sent before the message is handed out, also when that lies in a block and is none of
 * this process's memory: the application may keep it for an hour, and until the daemon hears it nothing more can
 * come, queues fill, and their policies block or drop.
 *
 * Of a group it is not taking that counts but freeing, and messages are named by their numbers: see
 * finish.c. Who frees slowly is heard at the next call; who frees fast, some 200 times a second.
 *
 * Subscriptions with window 0 (`latest`) are granted one message when the application asks and
 * nothing is there, so that what it gets is not old.
 */

#include "client/bus.h"
#include "protocol/byteorder.h"

#define GRANT_DELAY_NS (5 * ND_NS_PER_MS)

/* Grants wait while the socket takes nothing: they merge, the output would only grow. */
#define OUTPUT_BYTES_MAX ((size_t)256 << 10)

/* Nothing of it is left to grant. */
static void grant_settle(struct ndbus_subscription *sub)
{
        struct nd_subscriptions *subs = &sub->bus->subscriptions;

        nd_list_unlink(&sub->granting);
        if (nd_list_is_empty(&subs->granting))
                subs->grant_ns = ND_NEVER;
}

#define FINISHED_MAX 512u /* in one CREDIT */

static void grant_drop_finished(struct ndbus_subscription *sub, size_t n)
{
        for (; n > 0; --n)
                nd_finish_free(nd_list_entry(sub->finished.next, struct nd_finish, node));
}

/* False: there was no memory for all of it; the rest is tried again. */
static bool grant_write_finished(struct ndbus_subscription *sub)
{
        uint8_t body[8 * FINISHED_MAX];

        while (!nd_list_is_empty(&sub->finished)) {
                uint64_t n = 0, n_bytes = 0;

                nd_list_for_each (i, &sub->finished) {
                        const struct nd_finish *finish = nd_list_entry(i, struct nd_finish, node);

                        if (n == FINISHED_MAX)
                                break;
                        nd_store_le64(body + 8 * n++, finish->number);
                        n_bytes += finish->body_bytes;
                }
                if (nd_output_packet(
                            &sub->bus->output,
                            &(struct nd_prelude){.kind = ND_KIND_CREDIT, .subscription = sub->id},
                            NULL, 0, body, 8 * n))
                        return false;
                grant_drop_finished(sub, n);
                sub->window_left += (int64_t)n;
                sub->out_messages -= n;
                sub->out_bytes -= n_bytes;
                sub->taken -= n;
                sub->taken_bytes -= n_bytes;
        }
        sub->finished_ns = nd_clock_coarse_ns();
        return true;
}

static void grant_write_taken(struct ndbus_subscription *sub)
{
        struct ndbus *bus = sub->bus;
        uint8_t body[16];

        nd_store_le64(body, sub->is_latest ? 1 : sub->taken);
        nd_store_le64(body + 8, sub->is_latest ? 0 : sub->taken_bytes);
        if (nd_output_packet(&bus->output,
                             &(struct nd_prelude){.kind = ND_KIND_CREDIT, .subscription = sub->id},
                             NULL, 0, body, sizeof(body)))
                return; /* no memory: it is tried again with the next one */
        sub->window_left = sub->is_latest ? 1 : sub->window_left + (int64_t)sub->taken;
        sub->out_messages -= sub->taken;
        sub->out_bytes -= sub->taken_bytes;
        sub->taken = 0;
        sub->taken_bytes = 0;
        grant_settle(sub);
}

void nd_grant_write(struct ndbus_subscription *sub)
{
        if (!sub->group)
                grant_write_taken(sub);
        else if (grant_write_finished(sub))
                grant_settle(sub);
}

static void grant_later(struct ndbus_subscription *sub)
{
        struct nd_subscriptions *subs = &sub->bus->subscriptions;

        if (!nd_list_is_empty(&sub->granting))
                return;
        nd_list_push_tail(&subs->granting, &sub->granting);
        if (subs->grant_ns == ND_NEVER)
                subs->grant_ns = nd_clock_coarse_ns() + GRANT_DELAY_NS;
}

static bool grant_is_due(const struct ndbus_subscription *sub)
{
        return (sub->taken * 2 >= sub->options.window ||
                sub->taken_bytes * 2 >= sub->options.window_bytes) &&
               nd_output_bytes(&sub->bus->output) < OUTPUT_BYTES_MAX;
}

void nd_grant_taken(struct ndbus_subscription *sub, uint64_t body_bytes)
{
        struct ndbus *bus = sub->bus;

        if (!sub->is_active || sub->group)
                return;
        ++sub->taken;
        sub->taken_bytes += body_bytes;
        if (sub->is_latest)
                return;
        if (grant_is_due(sub)) {
                nd_grant_write(sub);
                nd_hold_tell(bus); /* what was freed before goes with it */
                nd_connection_send(bus);
        } else {
                grant_later(sub);
        }
}

/* One was freed. Takes @finish. */
static void grant_finished(struct ndbus_subscription *sub, struct nd_finish *finish)
{
        ++sub->taken;
        sub->taken_bytes += finish->body_bytes;
        nd_list_unlink(&finish->node);
        nd_list_push_tail(&sub->finished, &finish->node);
        grant_later(sub);
        if (grant_is_due(sub) || nd_clock_coarse_ns() >= sub->finished_ns + GRANT_DELAY_NS)
                sub->bus->subscriptions.grant_ns = 0;
}

void nd_grant_collect(struct ndbus *bus)
{
        struct nd_list list = ND_LIST_INIT(list);

        if (!bus->finisher)
                return;
        nd_finisher_take(bus->finisher, &list);
        nd_list_for_each_safe (i, &list) {
                struct nd_finish *finish = nd_list_entry(i, struct nd_finish, node);
                struct ndbus_subscription *sub = nd_subscription_find(bus, finish->subscription);

                if (sub && sub->is_active && finish->generation == bus->connection.generation)
                        grant_finished(sub, finish);
                else
                        nd_finish_free(finish);
        }
        if (bus->subscriptions.grant_ns == 0 && bus->connection.state == ND_STATE_READY) {
                nd_grant_write_all(bus);
                nd_connection_send(bus);
        }
}

void nd_grant_refused(struct ndbus_subscription *sub, uint64_t number, uint64_t body_bytes)
{
        uint8_t body[8];

        nd_store_le64(body, number);
        if (nd_output_packet(&sub->bus->output,
                             &(struct nd_prelude){.kind = ND_KIND_CREDIT, .subscription = sub->id},
                             NULL, 0, body, sizeof(body)))
                return; /* its place in the window is lost until the connection ends */
        ++sub->window_left;
        --sub->out_messages;
        sub->out_bytes -= body_bytes;
}

void nd_grant_forget(struct ndbus_subscription *sub)
{
        while (!nd_list_is_empty(&sub->finished))
                grant_drop_finished(sub, 1);
        sub->taken = sub->taken_bytes = 0;
        sub->out_messages = sub->out_bytes = 0;
        grant_settle(sub);
}

void nd_grant_write_all(struct ndbus *bus)
{
        if (nd_output_bytes(&bus->output) >= OUTPUT_BYTES_MAX) {
                bus->subscriptions.grant_ns = nd_clock_coarse_ns() + GRANT_DELAY_NS;
                return;
        }
        nd_list_for_each_safe (i, &bus->subscriptions.granting) {
                nd_grant_write(nd_list_entry(i, struct ndbus_subscription, granting));
        }
}

static bool sub_is_to_ask(const struct ndbus_subscription *sub)
{
        return sub->is_latest && sub->is_active && sub->window_left <= 0 &&
               nd_list_is_empty(&sub->arrivals) && sub->n_receiving == 0;
}

bool nd_grant_is_to_ask(const struct ndbus *bus)
{
        if (bus->subscriptions.n_latest == 0 || bus->connection.state != ND_STATE_READY)
                return false;
        nd_list_for_each (i, &bus->subscriptions.in_order)
                if (sub_is_to_ask(nd_list_entry(i, struct ndbus_subscription, in_order)))
                        return true;
        return false;
}

void nd_grant_ask(struct ndbus *bus, struct ndbus_subscription *only)
{
        if (bus->subscriptions.n_latest == 0 || bus->connection.state != ND_STATE_READY)
                return;
        nd_list_for_each (i, &bus->subscriptions.in_order) {
                struct ndbus_subscription *sub =
                        nd_list_entry(i, struct ndbus_subscription, in_order);

                if ((!only || only == sub) && sub_is_to_ask(sub))
                        nd_grant_write(sub);
        }
}
