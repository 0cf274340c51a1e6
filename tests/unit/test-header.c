/* SPDX-License-Identifier: MIT */

/*
 * Header: what is read, what is refused, and what is written
 */

#include <criterion/criterion.h>
#include <stdarg.h>
#include <string.h>
#include "protocol/header.h"
#include "tests/support/notation.h"

static int unpack(const char *notation, struct nd_header **ret, struct nd_fault *fault)
{
        nd_autofree uint8_t *data = NULL;
        size_t n_data;

        data = nd_notation_pack(notation, &n_data);
        return nd_header_unpack(data, n_data, NULL, ret, fault);
}

/* The header with this one frame. */
static struct nd_header *unpack_frame(const char *frame)
{
        struct nd_header *header = NULL;
        struct nd_fault fault = {0};
        char text[2048];
        int r;

        snprintf(text, sizeof(text), "{\"topic\": \"t\", \"frames\": [%s]}", frame);
        r = unpack(text, &header, &fault);
        cr_assert_eq(r, 0, "%s: %s: %s", frame, fault.field, fault.text);
        cr_assert_eq(header->n_frames, 1u);
        return header;
}

static void expect_shape(const struct ndbus_array *a, int32_t ndim, ...)
{
        va_list args;

        va_start(args, ndim);
        cr_assert_eq(a->ndim, ndim);
        for (int32_t i = 0; i < ndim; ++i)
                cr_expect_eq(a->shape[i], va_arg(args, int));
        va_end(args);
}

/* Packs the header again: the same bytes, as they were written in the order of the protocol. */
static void expect_same_bytes(const struct nd_header *header, const char *notation)
{
        nd_autofree void *want = NULL, *got = NULL;
        size_t n_want, n_got;

        want = nd_notation_pack(notation, &n_want);
        cr_assert_eq(nd_header_pack(header, &got, &n_got), 0);
        cr_assert_eq(n_got, n_want, "%s", notation);
        cr_expect_arr_eq(got, want, n_want, "%s", notation);
}

static void expect_refused(const char *notation, int code, const char *field)
{
        struct nd_header *header = NULL;
        struct nd_fault fault = {0};
        int r;

        r = unpack(notation, &header, &fault);
        cr_expect_eq(r, code, "%s: %s", notation, ndbus_errname(r));
        cr_expect_eq(fault.code, r, "%s", notation);
        cr_expect_null(header, "%s", notation);
        if (field)
                cr_expect_str_eq(fault.field, field, "%s: %s: %s", notation, fault.field,
                                 fault.text);
        nd_header_free(header);
}

static void expect_frame_refused(const char *frame, int code, const char *key)
{
        char text[2048], field[64];

        snprintf(text, sizeof(text), "{\"topic\": \"t\", \"frames\": [{\"bytes\": 0}, %s]}", frame);
        snprintf(field, sizeof(field), "frames[1]%s", key);
        expect_refused(text, code, field);
}

