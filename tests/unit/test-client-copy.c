/* SPDX-License-Identifier: MIT */

/*
 * Copies past the caches: every byte, and no other one, however source, target and end lie
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "client/copy.h"
#include "tests/support/pattern.h"

#define LARGE_BYTES ((size_t)8 << 20)
#define ROOM_BYTES  64u

Test(client_copy, every_byte_and_no_other_one)
{
        static const size_t shifts[] = {0, 1, 8, 63};
        static const size_t sizes[] = {
                0, 1, 1000, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, LARGE_BYTES + 127,
        };
        const size_t n_max = LARGE_BYTES + 127 + 2 * ROOM_BYTES;
        uint8_t *source = aligned_alloc(64, (n_max + 63) / 64 * 64);
        uint8_t *target = aligned_alloc(64, (n_max + 63) / 64 * 64);

        cr_assert(source && target);
        nd_pattern_fill(source, 0, n_max);
        for (size_t i = 0; i < 4 * 4 * sizeof(sizes) / sizeof(*sizes); ++i) {
                size_t from = shifts[i % 4], to = ROOM_BYTES + shifts[i / 4 % 4], n = sizes[i / 16];

                memset(target, 0xaa, to);
                memset(target + to + n, 0xaa, n_max - to - n);
                nd_copy(target + to, source + from, n);
                cr_assert_eq(nd_pattern_compare(target + to, from, n), n);
                for (size_t k = 0; k < ROOM_BYTES; ++k) {
                        cr_assert_eq(target[to - 1 - k], 0xaa, "before, from %zu to %zu", from, to);
                        if (to + n + k < n_max)
                                cr_assert_eq(target[to + n + k], 0xaa, "behind %zu bytes", n);
                }
        }
        free(source);
        free(target);
}
