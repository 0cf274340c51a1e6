/* SPDX-License-Identifier: MIT */

/*
 * Writing .npy
 *
 * The header is made first, whole, so that a plan can be shown and its note printed before a byte
 * is written. It is ASCII: what is not is escaped, which NumPy's reader undoes, so that versions
 * 1.0 and 2.0 are enough. Arrays in C or Fortran order are written from where they lie; all others
 * are gathered to C order through one buffer.
 *
 * .npy can only say what numpy.dtype can. bfloat16, the small floats and dtypes that nobody has
 * heard of become opaque bytes ('|V2'), from which array.view() makes them again where ml_dtypes
 * is installed; so do records whose fields overlap or stand out of order, as their offsets cannot
 * be written. Packed elements below a byte become the bytes that hold them.
 */

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include "client/command/file.h"
#include "client/command/npy.h"
#include "protocol/byteorder.h"
#include "protocol/layout.h"
#include "protocol/limit.h"

#define NPY_ALIGN        64u
#define NPY_GATHER_BYTES (256u * 1024u)

static bool
npy_write_record(FILE *out, const struct ndbus_field *fields, uint32_t n, uint64_t bytes);

static uint32_t npy_field_itemsize(const struct ndbus_field *field)
{
        return field->bits / 8;
}

/* The letter, or 0 if .npy has none for this name and width. */
static char npy_letter(const char *dtype, uint64_t bits)
{
        for (const struct nd_npy_code *code = nd_npy_codes; code->name; ++code)
                if (strcmp(code->name, dtype) == 0)
                        return bits == code->bytes * UINT64_C(8) ? code->letter : 0;
        return 0;
}

/* The text of a scalar dtype without quotes, e.g. "<f8". False: it became opaque. */
static bool npy_format_scalar(char *out,
                              size_t n_out,
                              const char *dtype,
                              uint32_t bits,
                              uint32_t flags,
                              const char *unit,
                              uint32_t unit_count)
{
        uint32_t bytes = bits / 8;
        char letter = npy_letter(dtype, bits);
        char order = flags & NDBUS_BIG_ENDIAN ? '>' : '<';

        if (letter == 'M' || letter == 'm') {
                const char *known = unit ? nd_npy_unit_find(unit, strlen(unit)) : NULL;
                uint32_t count = unit_count ? unit_count : 1;

                if (known && strcmp(known, "generic") == 0 && count == 1) {
                        snprintf(out, n_out, "%c%c8", order, letter);
                        return true;
                }
                if (known && count <= INT32_MAX && strcmp(known, "generic") != 0) {
                        if (count == 1)
                                snprintf(out, n_out, "%c%c8[%s]", order, letter, known);
                        else
                                snprintf(out, n_out, "%c%c8[%" PRIu32 "%s]", order, letter, count,
                                         known);
                        return true;
                }
                letter = 0;
        }
        if (letter) {
                snprintf(out, n_out, "%c%c%" PRIu32, bytes == 1 ? '|' : order, letter, bytes);
                return true;
        }
        if (strcmp(dtype, "bytes") == 0) {
                snprintf(out, n_out, "|S%" PRIu32, bytes);
                return true;
        }
        if (strcmp(dtype, "ucs4") == 0 && bytes % 4 == 0) {
                snprintf(out, n_out, "%cU%" PRIu32, order, bytes / 4);
                return true;
        }
        snprintf(out, n_out, "|V%" PRIu32, bytes);
        return strcmp(dtype, "opaque") == 0;
}

/* A name as repr() would write it, all of it ASCII. Names are UTF-8 that was checked; what is not
 * is written byte by byte. */
