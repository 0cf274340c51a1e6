/* SPDX-License-Identifier: MIT */

/*
 * Layout: how many bytes an array takes, where each frame of a body lies
 *
 * Everything here is done with numbers that somebody else chose. They are bounded once, in this
 * order: the dtype gives a width of 1 to 2^32-1 bits; the product of the dimensions, with those of
 * length 0 left out, times that width stays below 2^63 bytes; every axis reaches less than
 * ND_BODY_BYTES_MAX, and so do all of them together. Dimensions of length 0 are left out of the
 * product because a receiver multiplies the others to make strides, and NumPy refuses such shapes.
 *
 * An array is checked as one of two kinds: a user's (strides of any sign, and data behind it) or a
 * peer's (strides as they stand on the wire). All other rules are the same, so that what one end
 * sends the other end takes.
 */

#include "protocol/layout.h"
#include <string.h>
#include "protocol/dtype.h"
#include "protocol/utf8.h"

#define LAYOUT_LOGICAL_BYTES_MAX ((uint64_t)INT64_MAX)
#define LAYOUT_UNIT_COUNT_MAX    ((uint32_t)INT32_MAX) /* NumPy keeps it in an int */

enum layout_kind {
        LAYOUT_USER,
        LAYOUT_PEER,
};

/* "frames[2]" and "shape" make "frames[2].shape". */
struct layout_field {
        char text[sizeof(((struct nd_fault *)NULL)->field)];
};

static struct layout_field layout_join(const char *field, const char *part)
{
        struct layout_field joined;

        if (snprintf(joined.text, sizeof(joined.text), "%s.%s", field, part) < 0)
                joined.text[0] = '\0';
        return joined;
}

/* Returns @code, with a fault about @part of @field. */
#define layout_fault(_fault, _code, _field, _part, ...)                                            \
        nd_fault_set((_fault), (_code), layout_join((_field), (_part)).text, __VA_ARGS__)

uint32_t nd_layout_bits(const struct ndbus_array *array)
{
        uint32_t lanes = array->lanes ? array->lanes : 1;
        uint32_t bits = array->bits;

        if (!array->dtype)
                return 8;
        if (!bits) {
                const struct nd_dtype *dtype = nd_dtype_find(array->dtype, strlen(array->dtype));

                bits = dtype ? dtype->bits : 0;
        }
        return bits * lanes;
}

/* A string that may be missing. @code is what to say if it is there and wrong. */
static int layout_check_text(
        const char *text, int code, const char *field, const char *part, struct nd_fault *fault)
{
        size_t n;

        if (!text)
                return 0;
        n = strnlen(text, ND_NAME_BYTES_MAX + 1);
        if (n == 0 || n > ND_NAME_BYTES_MAX)
                return layout_fault(fault, code, field, part, "has %s bytes, it may have 1 to %u",
                                    n ? "more" : "no", ND_NAME_BYTES_MAX);
        if (!nd_utf8_is_valid(text, n))
                return layout_fault(fault, code, field, part, "is not UTF-8");
        return 0;
}

static bool layout_is_unit(const char *unit)
{
        static const char *const units[] = {"Y",  "M",  "W",  "D",  "h",  "m",  "s",
                                            "ms", "us", "ns", "ps", "fs", "as", "generic"};

        for (size_t i = 0; i < nd_array_size(units); ++i) {
                if (strcmp(units[i], unit) == 0)
                        return true;
        }
        return false;
}

/* What an array's element and a record's field have in common. */
struct layout_element {
        const char *dtype;
        uint32_t bits;
        uint32_t lanes;
        uint32_t flags;
        const struct ndbus_field *fields;
        uint32_t n_fields;
        const char *unit;
        uint32_t unit_count;
};

