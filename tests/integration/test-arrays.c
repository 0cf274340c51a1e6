/* SPDX-License-Identifier: MIT */

/*
 * Arrays arrive as they were
 *
 * Published by the library, routed by the daemon, received by the library, over every transport:
 * description, layout, and every byte. Arrays that lie densely, in whatever order of axes, keep
 * their memory as it is; others keep their elements.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "client/dlpack.h"
#include "tests/support/client.h"
#include "tests/support/pattern.h"

#define FRAMES_N 1000u

struct row {
        const char *name;
        struct ndbus_array array;
        size_t n_bytes; /* of the body */
};

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define HEX(...)  ((const uint8_t[]){__VA_ARGS__})

static const struct ndbus_field record_fields[] = {
        {.name = "A", .offset = 0, .dtype = "float32", .bits = 32},
        {.name = "B", .offset = 8, .dtype = "float32", .bits = 32},
};

/* Dense ones: what lies in memory arrives as it is. */
static const struct row rows[] = {
        {"T01 float32",
         {.data = HEX(0, 0, 0xc0, 0x3f, 0, 0, 0x10, 0xc0, 0, 0, 0x40, 0x40),
          .dtype = "float32",
          .ndim = 1,
          .shape = DIMS(3)},
         12},
        {"T02 Fortran order",
         {.data = HEX(0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0),
          .dtype = "int32",
          .ndim = 2,
          .shape = DIMS(2, 3),
          .strides = DIMS(4, 8)},
         24},
        {"T03 big-endian",
         {.data = HEX(0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0x3f,
                      0xf0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0x3f,
                      0xd9,
                      0x99,
                      0x99,
                      0x99,
                      0x99,
                      0x99,
                      0x9a,
                      0x40,
                      0x16,
                      0xcc,
                      0xcc,
                      0xcc,
                      0xcc,
                      0xcc,
                      0xcd),
          .dtype = "float64",
          .ndim = 1,
          .flags = NDBUS_BIG_ENDIAN,
          .shape = DIMS(4)},
         32},
        {"T04 bfloat16",
         {.data = HEX(0, 0, 0x80, 0x3f, 0, 0x40, 0x40, 0x40, 0xc0, 0xbf, 0x20, 0x3e),
          .dtype = "bfloat16",
          .ndim = 1,
          .shape = DIMS(6)},
         12},
        {"T05 float8_e4m3fn",
         {.data = HEX(0x3c), .dtype = "float8_e4m3fn", .ndim = 1, .shape = DIMS(1)},
         1},
        {"T05 float8_e5m2",
         {.data = HEX(0x3e), .dtype = "float8_e5m2", .ndim = 1, .shape = DIMS(1)},
         1},
        {"T07 bool", {.data = HEX(1, 0, 1), .dtype = "bool", .ndim = 1, .shape = DIMS(3)}, 3},
        {"T07 uint8", {.data = HEX(1, 0, 1), .dtype = "uint8", .ndim = 1, .shape = DIMS(3)}, 3},
        {"T08 complex64",
         {.data = HEX(0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0, 0xbf, 0, 0, 0x80, 0xc0),
          .dtype = "complex64",
          .ndim = 1,
          .shape = DIMS(2)},
         16},
        {"T09 datetime64[ns]",
         {.data = HEX(0, 0xbb, 0x66, 0x10, 0xda, 0xbf, 0xed, 0x13, 0, 0, 0, 0, 0, 0, 0, 0x80),
          .dtype = "datetime64",
          .ndim = 1,
          .shape = DIMS(2),
          .unit = "ns",
          .unit_count = 1},
         16},
        {"T10 record",
         {.data = HEX(0,
                      0,
                      0x80,
                      0x3f,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0x40,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0x40,
                      0x40,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0,
                      0x80,
                      0x40,
                      0,
                      0,
                      0,
                      0),
          .dtype = "record",
          .bits = 128,
          .ndim = 1,
          .shape = DIMS(2),
          .fields = record_fields,
          .n_fields = 2},
         32},
        {"T11 no dimensions",
         {.data = HEX(0, 0, 0xe0, 0x40), .dtype = "float32", .name = "seven"},
         4},
        {"T12 (0, 3)", {.dtype = "float32", .ndim = 2, .shape = DIMS(0, 3)}, 0},
        {"T12 (2, 0)", {.dtype = "float32", .ndim = 2, .shape = DIMS(2, 0)}, 0},
        {"T12 (3, 0, 5)", {.dtype = "float32", .ndim = 3, .shape = DIMS(3, 0, 5)}, 0},
        {"T12 T01 right after them",
         {.data = HEX(0, 0, 0xc0, 0x3f, 0, 0, 0x10, 0xc0, 0, 0, 0x40, 0x40),
          .dtype = "float32",
          .ndim = 1,
          .shape = DIMS(3)},
         12},
        {"raw bytes", {.data = HEX(1, 2, 3, 4, 5), .ndim = 1, .shape = DIMS(5)}, 5},
        {"no raw bytes", {.data = HEX(0), .ndim = 1, .shape = DIMS(0)}, 0},
        {"middle axis last",
         {.data = HEX(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
          .dtype = "int8",
          .ndim = 3,
          .shape = DIMS(2, 3, 2),
          .strides = DIMS(6, 1, 3)},
         12},
        {"int4, packed",
         {.data = HEX(0x21, 0x43, 0x05), .dtype = "int4", .bits = 4, .ndim = 1, .shape = DIMS(5)},
         3},
        {"int4, padded",
         {.data = HEX(1, 2, 3),
          .dtype = "int4",
          .bits = 4,
          .ndim = 1,
          .flags = NDBUS_SUBBYTE_PADDED,
          .shape = DIMS(3)},
         3},
        {"lanes",
         {.data = HEX(0, 0, 0xc0, 0x3f, 0, 0, 0x10, 0xc0, 0, 0, 0x40, 0x40, 0, 0, 0, 0),
          .dtype = "float32",
          .lanes = 2,
          .ndim = 1,
          .shape = DIMS(2)},
         16},
        {"fixed-length text",
         {.data = HEX('a', 0, 0, 0, 0xac, 0x20, 0, 0),
          .dtype = "ucs4",
          .bits = 64,
          .ndim = 1,
          .shape = DIMS(1)},
         8},
        {"read-only",
         {.data = HEX(9), .dtype = "uint8", .ndim = 1, .flags = NDBUS_READ_ONLY, .shape = DIMS(1)},
         1},
};
#define ROWS_N (sizeof(rows) / sizeof(*rows))

/* A publisher, and a subscriber of everything. */
struct pair {
        const struct nd_transport *transport;
        struct nd_harness *harness;
        struct ndbus *publisher;
        struct ndbus *subscriber;
};

static struct pair pair_open(const struct nd_transport *transport)
{
        struct pair p = {.transport = transport, .harness = nd_harness_start(NULL)};

        p.publisher = nd_client_open(p.harness, transport, NULL);
        p.subscriber = nd_client_open(p.harness, transport, NULL);
        nd_client_subscribe(p.subscriber, "**", NULL);
        return p;
}

static void pair_close(struct pair *p)
{
        nd_client_close(p->publisher);
        nd_client_close(p->subscriber);
        nd_harness_stop(p->harness);
}

/* Where memory is shared arrays are written in place, if they can be: all bytes of each, one after
 * another. */
static int publish_in_place(struct ndbus *bus,
                            const char *topic,
                            const struct ndbus_array *arrays,
                            const size_t *n_bytes,
                            size_t n)
{
        struct ndbus_array *loaned = calloc(n, sizeof(*loaned));
        struct ndbus_loan *loan;
        int r;

        cr_assert(loaned);
        memcpy(loaned, arrays, n * sizeof(*loaned));
        r = ndbus_loan(bus, loaned, n, &loan);
        if (!r) {
                for (size_t i = 0; i < n; ++i)
                        if (n_bytes[i])
                                memcpy((void *)(uintptr_t)loaned[i].data, arrays[i].data,
                                       n_bytes[i]);
                r = ndbus_publish_loan(bus, topic, loan, NULL);
        }
        free(loaned);
        return r;
}

static int publish(const struct pair *p,
                   const char *topic,
                   const struct ndbus_array *arrays,
                   const size_t *n_bytes,
                   size_t n)
{
        if (p->transport->is_shm)
                return publish_in_place(p->publisher, topic, arrays, n_bytes, n);
        return ndbus_publish(p->publisher, topic, arrays, n, NULL);
}

/* Did all large bodies, and all that were written in place, go the way that is tested? */
static void expect_way(const struct pair *p, uint64_t n_in_blocks)
{
        struct ndbus_shm_stats stats = {.size = sizeof(stats)};

        cr_assert_eq(ndbus_shm_stats(p->publisher, &stats), 0);
        cr_expect_eq(stats.published, p->transport->is_shm ? n_in_blocks : 0, "%s: %" PRIu64,
                     p->transport->name, stats.published);
        cr_expect_eq(stats.fallback, 0, "%s: %" PRIu64, p->transport->name, stats.fallback);
}

static bool is_same_text(const char *a, const char *b)
{
        return a && b ? strcmp(a, b) == 0 : a == b;
}

/* What is in shared memory is read-only, whatever it was sent as. */
#define IN_BLOCK ((uint32_t)NDBUS_READ_ONLY)

/* Everything but memory and strides. */
static void
expect_same_kind(const struct ndbus_array *got, const struct ndbus_array *sent, const char *name)
{
        cr_expect(is_same_text(got->dtype, sent->dtype), "%s: dtype is %s", name, got->dtype);
        cr_expect(is_same_text(got->name, sent->name), "%s: name is %s", name, got->name);
        cr_expect(is_same_text(got->unit, sent->unit), "%s: unit is %s", name, got->unit);
        cr_expect(sent->bits == 0 || got->bits == sent->bits, "%s: %u bits", name, got->bits);
        cr_expect_eq(got->lanes ? got->lanes : 1, sent->lanes ? sent->lanes : 1, "%s: %u lanes",
                     name, got->lanes);
        cr_expect_eq(got->flags & ~IN_BLOCK, sent->flags & ~IN_BLOCK, "%s: flags are %u", name,
                     got->flags);
        cr_expect(got->flags & IN_BLOCK || !(sent->flags & IN_BLOCK), "%s: not read-only", name);
        cr_expect_eq(got->unit_count, sent->unit_count, "%s: %u units", name, got->unit_count);
        cr_assert_eq(got->ndim, sent->ndim, "%s: ndim is %d", name, got->ndim);
        for (int32_t d = 0; d < got->ndim; ++d)
                cr_expect_eq(got->shape[d], sent->shape[d], "%s: shape[%d] is %" PRId64, name, d,
                             got->shape[d]);
        cr_assert_eq(got->n_fields, sent->n_fields, "%s: %u fields", name, got->n_fields);
        for (uint32_t i = 0; i < got->n_fields; ++i) {
                cr_expect_str_eq(got->fields[i].name, sent->fields[i].name, "%s", name);
                cr_expect_str_eq(got->fields[i].dtype, sent->fields[i].dtype, "%s", name);
                cr_expect_eq(got->fields[i].offset, sent->fields[i].offset, "%s", name);
                cr_expect_eq(got->fields[i].bits, sent->fields[i].bits, "%s", name);
        }
        cr_expect_eq((uintptr_t)got->data % 64, 0, "%s: data is at %p", name, got->data);
}

static void expect_same(const struct ndbus_array *got, const struct row *row)
{
        expect_same_kind(got, &row->array, row->name);
        cr_expect_eq(got->strides != NULL, row->array.strides != NULL, "%s: strides", row->name);
        for (int32_t d = 0; got->strides && d < got->ndim; ++d)
                cr_expect_eq(got->strides[d], row->array.strides[d], "%s: strides[%d] is %" PRId64,
                             row->name, d, got->strides[d]);
        cr_expect(row->n_bytes == 0 || memcmp(got->data, row->array.data, row->n_bytes) == 0,
                  "%s: other bytes", row->name);
}

/* T01 to T05, T07 to T12: each alone, in this order, and all in one message */
Test(arrays, dense)
{
        struct ndbus_array all[ROWS_N];
        const struct ndbus_array *got;
        struct ndbus_message *m;
        size_t n_bytes[ROWS_N];
        uint64_t n_with_bytes = 0;

        for (size_t i = 0; i < ROWS_N; ++i) {
                all[i] = rows[i].array;
                n_bytes[i] = rows[i].n_bytes;
                n_with_bytes += n_bytes[i] > 0;
        }
        for (size_t t = 0; t < ND_WAYS_N; ++t) {
                struct pair p = pair_open(&nd_transports[t]);

                for (size_t i = 0; i < ROWS_N; ++i) {
                        int r = publish(&p, "t/one", &all[i], &n_bytes[i], 1);

                        cr_assert_eq(r, 0, "%s: %s", rows[i].name, ndbus_detail());
                }
                cr_assert_eq(publish(&p, "t/all", all, n_bytes, ROWS_N), 0, "%s", ndbus_detail());
                expect_way(&p, n_with_bytes + 1);
                for (size_t i = 0; i < ROWS_N; ++i) {
                        m = nd_client_receive(p.subscriber);
                        cr_assert_eq(ndbus_message_sequence(m), i + 1);
                        cr_assert_eq(ndbus_message_source(m), ndbus_source(p.publisher));
                        cr_assert_eq(ndbus_message_bytes(m), rows[i].n_bytes,
                                     "%s: %" PRIu64 " bytes", rows[i].name, ndbus_message_bytes(m));
                        cr_assert_eq(ndbus_message_arrays(m, &got), 1);
                        expect_same(&got[0], &rows[i]);
                        ndbus_message_free(m);
                }
                m = nd_client_receive(p.subscriber);
                cr_assert_str_eq(ndbus_message_topic(m), "t/all");
                cr_assert_eq(ndbus_message_arrays(m, &got), ROWS_N);
                for (size_t i = 0; i < ROWS_N; ++i)
                        expect_same(&got[i], &rows[i]);
                ndbus_message_free(m);
                pair_close(&p);
        }
}

/* ------------------------------------------------------------------------ views of other memory */

static const uint8_t *element(const struct ndbus_array *a, const int64_t *index, int64_t itemsize)
{
        const uint8_t *at = a->data;
        int64_t step = itemsize;

        for (int32_t d = a->ndim - 1; d >= 0; --d) {
                at += index[d] * (a->strides ? a->strides[d] : step);
                step *= a->shape[d];
        }
        return at;
}

static void expect_same_elements(const struct ndbus_array *got,
                                 const struct ndbus_array *sent,
                                 int64_t itemsize,
                                 const char *name)
{
        int64_t index[NDBUS_DIMS_MAX] = {0};
        int32_t d;

        do {
                cr_assert_eq(memcmp(element(got, index, itemsize), element(sent, index, itemsize),
                                    (size_t)itemsize),
                             0, "%s: element %" PRId64 ", %" PRId64 "... differs", name, index[0],
                             index[1]);
                for (d = got->ndim - 1; d >= 0 && ++index[d] == got->shape[d]; --d)
                        index[d] = 0;
        } while (d >= 0);
}

/* a view of P(4 MiB) that begins at an offset; itemsize 4 */
static const struct view {
        const char *name;
        size_t offset;
        int32_t ndim;
        int64_t shape[3];
        int64_t strides[3];
        uint64_t n_bytes; /* of the body */
        uint32_t flags;   /* as received */
} views[] = {
        {"every other column", 0, 2, {100, 50}, {400, 8}, 20000, 0},
        {"rows of a wider array", 400, 2, {300, 1000}, {8000, 4}, 1200000, 0},
        {"short runs", 0, 3, {50, 60, 3}, {20000, 200, 4}, 36000, 0},
        {"last axis reversed", 3996, 1, {1000}, {-4}, 4000, 0},
        {"first axis reversed", 396000, 2, {100, 1000}, {-4000, 4}, 400000, 0},
        {"both, with steps", 399996, 2, {50, 250}, {-8000, -16}, 50000, 0},
        {"rows repeated", 0, 2, {64, 1000}, {0, 4}, 4000, NDBUS_READ_ONLY},
        {"columns repeated", 0, 2, {1000, 64}, {4, 0}, 4000, NDBUS_READ_ONLY},
        {"one element repeated", 40, 3, {7, 8, 9}, {0, 0, 0}, 4, NDBUS_READ_ONLY},
        {"repeated and sliced", 0, 3, {5, 40, 50}, {0, 800, 8}, 40000, 0},
        {"windows that overlap", 0, 2, {1000, 5}, {4, 4}, 20000, 0},
        {"Fortran order, sliced", 0, 2, {500, 200}, {4, 4000}, 400000, 0},
        {"Fortran order, 4 MiB", 0, 2, {1024, 1024}, {4, 4096}, 4194304, 0},
};

/* Gathered, reversed and broadcast views: the same elements, and no more bytes than they need. */
Test(arrays, views)
{
        uint8_t *memory = malloc(1u << 22);

        nd_pattern_fill(memory, 0, 1u << 22);
        for (size_t i = 0; i < 1u << 22; i += 4) { /* every element differs from all others */
                uint32_t number = (uint32_t)i * 2654435761u;

                memcpy(memory + i, &number, sizeof(number));
        }
        for (size_t t = 0; t < ND_WAYS_N; ++t) {
                struct pair p = pair_open(&nd_transports[t]);

                for (size_t i = 0; i < sizeof(views) / sizeof(*views); ++i) {
                        const struct view *v = &views[i];
                        struct ndbus_array sent = {.data = memory + v->offset,
                                                   .dtype = "uint32",
                                                   .bits = 32,
                                                   .ndim = v->ndim,
                                                   .shape = v->shape,
                                                   .strides = v->strides};
                        const struct ndbus_array *got;
                        struct ndbus_message *m;

                        cr_assert_eq(ndbus_publish(p.publisher, "view", &sent, 1, NULL), 0,
                                     "%s: %s", v->name, ndbus_detail());
                        m = nd_client_receive(p.subscriber);
                        cr_expect_eq(ndbus_message_bytes(m), v->n_bytes, "%s: %" PRIu64 " bytes",
                                     v->name, ndbus_message_bytes(m));
                        cr_assert_eq(ndbus_message_arrays(m, &got), 1);
                        sent.flags = v->flags;
                        expect_same_kind(&got[0], &sent, v->name);
                        expect_same_elements(&got[0], &sent, 4, v->name);

                        cr_assert_eq(ndbus_message_own(m), 0);
                        ndbus_message_arrays(m, &got);
                        cr_expect_eq(got[0].flags, 0, "%s", v->name);
                        expect_same_elements(&got[0], &sent, 4, v->name);
                        ndbus_message_free(m);
                }
                pair_close(&p);
        }
        free(memory);
}

/* -------------------------------------------------------------------------- many frames and none */

/* 1000 frames of sizes that fit no alignment, small and in all more than a packet holds */
Test(arrays, many_frames)
{
        static const size_t steps[] = {1, 3};
        uint8_t *memory = malloc(FRAMES_N * 3 + 64);
        struct ndbus_array sent[FRAMES_N];
        int64_t shapes[FRAMES_N];

        nd_pattern_fill(memory, 0, FRAMES_N * 3 + 64);
        for (size_t t = 0; t < ND_WAYS_N * 2; ++t) {
                struct pair p = pair_open(&nd_transports[t / 2]);
                const struct ndbus_array *got;
                struct ndbus_message *m;

                for (size_t i = 0; i < FRAMES_N; ++i) {
                        shapes[i] = (int64_t)(i * steps[t % 2]);
                        sent[i] = (struct ndbus_array){.data = memory + i % 64,
                                                       .dtype = "uint8",
                                                       .ndim = 1,
                                                       .shape = &shapes[i]};
                }
                cr_assert_eq(ndbus_publish(p.publisher, "many", sent, FRAMES_N, NULL), 0, "%s",
                             ndbus_detail());
                m = nd_client_receive(p.subscriber);
                cr_assert_eq(ndbus_message_arrays(m, &got), FRAMES_N);
                for (size_t i = 0; i < FRAMES_N; ++i) {
                        cr_assert_eq(got[i].shape[0], shapes[i]);
                        cr_assert_eq((uintptr_t)got[i].data % 64, 0, "frame %zu", i);
                        cr_assert_eq(nd_pattern_compare(got[i].data, i % 64, (size_t)shapes[i]),
                                     (size_t)shapes[i], "%s: frame %zu: byte %zu of %" PRId64,
                                     nd_transports[t / 2].name, i,
                                     nd_pattern_compare(got[i].data, i % 64, (size_t)shapes[i]),
                                     shapes[i]);
                }
                ndbus_message_free(m);
                pair_close(&p);
        }
        free(memory);
}

/* No frames, and meta alone; reply and encoding come along. */
Test(arrays, meta_alone)
{
        static const uint8_t meta[] = {0x81, 0xa1, 'n', 0x07};
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;

        options.meta = meta;
        options.n_meta = sizeof(meta);
        options.encoding = "pickle5";
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct pair p = pair_open(&nd_transports[t]);
                const struct ndbus_array *got;
                struct ndbus_message *m;
                const void *got_meta;

                cr_assert_eq(ndbus_publish(p.publisher, "meta", NULL, 0, &options), 0);
                cr_assert_eq(ndbus_publish(p.publisher, "nothing", NULL, 0, NULL), 0);
                m = nd_client_receive(p.subscriber);
                cr_expect_eq(ndbus_message_arrays(m, &got), 0);
                cr_assert_eq(ndbus_message_meta(m, &got_meta), sizeof(meta));
                cr_expect_eq(memcmp(got_meta, meta, sizeof(meta)), 0);
                cr_expect_str_eq(ndbus_message_encoding(m), "pickle5");
                cr_expect_null(ndbus_message_reply(m));
                ndbus_message_free(m);

                m = nd_client_receive(p.subscriber);
                cr_expect_str_eq(ndbus_message_topic(m), "nothing");
                cr_expect_eq(ndbus_message_arrays(m, &got), 0);
                cr_expect_eq(ndbus_message_meta(m, &got_meta), 0);
                cr_expect_null(ndbus_message_encoding(m));
                ndbus_message_free(m);
                pair_close(&p);
        }
}

