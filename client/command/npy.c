/* SPDX-License-Identifier: MIT */

/*
 * Reading .npy
 *
 *   0        6     7     8              8 or 10    10 or 12 + header bytes
 *   +--------+-----+-----+--------------+----------+----------------
 *   | 93NUMPY| maj | min | LE16 or LE32 | dict \n  | elements ...
 *   +--------+-----+-----+--------------+----------+----------------
 *
 * The dict is parsed as a literal and then read with the same severity with which NumPy writes it:
 * exactly the keys descr, fortran_order and shape. Everything that the array names (strings,
 * fields, shapes) lives in the literal's tree and in two pools whose sizes are known once the tree
 * is there: no list has more fields than children, no shape more dimensions than there are.
 *
 * The elements stay where they are, in the caller's mapping of the file. 'O' is refused by name:
 * its bytes are a pickle. long double (f12, f16, c24, c32) is refused because its layout depends on
 * the machine that wrote it and ndbus has no name for it.
 */

#include "client/command/npy.h"
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include "client/command/literal.h"
#include "protocol/byteorder.h"
#include "protocol/limit.h"

#define NPY_MAGIC       "\x93NUMPY"
#define NPY_MAGIC_BYTES 6u

struct npy {
        struct nd_npy npy; /* first: what the caller sees */
        struct nd_literal_tree *tree;
        struct ndbus_field *fields; /* [n_fields_max] */
        size_t n_fields;
        size_t n_fields_max;
        int64_t *dims; /* [n_dims_max] shapes and strides */
        size_t n_dims;
        size_t n_dims_max;
        struct nd_fault *fault;
};

/* One element: what a descr says. */
struct npy_element {
        const char *dtype;
        const char *unit;
        uint32_t unit_count;
        uint32_t flags;
        uint32_t bytes;
        const struct ndbus_field *fields;
        uint32_t n_fields;
        int32_t ndim; /* of a subarray */
        int64_t shape[NDBUS_DIMS_MAX];
};

static int npy_read_descr(struct npy *npy,
                          const struct nd_literal *node,
                          unsigned depth,
                          struct npy_element *ret);

bool nd_npy_is(const void *bytes, size_t n_bytes)
{
        return n_bytes >= NPY_MAGIC_BYTES && memcmp(bytes, NPY_MAGIC, NPY_MAGIC_BYTES) == 0;
}

const char *nd_npy_unit_find(const char *unit, size_t n_unit)
{
        static const char *const units[] = {"Y",  "M",  "W",  "D",  "h",  "m",  "s",
                                            "ms", "us", "ns", "ps", "fs", "as", "generic"};

        for (size_t i = 0; i < nd_array_size(units); ++i)
                if (strlen(units[i]) == n_unit && memcmp(units[i], unit, n_unit) == 0)
                        return units[i];
        return NULL;
}

__attribute__((format(printf, 2, 3))) static int
npy_refuse_dtype(struct npy *npy, const char *format, ...)
{
        char text[160];
        va_list args;

        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        return nd_fault_set(npy->fault, NDBUS_EDTYPE, "descr", "%s", text);
}

static int
npy_refuse_type(struct npy *npy, const char *field, const struct nd_literal *node, const char *what)
{
        return nd_fault_set(npy->fault, NDBUS_ECORRUPT, field, "byte %zu of the dict: %s, not %s",
                            node->at, nd_literal_type_name(node->type), what);
}

/* Decimal digits at *@s, without sign; at least one. */
static bool npy_take_number(const char **s, uint32_t *ret)
{
        uint32_t value = 0;
        const char *start = *s;

        for (; **s >= '0' && **s <= '9'; ++*s)
                if (nd_mul_overflow(value, 10u, &value) ||
                    nd_add_overflow(value, (uint32_t)(**s - '0'), &value))
                        return false;
        if (*s == start)
                return false;
        *ret = value;
        return true;
}

/* "[ns]", "[25us]", or nothing: a time without unit. */
static bool npy_take_unit(const char *s, struct npy_element *element)
{
        const char *end;

        if (!*s) {
                element->unit = "generic";
                element->unit_count = 1;
                return true;
        }
        if (*s++ != '[')
                return false;
        element->unit_count = 1;
        if (*s >= '0' && *s <= '9' &&
            (!npy_take_number(&s, &element->unit_count) || element->unit_count == 0))
                return false;
        end = strchr(s, ']');
        if (!end || end[1] != '\0')
                return false;
        element->unit = nd_npy_unit_find(s, (size_t)(end - s));
        return element->unit != NULL;
}

