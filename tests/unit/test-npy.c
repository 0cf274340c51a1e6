/* SPDX-License-Identifier: MIT */

/*
 * .npy
 *
 * Headers are given as the text of the dict; lead and padding are put around it as NumPy does. What
 * NumPy itself makes of our files is judged by integration/numpy-judge.py, not here.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "client/command/npy.h"
#include "protocol/byteorder.h"
#include "protocol/layout.h"

struct file {
        uint8_t *bytes;
        size_t n;
};

/* A file of the version, the dict, and n_data bytes 0, 1, 2 ... */
static struct file make_file(unsigned version, const char *dict, size_t n_data)
{
        size_t n_lead = version == 1 ? 10 : 12, n_dict = strlen(dict);
        size_t n_header = (n_lead + n_dict + 1 + 63) / 64 * 64;
        struct file f = {malloc(n_header + n_data), n_header + n_data};

        cr_assert_not_null(f.bytes);
        memcpy(f.bytes, "\x93NUMPY", 6);
        f.bytes[6] = (uint8_t)version;
        f.bytes[7] = 0;
        if (version == 1)
                nd_store_le16(f.bytes + 8, (uint16_t)(n_header - n_lead));
        else
                nd_store_le32(f.bytes + 8, (uint32_t)(n_header - n_lead));
        memset(f.bytes + n_lead, ' ', n_header - n_lead);
        memcpy(f.bytes + n_lead, dict, n_dict);
        f.bytes[n_header - 1] = '\n';
        for (size_t i = 0; i < n_data; ++i)
                f.bytes[n_header + i] = (uint8_t)i;
        return f;
}

static struct nd_npy *read_ok(const struct file *f)
{
        struct nd_fault fault = {.code = 0};
        struct nd_npy *npy = NULL;
        struct nd_plan plan;
        int r = nd_npy_read(f->bytes, f->n, &npy, &fault);

        cr_assert_eq(r, 0, "%s: %s", fault.field, fault.text);
        /* whatever is read can be sent */
        r = nd_layout_plan(&npy->array, "array", &plan, &fault);
        cr_assert_eq(r, 0, "%s: %s", fault.field, fault.text);
        return npy;
}

Test(npy, reads_scalar_dtypes)
{
        static const struct {
                const char *descr, *dtype;
                uint32_t bits, flags;
                const char *unit;
                uint32_t unit_count;
        } cases[] = {
                {"|b1", "bool", 8, 0, NULL, 0},
                {"|i1", "int8", 8, 0, NULL, 0},
                {"<i2", "int16", 16, 0, NULL, 0},
                {">i4", "int32", 32, NDBUS_BIG_ENDIAN, NULL, 0},
                {"<i8", "int64", 64, 0, NULL, 0},
                {"|u1", "uint8", 8, 0, NULL, 0},
                {">u1", "uint8", 8, 0, NULL, 0},
                {"<u2", "uint16", 16, 0, NULL, 0},
                {"<u4", "uint32", 32, 0, NULL, 0},
                {">u8", "uint64", 64, NDBUS_BIG_ENDIAN, NULL, 0},
                {"<f2", "float16", 16, 0, NULL, 0},
                {"<f4", "float32", 32, 0, NULL, 0},
                {">f8", "float64", 64, NDBUS_BIG_ENDIAN, NULL, 0},
                {"=f8", "float64", 64, 0, NULL, 0},
                {"f8", "float64", 64, 0, NULL, 0},
                {"<c8", "complex64", 64, 0, NULL, 0},
                {">c16", "complex128", 128, NDBUS_BIG_ENDIAN, NULL, 0},
                {"|S5", "bytes", 40, 0, NULL, 0},
                {"<U3", "ucs4", 96, 0, NULL, 0},
                {">U3", "ucs4", 96, NDBUS_BIG_ENDIAN, NULL, 0},
                {"|V12", "opaque", 96, 0, NULL, 0},
                {"<V2", "opaque", 16, 0, NULL, 0},
                {"<M8[ns]", "datetime64", 64, 0, "ns", 1},
                {">M8[25us]", "datetime64", 64, NDBUS_BIG_ENDIAN, "us", 25},
                {"<m8[D]", "timedelta64", 64, 0, "D", 1},
                {"<m8", "timedelta64", 64, 0, "generic", 1},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                char dict[160];
                struct file f;
                struct nd_npy *npy;

                snprintf(dict, sizeof(dict),
                         "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }",
                         cases[i].descr);
                f = make_file(1, dict, 6 * cases[i].bits / 8);
                npy = read_ok(&f);
                cr_expect_str_eq(npy->array.dtype, cases[i].dtype, "%s", cases[i].descr);
                cr_expect_eq(npy->array.bits, cases[i].bits, "%s", cases[i].descr);
                cr_expect_eq(npy->array.flags, cases[i].flags, "%s", cases[i].descr);
                cr_expect_eq(npy->array.unit_count, cases[i].unit_count, "%s", cases[i].descr);
                if (cases[i].unit)
                        cr_expect_str_eq(npy->array.unit, cases[i].unit, "%s", cases[i].descr);
                cr_expect_eq(npy->array.ndim, 2);
                cr_expect_eq(npy->array.shape[1], 3);
                cr_expect_null(npy->array.strides);
                cr_expect_eq(npy->data_bytes, 6 * cases[i].bits / 8);
                cr_expect_eq(npy->file_bytes, f.n);
                cr_expect_eq((const uint8_t *)npy->array.data, f.bytes + npy->data_offset);
                nd_npy_free(npy);
                free(f.bytes);
        }
}

