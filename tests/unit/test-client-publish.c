/* SPDX-License-Identifier: MIT */

/*
 * Publishing, against a scripted daemon: bodies of every size arrive as they were, by whatever way
 * they take; credit is kept; what the daemon or the user does wrong is told and harms nothing else.
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "protocol/byteorder.h"
#include "tests/support/fake-peer.h"
#include "tests/support/pattern.h"

static struct ndbus *open_bus(struct fake_peer *peer)
{
        struct ndbus *bus = NULL;
        int r = ndbus_open(&bus, fake_peer_url(peer), NULL);

        cr_assert_eq(r, 0, "open: %s", ndbus_detail());
        return bus;
}

static void close_bus(struct ndbus *bus)
{
        size_t n = 99;
        int r = ndbus_close(bus, 5000, &n);

        cr_assert_eq(r, 0, "close: %s", ndbus_detail());
        cr_assert_eq(n, 0);
}

Test(client_publish, bodies_of_every_size_come_back_as_they_were)
{
        static const size_t sizes[] = {
                0,       1,     63,    64,    65,     4096,    4097,    8000,
                8192,    60000, 65536, 65537, 200000, 1048576, 1048577, 3 * 1048576 + 5,
                17000000};
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);
        uint8_t *bytes = malloc(17000000);
        int r;

        nd_pattern_fill(bytes, 0, 17000000);
        cr_assert_eq(ndbus_subscribe(bus, "a/*", NULL, NULL), 0, "%s", ndbus_detail());
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
                int64_t shape = (int64_t)sizes[i];
                struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
                const struct ndbus_array *arrays;
                struct ndbus_message *m;

                r = ndbus_publish(bus, "a/b", &array, 1, NULL);
                cr_assert_eq(r, 0, "%zu bytes: %s", sizes[i], ndbus_detail());
                r = ndbus_receive(bus, &m, 5000);
                cr_assert_eq(r, 0, "%zu bytes: %s", sizes[i], ndbus_detail());
                cr_assert_eq(ndbus_message_arrays(m, &arrays), 1);
                cr_assert_eq(arrays[0].shape[0], shape);
                cr_assert_eq((uintptr_t)arrays[0].data % 64, 0);
                cr_assert_eq(nd_pattern_compare(arrays[0].data, 0, sizes[i]), sizes[i]);
                cr_assert_eq(ndbus_message_sequence(m), i + 1);
                cr_assert_str_eq(ndbus_message_topic(m), "a/b");
                ndbus_message_free(m);
        }
        close_bus(bus);
        fake_peer_end(peer);
        free(bytes);
}

static void accept_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        fake_peer_accept(peer);
}

/* ---------------------------------------------------------------- arrays arrive as they were */

struct array_case {
        const char *name;
        struct ndbus_array array;
        size_t bytes; /* that travel */
        bool is_gathered;
};

static bool is_equal_string(const char *a, const char *b)
{
        return a == b || (a && b && strcmp(a, b) == 0);
}

static void expect_fields(const struct ndbus_field *got, const struct ndbus_field *want, uint32_t n)
{
        for (uint32_t i = 0; i < n; ++i) {
                cr_assert_str_eq(got[i].name, want[i].name);
                cr_assert_str_eq(got[i].dtype, want[i].dtype);
                cr_assert_eq(got[i].offset, want[i].offset);
                cr_assert_eq(got[i].bits, want[i].bits);
        }
}

/* Publishes, receives, compares all but the strides. */
static void round_trip(struct ndbus *bus, const struct array_case *c, struct ndbus_message **ret)
{
        const struct ndbus_array *got, *want = &c->array;
        struct ndbus_message *m;

        cr_assert_eq(ndbus_publish(bus, "a/b", want, 1, NULL), 0, "%s: %s", c->name,
                     ndbus_detail());
        cr_assert_eq(ndbus_receive(bus, &m, 5000), 0, "%s: %s", c->name, ndbus_detail());
        cr_assert_eq(ndbus_message_arrays(m, &got), 1);
        cr_assert(is_equal_string(got->dtype, want->dtype), "%s: %s", c->name, got->dtype);
        cr_assert_eq(got->ndim, want->ndim, "%s", c->name);
        for (int32_t i = 0; i < want->ndim; ++i)
                cr_assert_eq(got->shape[i], want->shape[i], "%s", c->name);
        cr_assert(is_equal_string(got->unit, want->unit), "%s", c->name);
        cr_assert_eq(got->flags & NDBUS_BIG_ENDIAN, want->flags & NDBUS_BIG_ENDIAN, "%s", c->name);
        cr_assert_eq(got->n_fields, want->n_fields, "%s", c->name);
        expect_fields(got->fields, want->fields, want->n_fields);
        cr_assert_eq(ndbus_message_bytes(m), c->bytes, "%s: %llu bytes", c->name,
                     (unsigned long long)ndbus_message_bytes(m));
        if (!c->is_gathered && c->bytes > 0)
                cr_assert_arr_eq(got->data, want->data, c->bytes, "%s", c->name);
        *ret = m;
}

