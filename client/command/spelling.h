/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Spelling: dtypes and shapes as one word, the way the command prints and reads them
 *
 *   float32  >float64 (big-endian)  datetime64[ns]  timedelta64[25us]  float32x4 (lanes)
 *   bytes[16]  opaque[12]  record[24] (bytes of an element)  ucs4[5] (characters)
 *   name:BITS (dtypes that are not known)
 *
 *   [480,640]  [7]  [] (one element)
 */

#include <ndbus/array.h>
#include "protocol/fault.h"

/* Both write a NUL-terminated word, cut to @n_out, and return @out. Control characters, spaces and
 * bytes above 126 of a peer's names become '?'. */
char *nd_spelling_dtype(const struct ndbus_array *array, char *out, size_t n_out);
char *nd_spelling_shape(const struct ndbus_array *array, char *out, size_t n_out);

/* Long enough for every shape and every dtype with a name of at most 255 bytes. */
#define ND_SPELLING_BYTES 1536u

struct nd_spelling {
        char dtype[64]; /* "": raw bytes */
        uint32_t bits;  /* of one lane */
        uint16_t lanes; /* 0: none */
        uint32_t flags;
        char unit[8];
        uint32_t unit_count;
};

/**
 * nd_spelling_parse_dtype() - the dtype that a user named
 * @field:  what to call it in @fault: "--dtype"
 *
 * Return: 0; NDBUS_EINVAL with examples of what would be right
 */
int nd_spelling_parse_dtype(const char *text,
                            const char *field,
                            struct nd_spelling *ret,
                            struct nd_fault *fault);

/* "480,640" or "[480,640]"; "" or "[]" is one element. 0 or NDBUS_EINVAL. */
int nd_spelling_parse_shape(const char *text,
                            const char *field,
                            int64_t ret_shape[static NDBUS_DIMS_MAX],
                            int32_t *ret_ndim,
                            struct nd_fault *fault);