static int layout_check_unit(const struct layout_element *e,
                             bool has_unit,
                             const char *field,
                             struct nd_fault *fault)
{
        if (!has_unit) {
                if (e->unit || e->unit_count)
                        return layout_fault(fault, NDBUS_EDTYPE, field, "unit", "%s has no unit",
                                            e->dtype);
                return 0;
        }
        if (!e->unit)
                return layout_fault(fault, NDBUS_EDTYPE, field, "unit", "%s needs a unit",
                                    e->dtype);
        if (!layout_is_unit(e->unit))
                return layout_fault(fault, NDBUS_EDTYPE, field, "unit",
                                    "\"%.32s\" is no unit: Y M W D h m s ms us ns ps fs as generic",
                                    e->unit);
        if (e->unit_count > LAYOUT_UNIT_COUNT_MAX)
                return layout_fault(fault, NDBUS_EDTYPE, field, "unit",
                                    "a count of %u, the limit is %u", e->unit_count,
                                    LAYOUT_UNIT_COUNT_MAX);
        return 0;
}

/* Is the width one that the dtype can have? Gives the width. */
static int layout_check_bits(const struct layout_element *e,
                             const struct nd_dtype *dtype,
                             uint32_t *ret_bits,
                             const char *field,
                             struct nd_fault *fault)
{
        uint32_t bits = e->bits ? e->bits : dtype ? dtype->bits : 0;
        uint32_t step = 1;

        if (bits == 0)
                return layout_fault(fault, NDBUS_EDTYPE, field, "dtype",
                                    "%s needs its width in bits", e->dtype);
        if (dtype && dtype->bits && dtype->bits != bits)
                return layout_fault(fault, NDBUS_EDTYPE, field, "dtype", "%s has %u bits, not %u",
                                    e->dtype, dtype->bits, bits);
        if (dtype && !dtype->bits)
                step = dtype->trait == ND_DTYPE_UCS4 ? 32 : 8;
        if (bits % step != 0)
                return layout_fault(fault, NDBUS_EDTYPE, field, "dtype",
                                    "%s of %u bits, it must be a multiple of %u", e->dtype, bits,
                                    step);
        *ret_bits = bits;
        return 0;
}

static int layout_check_lanes(const struct layout_element *e,
                              const struct nd_dtype *dtype,
                              uint32_t bits,
                              const char *field,
                              struct nd_fault *fault)
{
        uint32_t all;

        if (e->lanes <= 1)
                return 0;
        if (dtype && dtype->trait != ND_DTYPE_PLAIN)
                return layout_fault(fault, NDBUS_EDTYPE, field, "lanes", "%s has no lanes, not %u",
                                    e->dtype, e->lanes);
        if (e->flags & NDBUS_SUBBYTE_PADDED)
                return layout_fault(fault, NDBUS_EDTYPE, field, "lanes",
                                    "a padded type has no lanes, not %u", e->lanes);
        if (nd_mul_overflow(bits, e->lanes, &all))
                return layout_fault(fault, NDBUS_EDTYPE, field, "lanes",
                                    "%u lanes of %u bits, the limit is %u bits", e->lanes, bits,
                                    UINT32_MAX);
        return 0;
}

static int layout_check_flags(const struct layout_element *e,
                              const struct nd_dtype *dtype,
                              uint32_t bits,
                              const char *field,
                              struct nd_fault *fault)
{
        bool has_byte_order = dtype ? dtype->has_byte_order : bits > 8 && bits % 8 == 0;

        if (e->flags & ~(NDBUS_READ_ONLY | NDBUS_BIG_ENDIAN | NDBUS_SUBBYTE_PADDED))
                return layout_fault(fault, NDBUS_EDTYPE, field, "flags", "%#x has unknown bits",
                                    e->flags);
        if ((e->flags & NDBUS_BIG_ENDIAN) && !has_byte_order)
                return layout_fault(fault, NDBUS_EDTYPE, field, "big_endian",
                                    "%s of %u bits has no byte order", e->dtype, bits);
        if ((e->flags & NDBUS_SUBBYTE_PADDED) && bits >= 8)
                return layout_fault(fault, NDBUS_EDTYPE, field, "flags",
                                    "%s of %u bits cannot be padded to a byte", e->dtype, bits);
        return 0;
}

/* All about the dtype but the fields of a record. */
static int layout_check_element(const struct layout_element *e,
                                uint32_t *ret_bits,
                                const char *field,
                                struct nd_fault *fault)
{
        const struct nd_dtype *dtype;
        uint32_t bits = 0;
        int r;