Test(client_publish, t01_to_t12_arrays_arrive_as_they_were)
{
        static const int64_t s3[] = {3}, s4[] = {4}, s6[] = {6}, s2[] = {2}, s23[] = {2, 3};
        static const int64_t s03[] = {0, 3}, s20[] = {2, 0}, s305[] = {3, 0, 5}, s1[] = {1};
        static const int64_t fortran[] = {4, 8};
        static const struct ndbus_field fields[] = {
                {.name = "A", .offset = 0, .dtype = "float32", .bits = 32},
                {.name = "B", .offset = 8, .dtype = "float32", .bits = 32},
        };
#define CASE(_name, _hex, _n, ...)                                                                 \
        {                                                                                          \
                _name, {.data = _hex, __VA_ARGS__}, _n, false                                      \
        }
        static const struct array_case cases[] = {
                CASE("T01", "\x00\x00\xc0\x3f\x00\x00\x10\xc0\x00\x00\x40\x40", 12,
                     .dtype = "float32", .ndim = 1, .shape = s3),
                CASE("T02",
                     "\x00\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x02\x00\x00"
                     "\x00\x05\x00\x00\x00",
                     24, .dtype = "int32", .ndim = 2, .shape = s23, .strides = fortran),
                CASE("T03",
                     "\x00\x00\x00\x00\x00\x00\x00\x00\x3f\xf0\x00\x00\x00\x00\x00\x00\x3f\xd9\x99"
                     "\x99\x99\x99\x99\x9a\x40\x16\xcc\xcc\xcc\xcc\xcc\xcd",
                     32, .dtype = "float64", .ndim = 1, .shape = s4, .flags = NDBUS_BIG_ENDIAN),
                CASE("T04", "\x00\x00\x80\x3f\x00\x40\x40\x40\xc0\xbf\x20\x3e", 12,
                     .dtype = "bfloat16", .ndim = 1, .shape = s6),
                CASE("T05", "\x3c", 1, .dtype = "float8_e4m3fn", .ndim = 1, .shape = s1),
                CASE("T05", "\x3e", 1, .dtype = "float8_e5m2", .ndim = 1, .shape = s1),
                CASE("T07", "\x01\x00\x01", 3, .dtype = "bool", .ndim = 1, .shape = s3),
                CASE("T07", "\x01\x00\x01", 3, .dtype = "uint8", .ndim = 1, .shape = s3),
                CASE("T08", "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x00\xbf\x00\x00\x80\xc0", 16,
                     .dtype = "complex64", .ndim = 1, .shape = s2),
                CASE("T09", "\x00\xbb\x66\x10\xda\xbf\xed\x13\x00\x00\x00\x00\x00\x00\x00\x80", 16,
                     .dtype = "datetime64", .ndim = 1, .shape = s2, .unit = "ns"),
                CASE("T10",
                     "\x00\x00\x80\x3f\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00"
                     "\x00\x00\x40\x40\x00\x00\x00\x00\x00\x00\x80\x40\x00\x00\x00\x00",
                     32, .dtype = "record", .bits = 128, .ndim = 1, .shape = s2, .fields = fields,
                     .n_fields = 2),
                CASE("T11", "\x00\x00\xe0\x40", 4, .dtype = "float32", .ndim = 0),
                CASE("T12", NULL, 0, .dtype = "float32", .ndim = 2, .shape = s03),
                CASE("T12", NULL, 0, .dtype = "float32", .ndim = 2, .shape = s20),
                CASE("T12", NULL, 0, .dtype = "float32", .ndim = 3, .shape = s305),
                CASE("T12, then T01", "\x00\x00\xc0\x3f\x00\x00\x10\xc0\x00\x00\x40\x40", 12,
                     .dtype = "float32", .ndim = 1, .shape = s3),
        };
#undef CASE
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);

        cr_assert_eq(ndbus_subscribe(bus, "**", NULL, NULL), 0);
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
                const struct ndbus_array *got;
                struct ndbus_message *m;

                round_trip(bus, &cases[i], &m);
                ndbus_message_arrays(m, &got);
                if (cases[i].array.strides)
                        cr_assert_arr_eq(got->strides, cases[i].array.strides, 16);
                else
                        cr_assert_null(got->strides);
                ndbus_message_free(m);
        }
        close_bus(bus);
        fake_peer_end(peer);
}

