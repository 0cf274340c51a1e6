/* SPDX-License-Identifier: MIT */

/*
 * Arrays as byte strings and back: what went in comes out, and nothing but the whole of it
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/index.h"
#include "tests/support/pattern.h"

static const uint8_t meta[] = {0x82, 0xa1, 'n', 0x07, 0xa1, 't', 0xcb, 0x3f,
                               0xf8, 0,    0,   0,    0,    0,   0};

static void *pack_two(size_t *ret_n)
{
        static uint8_t image[60], text[7] = "abcdefg";
        static const int64_t shape[] = {3, 5}, strides[] = {4, 12}, n_text[] = {7};
        const struct ndbus_array arrays[] = {
                {.data = image,
                 .name = "image",
                 .dtype = "float32",
                 .ndim = 2,
                 .shape = shape,
                 .strides = strides},
                {.data = text, .ndim = 1, .shape = n_text},
        };
        void *bytes;

        nd_pattern_fill(image, 0, sizeof(image));
        cr_assert_eq(ndbus_pack(arrays, 2, meta, sizeof(meta), &bytes, ret_n), 0, "%s",
                     ndbus_detail());
        cr_assert_eq((uintptr_t)bytes % 64, 0);
        cr_assert_eq(*ret_n % 64, 0);
        return bytes;
}

/* A file that ndbus record made, and two of them in one. */
Test(pack, an_index_is_passed_over)
{
        struct nd_index index = {.n_dropped = 1};
        struct ndbus_message *m;
        size_t n, n_index, n_record = 0;
        uint8_t *bytes = pack_two(&n), *all;
        void *between;

        cr_assert_eq(nd_index_pack(&index, &between, &n_index), 0);
        all = malloc(2 * (n + n_index));
        cr_assert(all);
        for (size_t i = 0; i < 2; ++i) {
                memcpy(all + i * (n + n_index), bytes, n);
                memcpy(all + i * (n + n_index) + n, between, n_index);
        }
        cr_assert_eq(ndbus_unpack(all, 2 * (n + n_index), &m, &n_record), 0, "%s", ndbus_detail());
        cr_assert_eq(n_record, n);
        ndbus_message_free(m);
        cr_assert_eq(ndbus_unpack(all + n, 2 * n_index + n, &m, &n_record), 0, "%s",
                     ndbus_detail());
        cr_assert_eq(n_record, n_index + n);
        ndbus_message_free(m);
        cr_assert_eq(ndbus_unpack(all + 2 * n + n_index, n_index, &m, &n_record), NDBUS_EENDED);
        free(all);
        free(between);
        free(bytes);
}

Test(pack, the_encoding_is_kept)
{
        struct ndbus_message *m;
        void *bytes;
        size_t n;

        cr_assert_eq(ndbus_pack_encoded(NULL, 0, NULL, 0, "mine", &bytes, &n), 0, "%s",
                     ndbus_detail());
        cr_assert_eq(ndbus_unpack(bytes, n, &m, NULL), 0, "%s", ndbus_detail());
        cr_assert_str_eq(ndbus_message_encoding(m), "mine");
        ndbus_message_free(m);
        free(bytes);
        cr_assert_eq(ndbus_pack_encoded(NULL, 0, NULL, 0, "", &bytes, &n), NDBUS_EINVAL, "%s",
                     ndbus_detail());
}

Test(pack, comes_back_as_it_was)
{
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        const void *got_meta;
        size_t n, n_record = 0;
        void *bytes = pack_two(&n);

        cr_assert_eq(ndbus_unpack(bytes, n, &m, &n_record), 0, "%s", ndbus_detail());
        cr_assert_eq(n_record, n);
        cr_assert_eq(ndbus_message_arrays(m, &arrays), 2);
        cr_assert_str_eq(arrays[0].name, "image");
        cr_assert_str_eq(arrays[0].dtype, "float32");
        cr_assert_eq(arrays[0].shape[1], 5);
        cr_assert_eq(arrays[0].strides[0], 4);
        cr_assert_eq(arrays[0].strides[1], 12);
        cr_assert_eq(arrays[0].flags, NDBUS_READ_ONLY);
        cr_assert_eq(nd_pattern_compare(arrays[0].data, 0, 60), 60);
        cr_assert_null(arrays[1].dtype);
        cr_assert_arr_eq(arrays[1].data, "abcdefg", 7);
        for (size_t i = 0; i < 2; ++i) {
                cr_assert_eq((uintptr_t)arrays[i].data % 64, 0);
                cr_assert((const uint8_t *)arrays[i].data > (uint8_t *)bytes &&
                          (const uint8_t *)arrays[i].data < (uint8_t *)bytes + n);
        }
        cr_assert_eq(ndbus_message_meta(m, &got_meta), sizeof(meta));
        cr_assert_arr_eq(got_meta, meta, sizeof(meta));
        ndbus_message_free(m);
        free(bytes);
}