static void npy_write_name(FILE *out, const char *name)
{
        const uint8_t *s = (const uint8_t *)name;

        fputc('\'', out);
        while (*s) {
                uint32_t code = *s;
                unsigned n = *s < 0x80 ? 1 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : 4;

                if (n > 1) {
                        code = *s & (0x7fu >> n);
                        for (unsigned i = 1; i < n; ++i) {
                                if ((s[i] & 0xc0) != 0x80) {
                                        n = 1;
                                        code = *s;
                                        break;
                                }
                                code = code << 6 | (s[i] & 0x3f);
                        }
                }
                s += n;
                if (code == '\'' || code == '\\')
                        fprintf(out, "\\%c", (char)code);
                else if (code >= 0x20 && code < 0x7f)
                        fputc((int)code, out);
                else if (code < 0x100)
                        fprintf(out, "\\x%02" PRIx32, code);
                else if (code < 0x10000)
                        fprintf(out, "\\u%04" PRIx32, code);
                else
                        fprintf(out, "\\U%08" PRIx32, code);
        }
        fputc('\'', out);
}

static void npy_write_tuple(FILE *out, const int64_t *shape, int32_t ndim)
{
        fputc('(', out);
        for (int32_t i = 0; i < ndim; ++i)
                fprintf(out, i ? ", %" PRId64 : "%" PRId64, shape[i]);
        fputs(ndim == 1 ? ",)" : ")", out);
}

/* Bytes that a field takes, its subarray included; false if they cannot be. */
static bool npy_field_extent(const struct ndbus_field *field, uint64_t *ret)
{
        uint64_t bytes = npy_field_itemsize(field);

        if (field->bits % 8 || field->bits == 0)
                return false;
        for (int32_t i = 0; i < field->ndim; ++i)
                if (field->shape[i] < 0 ||
                    nd_mul_overflow(bytes, (uint64_t)field->shape[i], &bytes))
                        return false;
        *ret = bytes;
        return true;
}

/* NumPy's list of fields has no offsets: fields stand in order and what is between is padding. */
static bool npy_record_is_sayable(const struct ndbus_field *fields,
                                  uint32_t n,
                                  uint64_t record_bytes,
                                  unsigned depth)
{
        uint64_t end = 0, bytes;

        if (n == 0 || n > ND_FIELDS_MAX || depth > ND_SCAN_DEPTH_MAX)
                return false;
        for (uint32_t i = 0; i < n; ++i) {
                if (!npy_field_extent(&fields[i], &bytes) || fields[i].offset < end ||
                    nd_add_overflow(fields[i].offset, bytes, &end) || end > record_bytes)
                        return false;
                if (!fields[i].name || !fields[i].name[0] || !fields[i].dtype)
                        return false;
                for (uint32_t k = 0; k < i; ++k)
                        if (strcmp(fields[k].name, fields[i].name) == 0)
                                return false;
                if (strcmp(fields[i].dtype, "record") == 0 &&
                    !npy_record_is_sayable(fields[i].fields, fields[i].n_fields,
                                           npy_field_itemsize(&fields[i]), depth + 1))
                        return false;
        }
        return true;
}

static bool npy_write_field(FILE *out, const struct ndbus_field *field)
{
        bool is_exact = true;
        char text[64];

        fputc('(', out);
        npy_write_name(out, field->name);
        fputs(", ", out);
        if (strcmp(field->dtype, "record") == 0) {
                is_exact = npy_write_record(out, field->fields, field->n_fields,
                                            npy_field_itemsize(field));
        } else {
                is_exact = npy_format_scalar(text, sizeof(text), field->dtype, field->bits,
                                             field->flags, field->unit, field->unit_count);
                fprintf(out, "'%s'", text);
        }
        if (field->ndim > 0) {
                fputs(", ", out);
                npy_write_tuple(out, field->shape, field->ndim);
        }
        fputc(')', out);
        return is_exact;
}

/* The record must have been found sayable. False: a field became opaque. */
static bool
npy_write_record(FILE *out, const struct ndbus_field *fields, uint32_t n, uint64_t bytes)
{
        bool is_exact = true;
        uint64_t end = 0, field_bytes = 0;

        fputc('[', out);
        for (uint32_t i = 0; i < n; ++i) {
                if (i)
                        fputs(", ", out);
                if (fields[i].offset > end)
                        fprintf(out, "('', '|V%" PRIu64 "'), ", fields[i].offset - end);
                is_exact &= npy_write_field(out, &fields[i]);
                is_exact &= npy_field_extent(&fields[i], &field_bytes);
                end = fields[i].offset + field_bytes;
        }
        if (end < bytes)
                fprintf(out, ", ('', '|V%" PRIu64 "')", bytes - end);
        fputc(']', out);
        return is_exact;
}