Test(client_publish, views_are_gathered_and_broadcast_axes_are_sent_once)
{
        static int16_t grid[600][500];
        static const int64_t shape[] = {300, 250}, strides[] = {-2000, 4}, wide[] = {4000, 3};
        static const int64_t once[] = {0, 2};
        const struct array_case every_second = {"every second",
                                                {.data = grid[599],
                                                 .dtype = "int16",
                                                 .ndim = 2,
                                                 .shape = shape,
                                                 .strides = strides},
                                                150000,
                                                true};
        const struct array_case broadcast = {
                "broadcast",
                {.data = grid[0], .dtype = "int16", .ndim = 2, .shape = wide, .strides = once},
                6,
                false};
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);
        const struct ndbus_array *got;
        struct ndbus_message *m;

        for (int16_t y = 0; y < 600; ++y)
                for (int16_t x = 0; x < 500; ++x)
                        grid[y][x] = (int16_t)(31 * y + x);
        cr_assert_eq(ndbus_subscribe(bus, "**", NULL, NULL), 0);
        round_trip(bus, &every_second, &m);
        ndbus_message_arrays(m, &got);
        cr_assert_null(got->strides);
        for (size_t y = 0; y < 300; ++y)
                for (size_t x = 0; x < 250; ++x)
                        cr_assert_eq(((const int16_t *)got->data)[250 * y + x],
                                     grid[599 - 2 * y][2 * x]);
        ndbus_message_free(m);

        round_trip(bus, &broadcast, &m);
        ndbus_message_arrays(m, &got);
        cr_assert_eq(got->strides[0], 0);
        cr_assert(got->flags & NDBUS_READ_ONLY);
        cr_assert_eq(ndbus_message_own(m), 0, "%s", ndbus_detail());
        cr_assert_null(got->strides);
        cr_assert_not(got->flags & NDBUS_READ_ONLY);
        for (size_t i = 0; i < 12000; ++i)
                cr_assert_eq(((const int16_t *)got->data)[i], grid[0][i % 3]);
        ndbus_message_free(m);
        close_bus(bus);
        fake_peer_end(peer);
}

Test(client_publish, many_frames_of_all_sizes_in_one_message)
{
        enum {
                N = 200
        };

        static uint8_t bytes[N * 3000];
        static int64_t shapes[N];
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_array arrays[N] = {0};
        const struct ndbus_array *got;
        const void *meta;
        struct ndbus_message *m;

        nd_pattern_fill(bytes, 0, sizeof(bytes));
        for (size_t i = 0; i < N; ++i) {
                shapes[i] = (int64_t)(i % 7 == 0 ? 0 : 15 * i);
                arrays[i] = (struct ndbus_array){
                        .data = bytes + i * 3000, .ndim = 1, .shape = &shapes[i], .name = "frame"};
        }
        options.meta = "\x81\xa1k\x05";
        options.n_meta = 4;
        options.reply = "to/me";
        options.encoding = "pickle5";
        cr_assert_eq(ndbus_subscribe(bus, "**", NULL, NULL), 0);
        cr_assert_eq(ndbus_publish(bus, "x", arrays, N, &options), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_receive(bus, &m, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_message_arrays(m, &got), N);
        for (size_t i = 0; i < N; ++i) {
                cr_assert_eq(got[i].shape[0], shapes[i]);
                cr_assert_eq((uintptr_t)got[i].data % 64, 0);
                if (shapes[i] > 0)
                        cr_assert_arr_eq(got[i].data, bytes + i * 3000, (size_t)shapes[i]);
        }
        cr_assert_eq(ndbus_message_meta(m, &meta), 4);
        cr_assert_arr_eq(meta, options.meta, 4);
        cr_assert_str_eq(ndbus_message_reply(m), "to/me");
        cr_assert_str_eq(ndbus_message_encoding(m), "pickle5");
        ndbus_message_free(m);
        close_bus(bus);
        fake_peer_end(peer);
}

Test(client_publish, more_is_sent_by_the_next_call)
{
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_message *m;

        options.more = 1;
        cr_assert_eq(ndbus_subscribe(bus, "**", NULL, NULL), 0);
        for (int i = 0; i < 5; ++i)
                cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, &options), 0);
        for (uint64_t i = 1; i <= 5; ++i) {
                cr_assert_eq(ndbus_receive(bus, &m, 5000), 0, "%s", ndbus_detail());
                cr_assert_eq(ndbus_message_sequence(m), i);
                ndbus_message_free(m);
        }
        close_bus(bus);
        fake_peer_end(peer);
}

