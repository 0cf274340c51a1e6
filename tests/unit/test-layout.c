/* SPDX-License-Identifier: MIT */

/*
 * Layout: sizes, orders and places of arrays
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/layout.h"

#define SHAPE(...)                                                                                 \
        (const int64_t[])                                                                          \
        {                                                                                          \
                __VA_ARGS__                                                                        \
        }

static const uint8_t some_data[64];

/* A user's array of @dtype; a shape and strides of @ndim numbers. */
static struct ndbus_array
make(const char *dtype, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
        return (struct ndbus_array){
                .data = some_data,
                .dtype = dtype,
                .ndim = ndim,
                .shape = shape,
                .strides = strides,
        };
}

static int plan(const struct ndbus_array *a, struct nd_plan *ret)
{
        return nd_layout_plan(a, "arrays[1]", ret, NULL);
}

static int check(const struct ndbus_array *a, uint64_t bytes)
{
        struct nd_frame frame = {.array = *a, .bytes = bytes};

        return nd_layout_check(&frame, "frames[1]", NULL);
}

/* The user's array has this plan, and as a frame with so many bytes the other end takes it. */
static void expect_plan(const char *what,
                        const struct ndbus_array *a,
                        enum nd_order order,
                        uint64_t bytes,
                        uint64_t elements,
                        uint32_t itemsize)
{
        struct ndbus_array sent = *a;
        struct nd_fault fault = {0};
        struct nd_plan p = {0};

        cr_expect_eq(nd_layout_plan(a, "a", &p, &fault), 0, "%s: %s: %s", what, fault.field,
                     fault.text);
        cr_expect_eq(p.order, order, "%s: order %d", what, (int)p.order);
        cr_expect_eq(p.bytes, bytes, "%s: bytes %llu", what, (unsigned long long)p.bytes);
        cr_expect_eq(p.elements, elements, "%s: %llu", what, (unsigned long long)p.elements);
        cr_expect_eq(p.itemsize, itemsize, "%s: itemsize %u", what, p.itemsize);

        if (order != ND_ORDER_DENSE)
                sent.strides = NULL;
        cr_expect_eq(check(&sent, bytes), 0, "%s: as a frame", what);
        cr_expect_eq(check(&sent, bytes + 1), NDBUS_ELENGTH, "%s: one more", what);
        if (bytes)
                cr_expect_eq(check(&sent, bytes - 1), NDBUS_ELENGTH, "%s: one less", what);
}

Test(layout, t01_t05_t07_t08_plain_arrays)
{
        struct ndbus_array a;

        a = make("float32", 1, SHAPE(3), NULL);
        expect_plan("T01", &a, ND_ORDER_C, 12, 3, 4);
        a = make("bfloat16", 1, SHAPE(6), NULL);
        expect_plan("T04", &a, ND_ORDER_C, 12, 6, 2);
        a = make("float8_e4m3fn", 1, SHAPE(1), NULL);
        expect_plan("T05", &a, ND_ORDER_C, 1, 1, 1);
        a = make("float8_e5m2", 1, SHAPE(1), NULL);
        expect_plan("T05", &a, ND_ORDER_C, 1, 1, 1);
        a = make("bool", 1, SHAPE(3), NULL);
        expect_plan("T07", &a, ND_ORDER_C, 3, 3, 1);
        a = make("uint8", 1, SHAPE(3), NULL);
        expect_plan("T07", &a, ND_ORDER_C, 3, 3, 1);
        a = make("complex64", 1, SHAPE(2), NULL);
        expect_plan("T08", &a, ND_ORDER_C, 16, 2, 8);
}

Test(layout, t02_fortran_order_is_dense)
{
        struct ndbus_array a = make("int32", 2, SHAPE(2, 3), SHAPE(4, 8));

        expect_plan("T02", &a, ND_ORDER_DENSE, 24, 6, 4);
}

Test(layout, t03_big_endian_is_sent_as_it_is)
{
        struct ndbus_array a = make("float64", 1, SHAPE(4), NULL);

        a.flags = NDBUS_BIG_ENDIAN;
        expect_plan("T03", &a, ND_ORDER_C, 32, 4, 8);
}

