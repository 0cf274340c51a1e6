/* SPDX-License-Identifier: MIT */

/*
 * Dtypes and shapes as words
 *
 * One word each, without spaces, so that a line of `ndbus sub` can be cut at its tabs and what it
 * says can be given back to `ndbus pub --dtype`. The names are the wire's, not NumPy's codes.
 */

#include "client/command/spelling.h"
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include "protocol/dtype.h"
#include "protocol/layout.h"

static void spelling_clean(char *text)
{
        for (char *c = text; *c; ++c)
                if (*c <= ' ' || *c >= 0x7f)
                        *c = '?';
}

char *nd_spelling_dtype(const struct ndbus_array *array, char *out, size_t n_out)
{
        const struct nd_dtype *known;
        uint32_t lanes = array->lanes ? array->lanes : 1;
        uint32_t bits;
        const char *order = array->flags & NDBUS_BIG_ENDIAN ? ">" : "";
        char tail[64] = "";
        char lane_text[16] = "";

        if (!array->dtype) {
                snprintf(out, n_out, "raw");
                return out;
        }
        bits = nd_layout_bits(array) / lanes;
        known = nd_dtype_find(array->dtype, strlen(array->dtype));
        if (!known)
                snprintf(tail, sizeof(tail), ":%" PRIu32, bits);
        else if (known->trait == ND_DTYPE_UNIT && array->unit_count > 1)
                snprintf(tail, sizeof(tail), "[%" PRIu32 "%.40s]", array->unit_count,
                         array->unit ? array->unit : "");
        else if (known->trait == ND_DTYPE_UNIT)
                snprintf(tail, sizeof(tail), "[%.40s]", array->unit ? array->unit : "");
        else if (known->trait != ND_DTYPE_PLAIN)
                snprintf(tail, sizeof(tail), "[%" PRIu32 "]",
                         bits / (known->trait == ND_DTYPE_UCS4 ? 32 : 8));
        if (lanes > 1)
                snprintf(lane_text, sizeof(lane_text), "x%" PRIu32, lanes);

        snprintf(out, n_out, "%s%s%s%s", order, array->dtype, tail, lane_text);
        spelling_clean(out);
        return out;
}

char *nd_spelling_shape(const struct ndbus_array *array, char *out, size_t n_out)
{
        size_t n = 0;

        nd_assert(n_out >= 3);
        out[n++] = '[';
        for (int32_t i = 0; i < array->ndim && n_out - n > 24; ++i)
                n += (size_t)snprintf(out + n, n_out - n, i ? ",%" PRId64 : "%" PRId64,
                                      array->shape[i]);
        out[n++] = ']';
        out[n] = '\0';
        return out;
}

/* "[25us]": a count, if there is one, and the rest. */
static bool spelling_take_brackets(const char *text, uint32_t *ret_count, char ret_unit[static 8])
{
        uint64_t count = 0;
        const char *end;

        if (*text != '[')
                return false;
        ++text;
        end = strchr(text, ']');
        if (!end || end[1] != '\0')
                return false;
        for (; *text >= '0' && *text <= '9'; ++text) {
                count = count * 10 + (uint64_t)(*text - '0');
                if (count > UINT32_MAX)
                        return false;
        }
        if ((size_t)(end - text) > 7)
                return false;
        memcpy(ret_unit, text, (size_t)(end - text));
        ret_unit[end - text] = '\0';
        *ret_count = (uint32_t)count;
        return true;
}

/* What stands behind the name. */
static bool
spelling_take_tail(const char *tail, const struct nd_dtype *known, struct nd_spelling *s)
{
        uint32_t count = 0;
        char unit[8] = "";

        if (!known) {
                char *end;
                unsigned long bits;

                if (*tail != ':' || tail[1] < '1' || tail[1] > '9')
                        return false;
                bits = strtoul(tail + 1, &end, 10);
                if (*end != '\0' || bits > UINT32_MAX)
                        return false;
                s->bits = (uint32_t)bits;
                return true;
        }
        switch (known->trait) {
        case ND_DTYPE_PLAIN:
                s->bits = known->bits;
                return *tail == '\0';
        case ND_DTYPE_UNIT:
                if (!spelling_take_brackets(tail, &count, unit) || !unit[0])
                        return false;
                s->bits = 64;
                s->unit_count = count ? count : 1;
                memcpy(s->unit, unit, sizeof(s->unit));
                return true;
        case ND_DTYPE_BYTES:
        case ND_DTYPE_UCS4:
                if (!spelling_take_brackets(tail, &count, unit) || unit[0] || count == 0)
                        return false;
                return !nd_mul_overflow(count, known->trait == ND_DTYPE_UCS4 ? 32u : 8u, &s->bits);
        case ND_DTYPE_RECORD:
                return false;
        }
        return false;
}

