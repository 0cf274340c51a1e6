/* SPDX-License-Identifier: MIT */

/*
 * Control packets
 *
 * What the daemon says, other than bodies. A packet that cannot be right ends the connection; one
 * that comes too late, an answer to a request that was given up or a word about a subscription
 * that has gone, is passed over.
 */

#include <string.h>
#include "client/bus.h"
#include "client/outgoing.h"
#include "client/supply.h"
#include "protocol/byteorder.h"

/* What STATS_REPLY packets may add up to. */
#define STATS_BYTES_MAX ((size_t)64 << 20)

static void copy_text(char *out, size_t n_out, struct nd_string text)
{
        size_t n = text.n < n_out - 1 ? text.n : n_out - 1;

        for (size_t i = 0; i < n; ++i)
                out[i] = text.at[i] >= ' ' && text.at[i] <= '~' ? text.at[i] : '?';
        out[n] = '\0';
}

/* The daemon's words as a fault; numbers outside the table become EPROTOCOL. */
static void fault_from_error(const struct nd_error_header *error, struct nd_fault *fault)
{
        *fault = (struct nd_fault){
                .code = error->code > 0 && error->code < 1000 ? -(int)error->code : NDBUS_EPROTOCOL,
                .has_numbers = error->has_numbers,
                .value = error->value,
                .limit = error->limit,
        };
        if (error->field.at)
                copy_text(fault->field, sizeof(fault->field), error->field);
        if (error->text.at)
                copy_text(fault->text, sizeof(fault->text), error->text);
}

/* What no call will say. */
static void notice(struct ndbus *bus,
                   const struct nd_fault *fault,
                   const char *packet,
                   const char *about,
                   uint64_t number)
{
        char text[sizeof(fault->field) + sizeof(fault->text) + 128];
        int n;

        if (!bus->options.notice)
                return;
        n = snprintf(text, sizeof(text), "%s", packet);
        if (about)
                n += snprintf(text + n, sizeof(text) - (size_t)n, " about %s %llu", about,
                              (unsigned long long)number);
        snprintf(text + n, sizeof(text) - (size_t)n, ": %s%s%s", fault->field,
                 fault->field[0] ? ": " : "", fault->text);
        bus->is_asking = true;
        bus->options.notice(bus->options.userdata, fault->code, text);
        bus->is_asking = false;
}

/* An answer to what was given up comes late, and is of no interest; one to what was never asked is. */
static void answer(struct ndbus *bus, uint8_t kind, const struct nd_packet *packet)
{
        struct nd_fault fault = {0};

        if (packet->prelude.sequence > bus->connection.n_requests) {
                nd_fault_set(&fault, NDBUS_EPROTOCOL, "", "was never asked; %llu requests were",
                             (unsigned long long)bus->connection.n_requests);
                notice(bus, &fault, nd_kind_name(packet->prelude.kind), nd_kind_name(kind),
                       packet->prelude.sequence);
        }
        nd_request_answer(bus, kind, packet->prelude.sequence);
}

/* About a message: the one that is being sent hears it, others are kept for the next flush. */
static void error_of_publish(struct ndbus *bus, uint64_t number, const struct nd_fault *fault)
{
        if (bus->outgoing && bus->outgoing->number == number && bus->outgoing->has_begun &&
            !bus->outgoing->is_done && bus->outgoing->leaves_at == 0 && !bus->outgoing->segment) {
                bus->refusal = *fault;
                return;
        }
        if (bus->calls.now && bus->calls.now->number == number) {
                bus->calls.now->refusal = *fault;
                return;
        }
        if (bus->reports.n++ == 0)
                bus->reports.first = *fault;
}

