/* SPDX-License-Identifier: MIT */

/*
 * Bodies that come in
 *
 * A MESSAGE begins a body, in the same packet or as a stream of CHUNKs. The daemon is not trusted
 * with it: chunks must follow one another without gap, sizes must be those of the header, windows must
 * be kept. Whatever is wrong there ends the connection.
 *
 * A message takes its place in the window at its last byte: one that the daemon passes on while it
 * still arrives has none before, and the daemon, which may count earlier, is never ahead of us.
 *
 * Three things are not wrong: messages under way to a subscription that has just been given up;
 * streams that the daemon takes back (RESET); and messages for which
 * there is no memory here. The bytes of these are read and thrown away. The last are told to the
 * application as dropped.
 */

#include "client/bus.h"

/* More open streams than any window allows in earnest. */
#define STREAMS_MAX 65536u

/* A daemon begins at most two of a subscription; this bounds what another may make us hold. */
#define SUBSCRIPTION_STREAMS_MAX 4u

static struct nd_stream *stream_find(struct nd_input *input, uint32_t number)
{
        nd_list_for_each (i, &input->streams) {
                struct nd_stream *stream = nd_list_entry(i, struct nd_stream, node);

                if (stream->number != number)
                        continue;
                if (input->streams.next != &stream->node) {
                        nd_list_unlink(&stream->node);
                        nd_list_push_head(&input->streams, &stream->node);
                }
                return stream;
        }
        return NULL;
}

/* Its subscription has one message less under way. */
static void stream_leave(struct nd_stream *stream, bool is_whole)
{
        --stream->owner->n_receiving;
        if (!is_whole)
                --stream->owner->n_streams;
        stream->owner = NULL;
}

/* Takes it off the list, and frees it unless it is the one that is part of the input. */
static void stream_end(struct nd_input *input, struct nd_stream *stream)
{
        if (stream->owner)
                stream_leave(stream, stream == &input->whole);
        if (input->body == stream) {
                input->body = NULL;
                input->body_left = 0;
        }
        if (stream == &input->whole) {
                stream->message = NULL;
                return;
        }
        nd_list_unlink(&stream->node);
        --input->n_streams;
        free(stream);
}

static void stream_complete(struct ndbus *bus, struct nd_stream *stream)
{
        struct ndbus_subscription *sub = stream->owner;
        struct ndbus_message *m = stream->message;

        stream->message = NULL;
        if (sub) {
                --sub->window_left;
                ++sub->out_messages;
                sub->out_bytes += stream->body_bytes;
        }
        if (sub && m && sub->is_internal) {
                nd_grant_taken(sub, m->body_bytes);
                nd_call_answer(bus, m);
        } else if (sub && m) {
                if (m->finish)
                        m->finish->is_whole = true;
                nd_list_push_tail(&bus->arrivals, &m->arrival.in_bus);
                nd_list_push_tail(&sub->arrivals, &m->arrival.in_subscription);
                ++sub->stats.waiting;
        } else if (sub && stream->is_refused) {
                nd_subscription_add_dropped(sub, 1);
                nd_grant_taken(sub, stream->body_bytes);
                if (sub->group)
                        nd_grant_refused(sub, stream->delivery, stream->body_bytes);
        } else {
                ndbus_message_free(m);
        }
        stream_end(&bus->input, stream);
}

void nd_stream_received(struct ndbus *bus, uint64_t n)
{
        struct nd_input *input = &bus->input;
        struct nd_stream *stream = input->body;

        stream->received_bytes += n;
        input->body_left -= n;
        if (input->body_left == 0)
                input->body = NULL;
        if (stream->received_bytes == stream->body_bytes)
                stream_complete(bus, stream);
}

void nd_stream_disown(struct ndbus *bus, struct ndbus_subscription *sub)
{
        struct nd_input *input = &bus->input;

        if (input->body == &input->whole && (!sub || input->whole.owner == sub)) {
                ndbus_message_free(nd_steal(input->whole.message));
                if (sub) {
                        stream_leave(&input->whole, true);
                } else {
                        stream_end(input, &input->whole);
                }
        }
        nd_list_for_each_safe (i, &input->streams) {
                struct nd_stream *stream = nd_list_entry(i, struct nd_stream, node);

                if (sub && stream->owner != sub)
                        continue;
                ndbus_message_free(nd_steal(stream->message));
                if (sub) {
                        stream_leave(stream, false);
                } else {
                        stream_end(input, stream);
                }
        }
}

