/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Gather: a strided array as the bytes of its C-ordered copy, from any position
 */

#include <ndbus/array.h>
#include <sys/uio.h>
#include "protocol/base.h"

struct nd_gather {
        const uint8_t *at;  /* element (0, ..., 0) */
        uint64_t bytes;     /* of the packed copy */
        uint64_t run_bytes; /* that lie together */
        int32_t ndim;       /* dimensions above a run, outermost first; neighbours merged */
        uint64_t shape[NDBUS_DIMS_MAX];
        int64_t strides[NDBUS_DIMS_MAX];
};

/* @array must have passed nd_layout_plan(); @itemsize is the plan's. */
void nd_gather_init(struct nd_gather *gather, const struct ndbus_array *array, uint32_t itemsize);

/* Packs bytes [@from, @from + @n) of the copy; they must be there. */
void nd_gather_copy(const struct nd_gather *gather, uint64_t from, uint64_t n, uint8_t *out);

/* The same bytes as pieces: fills at most @n_iov of them, returns how many, and in @ret_bytes how
 * many of the @n bytes they hold. */
size_t nd_gather_iov(const struct nd_gather *gather,
                     uint64_t from,
                     uint64_t n,
                     struct iovec *iov,
                     size_t n_iov,
                     uint64_t *ret_bytes);
