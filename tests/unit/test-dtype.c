/* SPDX-License-Identifier: MIT */

/*
 * dtypes: names, widths, DLPack's codes
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/dtype.h"

static const struct nd_dtype *find(const char *name)
{
        return nd_dtype_find(name, strlen(name));
}

Test(dtype, every_name_finds_itself_and_is_there_once)
{
        for (size_t i = 0; i < nd_n_dtypes; ++i) {
                cr_expect_eq(find(nd_dtypes[i].name), &nd_dtypes[i], "%s", nd_dtypes[i].name);
                cr_expect_eq(nd_dtypes[i].has_byte_order,
                             nd_dtypes[i].trait == ND_DTYPE_UCS4 || nd_dtypes[i].bits > 8, "%s",
                             nd_dtypes[i].name);
        }
}

Test(dtype, knows_the_names_of_the_protocol_with_their_widths)
{
        static const struct {
                const char *name;
                uint32_t bits;
        } rows[] = {
                {"bool", 8},           {"int8", 8},
                {"int16", 16},         {"int32", 32},
                {"int64", 64},         {"uint8", 8},
                {"uint16", 16},        {"uint32", 32},
                {"uint64", 64},        {"float16", 16},
                {"float32", 32},       {"float64", 64},
                {"bfloat16", 16},      {"complex64", 64},
                {"complex128", 128},   {"float8_e3m4", 8},
                {"float8_e4m3", 8},    {"float8_e4m3b11fnuz", 8},
                {"float8_e4m3fn", 8},  {"float8_e4m3fnuz", 8},
                {"float8_e5m2", 8},    {"float8_e5m2fnuz", 8},
                {"float8_e8m0fnu", 8}, {"float6_e2m3fn", 6},
                {"float6_e3m2fn", 6},  {"float4_e2m1fn", 4},
                {"int4", 4},           {"uint4", 4},
                {"int2", 2},           {"uint2", 2},
                {"datetime64", 64},    {"timedelta64", 64},
                {"bytes", 0},          {"ucs4", 0},
                {"opaque", 0},         {"record", 0},
        };

        cr_expect_eq(nd_n_dtypes, nd_array_size(rows));
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                const struct nd_dtype *dtype = find(rows[i].name);

                cr_assert_not_null(dtype, "%s", rows[i].name);
                cr_expect_eq(dtype->bits, rows[i].bits, "%s", rows[i].name);
        }
}

Test(dtype, does_not_know_anything_else)
{
        static const char *const others[] = {"",     "int",    "int128", "float8", "float",
                                             "BOOL", "object", "<f4",    "void",   "float32 "};

        for (size_t i = 0; i < nd_array_size(others); ++i)
                cr_expect_null(find(others[i]), "%s", others[i]);
        cr_expect_null(nd_dtype_find("int8\0x", 6));
        cr_expect_null(nd_dtype_find("int8\0", 5));
        cr_expect_not_null(nd_dtype_find("int8_t", 4));
}

/* The codes are those of DLPack 1.x, whatever header is installed: T05 and T07 depend on it. */
Test(dtype, t05_t07_dlpack_codes_tell_all_types_apart)
{
        static const struct {
                int code;
                uint32_t bits;
                const char *name; /* NULL: there is none */
        } rows[] = {
                {0, 8, "int8"},
                {0, 16, "int16"},
                {0, 32, "int32"},
                {0, 64, "int64"},
                {0, 4, "int4"},
                {0, 2, "int2"},
                {0, 128, NULL},
                {0, 1, NULL},
                {1, 8, "uint8"},
                {1, 64, "uint64"},
                {1, 4, "uint4"},
                {1, 2, "uint2"},
                {1, 1, NULL},
                {2, 16, "float16"},
                {2, 32, "float32"},
                {2, 64, "float64"},
                {2, 8, NULL},
                {2, 128, NULL},
                {3, 64, "opaque"},
                {3, 8, "opaque"},
                {3, 7, NULL},
                {3, 0, NULL},
                {4, 16, "bfloat16"},
                {4, 32, NULL},
                {5, 64, "complex64"},
                {5, 128, "complex128"},
                {5, 32, NULL},
                {6, 8, "bool"},
                {6, 1, NULL},
                {7, 8, "float8_e3m4"},
                {8, 8, "float8_e4m3"},
                {9, 8, "float8_e4m3b11fnuz"},
                {10, 8, "float8_e4m3fn"},
                {11, 8, "float8_e4m3fnuz"},
                {12, 8, "float8_e5m2"},
                {13, 8, "float8_e5m2fnuz"},
                {14, 8, "float8_e8m0fnu"},
                {15, 6, "float6_e2m3fn"},
                {16, 6, "float6_e3m2fn"},
                {17, 4, "float4_e2m1fn"},
                {18, 8, NULL},
                {-1, 64, NULL},
                {255, 8, NULL},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                const struct nd_dtype *dtype = nd_dtype_from_dlpack(rows[i].code, rows[i].bits);

                if (!rows[i].name) {
                        cr_expect_null(dtype, "code %d, %u bits", rows[i].code, rows[i].bits);
                        continue;
                }
                cr_assert_not_null(dtype, "code %d, %u bits", rows[i].code, rows[i].bits);
                cr_expect_str_eq(dtype->name, rows[i].name);
                cr_expect_eq(dtype->dlpack_code, rows[i].code);
        }
}