/* -------------------------------------------------------------------------- what cannot be sent */

static void
expect_refused(struct ndbus *bus, const struct ndbus_array *array, int code, const char *name)
{
        int r = ndbus_publish(bus, "refused", array, 1, NULL);

        cr_expect_eq(r, code, "%s: %s", name, ndbus_errname(r));
        cr_expect_neq(ndbus_detail()[0], '\0', "%s", name);
}

/* T17, T19, and T16 as far as a caller can say it: refused at once, and nothing on the wire, so the
 * next message is the first. The length of an array is not the caller's to state; raw bytes with no
 * memory are. */
Test(arrays, refused)
{
        static const uint8_t byte = 1;
        int64_t ones[NDBUS_DIMS_MAX + 1];

        const struct {
                const char *name;
                struct ndbus_array array;
                int code;
        } refused[] = {
                {"T17 2^33 x 2^33",
                 {.data = &byte,
                  .dtype = "uint8",
                  .ndim = 2,
                  .shape = DIMS(INT64_C(1) << 33, INT64_C(1) << 33)},
                 NDBUS_ESHAPE},
                {"T17 2^62 x 4",
                 {.data = &byte, .dtype = "float64", .ndim = 2, .shape = DIMS(INT64_C(1) << 62, 4)},
                 NDBUS_ESHAPE},
                {"T17 -1",
                 {.data = &byte, .dtype = "uint8", .ndim = 1, .shape = DIMS(-1)},
                 NDBUS_ESHAPE},
                {"T17 65 dimensions",
                 {.data = &byte, .dtype = "uint8", .ndim = NDBUS_DIMS_MAX + 1, .shape = ones},
                 NDBUS_ESHAPE},
                {"T17 -1 dimensions",
                 {.data = &byte, .dtype = "uint8", .ndim = -1, .shape = ones},
                 NDBUS_ESHAPE},
                {"T17 stride 2^62",
                 {.data = &byte,
                  .dtype = "uint8",
                  .ndim = 2,
                  .shape = DIMS(4, 4),
                  .strides = DIMS(INT64_C(1) << 62, 1)},
                 NDBUS_ESHAPE},
                {"T19 object",
                 {.data = &byte, .dtype = "object", .ndim = 1, .shape = DIMS(1)},
                 NDBUS_EDTYPE},
                {"T19 no such dtype",
                 {.data = &byte, .dtype = "O", .ndim = 1, .shape = DIMS(1)},
                 NDBUS_EDTYPE},
                {"float32 of 16 bits",
                 {.data = &byte, .dtype = "float32", .bits = 16, .ndim = 1, .shape = DIMS(1)},
                 NDBUS_EDTYPE},
                {"T16 no memory",
                 {.dtype = "float32", .ndim = 2, .shape = DIMS(4, 4)},
                 NDBUS_EINVAL},
        };

        for (size_t d = 0; d <= NDBUS_DIMS_MAX; ++d)
                ones[d] = 1;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct pair p = pair_open(&nd_transports[t]);
                struct ndbus_message *m;

                for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); ++i)
                        expect_refused(p.publisher, &refused[i].array, refused[i].code,
                                       refused[i].name);
                nd_client_publish(p.publisher, "refused", 1, 10);
                m = nd_client_receive(p.subscriber);
                cr_expect_eq(ndbus_message_sequence(m), 1);
                cr_expect_eq(nd_client_take_number(m), 1);
                pair_close(&p);
        }
}

