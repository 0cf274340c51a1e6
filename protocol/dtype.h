/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * dtypes: names and widths; PROTOCOL.md 5.2
 *
 * The names are those of the Python array API and of ml_dtypes. A name is never NumPy's character
 * code: that cannot tell bfloat16 from two opaque bytes, nor bool from uint8. Names that are not
 * in the table may be sent with any width: the daemon can check their sizes all the same.
 */

#include "protocol/base.h"

enum nd_dtype_trait {
        ND_DTYPE_PLAIN,  /* width fixed by the name */
        ND_DTYPE_UNIT,   /* 64 bits and a unit: datetime64, timedelta64 */
        ND_DTYPE_BYTES,  /* any multiple of 8 bits: bytes, opaque */
        ND_DTYPE_UCS4,   /* any multiple of 32 bits */
        ND_DTYPE_RECORD, /* 8 * itemsize, with fields */
};

struct nd_dtype {
        const char *name;
        uint32_t bits; /* 0: the array says */
        enum nd_dtype_trait trait;
        bool has_byte_order; /* wider than a byte, so big-endian is a thing */
        int dlpack_code;     /* DLDataTypeCode of DLPack 1.x; -1: DLPack cannot say it */
};

/* Every known dtype, in the order of PROTOCOL.md. */
extern const struct nd_dtype nd_dtypes[];
extern const size_t nd_n_dtypes;

/* NULL if the name is not known. @name needs no NUL. */
const struct nd_dtype *nd_dtype_find(const char *name, size_t n_name);

/* NULL if there is none: opaque (3) has none but "opaque", and bits must fit. */
const struct nd_dtype *nd_dtype_from_dlpack(int dlpack_code, uint32_t bits);