        r = layout_check_text(e->dtype, NDBUS_EDTYPE, field, "dtype", fault);
        if (r)
                return r;
        if (strcmp(e->dtype, "object") == 0)
                return layout_fault(fault, NDBUS_EDTYPE, field, "dtype",
                                    "object: references cannot be sent, use pickle by name");

        dtype = nd_dtype_find(e->dtype, strlen(e->dtype));
        r = layout_check_bits(e, dtype, &bits, field, fault);
        if (r)
                return r;
        r = layout_check_lanes(e, dtype, bits, field, fault);
        if (r)
                return r;
        r = layout_check_flags(e, dtype, bits, field, fault);
        if (r)
                return r;
        r = layout_check_unit(e, dtype && dtype->trait == ND_DTYPE_UNIT, field, fault);
        if (r)
                return r;
        if (e->n_fields && !(dtype && dtype->trait == ND_DTYPE_RECORD))
                return layout_fault(fault, NDBUS_EDTYPE, field, "fields", "%s has no fields",
                                    e->dtype);
        if (e->n_fields && !e->fields)
                return layout_fault(fault, NDBUS_EDTYPE, field, "fields", "%u of them at NULL",
                                    e->n_fields);
        *ret_bits = bits;
        return 0;
}

/*
 * Multiplies the dimensions. *ret_elements is 0 if one of them is; *ret_product is their product
 * with those left out, for the bounds.
 */
static int layout_check_shape(const int64_t *shape,
                              int32_t ndim,
                              uint64_t *ret_elements,
                              uint64_t *ret_product,
                              const char *field,
                              struct nd_fault *fault)
{
        uint64_t product = 1;
        bool is_empty = false;

        if (ndim < 0 || ndim > NDBUS_DIMS_MAX)
                return layout_fault(fault, NDBUS_ESHAPE, field, "shape",
                                    "has %d dimensions, the limit is %d", ndim, NDBUS_DIMS_MAX);
        if (ndim && !shape)
                return layout_fault(fault, NDBUS_EINVAL, field, "shape", "is NULL");

        for (int32_t i = 0; i < ndim; ++i) {
                if (shape[i] < 0)
                        return layout_fault(fault, NDBUS_ESHAPE, field, "shape",
                                            "dimension %d is %lld, the least is 0", i,
                                            (long long)shape[i]);
                if (shape[i] == 0)
                        is_empty = true;
                else if (nd_mul_overflow(product, (uint64_t)shape[i], &product) ||
                         product > LAYOUT_LOGICAL_BYTES_MAX)
                        return layout_fault(fault, NDBUS_ESHAPE, field, "shape",
                                            "more than %lld elements up to dimension %d, of %lld",
                                            (long long)INT64_MAX, i, (long long)shape[i]);
        }
        *ret_elements = is_empty ? 0 : product;
        *ret_product = product;
        return 0;
}

/* ceil(elements * bits / 8), or true if that is LAYOUT_LOGICAL_BYTES_MAX or more. */
static bool layout_packed_overflow(uint64_t elements, uint32_t bits, uint64_t *ret_bytes)
{
        uint64_t bytes;

        if (nd_mul_overflow(elements / 8, (uint64_t)bits, &bytes) ||
            nd_add_overflow(bytes, (elements % 8 * bits + 7) / 8, &bytes) ||
            bytes > LAYOUT_LOGICAL_BYTES_MAX)
                return true;
        *ret_bytes = bytes;
        return false;
}