Test(layout, t09_units)
{
        static const char *const units[] = {"Y",  "M",  "W",  "D",  "h",  "m",  "s",
                                            "ms", "us", "ns", "ps", "fs", "as", "generic"};
        static const char *const others[] = {"", "y", "NS", "min", "ns ", "zs", "1ns"};
        struct ndbus_array a = make("datetime64", 1, SHAPE(2), NULL);
        struct nd_plan p;

        for (size_t i = 0; i < nd_array_size(units); ++i) {
                a.unit = units[i];
                a.unit_count = (uint32_t)i;
                expect_plan(units[i], &a, ND_ORDER_C, 16, 2, 8);
        }
        a.unit_count = INT32_MAX;
        cr_expect_eq(plan(&a, &p), 0);
        a.unit_count = (uint32_t)INT32_MAX + 1;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);
        a.unit_count = 1;
        for (size_t i = 0; i < nd_array_size(others); ++i) {
                a.unit = others[i];
                cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE, "%s", others[i]);
        }
        a.unit = NULL;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE, "no unit");

        a = make("int64", 1, SHAPE(2), NULL);
        a.unit = "ns";
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE, "int64 has no unit");
        a.unit = NULL;
        a.unit_count = 1;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE, "int64 has no unit");
}

Test(layout, t10_records)
{
        const struct ndbus_field fields[] = {
                {.name = "A", .offset = 0, .dtype = "float32"},
                {.name = "B", .offset = 8, .dtype = "float32", .bits = 32},
        };
        struct ndbus_array a = make("record", 1, SHAPE(2), NULL);

        a.bits = 8 * 16;
        a.fields = fields;
        a.n_fields = 2;
        expect_plan("T10", &a, ND_ORDER_C, 32, 2, 16);
        a.n_fields = 0;
        expect_plan("a record without fields", &a, ND_ORDER_C, 32, 2, 16);
        a.bits = 0;
        cr_expect_eq(check(&a, 32), NDBUS_EDTYPE);
}

Test(layout, t11_no_dimensions_is_one_element)
{
        struct ndbus_array a = make("float32", 0, NULL, NULL);

        expect_plan("T11", &a, ND_ORDER_C, 4, 1, 4);
        a.strides = SHAPE(0);
        expect_plan("T11 with strides", &a, ND_ORDER_C, 4, 1, 4);
}

Test(layout, t12_empty_arrays_have_no_bytes)
{
        static const struct {
                int32_t ndim;
                int64_t shape[3];
        } rows[] = {{2, {0, 3}}, {2, {2, 0}}, {3, {3, 0, 5}}, {1, {0}}};

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct ndbus_array a = make("float32", rows[i].ndim, rows[i].shape, NULL);

                a.data = NULL;
                expect_plan("T12", &a, ND_ORDER_C, 0, 0, 4);
                a.strides = SHAPE(-4, 12, INT64_MIN);
                expect_plan("T12 with strides", &a, ND_ORDER_C, 0, 0, 4);
        }
}

Test(layout, t16_length)
{
        struct ndbus_array a = make("float32", 2, SHAPE(4, 4), NULL);
        struct nd_frame frame = {.array = a, .bytes = 63};
        struct nd_fault fault;

        cr_expect_eq(nd_layout_check(&frame, "frames[0]", &fault), NDBUS_ELENGTH);
        cr_expect_str_eq(fault.field, "frames[0].bytes");
        cr_expect_str_eq(fault.text, "is 63, dtype and shape make 64");
        cr_expect(fault.has_numbers);
        cr_expect_eq(fault.value, 63u);
        cr_expect_eq(fault.limit, 64u);
        cr_expect_eq(check(&a, 64), 0);
        cr_expect_eq(check(&a, 65), NDBUS_ELENGTH);
        cr_expect_eq(check(&a, 0), NDBUS_ELENGTH);
        cr_expect_eq(check(&a, UINT64_MAX), NDBUS_ELENGTH);
}