Test(pack, owning_makes_copies_that_outlive_the_bytes)
{
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        size_t n;
        void *bytes = pack_two(&n);

        cr_assert_eq(ndbus_unpack(bytes, n, &m, NULL), 0);
        cr_assert_eq(ndbus_message_own(m), 0);
        memset(bytes, 0xee, n);
        free(bytes);
        ndbus_message_arrays(m, &arrays);
        cr_assert_eq(arrays[0].flags, 0);
        cr_assert_eq(nd_pattern_compare(arrays[0].data, 0, 60), 60);
        memset((void *)(uintptr_t)arrays[0].data, 0, 60);
        ndbus_message_free(m);
}

Test(pack, every_shorter_length_is_truncated)
{
        struct ndbus_message *m = NULL;
        size_t n;
        void *bytes = pack_two(&n);

        for (size_t i = 0; i < n; ++i) {
                uint8_t *cut = malloc(i + 1); /* so that reading beyond it is noticed */

                memcpy(cut, bytes, i);
                cr_assert_eq(ndbus_unpack(cut, i, &m, NULL), NDBUS_ETRUNCATED, "%zu: %s", i,
                             ndbus_detail());
                free(cut);
        }
        cr_assert_null(m);
        free(bytes);
}

Test(pack, two_in_a_row_are_read_one_after_the_other)
{
        struct ndbus_message *m;
        size_t n, n_record;
        void *bytes = pack_two(&n);
        uint8_t *both = aligned_alloc(64, 2 * n);

        memcpy(both, bytes, n);
        memcpy(both + n, bytes, n);
        cr_assert_eq(ndbus_unpack(both, 2 * n, &m, &n_record), 0);
        cr_assert_eq(n_record, n);
        ndbus_message_free(m);
        cr_assert_eq(ndbus_unpack(both + n, n, &m, &n_record), 0);
        cr_assert_eq(n_record, n);
        ndbus_message_free(m);
        free(both);
        free(bytes);
}

Test(pack, what_is_no_record_is_said)
{
        struct ndbus_message *m = NULL;
        size_t n;
        uint8_t *bytes = pack_two(&n);

        cr_assert_eq(
                ndbus_unpack("\x93NUMPY plus enough bytes that it could be a head of a record, "
                             "and more of them",
                             80, &m, NULL),
                NDBUS_ECORRUPT);
        bytes[0] ^= 1;
        cr_assert_eq(ndbus_unpack(bytes, n, &m, NULL), NDBUS_ECORRUPT);
        cr_assert_null(m);
        free(bytes);
}

Test(pack, a_spoilt_header_harms_nobody)
{
        struct ndbus_message *m;
        size_t n;
        uint8_t *bytes = pack_two(&n);

        for (size_t i = 64; i < 400 && i < n; ++i) {
                for (unsigned int bit = 0; bit < 8; ++bit) {
                        const struct ndbus_array *arrays;

                        bytes[i] ^= (uint8_t)(1u << bit);
                        m = NULL;
                        if (ndbus_unpack(bytes, n, &m, NULL) == 0) {
                                cr_assert_leq(ndbus_message_arrays(m, &arrays), 2);
                                ndbus_message_free(m);
                        } else {
                                cr_assert_null(m);
                                cr_assert_neq(ndbus_detail()[0], '\0');
                        }
                        bytes[i] ^= (uint8_t)(1u << bit);
                }
        }
        free(bytes);
}

Test(pack, nothing_at_all_is_a_record_too)
{
        const struct ndbus_array *arrays;
        struct ndbus_message *m;
        size_t n;
        void *bytes;

        cr_assert_eq(ndbus_pack(NULL, 0, NULL, 0, &bytes, &n), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_unpack(bytes, n, &m, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_message_arrays(m, &arrays), 0);
        ndbus_message_free(m);
        free(bytes);
}

Test(pack, meta_that_is_no_map_is_refused)
{
        size_t n = 7;
        void *bytes = NULL;

        cr_assert_eq(ndbus_pack(NULL, 0, "\xdd\x00\xff\xff\xff", 5, &bytes, &n), NDBUS_EMETA);
        cr_assert_eq(n, 7);
        cr_assert_null(bytes);
}