static int
dispatch_error(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *ret_fault)
{
        struct nd_error_header error;
        struct nd_fault fault;
        struct nd_request *request;
        int r;

        r = nd_error_header_unpack(packet->header, packet->prelude.header_bytes, &error, ret_fault);
        if (r)
                return r;
        fault_from_error(&error, &fault);
        if (bus->connection.state != ND_STATE_READY) {
                nd_connection_lose(bus, &fault);
                return 0;
        }
        request = error.of ? nd_request_find(bus, error.of, packet->prelude.sequence) : NULL;
        if (error.of == ND_KIND_PUBLISH && packet->prelude.sequence > 0 &&
            packet->prelude.sequence <= bus->credit.n_published) {
                error_of_publish(bus, packet->prelude.sequence, &fault);
        } else if (error.of == ND_KIND_RING &&
                   nd_outlet_hear_refusal(bus, packet->prelude.sequence)) {
                ; /* nobody has to know */
        } else if (request || error.of == ND_KIND_SEGMENT) {
                if (error.of == ND_KIND_SEGMENT)
                        nd_supply_hear_refusal(bus, packet->prelude.sequence);
                if (request) {
                        request->code = fault.code;
                        request->fault = fault;
                        nd_request_answer(bus, error.of, packet->prelude.sequence);
                }
        } else if (!error.closes) {
                notice(bus, &fault, "ERROR", error.of ? nd_kind_name(error.of) : NULL,
                       packet->prelude.sequence);
        }
        if (error.closes)
                nd_connection_lose(bus, &fault);
        return 0;
}

static int
dispatch_credit(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        const struct nd_prelude *p = &packet->prelude;
        uint64_t bytes;

        if (p->subscription != 0 || p->body_bytes != 16)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "CREDIT",
                                    "for subscription %u with %llu bytes", p->subscription,
                                    (unsigned long long)p->body_bytes);
        bytes = nd_load_le64(packet->body + 8);
        if (!nd_credit_granted(&bus->credit, bytes, p->place))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "CREDIT",
                                    "of %llu bytes makes more than any window",
                                    (unsigned long long)bytes);
        return 0;
}

static int dispatch_pong(struct ndbus *bus, const struct nd_packet *packet)
{
        nd_credit_routed(&bus->credit, packet->prelude.place);
        answer(bus, ND_KIND_PING, packet);
        return 0;
}

static int dispatch_gap(struct ndbus *bus, const struct nd_packet *packet)
{
        struct ndbus_subscription *sub = nd_subscription_find(bus, packet->prelude.subscription);

        if (sub && !sub->is_ended)
                nd_subscription_add_dropped(sub, packet->prelude.place);
        return 0;
}

static int
dispatch_subscribed(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        struct ndbus_subscription *sub = nd_subscription_find(bus, packet->prelude.subscription);
        struct nd_subscribed subscribed;
        int r;

        r = nd_subscribed_unpack(packet->header, packet->prelude.header_bytes, &subscribed, fault);
        if (r)
                return r;
        if (sub && !sub->request.is_done && sub->request.sequence == packet->prelude.sequence)
                nd_subscription_confirm(bus, sub);
        answer(bus, ND_KIND_SUBSCRIBE, packet);
        return 0;
}

static int
dispatch_unsubscribed(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        struct ndbus_subscription *sub = nd_subscription_find(bus, packet->prelude.subscription);
        struct nd_unsubscribed ended;
        struct nd_fault why;
        int r;

        r = nd_unsubscribed_unpack(packet->header, packet->prelude.header_bytes, &ended, fault);
        if (r)
                return r;
        if (packet->prelude.sequence)
                answer(bus, ND_KIND_UNSUBSCRIBE, packet);
        if (!sub || sub->is_ended)
                return 0;
        fault_from_error(&(struct nd_error_header){.code = ended.code,
                                                   .text = ended.text,
                                                   .has_numbers = ended.has_numbers,
                                                   .value = ended.value,
                                                   .limit = ended.limit},
                         &why);
        nd_subscription_ended(sub, ended.code ? why.code : NDBUS_EENDED, &why,
                              packet->prelude.place);
        return 0;
}

static int dispatch_topic(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        struct nd_topic_header header;
        int r;

        r = nd_topic_header_unpack(packet->header, packet->prelude.header_bytes, true, &header,
                                   fault);
        if (r)
                return r;
        if (nd_watch_heard(bus, &header))
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        if (packet->prelude.sequence)
                answer(bus, ND_KIND_TOPIC, packet);
        return 0;
}

