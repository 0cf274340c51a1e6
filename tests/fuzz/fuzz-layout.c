/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: layout
 *
 * The input is an array: dtype, width, lanes, flags, and for each axis a length and a stride, small
 * numbers more often than not. Whatever it is, no crash. Small arrays are judged again by visiting
 * every element: whoever is said to fill its extent does so, once for each element of the axes that
 * are not broadcast; whoever is said not to overlap does not; and a frame is accepted with the
 * planned bytes and with no others.
 */

#include <string.h>
#include "protocol/dtype.h"
#include "protocol/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

#define VISITED_BYTES_MAX 4096
#define ELEMENTS_MAX      4096

struct input {
        const uint8_t *data;
        size_t n_data;
};

static uint8_t take_byte(struct input *in)
{
        if (in->n_data == 0)
                return 0;
        --in->n_data;
        return *in->data++;
}

/* One byte that is small, or 0x80 to 0x8f and eight bytes more. */
static int64_t take_number(struct input *in)
{
        uint8_t byte = take_byte(in);
        uint64_t v = 0;

        if (byte < 0x80 || byte >= 0x90)
                return (int8_t)byte;
        for (int i = 0; i < 8; ++i)
                v = v << 8 | take_byte(in);
        return (int64_t)v;
}

static uint32_t count_elements(const struct ndbus_array *a)
{
        uint64_t n = 1;

        for (int32_t i = 0; i < a->ndim; ++i) {
                if (nd_mul_overflow(n, (uint64_t)a->shape[i], &n) || n > ELEMENTS_MAX)
                        return 0;
        }
        return (uint32_t)n;
}

/*
 * Counts how often each byte of the extent belongs to an element, axes of stride 0 visited once if
 * @skip_broadcast. False if the extent is too large to be visited, or the array is empty.
 */
static bool visit(const struct ndbus_array *a,
                  uint32_t itemsize,
                  bool skip_broadcast,
                  uint16_t visits[static VISITED_BYTES_MAX])
{
        uint32_t n = count_elements(a);

        memset(visits, 0, VISITED_BYTES_MAX * sizeof(*visits));
        for (uint32_t i = 0; i < n; ++i) {
                uint64_t at = 0, rest = i;
                bool is_repeat = false;

                for (int32_t k = a->ndim - 1; k >= 0; --k) {
                        uint64_t index = rest % (uint64_t)a->shape[k];

                        rest /= (uint64_t)a->shape[k];
                        at += index * (uint64_t)a->strides[k];
                        if (index && a->strides[k] == 0)
                                is_repeat = true;
                }
                if (at + itemsize > VISITED_BYTES_MAX)
                        return false;
                for (uint64_t b = at; b < at + itemsize && !(is_repeat && skip_broadcast); ++b)
                        ++visits[b];
        }
        return n > 0;
}

static void check_strided(const struct ndbus_array *a, const struct nd_plan *plan)
{
        static uint16_t visits[VISITED_BYTES_MAX];
        int64_t strides[NDBUS_DIMS_MAX];
        struct ndbus_array positive = *a;

        for (int32_t i = 0; i < a->ndim; ++i) {
                strides[i] = a->shape[i] == 1 ? 0 : a->strides[i];
                if (strides[i] < 0) {
                        nd_assert(plan->order == ND_ORDER_GATHER || plan->elements == 0);
                        return;
                }
        }
        positive.strides = strides;

        if (plan->order != ND_ORDER_GATHER && visit(&positive, plan->itemsize, true, visits)) {
                for (uint64_t b = 0; b < plan->bytes; ++b)
                        nd_assert(visits[b] == 1);
                nd_assert(plan->bytes == VISITED_BYTES_MAX || visits[plan->bytes] == 0);
        }
        if (visit(&positive, plan->itemsize, false, visits) && !nd_layout_overlaps(&positive)) {
                for (size_t b = 0; b < VISITED_BYTES_MAX; ++b)
                        nd_assert(visits[b] <= 1);
        }
}

/* As it would stand in a header. */
static void check_frame(const struct ndbus_array *a, const struct nd_plan *plan)
{
        struct nd_frame frame = {.array = *a, .bytes = plan->bytes};
        int64_t strides[NDBUS_DIMS_MAX];

        for (int32_t i = 0; i < a->ndim && a->strides; ++i)
                strides[i] = a->shape[i] == 1 ? 0 : a->strides[i];
        frame.array.data = NULL;
        frame.array.strides = plan->order == ND_ORDER_DENSE ? strides : NULL;

        nd_assert(nd_layout_check(&frame, "frame", NULL) == 0);
        ++frame.bytes;
        nd_assert(nd_layout_check(&frame, "frame", NULL) == NDBUS_ELENGTH);
}

static void check_place(struct input *in)
{
        struct nd_frame frames[4] = {0};
        uint64_t body_bytes = 0;

        for (size_t i = 0; i < nd_array_size(frames); ++i)
                frames[i].bytes = (uint64_t)take_number(in);
        if (nd_layout_place(frames, nd_array_size(frames), &body_bytes, NULL) != 0)
                return;
        nd_assert(body_bytes <= ND_BODY_BYTES_MAX);
        for (size_t i = 1; i < nd_array_size(frames); ++i) {
                nd_assert(frames[i].offset % ND_ALIGN_BYTES == 0);
                nd_assert(frames[i].offset >= frames[i - 1].offset + frames[i - 1].bytes);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct input in = {data, n_data};
        uint8_t choice = take_byte(&in);
        int64_t shape[NDBUS_DIMS_MAX + 1], strides[NDBUS_DIMS_MAX + 1];
        struct ndbus_array a = {.data = "", .shape = shape};
        struct nd_fault fault = {0};
        struct nd_plan plan;
        int r;

        a.dtype = choice < nd_n_dtypes ? nd_dtypes[choice].name : choice & 1 ? "other" : NULL;
        a.bits = (uint32_t)take_number(&in);
        a.lanes = (uint16_t)take_number(&in);
        a.flags = take_byte(&in) & 0xfu;
        a.unit = take_byte(&in) & 1 ? "ns" : NULL;
        a.ndim = (int8_t)take_byte(&in) % (NDBUS_DIMS_MAX + 2);
        a.strides = take_byte(&in) & 1 ? strides : NULL;
        for (int32_t i = 0; i < a.ndim; ++i) {
                shape[i] = take_number(&in);
                strides[i] = take_number(&in);
        }
        check_place(&in);

        r = nd_layout_plan(&a, "array", &plan, &fault);
        nd_assert(r == fault.code);
        if (r) {
                nd_assert(r == NDBUS_EDTYPE || r == NDBUS_ESHAPE);
                return 0;
        }
        nd_assert(plan.bytes <= INT64_MAX && plan.elements <= INT64_MAX);
        nd_assert((plan.bytes == 0) == (plan.elements == 0));
        nd_assert(a.strides || plan.order == ND_ORDER_C);
        nd_assert(nd_layout_is_c(&a) == (plan.order == ND_ORDER_C));
        if (a.strides && plan.itemsize)
                check_strided(&a, &plan);
        check_frame(&a, &plan);
        return 0;
}