/* ----------------------------------------------------------------------- what is refused here */

Test(client_publish, t17_t19_what_is_wrong_is_said_at_once_and_sends_nothing)
{
        static const int64_t huge[] = {INT64_C(1) << 33, INT64_C(1) << 33}, minus[] = {-1};
        static const int64_t big[] = {INT64_C(1) << 62, 4}, two[] = {2};
        static const int64_t far[] = {INT64_C(1) << 62};
        static const uint8_t data[64];

        static const struct {
                struct ndbus_array array;
                int want;
        } cases[] = {
                {{.data = data, .dtype = "uint8", .ndim = 2, .shape = huge}, NDBUS_ESHAPE},
                {{.data = data, .dtype = "float64", .ndim = 2, .shape = big}, NDBUS_ESHAPE},
                {{.data = data, .dtype = "uint8", .ndim = 1, .shape = minus}, NDBUS_ESHAPE},
                {{.data = data, .dtype = "uint8", .ndim = 65, .shape = two}, NDBUS_ESHAPE},
                {{.data = data, .dtype = "uint8", .ndim = -1, .shape = two}, NDBUS_ESHAPE},
                {{.data = data, .dtype = "uint8", .ndim = 1, .shape = two, .strides = far},
                 NDBUS_ESHAPE},
                {{.data = data, .dtype = "object", .bits = 64, .ndim = 1, .shape = two},
                 NDBUS_EDTYPE},
                {{.data = data, .dtype = "float32", .bits = 64, .ndim = 1, .shape = two},
                 NDBUS_EDTYPE},
        };
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_message *m;

        cr_assert_eq(ndbus_subscribe(bus, "**", NULL, NULL), 0);
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
                int r = ndbus_publish(bus, "x", &cases[i].array, 1, NULL);

                cr_assert_eq(r, cases[i].want, "%zu: %d %s", i, r, ndbus_detail());
                cr_assert_neq(ndbus_detail()[0], '\0');
        }
        cr_assert_eq(ndbus_publish(bus, "x/*", NULL, 0, NULL), NDBUS_ETOPIC);
        cr_assert_eq(ndbus_publish(bus, "", NULL, 0, NULL), NDBUS_ETOPIC);
        cr_assert_eq(ndbus_publish(bus, NULL, NULL, 0, NULL), NDBUS_EINVAL);
        cr_assert_eq(ndbus_publish(bus, "x", NULL, 1, NULL), NDBUS_EINVAL);
        cr_assert_eq(ndbus_publish(bus, "x",
                                   &(struct ndbus_array){.dtype = "uint8", .ndim = 1, .shape = two},
                                   1, NULL),
                     NDBUS_EINVAL);
        options.meta = "\xc1";
        options.n_meta = 1;
        cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, &options), NDBUS_EMETA);
        options.size = 3;
        cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, &options), NDBUS_EINVAL);
        cr_assert_eq(ndbus_receive(bus, &m, 0), NDBUS_ETIMEDOUT);
        close_bus(bus);
        fake_peer_end(peer);
}

static void small_limit_script(struct fake_peer *peer, void *userdata)
{
        fake_peer_welcome(peer)->message_bytes_max = 1 << 20;
        fake_peer_serve_script(peer, userdata);
}

