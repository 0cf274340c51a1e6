/* SPDX-License-Identifier: MIT */

/*
 * Parsed headers, shared and kept
 *
 * The header of a steady stream is the same bytes each time. It is parsed and checked once; the
 * messages share the result, and outlive the connection with it, so references are counted
 * atomically. What a message shows of an array is prepared here as well: but for the data pointers
 * it is the same for all of them.
 *
 * Two things are decided once for all messages: arrays whose elements overlap are read-only, and
 * a frame with a codec is shown as raw bytes, since this library decodes none.
 */

#include "client/shared-header.h"
#include <string.h>

static void shared_header_free(struct nd_shared_header *shared)
{
        nd_header_free(shared->header);
        free(shared->arrays);
        free(shared->raw_shapes);
        free(shared);
}

static void show_array(const struct nd_frame *frame, struct ndbus_array *array, int64_t *raw_shape)
{
        *array = frame->array;
        array->data = NULL;
        if (array->codec || !array->dtype) {
                *raw_shape = (int64_t)frame->bytes;
                *array = (struct ndbus_array){
                        .name = array->name,
                        .bits = 8,
                        .lanes = 1,
                        .ndim = 1,
                        .flags = array->flags & NDBUS_READ_ONLY,
                        .shape = raw_shape,
                        .codec = array->codec,
                        .device = array->device,
                };
        } else if (nd_layout_overlaps(array)) {
                array->flags |= NDBUS_READ_ONLY;
        }
}

int nd_shared_header_new(const void *data,
                         size_t n_data,
                         const struct nd_header_limits *limits,
                         struct nd_shared_header **ret,
                         struct nd_fault *fault)
{
        struct nd_shared_header *shared;
        size_t n;
        int r;

        shared = calloc(1, sizeof(*shared) + n_data);
        if (!shared)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        r = nd_header_unpack(data, n_data, limits, &shared->header, fault);
        if (r) {
                free(shared);
                return r;
        }
        n = shared->header->n_frames;
        shared->arrays = calloc(n + 1, sizeof(*shared->arrays));
        shared->raw_shapes = calloc(n + 1, sizeof(*shared->raw_shapes));
        if (!shared->arrays || !shared->raw_shapes) {
                shared_header_free(shared);
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        }
        for (size_t i = 0; i < n; ++i)
                show_array(&shared->header->frames[i], &shared->arrays[i], &shared->raw_shapes[i]);
        memcpy(shared->bytes, data, n_data);
        shared->n_bytes = n_data;
        atomic_init(&shared->n_refs, 1);
        *ret = shared;
        return 0;
}

struct nd_shared_header *nd_shared_header_ref(struct nd_shared_header *shared)
{
        atomic_fetch_add_explicit(&shared->n_refs, 1, memory_order_relaxed);
        return shared;
}

struct nd_shared_header *nd_shared_header_unref(struct nd_shared_header *shared)
{
        if (shared && atomic_fetch_sub_explicit(&shared->n_refs, 1, memory_order_acq_rel) == 1)
                shared_header_free(shared);
        return NULL;
}

int nd_header_cache_get(struct nd_header_cache *cache,
                        const void *data,
                        size_t n_data,
                        const struct nd_header_limits *limits,
                        struct nd_shared_header **ret,
                        struct nd_fault *fault)
{
        struct nd_shared_header *shared;
        size_t i = cache->i_last;
        int r;

        for (size_t j = 0; j < ND_HEADER_CACHE_N; ++j) {
                shared = cache->entries[i];
                if (shared && shared->n_bytes == n_data &&
                    memcmp(shared->bytes, data, n_data) == 0) {
                        cache->i_last = i;
                        *ret = nd_shared_header_ref(shared);
                        return 0;
                }
                i = (i + 1) % ND_HEADER_CACHE_N;
        }
        r = nd_shared_header_new(data, n_data, limits, &shared, fault);
        if (r)
                return r;
        i = cache->i_next;
        cache->i_next = (i + 1) % ND_HEADER_CACHE_N;
        cache->i_last = i;
        nd_shared_header_unref(cache->entries[i]);
        cache->entries[i] = nd_shared_header_ref(shared);
        *ret = shared;
        return 0;
}

void nd_header_cache_deinit(struct nd_header_cache *cache)
{
        for (size_t i = 0; i < ND_HEADER_CACHE_N; ++i)
                nd_shared_header_unref(cache->entries[i]);
        *cache = (struct nd_header_cache){0};
}
