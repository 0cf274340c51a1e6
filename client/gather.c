/* SPDX-License-Identifier: MIT */

/*
 * Strided arrays in C order
 *
 * An array that is not dense is sent as its C-ordered copy. The copy is never made as a whole: any
 * range of it can be written, or described by pieces of the caller's memory, so that an array of
 * any size goes through a small buffer.
 *
 * Dimensions of length 1 do not matter; an inner dimension whose stride equals the bytes of what
 * lies below it makes that run longer; two neighbours that one stride can describe become one.
 * What is left is a run of bytes and an odometer over the dimensions above it. The innermost of
 * those is walked in a loop of its own, with the usual run lengths as constants: for a compiler
 * that is a load and a store, not a call of memcpy.
 */

#include "client/gather.h"
#include <string.h>

void nd_gather_init(struct nd_gather *gather, const struct ndbus_array *array, uint32_t itemsize)
{
        int32_t n = 0;

        gather->at = array->data;
        gather->bytes = itemsize;
        gather->run_bytes = itemsize;

        /* outermost first, without dimensions of length 1, neighbours merged */
        for (int32_t i = 0; i < array->ndim; ++i) {
                uint64_t length = (uint64_t)array->shape[i];
                int64_t stride = array->strides[i];

                gather->bytes *= length;
                if (length == 1)
                        continue;
                if (n > 0 && gather->strides[n - 1] == stride * (int64_t)length) {
                        gather->shape[n - 1] *= length;
                        gather->strides[n - 1] = stride;
                        continue;
                }
                gather->shape[n] = length;
                gather->strides[n] = stride;
                ++n;
        }
        while (n > 0 && gather->strides[n - 1] == (int64_t)gather->run_bytes) {
                gather->run_bytes *= gather->shape[n - 1];
                --n;
        }
        gather->ndim = n;
}

/* Where a walk over the runs stands. */
struct walk {
        const uint8_t *at; /* first byte of the current run */
        uint64_t index[NDBUS_DIMS_MAX];
};

static void walk_start(const struct nd_gather *gather, uint64_t i_run, struct walk *walk)
{
        walk->at = gather->at;
        for (int32_t i = gather->ndim - 1; i >= 0; --i) {
                walk->index[i] = i_run % gather->shape[i];
                i_run /= gather->shape[i];
                walk->at += (int64_t)walk->index[i] * gather->strides[i];
        }
}

/* Moves on by @n runs that do not leave the innermost dimension, and beyond its end if that is
 * reached. */
static void walk_on(const struct nd_gather *gather, struct walk *walk, uint64_t n)
{
        int32_t i = gather->ndim - 1;

        if (i < 0)
                return;
        walk->index[i] += n;
        walk->at += (int64_t)n * gather->strides[i];
        while (walk->index[i] == gather->shape[i]) {
                walk->at -= (int64_t)gather->shape[i] * gather->strides[i];
                walk->index[i] = 0;
                if (--i < 0)
                        return;
                ++walk->index[i];
                walk->at += gather->strides[i];
        }
}

static uint64_t walk_left(const struct nd_gather *gather, const struct walk *walk)
{
        int32_t i = gather->ndim - 1;

        return i < 0 ? 1 : gather->shape[i] - walk->index[i];
}

#define COPY_RUNS(_bytes)                                                                          \
        for (; n > 0; --n, at += stride, out += (_bytes))                                          \
        memcpy(out, at, (_bytes))

static void copy_runs(const uint8_t *at, int64_t stride, uint64_t run, uint64_t n, uint8_t *out)
{
        switch (run) {
        case 1:
                COPY_RUNS(1);
                break;
        case 2:
                COPY_RUNS(2);
                break;
        case 4:
                COPY_RUNS(4);
                break;
        case 8:
                COPY_RUNS(8);
                break;
        case 16:
                COPY_RUNS(16);
                break;
        default:
                COPY_RUNS(run);
        }
}

void nd_gather_copy(const struct nd_gather *gather, uint64_t from, uint64_t n, uint8_t *out)
{
        struct walk walk;
        uint64_t run = gather->run_bytes, skip, n_runs, part;
        int64_t stride = gather->ndim ? gather->strides[gather->ndim - 1] : 0;

        if (n == 0)
                return;
        walk_start(gather, from / run, &walk);
        skip = from % run;
        if (skip) {
                part = nd_min_u64(run - skip, n);
                memcpy(out, walk.at + skip, part);
                out += part;
                n -= part;
                walk_on(gather, &walk, 1);
        }
        while (n >= run) {
                n_runs = nd_min_u64(n / run, walk_left(gather, &walk));
                copy_runs(walk.at, stride, run, n_runs, out);
                out += n_runs * run;
                n -= n_runs * run;
                walk_on(gather, &walk, n_runs);
        }
        if (n)
                memcpy(out, walk.at, n);
}

size_t nd_gather_iov(const struct nd_gather *gather,
                     uint64_t from,
                     uint64_t n,
                     struct iovec *iov,
                     size_t n_iov,
                     uint64_t *ret_bytes)
{
        struct walk walk;
        uint64_t skip = from % gather->run_bytes, part, bytes = 0;
        size_t i = 0;

        walk_start(gather, from / gather->run_bytes, &walk);
        for (; i < n_iov && bytes < n; ++i) {
                part = nd_min_u64(gather->run_bytes - skip, n - bytes);
                iov[i].iov_base = (void *)(uintptr_t)(walk.at + skip);
                iov[i].iov_len = part;
                bytes += part;
                skip = 0;
                walk_on(gather, &walk, 1);
        }
        *ret_bytes = bytes;
        return i;
}
