/* SPDX-License-Identifier: MIT */

/*
 * The scripted daemon as a daemon for one client
 *
 * Whatever the client publishes goes to its own subscriptions that match, as long as their windows
 * have room; what finds none is dropped and announced. It checks what a daemon would check of a
 * client's credit, numbers and grants.
 */

#include <stdlib.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/header.h"
#include "protocol/topic.h"
#include "tests/support/fake-peer.h"

#define SUBS_MAX 16
#define PART_MAX ((size_t)300000)

struct served_sub {
        uint32_t id;
        char pattern[256];
        size_t n_pattern;
        uint64_t window_bytes;
        uint64_t left;      /* messages that may be sent */
        uint64_t out_bytes; /* sent and not granted again */
        uint64_t dropped;
};

struct served {
        struct fake_peer *peer;
        struct served_sub subs[SUBS_MAX];
        size_t n_subs;
        uint64_t credit;
        uint64_t n_published;
        uint64_t n_messages;
        uint32_t n_streams;
        struct nd_prelude open; /* a PUBLISH in chunks; stream 0: none */
        uint8_t *lead;          /* its header and meta */
        uint8_t *body;
        uint64_t n_received;
};

#define check(_cond)                                                                               \
        do {                                                                                       \
                if (!(_cond)) {                                                                    \
                        fprintf(stderr, "fake daemon: %s:%d: not so: %s\n", __FILE__, __LINE__,    \
                                #_cond);                                                           \
                        abort();                                                                   \
                }                                                                                  \
        } while (0)

static void serve_subscribe(struct served *s, const struct fake_packet *packet)
{
        struct served_sub *sub = &s->subs[s->n_subs++];
        struct nd_subscribe subscribe;
        struct nd_control_bytes bytes;

        check(s->n_subs <= SUBS_MAX);
        check(nd_subscribe_unpack(packet->header, packet->prelude.header_bytes, &subscribe, NULL) ==
              0);
        *sub = (struct served_sub){
                .id = packet->prelude.subscription,
                .n_pattern = subscribe.pattern.n,
                .left = subscribe.window_messages,
                .window_bytes = subscribe.window_bytes,
        };
        memcpy(sub->pattern, subscribe.pattern.at, subscribe.pattern.n);
        nd_subscribed_pack(&(struct nd_subscribed){subscribe.depth_messages, subscribe.depth_bytes},
                           &bytes);
        fake_peer_send(s->peer,
                       &(struct nd_prelude){.kind = ND_KIND_SUBSCRIBED,
                                            .sequence = packet->prelude.sequence,
                                            .subscription = sub->id},
                       bytes.data, bytes.n, NULL, 0);
}

static void serve_unsubscribe(struct served *s, const struct fake_packet *packet)
{
        struct nd_control_bytes bytes;

        for (size_t i = 0; i < s->n_subs; ++i)
                if (s->subs[i].id == packet->prelude.subscription)
                        s->subs[i] = s->subs[--s->n_subs];
        nd_unsubscribed_pack(&(struct nd_unsubscribed){0}, &bytes);
        fake_peer_send(s->peer,
                       &(struct nd_prelude){.kind = ND_KIND_UNSUBSCRIBED,
                                            .sequence = packet->prelude.sequence,
                                            .subscription = packet->prelude.subscription},
                       bytes.data, bytes.n, NULL, 0);
}

static void serve_credit(struct served *s, const struct fake_packet *packet)
{
        check(packet->n_body == 16);
        for (size_t i = 0; i < s->n_subs; ++i) {
                struct served_sub *sub = &s->subs[i];

                if (sub->id != packet->prelude.subscription)
                        continue;
                sub->left += nd_load_le64(packet->body);
                check(nd_load_le64(packet->body + 8) <= sub->out_bytes);
                sub->out_bytes -= nd_load_le64(packet->body + 8);
        }
}

/* To one subscription, in one packet or in chunks of an odd size. */
static void deliver_to(struct served *s,
                       const struct served_sub *sub,
                       const struct nd_prelude *published,
                       const uint8_t *lead,
                       const uint8_t *body)
{
        struct nd_prelude p = *published;
        bool is_whole = p.body_bytes <= ND_PACKET_BODY_BYTES_MAX;
        uint64_t at, n;

        p.kind = ND_KIND_MESSAGE;
        p.flags = (uint16_t)(p.flags & ~ND_FLAG_BODY_IN_CHUNKS & ~ND_FLAG_RETAINED);
        p.stream = 0;
        p.source = 0x1234;
        p.sequence = ++s->n_messages;
        p.subscription = sub->id;
        if (!is_whole) {
                p.flags |= ND_FLAG_BODY_IN_CHUNKS;
                p.stream = ++s->n_streams;
        }
        fake_peer_send_message(s->peer, &p, lead, p.header_bytes, lead + p.header_bytes,
                               p.meta_bytes);
        if (is_whole) {
                fake_peer_send_bytes(s->peer, body, (size_t)p.body_bytes);
                return;
        }
        for (at = 0; at < p.body_bytes; at += n) {
                n = nd_min_u64(p.body_bytes - at, PART_MAX);
                fake_peer_send(s->peer,
                               &(struct nd_prelude){
                                       .kind = ND_KIND_CHUNK, .stream = p.stream, .place = at},
                               NULL, 0, body + at, (size_t)n);
        }
}

static void
deliver(struct served *s, const struct nd_prelude *p, const uint8_t *lead, const uint8_t *body)
{
        struct nd_header *header = NULL;
        struct nd_fault fault = {0};

        if (nd_header_unpack(lead, p->header_bytes, NULL, &header, &fault))
                fprintf(stderr, "fake daemon: %s: %s\n", fault.field, fault.text);
        check(header && header->body_bytes == p->body_bytes);
        for (size_t i = 0; i < s->n_subs; ++i) {
                struct served_sub *sub = &s->subs[i];

                if (!nd_pattern_match(sub->pattern, sub->n_pattern, header->topic, header->n_topic))
                        continue;
                if (sub->left == 0 ||
                    (sub->out_bytes > 0 && sub->out_bytes + p->body_bytes > sub->window_bytes)) {
                        ++sub->dropped;
                        continue;
                }
                if (sub->dropped)
                        fake_peer_send(s->peer,
                                       &(struct nd_prelude){.kind = ND_KIND_GAP,
                                                            .subscription = sub->id,
                                                            .place = sub->dropped},
                                       NULL, 0, NULL, 0);
                sub->dropped = 0;
                --sub->left;
                sub->out_bytes += p->body_bytes;
                deliver_to(s, sub, p, lead, body);
        }
        nd_header_free(header);
}

/* Takes credit for a packet; gives it back at once, the window as wide as before. */
static void serve_charge(struct served *s, const struct fake_packet *packet)
{
        uint64_t n = ND_PRELUDE_BYTES + packet->prelude.header_bytes + packet->prelude.meta_bytes +
                     packet->n_body;

        check(n <= s->credit || packet->prelude.kind == ND_KIND_PUBLISH);
        fake_peer_grant(s->peer, nd_min_u64(n, s->credit), s->n_published);
}

static void serve_publish(struct served *s, const struct fake_packet *packet)
{
        const struct nd_prelude *p = &packet->prelude;
        size_t n_lead = p->header_bytes + p->meta_bytes;

        check(s->open.stream == 0);
        check(p->source == 0 && p->time_ns != 0);
        if (!(p->flags & ND_FLAG_BODY_IN_CHUNKS)) {
                check(p->sequence == ++s->n_published);
                deliver(s, p, packet->header, packet->body);
                serve_charge(s, packet);
                return;
        }
        check(p->stream != 0 && p->sequence == s->n_published + 1);
        s->open = *p;
        s->lead = malloc(n_lead);
        s->body = malloc(p->body_bytes);
        check(s->lead && s->body);
        memcpy(s->lead, packet->header, n_lead);
        s->n_received = 0;
        serve_charge(s, packet);
}

static void serve_close_stream(struct served *s)
{
        free(nd_steal(s->lead));
        free(nd_steal(s->body));
        s->open.stream = 0;
        ++s->n_published;
}

static void serve_chunk(struct served *s, const struct fake_packet *packet)
{
        const struct nd_prelude *p = &packet->prelude;

        check(p->stream == s->open.stream && p->place == s->n_received);
        check(p->body_bytes > 0 && p->body_bytes <= s->open.body_bytes - s->n_received);
        memcpy(s->body + p->place, packet->body, (size_t)p->body_bytes);
        s->n_received += p->body_bytes;
        if (s->n_received == s->open.body_bytes) {
                deliver(s, &s->open, s->lead, s->body);
                serve_close_stream(s);
        }
        serve_charge(s, packet);
}

static void serve_topic(struct served *s, const struct fake_packet *packet)
{
        struct nd_topic_header header;
        struct nd_control_bytes bytes;

        check(nd_topic_header_unpack(packet->header, packet->prelude.header_bytes, false, &header,
                                     NULL) == 0);
        header.allowed = true;
        header.subscribers = 0;
        for (size_t i = 0; i < s->n_subs; ++i)
                header.subscribers += nd_pattern_match(s->subs[i].pattern, s->subs[i].n_pattern,
                                                       header.topic.at, header.topic.n);
        nd_topic_header_pack(&header, true, &bytes);
        fake_peer_send(
                s->peer,
                &(struct nd_prelude){.kind = ND_KIND_TOPIC, .sequence = packet->prelude.sequence},
                bytes.data, bytes.n, NULL, 0);
}

static void serve_stats(struct served *s, const struct fake_packet *packet)
{
        const struct nd_prelude p = {
                .kind = ND_KIND_STATS_REPLY,
                .sequence = packet->prelude.sequence,
        };

        fake_peer_send(s->peer, &p, NULL, 0, "\x81\xa4used", 6);
        fake_peer_send(s->peer, &p, NULL, 0, "\x07", 1);
        fake_peer_send(s->peer, &p, NULL, 0, NULL, 0);
}

static void serve_packet(struct served *s, const struct fake_packet *packet)
{
        switch (packet->prelude.kind) {
        case ND_KIND_PUBLISH:
                serve_publish(s, packet);
                break;
        case ND_KIND_CHUNK:
                serve_chunk(s, packet);
                break;
        case ND_KIND_RESET:
                check(packet->prelude.stream == s->open.stream);
                serve_close_stream(s);
                break;
        case ND_KIND_SUBSCRIBE:
                serve_subscribe(s, packet);
                break;
        case ND_KIND_UNSUBSCRIBE:
                serve_unsubscribe(s, packet);
                break;
        case ND_KIND_CREDIT:
                serve_credit(s, packet);
                break;
        case ND_KIND_TOPIC:
                serve_topic(s, packet);
                break;
        case ND_KIND_STATS:
                serve_stats(s, packet);
                break;
        case ND_KIND_PING:
                fake_peer_send(s->peer,
                               &(struct nd_prelude){.kind = ND_KIND_PONG,
                                                    .sequence = packet->prelude.sequence,
                                                    .place = s->n_published},
                               NULL, 0, NULL, 0);
                break;
        default:
                check(packet->prelude.kind == ND_KIND_GOODBYE);
        }
}

void fake_peer_serve(struct fake_peer *peer)
{
        struct served s = {.peer = peer, .credit = fake_peer_welcome(peer)->grant_bytes};
        const struct fake_packet *packet;

        while ((packet = fake_peer_read(peer)))
                serve_packet(&s, packet);
        free(s.lead);
        free(s.body);
}

void fake_peer_serve_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_serve(peer);
}
