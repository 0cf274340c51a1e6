/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: .npy
 *
 * Any bytes: no crash, and errors are only those that a file can cause. An array that was read lies
 * within the bytes; if it can be sent at all it can be written, what was written reads back with
 * the same dtype, shape and bytes, and it can be drawn or is refused.
 */

#include <string.h>
#include "client/command/npy.h"
#include "client/command/view.h"
#include "protocol/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

/* Header of the plan, then the array's bytes, which must lie as they are written. */
static void reread(const struct ndbus_array *array, const struct nd_npy_plan *plan)
{
        size_t n = plan->n_header + (size_t)plan->data_bytes;
        uint8_t *bytes = malloc(n);
        struct nd_npy *again = NULL;
        struct nd_fault fault;
        int r;

        nd_assert(bytes);
        memcpy(bytes, plan->header, plan->n_header);
        if (plan->data_bytes)
                memcpy(bytes + plan->n_header, array->data, (size_t)plan->data_bytes);
        r = nd_npy_read(bytes, n, &again, &fault);
        if (r)
                fprintf(stderr, "%.*s\n%s: %s\n", (int)plan->n_header - 10, plan->header + 10,
                        fault.field, fault.text);
        nd_assert(r == 0);
        nd_assert(again->file_bytes == n);
        nd_assert(strcmp(again->array.dtype, array->dtype) == 0);
        nd_assert(nd_layout_bits(&again->array) == nd_layout_bits(array));
        nd_assert(again->array.n_fields == array->n_fields);
        nd_assert(again->array.flags == array->flags);
        nd_assert(again->array.ndim == array->ndim);
        for (int32_t i = 0; i < array->ndim; ++i)
                nd_assert(again->array.shape[i] == array->shape[i]);
        nd_npy_free(again);
        free(bytes);
}

static void draw(const struct ndbus_array *array)
{
        static const struct nd_view_terminal terminal = {20, 8, ND_VIEW_TRUE, true};
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);
        int r;

        nd_assert(out);
        r = nd_view_draw(array, &terminal, out, NULL);
        nd_assert(r == 0 || r == NDBUS_EDTYPE);
        fclose(out);
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct nd_npy *npy = NULL;
        struct nd_npy_plan plan;
        struct nd_plan layout;
        int r;

        r = nd_npy_read(data, n_data, &npy, NULL);
        if (r) {
                nd_assert(r == NDBUS_ECORRUPT || r == NDBUS_ETRUNCATED || r == NDBUS_EDTYPE ||
                          r == NDBUS_ESHAPE || r == NDBUS_ELIMIT || r == NDBUS_EUNSUPPORTED);
                return 0;
        }
        nd_assert(npy->file_bytes <= n_data);
        nd_assert(npy->data_offset + npy->data_bytes == npy->file_bytes);

        if (nd_layout_plan(&npy->array, "array", &layout, NULL) == 0) {
                nd_assert(layout.bytes == npy->data_bytes);
                r = nd_npy_plan(&npy->array, &plan, NULL);
                nd_assert(r == 0);
                nd_assert(plan.as_it_lies);
                nd_assert(plan.data_bytes == npy->data_bytes);
                if (!plan.note[0])
                        reread(&npy->array, &plan);
                nd_npy_plan_deinit(&plan);
                draw(&npy->array);
        }
        nd_npy_free(npy);
        return 0;
}