Test(layout, t17_impossible_shapes)
{
        static const int64_t ones[65] = {
                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        };
        static const int64_t big = INT64_C(1) << 62;

        const struct {
                const char *name;
                const char *dtype;
                int32_t ndim;
                const int64_t *shape;
                const int64_t *strides;
        } rows[] = {
                {"[2^33,2^33] u8", "uint8", 2, SHAPE(INT64_C(1) << 33, INT64_C(1) << 33), NULL},
                {"[2^62,4] f8", "float64", 2, SHAPE(big, 4), NULL},
                {"[2^60] f8", "float64", 1, SHAPE(INT64_C(1) << 60), NULL},
                {"[-1]", "uint8", 1, SHAPE(-1), NULL},
                {"[3,INT64_MIN]", "uint8", 2, SHAPE(3, INT64_MIN), NULL},
                {"65 dims", "uint8", 65, ones, NULL},
                {"-1 dims", "uint8", -1, ones, NULL},
                {"INT32_MIN dims", "uint8", INT32_MIN, ones, NULL},
                {"stride 2^62", "float64", 1, SHAPE(4), SHAPE(INT64_C(1) << 62)},
                {"stride 2^62, [2]", "float64", 1, SHAPE(2), SHAPE(INT64_C(1) << 62)},
                {"stride -2^63", "float64", 1, SHAPE(2), SHAPE(INT64_MIN)},
                {"strides that add up", "uint8", 2, SHAPE(2, 2), SHAPE(big - 1, big - 1)},
                {"stride 2^33, [2^33]", "uint8", 1, SHAPE(INT64_C(1) << 33),
                 SHAPE(INT64_C(1) << 33)},
                {"an empty axis hides no others", "float64", 3, SHAPE(0, big, 4), NULL},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct ndbus_array a =
                        make(rows[i].dtype, rows[i].ndim, rows[i].shape, rows[i].strides);
                struct nd_fault fault = {0};
                struct nd_plan p;

                cr_expect_eq(nd_layout_plan(&a, "a", &p, &fault), NDBUS_ESHAPE, "%s", rows[i].name);
                cr_expect_str_eq(fault.field, rows[i].strides ? "a.strides" : "a.shape");
                cr_expect_eq(check(&a, 8), NDBUS_ESHAPE, "%s as a frame", rows[i].name);
        }
}

Test(layout, t17_what_is_just_possible)
{
        int64_t ones[NDBUS_DIMS_MAX];
        struct ndbus_array a = make("uint8", NDBUS_DIMS_MAX, ones, NULL);
        struct nd_plan p;

        for (size_t i = 0; i < NDBUS_DIMS_MAX; ++i)
                ones[i] = 1;
        expect_plan("64 dimensions", &a, ND_ORDER_C, 1, 1, 1);

        a = make("uint8", 1, SHAPE(INT64_MAX), NULL);
        expect_plan("2^63-1 elements", &a, ND_ORDER_C, INT64_MAX, INT64_MAX, 1);
        a = make("uint8", 2, SHAPE(INT64_C(1) << 31, INT64_C(1) << 31), SHAPE(0, 0));
        expect_plan("one byte, 2^62 times", &a, ND_ORDER_DENSE, 1, UINT64_C(1) << 62, 1);
        a = make("uint8", 3, SHAPE(INT64_C(1) << 31, INT64_C(1) << 31, 2), SHAPE(0, 0, 0));
        cr_expect_eq(plan(&a, &p), NDBUS_ESHAPE, "one byte, 2^63 times");
}

Test(layout, t19_object_is_refused)
{
        struct ndbus_array a = make("object", 1, SHAPE(1), NULL);
        struct nd_fault fault;
        struct nd_plan p;

        cr_expect_eq(nd_layout_plan(&a, "arrays[0]", &p, &fault), NDBUS_EDTYPE);
        cr_expect_str_eq(fault.field, "arrays[0].dtype");
        cr_expect_not_null(strstr(fault.text, "pickle"));
        a.bits = 64;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);
        cr_expect_eq(check(&a, 8), NDBUS_EDTYPE);
}

