/* SPDX-License-Identifier: MIT */

/*
 * The bus: its beginning and its end
 *
 * Opening drives the connection until it is ready. Closing sends what is left, asks the daemon how
 * far it is, and says goodbye; whatever comes of it, everything is freed afterwards. A forked child
 * only frees: its descriptors are closed already, and its parent goes on.
 */

#include "client/bus.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "client/detail.h"
#include "client/export.h"
#include "client/supply.h"

#define FLUSH_ASK_MS_MAX 50u

ND_PUBLIC unsigned int ndbus_version(void)
{
        return ND_LIBRARY_VERSION;
}

static int fail_asking(void)
{
        return nd_detail_say(NDBUS_EINVAL,
                             "bus: is in a call, which asks whether to go on, or tells a notice");
}

int nd_bus_enter(struct ndbus *bus)
{
        if (!bus)
                return nd_detail_say(NDBUS_EINVAL, "bus: is NULL");
        if (bus->guard.is_child)
                return nd_detail_say(NDBUS_EFORKED,
                                     "the bus belongs to the process that opened it: open another");
        if (bus->is_asking)
                return fail_asking();
        if (bus->n_calls++ == 0)
                nd_hold_enter(bus);
        return 0;
}

int nd_bus_leave(struct ndbus *bus, int r)
{
        nd_grant_collect(bus);
        nd_hold_collect(bus);
        if (bus->guard.fds[ND_FD_EPOLL] >= 0)
                nd_fd_update(bus);
        if (--bus->n_calls == 0)
                nd_hold_leave(bus, false);
        return r;
}

static int check_ms(const char *field, int ms, int min)
{
        if (ms >= min)
                return 0;
        return nd_detail_fail(NDBUS_EINVAL, "options.%s: is %d, must be at least %d", field, ms,
                              min);
}

static int options_check(const struct ndbus_options *o)
{
        int r;

        if (o->size < sizeof(*o))
                return nd_detail_fail(NDBUS_EINVAL, "options.size: is %zu, must be %zu", o->size,
                                      sizeof(*o));
        r = check_ms("connect_timeout_ms", o->connect_timeout_ms, 1);
        r = r ? r : check_ms("stall_ms", o->stall_ms, 1);
        r = r ? r : check_ms("ping_ms", o->ping_ms, 0);
        r = r ? r : check_ms("ping_timeout_ms", o->ping_timeout_ms, 1);
        if (r)
                return r;
        if (o->client && strlen(o->client) > ND_NAME_BYTES_MAX)
                return nd_detail_fail(NDBUS_EINVAL,
                                      "options.client: has %zu bytes, the limit is %u",
                                      strlen(o->client), ND_NAME_BYTES_MAX);
        return 0;
}

void nd_bus_free(struct ndbus *bus)
{
        if (!bus->guard.is_child && nd_bus_socket(bus) >= 0)
                nd_connection_lose_text(bus, NDBUS_ENOTCONN, "closed");
        nd_fd_deinit(bus);
        nd_subscriptions_deinit(bus);
        nd_watches_deinit(bus);
        nd_offline_deinit(bus);
        nd_input_deinit(bus);
        nd_output_deinit(&bus->output);
        nd_encoder_deinit(&bus->encoder);
        nd_body_store_deinit(&bus->body_store);
        nd_finisher_close(bus->finisher);
        if (bus->guard.fds[ND_FD_WAKE] >= 0)
                close(bus->guard.fds[ND_FD_WAKE]);
        nd_supply_close(bus->supply);
        nd_pool_close(bus->pool);
        nd_fork_guard_deinit(&bus->guard);
        free(bus);
}

int nd_bus_new(const struct ndbus_options *options, struct ndbus **ret)
{
        struct ndbus *bus = calloc(1, sizeof(*bus));
        int r;

        if (!bus)
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        bus->options = *options;
        bus->n_calls = 1; /* opening it */
        nd_list_init(&bus->arrivals);
        nd_list_init(&bus->requests);
        nd_list_init(&bus->offline.entries);
        nd_list_init(&bus->input.streams);
        nd_list_init(&bus->subscriptions.granting);
        nd_list_init(&bus->subscriptions.in_order);
        bus->subscriptions.grant_ns = ND_NEVER;
        bus->timer_ns = ND_NEVER;
        snprintf(bus->client_name, sizeof(bus->client_name), "%s",
                 options->client ? options->client : program_invocation_short_name);
        r = nd_fork_guard_init(&bus->guard);
        if (r) {
                nd_bus_free(bus);
                return nd_detail_errno("pthread_atfork", r);
        }
        bus->pool = nd_pool_new();
        bus->supply = nd_supply_new(bus);
        if (!bus->pool || !bus->supply || nd_input_init(&bus->input)) {
                nd_bus_free(bus);
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        }
        *ret = bus;
        return 0;
}