Test(header, everything_that_a_header_can_say)
{
        static const char text[] =
                "{\"topic\": \"a/b\", \"frames\": ["
                "{\"bytes\": 24, \"dtype\": [\"int32\", 32], \"shape\": [2, 3], \"strides\": [4, 8],"
                " \"flags\": 1, \"big_endian\": true, \"name\": \"left\", \"device\": \"cuda:0\"},"
                "{\"bytes\": 7, \"name\": \"raw\"},"
                "{\"bytes\": 3, \"dtype\": [\"float4_e2m1fn\", 4], \"shape\": [3], \"flags\": 4},"
                "{\"bytes\": 6, \"dtype\": [\"int4\", 4], \"shape\": [3], \"lanes\": 4},"
                "{\"bytes\": 16, \"dtype\": [\"datetime64\", 64], \"shape\": [2], \"unit\": [\"ns\", 25]},"
                "{\"bytes\": 9, \"codec\": \"lz4\"}"
                "], \"encoding\": \"pickle5\", \"reply\": \"$reply/1/2\"}";
        struct nd_header *h = NULL;
        struct nd_fault fault = {0};

        cr_assert_eq(unpack(text, &h, &fault), 0, "%s: %s", fault.field, fault.text);
        cr_expect_str_eq(h->topic, "a/b");
        cr_expect_eq(h->n_topic, 3u);
        cr_expect_str_eq(h->encoding, "pickle5");
        cr_expect_str_eq(h->reply, "$reply/1/2");
        cr_expect_null(h->unsupported);
        cr_assert_eq(h->n_frames, 6u);
        cr_expect_eq(h->frames[0].offset, 0u);
        cr_expect_eq(h->frames[1].offset, 64u);
        cr_expect_eq(h->frames[5].offset, 320u);
        cr_expect_eq(h->body_bytes, 329u);

        cr_expect_str_eq(h->frames[0].array.name, "left");
        cr_expect_str_eq(h->frames[0].array.device, "cuda:0");
        cr_expect_eq(h->frames[0].array.flags, NDBUS_READ_ONLY | NDBUS_BIG_ENDIAN);
        cr_expect_eq(h->frames[0].array.strides[1], 8);
        cr_expect_null(h->frames[1].array.dtype);
        expect_shape(&h->frames[1].array, 1, 7);
        cr_expect_eq(h->frames[2].array.flags, NDBUS_SUBBYTE_PADDED);
        cr_expect_eq(h->frames[3].array.lanes, 4);
        cr_expect_str_eq(h->frames[4].array.unit, "ns");
        cr_expect_eq(h->frames[4].array.unit_count, 25u);
        cr_expect_str_eq(h->frames[5].array.codec, "lz4");
        expect_same_bytes(h, text);
        nd_header_free(h);
}

Test(header, t01_t12_arrays_are_read_as_they_were_written)
{
        static const struct {
                const char *frame;
                const char *dtype;
                uint32_t bits;
                int32_t ndim;
                int64_t shape[3];
                uint32_t flags;
        } rows[] = {
                {"{\"bytes\": 12, \"dtype\": [\"float32\", 32], \"shape\": [3]}",
                 "float32",
                 32,
                 1,
                 {3},
                 0},
                {"{\"bytes\": 24, \"dtype\": [\"int32\", 32], \"shape\": [2, 3], \"strides\": [4, 8]}",
                 "int32",
                 32,
                 2,
                 {2, 3},
                 0},
                {"{\"bytes\": 32, \"dtype\": [\"float64\", 64], \"shape\": [4], \"big_endian\": true}",
                 "float64",
                 64,
                 1,
                 {4},
                 NDBUS_BIG_ENDIAN},
                {"{\"bytes\": 12, \"dtype\": [\"bfloat16\", 16], \"shape\": [6]}",
                 "bfloat16",
                 16,
                 1,
                 {6},
                 0},
                {"{\"bytes\": 1, \"dtype\": [\"float8_e4m3fn\", 8], \"shape\": [1]}",
                 "float8_e4m3fn",
                 8,
                 1,
                 {1},
                 0},
                {"{\"bytes\": 1, \"dtype\": [\"float8_e5m2\", 8], \"shape\": [1]}",
                 "float8_e5m2",
                 8,
                 1,
                 {1},
                 0},
                {"{\"bytes\": 3, \"dtype\": [\"bool\", 8], \"shape\": [3]}", "bool", 8, 1, {3}, 0},
                {"{\"bytes\": 3, \"dtype\": [\"uint8\", 8], \"shape\": [3]}",
                 "uint8",
                 8,
                 1,
                 {3},
                 0},
                {"{\"bytes\": 16, \"dtype\": [\"complex64\", 64], \"shape\": [2]}",
                 "complex64",
                 64,
                 1,
                 {2},
                 0},
                {"{\"bytes\": 4, \"dtype\": [\"float32\", 32], \"shape\": []}",
                 "float32",
                 32,
                 0,
                 {0},
                 0},
                {"{\"bytes\": 0, \"dtype\": [\"float32\", 32], \"shape\": [0, 3]}",
                 "float32",
                 32,
                 2,
                 {0, 3},
                 0},
                {"{\"bytes\": 0, \"dtype\": [\"float32\", 32], \"shape\": [2, 0]}",
                 "float32",
                 32,
                 2,
                 {2, 0},
                 0},
                {"{\"bytes\": 0, \"dtype\": [\"float32\", 32], \"shape\": [3, 0, 5]}",
                 "float32",
                 32,
                 3,
                 {3, 0, 5},
                 0},
                {"{\"bytes\": 32, \"dtype\": [\"float128\", 128], \"shape\": [2]}",
                 "float128",
                 128,
                 1,
                 {2},
                 0},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_header *h = unpack_frame(rows[i].frame);
                const struct ndbus_array *a = &h->frames[0].array;
                char text[256];

                cr_expect_str_eq(a->dtype, rows[i].dtype);
                cr_expect_eq(a->bits, rows[i].bits);
                cr_expect_eq(a->flags, rows[i].flags);
                cr_assert_eq(a->ndim, rows[i].ndim);
                for (int32_t k = 0; k < a->ndim; ++k)
                        cr_expect_eq(a->shape[k], rows[i].shape[k]);
                cr_expect_eq(a->strides != NULL, i == 1);
                snprintf(text, sizeof(text), "{\"topic\": \"t\", \"frames\": [%s]}", rows[i].frame);
                expect_same_bytes(h, text);
                nd_header_free(h);
        }
}

