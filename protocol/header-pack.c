/* SPDX-License-Identifier: MIT */

/*
 * Writing a header
 *
 * Keys stand in the order of PROTOCOL.md, optional ones only where they say something, and numbers
 * in their shortest form: so the same header is the same bytes, whoever writes it, and a receiver
 * that has seen them before need not parse them again. What is written here was checked before, by
 * nd_layout_plan() or nd_header_unpack().
 */

#include <msgpack.h>
#include <string.h>
#include "protocol/dtype.h"
#include "protocol/header.h"

/* Flags as they stand in a header are DLPack's; big-endian has a key of its own. */
#define HEADER_FLAGS (NDBUS_READ_ONLY | NDBUS_SUBBYTE_PADDED)

/* msgpack-c's packer hands on what its buffer says. A failure is kept in @failed and looked at in
 * the end: what comes behind it does no harm. */
struct header_pack {
        msgpack_packer packer;
        int failed;
};

static void header_put_text(struct header_pack *p, const char *text)
{
        size_t n = strlen(text);

        p->failed |= msgpack_pack_str(&p->packer, n);
        p->failed |= msgpack_pack_str_body(&p->packer, text, n);
}

static void header_put_uint(struct header_pack *p, uint64_t v)
{
        p->failed |= msgpack_pack_uint64(&p->packer, v);
}

static void header_put_list(struct header_pack *p, size_t n)
{
        p->failed |= msgpack_pack_array(&p->packer, n);
}

static void header_put_map(struct header_pack *p, size_t n)
{
        p->failed |= msgpack_pack_map(&p->packer, n);
}

static void header_put_true(struct header_pack *p)
{
        p->failed |= msgpack_pack_true(&p->packer);
}

static void header_put_pair(struct header_pack *p, const char *name, uint32_t number)
{
        header_put_list(p, 2);
        header_put_text(p, name);
        header_put_uint(p, number);
}

static bool header_is_text(const char *text)
{
        return text && *text;
}

static uint32_t header_width(const char *name, uint32_t bits)
{
        const struct nd_dtype *dtype = bits ? NULL : nd_dtype_find(name, strlen(name));

        return dtype ? dtype->bits : bits;
}

static void header_put_shape(struct header_pack *p, const int64_t *shape, int32_t ndim)
{
        header_put_list(p, (size_t)ndim);
        for (int32_t i = 0; i < ndim; ++i)
                header_put_uint(p, (uint64_t)shape[i]);
}

static void header_put_strides(struct header_pack *p, const struct ndbus_array *a)
{
        header_put_list(p, (size_t)a->ndim);
        for (int32_t i = 0; i < a->ndim; ++i) {
                /* of an axis of length 1 it means nothing, and is whatever its maker left there */
                header_put_uint(p, a->shape[i] == 1 ? 0 : (uint64_t)a->strides[i]);
        }
}

static void
header_put_fields(struct header_pack *p, const struct ndbus_field *fields, uint32_t n_fields)
{
        header_put_list(p, n_fields);
        for (uint32_t i = 0; i < n_fields; ++i) {
                const struct ndbus_field *f = &fields[i];
                bool is_big_endian = f->flags & NDBUS_BIG_ENDIAN;

                header_put_map(p, 3u + (f->ndim != 0) + is_big_endian + (f->unit != NULL) +
                                          (f->n_fields != 0));
                header_put_text(p, "name");
                header_put_text(p, f->name);
                header_put_text(p, "offset");
                header_put_uint(p, f->offset);
                header_put_text(p, "dtype");
                header_put_pair(p, f->dtype, header_width(f->dtype, f->bits));
                if (f->ndim) {
                        header_put_text(p, "shape");
                        header_put_shape(p, f->shape, f->ndim);
                }
                if (is_big_endian) {
                        header_put_text(p, "big_endian");
                        header_put_true(p);
                }
                if (f->unit) {
                        header_put_text(p, "unit");
                        header_put_pair(p, f->unit, f->unit_count ? f->unit_count : 1);
                }
                if (f->n_fields) {
                        header_put_text(p, "fields");
                        header_put_fields(p, f->fields, f->n_fields);
                }
        }
}