Test(client_publish, t28_too_big_is_refused_and_the_next_one_passes)
{
        static uint8_t bytes[(1 << 20) + 1];
        struct fake_peer *peer = fake_peer_start(small_limit_script, NULL);
        struct ndbus *bus = open_bus(peer);
        int64_t shape = sizeof(bytes);
        struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        struct ndbus_message *m;

        cr_assert_eq(ndbus_subscribe(bus, "**", NULL, NULL), 0);
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, NULL), NDBUS_ETOO_BIG);
        cr_assert(strstr(ndbus_detail(), "1048577") && strstr(ndbus_detail(), "1048576"), "%s",
                  ndbus_detail());
        shape = 128;
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, NULL), 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), 0);
        cr_assert_eq(ndbus_message_bytes(m), 128);
        ndbus_message_free(m);
        close_bus(bus);
        fake_peer_end(peer);
}

/* --------------------------------------------------------------------- what the daemon does */

static void expect_ping(struct fake_peer *peer, uint64_t number, bool is_answered)
{
        if (fake_peer_expect(peer, ND_KIND_PING)->prelude.sequence != number)
                abort();
        if (is_answered)
                fake_peer_send(
                        peer,
                        &(struct nd_prelude){.kind = ND_KIND_PONG, .sequence = number, .place = 3},
                        NULL, 0, NULL, 0);
}

/* Takes what credit allows, and is asked for more: has none, does not answer, has some. */
static void no_credit_script(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;
        uint64_t taken = 0;

        (void)userdata;
        fake_peer_accept(peer);
        for (int i = 0; i < 3; ++i) {
                packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
                taken += ND_PRELUDE_BYTES + packet->prelude.header_bytes + packet->n_body;
        }
        expect_ping(peer, 2, true);
        expect_ping(peer, 3, true);
        expect_ping(peer, 4, false);
        expect_ping(peer, 5, true); /* of ndbus_ping(): not asked again until something was heard */
        if (fake_peer_expect(peer, ND_KIND_PING)->prelude.sequence != 6)
                abort();
        fake_peer_grant(peer, taken, 3);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_PONG, .sequence = 6, .place = 3},
                       NULL, 0, NULL, 0);
        packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
        if (packet->prelude.sequence != 4)
                abort();
        fake_peer_drain(peer);
}

Test(client_publish, without_credit_nothing_is_sent)
{
        static uint8_t bytes[20000];
        struct fake_peer *peer = fake_peer_start(no_credit_script, NULL);
        struct ndbus_options bus_options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        int64_t shape = sizeof(bytes);
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        size_t n_unconfirmed;

        bus_options.stall_ms = 1000;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &bus_options), 0, "%s", ndbus_detail());
        options.timeout_ms = 0;
        for (int i = 0; i < 3; ++i)
                cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &options), 0);
        shape = 8000; /* a small one does not wait for an answer */
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &options), NDBUS_EWOULDBLOCK);
        shape = sizeof(bytes);
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &options), NDBUS_EWOULDBLOCK);
        options.timeout_ms = 30;
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &options), NDBUS_EWOULDBLOCK);
        options.timeout_ms = 0;
        for (int i = 0; i < 5; ++i)
                cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &options), NDBUS_EWOULDBLOCK);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &options), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_close(bus, 50, &n_unconfirmed), NDBUS_ETIMEDOUT);
        cr_assert_eq(n_unconfirmed, 1);
        fake_peer_end(peer);
}

/* Grants for a while, then no more in the middle of a message. */
static void stall_script(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;
        uint64_t n = 0;

        (void)userdata;
        fake_peer_accept(peer);
        packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
        if (!(packet->prelude.flags & ND_FLAG_BODY_IN_CHUNKS))
                abort();
        for (;;) {
                packet = fake_peer_read(peer);
                if (packet->prelude.kind != ND_KIND_CHUNK)
                        break;
                if (packet->prelude.place != n)
                        abort();
                n += packet->n_body;
                if (n < 300000)
                        fake_peer_grant(peer, packet->n_body + ND_PRELUDE_BYTES, 0);
        }
        if (packet->prelude.kind != ND_KIND_RESET || packet->prelude.stream == 0)
                abort();
        fake_peer_grant(peer, 60000, 1);
        packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
        if (packet->prelude.sequence != 2)
                abort();
        fake_peer_drain(peer);
}