Test(header, t09_t10_units_and_fields)
{
        static const char text[] =
                "{\"topic\": \"t\", \"frames\": [{\"bytes\": 64, \"dtype\": [\"record\", 256],"
                " \"shape\": [2], \"fields\": ["
                "{\"name\": \"A\", \"offset\": 0, \"dtype\": [\"float32\", 32]},"
                "{\"name\": \"B\", \"offset\": 8, \"dtype\": [\"float32\", 32], \"shape\": [2, 1],"
                " \"big_endian\": true},"
                "{\"name\": \"when\", \"offset\": 16, \"dtype\": [\"datetime64\", 64],"
                " \"unit\": [\"us\", 1]},"
                "{\"name\": \"in\", \"offset\": 24, \"dtype\": [\"record\", 24], \"fields\": ["
                "{\"name\": \"x\", \"offset\": 2, \"dtype\": [\"int8\", 8]}]}"
                "]}]}";
        struct nd_header *h = NULL;
        struct nd_fault fault = {0};
        const struct ndbus_field *f;

        cr_assert_eq(unpack(text, &h, &fault), 0, "%s: %s", fault.field, fault.text);
        cr_assert_eq(h->frames[0].array.n_fields, 4u);
        f = h->frames[0].array.fields;
        cr_expect_str_eq(f[0].name, "A");
        cr_expect_str_eq(f[1].name, "B");
        cr_expect_eq(f[1].offset, 8u);
        cr_expect_eq(f[1].ndim, 2);
        cr_expect_eq(f[1].shape[0], 2);
        cr_expect_eq(f[1].flags, NDBUS_BIG_ENDIAN);
        cr_expect_str_eq(f[2].unit, "us");
        cr_expect_eq(f[3].n_fields, 1u);
        cr_expect_str_eq(f[3].fields[0].name, "x");
        cr_expect_eq(f[3].fields[0].offset, 2u);
        expect_same_bytes(h, text);
        nd_header_free(h);
}

Test(header, no_frames_are_no_body)
{
        struct nd_header *h = NULL;

        cr_assert_eq(unpack("{\"topic\": \"t\", \"frames\": []}", &h, NULL), 0);
        cr_expect_eq(h->n_frames, 0u);
        cr_expect_eq(h->body_bytes, 0u);
        nd_header_free(h);
        cr_expect_null(nd_header_free(NULL));
}

Test(header, a_codec_makes_raw_bytes_of_whatever_it_encodes)
{
        struct nd_header *h =
                unpack_frame("{\"bytes\": 9, \"dtype\": [\"float32\", 32], \"shape\": "
                             "[1000, -5], \"flags\": 5, \"codec\": \"zstd\"}");
        const struct ndbus_array *a = &h->frames[0].array;

        cr_expect_null(a->dtype);
        cr_expect_str_eq(a->codec, "zstd");
        cr_expect_eq(a->flags, NDBUS_READ_ONLY);
        expect_shape(a, 1, 9);
        cr_expect_eq(h->body_bytes, 9u);
        nd_header_free(h);
}

