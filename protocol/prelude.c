/* SPDX-License-Identifier: MIT */

/*
 * Prelude
 *
 * One fixed layout in front of everything, so that a receiver knows after 64 bytes how much
 * follows and where it belongs, without having parsed any of it. What differs from message to
 * message stands here and not in the header: the header of a steady stream is then the same bytes
 * each time and is parsed once.
 */

#include "protocol/prelude.h"
#include "protocol/byteorder.h"

/* Where each field stands; PROTOCOL.md 3. */
enum {
        AT_KIND = 0,
        AT_RESERVED = 1,
        AT_FLAGS = 2,
        AT_HEADER_BYTES = 4,
        AT_META_BYTES = 8,
        AT_STREAM = 12,
        AT_BODY_BYTES = 16,
        AT_PLACE = 24,
        AT_SOURCE = 32,
        AT_SEQUENCE = 40,
        AT_TIME_NS = 48,
        AT_SUBSCRIPTION = 56,
        AT_SEGMENT = 60,
        AT_END = 64,
};

_Static_assert(AT_END == ND_PRELUDE_BYTES, "the fields fill the prelude");

void nd_prelude_pack(const struct nd_prelude *prelude, uint8_t out[static ND_PRELUDE_BYTES])
{
        out[AT_KIND] = prelude->kind;
        out[AT_RESERVED] = prelude->reserved;
        nd_store_le16(out + AT_FLAGS, prelude->flags);
        nd_store_le32(out + AT_HEADER_BYTES, prelude->header_bytes);
        nd_store_le32(out + AT_META_BYTES, prelude->meta_bytes);
        nd_store_le32(out + AT_STREAM, prelude->stream);
        nd_store_le64(out + AT_BODY_BYTES, prelude->body_bytes);
        nd_store_le64(out + AT_PLACE, prelude->place);
        nd_store_le64(out + AT_SOURCE, prelude->source);
        nd_store_le64(out + AT_SEQUENCE, prelude->sequence);
        nd_store_le64(out + AT_TIME_NS, prelude->time_ns);
        nd_store_le32(out + AT_SUBSCRIPTION, prelude->subscription);
        nd_store_le32(out + AT_SEGMENT, prelude->segment);
}

void nd_prelude_unpack(const uint8_t in[static ND_PRELUDE_BYTES], struct nd_prelude *ret)
{
        *ret = (struct nd_prelude){
                .kind = in[AT_KIND],
                .reserved = in[AT_RESERVED],
                .flags = nd_load_le16(in + AT_FLAGS),
                .header_bytes = nd_load_le32(in + AT_HEADER_BYTES),
                .meta_bytes = nd_load_le32(in + AT_META_BYTES),
                .stream = nd_load_le32(in + AT_STREAM),
                .body_bytes = nd_load_le64(in + AT_BODY_BYTES),
                .place = nd_load_le64(in + AT_PLACE),
                .source = nd_load_le64(in + AT_SOURCE),
                .sequence = nd_load_le64(in + AT_SEQUENCE),
                .time_ns = nd_load_le64(in + AT_TIME_NS),
                .subscription = nd_load_le32(in + AT_SUBSCRIPTION),
                .segment = nd_load_le32(in + AT_SEGMENT),
        };
}

const char *nd_kind_name(uint8_t kind)
{
        switch (kind) {
#define XX(_name, _num, _client, _daemon)                                                          \
        case _num:                                                                                 \
                return #_name;
                ND_KIND_MAP(XX)
#undef XX
        case ND_KIND_FILE_INDEX:
                return "FILE_INDEX";
        default:
                return "?";
        }
}