Test(client_publish, a_message_that_stalls_is_taken_back)
{
        static uint8_t bytes[1000000];
        struct fake_peer *peer = fake_peer_start(stall_script, NULL);
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus;
        int64_t shape = sizeof(bytes);
        struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};

        options.stall_ms = 100;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, NULL), NDBUS_ETIMEDOUT);
        shape = 1000;
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, NULL), 0, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* Reads nothing until it is told to; then expects one whole message and one that was taken back. */
static void deaf_script(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;
        int *go = userdata;
        uint64_t n = 0;
        char byte;

        fake_peer_welcome(peer)->grant_bytes = 16 << 20;
        fake_peer_accept(peer);
        if (read(go[0], &byte, 1) != 1)
                abort();
        packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
        if (packet->n_body != 900000 || nd_pattern_compare(packet->body, 0, 900000) != 900000)
                abort();
        packet = fake_peer_read(peer);
        if (packet->prelude.kind == ND_KIND_PUBLISH) {
                while ((packet = fake_peer_expect(peer, ND_KIND_CHUNK))) {
                        n += packet->n_body;
                        if (n >= 3000000)
                                break;
                }
        }
        fake_peer_drain(peer);
}

static int is_deaf(void *userdata)
{
        return *(const bool *)userdata;
}

/* It is given up when it waits for long enough, by whoever is asked: a time would be one that the peer must
 * not stand still for later. */
Test(client_publish, what_was_begun_last_is_finished_by_a_later_call)
{
        static uint8_t bytes[3000000];
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus_publish_options now = NDBUS_PUBLISH_OPTIONS_INIT;
        struct fake_peer *peer;
        struct ndbus *bus;
        bool deaf = false;
        int64_t shape = 900000;
        struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        int go[2];

        cr_assert_eq(pipe(go), 0);
        peer = fake_peer_start(deaf_script, go);
        nd_pattern_fill(bytes, 0, sizeof(bytes));
        options.stall_ms = 60000;
        options.interrupted = is_deaf;
        options.userdata = &deaf;
        now.timeout_ms = 0;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        /* its one packet is begun, the socket is full: it counts, and its memory is ours again */
        deaf = true;
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &now), 0, "%s", ndbus_detail());
        memset(bytes, 0xee, sizeof(bytes));
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &now), NDBUS_EWOULDBLOCK);
        deaf = false;
        cr_assert_eq(write(go[1], "", 1), 1);
        shape = 3000000;
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, NULL), 0, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        close(go[0]);
        close(go[1]);
}

static void send_error(struct fake_peer *peer, int code, uint8_t of, uint64_t number, bool closes)
{
        const struct nd_error_header error = {.code = (uint32_t)-code,
                                              .of = of,
                                              .closes = closes,
                                              .text = ND_STRING("for a test")};
        struct nd_control_bytes bytes;

        nd_error_header_pack(&error, &bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_ERROR, .sequence = number},
                       bytes.data, bytes.n, NULL, 0);
}

static void refuse_script(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;
        uint64_t n = 0;

        (void)userdata;
        fake_peer_accept(peer);
        /* two small ones are refused; told by the flush */
        fake_peer_expect(peer, ND_KIND_PUBLISH);
        send_error(peer, NDBUS_EDENIED, ND_KIND_PUBLISH, 1, false);
        fake_peer_expect(peer, ND_KIND_PUBLISH);
        send_error(peer, NDBUS_ENO_SPACE, ND_KIND_PUBLISH, 2, false);
        packet = fake_peer_expect(peer, ND_KIND_PING);
        fake_peer_send(peer,
                       &(struct nd_prelude){.kind = ND_KIND_PONG,
                                            .sequence = packet->prelude.sequence,
                                            .place = 2},
                       NULL, 0, NULL, 0);
        packet = fake_peer_expect(peer, ND_KIND_PING);
        fake_peer_send(peer,
                       &(struct nd_prelude){.kind = ND_KIND_PONG,
                                            .sequence = packet->prelude.sequence,
                                            .place = 2},
                       NULL, 0, NULL, 0);
        /* a large one is refused while it is being sent: RESET */
        packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
        send_error(peer, NDBUS_ENO_SPACE, ND_KIND_PUBLISH, packet->prelude.sequence, false);
        do {
                packet = fake_peer_read(peer);
                n += packet->prelude.kind == ND_KIND_CHUNK ? packet->n_body : 0;
        } while (packet->prelude.kind == ND_KIND_CHUNK);
        if (packet->prelude.kind != ND_KIND_RESET || n >= 5000000)
                abort();
        fake_peer_drain(peer);
}