Test(header, unknown_keys_are_passed_over_and_some_must_be_understood)
{
        struct nd_header *h;

        h = unpack_frame("{\"bytes\": 3, \"crc\": {\"a\": [1, {}], \"b\": 1.5}, \"later\": null}");
        cr_expect_null(h->unsupported);
        nd_header_free(h);

        h = unpack_frame("{\"bytes\": 3, \"!sealed\": true}");
        cr_expect_str_eq(h->unsupported, "!sealed");
        nd_header_free(h);

        cr_assert_eq(
                unpack("{\"!x\": 1, \"topic\": \"t\", \"frames\": [{\"bytes\": 0, \"!y\": 2}]}", &h,
                       NULL),
                0);
        cr_expect_str_eq(h->unsupported, "!x");
        nd_header_free(h);

        h = unpack_frame("{\"bytes\": 1, \"dtype\": [\"record\", 8], \"shape\": [1], \"fields\": [{"
                         "\"name\": \"a\", \"offset\": 0, \"dtype\": [\"int8\", 8], \"!z\": 0}]}");
        cr_expect_str_eq(h->unsupported, "!z");
        nd_header_free(h);
}

Test(header, keys_may_stand_in_any_order)
{
        struct nd_header *h = unpack_frame("{\"shape\": [3], \"name\": \"n\", \"dtype\": "
                                           "[\"float32\", 32], \"bytes\": 12}");

        cr_expect_str_eq(h->frames[0].array.dtype, "float32");
        nd_header_free(h);
}

Test(header, form_is_an_error_of_the_connection)
{
#define FRAMES ", \"frames\": []}"
        expect_refused("{}", NDBUS_EHEADER, "topic");
        expect_refused("{\"frames\": []}", NDBUS_EHEADER, "topic");
        expect_refused("{\"topic\": \"t\"}", NDBUS_EHEADER, "frames");
        expect_refused("{\"topic\": 1" FRAMES, NDBUS_EHEADER, "topic");
        expect_refused("{\"topic\": [\"t\"]" FRAMES, NDBUS_EHEADER, "topic");
        expect_refused("{\"topic\": \"t\", \"frames\": {}}", NDBUS_EHEADER, "frames");
        expect_refused("{\"topic\": \"t\", \"frames\": [1]}", NDBUS_EHEADER, "frames[0]");
        expect_refused("{\"topic\": \"t\", \"encoding\": 1" FRAMES, NDBUS_EHEADER, "encoding");
        expect_refused("{\"topic\": \"t\", \"encoding\": \"\"" FRAMES, NDBUS_EHEADER, "encoding");
        expect_refused("{\"topic\": \"t\", \"reply\": null" FRAMES, NDBUS_EHEADER, "reply");
        expect_refused("[]", NDBUS_EHEADER, "header");

        expect_frame_refused("{}", NDBUS_EHEADER, ".bytes");
        expect_frame_refused("[]", NDBUS_EHEADER, "");
        expect_frame_refused("{\"bytes\": -1}", NDBUS_EHEADER, ".bytes");
        expect_frame_refused("{\"bytes\": \"1\"}", NDBUS_EHEADER, ".bytes");
        expect_frame_refused("{\"bytes\": 1.5}", NDBUS_EHEADER, ".bytes");
        expect_frame_refused("{\"bytes\": 1, \"name\": 1}", NDBUS_EHEADER, ".name");
        expect_frame_refused("{\"bytes\": 1, \"name\": \"\"}", NDBUS_EHEADER, ".name");
        expect_frame_refused("{\"bytes\": 1, \"name\": \"\xff\"}", NDBUS_EHEADER, ".name");
        expect_frame_refused("{\"bytes\": 1, \"device\": []}", NDBUS_EHEADER, ".device");
        expect_frame_refused("{\"bytes\": 1, \"codec\": true}", NDBUS_EHEADER, ".codec");
        expect_frame_refused("{\"bytes\": 1, \"flags\": -1}", NDBUS_EHEADER, ".flags");
        expect_frame_refused("{\"bytes\": 1, \"shape\": [1]}", NDBUS_EHEADER, ".shape");
        expect_frame_refused("{\"bytes\": 1, \"strides\": [1]}", NDBUS_EHEADER, ".strides");
        expect_frame_refused("{\"bytes\": 1, \"fields\": []}", NDBUS_EHEADER, ".fields");
        expect_frame_refused("{\"bytes\": 1, \"unit\": [\"s\", 1]}", NDBUS_EHEADER, ".unit");
}

