/* SPDX-License-Identifier: MIT */

/*
 * dtypes: names and widths
 *
 * One table for both directions. DLPack's codes are those of version 1.x, written as numbers
 * because the headers of older versions do not have the later ones; -1 where DLPack cannot say it.
 */

#include "protocol/dtype.h"
#include <string.h>

const struct nd_dtype nd_dtypes[] = {
        /* name, bits, trait, has_byte_order, dlpack_code */
        {"bool", 8, ND_DTYPE_PLAIN, false, 6},
        {"int8", 8, ND_DTYPE_PLAIN, false, 0},
        {"int16", 16, ND_DTYPE_PLAIN, true, 0},
        {"int32", 32, ND_DTYPE_PLAIN, true, 0},
        {"int64", 64, ND_DTYPE_PLAIN, true, 0},
        {"uint8", 8, ND_DTYPE_PLAIN, false, 1},
        {"uint16", 16, ND_DTYPE_PLAIN, true, 1},
        {"uint32", 32, ND_DTYPE_PLAIN, true, 1},
        {"uint64", 64, ND_DTYPE_PLAIN, true, 1},
        {"float16", 16, ND_DTYPE_PLAIN, true, 2},
        {"float32", 32, ND_DTYPE_PLAIN, true, 2},
        {"float64", 64, ND_DTYPE_PLAIN, true, 2},
        {"bfloat16", 16, ND_DTYPE_PLAIN, true, 4},
        {"complex64", 64, ND_DTYPE_PLAIN, true, 5},
        {"complex128", 128, ND_DTYPE_PLAIN, true, 5},
        {"float8_e3m4", 8, ND_DTYPE_PLAIN, false, 7},
        {"float8_e4m3", 8, ND_DTYPE_PLAIN, false, 8},
        {"float8_e4m3b11fnuz", 8, ND_DTYPE_PLAIN, false, 9},
        {"float8_e4m3fn", 8, ND_DTYPE_PLAIN, false, 10},
        {"float8_e4m3fnuz", 8, ND_DTYPE_PLAIN, false, 11},
        {"float8_e5m2", 8, ND_DTYPE_PLAIN, false, 12},
        {"float8_e5m2fnuz", 8, ND_DTYPE_PLAIN, false, 13},
        {"float8_e8m0fnu", 8, ND_DTYPE_PLAIN, false, 14},
        {"float6_e2m3fn", 6, ND_DTYPE_PLAIN, false, 15},
        {"float6_e3m2fn", 6, ND_DTYPE_PLAIN, false, 16},
        {"float4_e2m1fn", 4, ND_DTYPE_PLAIN, false, 17},
        {"int4", 4, ND_DTYPE_PLAIN, false, 0},
        {"uint4", 4, ND_DTYPE_PLAIN, false, 1},
        {"int2", 2, ND_DTYPE_PLAIN, false, 0},
        {"uint2", 2, ND_DTYPE_PLAIN, false, 1},
        {"datetime64", 64, ND_DTYPE_UNIT, true, -1},
        {"timedelta64", 64, ND_DTYPE_UNIT, true, -1},
        {"bytes", 0, ND_DTYPE_BYTES, false, -1},
        {"ucs4", 0, ND_DTYPE_UCS4, true, -1},
        {"opaque", 0, ND_DTYPE_BYTES, false, 3},
        {"record", 0, ND_DTYPE_RECORD, false, -1},
};

const size_t nd_n_dtypes = nd_array_size(nd_dtypes);

const struct nd_dtype *nd_dtype_find(const char *name, size_t n_name)
{
        for (size_t i = 0; i < nd_array_size(nd_dtypes); ++i) {
                const char *known = nd_dtypes[i].name;

                if (strlen(known) == n_name && memcmp(known, name, n_name) == 0)
                        return &nd_dtypes[i];
        }
        return NULL;
}

static bool dtype_fits_bits(const struct nd_dtype *dtype, uint32_t bits)
{
        if (dtype->bits)
                return bits == dtype->bits;
        return bits > 0 && bits % 8 == 0;
}

const struct nd_dtype *nd_dtype_from_dlpack(int dlpack_code, uint32_t bits)
{
        if (dlpack_code < 0)
                return NULL;
        for (size_t i = 0; i < nd_array_size(nd_dtypes); ++i) {
                if (nd_dtypes[i].dlpack_code == dlpack_code && dtype_fits_bits(&nd_dtypes[i], bits))
                        return &nd_dtypes[i];
        }
        return NULL;
}
