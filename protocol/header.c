/* SPDX-License-Identifier: MIT */

/*
 * Header: topic and frame table
 *
 * A header is read in four steps, each of which makes the next one safe: nd_scan() bounds the
 * bytes, msgpack-c makes objects of them, a first walk over the objects adds up what the result
 * takes, a second one builds it in one allocation. The walks agree because both go through the
 * same tables of keys. Then the frames are checked as arrays and placed.
 *
 * What is wrong in form (a key is missing, a value has the wrong type) is NDBUS_EHEADER: the peer
 * does not speak the protocol. What is well-formed and impossible (a negative dimension, a dtype
 * of the wrong width) is an error of this message alone.
 *
 * A frame that has a codec is presented as raw bytes, whatever else its map says: its dtype and
 * shape describe what the codec would give, which nobody can check here.
 */

#include "protocol/header.h"
#include <inttypes.h>
#include <msgpack.h>
#include <string.h>
#include "protocol/dtype.h"
#include "protocol/scan.h"
#include "protocol/topic.h"
#include "protocol/utf8.h"

/* Flags as they stand in a header are DLPack's; big-endian has a key of its own. */
#define HEADER_FLAGS (NDBUS_READ_ONLY | NDBUS_SUBBYTE_PADDED)

/* In the order of PROTOCOL.md, which is that of header-pack.c. XX(NAME, "key") */
#define HEADER_KEY_MAP(XX)                                                                         \
        XX(TOPIC, "topic")                                                                         \
        XX(FRAMES, "frames")                                                                       \
        XX(ENCODING, "encoding")                                                                   \
        XX(REPLY, "reply")

#define FRAME_KEY_MAP(XX)                                                                          \
        XX(BYTES, "bytes")                                                                         \
        XX(DTYPE, "dtype")                                                                         \
        XX(SHAPE, "shape")                                                                         \
        XX(LANES, "lanes")                                                                         \
        XX(STRIDES, "strides")                                                                     \
        XX(FLAGS, "flags")                                                                         \
        XX(BIG_ENDIAN, "big_endian")                                                               \
        XX(FIELDS, "fields")                                                                       \
        XX(UNIT, "unit")                                                                           \
        XX(NAME, "name")                                                                           \
        XX(DEVICE, "device")                                                                       \
        XX(CODEC, "codec")

#define FIELD_KEY_MAP(XX)                                                                          \
        XX(NAME, "name")                                                                           \
        XX(OFFSET, "offset")                                                                       \
        XX(DTYPE, "dtype")                                                                         \
        XX(SHAPE, "shape")                                                                         \
        XX(BIG_ENDIAN, "big_endian")                                                               \
        XX(UNIT, "unit")                                                                           \
        XX(FIELDS, "fields")

#define HEADER_KEY_TEXT(_name, _key) {_key, sizeof(_key) - 1},

struct header_key {
        const char *text;
        size_t n_text;
};

enum {
#define XX(_name, _key) HEADER_KEY_##_name,
        HEADER_KEY_MAP(XX)
#undef XX
        _HEADER_KEY_N
};

enum {
#define XX(_name, _key) FRAME_KEY_##_name,
        FRAME_KEY_MAP(XX)
#undef XX
        _FRAME_KEY_N
};

enum {
#define XX(_name, _key) FIELD_KEY_##_name,
        FIELD_KEY_MAP(XX)
#undef XX
        _FIELD_KEY_N
};

static const struct header_key header_keys[] = {HEADER_KEY_MAP(HEADER_KEY_TEXT)};
static const struct header_key frame_keys[] = {FRAME_KEY_MAP(HEADER_KEY_TEXT)};
static const struct header_key field_keys[] = {FIELD_KEY_MAP(HEADER_KEY_TEXT)};

/* The values of one map by the number of their key; NULL where the map does not have it. */
struct header_values {
        const msgpack_object *v[_FRAME_KEY_N];
        const msgpack_object_str *unsupported; /* first key that begins with '!' */
};

_Static_assert((int)_HEADER_KEY_N <= (int)_FRAME_KEY_N, "frames have the most keys");
_Static_assert((int)_FIELD_KEY_N <= (int)_FRAME_KEY_N, "frames have the most keys");

