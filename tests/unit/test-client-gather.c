/* SPDX-License-Identifier: MIT */

/*
 * Gathering strided arrays, against the slowest way to do it: every element by its indices. And
 * bodies, which mix frames of all kinds, against their own copy in one piece.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "client/body.h"
#include "tests/support/pattern.h"

#define MEMORY_BYTES (1u << 20)

static uint8_t memory[MEMORY_BYTES];
static uint64_t random_state = 88172645463325252u;

static uint64_t draw(uint64_t n)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state % n;
}

/* An array somewhere in the memory: strides of any sign, some broadcast, some of no use. */
struct sample {
        struct ndbus_array array;
        int64_t shape[NDBUS_DIMS_MAX];
        int64_t strides[NDBUS_DIMS_MAX];
        uint32_t itemsize;
        uint64_t n;
};

static void make_sample(struct sample *s)
{
        static const uint32_t itemsizes[] = {1, 2, 3, 4, 8, 16, 24};
        int64_t low = 0, high = 0, step;

        s->itemsize = itemsizes[draw(sizeof(itemsizes) / sizeof(*itemsizes))];
        step = s->itemsize;
        s->n = 1;
        s->array = (struct ndbus_array){
                .dtype = "opaque",
                .bits = 8 * s->itemsize,
                .ndim = (int32_t)draw(5),
                .shape = s->shape,
                .strides = s->strides,
        };
        for (int32_t i = s->array.ndim - 1; i >= 0; --i) {
                s->shape[i] = 1 + (int64_t)draw(7);
                s->strides[i] = step * (1 + (int64_t)draw(2));
                if (draw(6) == 0)
                        s->strides[i] = 0;
                if (draw(3) == 0)
                        s->strides[i] = -s->strides[i];
                step = step * s->shape[i] * 2;
                s->n *= (uint64_t)s->shape[i];
                if (s->strides[i] < 0)
                        low += s->strides[i] * (s->shape[i] - 1);
                else
                        high += s->strides[i] * (s->shape[i] - 1);
        }
        cr_assert_lt(high - low + s->itemsize, MEMORY_BYTES);
        s->array.data = memory - low + draw(MEMORY_BYTES - (uint64_t)(high - low) - s->itemsize);
}

static void copy_slowly(const struct sample *s, uint8_t *out)
{
        int64_t index[NDBUS_DIMS_MAX] = {0};
        const uint8_t *at;
        int32_t d;

        for (uint64_t i = 0; i < s->n; ++i, out += s->itemsize) {
                at = s->array.data;
                for (d = 0; d < s->array.ndim; ++d)
                        at += index[d] * s->strides[d];
                memcpy(out, at, s->itemsize);
                for (d = s->array.ndim - 1; d >= 0 && ++index[d] == s->shape[d]; --d)
                        index[d] = 0;
        }
}

Test(gather, any_range_is_that_of_the_slow_copy)
{
        static uint8_t want[MEMORY_BYTES], got[MEMORY_BYTES];
        struct nd_gather gather;
        struct sample s;

        nd_pattern_fill(memory, 0, sizeof(memory));
        for (int round = 0; round < 2000; ++round) {
                uint64_t bytes, from, n;

                make_sample(&s);
                copy_slowly(&s, want);
                nd_gather_init(&gather, &s.array, s.itemsize);
                bytes = s.n * s.itemsize;
                cr_assert_eq(gather.bytes, bytes);
                nd_gather_copy(&gather, 0, bytes, got);
                cr_assert_arr_eq(got, want, bytes);
                from = draw(bytes);
                n = draw(bytes - from + 1);
                memset(got, 0xee, n + 1);
                nd_gather_copy(&gather, from, n, got);
                cr_assert_arr_eq(got, want + from, n);
                cr_assert_eq(got[n], 0xee);
        }
}

Test(gather, pieces_are_the_same_bytes)
{
        static uint8_t want[MEMORY_BYTES], got[MEMORY_BYTES];
        struct nd_gather gather;
        struct sample s;

        nd_pattern_fill(memory, 0, sizeof(memory));
        for (int round = 0; round < 1000; ++round) {
                struct iovec iov[5];
                uint64_t bytes, at, part;
                size_t n;

                make_sample(&s);
                copy_slowly(&s, want);
                nd_gather_init(&gather, &s.array, s.itemsize);
                bytes = s.n * s.itemsize;
                for (at = 0; at < bytes; at += part) {
                        uint8_t *out = got;

                        n = nd_gather_iov(&gather, at, 1 + draw(bytes - at), iov, 5, &part);
                        cr_assert(n >= 1 && n <= 5 && part >= 1 && part <= bytes - at);
                        for (size_t i = 0; i < n; ++i) {
                                memcpy(out, iov[i].iov_base, iov[i].iov_len);
                                out += iov[i].iov_len;
                        }
                        cr_assert_eq((uint64_t)(out - got), part);
                        cr_assert_arr_eq(got, want + at, part);
                }
        }
}