/* Drives the first connection: 0, or why there is none. */
static int bus_connect(struct ndbus *bus)
{
        const struct nd_connection *c = &bus->connection;
        uint64_t deadline_ns = nd_deadline_in_ms(bus->options.connect_timeout_ms);
        int r = 1;

        while (c->state != ND_STATE_READY && c->n_failures == 0 && !c->lost && r > 0)
                r = nd_bus_turn(bus, deadline_ns, false);
        if (c->state == ND_STATE_READY)
                return 0;
        if (r < 0)
                return r;
        if (c->n_failures > 0 || c->lost)
                return nd_detail_fault(&c->why);
        return nd_detail_fail(NDBUS_ETIMEDOUT, "%s: no connection within %d ms", c->url_text,
                              bus->options.connect_timeout_ms);
}

ND_PUBLIC int
ndbus_open(struct ndbus **ret_bus, const char *url, const struct ndbus_options *options)
{
        static const struct ndbus_options defaults = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;
        int r;

        if (!ret_bus)
                return nd_detail_say(NDBUS_EINVAL, "ret_bus: is NULL");
        options = options ? options : &defaults;
        r = options_check(options);
        if (r)
                return r;
        r = nd_bus_new(options, &bus);
        if (r)
                return r;
        r = nd_connection_init(bus, url);
        if (r) {
                nd_bus_free(bus);
                return r;
        }
        r = bus_connect(bus);
        if (r && (bus->options.offline_messages == 0 || r == NDBUS_EINTERRUPTED)) {
                nd_bus_free(bus);
                return r;
        }
        *ret_bus = bus;
        return nd_bus_leave(bus, 0);
}

ND_PUBLIC uint64_t ndbus_source(const struct ndbus *bus)
{
        return bus && !bus->guard.is_child ? bus->connection.source : 0;
}

ND_PUBLIC uint64_t ndbus_message_max(const struct ndbus *bus)
{
        return bus && !bus->guard.is_child ? bus->connection.limits.message_bytes_max : 0;
}

/* What the daemon, or the loss of a connection, has to say about messages; forgets it. */
static int take_reports(struct ndbus *bus)
{
        struct nd_reports *reports = &bus->reports;
        uint64_t n = reports->n, n_lost = bus->n_lost_unflushed;
        const struct nd_fault *first = &reports->first, *why = &bus->connection.why;

        reports->n = 0;
        bus->n_lost_unflushed = 0;
        if (n > 0)
                return nd_detail_fail(first->code, "%s%s%s (errors: %llu)", first->field,
                                      first->field[0] ? ": " : "", first->text,
                                      (unsigned long long)n);
        if (n_lost > 0)
                return nd_detail_fail(NDBUS_ENOTCONN,
                                      "%llu messages were not confirmed before the connection was "
                                      "lost: %s%s%s",
                                      (unsigned long long)n_lost, why->field,
                                      why->field[0] ? ": " : "", why->text);
        return 0;
}

/* Waits until what was kept offline is on its way. */
static int flush_offline(struct ndbus *bus, uint64_t deadline_ns)
{
        int r;

        while (bus->offline.n > 0) {
                r = nd_bus_turn(bus, deadline_ns, false);
                if (r < 0)
                        return r;
                if (r == 0 && !nd_bus_is_ready(bus))
                        return nd_connection_fail_down(bus);
                if (r == 0)
                        return nd_detail_fail(NDBUS_ETIMEDOUT, "%zu messages are not sent yet",
                                              bus->offline.n);
        }
        return 0;
}