/* --------------------------------------------------------------------------------------- DLPack */

/* T21: from DLPack, over the bus */
Test(arrays, from_dlpack)
{
        int32_t numbers[] = {0, 1, 2, 3, 4, 5};
        int64_t two_three[] = {2, 3}, four[] = {4}, strides[2];
        DLTensor tensor = {.data = numbers,
                           .device = {.device_type = kDLCPU},
                           .ndim = 2,
                           .dtype = {.code = kDLInt, .bits = 32, .lanes = 1},
                           .shape = two_three};
        DLTensor part = tensor, wrong;
        struct ndbus_array array;

        part.byte_offset = 8;
        part.ndim = 1;
        part.shape = four;
        for (size_t t = 0; t < ND_TRANSPORTS_N; ++t) {
                struct pair p = pair_open(&nd_transports[t]);
                const struct ndbus_array *got;
                struct ndbus_message *m;

                cr_assert_eq(ndbus_array_from_dlpack(&tensor, &array, strides), 0);
                cr_assert_eq(ndbus_publish(p.publisher, "dl", &array, 1, NULL), 0);
                m = nd_client_receive(p.subscriber);
                cr_assert_eq(ndbus_message_arrays(m, &got), 1);
                expect_same_kind(&got[0], &array, "T21 C order");
                cr_expect_eq(memcmp(got[0].data, numbers, sizeof(numbers)), 0);
                ndbus_message_free(m);

                cr_assert_eq(ndbus_array_from_dlpack(&part, &array, strides), 0);
                cr_assert_eq(ndbus_publish(p.publisher, "dl", &array, 1, NULL), 0);
                m = nd_client_receive(p.subscriber);
                cr_assert_eq(ndbus_message_arrays(m, &got), 1);
                expect_same_kind(&got[0], &array, "T21 byte_offset");
                cr_expect_eq(memcmp(got[0].data, numbers + 2, 16), 0);
                ndbus_message_free(m);
                pair_close(&p);
        }
        wrong = tensor;
        wrong.device.device_type = kDLCUDA;
        cr_expect_eq(ndbus_array_from_dlpack(&wrong, &array, strides), NDBUS_EDEVICE);
        wrong = tensor;
        wrong.dtype.lanes = 0;
        cr_expect_eq(ndbus_array_from_dlpack(&wrong, &array, strides), NDBUS_EDTYPE);
}