Test(client_publish, refusals_are_told)
{
        static uint8_t bytes[5000000];
        struct fake_peer *peer = fake_peer_start(refuse_script, NULL);
        struct ndbus *bus = open_bus(peer);
        const int64_t shape = sizeof(bytes);
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};

        cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, NULL), 0);
        cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, NULL), 0);
        cr_assert_eq(ndbus_flush(bus, 5000), NDBUS_EDENIED);
        cr_assert(strstr(ndbus_detail(), "for a test") && strstr(ndbus_detail(), "2"), "%s",
                  ndbus_detail());
        cr_assert_eq(ndbus_flush(bus, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_publish(bus, "x", &array, 1, NULL), NDBUS_ENO_SPACE);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void refuse_without_pong_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_expect(peer, ND_KIND_PUBLISH);
        send_error(peer, NDBUS_EDENIED, ND_KIND_PUBLISH, 1, false);
        fake_peer_drain(peer);
}

/* A daemon that answers no question has said something all the same. */
Test(client_publish, refusals_are_told_when_the_flush_times_out)
{
        struct fake_peer *peer = fake_peer_start(refuse_without_pong_script, NULL);
        struct ndbus *bus = open_bus(peer);
        int r = NDBUS_ETIMEDOUT;

        cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, NULL), 0);
        for (int i = 0; i < 1000 && r == NDBUS_ETIMEDOUT; ++i)
                r = ndbus_flush(bus, 10);
        cr_assert_eq(r, NDBUS_EDENIED, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void overgrant_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        fake_peer_accept(peer);
        fake_peer_expect(peer, ND_KIND_PUBLISH);
        fake_peer_grant(peer, UINT64_MAX, 0);
        fake_peer_drain(peer);
}

Test(client_publish, the_reason_of_a_loss_is_told)
{
        struct fake_peer *peer = fake_peer_start(overgrant_script, NULL);
        struct ndbus *bus = open_bus(peer);

        cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, NULL), 0);
        cr_assert_eq(ndbus_flush(bus, 5000), NDBUS_ENOTCONN);
        cr_assert(strstr(ndbus_detail(), "lost: CREDIT: "), "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void pause_script(struct fake_peer *peer, void *userdata)
{
        struct nd_topic_header topic = {
                .topic = ND_STRING("slow"), .allowed = true, .subscribers = 1, .paused = true};
        struct nd_control_bytes bytes;
        const struct fake_packet *packet;

        (void)userdata;
        fake_peer_accept(peer);
        nd_topic_header_pack(&topic, true, &bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_TOPIC}, bytes.data, bytes.n, NULL,
                       0);
        for (int i = 0; i < 2; ++i) {
                packet = fake_peer_expect(peer, ND_KIND_PING);
                fake_peer_send(peer,
                               &(struct nd_prelude){.kind = ND_KIND_PONG,
                                                    .sequence = packet->prelude.sequence},
                               NULL, 0, NULL, 0);
                if (i == 1)
                        break;
                packet = fake_peer_expect(peer, ND_KIND_PUBLISH); /* on another topic */
                topic.paused = false;
                nd_topic_header_pack(&topic, true, &bytes);
                fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_TOPIC}, bytes.data,
                               bytes.n, NULL, 0);
        }
        packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
        fake_peer_drain(peer);
}