Test(npy, reads_shapes_and_orders)
{
        static const struct {
                const char *shape;
                bool fortran;
                int32_t ndim;
                int64_t dims[4];
                int64_t strides[4]; /* 0: none */
                size_t n_data;
        } cases[] = {
                {"()", false, 0, {0}, {0}, 4},
                {"()", true, 0, {0}, {0}, 4},
                {"(3,)", false, 1, {3}, {0}, 12},
                {"(3,)", true, 1, {3}, {0}, 12},
                {"(3L,)", false, 1, {3}, {0}, 12},
                {"(2,3)", true, 2, {2, 3}, {4, 8}, 24},
                {"( 2 , 3 , 4 , )", true, 3, {2, 3, 4}, {4, 8, 24}, 96},
                {"(0,)", false, 1, {0}, {0}, 0},
                {"(3, 0, 5)", true, 3, {3, 0, 5}, {0}, 0},
                {"(0, 9000000000000)", false, 2, {0, 9000000000000}, {0}, 0},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                char dict[160];
                struct file f;
                struct nd_npy *npy;

                snprintf(dict, sizeof(dict), "{'shape': %s, 'descr': '<f4', 'fortran_order': %s}",
                         cases[i].shape, cases[i].fortran ? "True" : "False");
                f = make_file(1 + (unsigned)i % 3, dict, cases[i].n_data);
                npy = read_ok(&f);
                cr_assert_eq(npy->array.ndim, cases[i].ndim, "%s", cases[i].shape);
                cr_expect_eq(npy->array.strides != NULL, cases[i].strides[0] != 0);
                for (int32_t k = 0; k < npy->array.ndim; ++k) {
                        cr_expect_eq(npy->array.shape[k], cases[i].dims[k], "%s", cases[i].shape);
                        if (npy->array.strides)
                                cr_expect_eq(npy->array.strides[k], cases[i].strides[k]);
                }
                cr_expect_eq(npy->data_bytes, cases[i].n_data);
                nd_npy_free(npy);
                free(f.bytes);
        }
}