#define INT8(_rest) "{\"bytes\": 1, \"dtype\": [\"int8\", 8]" _rest "}"
#define RECORD(_fields)                                                                            \
        "{\"bytes\": 8, \"dtype\": [\"record\", 64], \"shape\": [1], \"fields\": " _fields "}"

Test(header, form_of_arrays_is_an_error_of_the_connection)
{
        expect_frame_refused("{\"bytes\": 1, \"dtype\": \"int8\", \"shape\": [1]}", NDBUS_EHEADER,
                             ".dtype");
        expect_frame_refused("{\"bytes\": 1, \"dtype\": [\"int8\"], \"shape\": [1]}", NDBUS_EHEADER,
                             ".dtype");
        expect_frame_refused("{\"bytes\": 1, \"dtype\": [\"int8\", 8, 1], \"shape\": [1]}",
                             NDBUS_EHEADER, ".dtype");
        expect_frame_refused("{\"bytes\": 1, \"dtype\": [8, \"int8\"], \"shape\": [1]}",
                             NDBUS_EHEADER, ".dtype");
        expect_frame_refused(INT8(""), NDBUS_EHEADER, ".shape");
        expect_frame_refused(INT8(", \"shape\": 1"), NDBUS_EHEADER, ".shape");
        expect_frame_refused(INT8(", \"shape\": [\"1\"]"), NDBUS_EHEADER, ".shape");
        expect_frame_refused(INT8(", \"shape\": [1.0]"), NDBUS_EHEADER, ".shape");
        expect_frame_refused(INT8(", \"shape\": [1], \"strides\": true"), NDBUS_EHEADER,
                             ".strides");
        expect_frame_refused(INT8(", \"shape\": [1], \"big_endian\": 1"), NDBUS_EHEADER,
                             ".big_endian");
        expect_frame_refused(INT8(", \"shape\": [1], \"unit\": \"s\""), NDBUS_EHEADER, ".unit");
        expect_frame_refused(INT8(", \"shape\": [1], \"fields\": {}"), NDBUS_EHEADER, ".fields");

        expect_frame_refused(RECORD("[1]"), NDBUS_EHEADER, ".fields[0]");
        expect_frame_refused(RECORD("[{}]"), NDBUS_EHEADER, ".fields[0].name");
        expect_frame_refused(RECORD("[{\"name\": \"a\", \"dtype\": [\"int8\", 8]}]"), NDBUS_EHEADER,
                             ".fields[0].offset");
        expect_frame_refused(RECORD("[{\"name\": \"a\", \"offset\": 0}]"), NDBUS_EHEADER,
                             ".fields[0].dtype");
        expect_frame_refused(RECORD("[{\"name\": \"a\", \"offset\": 0, \"dtype\": [\"int8\", 8], "
                                    "\"shape\": 1}]"),
                             NDBUS_EHEADER, ".fields[0].shape");
}

