/* SPDX-License-Identifier: MIT */

/*
 * P(n) is the P(n) that the digests of the cases were made of
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/pattern.h"

static const struct {
        size_t n;
        const char *sha256;
} digests[] = {
        {1, "ca358758f6d27e6cf45272937977a748fd88391db679ceda7dc7bf1f005ee879"},
        {65536, "ef4636928161808e87035fa51983821677527ccd9661991c5d0126a778b2268a"},
        {65537, "74f3260f4a9adaf7271c910ba2d111dbae7a176afb487e1b7f655897eadf1093"},
        {1u << 20, "06b7bbfb7824aa03382051691630eb26de85102d1b08a81e907ec0744cd8a286"},
        {64u << 20, "601fc533f64b11042a9ae821c272064871306a99496652afb5758c8979d8834d"},
};

Test(pattern, has_the_digests_of_the_cases)
{
        uint8_t *bytes = malloc(64u << 20);

        cr_assert(bytes);
        nd_pattern_fill(bytes, 0, 64u << 20);
        for (size_t i = 0; i < sizeof(digests) / sizeof(digests[0]); ++i) {
                char hex[65];

                nd_sha256(bytes, digests[i].n, hex);
                cr_expect_str_eq(hex, digests[i].sha256, "P(%zu): %s", digests[i].n, hex);
        }
        free(bytes);
}

Test(pattern, check_finds_the_first_difference_at_any_offset)
{
        static uint8_t bytes[200000];

        for (uint64_t offset = 0; offset < 600; offset += 37) {
                nd_pattern_fill(bytes, offset, sizeof(bytes));
                cr_expect_eq(bytes[3], (uint8_t)(31 * (offset + 3) + 7));
                cr_expect_eq(nd_pattern_compare(bytes, offset, sizeof(bytes)), sizeof(bytes));
                cr_expect_eq(nd_pattern_compare(bytes, offset + 1, sizeof(bytes)), 0);
                for (size_t at = 0; at < sizeof(bytes); at += 33333) {
                        bytes[at] ^= 1;
                        cr_expect_eq(nd_pattern_compare(bytes, offset, sizeof(bytes)), at);
                        bytes[at] ^= 1;
                }
        }
        cr_expect_eq(nd_pattern_compare(bytes, 5, 0), 0);
}