/* T10: what lies between fields is kept, and padding is no field. */
Test(npy, reads_records)
{
        struct file f = make_file(
                1,
                "{'descr': [('A', '<f4'), ('', '|V4'), (('a title', 'B'), '>i2', (2, 3)), "
                "('in', [('x', '|u1'), ('', '|V1'), ('t', '<M8[ms]')], (2,)), ('s', '<U2', 3), "
                "('', '|V3')], 'fortran_order': False, 'shape': (2,), }",
                2 * (4 + 4 + 12 + 20 + 24 + 3));
        struct nd_npy *npy = read_ok(&f);
        const struct ndbus_field *fields = npy->array.fields;

        cr_assert_str_eq(npy->array.dtype, "record");
        cr_assert_eq(npy->array.bits, 8 * 67);
        cr_assert_eq(npy->array.n_fields, 4);
        cr_expect(npy->has_titles);

        cr_expect_str_eq(fields[0].name, "A");
        cr_expect_eq(fields[0].offset, 0);
        cr_expect_str_eq(fields[1].name, "B");
        cr_expect_eq(fields[1].offset, 8);
        cr_expect_eq(fields[1].flags, NDBUS_BIG_ENDIAN);
        cr_assert_eq(fields[1].ndim, 2);
        cr_expect_eq(fields[1].shape[0], 2);
        cr_expect_eq(fields[1].shape[1], 3);
        cr_expect_eq(fields[2].offset, 20);
        cr_expect_eq(fields[2].bits, 80);
        cr_expect_eq(fields[2].ndim, 1);
        cr_assert_eq(fields[2].n_fields, 2);
        cr_expect_str_eq(fields[2].fields[1].name, "t");
        cr_expect_eq(fields[2].fields[1].offset, 2);
        cr_expect_str_eq(fields[2].fields[1].unit, "ms");
        cr_expect_eq(fields[3].offset, 40);
        cr_expect_eq(fields[3].ndim, 1);
        cr_expect_eq(fields[3].shape[0], 3);
        nd_npy_free(npy);
        free(f.bytes);
}

Test(npy, reads_names_in_every_encoding)
{
        static const struct {
                unsigned version;
                const char *literal, *want;
        } cases[] = {
                {1, "'\xb5m'", "\xc2\xb5m"}, /* Latin-1 */
                {2, "\"it's\"", "it's"},
                {3, "'\xe6\x97\xa5'", "\xe6\x97\xa5"}, /* UTF-8 */
                {1, "'\\x41\\u65e5\\U0001f600'", "A\xe6\x97\xa5\xf0\x9f\x98\x80"},
                {1, "'a\\\\\\'\\t'", "a\\'\t"},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                char dict[160];
                struct file f;
                struct nd_npy *npy;

                snprintf(dict, sizeof(dict),
                         "{'descr': [(%s, '<f4')], 'fortran_order': False, 'shape': ()}",
                         cases[i].literal);
                f = make_file(cases[i].version, dict, 4);
                npy = read_ok(&f);
                cr_expect_str_eq(npy->array.fields[0].name, cases[i].want, "case %zu", i);
                nd_npy_free(npy);
                free(f.bytes);
        }
}

#define ORDER_SHAPE "'fortran_order': False, 'shape': (1,)"