Test(layout, orders)
{
        static const struct {
                const char *name;
                int32_t ndim;
                int64_t shape[3], strides[3];
                enum nd_order order;
                uint64_t bytes;
        } rows[] = {
                {"C", 2, {2, 3}, {12, 4}, ND_ORDER_C, 24},
                {"an axis of 1 says nothing", 3, {2, 1, 3}, {12, 999, 4}, ND_ORDER_C, 24},
                {"nor a negative one", 3, {1, 2, 3}, {INT64_MIN, 12, 4}, ND_ORDER_C, 24},
                {"one element", 2, {1, 1}, {-7, 0}, ND_ORDER_C, 4},
                {"one axis", 1, {3}, {4}, ND_ORDER_C, 12},
                {"F", 2, {2, 3}, {4, 8}, ND_ORDER_DENSE, 24},
                {"axes 1 2 0", 3, {2, 3, 4}, {4, 32, 8}, ND_ORDER_DENSE, 96},
                {"axes 2 0 1", 3, {2, 3, 4}, {12, 4, 24}, ND_ORDER_DENSE, 96},
                {"F with axes of 1", 3, {2, 1, 3}, {4, -5, 8}, ND_ORDER_DENSE, 24},
                {"broadcast first", 2, {5, 3}, {0, 4}, ND_ORDER_DENSE, 12},
                {"broadcast last", 2, {3, 5}, {4, 0}, ND_ORDER_DENSE, 12},
                {"broadcast between", 3, {2, 5, 3}, {12, 0, 4}, ND_ORDER_DENSE, 24},
                {"broadcast all", 2, {1000, 1000}, {0, 0}, ND_ORDER_DENSE, 4},
                {"reversed", 1, {3}, {-4}, ND_ORDER_GATHER, 12},
                {"reversed rows", 2, {2, 3}, {-12, 4}, ND_ORDER_GATHER, 24},
                {"every second", 1, {3}, {8}, ND_ORDER_GATHER, 12},
                {"columns of a wider one", 2, {2, 3}, {16, 4}, ND_ORDER_GATHER, 24},
                {"overlapping", 2, {3, 3}, {4, 4}, ND_ORDER_GATHER, 36},
                {"a field of records", 1, {3}, {7}, ND_ORDER_GATHER, 12},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct ndbus_array a =
                        make("float32", rows[i].ndim, rows[i].shape, rows[i].strides);
                struct nd_plan p;
                uint64_t elements = 1;
                int64_t strides[3];

                for (int32_t k = 0; k < rows[i].ndim; ++k) {
                        elements *= (uint64_t)rows[i].shape[k];
                        strides[k] = rows[i].shape[k] == 1 ? 0 : rows[i].strides[k];
                }
                cr_expect_eq(plan(&a, &p), 0, "%s", rows[i].name);
                cr_expect_eq(p.order, rows[i].order, "%s", rows[i].name);
                a.strides = strides; /* as in the header, where an axis of 1 has 0 */
                expect_plan(rows[i].name, &a, rows[i].order, rows[i].bytes, elements, 4);
                cr_expect_eq(nd_layout_is_c(&a), rows[i].order == ND_ORDER_C, "%s", rows[i].name);
        }
}

Test(layout, a_peer_may_send_any_strides_that_are_not_negative)
{
        struct ndbus_array a = make("float32", 2, SHAPE(2, 3), SHAPE(16, 4));

        cr_expect_eq(check(&a, 28), 0, "gaps");
        cr_expect_eq(check(&a, 24), NDBUS_ELENGTH);
        a.strides = SHAPE(4, 4);
        cr_expect_eq(check(&a, 16), 0, "overlap");
        a.strides = SHAPE(12, -4);
        cr_expect_eq(check(&a, 24), NDBUS_ESHAPE);
        a.strides = SHAPE(12, 4);
        cr_expect_eq(check(&a, 24), 0, "C order");
        a.shape = SHAPE(1, 3);
        a.strides = SHAPE(-1, 4);
        cr_expect_eq(check(&a, 12), NDBUS_ESHAPE, "negative, though of an axis of 1");
        a.strides = SHAPE(INT64_C(1) << 62, 4);
        cr_expect_eq(check(&a, 12), NDBUS_ESHAPE, "beyond any body, though of an axis of 1");
        a.shape = SHAPE(0, 3);
        a.strides = SHAPE(100, 4);
        cr_expect_eq(check(&a, 0), 0, "empty");
        cr_expect_eq(check(&a, 4), NDBUS_ELENGTH, "empty");
}