Test(gather, whole_rows_are_one_run)
{
        const int64_t shape[] = {3, 4, 5}, strides[] = {1000, 40, 8};
        const struct ndbus_array array = {
                .data = memory, .ndim = 3, .shape = shape, .strides = strides};
        struct nd_gather gather;

        nd_gather_init(&gather, &array, 8);
        cr_assert_eq(gather.run_bytes, 160);
        cr_assert_eq(gather.ndim, 1);
}

/* ------------------------------------------------------------------------------------- bodies */

#define ARRAYS_MAX 12

/* Frames of any kind: flat ones of a few bytes to many, gathered ones with short and long runs. */
static void make_frame(struct sample *s, struct nd_plan *plan)
{
        if (draw(2)) {
                make_sample(s);
                *plan = (struct nd_plan){ND_ORDER_GATHER, s->n * s->itemsize, s->n, s->itemsize};
                if (s->array.ndim == 0)
                        plan->order = ND_ORDER_C;
                return;
        }
        if (draw(3) == 0) {
                s->itemsize = 2 + (uint32_t)draw(4000);
                s->shape[0] = 1 + (int64_t)draw(9);
                s->strides[0] = s->itemsize + 7;
                s->array = (struct ndbus_array){.data = memory + draw(1000),
                                                .ndim = 1,
                                                .shape = s->shape,
                                                .strides = s->strides};
                *plan = (struct nd_plan){ND_ORDER_GATHER, (uint64_t)s->shape[0] * s->itemsize,
                                         (uint64_t)s->shape[0], s->itemsize};
                return;
        }
        *plan = (struct nd_plan){ND_ORDER_C, draw(4) ? draw(3000) : draw(400000), 0, 1};
        s->array = (struct ndbus_array){.data = memory + draw(1000)};
}

Test(body, pieces_are_the_copy_whatever_is_asked_for)
{
        static uint8_t want[ARRAYS_MAX * 420000];
        static struct sample samples[ARRAYS_MAX];
        struct nd_body_store store = {0};

        nd_pattern_fill(memory, 0, sizeof(memory));
        for (int round = 0; round < 300; ++round) {
                struct ndbus_array arrays[ARRAYS_MAX];
                struct nd_plan plans[ARRAYS_MAX];
                struct nd_frame frames[ARRAYS_MAX] = {0};
                size_t n_arrays = draw(ARRAYS_MAX + 1);
                uint64_t bytes, at, part, n;
                struct nd_body body;
                struct iovec iov[6];

                for (size_t i = 0; i < n_arrays; ++i) {
                        make_frame(&samples[i], &plans[i]);
                        arrays[i] = samples[i].array;
                        frames[i].bytes = plans[i].bytes;
                }
                cr_assert_eq(nd_layout_place(frames, n_arrays, &bytes, NULL), 0);
                cr_assert_eq(nd_body_init(&body, &store, arrays, plans, n_arrays, bytes), 0);
                nd_body_copy(&body, 0, bytes, want);
                for (at = 0; at < bytes; at += n) {
                        int n_iov;
                        uint64_t seen = 0;

                        nd_body_start(&body);
                        n_iov = nd_body_iov(&body, at, 1 + draw(bytes - at), iov, 1 + draw(6),
                                            &part);
                        cr_assert(n_iov >= 1 && part >= 1 && part <= bytes - at);
                        for (int i = 0; i < n_iov; ++i) {
                                cr_assert_arr_eq(iov[i].iov_base, want + at + seen, iov[i].iov_len);
                                seen += iov[i].iov_len;
                        }
                        cr_assert_eq(seen, part);
                        n = 1 + draw(part); /* a short write */
                }
        }
        nd_body_store_deinit(&store);
}

Test(body, gaps_are_zeros_and_frames_without_bytes_take_no_place)
{
        const struct ndbus_array arrays[] = {{.data = "abc"}, {.data = NULL}, {.data = "defg"}};
        const struct nd_plan plans[] = {
                {ND_ORDER_C, 3, 3, 1}, {ND_ORDER_C, 0, 0, 1}, {ND_ORDER_C, 4, 4, 1}};
        struct nd_body_store store = {0};
        struct nd_body body;
        uint8_t out[68], want[68] = "abc";

        memcpy(want + 64, "defg", 4);
        cr_assert_eq(nd_body_init(&body, &store, arrays, plans, 3, 68), 0);
        memset(out, 0xee, sizeof(out));
        nd_body_copy(&body, 0, 68, out);
        cr_assert_arr_eq(out, want, 68);
        nd_body_store_deinit(&store);
}