/* Type code and bits of what arrives, as DLPack, or the error it must be. */
static const struct export_row {
        const char *name; /* of rows[] */
        int code;         /* DLPack's, or a negative error */
        uint8_t bits;
        int64_t strides[2]; /* in elements */
} export_rows[] = {
        {"T01 float32", 2, 32, {1}},
        {"T02 Fortran order", 0, 32, {1, 2}},
        {"T03 big-endian", NDBUS_EENDIAN, 0, {0}},
        {"T04 bfloat16", 4, 16, {1}},
        {"T05 float8_e4m3fn", 10, 8, {1}},
        {"T05 float8_e5m2", 12, 8, {1}},
        {"T07 bool", 6, 8, {1}},
        {"T07 uint8", 1, 8, {1}},
        {"T08 complex64", 5, 64, {1}},
        {"T09 datetime64[ns]", NDBUS_EDTYPE, 0, {0}},
        {"T10 record", NDBUS_EDTYPE, 0, {0}},
        {"T11 no dimensions", 2, 32, {0}},
};

static const struct row *row_find(const char *name)
{
        for (size_t i = 0; i < ROWS_N; ++i) {
                if (strcmp(rows[i].name, name) == 0)
                        return &rows[i];
        }
        nd_harness_fail(NULL, "no row %s", name);
}