__attribute__((format(printf, 2, 3))) static void
npy_note(struct nd_npy_plan *plan, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(plan->note, sizeof(plan->note), format, args);
        va_end(args);
        for (char *c = plan->note; *c; ++c)
                if (*c < 0x20 || *c == 0x7f)
                        *c = '?';
}

/* Writes the dtype of the whole array and notes what it does not say. */
static void npy_write_descr(FILE *out, const struct ndbus_array *array, struct nd_npy_plan *plan)
{
        char text[64];

        if (!array->dtype) {
                fputs("'|u1'", out);
                npy_note(plan, "raw bytes written as uint8");
                return;
        }
        if (strcmp(array->dtype, "record") == 0) {
                if (npy_record_is_sayable(array->fields, array->n_fields, plan->itemsize, 0)) {
                        if (!npy_write_record(out, array->fields, array->n_fields, plan->itemsize))
                                npy_note(plan, "fields that .npy has no dtype for written as |V");
                } else {
                        fprintf(out, "'|V%" PRIu32 "'", plan->itemsize);
                        npy_note(plan, "record whose offsets .npy cannot say written as |V%" PRIu32,
                                 plan->itemsize);
                }
                return;
        }
        if (!npy_format_scalar(text, sizeof(text), array->dtype, plan->itemsize * 8, array->flags,
                               array->unit, array->unit_count))
                npy_note(plan, "%.60s written as %s", array->dtype, text);
        fprintf(out, "'%s'", text);
}

static bool npy_count(const struct nd_npy_plan *plan, uint64_t *ret_bytes)
{
        int64_t bytes = plan->itemsize;

        for (int32_t i = 0; i < plan->ndim; ++i)
                if (plan->shape[i] == 0) {
                        *ret_bytes = 0;
                        return true;
                }
        for (int32_t i = 0; i < plan->ndim; ++i)
                if (plan->shape[i] < 0 || nd_mul_overflow(bytes, plan->shape[i], &bytes))
                        return false;
        *ret_bytes = (uint64_t)bytes;
        return true;
}

/* Dimensions of one element have no neighbours, so their strides do not matter. */
static bool npy_is_fortran(const struct nd_npy_plan *plan)
{
        int64_t step = plan->itemsize;

        for (int32_t i = 0; i < plan->ndim; ++i) {
                if (plan->shape[i] != 1 && plan->strides[i] != step)
                        return false;
                step *= plan->shape[i];
        }
        return true;
}

static bool npy_is_c(const struct nd_npy_plan *plan)
{
        int64_t step = plan->itemsize;

        for (int32_t i = plan->ndim; i-- > 0;) {
                if (plan->shape[i] != 1 && plan->strides[i] != step)
                        return false;
                step *= plan->shape[i];
        }
        return true;
}

/* Of one lane of one element. */
static uint64_t npy_bits(const struct ndbus_array *array)
{
        return nd_layout_bits(array) / (array->lanes ? array->lanes : 1);
}

/* Packed bits: the bytes that hold them, one after another. */
static bool npy_place_packed(const struct ndbus_array *array, struct nd_npy_plan *plan)
{
        uint64_t bits = npy_bits(array) * (array->lanes ? array->lanes : 1);

        for (int32_t i = 0; i < array->ndim; ++i)
                if (array->shape[i] < 0 || nd_mul_overflow(bits, (uint64_t)array->shape[i], &bits))
                        return false;
        if (bits > INT64_MAX - 7)
                return false;
        plan->itemsize = 1;
        plan->ndim = 1;
        plan->shape[0] = (int64_t)((bits + 7) / 8);
        plan->strides[0] = 1;
        npy_note(plan, "packed %.60s written as the bytes that hold it", array->dtype);
        return true;
}