Test(client_publish, a_paused_topic_waits_and_others_go_on)
{
        struct fake_peer *peer = fake_peer_start(pause_script, NULL);
        struct ndbus *bus = open_bus(peer);
        struct ndbus_publish_options now = NDBUS_PUBLISH_OPTIONS_INIT;

        now.timeout_ms = 0;
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        cr_assert_eq(ndbus_publish(bus, "slow", NULL, 0, &now), NDBUS_EWOULDBLOCK);
        cr_assert_eq(ndbus_publish(bus, "fast", NULL, 0, &now), 0);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        cr_assert_eq(ndbus_publish(bus, "slow", NULL, 0, &now), 0, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* ------------------------------------------------------------------------ without a daemon */

Test(client_publish, t57_a_killed_daemon_is_an_error_and_no_signal)
{
        struct fake_peer *peer = fake_peer_start(accept_script, NULL);
        struct ndbus *bus = open_bus(peer);
        struct sigaction before, after;
        size_t n_failed = 0;

        cr_assert_eq(sigaction(SIGPIPE, NULL, &before), 0);
        fake_peer_end(peer); /* its socket is closed and gone */
        for (int i = 0; i < 3; ++i)
                n_failed += ndbus_publish(bus, "x", NULL, 0, NULL) == NDBUS_ENOTCONN;
        cr_assert_geq(n_failed, 2);
        cr_assert_eq(sigaction(SIGPIPE, NULL, &after), 0);
        cr_assert_eq(before.sa_handler, after.sa_handler);
        cr_assert_eq(before.sa_handler, SIG_DFL);
        ndbus_close(bus, 0, NULL);
}

/* Serves one connection, is away, and serves another: what was kept must come, in order. */
static void away_script(struct fake_peer *peer, void *userdata)
{
        int *go = userdata;
        const struct fake_packet *packet;
        char byte;

        fake_peer_accept(peer);
        fake_peer_stop_listening(peer);
        fake_peer_hang_up(peer);
        if (read(go[0], &byte, 1) != 1)
                abort();
        fake_peer_listen_again(peer);
        fake_peer_accept(peer);
        for (uint64_t i = 1; i <= 4; ++i) {
                packet = fake_peer_expect(peer, ND_KIND_PUBLISH);
                if (packet->prelude.sequence != i || packet->body[0] != i)
                        abort();
        }
        packet = fake_peer_expect(peer, ND_KIND_PING);
        fake_peer_send(peer,
                       &(struct nd_prelude){.kind = ND_KIND_PONG,
                                            .sequence = packet->prelude.sequence,
                                            .place = 4},
                       NULL, 0, NULL, 0);
        fake_peer_drain(peer);
}

Test(client_publish, t43_a_queue_for_times_without_a_daemon)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus_publish_options now = NDBUS_PUBLISH_OPTIONS_INIT;
        struct fake_peer *peer;
        struct ndbus *bus;
        struct ndbus_message *m;
        const int64_t shape = 1;
        uint8_t byte;
        struct ndbus_array array = {.data = &byte, .ndim = 1, .shape = &shape};
        int go[2];

        cr_assert_eq(pipe(go), 0);
        peer = fake_peer_start(away_script, go);
        options.offline_messages = 4;
        now.timeout_ms = 0;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_ENOTCONN);
        for (byte = 1; byte <= 10; ++byte)
                cr_assert_eq(ndbus_publish(bus, "x", &array, 1, &now),
                             byte <= 4 ? 0 : NDBUS_EWOULDBLOCK);
        cr_assert_eq(write(go[1], "", 1), 1);
        cr_assert_eq(ndbus_flush(bus, 5000), 0, "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        close(go[0]);
        close(go[1]);
}

Test(client_publish, t43_without_a_queue_every_publish_is_an_error)
{
        struct fake_peer *peer = fake_peer_start(accept_script, NULL);
        struct ndbus *bus = open_bus(peer);
        struct ndbus_message *m;

        fake_peer_end(peer);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), NDBUS_ENOTCONN);
        for (int i = 0; i < 10; ++i)
                cr_assert_eq(ndbus_publish(bus, "x", NULL, 0, NULL), NDBUS_ENOTCONN);
        ndbus_close(bus, 0, NULL);
}

Test(client_publish, if_wanted_asks_once_and_then_knows)
{
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_message *m;
        uint64_t n = 9;

        options.if_wanted = 1;
        cr_assert_eq(ndbus_subscribe(bus, "a", NULL, NULL), 0);
        cr_assert_eq(ndbus_publish(bus, "b", NULL, 0, &options), 0);
        cr_assert_eq(ndbus_publish(bus, "a", NULL, 0, &options), 0);
        cr_assert_eq(ndbus_receive(bus, &m, 5000), 0);
        cr_assert_str_eq(ndbus_message_topic(m), "a");
        cr_assert_eq(ndbus_message_sequence(m), 1);
        ndbus_message_free(m);
        cr_assert_eq(ndbus_subscribers(bus, "a", &n, 5000), 0);
        cr_assert_eq(n, 1);
        cr_assert_eq(ndbus_wait_subscribers(bus, "a", 1, 0), 0);
        cr_assert_eq(ndbus_wait_subscribers(bus, "a", 2, 20), NDBUS_ETIMEDOUT);
        close_bus(bus);
        fake_peer_end(peer);
}