Test(npy, refuses_what_is_wrong_and_leaves_the_result_alone)
{
        static const struct {
                const char *dict;
                int want;
                const char *says;
        } cases[] = {
                {"{'descr': '|O', " ORDER_SHAPE "}", NDBUS_EDTYPE, "pickled"}, /* T19 */
                {"{'descr': '|O8', " ORDER_SHAPE "}", NDBUS_EDTYPE, "pickled"},
                {"{'descr': [('a', '|O')], " ORDER_SHAPE "}", NDBUS_EDTYPE, "pickled"},
                {"{'descr': '<f16', " ORDER_SHAPE "}", NDBUS_EDTYPE, "long double"},
                {"{'descr': '<c32', " ORDER_SHAPE "}", NDBUS_EDTYPE, "long double"},
                {"{'descr': '|S0', " ORDER_SHAPE "}", NDBUS_EDTYPE, "no bytes"},
                {"{'descr': '|V0', " ORDER_SHAPE "}", NDBUS_EDTYPE, "no bytes"},
                {"{'descr': '<f3', " ORDER_SHAPE "}", NDBUS_EDTYPE, "knows"},
                {"{'descr': '', " ORDER_SHAPE "}", NDBUS_EDTYPE, "no dtype"},
                {"{'descr': '<', " ORDER_SHAPE "}", NDBUS_EDTYPE, "no dtype"},
                {"{'descr': '<f', " ORDER_SHAPE "}", NDBUS_EDTYPE, "no dtype"},
                {"{'descr': '<f8x', " ORDER_SHAPE "}", NDBUS_EDTYPE, "more behind"},
                {"{'descr': '<f99999999999', " ORDER_SHAPE "}", NDBUS_EDTYPE, "no dtype"},
                {"{'descr': '|S4294967295', " ORDER_SHAPE "}", NDBUS_EDTYPE, "wider"},
                {"{'descr': '<U1073741824', " ORDER_SHAPE "}", NDBUS_EDTYPE, "wider"},
                {"{'descr': '<M8[0s]', " ORDER_SHAPE "}", NDBUS_EDTYPE, "unit"},
                {"{'descr': '<M8[fortnight]', " ORDER_SHAPE "}", NDBUS_EDTYPE, "unit"},
                {"{'descr': '<M8[s', " ORDER_SHAPE "}", NDBUS_EDTYPE, "unit"},
                {"{'descr': [], " ORDER_SHAPE "}", NDBUS_EDTYPE, "without fields"},
                {"{'descr': [('', '|V4')], " ORDER_SHAPE "}", NDBUS_EDTYPE, "without fields"},
                {"{'descr': [('', '<f4')], " ORDER_SHAPE "}", NDBUS_EDTYPE, "no name"},
                {"{'descr': [('a', '<f4'), ('a', '<f4')], " ORDER_SHAPE "}", NDBUS_EDTYPE, "twice"},
                {"{'descr': [('a', '|S400000000'), ('b', '|S400000000')], " ORDER_SHAPE "}",
                 NDBUS_EDTYPE, "wider"},
                {"{'descr': [('a', '<f8', (4294967296, 4294967296))], " ORDER_SHAPE "}",
                 NDBUS_EDTYPE, "wider"},
                {"{'descr': [('a',)], " ORDER_SHAPE "}", NDBUS_ECORRUPT, "a field"},
                {"{'descr': [('a', '<f4', 1, 2)], " ORDER_SHAPE "}", NDBUS_ECORRUPT, "a field"},
                {"{'descr': 8, " ORDER_SHAPE "}", NDBUS_ECORRUPT, "a dtype string"},
                {"{'descr': None, " ORDER_SHAPE "}", NDBUS_ECORRUPT, "a value"},
                {"{'descr': '<f4', 'shape': (1,)}", NDBUS_ECORRUPT, "missing"},
                {"{'descr': '<f4', 'descr': '<f4', " ORDER_SHAPE "}", NDBUS_ECORRUPT, "twice"},
                {"{'descr': '<f4', 'x': 1, " ORDER_SHAPE "}", NDBUS_ECORRUPT, "none of"},
                {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", NDBUS_ECORRUPT, "True or"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': 1}", NDBUS_ECORRUPT, "a tuple"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (1)}", NDBUS_ECORRUPT, "comma"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': [1]}", NDBUS_ECORRUPT, "tuple"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", NDBUS_ESHAPE,
                 "negative"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}", NDBUS_ECORRUPT,
                 "comma"},
                {"{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
                 NDBUS_ESHAPE, "2^63"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}",
                 NDBUS_ECORRUPT, "64 bits"},
                {"{'descr': '<f4', " ORDER_SHAPE "} 1", NDBUS_ECORRUPT, "the end"},
                {"{'descr': '<f4', " ORDER_SHAPE, NDBUS_ECORRUPT, "ends where"},
                {"{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", NDBUS_ECORRUPT, "comma"},
                {"{'descr': open('/etc/passwd'), " ORDER_SHAPE "}", NDBUS_ECORRUPT, "a value"},
                {"{'descr': '<f4\\q', " ORDER_SHAPE "}", NDBUS_ECORRUPT, "escape"},
                {"{'descr': '<f4\\x00', " ORDER_SHAPE "}", NDBUS_ECORRUPT, "NUL"},
                {"{'descr': '<f4\\ud800', " ORDER_SHAPE "}", NDBUS_ECORRUPT, "surrogates"},
                {"'descr'", NDBUS_ECORRUPT, "a dict"},
                {"", NDBUS_ECORRUPT, "ends where"},
                {"((((((((((((((((((((((((((((((((((((((((", NDBUS_ELIMIT, "levels"},
                /* T17: more dimensions than there may be, and a file that is not that long */
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                 "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                 "1,1,1,1,1,1,1)}",
                 NDBUS_ESHAPE, "64"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}",
                 NDBUS_ETRUNCATED, "want 4000000000000"},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                struct nd_npy *npy = (struct nd_npy *)(void *)&i;
                struct nd_fault fault = {.code = 0};
                struct file f = make_file(1, cases[i].dict, 8);
                int r = nd_npy_read(f.bytes, f.n, &npy, &fault);

                cr_expect_eq(r, cases[i].want, "%s: %d, %s: %s", cases[i].dict, r, fault.field,
                             fault.text);
                cr_expect_not_null(strstr(fault.text, cases[i].says), "%s: %s: %s", cases[i].dict,
                                   fault.field, fault.text);
                cr_expect_eq((void *)npy, (void *)&i);
                free(f.bytes);
        }
}