const struct nd_npy_code nd_npy_codes[] = {
        {"bool", 'b', 1},       {"int8", 'i', 1},
        {"int16", 'i', 2},      {"int32", 'i', 4},
        {"int64", 'i', 8},      {"uint8", 'u', 1},
        {"uint16", 'u', 2},     {"uint32", 'u', 4},
        {"uint64", 'u', 8},     {"float16", 'f', 2},
        {"float32", 'f', 4},    {"float64", 'f', 8},
        {"complex64", 'c', 8},  {"complex128", 'c', 16},
        {"datetime64", 'M', 8}, {"timedelta64", 'm', 8},
        {NULL, 0, 0},
};

static const char *npy_find_code(char letter, uint32_t bytes)
{
        for (const struct nd_npy_code *code = nd_npy_codes; code->name; ++code)
                if (code->letter == letter && code->bytes == bytes)
                        return code->name;
        return NULL;
}

/* 'S', 'U', 'V': as wide as the number says. */
static int npy_read_wide(struct npy *npy,
                         const char *descr,
                         char letter,
                         uint32_t count,
                         struct npy_element *element)
{
        element->dtype = letter == 'S' ? "bytes" : letter == 'U' ? "ucs4" : "opaque";
        if (count == 0)
                return npy_refuse_dtype(npy, "'%s' has elements of no bytes; ndbus has none such",
                                        descr);
        if (nd_mul_overflow(count, letter == 'U' ? 4u : 1u, &element->bytes) ||
            element->bytes > UINT32_MAX / 8)
                return npy_refuse_dtype(npy,
                                        "'%s' is wider than the %u bytes that an element may be",
                                        descr, UINT32_MAX / 8);
        return 0;
}

static int npy_read_scalar(struct npy *npy, const struct nd_literal *node, struct npy_element *ret)
{
        struct npy_element element = {.dtype = NULL};
        const char *descr = node->string, *s = descr;
        char order = '|', letter;
        uint32_t count;
        int r;

        if (*s && strchr("<>|=", *s))
                order = *s++;
        letter = *s;
        if (letter)
                ++s;

        if (letter == 'O')
                return npy_refuse_dtype(npy,
                                        "'%s' is an object array: pickled Python objects are never "
                                        "decoded; convert it, as in array.astype(float)",
                                        descr);
        if (!npy_take_number(&s, &count))
                return npy_refuse_dtype(npy, "'%s' is no dtype; '<f8' or '|u1' would be one",
                                        descr);

        if (letter && strchr("SUV", letter)) {
                r = npy_read_wide(npy, descr, letter, count, &element);
                if (r)
                        return r;
        } else {
                element.dtype = npy_find_code(letter, count);
                element.bytes = count;
                if (!element.dtype && (letter == 'f' || letter == 'c') && count >= 12)
                        return npy_refuse_dtype(
                                npy,
                                "'%s' is long double, which differs from machine to machine; "
                                "convert it, as in array.astype('%s')",
                                descr, letter == 'f' ? "f8" : "c16");
        }
        if (!element.dtype)
                return npy_refuse_dtype(npy, "'%s' is no dtype that ndbus knows", descr);

        if (letter == 'M' || letter == 'm') {
                if (!npy_take_unit(s, &element))
                        return npy_refuse_dtype(
                                npy, "'%s' has no valid unit; '[ns]' or '[25us]' would be one",
                                descr);
        } else if (*s) {
                return npy_refuse_dtype(npy, "'%s' is no dtype: there is more behind the width",
                                        descr);
        }
        if (order == '>' && !strchr("SVb", letter) && element.bytes > 1)
                element.flags = NDBUS_BIG_ENDIAN;
        *ret = element;
        return 0;
}

/* Puts the dimensions of a shape behind those that are there. An int is a shape of one. */
static int npy_append_shape(struct npy *npy,
                            const char *field,
                            const struct nd_literal *node,
                            int32_t *ndim,
                            int64_t *shape)
{
        const struct nd_literal *dim = node;

        if (node->type == ND_LITERAL_TUPLE)
                dim = nd_literal_first(npy->tree, node);
        else if (node->type != ND_LITERAL_INTEGER)
                return npy_refuse_type(npy, field, node, "a tuple of integers");

        for (; dim; dim = dim == node ? NULL : nd_literal_next(npy->tree, dim)) {
                if (dim->type != ND_LITERAL_INTEGER)
                        return npy_refuse_type(npy, field, dim, "an integer");
                if (dim->integer < 0)
                        return nd_fault_set(npy->fault, NDBUS_ESHAPE, field,
                                            "dimension %d is %lld, which is negative", *ndim,
                                            (long long)dim->integer);
                if (*ndim >= NDBUS_DIMS_MAX)
                        return nd_fault_set_limit(npy->fault, NDBUS_ESHAPE, field,
                                                  NDBUS_DIMS_MAX + 1, NDBUS_DIMS_MAX, "dimensions");
                shape[(*ndim)++] = dim->integer;
        }
        return 0;
}

