/* SPDX-License-Identifier: MIT */

/*
 * Incremental packet reader
 *
 * One function, three answers: a packet, "more bytes", or an error. Nothing is remembered between
 * calls, so the way a stream was cut cannot change what is found in it; a caller that waits for
 * the number of bytes it was told looks at each prelude at most twice.
 *
 * What each kind may carry is one table. It is strict on purpose: a field that could hold anything
 * today could mean nothing tomorrow. Fields of the prelude that a kind does not use are sent as
 * zero and passed over; parts of a packet that it does not use (header, meta, body, flags,
 * stream) are refused, because somebody would have to read and drop them.
 */

#include "protocol/reader.h"
#include "protocol/byteorder.h"

/* What a packet of one kind may consist of. */
struct kind_rule {
        uint16_t flags;
        uint16_t flags_shm; /* with feature "shm" */
        bool from_client : 1;
        bool from_daemon : 1;
        bool is_shm : 1;  /* only with feature "shm" */
        bool is_ring : 1; /* only with feature "ring" */
        bool has_header : 1;
        bool is_message : 1;     /* header and meta up to the connection's limits; body goes past */
        bool has_stream : 1;     /* always; messages: with BODY_IN_CHUNKS, and only then */
        bool has_segment : 1;    /* always; messages: with BODY_IN_BLOCK, and only then */
        uint8_t body_unit;       /* body bytes are a multiple of this; 0: no body */
        uint32_t body_bytes_min; /* of this very packet */
        uint32_t body_bytes_max;
};

#define MESSAGE_RULE(_flags)                                                                       \
        .flags = (_flags) | ND_FLAG_BODY_IN_CHUNKS, .flags_shm = ND_FLAG_BODY_IN_BLOCK,            \
        .is_message = true, .has_header = true, .body_unit = 1,                                    \
        .body_bytes_max = ND_PACKET_BODY_BYTES_MAX

/* The directions come from ND_KIND_MAP, see kind_rule_get(). */
static const struct kind_rule kind_rules[] = {
        [ND_KIND_CONNECT] = {.has_header = true},
        [ND_KIND_WELCOME] = {.has_header = true},
        [ND_KIND_AUTH] = {.has_header = true},
        [ND_KIND_ERROR] = {.has_header = true},
        [ND_KIND_GOODBYE] = {.has_header = true},
        [ND_KIND_PUBLISH] = {MESSAGE_RULE(ND_FLAG_RETAINED)},
        [ND_KIND_MESSAGE] = {MESSAGE_RULE(ND_FLAG_RETAINED | ND_FLAG_REDELIVERED)},
        [ND_KIND_CHUNK] = {.has_stream = true,
                           .body_unit = 1,
                           .body_bytes_min = 1,
                           .body_bytes_max = ND_PACKET_BODY_BYTES_MAX},
        [ND_KIND_RESET] = {.has_stream = true},
        [ND_KIND_SUBSCRIBE] = {.has_header = true},
        [ND_KIND_SUBSCRIBED] = {.has_header = true},
        [ND_KIND_UNSUBSCRIBED] = {.has_header = true},
        [ND_KIND_CREDIT] = {.body_unit = 8,
                            .body_bytes_min = 8,
                            .body_bytes_max = ND_CONTROL_BODY_BYTES_MAX},
        [ND_KIND_TOPIC] = {.has_header = true},
        [ND_KIND_SEGMENT] = {.is_shm = true, .flags_shm = ND_FLAG_FD, .has_segment = true},
        [ND_KIND_SEGMENT_GONE] = {.is_shm = true, .has_segment = true},
        [ND_KIND_RELEASE] = {.is_shm = true,
                             .body_unit = 8,
                             .body_bytes_min = 16,
                             .body_bytes_max = ND_CONTROL_BODY_BYTES_MAX},
        [ND_KIND_RING] = {.is_shm = true, .is_ring = true, .flags_shm = ND_FLAG_FD},
        [ND_KIND_WAKE] = {.is_shm = true, .is_ring = true},
        [ND_KIND_STATS_REPLY] = {.body_unit = 1, .body_bytes_max = ND_CONTROL_BODY_BYTES_MAX},
};

/* False if the kind is not one that may come from this direction, with these features. */
static bool
kind_rule_get(uint8_t kind, const struct nd_reader_limits *limits, struct kind_rule *ret)
{
        bool client, daemon;

        switch (kind) {
#define XX(_name, _num, _client, _daemon)                                                          \
        case _num:                                                                                 \
                client = (_client);                                                                \
                daemon = (_daemon);                                                                \
                break;
                ND_KIND_MAP(XX)
#undef XX
        default:
                return false;
        }

        if (limits->direction == ND_FROM_CLIENT ? !client : !daemon)
                return false;

        *ret = kind < nd_array_size(kind_rules) ? kind_rules[kind] : (struct kind_rule){0};
        if (limits->features & ND_FEATURE_SHM)
                ret->flags |= ret->flags_shm;
        else if (ret->is_shm)
                return false;
        return !ret->is_ring || limits->features & ND_FEATURE_RING;
}

static int refuse_size(struct nd_fault *fault, const char *field, uint64_t value, uint64_t limit)
{
        return nd_fault_set_limit(fault, NDBUS_ETOO_BIG, field, value, limit, "bytes");
}

/* A size that must be 0 is a violation; one over its limit is too big. */
static int check_size(uint64_t bytes, uint64_t max, const char *field, struct nd_fault *fault)
{
        if (bytes <= max)
                return 0;
        if (max == 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, field,
                                    "is %llu, but this kind of packet has none",
                                    (unsigned long long)bytes);
        return refuse_size(fault, field, bytes, max);
}