Test(header, t16_t17_values_are_errors_of_the_message)
{
        expect_refused("{\"topic\": \"a//b\", \"frames\": []}", NDBUS_ETOPIC, NULL);
        expect_refused("{\"topic\": \"\", \"frames\": []}", NDBUS_ETOPIC, NULL);
        expect_refused("{\"topic\": \"a/*\", \"frames\": []}", NDBUS_ETOPIC, NULL);
        expect_refused("{\"topic\": \"t\", \"reply\": \"/\", \"frames\": []}", NDBUS_ETOPIC,
                       "reply");

        expect_frame_refused("{\"bytes\": 63, \"dtype\": [\"float32\", 32], \"shape\": [4, 4]}",
                             NDBUS_ELENGTH, ".bytes");
        expect_frame_refused("{\"bytes\": 65, \"dtype\": [\"float32\", 32], \"shape\": [4, 4]}",
                             NDBUS_ELENGTH, ".bytes");

        expect_frame_refused(INT8(", \"shape\": [8589934592, 8589934592]"), NDBUS_ESHAPE, ".shape");
        expect_frame_refused("{\"bytes\": 1, \"dtype\": [\"float64\", 64], \"shape\": "
                             "[4611686018427387904, 4]}",
                             NDBUS_ESHAPE, ".shape");
        expect_frame_refused(INT8(", \"shape\": [-1]"), NDBUS_ESHAPE, ".shape");
        expect_frame_refused(INT8(", \"shape\": [9223372036854775808]"), NDBUS_ESHAPE, ".shape");
        expect_frame_refused(INT8(", \"shape\": [18446744073709551615]"), NDBUS_ESHAPE, ".shape");
        expect_frame_refused(
                INT8(", \"shape\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                     "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"),
                NDBUS_ESHAPE, ".shape");
        expect_frame_refused("{\"bytes\": 8, \"dtype\": [\"float64\", 64], \"shape\": [4], "
                             "\"strides\": [4611686018427387904]}",
                             NDBUS_ESHAPE, ".strides");
        expect_frame_refused(INT8(", \"shape\": [1], \"strides\": [-1]"), NDBUS_ESHAPE, ".strides");
        expect_frame_refused(INT8(", \"shape\": [1], \"strides\": [1, 1]"), NDBUS_ESHAPE,
                             ".strides");
        expect_frame_refused(INT8(", \"shape\": [1], \"strides\": []"), NDBUS_ESHAPE, ".strides");

        expect_frame_refused("{\"bytes\": 1, \"dtype\": [\"int8\", 0], \"shape\": [1]}",
                             NDBUS_EDTYPE, ".dtype");
        expect_frame_refused("{\"bytes\": 1, \"dtype\": [\"int8\", 16], \"shape\": [1]}",
                             NDBUS_EDTYPE, ".dtype");
        expect_frame_refused("{\"bytes\": 8, \"dtype\": [\"object\", 64], \"shape\": [1]}",
                             NDBUS_EDTYPE, ".dtype");
        expect_frame_refused(INT8(", \"shape\": [1], \"lanes\": 0"), NDBUS_EDTYPE, ".lanes");
        expect_frame_refused(INT8(", \"shape\": [1], \"lanes\": 65536"), NDBUS_EDTYPE, ".lanes");
        expect_frame_refused("{\"bytes\": 1, \"dtype\": [\"int8\", 4294967296], \"shape\": [1]}",
                             NDBUS_EDTYPE, ".dtype");
        expect_frame_refused(INT8(", \"shape\": [1], \"unit\": [\"s\", 0]"), NDBUS_EDTYPE, ".unit");
        expect_frame_refused(INT8(", \"shape\": [1], \"unit\": [\"s\", 2147483648]"), NDBUS_EDTYPE,
                             ".unit");
        expect_frame_refused(INT8(", \"shape\": [1], \"flags\": 4294967296"), NDBUS_EDTYPE,
                             ".flags");
        expect_frame_refused(INT8(", \"shape\": [1], \"flags\": 2"), NDBUS_EDTYPE, ".flags");
        expect_frame_refused(INT8(", \"shape\": [1], \"big_endian\": true"), NDBUS_EDTYPE,
                             ".big_endian");
        expect_frame_refused(RECORD("[{\"name\": \"a\", \"offset\": 8, \"dtype\": [\"int8\", 8]}]"),
                             NDBUS_EDTYPE, ".fields[0].offset");

        expect_frame_refused("{\"bytes\": 4611686018427387905}", NDBUS_ETOO_BIG, ".bytes");
        expect_refused("{\"topic\": \"t\", \"frames\": [{\"bytes\": 4611686018427387904}, "
                       "{\"bytes\": 1}]}",
                       NDBUS_ETOO_BIG, "frames[1].bytes");
}

Test(header, numbers_out_of_range_are_named_with_their_range)
{
        static const struct {
                const char *text;
                const char *said;
                uint64_t value;
                uint64_t limit;
        } rows[] = {
                {"\"lanes\": 0, \"dtype\": [\"int8\", 8]", "is 0, it may be 1 to 65535", 0, 1},
                {"\"lanes\": 65536, \"dtype\": [\"int8\", 8]", "is 65536, it may be 1 to 65535",
                 65536, 65535},
                {"\"dtype\": [\"int8\", 0]", "is 0, it may be 1 to 4294967295", 0, 1},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_fault fault = {0};
                struct nd_header *h = NULL;
                char text[256];

                snprintf(text, sizeof(text),
                         "{\"topic\": \"t\", \"frames\": [{\"bytes\": 1, \"shape\": [1], %s}]}",
                         rows[i].text);
                cr_expect_eq(unpack(text, &h, &fault), NDBUS_EDTYPE);
                cr_expect_str_eq(fault.text, rows[i].said);
                cr_expect(fault.has_numbers);
                cr_expect_eq(fault.value, rows[i].value);
                cr_expect_eq(fault.limit, rows[i].limit);
        }
}

/* A record of gaps alone, as NumPy has too. */
Test(header, records_without_fields)
{
        static const char *const rows[] = {"", ", \"fields\": []"};

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_fault fault = {0};
                struct nd_header *h = NULL;
                char text[256];

                snprintf(
                        text, sizeof(text),
                        "{\"topic\": \"t\", \"frames\": [{\"bytes\": 8, \"dtype\": [\"record\", 32], "
                        "\"shape\": [2]%s}]}",
                        rows[i]);
                cr_assert_eq(unpack(text, &h, &fault), 0, "%s: %s", fault.field, fault.text);
                cr_expect_str_eq(h->frames[0].array.dtype, "record");
                cr_expect_eq(h->frames[0].array.n_fields, 0);
                nd_header_free(h);
        }
}