static int64_t *npy_keep_dims(struct npy *npy, const int64_t *dims, int32_t n)
{
        int64_t *kept = npy->dims + npy->n_dims;

        nd_assert(npy->n_dims + (size_t)n <= npy->n_dims_max);
        if (n > 0)
                memcpy(kept, dims, (size_t)n * sizeof(*dims));
        npy->n_dims += (size_t)n;
        return kept;
}

/* name, or (title, name) */
static int npy_read_name(struct npy *npy, const struct nd_literal *node, const char **ret_name)
{
        if (node->type == ND_LITERAL_TUPLE && node->n_children == 2) {
                node = nd_literal_next(npy->tree, nd_literal_first(npy->tree, node));
                npy->npy.has_titles = true;
        }
        if (node->type != ND_LITERAL_STRING)
                return npy_refuse_type(npy, "descr", node, "a field's name");
        if (node->n_string > ND_NAME_BYTES_MAX)
                return npy_refuse_dtype(npy, "a field's name has %zu bytes, the limit is %u",
                                        node->n_string, ND_NAME_BYTES_MAX);
        *ret_name = node->string;
        return 0;
}

/* (name, descr) or (name, descr, shape) */
static int npy_read_field(struct npy *npy,
                          const struct nd_literal *node,
                          unsigned depth,
                          const char **ret_name,
                          struct npy_element *ret_element)
{
        const struct nd_literal *name = nd_literal_first(npy->tree, node);
        const struct nd_literal *descr = nd_literal_next(npy->tree, name);
        const struct nd_literal *shape = nd_literal_next(npy->tree, descr);
        struct npy_element element, inner;
        int r;

        if (node->type != ND_LITERAL_TUPLE || !name || !descr || node->n_children > 3)
                return npy_refuse_type(npy, "descr", node, "a field, (name, dtype[, shape])");

        r = npy_read_name(npy, name, ret_name);
        if (r)
                return r;
        r = npy_read_descr(npy, descr, depth + 1, &inner);
        if (r || !shape) {
                *ret_element = inner;
                return r;
        }
        element = inner;
        element.ndim = 0;
        r = npy_append_shape(npy, "descr", shape, &element.ndim, element.shape);
        if (r)
                return r;
        for (int32_t i = 0; i < inner.ndim; ++i) {
                if (element.ndim >= NDBUS_DIMS_MAX)
                        return nd_fault_set_limit(npy->fault, NDBUS_ESHAPE, "descr",
                                                  NDBUS_DIMS_MAX + 1, NDBUS_DIMS_MAX, "dimensions");
                element.shape[element.ndim++] = inner.shape[i];
        }
        *ret_element = element;
        return 0;
}

/* Bytes of a field, its subarray included. */
static bool npy_field_bytes(const struct npy_element *element, uint32_t *ret)
{
        uint32_t bytes = element->bytes;

        for (int32_t i = 0; i < element->ndim; ++i)
                if (element->shape[i] > UINT32_MAX ||
                    nd_mul_overflow(bytes, (uint32_t)element->shape[i], &bytes))
                        return false;
        *ret = bytes;
        return true;
}

static bool npy_has_field(const struct ndbus_field *fields, uint32_t n_fields, const char *name)
{
        for (uint32_t i = 0; i < n_fields; ++i)
                if (strcmp(fields[i].name, name) == 0)
                        return true;
        return false;
}

static int npy_check_name(struct npy *npy,
                          const struct ndbus_field *fields,
                          uint32_t n_fields,
                          const char *name)
{
        if (!*name)
                return npy_refuse_dtype(npy, "a field that is not padding has no name");
        if (npy_has_field(fields, n_fields, name))
                return npy_refuse_dtype(npy, "the field '%.60s' is there twice", name);
        return 0;
}

/* A list of fields. An opaque one without a name is padding: it only moves the next offset. */
static int npy_read_record(struct npy *npy,
                           const struct nd_literal *list,
                           unsigned depth,
                           struct npy_element *ret)
{
        struct npy_element record = {.dtype = "record"};
        struct ndbus_field *fields = npy->fields + npy->n_fields;
        int r;