static int flush(struct ndbus *bus, uint64_t deadline_ns)
{
        const struct nd_credit *credit = &bus->credit;
        uint64_t target, generation, ask_ms = 1;
        struct nd_request request;
        int r;

        r = flush_offline(bus, deadline_ns);
        if (r || bus->connection.state != ND_STATE_READY)
                return r;
        target = credit->n_complete;
        generation = bus->connection.generation;
        for (;;) {
                r = nd_request_start(bus, &request, ND_KIND_PING, 0, NULL, 0);
                r = r ? r : nd_request_wait(bus, &request, deadline_ns);
                if (bus->connection.generation != generation ||
                    bus->connection.state != ND_STATE_READY)
                        return bus->n_lost_unflushed > 0 || target == 0 ? 0 : r;
                if (r || credit->n_routed >= target)
                        return r;
                /* it is waiting for memory, or for a full queue */
                while (credit->n_routed < target && r == 0) {
                        uint64_t ask_ns = nd_clock_ns() + ask_ms * ND_NS_PER_MS;

                        r = nd_bus_turn(bus, nd_min_u64(ask_ns, deadline_ns), false);
                        if (r < 0)
                                return r;
                        if (r == 0 && nd_clock_ns() >= deadline_ns)
                                return nd_detail_fail(
                                        NDBUS_ETIMEDOUT, "%llu messages are not routed yet",
                                        (unsigned long long)(target - credit->n_routed));
                        if (r == 0)
                                break;
                        r = 0;
                }
                ask_ms = nd_min_u64(ask_ms * 2, FLUSH_ASK_MS_MAX);
        }
}

static int flush_and_report(struct ndbus *bus, int timeout_ms)
{
        int r, told;

        r = flush(bus, nd_deadline_in_ms(timeout_ms));
        /* what was refused is told also when of the others nothing was heard */
        if ((r == NDBUS_ETIMEDOUT || r == NDBUS_EINTERRUPTED) && bus->reports.n == 0)
                return r;
        told = take_reports(bus);
        return told ? told : r;
}

ND_PUBLIC int ndbus_flush(struct ndbus *bus, int timeout_ms)
{
        int r = nd_bus_enter(bus);

        return r ? r : nd_bus_leave(bus, flush_and_report(bus, timeout_ms));
}

static void say_goodbye(struct ndbus *bus)
{
        struct nd_control_bytes bytes;

        nd_grant_collect(bus);
        nd_grant_write_all(bus);
        nd_goodbye_pack(&(struct nd_goodbye){0}, &bytes);
        if (nd_output_packet(&bus->output, &(struct nd_prelude){.kind = ND_KIND_GOODBYE},
                             bytes.data, bytes.n, NULL, 0) == 0)
                nd_connection_send(bus);
}

/* What was on its way to us is in blocks too, and is released as it comes: up to the daemon's last
 * packet. What is not waited for is released when the socket is closed. */
static void hear_goodbye(struct ndbus *bus, uint64_t deadline_ns)
{
        while (nd_bus_is_ready(bus))
                if (nd_bus_turn(bus, deadline_ns, false) <= 0)
                        return;
}

ND_PUBLIC int ndbus_close(struct ndbus *bus, int timeout_ms, size_t *ret_unconfirmed)
{
        uint64_t deadline_ns = nd_deadline_in_ms(timeout_ms), n;
        const struct nd_credit *credit;
        int r = 0;

        if (ret_unconfirmed)
                *ret_unconfirmed = 0;
        if (!bus)
                return nd_detail_say(NDBUS_EINVAL, "bus: is NULL");
        if (bus->is_asking)
                return fail_asking();
        if (!bus->guard.is_child) {
                nd_hold_enter(bus);
                r = flush_and_report(bus, timeout_ms);
                credit = &bus->credit;
                n = bus->n_lost + bus->offline.n;
                if (credit->n_complete > credit->n_routed)
                        n += credit->n_complete - credit->n_routed;
                if (r == NDBUS_ETIMEDOUT && n == 0 && timeout_ms == 0)
                        r = 0;
                if (ret_unconfirmed)
                        *ret_unconfirmed = (size_t)n;
                bus->connection.is_closing = true;
                if (bus->connection.state == ND_STATE_READY)
                        say_goodbye(bus);
                nd_subscriptions_end(bus); /* with what nobody has received */
                nd_hold_collect(bus);
                if (nd_hold_count(bus) > 0)
                        hear_goodbye(bus, deadline_ns);
        }
        nd_bus_free(bus);
        return r;
}