/* Keys are known to be strings: the scan saw to it. */
static void header_find(const msgpack_object *map,
                        const struct header_key *keys,
                        size_t n_keys,
                        struct header_values *ret)
{
        memset(ret, 0, sizeof(*ret));
        for (uint32_t i = 0; i < map->via.map.size; ++i) {
                const msgpack_object_kv *kv = &map->via.map.ptr[i];
                const msgpack_object_str *key = &kv->key.via.str;

                if (key->size && key->ptr[0] == '!' && !ret->unsupported)
                        ret->unsupported = key;
                for (size_t k = 0; k < n_keys; ++k) {
                        if (keys[k].n_text == key->size &&
                            memcmp(keys[k].text, key->ptr, key->size) == 0)
                                ret->v[k] = &kv->val;
                }
        }
}

/*
 * The one allocation: structures and numbers grow from its start, every piece a multiple of 8
 * bytes; strings follow behind them, packed.
 */
struct header_arena {
        size_t words_bytes;
        size_t text_bytes;
        uint8_t *words;
        char *text;
};

/* First walk: what the result takes. Values of the wrong type count nothing; the second walk
 * refuses them. Nothing can overflow: there are no more objects and bytes than the header had. */

static void header_measure_text(struct header_arena *arena, const msgpack_object *o)
{
        if (o && o->type == MSGPACK_OBJECT_STR)
                arena->text_bytes += o->via.str.size + 1;
}

/* The string in [name, number]. */
static void header_measure_pair(struct header_arena *arena, const msgpack_object *o)
{
        if (o && o->type == MSGPACK_OBJECT_ARRAY && o->via.array.size)
                header_measure_text(arena, &o->via.array.ptr[0]);
}

static void header_measure_list(struct header_arena *arena, const msgpack_object *o, size_t each)
{
        if (o && o->type == MSGPACK_OBJECT_ARRAY)
                arena->words_bytes += o->via.array.size * each;
}

static void header_measure_unsupported(struct header_arena *arena, const struct header_values *m)
{
        if (m->unsupported)
                arena->text_bytes += m->unsupported->size + 1;
}

/* Recursion is bounded by ND_SCAN_DEPTH_MAX. */
static void header_measure_fields(struct header_arena *arena, const msgpack_object *o)
{
        if (!o || o->type != MSGPACK_OBJECT_ARRAY)
                return;
        header_measure_list(arena, o, sizeof(struct ndbus_field));
        for (uint32_t i = 0; i < o->via.array.size; ++i) {
                const msgpack_object *map = &o->via.array.ptr[i];
                struct header_values m;

                if (map->type != MSGPACK_OBJECT_MAP)
                        return;
                header_find(map, field_keys, _FIELD_KEY_N, &m);
                header_measure_unsupported(arena, &m);
                header_measure_text(arena, m.v[FIELD_KEY_NAME]);
                header_measure_pair(arena, m.v[FIELD_KEY_DTYPE]);
                header_measure_pair(arena, m.v[FIELD_KEY_UNIT]);
                header_measure_list(arena, m.v[FIELD_KEY_SHAPE], sizeof(int64_t));
                header_measure_fields(arena, m.v[FIELD_KEY_FIELDS]);
        }
}

static void header_measure_frames(struct header_arena *arena, const msgpack_object *o)
{
        if (!o || o->type != MSGPACK_OBJECT_ARRAY)
                return;
        header_measure_list(arena, o, sizeof(struct nd_frame));
        for (uint32_t i = 0; i < o->via.array.size; ++i) {
                const msgpack_object *map = &o->via.array.ptr[i];
                struct header_values m;

                if (map->type != MSGPACK_OBJECT_MAP)
                        return;
                header_find(map, frame_keys, _FRAME_KEY_N, &m);
                header_measure_unsupported(arena, &m);
                header_measure_text(arena, m.v[FRAME_KEY_NAME]);
                header_measure_text(arena, m.v[FRAME_KEY_DEVICE]);
                header_measure_text(arena, m.v[FRAME_KEY_CODEC]);
                if (m.v[FRAME_KEY_CODEC] || !m.v[FRAME_KEY_DTYPE]) {
                        arena->words_bytes += sizeof(int64_t); /* the shape of raw bytes */
                        continue;
                }
                header_measure_pair(arena, m.v[FRAME_KEY_DTYPE]);
                header_measure_pair(arena, m.v[FRAME_KEY_UNIT]);
                header_measure_list(arena, m.v[FRAME_KEY_SHAPE], sizeof(int64_t));
                header_measure_list(arena, m.v[FRAME_KEY_STRIDES], sizeof(int64_t));
                header_measure_fields(arena, m.v[FRAME_KEY_FIELDS]);
        }
}