/* Shape and strides as they are written, strides always there, lanes a dimension of their own. */
static bool npy_place(const struct ndbus_array *array, struct nd_npy_plan *plan)
{
        uint32_t lanes = array->lanes ? array->lanes : 1;
        int64_t step;

        plan->itemsize = !array->dtype                         ? 1
                         : array->flags & NDBUS_SUBBYTE_PADDED ? 1
                                                               : (uint32_t)npy_bits(array) / 8;
        plan->ndim = array->ndim;
        for (int32_t i = 0; i < array->ndim; ++i)
                plan->shape[i] = array->shape[i];
        if (lanes > 1)
                plan->shape[plan->ndim++] = lanes;
        if (!npy_count(plan, &plan->data_bytes))
                return false;

        step = plan->itemsize;
        for (int32_t i = plan->ndim; i-- > 0 && plan->data_bytes > 0;) {
                plan->strides[i] = step;
                step *= plan->shape[i];
        }
        for (int32_t i = 0; array->strides && i < array->ndim; ++i)
                plan->strides[i] = array->strides[i];
        return true;
}

/* Pads with spaces to a multiple of 64 and puts the lead in front. */
static int npy_finish_header(struct nd_npy_plan *plan, const char *dict, size_t n_dict)
{
        size_t n_lead = n_dict + 10 + NPY_ALIGN <= UINT16_MAX ? 10 : 12;
        size_t n = (n_lead + n_dict + 1 + NPY_ALIGN - 1) / NPY_ALIGN * NPY_ALIGN;
        char *header = malloc(n);
        uint8_t *p = (uint8_t *)header;

        if (!header)
                return NDBUS_ENOMEM;
        memcpy(header, "\x93NUMPY", 6);
        p[6] = n_lead == 10 ? 1 : 2;
        p[7] = 0;
        if (n_lead == 10)
                nd_store_le16(p + 8, (uint16_t)(n - n_lead));
        else
                nd_store_le32(p + 8, (uint32_t)(n - n_lead));
        memcpy(header + n_lead, dict, n_dict);
        memset(header + n_lead + n_dict, ' ', n - n_lead - n_dict);
        header[n - 1] = '\n';
        plan->header = header;
        plan->n_header = n;
        return 0;
}

static int
npy_make_header(const struct ndbus_array *array, bool is_packed, struct nd_npy_plan *plan)
{
        bool is_fortran = plan->data_bytes > 0 && !npy_is_c(plan) && npy_is_fortran(plan);
        nd_autofree char *dict = NULL;
        size_t n_dict = 0;
        FILE *out;

        plan->as_it_lies = plan->data_bytes == 0 || is_fortran || npy_is_c(plan);

        out = open_memstream(&dict, &n_dict);
        if (!out)
                return NDBUS_ENOMEM;
        fputs("{'descr': ", out);
        if (is_packed)
                fputs("'|u1'", out);
        else
                npy_write_descr(out, array, plan);
        fprintf(out, ", 'fortran_order': %s, 'shape': ", is_fortran ? "True" : "False");
        npy_write_tuple(out, plan->shape, plan->ndim);
        fputs(", }", out);
        if (ferror(out) | fclose(out))
                return NDBUS_ENOMEM;
        if (n_dict > UINT32_MAX - 2 * NPY_ALIGN)
                return NDBUS_ENOMEM;
        return npy_finish_header(plan, dict, n_dict);
}

int nd_npy_plan(const struct ndbus_array *array,
                struct nd_npy_plan *ret_plan,
                struct nd_fault *fault)
{
        struct nd_npy_plan plan = {.header = NULL};
        bool is_packed;
        bool fits;
        int r;

        if (array->ndim < 0 || array->ndim > NDBUS_DIMS_MAX)
                return nd_fault_set_limit(fault, NDBUS_ESHAPE, "ndim", (uint64_t)array->ndim,
                                          NDBUS_DIMS_MAX, "dimensions");
        is_packed = array->dtype && !(array->flags & NDBUS_SUBBYTE_PADDED) &&
                    (npy_bits(array) % 8 || npy_bits(array) == 0);
        fits = is_packed ? npy_place_packed(array, &plan) : npy_place(array, &plan);
        if (!fits || !npy_count(&plan, &plan.data_bytes))
                return nd_fault_set(fault, NDBUS_ESHAPE, "shape", "more than 2^63 bytes in all");