Test(header, strings_have_no_nul_within)
{
        static const char *const frames[] = {
                "{\"topic\": \"a~b\", \"frames\": []}", /* a control character like any other */
                "{\"topic\": \"t\", \"reply\": \"a~b\", \"frames\": []}",
                "{\"topic\": \"t\", \"encoding\": \"a~b\", \"frames\": []}",
                "{\"topic\": \"t\", \"frames\": [{\"bytes\": 0, \"name\": \"a~b\"}]}",
                "{\"topic\": \"t\", \"frames\": [{\"bytes\": 0, \"codec\": \"~\"}]}",
                "{\"topic\": \"t\", \"frames\": [{\"bytes\": 0, \"dtype\": [\"int8~\", 8]}]}",
        };

        for (size_t i = 0; i < nd_array_size(frames); ++i) {
                struct nd_header *h = NULL;
                size_t n_data;
                char *data = nd_notation_pack(frames[i], &n_data);
                char *tilde = memchr(data, '~', n_data);

                cr_assert_not_null(tilde);
                *tilde = '\0';
                cr_expect_eq(nd_header_unpack(data, n_data, NULL, &h, NULL),
                             i < 2 ? NDBUS_ETOPIC : NDBUS_EHEADER, "%s", frames[i]);
                free(data);
        }
}

Test(header, strings_end_at_255_bytes)
{
        for (size_t n = ND_NAME_BYTES_MAX; n <= ND_NAME_BYTES_MAX + 1; ++n) {
                struct nd_header *h = NULL;
                char name[ND_NAME_BYTES_MAX + 2] = {0}, text[512];

                memset(name, 'x', n);
                snprintf(text, sizeof(text),
                         "{\"topic\": \"t\", \"frames\": [{\"bytes\": 0, \"name\": \"%s\"}]}",
                         name);
                cr_expect_eq(unpack(text, &h, NULL), n > ND_NAME_BYTES_MAX ? NDBUS_EHEADER : 0);
                nd_header_free(h);
        }
}

Test(header, limits_are_kept_and_named)
{
        static const char text[] = "{\"topic\": \"t\", \"frames\": [{\"bytes\": 1}, {\"bytes\": 6, "
                                   "\"dtype\": [\"int8\", 8], \"shape\": [2, 3]}]}";
        nd_autofree uint8_t *data = NULL;
        struct nd_header_limits limits = {.body_bytes_max = 70, .dims_max = 2};
        struct nd_header *h = NULL;
        struct nd_fault fault;
        size_t n_data;

        data = nd_notation_pack(text, &n_data);
        cr_expect_eq(nd_header_unpack(data, n_data, &limits, &h, NULL), 0);
        nd_header_free(h);

        limits.body_bytes_max = 69;
        cr_expect_eq(nd_header_unpack(data, n_data, &limits, &h, &fault), NDBUS_ETOO_BIG);
        cr_expect_str_eq(fault.text, "is 70 bytes, the limit is 69 bytes");
        cr_expect_eq(fault.value, 70u);
        cr_expect_eq(fault.limit, 69u);

        limits.body_bytes_max = 70;
        limits.dims_max = 1;
        cr_expect_eq(nd_header_unpack(data, n_data, &limits, &h, &fault), NDBUS_ESHAPE);
        cr_expect_str_eq(fault.field, "frames[1].shape");
        cr_expect_eq(fault.limit, 1u);
}