static void header_measure(struct header_arena *arena, const struct header_values *m)
{
        arena->words_bytes = sizeof(struct nd_header);
        header_measure_unsupported(arena, m);
        header_measure_text(arena, m->v[HEADER_KEY_TOPIC]);
        header_measure_text(arena, m->v[HEADER_KEY_ENCODING]);
        header_measure_text(arena, m->v[HEADER_KEY_REPLY]);
        header_measure_frames(arena, m->v[HEADER_KEY_FRAMES]);
}

static void *header_take(struct header_arena *arena, size_t n_bytes)
{
        void *p = arena->words;

        nd_assert(n_bytes % 8 == 0 && n_bytes <= arena->words_bytes);
        arena->words += n_bytes;
        arena->words_bytes -= n_bytes;
        return p;
}

static const char *header_take_text(struct header_arena *arena, const msgpack_object_str *str)
{
        char *p = arena->text;

        nd_assert(str->size < arena->text_bytes);
        memcpy(p, str->ptr, str->size);
        p[str->size] = '\0';
        arena->text += str->size + 1;
        arena->text_bytes -= str->size + 1;
        return p;
}

/* Where the walk is, for faults: "frames[2]", "frames[2].fields[0]", or "" in the header itself. */
struct header_place {
        char text[sizeof(((struct nd_fault *)NULL)->field)];
};

static struct header_place header_join(const char *place, const char *key)
{
        struct header_place joined;

        if (snprintf(joined.text, sizeof(joined.text), "%s%s%s", place, *place ? "." : "", key) < 0)
                joined.text[0] = '\0';
        return joined;
}

/* What the second walk carries along. */
struct header_build {
        struct header_arena arena;
        struct nd_header *header;
        uint32_t dims_max;
        struct nd_fault *fault;
};

static int
header_malformed(struct header_build *b, const char *place, const char *key, const char *what)
{
        (void)nd_fault_set(b->fault, NDBUS_EHEADER, header_join(place, key).text, "%s", what);
        return NDBUS_EHEADER; /* a constant, by which the compiler sees what is set when */
}

static void header_note_unsupported(struct header_build *b, const struct header_values *m)
{
        if (m->unsupported && !b->header->unsupported)
                b->header->unsupported = header_take_text(&b->arena, m->unsupported);
}

static int header_check_text(struct header_build *b,
                             const msgpack_object *o,
                             const char *place,
                             const char *key)
{
        const msgpack_object_str *str = &o->via.str;

        if (o->type != MSGPACK_OBJECT_STR)
                return header_malformed(b, place, key, "is not a string");
        if (str->size == 0 || str->size > ND_NAME_BYTES_MAX)
                return header_malformed(b, place, key, "does not have 1 to 255 bytes");
        if (memchr(str->ptr, '\0', str->size))
                return header_malformed(b, place, key, "has a NUL within");
        if (!nd_utf8_is_valid(str->ptr, str->size))
                return header_malformed(b, place, key, "is not UTF-8");
        return 0;
}

/* A string that may be missing. */
static int header_read_text(struct header_build *b,
                            const msgpack_object *o,
                            const char **ret_text,
                            const char *place,
                            const char *key)
{
        int r;

        if (!o)
                return 0;
        r = header_check_text(b, o, place, key);
        if (r)
                return r;
        *ret_text = header_take_text(&b->arena, &o->via.str);
        return 0;
}

/* A number that no message could have is an error of this message, as an impossible shape is. */
static int header_read_uint(struct header_build *b,
                            const msgpack_object *o,
                            uint64_t min,
                            uint64_t max,
                            uint64_t *ret,
                            const char *place,
                            const char *key)
{
        if (!o)
                return header_malformed(b, place, key, "is missing");
        if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
                return header_malformed(b, place, key, "is not an unsigned integer");
        if (o->via.u64 < min || o->via.u64 > max) {
                (void)nd_fault_set_numbers(b->fault, NDBUS_EDTYPE, header_join(place, key).text,
                                           o->via.u64, o->via.u64 < min ? min : max,
                                           "is %" PRIu64 ", it may be %" PRIu64 " to %" PRIu64,
                                           o->via.u64, min, max);
                return NDBUS_EDTYPE;
        }
        *ret = o->via.u64;
        return 0;
}