Test(npy, is_truncated_at_every_shorter_length)
{
        struct file f =
                make_file(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }", 16);

        for (size_t n = 6; n < f.n; ++n) {
                uint8_t *exact = malloc(n);
                struct nd_fault fault;
                struct nd_npy *npy = NULL;

                memcpy(exact, f.bytes, n);
                cr_expect_eq(nd_npy_read(exact, n, &npy, &fault), NDBUS_ETRUNCATED, "n=%zu", n);
                free(exact);
        }
        free(f.bytes);
}

Test(npy, knows_its_versions)
{
        struct file f = make_file(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (), }", 4);
        struct nd_npy *npy = NULL;

        for (unsigned v = 0; v < 256; ++v) {
                f.bytes[6] = (uint8_t)v;
                if (v < 1 || v > 3)
                        cr_expect_eq(nd_npy_read(f.bytes, f.n, &npy, NULL), NDBUS_EUNSUPPORTED);
        }
        f.bytes[6] = 1;
        f.bytes[7] = 1;
        cr_expect_eq(nd_npy_read(f.bytes, f.n, &npy, NULL), NDBUS_EUNSUPPORTED);
        f.bytes[0] = 'P';
        cr_expect_eq(nd_npy_read(f.bytes, f.n, &npy, NULL), NDBUS_ECORRUPT);
        free(f.bytes);
}

/* Writes the array to memory and hands out the file's bytes. */
static struct file write_array(const struct ndbus_array *array, char *ret_note)
{
        int fd = memfd_create("test-npy", MFD_CLOEXEC);
        struct nd_fault fault = {.code = 0};
        struct nd_npy_plan plan;
        struct file f;
        off_t n;

        cr_assert_geq(fd, 0);
        cr_assert_eq(nd_npy_plan(array, &plan, &fault), 0, "%s", fault.text);
        cr_assert_eq(nd_npy_write(fd, array, &plan, &fault), 0, "%s", fault.text);
        n = lseek(fd, 0, SEEK_CUR);
        f = (struct file){malloc((size_t)n), (size_t)n};
        cr_assert_eq(pread(fd, f.bytes, f.n, 0), n);
        cr_expect_eq(plan.n_header % 64, 0);
        cr_expect_eq(f.n, plan.n_header + plan.data_bytes);
        if (ret_note)
                strcpy(ret_note, plan.note);
        nd_npy_plan_deinit(&plan);
        close(fd);
        return f;
}

