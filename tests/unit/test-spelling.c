/* SPDX-License-Identifier: MIT */

/*
 * Spelling of dtypes and shapes: what is printed is read back, and what is no word is refused
 */

#include <criterion/criterion.h>
#include <string.h>
#include "client/command/spelling.h"

Test(spelling, reads_back_what_it_prints)
{
        static const struct {
                const char *word, *dtype;
                uint32_t bits, flags;
                const char *unit;
                uint32_t unit_count;
        } cases[] = {
                {"float32", "float32", 32, 0, NULL, 0},
                {">float64", "float64", 64, NDBUS_BIG_ENDIAN, NULL, 0},
                {"bool", "bool", 8, 0, NULL, 0},
                {"bfloat16", "bfloat16", 16, 0, NULL, 0},
                {"float8_e4m3fn", "float8_e4m3fn", 8, 0, NULL, 0},
                {"complex128", "complex128", 128, 0, NULL, 0},
                {"datetime64[ns]", "datetime64", 64, 0, "ns", 1},
                {">timedelta64[25us]", "timedelta64", 64, NDBUS_BIG_ENDIAN, "us", 25},
                {"datetime64[generic]", "datetime64", 64, 0, "generic", 1},
                {"bytes[16]", "bytes", 128, 0, NULL, 0},
                {"opaque[3]", "opaque", 24, 0, NULL, 0},
                {">ucs4[5]", "ucs4", 160, NDBUS_BIG_ENDIAN, NULL, 0},
                {"uint8x4", "uint8", 8, 0, NULL, 0},
                {">float32x16", "float32", 32, NDBUS_BIG_ENDIAN, NULL, 0},
                {"float128:128x2", "float128", 128, 0, NULL, 0},
                {"float128:128", "float128", 128, 0, NULL, 0},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                struct nd_fault fault = {.code = 0};
                struct nd_spelling s;
                struct ndbus_array array;
                char word[ND_SPELLING_BYTES];

                cr_assert_eq(nd_spelling_parse_dtype(cases[i].word, "--dtype", &s, &fault), 0, "%s",
                             fault.text);
                cr_expect_str_eq(s.dtype, cases[i].dtype);
                cr_expect_eq(s.bits, cases[i].bits, "%s", cases[i].word);
                cr_expect_eq(s.flags, cases[i].flags, "%s", cases[i].word);
                cr_expect_str_eq(s.unit, cases[i].unit ? cases[i].unit : "");
                cr_expect_eq(s.unit_count, cases[i].unit_count, "%s", cases[i].word);

                array = (struct ndbus_array){.dtype = s.dtype,
                                             .bits = s.bits,
                                             .lanes = s.lanes,
                                             .flags = s.flags,
                                             .unit = s.unit[0] ? s.unit : NULL,
                                             .unit_count = s.unit_count};
                cr_expect_str_eq(nd_spelling_dtype(&array, word, sizeof(word)), cases[i].word);
        }
}

Test(spelling, refuses_what_is_no_dtype)
{
        static const char *const words[] = {
                "",
                ">",
                "float33",
                "float32[4]",
                "datetime64",
                "datetime64[]",
                "datetime64[ns",
                "datetime64[99999999999ns]",
                "bytes",
                "bytes[]",
                "bytes[0]",
                "bytes[x]",
                "ucs4[999999999]",
                "record[8]",
                "foo",
                "foo:",
                "foo:0",
                "foo:-1",
                "foo:1x",
                "foo:99999999999",
                "float32 ",
                "datetime64[nanosecond]",
                "datetime64[xx]",
                "datetime64x2[ns]",
                ">int8",
                "<bool",
                "float32x0",
                "float32x",
                "float32x65536",
                "bytes[4]x2",
                "x4",
                "raw[4]",
                ">raw",
        };

        for (size_t i = 0; i < nd_array_size(words); ++i) {
                struct nd_spelling s = {.bits = 77};

                cr_expect_eq(nd_spelling_parse_dtype(words[i], "--dtype", &s, NULL), NDBUS_EINVAL,
                             "'%s'", words[i]);
                cr_expect_eq(s.bits, 77);
        }
}

Test(spelling, reads_and_prints_shapes)
{
        static const struct {
                const char *text;
                int32_t ndim; /* -1: refused */
                int64_t shape[3];
                const char *printed;
        } cases[] = {
                {"480,640", 2, {480, 640}, "[480,640]"},
                {"[480,640]", 2, {480, 640}, "[480,640]"},
                {"7", 1, {7}, "[7]"},
                {"", 0, {0}, "[]"},
                {"[]", 0, {0}, "[]"},
                {"0,3,9223372036854775807", 3, {0, 3, INT64_MAX}, "[0,3,9223372036854775807]"},
                {"[1", -1, {0}, ""},
                {"1]", -1, {0}, ""},
                {"1,", -1, {0}, ""},
                {",1", -1, {0}, ""},
                {"1,,2", -1, {0}, ""},
                {"1, 2", -1, {0}, ""},
                {"-1", -1, {0}, ""},
                {"1x2", -1, {0}, ""},
                {"9223372036854775808", -1, {0}, ""},
                {"1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                 "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
                 -1,
                 {0},
                 ""},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                int64_t shape[NDBUS_DIMS_MAX];
                struct ndbus_array array = {.shape = shape};
                char word[ND_SPELLING_BYTES];
                int r = nd_spelling_parse_shape(cases[i].text, "--shape", shape, &array.ndim, NULL);

                cr_assert_eq(r, cases[i].ndim < 0 ? NDBUS_EINVAL : 0, "'%s'", cases[i].text);
                if (r)
                        continue;
                cr_assert_eq(array.ndim, cases[i].ndim);
                for (int32_t k = 0; k < array.ndim; ++k)
                        cr_expect_eq(shape[k], cases[i].shape[k]);
                cr_expect_str_eq(nd_spelling_shape(&array, word, sizeof(word)), cases[i].printed);
        }
}

/* Names come from peers and go to a terminal. */
Test(spelling, shows_nothing_unprintable)
{
        struct ndbus_array array = {.dtype = "a\x1b[2J b\t\xc3\xa9", .bits = 8};
        char word[ND_SPELLING_BYTES];

        cr_expect_str_eq(nd_spelling_dtype(&array, word, sizeof(word)), "a?[2J?b???:8");
}
