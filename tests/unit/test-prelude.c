/* SPDX-License-Identifier: MIT */

/*
 * Prelude
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/prelude.h"

/* every byte of it is different, so that no two fields can be taken for each other */
static const struct nd_prelude distinct = {
        .kind = 0x00,
        .reserved = 0x01,
        .flags = 0x0302,
        .header_bytes = 0x07060504,
        .meta_bytes = 0x0b0a0908,
        .stream = 0x0f0e0d0c,
        .body_bytes = 0x1716151413121110,
        .place = 0x1f1e1d1c1b1a1918,
        .source = 0x2726252423222120,
        .sequence = 0x2f2e2d2c2b2a2928,
        .time_ns = 0x3736353433323130,
        .subscription = 0x3b3a3938,
        .segment = 0x3f3e3d3c,
};

Test(prelude, puts_every_byte_of_every_field_at_its_offset)
{
        uint8_t out[ND_PRELUDE_BYTES];

        nd_prelude_pack(&distinct, out);
        for (size_t i = 0; i < sizeof(out); ++i)
                cr_expect_eq(out[i], i, "byte %zu is 0x%02x", i, out[i]);
}

Test(prelude, unpacks_what_it_packed)
{
        uint8_t bytes[ND_PRELUDE_BYTES];
        struct nd_prelude p;

        for (size_t i = 0; i < sizeof(bytes); ++i)
                bytes[i] = (uint8_t)i;
        nd_prelude_unpack(bytes, &p);

#define SAME(_field) cr_expect_eq(p._field, distinct._field, #_field)
        SAME(kind);
        SAME(reserved);
        SAME(flags);
        SAME(header_bytes);
        SAME(meta_bytes);
        SAME(stream);
        SAME(body_bytes);
        SAME(place);
        SAME(source);
        SAME(sequence);
        SAME(time_ns);
        SAME(subscription);
        SAME(segment);
#undef SAME
}

Test(prelude, loads_the_highest_bits_without_sign)
{
        uint8_t bytes[ND_PRELUDE_BYTES];
        struct nd_prelude p;

        memset(bytes, 0xff, sizeof(bytes));
        nd_prelude_unpack(bytes, &p);
        cr_expect_eq(p.flags, UINT16_MAX);
        cr_expect_eq(p.header_bytes, UINT32_MAX);
        cr_expect_eq(p.body_bytes, UINT64_MAX);
        cr_expect_eq(p.segment, UINT32_MAX);
}

Test(prelude, has_a_body_inline_unless_it_is_elsewhere)
{
        struct nd_prelude p = {.kind = ND_KIND_PUBLISH, .body_bytes = 12};

        cr_expect_eq(nd_prelude_inline_bytes(&p), 12);
        p.flags = ND_FLAG_RETAINED;
        cr_expect_eq(nd_prelude_inline_bytes(&p), 12);
        p.flags = ND_FLAG_BODY_IN_CHUNKS;
        cr_expect_eq(nd_prelude_inline_bytes(&p), 0);
        p.flags = ND_FLAG_BODY_IN_BLOCK;
        cr_expect_eq(nd_prelude_inline_bytes(&p), 0);
}

Test(prelude, names_every_kind_and_no_other)
{
        size_t n_named = 0, n_kinds = 0;

#define XX(_name, _num, _client, _daemon)                                                          \
        cr_expect_str_eq(nd_kind_name(_num), #_name);                                              \
        ++n_kinds;
        ND_KIND_MAP(XX)
#undef XX
        cr_expect_str_eq(nd_kind_name(ND_KIND_FILE_INDEX), "FILE_INDEX");

        for (unsigned kind = 0; kind <= UINT8_MAX; ++kind)
                n_named += strcmp(nd_kind_name((uint8_t)kind), "?") != 0;
        cr_expect_eq(n_named, n_kinds + 1);
}