Test(npy, writes_what_it_read)
{
        static const char *const dicts[] = {
                "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 6), }",
                "{'descr': '>f4', 'fortran_order': True, 'shape': (4, 6), }",
                "{'descr': '<M8[25us]', 'fortran_order': False, 'shape': (12,), }",
                "{'descr': '<m8', 'fortran_order': False, 'shape': (12,), }",
                "{'descr': '<c16', 'fortran_order': True, 'shape': (2, 3), }",
                "{'descr': '|S96', 'fortran_order': False, 'shape': (), }",
                "{'descr': '>U8', 'fortran_order': False, 'shape': (3,), }",
                "{'descr': '|V32', 'fortran_order': False, 'shape': (3, 1), }",
                "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 96), }",
                ("{'descr': [('A', '<f4'), ('', '|V4'), ('B', '>i2', (2, 3)), ('in', [('x', '|u1'), "
                 "('', '|V1'), ('t', '<M8[ms]')]), ('', '|V2')], 'fortran_order': False, "
                 "'shape': (3,), }"),
                ("{'descr': [('\\xb5\\'', '|V16'), ('\\u65e5', '<f8', (2,))], 'fortran_order': True, "
                 "'shape': (3, 1), }"),
        };

        for (size_t i = 0; i < nd_array_size(dicts); ++i) {
                struct file f = make_file(1, dicts[i], 96);
                struct nd_npy *npy = read_ok(&f), *again;
                char note[160];
                struct file g = write_array(&npy->array, note);

                cr_expect_str_eq(note, "", "%s", dicts[i]);
                again = read_ok(&g);
                /* (3, 1) in Fortran order is C order too, and written so */
                if (!strstr(dicts[i], "True") || !strstr(dicts[i], "(3, 1)"))
                        cr_expect(f.n == g.n && memcmp(f.bytes, g.bytes, f.n) == 0, "%s gave %.*s",
                                  dicts[i], (int)(g.n - 96 - 10), g.bytes + 10);
                cr_expect_arr_eq(f.bytes + f.n - 96, g.bytes + g.n - 96, 96);
                nd_npy_free(again);
                nd_npy_free(npy);
                free(f.bytes);
                free(g.bytes);
        }
}

static void expect_header(const struct ndbus_array *array, const char *dict, const char *note)
{
        char got_note[160];
        struct file f = write_array(array, got_note);

        cr_expect_eq(memcmp(f.bytes + 10, dict, strlen(dict)), 0, "%.*s, not %s", 100, f.bytes + 10,
                     dict);
        cr_expect_str_eq(got_note, note);
        free(f.bytes);
}