/* [name, number], both of them checked for their type; the name is not copied yet. */
static int header_read_pair(struct header_build *b,
                            const msgpack_object *o,
                            const msgpack_object_str **ret_name,
                            uint32_t number_max,
                            uint32_t *ret_number,
                            const char *place,
                            const char *key)
{
        uint64_t number;
        int r;

        if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != 2)
                return header_malformed(b, place, key, "is not a list of name and number");
        r = header_check_text(b, &o->via.array.ptr[0], place, key);
        if (r)
                return r;
        r = header_read_uint(b, &o->via.array.ptr[1], 1, number_max, &number, place, key);
        if (r)
                return r;
        *ret_name = &o->via.array.ptr[0].via.str;
        *ret_number = (uint32_t)number;
        return 0;
}

static int header_read_dtype(struct header_build *b,
                             const msgpack_object *o,
                             const char **ret_dtype,
                             uint32_t *ret_bits,
                             const char *place)
{
        const msgpack_object_str *name;
        const struct nd_dtype *known;
        uint32_t bits;
        int r;

        if (!o)
                return header_malformed(b, place, "dtype", "is missing");
        r = header_read_pair(b, o, &name, UINT32_MAX, &bits, place, "dtype");
        if (r)
                return r;
        known = nd_dtype_find(name->ptr, name->size);
        *ret_dtype = known ? known->name : header_take_text(&b->arena, name);
        *ret_bits = bits;
        return 0;
}

static int header_read_unit(struct header_build *b,
                            const msgpack_object *o,
                            const char **ret_unit,
                            uint32_t *ret_count,
                            const char *place)
{
        const msgpack_object_str *name;
        uint32_t count;
        int r;

        if (!o)
                return 0;
        r = header_read_pair(b, o, &name, INT32_MAX, &count, place, "unit");
        if (r)
                return r;
        *ret_unit = header_take_text(&b->arena, name);
        *ret_count = count;
        return 0;
}

static int header_read_big_endian(struct header_build *b,
                                  const msgpack_object *o,
                                  uint32_t *flags,
                                  const char *place)
{
        if (!o)
                return 0;
        if (o->type != MSGPACK_OBJECT_BOOLEAN)
                return header_malformed(b, place, "big_endian", "is not true or false");
        if (o->via.boolean)
                *flags |= NDBUS_BIG_ENDIAN;
        return 0;
}