        if (list->n_children > ND_FIELDS_MAX - npy->n_fields)
                return nd_fault_set_limit(npy->fault, NDBUS_EDTYPE, "descr",
                                          npy->n_fields + list->n_children, ND_FIELDS_MAX,
                                          "fields");
        npy->n_fields += list->n_children;

        for (const struct nd_literal *i = nd_literal_first(npy->tree, list); i;
             i = nd_literal_next(npy->tree, i)) {
                struct npy_element element;
                uint32_t bytes, end;
                const char *name = "";

                r = npy_read_field(npy, i, depth, &name, &element);
                if (r)
                        return r;
                if (!npy_field_bytes(&element, &bytes) ||
                    nd_add_overflow(record.bytes, bytes, &end) || end > UINT32_MAX / 8)
                        return npy_refuse_dtype(
                                npy, "a record is wider than the %u bytes that an element may be",
                                UINT32_MAX / 8);

                if (*name || strcmp(element.dtype, "opaque") != 0) {
                        r = npy_check_name(npy, fields, record.n_fields, name);
                        if (r)
                                return r;
                        fields[record.n_fields++] = (struct ndbus_field){
                                .name = name,
                                .offset = record.bytes,
                                .dtype = element.dtype,
                                .bits = element.bytes * 8,
                                .flags = element.flags,
                                .ndim = element.ndim,
                                .n_fields = element.n_fields,
                                .shape = npy_keep_dims(npy, element.shape, element.ndim),
                                .fields = element.fields,
                                .unit = element.unit,
                                .unit_count = element.unit_count,
                        };
                }
                record.bytes = end;
        }
        if (record.n_fields == 0 || record.bytes == 0)
                return npy_refuse_dtype(npy, "a record without fields, or of no bytes");
        record.fields = fields;
        *ret = record;
        return 0;
}

static int npy_read_descr(struct npy *npy,
                          const struct nd_literal *node,
                          unsigned depth,
                          struct npy_element *ret)
{
        /* the literal's own depth bounds it; a record deeper than a header may be is refused */
        if (depth > ND_SCAN_DEPTH_MAX)
                return nd_fault_set_limit(npy->fault, NDBUS_EDTYPE, "descr", depth,
                                          ND_SCAN_DEPTH_MAX, "levels");
        if (node->type == ND_LITERAL_STRING)
                return npy_read_scalar(npy, node, ret);
        if (node->type == ND_LITERAL_LIST)
                return npy_read_record(npy, node, depth, ret);
        if (node->type == ND_LITERAL_TUPLE && node->n_children == 2) { /* (descr, shape) */
                const struct nd_literal *inner_node = nd_literal_first(npy->tree, node);
                struct npy_element inner = {0}, element;
                int r;

                r = npy_read_descr(npy, inner_node, depth + 1, &inner);
                if (r)
                        return r;
                element = inner;
                element.ndim = 0;
                r = npy_append_shape(npy, "descr", nd_literal_next(npy->tree, inner_node),
                                     &element.ndim, element.shape);
                if (r)
                        return r;
                if (element.ndim + inner.ndim > NDBUS_DIMS_MAX)
                        return nd_fault_set_limit(npy->fault, NDBUS_ESHAPE, "descr",
                                                  (uint64_t)(element.ndim + inner.ndim),
                                                  NDBUS_DIMS_MAX, "dimensions");
                for (int32_t i = 0; i < inner.ndim; ++i)
                        element.shape[element.ndim++] = inner.shape[i];
                *ret = element;
                return 0;
        }
        return npy_refuse_type(npy, "descr", node, "a dtype string or a list of fields");
}