Test(layout, raw_bytes)
{
        struct ndbus_array a = make(NULL, 1, SHAPE(7), NULL);
        struct nd_plan p;

        expect_plan("raw", &a, ND_ORDER_C, 7, 7, 1);
        a.bits = 8;
        a.flags = NDBUS_READ_ONLY;
        expect_plan("raw, 8 bits", &a, ND_ORDER_C, 7, 7, 1);
        a.strides = SHAPE(1);
        expect_plan("raw with its stride", &a, ND_ORDER_C, 7, 7, 1);
        a.strides = SHAPE(0);
        expect_plan("raw, broadcast", &a, ND_ORDER_GATHER, 7, 7, 1);
        cr_expect_eq(check(&a, 1), NDBUS_ESHAPE, "no strides on the wire");

        a = make(NULL, 2, SHAPE(7, 1), NULL);
        cr_expect_eq(plan(&a, &p), NDBUS_ESHAPE);
        a = make(NULL, 1, NULL, NULL);
        cr_expect_eq(plan(&a, &p), NDBUS_ESHAPE);
        a = make(NULL, 1, SHAPE(-7), NULL);
        cr_expect_eq(plan(&a, &p), NDBUS_ESHAPE);
        a = make(NULL, 1, SHAPE(7), NULL);
        a.bits = 16;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);
        a.bits = 0;
        a.lanes = 2;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);
        a.lanes = 0;
        a.flags = NDBUS_BIG_ENDIAN;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);
}

Test(layout, widths)
{
        static const struct {
                const char *dtype;
                uint32_t bits;
                uint16_t lanes;
                uint32_t flags;
                int want;
                uint64_t bytes; /* of 3 elements */
                uint32_t itemsize;
        } rows[] = {
                {"float32", 32, 1, 0, 0, 12, 4},
                {"float32", 64, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"float32", 0, 4, 0, 0, 48, 16},
                {"bool", 1, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"int4", 0, 0, 0, 0, 2, 0},
                {"int4", 4, 2, 0, 0, 3, 1},
                {"int4", 4, 3, 0, 0, 5, 0},
                {"int4", 4, 0, NDBUS_SUBBYTE_PADDED, 0, 3, 1},
                {"int4", 4, 2, NDBUS_SUBBYTE_PADDED, NDBUS_EDTYPE, 0, 0},
                {"int2", 2, 0, 0, 0, 1, 0},
                {"float6_e2m3fn", 6, 0, 0, 0, 3, 0},
                {"float4_e2m1fn", 0, 0, NDBUS_SUBBYTE_PADDED, 0, 3, 1},
                {"int8", 0, 0, NDBUS_SUBBYTE_PADDED, NDBUS_EDTYPE, 0, 0},
                {"int16", 0, 0, NDBUS_BIG_ENDIAN, 0, 6, 2},
                {"complex128", 0, 0, NDBUS_BIG_ENDIAN, 0, 48, 16},
                {"int8", 0, 0, NDBUS_BIG_ENDIAN, NDBUS_EDTYPE, 0, 0},
                {"bool", 0, 0, NDBUS_BIG_ENDIAN, NDBUS_EDTYPE, 0, 0},
                {"bytes", 64, 0, NDBUS_BIG_ENDIAN, NDBUS_EDTYPE, 0, 0},
                {"record", 64, 0, NDBUS_BIG_ENDIAN, NDBUS_EDTYPE, 0, 0},
                {"int16", 0, 0, 8, NDBUS_EDTYPE, 0, 0},
                {"bytes", 0, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"bytes", 40, 0, 0, 0, 15, 5},
                {"bytes", 41, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"bytes", 40, 2, 0, NDBUS_EDTYPE, 0, 0},
                {"ucs4", 96, 0, NDBUS_BIG_ENDIAN, 0, 36, 12},
                {"ucs4", 40, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"opaque", 24, 0, 0, 0, 9, 3},
                {"record", 24, 0, 0, 0, 9, 3},
                {"record", 7, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"float128", 128, 0, NDBUS_BIG_ENDIAN, 0, 48, 16},
                {"float128", 0, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"int12", 12, 0, 0, 0, 5, 0},
                {"int12", 12, 0, NDBUS_BIG_ENDIAN, NDBUS_EDTYPE, 0, 0},
                {"huge", UINT32_MAX, 0, 0, 0, (3 * UINT64_C(0xffffffff) + 7) / 8, 0},
                {"huge", UINT32_MAX, 2, 0, NDBUS_EDTYPE, 0, 0},
                {"", 8, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"caf\xe9", 8, 0, 0, NDBUS_EDTYPE, 0, 0},
                {"caf\xc3\xa9", 8, 0, 0, 0, 3, 1},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct ndbus_array a = make(rows[i].dtype, 1, SHAPE(3), NULL);
                struct nd_plan p;

                a.bits = rows[i].bits;
                a.lanes = rows[i].lanes;
                a.flags = rows[i].flags;
                if (rows[i].want == 0)
                        expect_plan(rows[i].dtype, &a, ND_ORDER_C, rows[i].bytes, 3,
                                    rows[i].itemsize);
                else
                        cr_expect_eq(plan(&a, &p), rows[i].want, "%zu: %s", i, rows[i].dtype);
        }
}