static int message_check(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        if (bus->connection.state != ND_STATE_READY)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "MESSAGE", "came before WELCOME");
        if (p->body_bytes > bus->connection.limits.message_bytes_max)
                return nd_fault_set_limit(fault, NDBUS_EPROTOCOL, "body_bytes", p->body_bytes,
                                          bus->connection.limits.message_bytes_max, "bytes");
        if (p->flags & ND_FLAG_BODY_IN_BLOCK)
                return 0;
        if (!(p->flags & ND_FLAG_BODY_IN_CHUNKS)) {
                if (p->body_bytes > ND_PACKET_BODY_BYTES_MAX)
                        return nd_fault_set_limit(fault, NDBUS_EPROTOCOL, "body_bytes",
                                                  p->body_bytes, ND_PACKET_BODY_BYTES_MAX, "bytes");
                return 0;
        }
        if (p->body_bytes == 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "flags",
                                    "say that an empty body comes in chunks");
        if (p->stream == 0 || stream_find(&bus->input, p->stream))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "stream", "%u is in use", p->stream);
        if (bus->input.n_streams >= STREAMS_MAX)
                return nd_fault_set_limit(fault, NDBUS_EPROTOCOL, "streams", bus->input.n_streams,
                                          STREAMS_MAX, "");
        return 0;
}

/* Whose it is: 0 and @ret, which is NULL for a subscription that has gone. */
static int message_find_owner(struct ndbus *bus,
                              const struct nd_prelude *p,
                              struct ndbus_subscription **ret,
                              struct nd_fault *fault)
{
        struct ndbus_subscription *sub = nd_subscription_find(bus, p->subscription);

        if (!sub && (p->subscription == 0 || p->subscription > bus->subscriptions.last_id))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "subscription",
                                    "%u was never asked for", p->subscription);
        if (!sub || sub->is_ended) {
                *ret = NULL;
                return 0;
        }
        if (!sub->is_asked)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "subscription",
                                    "%u has a message before it was asked for", p->subscription);
        if (sub->window_left < 1)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "subscription",
                                    "%u has more messages than its window of %llu", p->subscription,
                                    (unsigned long long)sub->options.window);
        if (sub->out_messages > 0 && !sub->is_latest &&
            (sub->out_bytes > sub->options.window_bytes ||
             p->body_bytes > sub->options.window_bytes - sub->out_bytes))
                return nd_fault_set_limit(fault, NDBUS_EPROTOCOL, "window_bytes",
                                          sub->out_bytes + p->body_bytes, sub->options.window_bytes,
                                          "bytes");
        if (p->flags & ND_FLAG_BODY_IN_CHUNKS && sub->n_streams >= SUBSCRIPTION_STREAMS_MAX)
                return nd_fault_set_limit(fault, NDBUS_EPROTOCOL, "streams", sub->n_streams + 1,
                                          SUBSCRIPTION_STREAMS_MAX, "");
        *ret = sub;
        return 0;
}

/* What freeing it will say, if it is a group's. */
static int message_add_finish(struct ndbus_message *m, const struct ndbus_subscription *sub)
{
        struct nd_finish *finish;

        if (!sub->group)
                return 0;
        finish = nd_finish_new(sub->bus->finisher);
        if (!finish)
                return NDBUS_ENOMEM;
        finish->generation = sub->bus->connection.generation;
        finish->subscription = sub->id;
        finish->number = sub->n_deliveries;
        finish->body_bytes = m->body_bytes;
        m->finish = finish;
        return 0;
}

/* Makes the message, in @hold if that is not NULL, which is taken then: 0, also without memory:
 * *@ret is NULL then. */
static int message_make(struct ndbus *bus,
                        const struct nd_packet *packet,
                        struct nd_hold *hold,
                        struct ndbus_message **ret,
                        struct nd_fault *fault)
{
        const struct nd_prelude *p = &packet->prelude;
        struct nd_shared_header *shared;
        struct ndbus_message *m = NULL;
        int r;

        r = nd_header_cache_get(&bus->input.cache, packet->header, p->header_bytes, NULL, &shared,
                                fault);
        if (r == NDBUS_ENOMEM) {
                *ret = NULL;
                return 0;
        }
        if (r)
                return r;
        if (shared->header->body_bytes != p->body_bytes)
                r = nd_fault_set(fault, NDBUS_EPROTOCOL, "body_bytes",
                                 "is %llu, the frames take %llu", (unsigned long long)p->body_bytes,
                                 (unsigned long long)shared->header->body_bytes);
        else if (hold ? nd_message_new_in_block(bus->pool, shared, p, packet->meta, hold, &m)
                      : nd_message_new(bus->pool, shared, p, packet->meta, &m))
                m = NULL;
        nd_shared_header_unref(shared);
        if (!r)
                *ret = m;
        return r;
}