/* Each of the three keys once, and no other. */
static int npy_find_keys(struct npy *npy, const struct nd_literal *ret_values[static 3])
{
        static const char *const keys[] = {"descr", "fortran_order", "shape"};
        const struct nd_literal *root = &npy->tree->nodes[0], *key, *value;
        const struct nd_literal *values[3] = {NULL, NULL, NULL};

        if (root->type != ND_LITERAL_DICT)
                return npy_refuse_type(npy, "header", root, "a dict");
        for (key = nd_literal_first(npy->tree, root); key;
             key = nd_literal_next(npy->tree, value)) {
                size_t i = 0;

                value = nd_literal_next(npy->tree, key);
                if (key->type != ND_LITERAL_STRING)
                        return npy_refuse_type(npy, "header", key, "a string as key");
                while (i < nd_array_size(keys) && strcmp(key->string, keys[i]) != 0)
                        ++i;
                if (i == nd_array_size(keys))
                        return nd_fault_set(
                                npy->fault, NDBUS_ECORRUPT, "header",
                                "the key '%.40s' is none of descr, fortran_order, shape",
                                key->string);
                if (values[i])
                        return nd_fault_set(npy->fault, NDBUS_ECORRUPT, "header",
                                            "the key '%s' is there twice", keys[i]);
                values[i] = value;
        }
        for (size_t i = 0; i < nd_array_size(keys); ++i) {
                if (!values[i])
                        return nd_fault_set(npy->fault, NDBUS_ECORRUPT, "header",
                                            "the key '%s' is missing", keys[i]);
                ret_values[i] = values[i];
        }
        return 0;
}

/* The pools: upper bounds that the tree gives. */
static int npy_allocate(struct npy *npy)
{
        const struct nd_literal_tree *tree = npy->tree;
        size_t n_dims = 2 * NDBUS_DIMS_MAX, n_fields = 0;

        for (uint32_t i = 0; i < tree->n_nodes; ++i)
                if (tree->nodes[i].type == ND_LITERAL_LIST)
                        n_fields += tree->nodes[i].n_children;
        if (n_fields > ND_FIELDS_MAX)
                return nd_fault_set_limit(npy->fault, NDBUS_EDTYPE, "descr", n_fields,
                                          ND_FIELDS_MAX, "fields");
        for (uint32_t i = 0; i < tree->n_nodes; ++i)
                n_dims += tree->nodes[i].type == ND_LITERAL_INTEGER;

        npy->fields = calloc(n_fields + 1, sizeof(*npy->fields));
        npy->dims = calloc(n_dims, sizeof(*npy->dims));
        if (!npy->fields || !npy->dims)
                return nd_fault_set(npy->fault, NDBUS_ENOMEM, "header", "out of memory");
        npy->n_fields_max = n_fields;
        npy->n_dims_max = n_dims;
        return 0;
}

static int npy_count_bytes(
        struct npy *npy, const int64_t *shape, int32_t ndim, uint32_t itemsize, uint64_t *ret_bytes)
{
        bool is_empty = false;
        int64_t bytes = itemsize;

        for (int32_t i = 0; i < ndim; ++i)
                is_empty |= shape[i] == 0;
        for (int32_t i = 0; !is_empty && i < ndim; ++i)
                if (nd_mul_overflow(bytes, shape[i], &bytes))
                        return nd_fault_set(npy->fault, NDBUS_ESHAPE, "shape",
                                            "more than 2^63 bytes in all");
        *ret_bytes = is_empty ? 0 : (uint64_t)bytes;
        return 0;
}

static const int64_t *
npy_fortran_strides(struct npy *npy, const int64_t *shape, int32_t ndim, uint32_t itemsize)
{
        int64_t strides[NDBUS_DIMS_MAX];
        int64_t step = itemsize;

        for (int32_t i = 0; i < ndim; ++i) {
                strides[i] = step;
                step *= shape[i];
        }
        return npy_keep_dims(npy, strides, ndim);
}

static int npy_read_dict(struct npy *npy)
{
        const struct nd_literal *values[3];
        struct npy_element element;
        int64_t shape[NDBUS_DIMS_MAX];
        int32_t ndim = 0;
        int r;

        r = npy_find_keys(npy, values);
        if (r)
                return r;
        r = npy_allocate(npy);
        if (r)
                return r;
        r = npy_read_descr(npy, values[0], 1, &element);
        if (r)
                return r;
        if (values[1]->type != ND_LITERAL_BOOL)
                return npy_refuse_type(npy, "fortran_order", values[1], "True or False");
        if (values[2]->type != ND_LITERAL_TUPLE)
                return npy_refuse_type(npy, "shape", values[2], "a tuple");
        r = npy_append_shape(npy, "shape", values[2], &ndim, shape);
        if (r)
                return r;
        for (int32_t i = 0; i < element.ndim; ++i) { /* a subarray dtype is further dimensions */
                if (ndim >= NDBUS_DIMS_MAX)
                        return nd_fault_set_limit(npy->fault, NDBUS_ESHAPE, "shape",
                                                  NDBUS_DIMS_MAX + 1, NDBUS_DIMS_MAX, "dimensions");
                shape[ndim++] = element.shape[i];
        }
        if (element.ndim > 0 && values[1]->integer)
                return npy_refuse_dtype(npy, "a subarray in Fortran order");
        r = npy_count_bytes(npy, shape, ndim, element.bytes, &npy->npy.data_bytes);
        if (r)
                return r;

        npy->npy.array = (struct ndbus_array){
                .dtype = element.dtype,
                .bits = element.bytes * 8,
                .ndim = ndim,
                .flags = element.flags,
                .shape = npy_keep_dims(npy, shape, ndim),
                .fields = element.fields,
                .n_fields = element.n_fields,
                .unit = element.unit,
                .unit_count = element.unit_count,
        };
        if (values[1]->integer && ndim > 1 && npy->npy.data_bytes > 0)
                npy->npy.array.strides =
                        npy_fortran_strides(npy, npy->npy.array.shape, ndim, element.bytes);
        return 0;
}