/* A list of numbers below 2^63; what is negative or above is an impossible shape. */
static int header_read_numbers(struct header_build *b,
                               const msgpack_object *o,
                               const int64_t **ret_numbers,
                               int32_t *ret_n,
                               const char *place,
                               const char *key)
{
        struct header_place field = header_join(place, key);
        int64_t *numbers;
        uint32_t n;

        if (o->type != MSGPACK_OBJECT_ARRAY)
                return header_malformed(b, place, key, "is not a list");
        n = o->via.array.size;
        if (n > b->dims_max)
                return nd_fault_set_limit(b->fault, NDBUS_ESHAPE, field.text, n, b->dims_max,
                                          "dimensions");

        numbers = header_take(&b->arena, n * sizeof(*numbers));
        for (uint32_t i = 0; i < n; ++i) {
                const msgpack_object *number = &o->via.array.ptr[i];

                if (number->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
                        return nd_fault_set(b->fault, NDBUS_ESHAPE, field.text,
                                            "number %u is %lld, the least is 0", i,
                                            (long long)number->via.i64);
                if (number->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
                        return header_malformed(b, place, key, "has something that is no integer");
                if (number->via.u64 > INT64_MAX)
                        return nd_fault_set(b->fault, NDBUS_ESHAPE, field.text,
                                            "number %u is %llu, the limit is %lld", i,
                                            (unsigned long long)number->via.u64,
                                            (long long)INT64_MAX);
                numbers[i] = (int64_t)number->via.u64;
        }
        *ret_numbers = numbers;
        *ret_n = (int32_t)n;
        return 0;
}

static int header_read_fields(struct header_build *b,
                              const msgpack_object *o,
                              const struct ndbus_field **ret_fields,
                              uint32_t *ret_n_fields,
                              const char *place);

static int header_read_field(struct header_build *b,
                             const msgpack_object *map,
                             struct ndbus_field *field,
                             const char *place)
{
        struct header_values m;
        int r;

        if (map->type != MSGPACK_OBJECT_MAP)
                return nd_fault_set(b->fault, NDBUS_EHEADER, place, "is not a map");
        header_find(map, field_keys, _FIELD_KEY_N, &m);
        header_note_unsupported(b, &m);

        if (!m.v[FIELD_KEY_NAME])
                return header_malformed(b, place, "name", "is missing");
        r = header_read_text(b, m.v[FIELD_KEY_NAME], &field->name, place, "name");
        if (r)
                return r;
        r = header_read_uint(b, m.v[FIELD_KEY_OFFSET], 0, UINT64_MAX, &field->offset, place,
                             "offset");
        if (r)
                return r;
        r = header_read_dtype(b, m.v[FIELD_KEY_DTYPE], &field->dtype, &field->bits, place);
        if (r)
                return r;
        if (m.v[FIELD_KEY_SHAPE]) {
                r = header_read_numbers(b, m.v[FIELD_KEY_SHAPE], &field->shape, &field->ndim, place,
                                        "shape");
                if (r)
                        return r;
        }
        r = header_read_big_endian(b, m.v[FIELD_KEY_BIG_ENDIAN], &field->flags, place);
        if (r)
                return r;
        r = header_read_unit(b, m.v[FIELD_KEY_UNIT], &field->unit, &field->unit_count, place);
        if (r)
                return r;
        return header_read_fields(b, m.v[FIELD_KEY_FIELDS], &field->fields, &field->n_fields,
                                  place);
}

/* Recursion is bounded by ND_SCAN_DEPTH_MAX; how many there may be is the layout's to say. */
static int header_read_fields(struct header_build *b,
                              const msgpack_object *o,
                              const struct ndbus_field **ret_fields,
                              uint32_t *ret_n_fields,
                              const char *place)
{
        struct ndbus_field *fields;
        uint32_t n;
        int r;

        if (!o)
                return 0;
        if (o->type != MSGPACK_OBJECT_ARRAY)
                return header_malformed(b, place, "fields", "is not a list");

        n = o->via.array.size;
        fields = header_take(&b->arena, n * sizeof(*fields));
        for (uint32_t i = 0; i < n; ++i) {
                struct header_place field;

                if (snprintf(field.text, sizeof(field.text), "%s.fields[%u]", place, i) < 0)
                        field.text[0] = '\0';
                r = header_read_field(b, &o->via.array.ptr[i], &fields[i], field.text);
                if (r)
                        return r;
        }
        *ret_fields = n ? fields : NULL;
        *ret_n_fields = n;
        return 0;
}

static int header_read_raw(struct header_build *b,
                           const struct header_values *m,
                           struct nd_frame *frame,
                           const char *place)
{
        int64_t *shape;
        static const uint8_t of_arrays[] = {FRAME_KEY_SHAPE,   FRAME_KEY_LANES,
                                            FRAME_KEY_STRIDES, FRAME_KEY_BIG_ENDIAN,
                                            FRAME_KEY_FIELDS,  FRAME_KEY_UNIT};

        for (size_t i = 0; i < nd_array_size(of_arrays) && !frame->array.codec; ++i) {
                if (m->v[of_arrays[i]])
                        return header_malformed(b, place, frame_keys[of_arrays[i]].text,
                                                "stands without a dtype");
        }
        shape = header_take(&b->arena, sizeof(*shape));
        *shape = (int64_t)frame->bytes;
        frame->array.ndim = 1;
        frame->array.shape = shape;
        frame->array.flags &= NDBUS_READ_ONLY;
        return 0;
}

static int header_read_array(struct header_build *b,
                             const struct header_values *m,
                             struct ndbus_array *a,
                             const char *place)
{
        uint64_t lanes = 1;
        int32_t n_strides = 0;
        int r;

        r = header_read_dtype(b, m->v[FRAME_KEY_DTYPE], &a->dtype, &a->bits, place);
        if (r)
                return r;
        if (!m->v[FRAME_KEY_SHAPE])
                return header_malformed(b, place, "shape", "is missing");
        r = header_read_numbers(b, m->v[FRAME_KEY_SHAPE], &a->shape, &a->ndim, place, "shape");
        if (r)
                return r;
        if (m->v[FRAME_KEY_LANES]) {
                r = header_read_uint(b, m->v[FRAME_KEY_LANES], 1, UINT16_MAX, &lanes, place,
                                     "lanes");
                if (r)
                        return r;
        }
        a->lanes = (uint16_t)lanes;
        if (m->v[FRAME_KEY_STRIDES]) {
                r = header_read_numbers(b, m->v[FRAME_KEY_STRIDES], &a->strides, &n_strides, place,
                                        "strides");
                if (r)
                        return r;
                if (n_strides != a->ndim)
                        return nd_fault_set(b->fault, NDBUS_ESHAPE,
                                            header_join(place, "strides").text,
                                            "are %d for %d dimensions", n_strides, a->ndim);
        }
        r = header_read_big_endian(b, m->v[FRAME_KEY_BIG_ENDIAN], &a->flags, place);
        if (r)
                return r;
        r = header_read_unit(b, m->v[FRAME_KEY_UNIT], &a->unit, &a->unit_count, place);
        if (r)
                return r;
        return header_read_fields(b, m->v[FRAME_KEY_FIELDS], &a->fields, &a->n_fields, place);
}

static int header_read_frame(struct header_build *b,
                             const msgpack_object *map,
                             struct nd_frame *frame,
                             const char *place)
{
        struct ndbus_array *a = &frame->array;
        struct header_values m;
        uint64_t flags = 0;
        int r;

        if (map->type != MSGPACK_OBJECT_MAP)
                return nd_fault_set(b->fault, NDBUS_EHEADER, place, "is not a map");
        header_find(map, frame_keys, _FRAME_KEY_N, &m);
        header_note_unsupported(b, &m);

        r = header_read_uint(b, m.v[FRAME_KEY_BYTES], 0, UINT64_MAX, &frame->bytes, place, "bytes");
        if (r)
                return r;
        if (frame->bytes > ND_BODY_BYTES_MAX)
                return nd_fault_set_limit(b->fault, NDBUS_ETOO_BIG,
                                          header_join(place, "bytes").text, frame->bytes,
                                          ND_BODY_BYTES_MAX, "bytes");
        r = header_read_text(b, m.v[FRAME_KEY_NAME], &a->name, place, "name");
        if (r)
                return r;
        r = header_read_text(b, m.v[FRAME_KEY_DEVICE], &a->device, place, "device");
        if (r)
                return r;
        r = header_read_text(b, m.v[FRAME_KEY_CODEC], &a->codec, place, "codec");
        if (r)
                return r;
        if (m.v[FRAME_KEY_FLAGS]) {
                r = header_read_uint(b, m.v[FRAME_KEY_FLAGS], 0, UINT64_MAX, &flags, place,
                                     "flags");
                if (r)
                        return r;
                if (flags & ~(uint64_t)HEADER_FLAGS)
                        return nd_fault_set(b->fault, NDBUS_EDTYPE,
                                            header_join(place, "flags").text,
                                            "%#llx has unknown bits", (unsigned long long)flags);
                a->flags = (uint32_t)flags;
        }
        if (a->codec || !m.v[FRAME_KEY_DTYPE])
                return header_read_raw(b, &m, frame, place);
        r = header_read_array(b, &m, a, place);
        if (r)
                return r;
        return nd_layout_check(frame, place, b->fault);
}

static int header_read_frames(struct header_build *b, const msgpack_object *o)
{
        struct nd_header *header = b->header;
        uint32_t n;
        int r;

        if (!o)
                return header_malformed(b, "", "frames", "is missing");
        if (o->type != MSGPACK_OBJECT_ARRAY)
                return header_malformed(b, "", "frames", "is not a list");

        n = o->via.array.size;
        header->frames = header_take(&b->arena, n * sizeof(*header->frames));
        header->n_frames = n;
        for (uint32_t i = 0; i < n; ++i) {
                char place[32];

                if (snprintf(place, sizeof(place), "frames[%u]", i) < 0)
                        place[0] = '\0';
                r = header_read_frame(b, &o->via.array.ptr[i], &header->frames[i], place);
                if (r)
                        return r;
        }
        return nd_layout_place(header->frames, n, &header->body_bytes, b->fault);
}

static int header_read_topic(struct header_build *b,
                             const msgpack_object *o,
                             const char **ret_topic,
                             size_t *ret_n_topic,
                             const char *key)
{
        const msgpack_object_str *str = &o->via.str;
        int r;

        if (o->type != MSGPACK_OBJECT_STR)
                return header_malformed(b, "", key, "is not a string");
        r = nd_topic_check(str->ptr, str->size, b->fault);
        if (r) {
                if (b->fault)
                        snprintf(b->fault->field, sizeof(b->fault->field), "%s", key);
                return r;
        }
        *ret_topic = header_take_text(&b->arena, str);
        *ret_n_topic = str->size;
        return 0;
}

static int header_read(struct header_build *b, const struct header_values *m)
{
        struct nd_header *header = b->header;
        size_t n_reply;
        int r;

        header_note_unsupported(b, m);
        if (!m->v[HEADER_KEY_TOPIC])
                return header_malformed(b, "", "topic", "is missing");
        r = header_read_topic(b, m->v[HEADER_KEY_TOPIC], &header->topic, &header->n_topic, "topic");
        if (r)
                return r;
        r = header_read_text(b, m->v[HEADER_KEY_ENCODING], &header->encoding, "", "encoding");
        if (r)
                return r;
        if (m->v[HEADER_KEY_REPLY]) {
                r = header_read_topic(b, m->v[HEADER_KEY_REPLY], &header->reply, &n_reply, "reply");
                if (r)
                        return r;
        }
        return header_read_frames(b, m->v[HEADER_KEY_FRAMES]);
}

/* From msgpack-c's objects to a header. */
static int header_build(const msgpack_object *map,
                        const struct nd_header_limits *limits,
                        struct nd_header **ret_header,
                        struct nd_fault *fault)
{
        nd_autofree struct nd_header *header = NULL;
        struct header_build b = {.fault = fault, .dims_max = NDBUS_DIMS_MAX};
        struct header_values m;
        size_t n_bytes;
        int r;

        header_find(map, header_keys, _HEADER_KEY_N, &m);
        header_measure(&b.arena, &m);
        n_bytes = b.arena.words_bytes + b.arena.text_bytes;
        header = calloc(1, n_bytes);
        if (!header)
                return nd_fault_set(fault, NDBUS_ENOMEM, "header", "%zu bytes are needed", n_bytes);

        b.arena.words = (uint8_t *)header;
        b.arena.text = (char *)header + b.arena.words_bytes;
        b.header = header_take(&b.arena, sizeof(*header));
        header->allocated_bytes = n_bytes;
        if (limits && limits->dims_max < b.dims_max)
                b.dims_max = limits->dims_max;

        r = header_read(&b, &m);
        if (r)
                return r;
        if (limits && header->body_bytes > limits->body_bytes_max)
                return nd_fault_set_limit(fault, NDBUS_ETOO_BIG, "body", header->body_bytes,
                                          limits->body_bytes_max, "bytes");
        *ret_header = nd_steal(header);
        return 0;
}

int nd_header_unpack(const void *data,
                     size_t n_data,
                     const struct nd_header_limits *limits,
                     struct nd_header **ret_header,
                     struct nd_fault *fault)
{
        msgpack_unpacked unpacked;
        size_t at = 0;
        int r;

        if (n_data > ND_HEADER_BYTES_MAX)
                return nd_fault_set_limit(fault, NDBUS_EHEADER, "header", n_data,
                                          ND_HEADER_BYTES_MAX, "bytes");
        r = nd_scan(data, n_data, ND_SCAN_HEADER, "header", fault);
        if (r)
                return r;

        msgpack_unpacked_init(&unpacked);
        switch (msgpack_unpack_next(&unpacked, data, n_data, &at)) {
        case MSGPACK_UNPACK_SUCCESS:
                r = header_build(&unpacked.data, limits, ret_header, fault);
                break;
        case MSGPACK_UNPACK_NOMEM_ERROR:
                r = nd_fault_set(fault, NDBUS_ENOMEM, "header", "no memory to parse %zu bytes",
                                 n_data);
                break;
        default:
                r = nd_fault_set(fault, NDBUS_EHEADER, "header", "is not msgpack");
                break;
        }
        msgpack_unpacked_destroy(&unpacked);
        return r;
}

struct nd_header *nd_header_free(struct nd_header *header)
{
        free(header);
        return NULL;
}