/* Where the body's progress is kept: 0, NDBUS_ENOMEM. */
static int
stream_begin(struct nd_input *input, const struct nd_packet *packet, struct nd_stream **ret)
{
        const struct nd_prelude *p = &packet->prelude;
        struct nd_stream *stream;

        if (!(p->flags & ND_FLAG_BODY_IN_CHUNKS)) {
                *ret = &input->whole;
                input->is_large = nd_prelude_inline_bytes(p) >= ((uint64_t)64 << 10);
                input->n_lead = packet->n_bytes;
                return 0;
        }
        stream = malloc(sizeof(*stream));
        if (!stream)
                return NDBUS_ENOMEM;
        nd_list_init(&stream->node);
        nd_list_push_head(&input->streams, &stream->node);
        ++input->n_streams;
        *ret = stream;
        return 0;
}

/* Makes what the application gets, if the bytes can be had: NULL if not. */
static int message_begin(struct ndbus *bus,
                         const struct nd_packet *packet,
                         const struct ndbus_subscription *sub,
                         struct ndbus_message **ret,
                         struct nd_fault *fault)
{
        bool is_in_block = packet->prelude.flags & ND_FLAG_BODY_IN_BLOCK;
        struct nd_hold *hold = NULL;
        int r = 0;

        if (is_in_block)
                r = nd_hold_block(bus, &packet->prelude, &hold, fault);
        if (!r && sub && (!is_in_block || hold))
                r = message_make(bus, packet, hold, ret, fault);
        if (hold && !*ret)
                nd_buffer_unref(&hold->keeper);
        return r;
}

int nd_stream_message(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        const struct nd_prelude *p = &packet->prelude;
        struct nd_input *input = &bus->input;
        struct ndbus_subscription *sub = NULL;
        struct ndbus_message *m = NULL;
        struct nd_stream *stream;
        int r;

        r = message_check(bus, p, fault);
        r = r ? r : message_find_owner(bus, p, &sub, fault);
        if (!r && sub)
                ++sub->n_deliveries;
        r = r ? r : message_begin(bus, packet, sub, &m, fault);
        if (r)
                return r;
        if (stream_begin(input, packet, &stream)) {
                ndbus_message_free(m);
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        }
        stream->number = p->stream;
        stream->message = m;
        stream->owner = sub;
        stream->body_bytes = p->body_bytes;
        stream->received_bytes = 0;
        if (m && message_add_finish(m, sub))
                ndbus_message_free(nd_steal(m));
        stream->is_refused = sub && !m;
        stream->delivery = sub ? sub->n_deliveries : 0;
        if (sub) {
                ++sub->n_receiving;
                sub->n_streams += stream != &input->whole;
        }
        if (m) {
                m->dropped = sub->pending_dropped;
                m->userdata = sub->options.userdata;
                sub->pending_dropped = 0;
        }
        if (p->body_bytes == 0 || p->flags & ND_FLAG_BODY_IN_BLOCK) {
                stream_complete(bus, stream);
        } else if (stream == &input->whole) {
                input->body = stream;
                input->body_left = p->body_bytes;
        }
        return 0;
}

int nd_stream_chunk(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        const struct nd_prelude *p = &packet->prelude;
        struct nd_stream *stream = p->stream ? stream_find(&bus->input, p->stream) : NULL;

        if (!stream)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "CHUNK",
                                    "of stream %u, which is not "
                                    "open",
                                    p->stream);
        if (p->place != stream->received_bytes)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "CHUNK",
                                    "is for byte %llu of stream %u, due is byte %llu",
                                    (unsigned long long)p->place, p->stream,
                                    (unsigned long long)stream->received_bytes);
        if (p->body_bytes == 0 || p->body_bytes > ND_PACKET_BODY_BYTES_MAX ||
            p->body_bytes > stream->body_bytes - stream->received_bytes)
                return nd_fault_set(
                        fault, NDBUS_EPROTOCOL, "CHUNK",
                        "has %llu bytes, %llu of stream %u are missing",
                        (unsigned long long)p->body_bytes,
                        (unsigned long long)(stream->body_bytes - stream->received_bytes),
                        p->stream);
        bus->input.body = stream;
        bus->input.body_left = p->body_bytes;
        return 0;
}

int nd_stream_reset(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault)
{
        const struct nd_prelude *p = &packet->prelude;
        struct nd_stream *stream = p->stream ? stream_find(&bus->input, p->stream) : NULL;

        if (!stream)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "RESET",
                                    "of stream %u, which is not "
                                    "open",
                                    p->stream);
        if (stream->owner && stream->message)
                nd_subscription_add_pending(stream->owner, stream->message->dropped);
        ndbus_message_free(nd_steal(stream->message));
        stream_end(&bus->input, stream);
        return 0;
}