/* T03, T05, T07 to DLPack; the tensor outlives message and bus. */
Test(arrays, to_dlpack)
{
        const size_t n = sizeof(export_rows) / sizeof(*export_rows);
        DLManagedTensorVersioned *exports[sizeof(export_rows) / sizeof(*export_rows)] = {0};
        struct pair p = pair_open(&nd_transports[0]);

        for (size_t i = 0; i < n; ++i) {
                const struct export_row *e = &export_rows[i];
                struct ndbus_message *m;
                int r;

                cr_assert_eq(ndbus_publish(p.publisher, "dl", &row_find(e->name)->array, 1, NULL),
                             0);
                m = nd_client_receive(p.subscriber);
                r = ndbus_message_export(m, 0, &exports[i]);
                cr_expect_eq(r, e->code < 0 ? e->code : 0, "%s: %s", e->name, ndbus_errname(r));
                ndbus_message_free(m);
        }
        pair_close(&p);

        for (size_t i = 0; i < n; ++i) {
                const struct export_row *e = &export_rows[i];
                const struct row *row = row_find(e->name);
                const DLTensor *tensor;

                if (e->code < 0)
                        continue;
                tensor = &exports[i]->dl_tensor;
                cr_expect_eq(exports[i]->version.major, 1);
                cr_expect_eq(exports[i]->flags, 0);
                cr_expect_eq(tensor->dtype.code, e->code, "%s: code %u", e->name,
                             tensor->dtype.code);
                cr_expect_eq(tensor->dtype.bits, e->bits, "%s", e->name);
                cr_expect_eq(tensor->ndim, row->array.ndim, "%s", e->name);
                for (int d = 0; d < tensor->ndim; ++d) {
                        cr_expect_eq(tensor->shape[d], row->array.shape[d], "%s", e->name);
                        cr_expect_eq(tensor->strides[d], e->strides[d], "%s", e->name);
                }
                cr_expect_eq(memcmp((uint8_t *)tensor->data + tensor->byte_offset, row->array.data,
                                    row->n_bytes),
                             0, "%s", e->name);
                exports[i]->deleter(exports[i]);
        }
}
