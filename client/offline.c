/* SPDX-License-Identifier: MIT */

/*
 * Messages that are kept while there is no connection
 *
 * Only for those who asked for it, within the bounds that they gave. A kept message is a copy. When
 * a connection is there they are sent in their order, by whatever wait comes along; messages
 * published meanwhile queue up behind them, so that the order stays. One that was half sent when
 * the connection was lost never existed for the daemon and is sent again from its start.
 *
 * The daemon's limits are known only then. What breaks one is dropped and told by the next flush,
 * as if the daemon had refused it.
 */

#include "client/offline.h"
#include <string.h>
#include "client/detail.h"

struct nd_offline_entry {
        struct nd_list node;
        struct nd_outgoing out;
        struct nd_body body;
        struct nd_body_part segment;
        int32_t ndim_max;
        uint64_t bytes; /* of this struct and what follows it */
        uint8_t data[]; /* header, meta, body */
};

static void entry_drop(struct ndbus *bus, struct nd_offline_entry *entry)
{
        if (bus->outgoing == &entry->out)
                bus->outgoing = NULL;
        --bus->offline.n;
        bus->offline.bytes -= entry->bytes;
        nd_list_unlink(&entry->node);
        free(entry);
}

void nd_offline_deinit(struct ndbus *bus)
{
        nd_list_for_each_safe (i, &bus->offline.entries)
                entry_drop(bus, nd_list_entry(i, struct nd_offline_entry, node));
}

void nd_offline_lost(struct ndbus *bus)
{
        bus->offline.needs_socket = false;
        nd_list_for_each (i, &bus->offline.entries) {
                struct nd_offline_entry *entry = nd_list_entry(i, struct nd_offline_entry, node);

                if (bus->outgoing == &entry->out)
                        bus->outgoing = NULL;
                entry->out.has_begun = entry->out.is_in_packet = false;
        }
}

/* Tells of an entry that cannot be sent, and drops it. */
static void
entry_refuse(struct ndbus *bus, struct nd_offline_entry *entry, const struct nd_fault *fault)
{
        if (bus->reports.n++ == 0)
                bus->reports.first = *fault;
        entry_drop(bus, entry);
}

static bool entry_begin(struct ndbus *bus, struct nd_offline_entry *entry)
{
        const struct nd_publish_sizes sizes = {
                .body_bytes = entry->body.bytes,
                .n_header = entry->out.n_header,
                .n_meta = entry->out.n_meta,
                .ndim_max = entry->ndim_max,
        };
        struct nd_fault fault = {0};
        int r = nd_publish_check_limits(bus, &sizes);

        if (r) {
                nd_fault_set(&fault, r, "", "%s", ndbus_detail());
                entry_refuse(bus, entry, &fault);
                return false;
        }
        if (!nd_outgoing_may_begin(bus, &entry->out))
                return false;
        nd_outgoing_begin(bus, &entry->out);
        bus->outgoing = &entry->out;
        return true;
}

void nd_offline_step(struct ndbus *bus)
{
        uint64_t n_before;
        struct nd_offline_entry *entry;
        enum nd_outgoing_result result;
        bool has_moved = false;

        bus->offline.needs_socket = false;
        while (bus->offline.n > 0 && nd_bus_is_ready(bus)) {
                entry = nd_list_entry(bus->offline.entries.next, struct nd_offline_entry, node);
                n_before = bus->offline.n;
                if (!entry->out.has_begun && !entry_begin(bus, entry)) {
                        if (bus->offline.n == n_before)
                                return;
                        continue;
                }
                if (!bus->refusal.code) {
                        result = nd_outgoing_step(bus, &entry->out, &has_moved);
                        if (result != ND_OUTGOING_DONE) {
                                bus->offline.needs_socket = result == ND_OUTGOING_NEEDS_SOCKET;
                                return;
                        }
                }
                if (bus->refusal.code) { /* before the step or during it */
                        nd_outgoing_give_up(bus, &entry->out);
                        entry_refuse(bus, entry, &bus->refusal);
                } else {
                        entry_drop(bus, entry);
                }
        }
}

static bool has_room(const struct ndbus *bus, uint64_t bytes)
{
        return bus->offline.n < bus->options.offline_messages &&
               bytes <= bus->options.offline_bytes - bus->offline.bytes;
}

static int
entry_new(struct ndbus *bus, const struct nd_outgoing *out, uint64_t bytes, int32_t ndim_max)
{
        struct nd_offline_entry *entry = malloc(bytes);
        uint8_t *body;

        if (!entry)
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        *entry = (struct nd_offline_entry){.out = *out, .bytes = bytes, .ndim_max = ndim_max};
        memcpy(entry->data, out->header, out->n_header);
        if (out->n_meta)
                memcpy(entry->data + out->n_header, out->meta, out->n_meta);
        body = entry->data + out->n_header + out->n_meta;
        nd_body_copy(out->body, 0, out->body->bytes, body);
        nd_body_init_flat(&entry->body, &bus->body_store, &entry->segment, body, out->body->bytes);
        entry->out.header = entry->data;
        entry->out.meta = entry->data + out->n_header;
        entry->out.body = &entry->body;
        nd_list_push_tail(&bus->offline.entries, &entry->node);
        ++bus->offline.n;
        bus->offline.bytes += bytes;
        return 0;
}

int nd_offline_publish(struct ndbus *bus,
                       const struct nd_outgoing *out,
                       int32_t ndim_max,
                       int timeout_ms)
{
        uint64_t bytes = sizeof(struct nd_offline_entry) + out->n_header + out->n_meta;
        uint64_t deadline_ns;
        int r;

        if (nd_add_overflow(bytes, out->body->bytes, &bytes) || bytes > bus->options.offline_bytes)
                return nd_detail_fail(NDBUS_ETOO_BIG,
                                      "body: has %llu bytes, which options.offline_bytes (%llu) do "
                                      "not hold",
                                      (unsigned long long)out->body->bytes,
                                      (unsigned long long)bus->options.offline_bytes);
        if (!has_room(bus, bytes)) {
                deadline_ns = nd_deadline_in_ms(timeout_ms);
                do
                        r = nd_bus_turn(bus, deadline_ns, false);
                while (r > 0 && !has_room(bus, bytes));
                if (r < 0)
                        return r;
                if (!has_room(bus, bytes))
                        return nd_detail_fail(NDBUS_EWOULDBLOCK,
                                              "not connected, and %zu messages with %llu bytes are "
                                              "kept already",
                                              bus->offline.n,
                                              (unsigned long long)bus->offline.bytes);
        }
        r = entry_new(bus, out, bytes, ndim_max);
        if (!r && nd_bus_is_ready(bus))
                nd_offline_step(bus);
        return r;
}