/* "x4" at the end: the lanes, and the bytes in front of it; 0: there are none, or too many. */
static uint16_t spelling_take_lanes(const char *text, size_t *n_text)
{
        size_t i = *n_text;
        uint32_t lanes = 0;

        while (i > 0 && text[i - 1] >= '0' && text[i - 1] <= '9')
                --i;
        if (i < 2 || text[i - 1] != 'x' || text[i] == '0' || *n_text - i > 5)
                return 0;
        for (size_t k = i; k < *n_text; ++k)
                lanes = lanes * 10 + (uint32_t)(text[k] - '0');
        if (lanes == 0 || lanes > UINT16_MAX)
                return 0;
        *n_text = i - 1;
        return (uint16_t)lanes;
}

/* Why a word with a known name is none. */
static int spelling_refuse(const char *text,
                           const struct nd_dtype *known,
                           const char *field,
                           struct nd_fault *fault)
{
        if (known && known->trait == ND_DTYPE_RECORD)
                return nd_fault_set(
                        fault, NDBUS_EINVAL, field,
                        "'%.60s' would need the record's fields; give an .npy file, which "
                        "has them, or opaque[BYTES]",
                        text);
        if (known && known->trait == ND_DTYPE_UNIT)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%.60s' needs a unit, as in %s[ns] or %s[25us]", text,
                                    known->name, known->name);
        if (known && known->trait != ND_DTYPE_PLAIN)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%.60s' needs the length of an element, as in %s[16]", text,
                                    known->name);
        return nd_fault_set(fault, NDBUS_EINVAL, field,
                            "'%.60s' is no dtype; float32, >uint16, float32x4, datetime64[ns], "
                            "bytes[16], raw or name:BITS would be one",
                            text);
}

/* The rules of arrays, asked about one element. */
static int spelling_check(const struct nd_spelling *s, const char *field, struct nd_fault *fault)
{
        const struct ndbus_array array = {
                .data = s,
                .dtype = s->dtype,
                .bits = s->bits,
                .lanes = s->lanes,
                .flags = s->flags,
                .unit = s->unit[0] ? s->unit : NULL,
                .unit_count = s->unit_count,
        };
        struct nd_fault why = {.code = 0};
        struct nd_plan plan;

        if (nd_layout_plan(&array, "", &plan, &why))
                return nd_fault_set(fault, NDBUS_EINVAL, field, "%s", why.text);
        return 0;
}

int nd_spelling_parse_dtype(const char *text,
                            const char *field,
                            struct nd_spelling *ret,
                            struct nd_fault *fault)
{
        struct nd_spelling s = {.dtype = ""};
        const struct nd_dtype *known;
        const char *name = text;
        char tail[64] = "";
        size_t n, n_word;

        if (strcmp(text, "raw") == 0) {
                s.bits = 8;
                *ret = s;
                return 0;
        }
        if (*name == '>' || *name == '<') {
                s.flags = *name == '>' ? NDBUS_BIG_ENDIAN : 0;
                ++name;
        }
        n_word = strlen(name);
        if (!nd_dtype_find(name, n_word)) /* complex128 has none */
                s.lanes = spelling_take_lanes(name, &n_word);
        n = strcspn(name, "[:");
        n = n < n_word ? n : n_word;
        known = nd_dtype_find(name, n);
        if (n == 0 || n >= sizeof(s.dtype) || n_word - n >= sizeof(tail))
                return spelling_refuse(text, NULL, field, fault);
        memcpy(tail, name + n, n_word - n);
        if (!spelling_take_tail(tail, known, &s))
                return spelling_refuse(text, known, field, fault);
        if (name > text && known && !known->has_byte_order)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%.60s': %s has no byte order; leave the %c away", text,
                                    known->name, *text);
        memcpy(s.dtype, name, n);
        if (spelling_check(&s, field, fault))
                return NDBUS_EINVAL;
        *ret = s;
        return 0;
}

int nd_spelling_parse_shape(const char *text,
                            const char *field,
                            int64_t ret_shape[static NDBUS_DIMS_MAX],
                            int32_t *ret_ndim,
                            struct nd_fault *fault)
{
        int64_t shape[NDBUS_DIMS_MAX];
        const char *s = text;
        bool is_bracketed = *s == '[';
        int32_t ndim = 0;

        s += is_bracketed;
        while (*s && *s != ']') {
                int64_t dim = 0;
                const char *start = s;

                for (; *s >= '0' && *s <= '9'; ++s)
                        if (nd_mul_overflow(dim, 10, &dim) || nd_add_overflow(dim, *s - '0', &dim))
                                break;
                if (s == start || (*s >= '0' && *s <= '9') || ndim >= NDBUS_DIMS_MAX)
                        goto refuse;
                shape[ndim++] = dim;
                if (*s == ',' && s[1] >= '0' && s[1] <= '9')
                        ++s;
                else if (*s == ',' || (*s && *s != ']'))
                        goto refuse;
        }
        if (is_bracketed ? strcmp(s, "]") != 0 : *s)
                goto refuse;

        memcpy(ret_shape, shape, (size_t)ndim * sizeof(*shape));
        *ret_ndim = ndim;
        return 0;

refuse:
        return nd_fault_set(fault, NDBUS_EINVAL, field,
                            "'%.60s' is no shape; 480,640 would be one, of at most %d dimensions",
                            text, NDBUS_DIMS_MAX);
}