Test(layout, packed_elements_have_no_strides)
{
        struct ndbus_array a = make("int4", 1, SHAPE(4), SHAPE(1));
        struct nd_plan p;

        cr_expect_eq(plan(&a, &p), NDBUS_ESHAPE);
        cr_expect_eq(check(&a, 2), NDBUS_ESHAPE);
        a.flags = NDBUS_SUBBYTE_PADDED;
        expect_plan("padded", &a, ND_ORDER_C, 4, 4, 1);
        a.flags = 0;
        a.lanes = 2;
        expect_plan("two in a byte", &a, ND_ORDER_C, 4, 4, 1);
}

Test(layout, what_a_user_gives_wrong)
{
        struct ndbus_array a = make("int8", 1, SHAPE(4), NULL);
        char name[ND_NAME_BYTES_MAX + 2];
        struct nd_fault fault;
        struct nd_plan p;

        a.data = NULL;
        cr_expect_eq(nd_layout_plan(&a, "arrays[1]", &p, &fault), NDBUS_EINVAL);
        cr_expect_str_eq(fault.field, "arrays[1].data");

        a = make("int8", 1, NULL, NULL);
        cr_expect_eq(plan(&a, &p), NDBUS_EINVAL, "no shape");
        a = make("int8", 1, SHAPE(4), NULL);
        a.reserved[2] = 1;
        cr_expect_eq(plan(&a, &p), NDBUS_EINVAL, "reserved");
        a.reserved[2] = 0;
        a.reserved16 = 1;
        cr_expect_eq(plan(&a, &p), NDBUS_EINVAL, "reserved");
        a.reserved16 = 0;
        a.codec = "lz4";
        cr_expect_eq(plan(&a, &p), NDBUS_EUNSUPPORTED);
        a.codec = NULL;

        memset(name, 'x', sizeof(name));
        name[ND_NAME_BYTES_MAX] = '\0';
        a.name = name;
        cr_expect_eq(plan(&a, &p), 0);
        name[ND_NAME_BYTES_MAX] = 'x';
        name[ND_NAME_BYTES_MAX + 1] = '\0';
        cr_expect_eq(plan(&a, &p), NDBUS_EINVAL, "a long name");
        a.name = "\xff";
        cr_expect_eq(plan(&a, &p), NDBUS_EINVAL, "a name that is not UTF-8");
        a.name = NULL;
        a.n_fields = 1;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE, "fields of an integer");
}

static int plan_field(struct ndbus_field field)
{
        struct ndbus_array a = make("record", 1, SHAPE(2), NULL);
        struct nd_plan p;

        a.bits = 8 * 16;
        a.fields = &field;
        a.n_fields = 1;
        return plan(&a, &p);
}

#define FIELD(...) plan_field((struct ndbus_field){.name = "f", .dtype = "int32", __VA_ARGS__})