/* The keys of an array that raw bytes do not have. */
static void header_put_array(struct header_pack *p, const struct ndbus_array *a, bool has_strides)
{
        header_put_text(p, "dtype");
        header_put_pair(p, a->dtype, header_width(a->dtype, a->bits));
        header_put_text(p, "shape");
        header_put_shape(p, a->shape, a->ndim);
        if (a->lanes > 1) {
                header_put_text(p, "lanes");
                header_put_uint(p, a->lanes);
        }
        if (has_strides) {
                header_put_text(p, "strides");
                header_put_strides(p, a);
        }
        if (a->flags & HEADER_FLAGS) {
                header_put_text(p, "flags");
                header_put_uint(p, a->flags & HEADER_FLAGS);
        }
        if (a->flags & NDBUS_BIG_ENDIAN) {
                header_put_text(p, "big_endian");
                header_put_true(p);
        }
        if (a->n_fields) {
                header_put_text(p, "fields");
                header_put_fields(p, a->fields, a->n_fields);
        }
        if (a->unit) {
                header_put_text(p, "unit");
                header_put_pair(p, a->unit, a->unit_count ? a->unit_count : 1);
        }
}

static void header_put_frame(struct header_pack *p, const struct nd_frame *frame)
{
        const struct ndbus_array *a = &frame->array;
        bool has_strides = a->dtype && !nd_layout_is_c(a);
        uint32_t n = 1;

        n += header_is_text(a->name);
        n += header_is_text(a->device);
        n += header_is_text(a->codec);
        n += (a->flags & HEADER_FLAGS) != 0;
        if (a->dtype)
                n += 2u + (a->lanes > 1) + has_strides + ((a->flags & NDBUS_BIG_ENDIAN) != 0) +
                     (a->n_fields != 0) + (a->unit != NULL);

        header_put_map(p, n);
        header_put_text(p, "bytes");
        header_put_uint(p, frame->bytes);
        if (a->dtype) {
                header_put_array(p, a, has_strides);
        } else if (a->flags & HEADER_FLAGS) {
                header_put_text(p, "flags");
                header_put_uint(p, a->flags & HEADER_FLAGS);
        }
        if (header_is_text(a->name)) {
                header_put_text(p, "name");
                header_put_text(p, a->name);
        }
        if (header_is_text(a->device)) {
                header_put_text(p, "device");
                header_put_text(p, a->device);
        }
        if (header_is_text(a->codec)) {
                header_put_text(p, "codec");
                header_put_text(p, a->codec);
        }
}

int nd_header_pack(const struct nd_header *header, void **ret_data, size_t *ret_n_data)
{
        struct header_pack p = {.failed = 0};
        msgpack_sbuffer buffer;

        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&p.packer, &buffer, msgpack_sbuffer_write);

        header_put_map(&p, 2u + header_is_text(header->encoding) + header_is_text(header->reply));
        header_put_text(&p, "topic");
        p.failed |= msgpack_pack_str(&p.packer, header->n_topic);
        p.failed |= msgpack_pack_str_body(&p.packer, header->topic, header->n_topic);
        header_put_text(&p, "frames");
        header_put_list(&p, header->n_frames);
        for (size_t i = 0; i < header->n_frames; ++i)
                header_put_frame(&p, &header->frames[i]);
        if (header_is_text(header->encoding)) {
                header_put_text(&p, "encoding");
                header_put_text(&p, header->encoding);
        }
        if (header_is_text(header->reply)) {
                header_put_text(&p, "reply");
                header_put_text(&p, header->reply);
        }

        if (p.failed) {
                msgpack_sbuffer_destroy(&buffer);
                return NDBUS_ENOMEM;
        }
        *ret_n_data = buffer.size;
        *ret_data = msgpack_sbuffer_release(&buffer);
        return 0;
}