Test(npy, writes_as_opaque_what_it_cannot_say)
{
        static const uint8_t bytes[64];
        static const int64_t six[] = {6}, odd[] = {3, 3}, two[] = {2};
        const struct ndbus_field overlapping[] = {
                {.name = "a", .offset = 0, .dtype = "uint32", .bits = 32},
                {.name = "b", .offset = 2, .dtype = "uint32", .bits = 32},
        };
        const struct ndbus_field brain[] = {
                {.name = "a", .offset = 2, .dtype = "bfloat16", .bits = 16},
        };

        expect_header(
                &(struct ndbus_array){.data = bytes, .dtype = "bfloat16", .ndim = 1, .shape = six},
                "{'descr': '|V2', 'fortran_order': False, 'shape': (6,), }",
                "bfloat16 written as |V2");
        expect_header(&(struct ndbus_array){.data = bytes,
                                            .dtype = "float8_e4m3fn",
                                            .bits = 8,
                                            .ndim = 1,
                                            .shape = six},
                      "{'descr': '|V1', 'fortran_order': False, 'shape': (6,), }",
                      "float8_e4m3fn written as |V1");
        expect_header(
                &(struct ndbus_array){
                        .data = bytes, .dtype = "int4", .bits = 4, .ndim = 2, .shape = odd},
                "{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }",
                "packed int4 written as the bytes that hold it");
        expect_header(&(struct ndbus_array){.data = bytes,
                                            .dtype = "int4",
                                            .bits = 4,
                                            .ndim = 1,
                                            .shape = six,
                                            .flags = NDBUS_SUBBYTE_PADDED},
                      "{'descr': '|V1', 'fortran_order': False, 'shape': (6,), }",
                      "int4 written as |V1");
        expect_header(&(struct ndbus_array){.data = bytes, .ndim = 1, .shape = six},
                      "{'descr': '|u1', 'fortran_order': False, 'shape': (6,), }",
                      "raw bytes written as uint8");
        expect_header(&(struct ndbus_array){.data = bytes,
                                            .dtype = "float32",
                                            .bits = 32,
                                            .lanes = 4,
                                            .ndim = 1,
                                            .shape = two},
                      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", "");
        expect_header(&(struct ndbus_array){.data = bytes,
                                            .dtype = "record",
                                            .bits = 48,
                                            .ndim = 1,
                                            .shape = two,
                                            .fields = overlapping,
                                            .n_fields = 2},
                      "{'descr': '|V6', 'fortran_order': False, 'shape': (2,), }",
                      "record whose offsets .npy cannot say written as |V6");
        expect_header(&(struct ndbus_array){.data = bytes,
                                            .dtype = "record",
                                            .bits = 48,
                                            .ndim = 1,
                                            .shape = two,
                                            .fields = brain,
                                            .n_fields = 1},
                      "{'descr': [('', '|V2'), ('a', '|V2'), ('', '|V2')], 'fortran_order': False, "
                      "'shape': (2,), }",
                      "fields that .npy has no dtype for written as |V");
}

Test(npy, gathers_other_orders)
{
        /* 2 x 3 x 4 of uint16, element value = its place in memory */
        uint16_t memory[24];

        static const struct {
                const char *what;
                int64_t shape[3], strides[3];
                int offset;
        } cases[] = {
                {"axes 1, 2, 0", {3, 4, 2}, {8, 2, 24}, 0},
                {"reversed", {2, 3, 4}, {-24, -8, -2}, 23},
                {"every second", {2, 3, 2}, {24, 8, 4}, 0},
                {"broadcast", {5, 3, 4}, {0, 8, 2}, 12},
        };

        for (size_t i = 0; i < 24; ++i)
                memory[i] = (uint16_t)i;
        for (size_t c = 0; c < nd_array_size(cases); ++c) {
                const int64_t *shape = cases[c].shape, *strides = cases[c].strides;
                struct ndbus_array array = {.data = memory + cases[c].offset,
                                            .dtype = "uint16",
                                            .bits = 16,
                                            .ndim = 3,
                                            .shape = shape,
                                            .strides = strides};
                struct file f = write_array(&array, NULL);
                struct nd_npy *npy = read_ok(&f);
                const uint8_t *p = npy->array.data;

                cr_assert_eq(npy->data_bytes, (uint64_t)(2 * shape[0] * shape[1] * shape[2]));
                for (int64_t i = 0; i < shape[0]; ++i)
                        for (int64_t j = 0; j < shape[1]; ++j)
                                for (int64_t k = 0; k < shape[2]; ++k, p += 2)
                                        cr_expect_eq(nd_load_le16(p),
                                                     cases[c].offset +
                                                             (i * strides[0] + j * strides[1] +
                                                              k * strides[2]) /
                                                                     2,
                                                     "%s", cases[c].what);
                nd_npy_free(npy);
                free(f.bytes);
        }
}

Test(npy, writes_headers_longer_than_64_kib_as_version_2)
{
        enum {
                N = 1000
        };
        struct ndbus_field *fields = calloc(N, sizeof(*fields));
        char(*names)[100] = calloc(N, sizeof(*names));
        static const int64_t shape[] = {0};
        struct ndbus_array array = {.dtype = "record",
                                    .bits = 8 * N,
                                    .ndim = 1,
                                    .shape = shape,
                                    .fields = fields,
                                    .n_fields = N};
        struct nd_npy *npy;
        struct file f;

        for (size_t i = 0; i < N; ++i) {
                snprintf(names[i], sizeof(names[i]), "%090zu", i);
                fields[i] = (struct ndbus_field){
                        .name = names[i], .offset = i, .dtype = "uint8", .bits = 8};
        }
        f = write_array(&array, NULL);
        cr_expect_eq(f.bytes[6], 2);
        npy = read_ok(&f);
        cr_assert_eq(npy->array.n_fields, N);
        cr_expect_str_eq(npy->array.fields[N - 1].name, names[N - 1]);
        nd_npy_free(npy);
        free(f.bytes);
        free(fields);
        free(names);
}
