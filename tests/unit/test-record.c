/* SPDX-License-Identifier: MIT */

/*
 * Records: where the parts stand, and what is refused
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/record.h"

/* Header of 5 bytes, meta of 3, body of 70: 128 + 5 + 3 = 136 -> 192; 192 + 70 = 262 -> 320. */
static const struct nd_prelude small = {
        .kind = ND_KIND_PUBLISH,
        .header_bytes = 5,
        .meta_bytes = 3,
        .body_bytes = 70,
        .sequence = 9,
        .time_ns = 0x0102030405060708,
};

#define SMALL_BYTES 320

static void make_small(uint8_t out[static SMALL_BYTES])
{
        struct nd_record record;

        memset(out, 0xaa, SMALL_BYTES);
        cr_assert_eq(nd_record_place(&small, &record, NULL), 0);
        nd_record_pack_lead(&record, out);
}

Test(record, places_each_part)
{
        struct nd_record record;

        cr_assert_eq(nd_record_place(&small, &record, NULL), 0);
        cr_expect_eq(record.header_offset, 128u);
        cr_expect_eq(record.meta_offset, 133u);
        cr_expect_eq(record.body_offset, 192u);
        cr_expect_eq(record.record_bytes, 320u);
}

Test(record, places_nothing_as_nothing)
{
        struct nd_prelude prelude = {.kind = ND_KIND_PUBLISH};
        struct nd_record record;

        cr_assert_eq(nd_record_place(&prelude, &record, NULL), 0);
        cr_expect_eq(record.body_offset, 128u);
        cr_expect_eq(record.record_bytes, 128u);

        prelude.header_bytes = 64;
        prelude.body_bytes = 64;
        cr_assert_eq(nd_record_place(&prelude, &record, NULL), 0);
        cr_expect_eq(record.body_offset, 192u);
        cr_expect_eq(record.record_bytes, 256u);
}

Test(record, sums_that_do_not_fit_are_too_big)
{
        static const struct {
                uint64_t body_bytes;
                int want;
        } rows[] = {
                {UINT64_MAX, NDBUS_ETOO_BIG},
                {UINT64_MAX - 127, NDBUS_ETOO_BIG},
                {UINT64_C(1) << 63, NDBUS_ETOO_BIG},
                {(UINT64_C(1) << 63) - 128, NDBUS_ETOO_BIG},
                {(UINT64_C(1) << 63) - 192, 0}, /* 2^63 - 64 with the lead */
                {UINT64_C(1) << 62, 0},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_prelude prelude = {.body_bytes = rows[i].body_bytes};
                struct nd_record record = {.record_bytes = 1};
                struct nd_fault fault = {0};

                cr_expect_eq(nd_record_place(&prelude, &record, &fault), rows[i].want, "%zu", i);
                cr_expect_eq(record.record_bytes == 1, rows[i].want != 0, "%zu", i);
                cr_expect_eq(fault.code, rows[i].want, "%zu", i);
        }
}

Test(record, the_lead_is_these_bytes)
{
        static const uint8_t golden[40] = {
                0x89, 'N', 'D', 'B', 'U', 'S', '\r', '\n', 1, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x01,
        };
        uint8_t lead[SMALL_BYTES];

        make_small(lead);
        cr_expect_arr_eq(lead, golden, sizeof(golden));
        cr_expect_eq(lead[64], ND_KIND_PUBLISH);
        cr_expect_eq(lead[64 + 4], 5);
        cr_expect_eq(lead[64 + 8], 3);
        cr_expect_eq(lead[64 + 16], 70);
        cr_expect_eq(lead[64 + 48], 8);
        cr_expect_eq(lead[128], 0xaa);
}

Test(record, unpacks_what_it_packed_also_with_more_behind)
{
        uint8_t data[SMALL_BYTES + 10] = {0};

        make_small(data);
        for (size_t n = SMALL_BYTES; n <= sizeof(data); n += 10) {
                struct nd_record record;

                cr_assert_eq(nd_record_unpack(data, n, 0, &record, NULL), 0);
                cr_expect_eq(record.record_bytes, (uint64_t)SMALL_BYTES);
                cr_expect_eq(record.meta_offset, 133u);
                cr_expect_eq(record.prelude.sequence, 9u);
                cr_expect_eq(record.prelude.body_bytes, 70u);
        }
        cr_expect_eq(nd_record_unpack(data, 0, 0, NULL, NULL), 1);
        cr_expect_eq(nd_record_unpack(NULL, 0, 0, NULL, NULL), 1);
}

