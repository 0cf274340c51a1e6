/* SPDX-License-Identifier: MIT */

/*
 * Requests and their answers
 *
 * A request has a number, and its answer repeats it. One that is given up is taken off the list;
 * an answer to it that comes later finds nobody and is passed over.
 */

#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"

int nd_request_start(struct ndbus *bus,
                     struct nd_request *request,
                     uint8_t kind,
                     uint32_t subscription,
                     const void *header,
                     size_t n_header)
{
        *request = (struct nd_request){.kind = kind, .sequence = ++bus->connection.n_requests};
        nd_list_init(&request->node);
        if (nd_output_packet(&bus->output,
                             &(struct nd_prelude){.kind = kind,
                                                  .sequence = request->sequence,
                                                  .subscription = subscription},
                             header, n_header, NULL, 0))
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        nd_list_push_tail(&bus->requests, &request->node);
        return 0;
}

int nd_request_ping(struct ndbus *bus)
{
        const struct nd_prelude p = {
                .kind = ND_KIND_PING,
                .sequence = ++bus->connection.n_requests,
        };

        return nd_output_packet(&bus->output, &p, NULL, 0, NULL, 0);
}

int nd_request_wait(struct ndbus *bus, struct nd_request *request, uint64_t deadline_ns)
{
        int r;

        while (!request->is_done) {
                r = nd_bus_turn(bus, deadline_ns, false);
                if (request->is_done)
                        break;
                if (r == 0)
                        r = nd_detail_say(NDBUS_ETIMEDOUT, "the daemon has not answered in time");
                if (r < 0) {
                        nd_list_unlink(&request->node);
                        return r;
                }
        }
        return request->code ? nd_detail_fault(&request->fault) : 0;
}

struct nd_request *nd_request_find(struct ndbus *bus, uint8_t kind, uint64_t sequence)
{
        nd_list_for_each (i, &bus->requests) {
                struct nd_request *request = nd_list_entry(i, struct nd_request, node);

                if (request->sequence == sequence && request->kind == kind)
                        return request;
        }
        return NULL;
}

void nd_request_answer(struct ndbus *bus, uint8_t kind, uint64_t sequence)
{
        struct nd_request *request = nd_request_find(bus, kind, sequence);
        struct ndbus_subscription *sub;

        if (!request)
                return;
        request->is_done = true;
        nd_list_unlink(&request->node);
        if (kind == ND_KIND_SUBSCRIBE && request->code) {
                sub = nd_container_of(request, struct ndbus_subscription, request);
                nd_subscription_refused(sub);
        }
}

void nd_request_fail_all(struct ndbus *bus, const struct nd_fault *fault)
{
        nd_list_for_each_safe (i, &bus->requests) {
                struct nd_request *request = nd_list_entry(i, struct nd_request, node);

                request->code = fault->code;
                request->fault = *fault;
                request->is_done = true;
                nd_list_unlink(&request->node);
        }
}

ND_PUBLIC int ndbus_ping(struct ndbus *bus, uint64_t *ret_ns, int timeout_ms)
{
        uint64_t deadline_ns = nd_deadline_in_ms(timeout_ms), start_ns;
        struct nd_request request;
        int r;

        r = nd_bus_enter(bus);
        if (r)
                return r;
        r = nd_bus_wait_ready(bus, deadline_ns);
        if (r)
                return nd_bus_leave(bus, r);
        start_ns = nd_clock_ns();
        r = nd_request_start(bus, &request, ND_KIND_PING, 0, NULL, 0);
        r = r ? r : nd_request_wait(bus, &request, deadline_ns);
        if (!r && ret_ns)
                *ret_ns = nd_clock_ns() - start_ns;
        return nd_bus_leave(bus, r);
}

ND_PUBLIC int ndbus_stats(struct ndbus *bus, void **ret_data, size_t *ret_n_data, int timeout_ms)
{
        uint64_t deadline_ns = nd_deadline_in_ms(timeout_ms);
        struct nd_request request;
        int r;

        r = nd_bus_enter(bus);
        if (r)
                return r;
        if (!ret_data || !ret_n_data)
                return nd_bus_leave(bus,
                                    nd_detail_say(NDBUS_EINVAL, "ret_data, ret_n_data: are NULL"));
        r = nd_bus_wait_ready(bus, deadline_ns);
        if (r)
                return nd_bus_leave(bus, r);
        r = nd_request_start(bus, &request, ND_KIND_STATS, 0, NULL, 0);
        r = r ? r : nd_request_wait(bus, &request, deadline_ns);
        if (!r && !request.data)
                r = nd_detail_say(NDBUS_EPROTOCOL, "the daemon's statistics are empty");
        if (r) {
                free(request.data);
                return nd_bus_leave(bus, r);
        }
        *ret_data = request.data;
        *ret_n_data = request.n_data;
        return nd_bus_leave(bus, 0);
}
