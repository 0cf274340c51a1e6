/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Elements as numbers: what a picture or a line needs of an array of any numeric dtype
 */

#include <ndbus/array.h>
#include "protocol/fault.h"

enum nd_number_kind {
        ND_NUMBER_BOOL,
        ND_NUMBER_UINT,
        ND_NUMBER_INT,
        ND_NUMBER_TIME, /* int64, the least of which is "not a time" */
        ND_NUMBER_FLOAT32,
        ND_NUMBER_FLOAT64,
        ND_NUMBER_MINI, /* a float of at most 16 bits, described by its parts */
        ND_NUMBER_COMPLEX64,
        ND_NUMBER_COMPLEX128,
};

struct nd_number {
        enum nd_number_kind kind;
        uint32_t bits;
        bool is_big_endian;
        bool is_packed; /* elements stand bit by bit, least significant first */
        const struct nd_number_mini *mini;
};

/**
 * nd_number_describe() - how to read the elements of an array
 *
 * Return: 0; NDBUS_EDTYPE for records, text, opaque bytes, vectors and dtypes that are not known
 */
int nd_number_describe(const struct ndbus_array *array,
                       struct nd_number *ret,
                       struct nd_fault *fault);

/* What one step along a dimension adds to the offset that nd_number_load() takes: strides of the
 * array, or of C order, in bytes; in bits if the elements are packed. */
void nd_number_steps(const struct nd_number *number,
                     const struct ndbus_array *array,
                     int64_t ret_steps[static NDBUS_DIMS_MAX]);

/* The element at an offset; complex ones as their magnitude; NaN for "not a time". */
double nd_number_load(const struct nd_number *number, const void *data, int64_t offset);