Test(record, what_belongs_to_a_connection_is_not_written)
{
        struct nd_record record;
        struct nd_prelude prelude = small;
        uint8_t data[SMALL_BYTES] = {0};

        prelude.reserved = 1;
        prelude.flags = ND_FLAG_BODY_IN_CHUNKS | ND_FLAG_FD | ND_FLAG_RETAINED;
        prelude.stream = 1;
        prelude.place = 2;
        prelude.subscription = 3;
        prelude.segment = 4;
        cr_assert_eq(nd_record_place(&prelude, &record, NULL), 0);
        nd_record_pack_lead(&record, data);
        cr_assert_eq(nd_record_unpack(data, sizeof(data), 0, &record, NULL), 0);
        cr_expect_eq(record.prelude.flags, ND_FLAG_RETAINED);
        cr_expect_eq(record.prelude.stream, 0u);
        cr_expect_eq(record.prelude.place, 0u);
}

Test(record, an_index_is_a_record_too)
{
        struct nd_prelude prelude = {.kind = ND_KIND_FILE_INDEX, .body_bytes = 64};
        struct nd_record record;
        uint8_t data[192] = {0};

        cr_assert_eq(nd_record_place(&prelude, &record, NULL), 0);
        nd_record_pack_lead(&record, data);
        cr_assert_eq(nd_record_unpack(data, sizeof(data), 0, &record, NULL), 0);
        cr_expect_eq(record.prelude.kind, ND_KIND_FILE_INDEX);
}

Test(record, every_shorter_length_is_truncated_and_says_where)
{
        uint8_t whole[SMALL_BYTES];

        make_small(whole);
        for (size_t n = 1; n < SMALL_BYTES; ++n) {
                struct nd_record record = {.record_bytes = 1};
                struct nd_fault fault;
                uint8_t *data = malloc(n);
                char want[32];

                cr_assert_not_null(data);
                memcpy(data, whole, n);
                cr_expect_eq(nd_record_unpack(data, n, 1000, &record, &fault), NDBUS_ETRUNCATED,
                             "%zu", n);
                snprintf(want, sizeof(want), "ends at byte %zu,", 1000 + n);
                cr_expect_not_null(strstr(fault.text, want), "%zu: %s", n, fault.text);
                cr_expect_eq(record.record_bytes, 1u);
                free(data);
        }
}

Test(record, every_damaged_byte_of_the_lead_is_noticed)
{
        /* numbers of the message itself, that nothing else in the record repeats */
        static const struct {
                size_t begin, end;
        } free_bytes[] = {{64 + 32, 64 + 56}};

        for (size_t at = 0; at < ND_RECORD_LEAD_BYTES; ++at) {
                struct nd_record record = {.record_bytes = 1};
                uint8_t data[SMALL_BYTES];
                int r, want = NDBUS_ECORRUPT;

                make_small(data);
                data[at] ^= 0xff;
                r = nd_record_unpack(data, sizeof(data), 0, &record, NULL);
                if (at == 8)
                        want = NDBUS_EUNSUPPORTED;
                if (at >= free_bytes[0].begin && at < free_bytes[0].end)
                        want = 0;
                cr_expect_eq(r, want, "byte %zu: %d", at, r);
                if (r)
                        cr_expect_eq(record.record_bytes, 1u, "byte %zu: result was written", at);
        }
}

Test(record, sizes_that_agree_but_exceed_their_limits_are_corrupt)
{
        static const struct nd_prelude rows[] = {
                {.kind = ND_KIND_PUBLISH, .header_bytes = ND_HEADER_BYTES_MAX + 1},
                {.kind = ND_KIND_PUBLISH, .meta_bytes = ND_META_BYTES_MAX + 1},
                {.kind = ND_KIND_PUBLISH, .body_bytes = ND_BODY_BYTES_MAX + 1},
                {.kind = ND_KIND_MESSAGE},
                {.kind = ND_KIND_CHUNK},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                uint8_t data[ND_RECORD_LEAD_BYTES];
                struct nd_record record;

                cr_assert_eq(nd_record_place(&rows[i], &record, NULL), 0);
                nd_record_pack_lead(&record, data);
                cr_expect_eq(nd_record_unpack(data, sizeof(data), 0, &record, NULL), NDBUS_ECORRUPT,
                             "%zu", i);
        }
}

Test(record, what_is_no_record_says_at_which_byte)
{
        struct nd_fault fault;
        struct nd_record record;

        cr_expect_eq(nd_record_unpack("GET / HTTP/1.0\r\n\r\n", 18, 320, &record, &fault),
                     NDBUS_ECORRUPT);
        cr_expect_str_eq(fault.field, "record");
        cr_expect_str_eq(fault.text, "byte 320: no record begins here");
        /* a transfer as text would make one line feed of the two */
        cr_expect_eq(nd_record_unpack("\x89NDBUS\n\x01", 8, 0, &record, &fault), NDBUS_ECORRUPT);
}