Test(layout, fields_lie_within_their_record)
{
        cr_expect_eq(FIELD(.offset = 0), 0);
        cr_expect_eq(FIELD(.offset = 12), 0);
        cr_expect_eq(FIELD(.offset = 13), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.offset = UINT64_MAX), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.offset = 16, .ndim = 1, .shape = SHAPE(0)), 0);
        cr_expect_eq(FIELD(.offset = 17, .ndim = 1, .shape = SHAPE(0)), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.ndim = 2, .shape = SHAPE(2, 2)), 0);
        cr_expect_eq(FIELD(.ndim = 2, .shape = SHAPE(2, 3)), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.ndim = 1, .shape = SHAPE(-1)), NDBUS_ESHAPE);
        cr_expect_eq(FIELD(.ndim = 65, .shape = SHAPE(1)), NDBUS_ESHAPE);
        cr_expect_eq(FIELD(.ndim = 2, .shape = SHAPE(INT64_C(1) << 33, INT64_C(1) << 33)),
                     NDBUS_ESHAPE);
        cr_expect_eq(FIELD(.ndim = 1, .shape = SHAPE(INT64_MAX)), NDBUS_EDTYPE);

        cr_expect_eq(FIELD(.flags = NDBUS_BIG_ENDIAN), 0);
        cr_expect_eq(FIELD(.flags = NDBUS_READ_ONLY), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.bits = 16), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.unit = "ns"), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.n_fields = 1), NDBUS_EDTYPE);
        cr_expect_eq(FIELD(.reserved = {0, 1}), NDBUS_EINVAL);

        cr_expect_eq(plan_field((struct ndbus_field){.name = "f"}), NDBUS_EDTYPE);
        cr_expect_eq(plan_field((struct ndbus_field){.dtype = "int8"}), NDBUS_EDTYPE);
        cr_expect_eq(plan_field((struct ndbus_field){.name = "", .dtype = "int8"}), NDBUS_EDTYPE);
        cr_expect_eq(plan_field((struct ndbus_field){.name = "f", .dtype = "object", .bits = 64}),
                     NDBUS_EDTYPE);
        cr_expect_eq(
                plan_field((struct ndbus_field){.name = "f", .dtype = "datetime64", .unit = "ns"}),
                0);
        cr_expect_eq(plan_field((struct ndbus_field){.name = "f", .dtype = "datetime64"}),
                     NDBUS_EDTYPE);

        /* within a record narrow elements take a byte each */
        cr_expect_eq(plan_field((struct ndbus_field){
                             .name = "f", .dtype = "int4", .ndim = 1, .shape = SHAPE(16)}),
                     0);
        cr_expect_eq(plan_field((struct ndbus_field){
                             .name = "f", .dtype = "int4", .ndim = 1, .shape = SHAPE(17)}),
                     NDBUS_EDTYPE);
}

Test(layout, fields_have_names_of_their_own)
{
        const struct ndbus_field fields[] = {
                {.name = "A", .dtype = "int8"},
                {.name = "B", .dtype = "int8"},
                {.name = "A", .dtype = "int8"},
        };
        struct ndbus_array a = make("record", 1, SHAPE(2), NULL);
        struct nd_fault fault;
        struct nd_plan p;

        a.bits = 8;
        a.fields = fields;
        a.n_fields = 2;
        cr_expect_eq(plan(&a, &p), 0);
        a.n_fields = 3;
        cr_expect_eq(nd_layout_plan(&a, "a", &p, &fault), NDBUS_EDTYPE);
        cr_expect_str_eq(fault.text, "two are called \"A\"");
}

Test(layout, fields_nest_and_are_counted_up_to_their_limits)
{
        static struct ndbus_field fields[ND_FIELDS_MAX + 1];
        static char names[ND_FIELDS_MAX + 1][8];
        struct ndbus_field nested[ND_FIELD_DEPTH_MAX + 1];
        struct ndbus_array a = make("record", 1, SHAPE(2), NULL);
        struct nd_plan p;

        a.bits = 8;
        a.fields = fields;
        for (uint32_t i = 0; i <= ND_FIELDS_MAX; ++i) {
                snprintf(names[i], sizeof(names[i]), "f%u", i);
                fields[i] = (struct ndbus_field){.name = names[i], .dtype = "int8"};
        }
        a.n_fields = ND_FIELDS_MAX;
        cr_expect_eq(plan(&a, &p), 0);
        a.n_fields = ND_FIELDS_MAX + 1;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);
        a.n_fields = UINT32_MAX;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);

        for (uint32_t i = 0; i <= ND_FIELD_DEPTH_MAX; ++i) {
                bool is_last = i == ND_FIELD_DEPTH_MAX;

                nested[i] = (struct ndbus_field){
                        .name = "n",
                        .dtype = is_last ? "int8" : "record",
                        .bits = 8,
                        .fields = is_last ? NULL : &nested[i + 1],
                        .n_fields = !is_last,
                };
        }
        a.n_fields = 1;
        a.fields = nested;
        cr_expect_eq(plan(&a, &p), NDBUS_EDTYPE);
        a.fields = nested + 1;
        cr_expect_eq(plan(&a, &p), 0);
}

