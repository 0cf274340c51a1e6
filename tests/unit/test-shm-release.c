/* SPDX-License-Identifier: MIT */

/*
 * Body of RELEASE: comes out as it went in, is bounded, and cut short it is refused
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/shm/release.h"

static uint8_t body[ND_CONTROL_BODY_BYTES_MAX + 1];

Test(shm_release, groups_by_segment)
{
        static const struct {
                uint32_t segment;
                uint64_t place;
        } entries[] = {{1, 0}, {1, 64}, {7, UINT64_C(1) << 40}, {1, 128}, {1, 128}};
        struct nd_release_writer writer = {.data = body};
        struct nd_release_reader reader = {.data = body};
        struct nd_fault fault;
        uint32_t segment;
        uint64_t place;

        for (size_t i = 0; i < nd_array_size(entries); ++i)
                cr_assert(nd_release_add(&writer, entries[i].segment, entries[i].place));
        cr_assert_eq(writer.n, 3 * 8 + 5 * 8);
        reader.n = writer.n;
        for (size_t i = 0; i < nd_array_size(entries); ++i) {
                cr_assert_eq(nd_release_next(&reader, &segment, &place, &fault), 1);
                cr_assert_eq(segment, entries[i].segment);
                cr_assert_eq(place, entries[i].place);
        }
        cr_assert_eq(nd_release_next(&reader, &segment, &place, &fault), 0);
        cr_assert_eq(nd_release_next(&reader, &segment, &place, &fault), 0);
}

Test(shm_release, is_full_at_the_size_of_a_packet)
{
        struct nd_release_writer one = {.data = body}, many = {.data = body};
        size_t n = 0;

        body[ND_CONTROL_BODY_BYTES_MAX] = 0x5a;
        while (nd_release_add(&one, 3, n * 64))
                ++n;
        cr_assert_eq(n, (ND_CONTROL_BODY_BYTES_MAX - 8) / 8);
        cr_assert_eq(one.n, ND_CONTROL_BODY_BYTES_MAX);

        n = 0;
        while (nd_release_add(&many, 1 + n % 2, 64))
                ++n;
        cr_assert_eq(n, ND_CONTROL_BODY_BYTES_MAX / 16);
        cr_assert_eq(body[ND_CONTROL_BODY_BYTES_MAX], 0x5a);
}

Test(shm_release, refuses_what_the_bytes_do_not_bear_out)
{
        struct nd_release_writer writer = {.data = body};
        struct nd_release_reader reader;
        struct nd_fault fault;
        uint32_t segment;
        uint64_t place;
        int r;

        for (size_t i = 0; i < 6; ++i)
                cr_assert(nd_release_add(&writer, (uint32_t)(1 + i / 3), i * 64));
        for (size_t n = 0; n <= writer.n; ++n) {
                reader = (struct nd_release_reader){.data = body, .n = n};
                do
                        r = nd_release_next(&reader, &segment, &place, &fault);
                while (r == 1);
                if (n == 0 || n == writer.n / 2 || n == writer.n) {
                        cr_assert_eq(r, 0, "%zu bytes", n);
                } else {
                        cr_assert_eq(r, NDBUS_EPROTOCOL, "%zu bytes", n);
                        cr_assert_str_eq(fault.field, "RELEASE");
                }
        }

        nd_store_le32(body + 4, 0);
        reader = (struct nd_release_reader){.data = body, .n = writer.n};
        cr_assert_eq(nd_release_next(&reader, &segment, &place, &fault), NDBUS_EPROTOCOL);
        nd_store_le32(body + 4, UINT32_MAX);
        reader = (struct nd_release_reader){.data = body, .n = writer.n};
        cr_assert_eq(nd_release_next(&reader, &segment, &place, &fault), NDBUS_EPROTOCOL);
}