static int layout_compare_names(const void *a, const void *b)
{
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int layout_check_unique(const struct ndbus_field *fields,
                               uint32_t n_fields,
                               const char *field,
                               struct nd_fault *fault)
{
        const char *names[ND_FIELDS_MAX];

        for (uint32_t i = 0; i < n_fields; ++i)
                names[i] = fields[i].name;
        qsort(names, n_fields, sizeof(*names), layout_compare_names);
        for (uint32_t i = 1; i < n_fields; ++i) {
                if (strcmp(names[i - 1], names[i]) == 0)
                        return layout_fault(fault, NDBUS_EDTYPE, field, "fields",
                                            "two are called \"%.64s\"", names[i]);
        }
        return 0;
}

/* One field, but not the fields within it. Within records every element begins at a byte. */
static int layout_check_field(const struct ndbus_field *f,
                              uint64_t record_bytes,
                              uint32_t *ret_bits,
                              const char *field,
                              struct nd_fault *fault)
{
        struct layout_element e = {
                .dtype = f->dtype,
                .bits = f->bits,
                .lanes = 1,
                .flags = f->flags,
                .fields = f->fields,
                .n_fields = f->n_fields,
                .unit = f->unit,
                .unit_count = f->unit_count,
        };
        uint64_t elements, product, bytes, end;
        uint32_t bits = 0;
        int r;

        if (!f->name)
                return layout_fault(fault, NDBUS_EDTYPE, field, "name", "is missing");
        r = layout_check_text(f->name, NDBUS_EDTYPE, field, "name", fault);
        if (r)
                return r;
        if (!f->dtype)
                return layout_fault(fault, NDBUS_EDTYPE, field, "dtype", "is missing");
        if (f->flags & ~NDBUS_BIG_ENDIAN)
                return layout_fault(fault, NDBUS_EDTYPE, field, "flags",
                                    "%#x: a field has byte order only", f->flags);
        if (f->reserved32 || f->reserved[0] || f->reserved[1])
                return layout_fault(fault, NDBUS_EINVAL, field, "reserved", "is not zero");
        r = layout_check_element(&e, &bits, field, fault);
        if (r)
                return r;
        r = layout_check_shape(f->shape, f->ndim, &elements, &product, field, fault);
        if (r)
                return r;
        if (nd_mul_overflow(product, (uint64_t)bits / 8 + (bits % 8 != 0), &bytes) ||
            nd_add_overflow(f->offset, elements ? bytes : 0, &end) || end > record_bytes)
                return layout_fault(fault, NDBUS_EDTYPE, field, "offset",
                                    "%llu: the field ends outside its record of %llu bytes",
                                    (unsigned long long)f->offset,
                                    (unsigned long long)record_bytes);
        *ret_bits = bits;
        return 0;
}

/* Recursion is at most ND_FIELD_DEPTH_MAX deep; *i_n_total counts the fields of the whole frame. */
static int layout_check_fields(const struct ndbus_field *fields,
                               uint32_t n_fields,
                               uint32_t bits,
                               uint32_t depth,
                               uint32_t *i_n_total,
                               const char *field,
                               struct nd_fault *fault)
{
        int r;

        if (n_fields == 0)
                return 0;
        if (depth == ND_FIELD_DEPTH_MAX)
                return layout_fault(fault, NDBUS_EDTYPE, field, "fields",
                                    "records within records, the limit is %u", ND_FIELD_DEPTH_MAX);
        if (n_fields > ND_FIELDS_MAX - *i_n_total)
                return layout_fault(fault, NDBUS_EDTYPE, field, "fields", "are more than %u in all",
                                    ND_FIELDS_MAX);
        *i_n_total += n_fields;

        for (uint32_t i = 0; i < n_fields; ++i) {
                struct layout_field name;
                uint32_t field_bits = 0;

                if (snprintf(name.text, sizeof(name.text), "%s.fields[%u]", field, i) < 0)
                        name.text[0] = '\0';
                r = layout_check_field(&fields[i], bits / 8, &field_bits, name.text, fault);
                if (r)
                        return r;
                r = layout_check_fields(fields[i].fields, fields[i].n_fields, field_bits, depth + 1,
                                        i_n_total, name.text, fault);
                if (r)
                        return r;
        }
        return layout_check_unique(fields, n_fields, field, fault);
}

/* Numbers of an array whose dtype and shape are possible. */
struct layout_size {
        uint64_t elements;
        uint64_t packed_bytes; /* in C order */
        uint32_t itemsize;     /* 0: elements are packed bits */
};

static int layout_check_raw(const struct ndbus_array *a,
                            struct layout_size *ret,
                            const char *field,
                            struct nd_fault *fault)
{
        if (a->ndim != 1 || !a->shape)
                return layout_fault(fault, NDBUS_ESHAPE, field, "shape",
                                    "has %d dimensions, raw bytes have one", a->ndim);
        if (a->shape[0] < 0)
                return layout_fault(fault, NDBUS_ESHAPE, field, "shape",
                                    "dimension 0 is %lld, the least is 0", (long long)a->shape[0]);
        if ((a->bits != 0 && a->bits != 8) || a->lanes > 1 || a->n_fields || a->unit ||
            a->unit_count || (a->flags & ~NDBUS_READ_ONLY))
                return layout_fault(fault, NDBUS_EDTYPE, field, "dtype",
                                    "is missing: raw bytes have no width, lanes, flags, fields or "
                                    "unit");
        *ret = (struct layout_size){
                .elements = (uint64_t)a->shape[0],
                .packed_bytes = (uint64_t)a->shape[0],
                .itemsize = 1,
        };
        return 0;
}

/* Everything but strides and data. */
static int layout_check_type(const struct ndbus_array *a,
                             struct layout_size *ret,
                             const char *field,
                             struct nd_fault *fault)
{
        struct layout_element e = {
                .dtype = a->dtype,
                .bits = a->bits,
                .lanes = a->lanes,
                .flags = a->flags,
                .fields = a->fields,
                .n_fields = a->n_fields,
                .unit = a->unit,
                .unit_count = a->unit_count,
        };
        struct layout_size size = {0};
        uint32_t bits = 0, n_total = 0;
        uint64_t product, ceiling;
        int r;

        r = layout_check_text(a->name, NDBUS_EINVAL, field, "name", fault);
        if (r)
                return r;
        r = layout_check_text(a->device, NDBUS_EINVAL, field, "device", fault);
        if (r)
                return r;
        if (!a->dtype)
                return layout_check_raw(a, ret, field, fault);

        r = layout_check_element(&e, &bits, field, fault);
        if (r)
                return r;
        r = layout_check_fields(a->fields, a->n_fields, bits, 0, &n_total, field, fault);
        if (r)
                return r;
        r = layout_check_shape(a->shape, a->ndim, &size.elements, &product, field, fault);
        if (r)
                return r;

        if (a->flags & NDBUS_SUBBYTE_PADDED)
                bits = 8;
        else if (a->lanes > 1)
                bits *= a->lanes;
        if (layout_packed_overflow(product, bits, &ceiling))
                return layout_fault(fault, NDBUS_ESHAPE, field, "shape",
                                    "%llu elements of %u bits, the limit is %lld bytes",
                                    (unsigned long long)product, bits, (long long)INT64_MAX);
        size.packed_bytes = size.elements ? ceiling : 0;
        size.itemsize = bits % 8 == 0 ? bits / 8 : 0;
        *ret = size;
        return 0;
}

/*
 * Bytes from the first to behind the last element in memory, whatever the signs of the strides.
 * Axes of length 0 and 1 reach nowhere.
 */
static int layout_check_strides(const struct ndbus_array *a,
                                uint32_t itemsize,
                                enum layout_kind kind,
                                uint64_t *ret_extent,
                                const char *field,
                                struct nd_fault *fault)
{
        uint64_t extent = itemsize;

        for (int32_t i = 0; i < a->ndim; ++i) {
                int64_t stride = a->strides[i];
                uint64_t size = stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
                uint64_t reach;

                if (kind == LAYOUT_PEER && stride < 0)
                        return layout_fault(fault, NDBUS_ESHAPE, field, "strides",
                                            "stride %d is %lld, the least is 0", i,
                                            (long long)stride);
                if (kind == LAYOUT_USER && a->shape[i] <= 1)
                        continue;
                if (size >= ND_BODY_BYTES_MAX)
                        return layout_fault(fault, NDBUS_ESHAPE, field, "strides",
                                            "stride %d is %lld, the limit is 2^62", i,
                                            (long long)stride);
                if (a->shape[i] <= 1)
                        continue;
                if (nd_mul_overflow((uint64_t)a->shape[i] - 1, size, &reach) ||
                    nd_add_overflow(extent, reach, &extent) || extent > ND_BODY_BYTES_MAX)
                        return layout_fault(fault, NDBUS_ESHAPE, field, "strides",
                                            "stride %d of %lld reaches beyond 2^62 bytes", i,
                                            (long long)stride);
        }
        *ret_extent = extent;
        return 0;
}

static bool layout_is_c(const struct ndbus_array *a, uint32_t itemsize)
{
        uint64_t expected = itemsize;

        for (int32_t i = a->ndim - 1; i >= 0; --i) {
                if (a->shape[i] == 0)
                        return true;
        }
        for (int32_t i = a->ndim - 1; i >= 0; --i) {
                if (a->shape[i] == 1)
                        continue;
                if (a->strides[i] < 0 || (uint64_t)a->strides[i] != expected)
                        return false;
                expected *= (uint64_t)a->shape[i];
        }
        return true;
}

/* Axes longer than 1, shortest stride first. None of the strides may be negative. */
struct layout_axes {
        uint32_t n;
        uint64_t shape[NDBUS_DIMS_MAX];
        uint64_t stride[NDBUS_DIMS_MAX];
};

static void layout_sort_axes(const struct ndbus_array *a, struct layout_axes *axes)
{
        axes->n = 0;
        for (int32_t i = 0; i < a->ndim; ++i) {
                uint64_t stride = (uint64_t)a->strides[i];
                uint32_t k;

                if (a->shape[i] <= 1)
                        continue;
                for (k = axes->n++; k > 0 && axes->stride[k - 1] > stride; --k) {
                        axes->stride[k] = axes->stride[k - 1];
                        axes->shape[k] = axes->shape[k - 1];
                }
                axes->stride[k] = stride;
                axes->shape[k] = (uint64_t)a->shape[i];
        }
}

/* Does it fill its extent, in any order of the axes, those of stride 0 left out? */
static bool layout_is_dense(const struct ndbus_array *a, uint32_t itemsize)
{
        struct layout_axes axes;
        uint64_t expected = itemsize;

        for (int32_t i = 0; i < a->ndim; ++i) {
                if (a->shape[i] > 1 && a->strides[i] < 0)
                        return false;
        }
        layout_sort_axes(a, &axes);
        for (uint32_t k = 0; k < axes.n; ++k) {
                if (axes.stride[k] == 0)
                        continue;
                if (axes.stride[k] != expected)
                        return false;
                expected *= axes.shape[k];
        }
        return true;
}

/* Order and bytes of a user's array that has strides and is not empty. */
static int layout_plan_strided(const struct ndbus_array *a,
                               const char *field,
                               struct nd_plan *plan,
                               struct nd_fault *fault)
{
        uint64_t extent;
        int r;

        if (plan->itemsize == 0)
                return layout_fault(fault, NDBUS_ESHAPE, field, "strides",
                                    "packed %s of %u bits has none", a->dtype, nd_layout_bits(a));
        r = layout_check_strides(a, plan->itemsize, LAYOUT_USER, &extent, field, fault);
        if (r)
                return r;

        if (layout_is_c(a, plan->itemsize)) {
                plan->order = ND_ORDER_C;
        } else if (a->dtype && layout_is_dense(a, plan->itemsize)) { /* raw bytes have no strides */
                plan->order = ND_ORDER_DENSE;
                plan->bytes = extent;
        } else {
                plan->order = ND_ORDER_GATHER;
        }
        return 0;
}

int nd_layout_plan(const struct ndbus_array *array,
                   const char *field,
                   struct nd_plan *ret,
                   struct nd_fault *fault)
{
        struct layout_size size = {0};
        struct nd_plan plan;
        int r;

        if (array->codec)
                return layout_fault(fault, NDBUS_EUNSUPPORTED, field, "codec",
                                    "\"%.64s\" cannot be sent", array->codec);
        if (array->reserved16 || array->reserved[0] || array->reserved[1] || array->reserved[2] ||
            array->reserved[3])
                return layout_fault(fault, NDBUS_EINVAL, field, "reserved", "is not zero");
        r = layout_check_type(array, &size, field, fault);
        if (r)
                return r;

        plan = (struct nd_plan){
                .order = ND_ORDER_C,
                .bytes = size.packed_bytes,
                .elements = size.elements,
                .itemsize = size.itemsize,
        };
        if (array->strides && size.elements) {
                r = layout_plan_strided(array, field, &plan, fault);
                if (r)
                        return r;
        }
        if (!array->data && size.elements)
                return layout_fault(fault, NDBUS_EINVAL, field, "data",
                                    "is NULL, %llu elements are described",
                                    (unsigned long long)size.elements);
        *ret = plan;
        return 0;
}

int nd_layout_check(const struct nd_frame *frame, const char *field, struct nd_fault *fault)
{
        const struct ndbus_array *a = &frame->array;
        struct layout_size size = {0};
        uint64_t extent, bytes;
        int r;

        r = layout_check_type(a, &size, field, fault);
        if (r)
                return r;

        bytes = size.packed_bytes;
        if (a->strides) {
                if (!a->dtype || size.itemsize == 0)
                        return layout_fault(fault, NDBUS_ESHAPE, field, "strides",
                                            "packed bits and raw bytes have none");
                r = layout_check_strides(a, size.itemsize, LAYOUT_PEER, &extent, field, fault);
                if (r)
                        return r;
                if (size.elements)
                        bytes = extent;
        }
        if (frame->bytes != bytes) {
                layout_fault(fault, NDBUS_ELENGTH, field, "bytes",
                             "is %llu, dtype and shape make %llu", (unsigned long long)frame->bytes,
                             (unsigned long long)bytes);
                if (fault) {
                        fault->has_numbers = true;
                        fault->value = frame->bytes;
                        fault->limit = bytes;
                }
                return NDBUS_ELENGTH;
        }
        return 0;
}

int nd_layout_place(struct nd_frame *frames,
                    size_t n_frames,
                    uint64_t *ret_body_bytes,
                    struct nd_fault *fault)
{
        uint64_t end = 0;

        for (size_t i = 0; i < n_frames; ++i) {
                uint64_t begin = 0;

                /* @end is at most 2^62 here, so rounding it up cannot overflow */
                begin = (end + ND_ALIGN_BYTES - 1) & ~(uint64_t)(ND_ALIGN_BYTES - 1);
                if (nd_add_overflow(begin, frames[i].bytes, &end) || end > ND_BODY_BYTES_MAX) {
                        char field[32];

                        if (snprintf(field, sizeof(field), "frames[%zu].bytes", i) < 0)
                                field[0] = '\0';
                        return nd_fault_set_limit(fault, NDBUS_ETOO_BIG, field, frames[i].bytes,
                                                  ND_BODY_BYTES_MAX, "bytes");
                }
                frames[i].offset = begin;
        }
        *ret_body_bytes = end;
        return 0;
}

bool nd_layout_overlaps(const struct ndbus_array *array)
{
        struct layout_axes axes;
        uint64_t extent = nd_layout_bits(array) / 8;

        if (!array->strides)
                return false;
        if (array->flags & NDBUS_SUBBYTE_PADDED)
                extent = 1;
        for (int32_t i = 0; i < array->ndim; ++i) {
                if (array->shape[i] == 0)
                        return false;
        }

        /* An axis that steps over all that the axes within it reach cannot meet them. Some arrays
         * that interleave without meeting are taken for overlapping; that only makes them
         * read-only. */
        layout_sort_axes(array, &axes);
        for (uint32_t k = 0; k < axes.n; ++k) {
                if (axes.stride[k] < extent)
                        return true;
                extent += axes.stride[k] * (axes.shape[k] - 1);
        }
        return false;
}

bool nd_layout_is_c(const struct ndbus_array *array)
{
        uint32_t itemsize = array->flags & NDBUS_SUBBYTE_PADDED ? 1 : nd_layout_bits(array) / 8;

        return !array->strides || layout_is_c(array, itemsize);
}
