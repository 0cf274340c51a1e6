/* SPDX-License-Identifier: MIT */

/*
 * Asking and answering
 *
 * A request is a message that says on which topic its answer is awaited: $reply/<source>/<n>, which
 * this connection alone may subscribe. All answers come by one subscription of the bus's own, made
 * with the first request on a connection, and are told apart by <n>; what nobody waits for any
 * more is thrown away. So a request costs no round trip but its own, and other subscriptions are
 * not touched: what comes for them meanwhile waits for a receiving call.
 *
 * The wait ends early when the daemon refuses the PUBLISH, because nobody subscribes above all. That
 * somebody subscribes does not mean that an answer comes: that is what the timeout is for.
 */

#include <inttypes.h>
#include <string.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"

#define REPLY_TOPIC_BYTES 64u

void nd_call_answer(struct ndbus *bus, struct ndbus_message *m)
{
        struct nd_call *call = bus->calls.now;
        char expected[REPLY_TOPIC_BYTES];

        if (call && !call->answer) {
                snprintf(expected, sizeof(expected), "$reply/%" PRIu64 "/%" PRIu64,
                         bus->connection.source, call->n);
                if (strcmp(m->shared->header->topic, expected) == 0) {
                        call->answer = m;
                        return;
                }
        }
        ndbus_message_free(m);
}

/* The subscription to answers, on the connection that there is now. */
static int call_subscribe(struct ndbus *bus, uint64_t deadline_ns)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct nd_calls *calls = &bus->calls;
        char pattern[REPLY_TOPIC_BYTES];
        uint64_t generation;
        int r;

        r = nd_bus_wait_ready(bus, deadline_ns);
        if (r)
                return r;
        generation = bus->connection.generation;
        if (calls->sub && calls->sub->is_active && calls->generation == generation)
                return 0;
        if (calls->sub)
                nd_subscription_close(nd_steal(calls->sub));
        snprintf(pattern, sizeof(pattern), "$reply/%" PRIu64 "/*", bus->connection.source);
        options.retained = 0;
        r = nd_subscription_open(bus, pattern, &options, true, deadline_ns, &calls->sub);
        calls->generation = generation;
        return r;
}

/* Waits until there is an answer, or will be none. */
static int call_wait(struct ndbus *bus, const struct nd_call *call, uint64_t deadline_ns)
{
        uint64_t generation = bus->calls.generation;
        int r;

        while (!call->answer) {
                if (call->refusal.code)
                        return nd_detail_fault(&call->refusal);
                if (bus->connection.state != ND_STATE_READY ||
                    bus->connection.generation != generation)
                        return nd_connection_fail_down(bus);
                r = nd_bus_turn(bus, deadline_ns, false);
                if (r == 0)
                        r = nd_detail_say(NDBUS_ETIMEDOUT, "no answer in time");
                if (r < 0)
                        return r;
        }
        return 0;
}

/* The shorter of two timeouts, of which negative is none. */
static int timeout_min(int a, int b)
{
        if (a < 0)
                return b;
        return b < 0 || a < b ? a : b;
}

static int call_run(struct ndbus *bus,
                    const char *topic,
                    const struct ndbus_array *arrays,
                    size_t n_arrays,
                    const struct ndbus_publish_options *given,
                    int timeout_ms,
                    struct ndbus_message **ret_answer)
{
        uint64_t deadline_ns = nd_deadline_in_ms(timeout_ms);
        struct ndbus_publish_options options = *given;
        struct nd_call call = {.n = 0};
        char reply[REPLY_TOPIC_BYTES];
        int r;

        r = call_subscribe(bus, deadline_ns);
        if (r)
                return r;
        call.n = ++bus->calls.n;
        snprintf(reply, sizeof(reply), "$reply/%" PRIu64 "/%" PRIu64, bus->connection.source,
                 call.n);
        options.reply = reply;
        options.more = 0;
        options.timeout_ms = timeout_min(options.timeout_ms, timeout_ms);
        bus->calls.now = &call;
        r = ndbus_publish(bus, topic, arrays, n_arrays, &options);
        r = r ? r : call_wait(bus, &call, deadline_ns);
        bus->calls.now = NULL;
        if (!r && call.answer->shared->header->unsupported)
                r = nd_detail_fail(NDBUS_EUNSUPPORTED,
                                   "the answer needs \"%s\", which this library does not know",
                                   call.answer->shared->header->unsupported);
        if (r) {
                ndbus_message_free(call.answer);
                return r;
        }
        *ret_answer = call.answer;
        return 0;
}

static int request_check(const char *topic,
                         const struct ndbus_publish_options *options,
                         struct ndbus_message **ret_answer)
{
        if (!topic || !ret_answer)
                return nd_detail_say(NDBUS_EINVAL, "topic, ret_answer: are NULL");
        if (options->size < sizeof(*options))
                return nd_detail_fail(NDBUS_EINVAL, "options.size: is %zu, must be %zu",
                                      options->size, sizeof(*options));
        if (options->reply || options->retain || options->if_wanted)
                return nd_detail_say(NDBUS_EINVAL, "options.reply, retain, if_wanted: must not be "
                                                   "set in a request");
        return 0;
}

ND_PUBLIC int ndbus_request(struct ndbus *bus,
                            const char *topic,
                            const struct ndbus_array *arrays,
                            size_t n_arrays,
                            const struct ndbus_publish_options *options,
                            int timeout_ms,
                            struct ndbus_message **ret_answer)
{
        static const struct ndbus_publish_options defaults = NDBUS_PUBLISH_OPTIONS_INIT;
        int r = nd_bus_enter(bus);

        if (r)
                return r;
        options = options ? options : &defaults;
        r = request_check(topic, options, ret_answer);
        r = r ? r : call_run(bus, topic, arrays, n_arrays, options, timeout_ms, ret_answer);
        return nd_bus_leave(bus, r);
}

ND_PUBLIC int ndbus_reply(struct ndbus *bus,
                          const struct ndbus_message *request,
                          const struct ndbus_array *arrays,
                          size_t n_arrays,
                          const struct ndbus_publish_options *options)
{
        if (!request)
                return nd_detail_say(NDBUS_EINVAL, "request: is NULL");
        if (!ndbus_message_reply(request))
                return nd_detail_fail(NDBUS_EINVAL,
                                      "request: message %" PRIu64 " on %s asks for "
                                      "no answer",
                                      request->sequence, ndbus_message_topic(request));
        return ndbus_publish(bus, ndbus_message_reply(request), arrays, n_arrays, options);
}
