/* SPDX-License-Identifier: MIT */

/*
 * Header: what is written is what is read
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/header.h"

Test(header, t01_round_trip_of_a_plain_array)
{
        struct nd_frame frame = {
                .array = {.dtype = "float32", .ndim = 1, .shape = (int64_t[]){3}},
                .bytes = 12,
        };
        struct nd_header header = {
                .topic = "a/b",
                .n_topic = 3,
                .n_frames = 1,
                .frames = &frame,
        };
        struct nd_header *ret = NULL;
        struct nd_fault fault;
        void *data = NULL;
        size_t n_data;

        cr_assert_eq(nd_header_pack(&header, &data, &n_data), 0);
        cr_assert_eq(nd_header_unpack(data, n_data, NULL, &ret, &fault), 0, "%s: %s", fault.field,
                     fault.text);
        cr_expect_str_eq(ret->topic, "a/b");
        cr_expect_eq(ret->n_frames, 1u);
        cr_expect_eq(ret->body_bytes, 12u);
        cr_expect_str_eq(ret->frames[0].array.dtype, "float32");
        cr_expect_eq(ret->frames[0].array.shape[0], 3);
        nd_header_free(ret);
        free(data);
}
