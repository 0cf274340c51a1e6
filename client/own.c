/* SPDX-License-Identifier: MIT */

/*
 * Making a message's arrays private and writable
 *
 * Memory that only this message knows is made writable by clearing a flag. What is borrowed, in a
 * block, or also held by something that was exported, is copied; an array whose elements overlap becomes a
 * C-ordered copy in which they do not. All copies are made before any array is touched, so that a
 * failure leaves the message as it was.
 */

#include <string.h>
#include "client/detail.h"
#include "client/export.h"
#include "client/gather.h"
#include "client/message.h"

static bool array_is_private(const struct ndbus_message *m, size_t i)
{
        if (m->frames[i])
                return nd_buffer_is_mine(m->frames[i]);
        return m->place == ND_BODY_TOGETHER && nd_buffer_is_mine(m->memory);
}

/* Bytes of the C-ordered copy; false if they do not fit an allocation. */
static bool packed_bytes(const struct ndbus_array *array, uint64_t *ret)
{
        uint64_t bytes = nd_layout_bits(array) / 8;

        for (int32_t i = 0; i < array->ndim; ++i)
                if (nd_mul_overflow(bytes, (uint64_t)array->shape[i], &bytes))
                        return false;
        *ret = bytes;
        return bytes <= SIZE_MAX / 2;
}

static int copy_array(const struct ndbus_message *m, size_t i, struct nd_buffer **ret)
{
        const struct ndbus_array *array = &m->arrays[i];
        uint64_t bytes = m->shared->header->frames[i].bytes;
        bool overlaps = nd_layout_overlaps(array);
        struct nd_buffer *buffer;
        struct nd_gather gather;

        if (overlaps && !packed_bytes(array, &bytes))
                return nd_detail_fail(NDBUS_ETOO_BIG, "array %zu: its copy would not fit memory",
                                      i);
        buffer = nd_pool_take(m->memory->pool, bytes);
        if (!buffer)
                return nd_detail_fail(NDBUS_ENOMEM, "array %zu: no memory for %llu bytes", i,
                                      (unsigned long long)bytes);
        nd_buffer_populate(buffer, bytes);
        if (overlaps) {
                nd_gather_init(&gather, array, nd_layout_bits(array) / 8);
                nd_gather_copy(&gather, 0, bytes, buffer->data);
        } else {
                memcpy(buffer->data, array->data, bytes);
        }
        *ret = buffer;
        return 0;
}

ND_PUBLIC int ndbus_message_own(struct ndbus_message *m)
{
        nd_autofree struct nd_buffer **copies = NULL;
        int r = 0;

        if (m->n_arrays == 0)
                return 0;
        copies = calloc(m->n_arrays, sizeof(*copies));
        if (!copies)
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        for (size_t i = 0; i < m->n_arrays && !r; ++i)
                if (m->shared->header->frames[i].bytes &&
                    (!array_is_private(m, i) || nd_layout_overlaps(&m->arrays[i])))
                        r = copy_array(m, i, &copies[i]);
        if (r) {
                for (size_t i = 0; i < m->n_arrays; ++i)
                        nd_buffer_unref(copies[i]);
                return r;
        }
        for (size_t i = 0; i < m->n_arrays; ++i) {
                if (copies[i]) {
                        if (nd_layout_overlaps(&m->arrays[i]))
                                m->arrays[i].strides = NULL;
                        nd_buffer_unref(m->frames[i]);
                        m->frames[i] = copies[i];
                        m->arrays[i].data = copies[i]->data;
                        m->has_left_place = true;
                }
                m->arrays[i].flags &= ~(uint32_t)NDBUS_READ_ONLY;
        }
        if (m->hold) {
                nd_buffer_unref(&m->hold->keeper);
                m->hold = NULL;
        }
        return 0;
}