static int
check_body(const struct nd_prelude *p, const struct kind_rule *rule, struct nd_fault *fault)
{
        uint64_t here = nd_prelude_inline_bytes(p);
        int r;

        if (rule->is_message && p->body_bytes > ND_BODY_BYTES_MAX)
                return refuse_size(fault, "body_bytes", p->body_bytes, ND_BODY_BYTES_MAX);
        if (p->flags & ND_FLAG_BODY_IN_CHUNKS && p->body_bytes == 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "body_bytes",
                                    "is 0, but the body is said to come in chunks");

        r = check_size(here, rule->body_bytes_max, "body_bytes", fault);
        if (r)
                return r;
        if (here < rule->body_bytes_min)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "body_bytes",
                                    "is %llu, at least %u are needed", (unsigned long long)here,
                                    (unsigned)rule->body_bytes_min);
        if (rule->body_unit > 1 && here % rule->body_unit != 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "body_bytes",
                                    "is %llu, not a multiple of %u", (unsigned long long)here,
                                    (unsigned)rule->body_unit);
        return 0;
}

/* Where a body in a block lies; and the segment number of what is about one. */
static int check_segment(const struct nd_prelude *p, bool has_segment, struct nd_fault *fault)
{
        if (has_segment && p->segment == 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "is 0 in a %s",
                                    nd_kind_name(p->kind));
        if (!(p->flags & ND_FLAG_BODY_IN_BLOCK))
                return 0;
        if (p->flags & ND_FLAG_BODY_IN_CHUNKS)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "flags",
                                    "a body is in a block or in chunks, not in both");
        if (p->segment == 0 || p->body_bytes == 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, p->segment ? "body_bytes" : "segment",
                                    "is 0, but the body is said to be in a block");
        if (p->place % ND_ALIGN_BYTES != 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "place",
                                    "is %llu, not a multiple of %u", (unsigned long long)p->place,
                                    ND_ALIGN_BYTES);
        return 0;
}

/* A complete prelude whose kind, reserved byte and flags are already known to be good. */
static int check_prelude(const struct nd_reader_limits *limits,
                         const struct nd_prelude *p,
                         const struct kind_rule *rule,
                         struct nd_fault *fault)
{
        uint32_t header_max = rule->is_message   ? limits->header_bytes_max
                              : rule->has_header ? ND_CONTROL_HEADER_BYTES_MAX
                                                 : 0;
        uint32_t meta_max = rule->is_message ? limits->meta_bytes_max : 0;
        bool streams = rule->has_stream || p->flags & ND_FLAG_BODY_IN_CHUNKS;
        int r;

        if (streams != (p->stream != 0))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "stream", "is %u in a %s %s chunks",
                                    (unsigned)p->stream, nd_kind_name(p->kind),
                                    streams ? "with" : "without");

        r = check_size(p->header_bytes, header_max, "header_bytes", fault);
        if (!r)
                r = check_size(p->meta_bytes, meta_max, "meta_bytes", fault);
        if (!r)
                r = check_body(p, rule, fault);
        if (!r)
                r = check_segment(p, rule->has_segment, fault);
        return r;
}

/* Judges the first four bytes, as many of them as are there. */
static int check_first_bytes(const struct nd_reader_limits *limits,
                             const uint8_t *data,
                             size_t n_data,
                             struct kind_rule *ret_rule,
                             struct nd_fault *fault)
{
        if (n_data > 0 && !kind_rule_get(data[0], limits, ret_rule))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "kind",
                                    "is %u (%s), not one that a %s sends", (unsigned)data[0],
                                    nd_kind_name(data[0]),
                                    limits->direction == ND_FROM_CLIENT ? "client" : "daemon");
        if (n_data > 1 && data[1] != 0)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "reserved", "is %u, must be 0",
                                    (unsigned)data[1]);
        if (n_data > 3 && nd_load_le16(data + 2) & ~(unsigned)ret_rule->flags)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "flags",
                                    "is 0x%04x, a %s may have 0x%04x",
                                    (unsigned)nd_load_le16(data + 2), nd_kind_name(data[0]),
                                    (unsigned)ret_rule->flags);
        return 0;
}

int nd_reader_next(const struct nd_reader_limits *limits,
                   const void *data,
                   size_t n_data,
                   struct nd_packet *ret_packet,
                   size_t *ret_wanted,
                   struct nd_fault *fault)
{
        const uint8_t *at = data;
        struct kind_rule rule = {0};
        struct nd_prelude p;
        uint64_t wanted;
        int r;

        r = check_first_bytes(limits, at, n_data, &rule, fault);
        if (r)
                return r;
        if (n_data < ND_PRELUDE_BYTES) {
                *ret_wanted = ND_PRELUDE_BYTES;
                return 1;
        }

        nd_prelude_unpack(at, &p);
        r = check_prelude(limits, &p, &rule, fault);
        if (r)
                return r;

        /* no overflow: three sizes that were bounded just now */
        wanted = (uint64_t)ND_PRELUDE_BYTES + p.header_bytes + p.meta_bytes;
        if (!rule.is_message && p.kind != ND_KIND_CHUNK)
                wanted += p.body_bytes;
        if (n_data < wanted) {
                *ret_wanted = (size_t)wanted;
                return 1;
        }

        at += ND_PRELUDE_BYTES;
        *ret_packet = (struct nd_packet){
                .prelude = p,
                .header = at,
                .meta = at + p.header_bytes,
                .n_bytes = (size_t)wanted,
        };
        if (!rule.is_message && p.kind != ND_KIND_CHUNK)
                ret_packet->body = ret_packet->meta + p.meta_bytes;
        return 0;
}