Test(header, every_shorter_length_is_refused)
{
        static const char text[] =
                "{\"topic\": \"t\", \"frames\": [{\"bytes\": 4, \"dtype\": [\"record\", 32],"
                " \"shape\": [1], \"fields\": [{\"name\": \"a\", \"offset\": 0,"
                " \"dtype\": [\"int8\", 8]}]}], \"reply\": \"r\"}";
        nd_autofree uint8_t *data = NULL;
        size_t n_data;

        data = nd_notation_pack(text, &n_data);
        for (size_t n = 0; n < n_data; ++n) {
                struct nd_header *h = NULL;
                uint8_t *exact = malloc(n ? n : 1);

                cr_assert_not_null(exact);
                memcpy(exact, data, n);
                cr_expect_eq(nd_header_unpack(exact, n, NULL, &h, NULL), NDBUS_EHEADER);
                cr_expect_null(h);
                free(exact);
        }
}

Test(header, t30_refuses_a_header_beyond_its_size)
{
        nd_autofree uint8_t *data = calloc(1, ND_HEADER_BYTES_MAX + 1);
        struct nd_header *h = NULL;
        struct nd_fault fault;

        cr_assert_not_null(data);
        cr_expect_eq(nd_header_unpack(data, ND_HEADER_BYTES_MAX + 1, NULL, &h, &fault),
                     NDBUS_EHEADER);
        cr_expect_eq(fault.limit, (uint64_t)ND_HEADER_BYTES_MAX);
        cr_expect_eq(nd_header_unpack("\xdd\x10\x00\x00\x00", 5, NULL, &h, NULL), NDBUS_EHEADER);
        cr_expect_eq(nd_header_unpack("", 0, NULL, &h, NULL), NDBUS_EHEADER);
}

Test(header, writes_only_what_is_needed)
{
        const int64_t shape[] = {2, 1, 3}, c_strides[] = {12, -999, 4}, strides[] = {4, -999, 8};
        struct nd_frame frame = {
                .array = {.dtype = "float32",
                          .name = "",
                          .lanes = 1,
                          .ndim = 3,
                          .shape = shape,
                          .strides = c_strides},
                .bytes = 24,
        };
        struct nd_header header = {.topic = "t", .n_topic = 1, .n_frames = 1, .frames = &frame};

        expect_same_bytes(&header, "{\"topic\": \"t\", \"frames\": [{\"bytes\": 24, \"dtype\": "
                                   "[\"float32\", 32], \"shape\": [2, 1, 3]}]}");
        frame.array.strides = strides;
        expect_same_bytes(
                &header, "{\"topic\": \"t\", \"frames\": [{\"bytes\": 24, \"dtype\": [\"float32\", "
                         "32], \"shape\": [2, 1, 3], \"strides\": [4, 0, 8]}]}");

        frame.array = (struct ndbus_array){
                .dtype = "datetime64", .unit = "ns", .shape = shape, .ndim = 1};
        frame.bytes = 16;
        expect_same_bytes(
                &header,
                "{\"topic\": \"t\", \"frames\": [{\"bytes\": 16, \"dtype\": [\"datetime64\", "
                "64], \"shape\": [2], \"unit\": [\"ns\", 1]}]}");
}

Test(header, tells_what_it_takes)
{
        struct nd_header *small = unpack_frame("{\"bytes\": 1}");
        struct nd_header *large = unpack_frame(
                "{\"bytes\": 1, \"dtype\": [\"int8\", 8], \"shape\": [1, 1, 1, 1, 1, 1, 1, 1]}");

        cr_expect_geq(small->allocated_bytes, sizeof(struct nd_header) + sizeof(struct nd_frame));
        cr_expect_geq(large->allocated_bytes, small->allocated_bytes + 7 * sizeof(int64_t));
        nd_header_free(small);
        nd_header_free(large);
}