static int dispatch_stats(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        struct nd_request *request = nd_request_find(bus, ND_KIND_STATS, packet->prelude.sequence);
        size_t n = (size_t)packet->prelude.body_bytes;
        uint8_t *data;

        if (n == 0)
                answer(bus, ND_KIND_STATS, packet);
        if (n == 0 || !request)
                return 0;
        if (n > STATS_BYTES_MAX - request->n_data)
                return nd_fault_set_limit(fault, NDBUS_EPROTOCOL, "STATS_REPLY",
                                          request->n_data + n, STATS_BYTES_MAX, "bytes");
        data = realloc(request->data, request->n_data + n);
        if (!data)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        memcpy(data + request->n_data, packet->body, n);
        request->data = data;
        request->n_data += n;
        return 0;
}

static int
dispatch_goodbye(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        struct nd_fault why = {.code = NDBUS_ESHUTDOWN};
        struct nd_goodbye goodbye;
        int r;

        r = nd_goodbye_unpack(packet->header, packet->prelude.header_bytes, &goodbye, fault);
        if (r)
                return r;
        nd_credit_routed(&bus->credit, packet->prelude.place);
        if (!bus->connection.is_stopping && !bus->connection.is_closing) {
                if (goodbye.text.at)
                        copy_text(why.text, sizeof(why.text), goodbye.text);
                notice(bus, &why, "GOODBYE", NULL, 0);
        }
        bus->connection.is_stopping = true;
        return 0;
}

static int
dispatch_segment_gone(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        switch (p->sequence) {
        case 0:
                return nd_hold_segment_gone(bus, p, fault);
        case 1:
                return nd_supply_hear_retired(bus, p, fault);
        default:
                return nd_fault_set_numbers(fault, NDBUS_EPROTOCOL, "sequence", p->sequence, 1,
                                            "is %llu, must be 0 or 1",
                                            (unsigned long long)p->sequence);
        }
}

int nd_dispatch(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        uint8_t kind = packet->prelude.kind;

        if (kind == ND_KIND_ERROR)
                return dispatch_error(bus, packet, fault);
        if (kind == ND_KIND_AUTH && bus->connection.state == ND_STATE_WELCOME &&
            bus->connection.token.name[0] && !bus->connection.has_proved) {
                nd_connection_take_auth(bus, packet);
                return 0;
        }
        if ((kind == ND_KIND_WELCOME) != (bus->connection.state == ND_STATE_WELCOME))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "kind", "%s out of turn",
                                    nd_kind_name(kind));
        switch (kind) {
        case ND_KIND_WELCOME:
                nd_connection_take_welcome(bus, packet);
                return 0;
        case ND_KIND_CREDIT:
                return dispatch_credit(bus, packet, fault);
        case ND_KIND_PONG:
                return dispatch_pong(bus, packet);
        case ND_KIND_GAP:
                return dispatch_gap(bus, packet);
        case ND_KIND_SUBSCRIBED:
                return dispatch_subscribed(bus, packet, fault);
        case ND_KIND_UNSUBSCRIBED:
                return dispatch_unsubscribed(bus, packet, fault);
        case ND_KIND_TOPIC:
                return dispatch_topic(bus, packet, fault);
        case ND_KIND_STATS_REPLY:
                return dispatch_stats(bus, packet, fault);
        case ND_KIND_SEGMENT:
                if (packet->prelude.flags & ND_FLAG_FD)
                        return nd_hold_segment(bus, &packet->prelude, fault);
                return nd_supply_hear_answer(bus, &packet->prelude, fault);
        case ND_KIND_SEGMENT_GONE:
                return dispatch_segment_gone(bus, &packet->prelude, fault);
        case ND_KIND_RING:
                return nd_outlet_hear_answer(bus, &packet->prelude, fault);
        case ND_KIND_RELEASE:
                return nd_supply_hear_release(bus, packet, fault);
        case ND_KIND_GOODBYE:
                return dispatch_goodbye(bus, packet, fault);
        default:
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "kind", "%s is not for a client",
                                    nd_kind_name(kind));
        }
}
