/* SPDX-License-Identifier: MIT */

/*
 * Granting
 *
 * A subscription's window is what the daemon may send before the application has taken what came.
 * It is opened again as messages are taken, not as they arrive, so that what waits, waits in the
 * daemon. Half a window at a time: one CREDIT then serves many messages. What is less than half is
 * granted a moment later, when nothing more has come: a message larger than the rest of the window
 * may be waiting for exactly that. A moment, because in a flow of small messages the next one
 * comes sooner, and a packet for each would double the traffic.
 *
 * Subscriptions with window 0 (`latest`) are granted one message when the application asks and
 * nothing is there, so that what it gets is not old.
 */

#include "client/bus.h"
#include "protocol/byteorder.h"

#define GRANT_DELAY_NS (1 * ND_NS_PER_MS)

/* Grants wait while the socket takes nothing: they merge, the output would only grow. */
#define OUTPUT_BYTES_MAX ((size_t)256 << 10)

static void grant_write(struct ndbus_subscription *sub)
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
        nd_list_unlink(&sub->granting);
        if (nd_list_is_empty(&bus->subscriptions.granting))
                bus->subscriptions.grant_ns = ND_NEVER;
}

void nd_grant_taken(struct ndbus_subscription *sub, uint64_t body_bytes)
{
        struct ndbus *bus = sub->bus;

        if (!sub->is_active)
                return;
        ++sub->taken;
        sub->taken_bytes += body_bytes;
        if (sub->is_latest)
                return;
        if ((sub->taken * 2 >= sub->options.window ||
             sub->taken_bytes * 2 >= sub->options.window_bytes) &&
            nd_output_bytes(&bus->output) < OUTPUT_BYTES_MAX) {
                grant_write(sub);
                nd_connection_send(bus);
        } else if (nd_list_is_empty(&sub->granting)) {
                nd_list_push_tail(&bus->subscriptions.granting, &sub->granting);
                if (bus->subscriptions.grant_ns == ND_NEVER)
                        bus->subscriptions.grant_ns = nd_clock_coarse_ns() + GRANT_DELAY_NS;
        }
}

void nd_grant_write_all(struct ndbus *bus)
{
        if (nd_output_bytes(&bus->output) >= OUTPUT_BYTES_MAX) {
                bus->subscriptions.grant_ns = nd_clock_coarse_ns() + GRANT_DELAY_NS;
                return;
        }
        nd_list_for_each_safe (i, &bus->subscriptions.granting) {
                struct ndbus_subscription *sub =
                        nd_list_entry(i, struct ndbus_subscription, granting);

                grant_write(sub);
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
                        grant_write(sub);
        }
}