        r = npy_make_header(array, is_packed, &plan);
        if (r)
                return nd_fault_set(fault, r, "header", "out of memory");
        *ret_plan = plan;
        return 0;
}

void nd_npy_plan_deinit(struct nd_npy_plan *plan)
{
        free(plan->header);
        plan->header = NULL;
}

static int npy_write_all(int fd, const void *data, uint64_t n_data, struct nd_fault *fault)
{
        int error = nd_file_write(fd, data, n_data);

        return error ? nd_fault_set(fault, NDBUS_ESYSTEM, "write", "%s", strerror(error)) : 0;
}

/* Trailing dimensions that lie as C order wants them are one run; others are counted. */
struct npy_gather {
        const char *at;
        int32_t n_outer;
        uint64_t run_bytes;
        int64_t index[NDBUS_DIMS_MAX + 1];
};

static struct npy_gather npy_gather_start(const struct ndbus_array *array,
                                          const struct nd_npy_plan *plan)
{
        struct npy_gather g = {.at = array->data, .n_outer = plan->ndim};
        int64_t run = plan->itemsize;

        while (g.n_outer > 0 &&
               (plan->shape[g.n_outer - 1] == 1 || plan->strides[g.n_outer - 1] == run)) {
                run *= plan->shape[g.n_outer - 1];
                --g.n_outer;
        }
        g.run_bytes = (uint64_t)run;
        return g;
}

static bool npy_gather_advance(struct npy_gather *g, const struct nd_npy_plan *plan)
{
        for (int32_t i = g->n_outer; i-- > 0;) {
                g->at += plan->strides[i];
                if (++g->index[i] < plan->shape[i])
                        return true;
                g->at -= plan->strides[i] * plan->shape[i];
                g->index[i] = 0;
        }
        return false;
}

static int npy_write_gathered(int fd,
                              const struct ndbus_array *array,
                              const struct nd_npy_plan *plan,
                              struct nd_fault *fault)
{
        struct npy_gather g = npy_gather_start(array, plan);
        nd_autofree char *buffer = calloc(1, NPY_GATHER_BYTES);
        size_t n = 0;
        int r;

        if (!buffer)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        do {
                if (g.run_bytes > NPY_GATHER_BYTES - n) {
                        r = npy_write_all(fd, buffer, n, fault);
                        if (r)
                                return r;
                        n = 0;
                }
                if (g.run_bytes > NPY_GATHER_BYTES) {
                        r = npy_write_all(fd, g.at, g.run_bytes, fault);
                        if (r)
                                return r;
                } else {
                        memcpy(buffer + n, g.at, (size_t)g.run_bytes);
                        n += (size_t)g.run_bytes;
                }
        } while (npy_gather_advance(&g, plan));
        return npy_write_all(fd, buffer, n, fault);
}

int nd_npy_check_repeats(const struct ndbus_array *array,
                         const struct nd_npy_plan *plan,
                         uint64_t bytes_max,
                         const char *name,
                         struct nd_fault *fault)
{
        if (plan->data_bytes <= bytes_max || !nd_layout_overlaps(array))
                return 0;
        return nd_fault_set(fault, NDBUS_ETOO_BIG, "shape",
                            "repeats elements, as a broadcast axis does: written out they are "
                            "%" PRIu64 " bytes, the limit is %" PRIu64 " (%s)",
                            plan->data_bytes, bytes_max, name);
}

int nd_npy_write(int fd,
                 const struct ndbus_array *array,
                 const struct nd_npy_plan *plan,
                 struct nd_fault *fault)
{
        int r;

        r = npy_write_all(fd, plan->header, plan->n_header, fault);
        if (r || plan->data_bytes == 0)
                return r;
        if (plan->as_it_lies)
                return npy_write_all(fd, array->data, plan->data_bytes, fault);
        return npy_write_gathered(fd, array, plan, fault);
}