/* Magic, version and length: where the dict begins and how long it is. */
static int npy_read_lead(struct npy *npy,
                         const uint8_t *bytes,
                         size_t n_bytes,
                         size_t *ret_dict_offset,
                         size_t *ret_dict_bytes)
{
        size_t offset, n;

        if (!nd_npy_is(bytes, n_bytes))
                return nd_fault_set(npy->fault, NDBUS_ECORRUPT, "",
                                    "this is not an .npy file: it does not begin with \\x93NUMPY");
        if (n_bytes < 10)
                return nd_fault_set(npy->fault, NDBUS_ETRUNCATED, "header",
                                    "the file ends at byte %zu, inside the first 10", n_bytes);
        if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
                return nd_fault_set(npy->fault, NDBUS_EUNSUPPORTED, "version",
                                    "%u.%u; 1.0, 2.0 and 3.0 are known", bytes[6], bytes[7]);
        offset = bytes[6] == 1 ? 10 : 12;
        if (n_bytes < offset)
                return nd_fault_set(npy->fault, NDBUS_ETRUNCATED, "header",
                                    "the file ends at byte %zu, inside the first 12", n_bytes);
        n = bytes[6] == 1 ? nd_load_le16(bytes + 8) : nd_load_le32(bytes + 8);
        if (n > ND_NPY_HEADER_BYTES_MAX)
                return nd_fault_set_limit(npy->fault, NDBUS_ELIMIT, "header", n,
                                          ND_NPY_HEADER_BYTES_MAX, "bytes");
        if (n > n_bytes - offset)
                return nd_fault_set(npy->fault, NDBUS_ETRUNCATED, "header",
                                    "the file ends at byte %zu, the header at %zu", n_bytes,
                                    offset + n);
        *ret_dict_offset = offset;
        *ret_dict_bytes = n;
        return 0;
}

int nd_npy_read(const void *bytes, size_t n_bytes, struct nd_npy **ret_npy, struct nd_fault *fault)
{
        nd_cleanup(nd_npy_freep) struct nd_npy *holder = NULL;
        const uint8_t *p = bytes;
        struct npy *npy;
        size_t offset = 0, n = 0;
        int r;

        npy = calloc(1, sizeof(*npy));
        if (!npy)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        holder = &npy->npy;
        npy->fault = fault;

        r = npy_read_lead(npy, p, n_bytes, &offset, &n);
        if (r)
                return r;
        r = nd_literal_parse((const char *)p + offset, n, /* latin1= */ p[6] < 3, "header",
                             &npy->tree, fault);
        if (r)
                return r;
        r = npy_read_dict(npy);
        if (r)
                return r;

        npy->npy.data_offset = offset + n;
        if (npy->npy.data_bytes > n_bytes - npy->npy.data_offset)
                return nd_fault_set(fault, NDBUS_ETRUNCATED, "",
                                    "the file ends at byte %zu; the elements want %llu bytes from "
                                    "byte %llu on",
                                    n_bytes, (unsigned long long)npy->npy.data_bytes,
                                    (unsigned long long)npy->npy.data_offset);
        npy->npy.file_bytes = npy->npy.data_offset + npy->npy.data_bytes;
        npy->npy.array.data = p + npy->npy.data_offset;

        npy->fault = NULL;
        *ret_npy = nd_steal(holder);
        return 0;
}

struct nd_npy *nd_npy_free(struct nd_npy *npy)
{
        struct npy *whole = (struct npy *)(void *)npy;

        if (whole) {
                nd_literal_tree_free(whole->tree);
                free(whole->fields);
                free(whole->dims);
                free(whole);
        }
        return NULL;
}