Test(layout, frames_lie_at_multiples_of_64)
{
        struct nd_frame frames[] = {{.bytes = 1},  {.bytes = 0}, {.bytes = 64},
                                    {.bytes = 65}, {.bytes = 3}, {.bytes = 0}};
        static const uint64_t want[] = {0, 64, 64, 128, 256, 320};
        uint64_t body_bytes = 1;

        cr_assert_eq(nd_layout_place(frames, 6, &body_bytes, NULL), 0);
        for (size_t i = 0; i < 6; ++i)
                cr_expect_eq(frames[i].offset, want[i], "%zu", i);
        cr_expect_eq(body_bytes, 320u);
        cr_assert_eq(nd_layout_place(frames, 5, &body_bytes, NULL), 0);
        cr_expect_eq(body_bytes, 259u);
        cr_assert_eq(nd_layout_place(NULL, 0, &body_bytes, NULL), 0);
        cr_expect_eq(body_bytes, 0u);
}

Test(layout, a_body_ends_at_its_limit)
{
        struct nd_frame frames[] = {{.bytes = ND_BODY_BYTES_MAX - 64}, {.bytes = 64}};
        uint64_t body_bytes = 1;
        struct nd_fault fault;

        cr_expect_eq(nd_layout_place(frames, 2, &body_bytes, NULL), 0);
        cr_expect_eq(body_bytes, ND_BODY_BYTES_MAX);
        body_bytes = 1;
        frames[1].bytes = 65;
        cr_expect_eq(nd_layout_place(frames, 2, &body_bytes, &fault), NDBUS_ETOO_BIG);
        cr_expect_str_eq(fault.field, "frames[1].bytes");
        frames[1].bytes = UINT64_MAX;
        cr_expect_eq(nd_layout_place(frames, 2, &body_bytes, NULL), NDBUS_ETOO_BIG);
        cr_expect_eq(body_bytes, 1u);
}

Test(layout, overlaps)
{
        static const struct {
                const char *name;
                int32_t ndim;
                int64_t shape[3], strides[3];
                bool want;
        } rows[] = {
                {"C", 2, {2, 3}, {12, 4}, false},
                {"F", 2, {2, 3}, {4, 8}, false},
                {"gaps", 2, {2, 3}, {100, 8}, false},
                {"broadcast", 2, {2, 3}, {0, 4}, true},
                {"an axis of 1 with stride 0", 2, {1, 3}, {0, 4}, false},
                {"windows", 2, {3, 3}, {4, 4}, true},
                {"half elements", 1, {3}, {2}, true},
                {"one byte short", 2, {2, 3}, {11, 4}, true},
                {"empty", 2, {0, 3}, {0, 0}, false},
                {"broadcast scalar", 1, {2}, {0}, true},
        };
        struct ndbus_array a;

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                a = make("float32", rows[i].ndim, rows[i].shape, rows[i].strides);
                cr_expect_eq(nd_layout_overlaps(&a), rows[i].want, "%s", rows[i].name);
        }
        a = make("float32", 1, SHAPE(3), NULL);
        cr_expect(!nd_layout_overlaps(&a));
        a = make("int4", 1, SHAPE(3), SHAPE(1));
        a.flags = NDBUS_SUBBYTE_PADDED;
        cr_expect(!nd_layout_overlaps(&a));
}

Test(layout, bits)
{
        struct ndbus_array a = make("float32", 0, NULL, NULL);

        cr_expect_eq(nd_layout_bits(&a), 32u);
        a.lanes = 4;
        cr_expect_eq(nd_layout_bits(&a), 128u);
        a = make("bytes", 0, NULL, NULL);
        a.bits = 24;
        cr_expect_eq(nd_layout_bits(&a), 24u);
        a = make(NULL, 1, SHAPE(3), NULL);
        cr_expect_eq(nd_layout_bits(&a), 8u);
}
