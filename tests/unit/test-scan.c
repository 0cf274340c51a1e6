/* SPDX-License-Identifier: MIT */

/*
 * Bounded scan of msgpack
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/scan.h"

static int scan_header(const void *data, size_t n_data)
{
        return nd_scan(data, n_data, ND_SCAN_HEADER, "header", NULL);
}

static int scan_meta(const void *data, size_t n_data)
{
        return nd_scan(data, n_data, ND_SCAN_META, "meta", NULL);
}

#define BYTES(_s) (_s), sizeof(_s) - 1

struct bytes {
        const char *name;
        const char *data;
        size_t n_data;
};

#define ROW(_name, _s)                                                                             \
        {                                                                                          \
                _name, _s, sizeof(_s) - 1                                                          \
        }

static const char ffffff_30[] = "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff"
                                "\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff\xdd\x00\xff\xff\xff";

/* The hostile bytes of the case, without their map: each is tried alone and as a value. */
static const struct bytes t30[] = {
        ROW("dd10000000", "\xdd\x10\x00\x00\x00"),
        ROW("df10000000", "\xdf\x10\x00\x00\x00"),
        ROW("ddffffffff", "\xdd\xff\xff\xff\xff"),
        ROW("30 x dd00ffffff", ffffff_30),
        ROW("c6ffffffff01", "\xc6\xff\xff\xff\xff\x01"),
        ROW("c1", "\xc1"),
        ROW("c0c0", "\xc0\xc0"),
        ROW("82a16101a16102", "\x82\xa1\x61\x01\xa1\x61\x02"),
};

Test(scan, t30_refuses_every_hostile_header)
{
        static uint8_t deep[100000];

        for (size_t i = 0; i < nd_array_size(t30); ++i)
                cr_expect_eq(scan_header(t30[i].data, t30[i].n_data), NDBUS_EHEADER, "%s",
                             t30[i].name);

        memset(deep, 0x91, sizeof(deep));
        cr_expect_eq(scan_header(deep, sizeof(deep)), NDBUS_EHEADER, "100000 x 91");
        deep[33] = 0xc0;
        cr_expect_eq(scan_header(deep, 34), NDBUS_EHEADER, "33 x 91 + c0");
}

Test(scan, t30_refuses_them_below_a_key_too)
{
        static uint8_t buf[3 + 100000] = {0x81, 0xa1, 'x'};

        for (size_t i = 0; i < nd_array_size(t30); ++i) {
                /* a key twice is nothing to a map below an unknown key: it is the user's own */
                bool is_free = t30[i].data[0] == (char)0x82;

                memcpy(buf + 3, t30[i].data, t30[i].n_data);
                cr_expect_eq(scan_header(buf, 3 + t30[i].n_data), is_free ? 0 : NDBUS_EHEADER, "%s",
                             t30[i].name);
                cr_expect_eq(scan_meta(buf, 3 + t30[i].n_data), is_free ? 0 : NDBUS_EMETA, "%s",
                             t30[i].name);
        }

        memset(buf + 3, 0x91, sizeof(buf) - 3);
        cr_expect_eq(scan_header(buf, sizeof(buf)), NDBUS_EHEADER, "100000 x 91");
        buf[3 + 33] = 0xc0;
        cr_expect_eq(scan_header(buf, 3 + 34), NDBUS_EHEADER, "33 x 91 + c0");
}

/* One map with one key in front of every type of object. */
static const struct bytes wholes[] = {
        ROW("empty map", "\x80"),
        ROW("fixint", "\x81\xa1x\x00"),
        ROW("negative fixint", "\x81\xa1x\xff"),
        ROW("nil", "\x81\xa1x\xc0"),
        ROW("bool", "\x81\xa1x\xc3"),
        ROW("bin8", "\x81\xa1x\xc4\x01z"),
        ROW("bin16", "\x81\xa1x\xc5\x00\x01z"),
        ROW("bin32", "\x81\xa1x\xc6\x00\x00\x00\x01z"),
        ROW("ext8", "\x81\xa1x\xc7\x01\x05z"),
        ROW("ext16", "\x81\xa1x\xc8\x00\x01\x05z"),
        ROW("ext32", "\x81\xa1x\xc9\x00\x00\x00\x01\x05z"),
        ROW("float32", "\x81\xa1x\xca\x00\x00\x00\x00"),
        ROW("float64", "\x81\xa1x\xcb\x00\x00\x00\x00\x00\x00\x00\x00"),
        ROW("uint8", "\x81\xa1x\xcc\x80"),
        ROW("uint16", "\x81\xa1x\xcd\x80\x00"),
        ROW("uint32", "\x81\xa1x\xce\x80\x00\x00\x00"),
        ROW("uint64", "\x81\xa1x\xcf\x80\x00\x00\x00\x00\x00\x00\x00"),
        ROW("int8", "\x81\xa1x\xd0\x80"),
        ROW("int16", "\x81\xa1x\xd1\x80\x00"),
        ROW("int32", "\x81\xa1x\xd2\x80\x00\x00\x00"),
        ROW("int64", "\x81\xa1x\xd3\x80\x00\x00\x00\x00\x00\x00\x00"),
        ROW("fixext1", "\x81\xa1x\xd4\x01z"),
        ROW("fixext2", "\x81\xa1x\xd5\x01zz"),
        ROW("fixext4", "\x81\xa1x\xd6\x01zzzz"),
        ROW("fixext8", "\x81\xa1x\xd7\x01zzzzzzzz"),
        ROW("fixext16", "\x81\xa1x\xd8\x01zzzzzzzzzzzzzzzz"),
        ROW("fixstr", "\x81\xa1x\xa2hi"),
        ROW("str8", "\x81\xa1x\xd9\x02hi"),
        ROW("str16", "\x81\xa1x\xda\x00\x02hi"),
        ROW("str32", "\x81\xa1x\xdb\x00\x00\x00\x02hi"),
        ROW("fixarray", "\x81\xa1x\x92\x01\x02"),
        ROW("array16", "\x81\xa1x\xdc\x00\x02\x01\x02"),
        ROW("array32", "\x81\xa1x\xdd\x00\x00\x00\x02\x01\x02"),
        ROW("fixmap", "\x81\xa1x\x81\x01\x02"),
        ROW("map16", "\x81\xa1x\xde\x00\x01\x01\x02"),
        ROW("map32", "\x81\xa1x\xdf\x00\x00\x00\x01\x01\x02"),
        ROW("top map16", "\xde\x00\x01\xa1x\x01"),
        ROW("top map32", "\xdf\x00\x00\x00\x01\xa1x\x01"),
        ROW("empty containers", "\x82\xa1x\x90\xa1y\x80"),
        ROW("frames",
            "\x81\xa6"
            "frames\x92\x81\xa5"
            "bytes\x01\x81\xa6"
            "fields\x91\x81\xa4name\xa1g"),
};

Test(scan, takes_every_type_and_refuses_every_prefix_and_a_byte_more)
{
        for (size_t i = 0; i < nd_array_size(wholes); ++i) {
                const struct bytes *w = &wholes[i];
                uint8_t longer[64];

                cr_assert_lt(w->n_data, sizeof(longer));
                cr_expect_eq(scan_header(w->data, w->n_data), 0, "%s", w->name);
                cr_expect_eq(scan_meta(w->data, w->n_data), 0, "%s", w->name);
                for (size_t n = 0; n < w->n_data; ++n) {
                        /* a heap copy of just these bytes, so that reading past them shows */
                        uint8_t *exact = malloc(n ? n : 1);

                        cr_assert_not_null(exact);
                        memcpy(exact, w->data, n);
                        cr_expect_eq(scan_header(exact, n), NDBUS_EHEADER, "%s, %zu", w->name, n);
                        cr_expect_eq(scan_meta(exact, n), NDBUS_EMETA, "%s, %zu", w->name, n);
                        free(exact);
                }
                memcpy(longer, w->data, w->n_data);
                longer[w->n_data] = 0xc0;
                cr_expect_eq(scan_header(longer, w->n_data + 1), NDBUS_EHEADER, "%s", w->name);
        }
}

Test(scan, wants_a_map)
{
        cr_expect_eq(scan_header(BYTES("\x90")), NDBUS_EHEADER);
        cr_expect_eq(scan_header(BYTES("\xa0")), NDBUS_EHEADER);
        cr_expect_eq(scan_meta(BYTES("\x01")), NDBUS_EMETA);
        cr_expect_eq(scan_meta(NULL, 0), NDBUS_EMETA);
}

/* @depth containers, the outermost a map, and a nil. */
static size_t make_deep(uint8_t *buf, size_t depth)
{
        size_t n = 0;

        buf[n++] = 0x81;
        buf[n++] = 0xa1;
        buf[n++] = 'x';
        for (size_t i = 1; i < depth; ++i)
                buf[n++] = 0x91;
        buf[n++] = 0xc0;
        return n;
}

Test(scan, depth_ends_at_its_limit)
{
        uint8_t buf[64];

        cr_expect_eq(scan_meta(buf, make_deep(buf, ND_SCAN_DEPTH_MAX - 1)), 0);
        cr_expect_eq(scan_meta(buf, make_deep(buf, ND_SCAN_DEPTH_MAX)), 0);
        cr_expect_eq(scan_meta(buf, make_deep(buf, ND_SCAN_DEPTH_MAX + 1)), NDBUS_EMETA);
}

/* A map of @n_keys keys, "k00", "k01" ... */
static size_t make_wide(uint8_t *buf, unsigned n_keys)
{
        size_t n = 0;

        buf[n++] = 0xde;
        buf[n++] = 0;
        buf[n++] = (uint8_t)n_keys;
        for (unsigned i = 0; i < n_keys; ++i) {
                buf[n++] = 0xa3;
                buf[n++] = 'k';
                buf[n++] = (uint8_t)('0' + i / 10);
                buf[n++] = (uint8_t)('0' + i % 10);
                buf[n++] = 0xc0;
        }
        return n;
}

Test(scan, keys_of_a_header_are_few_short_and_there_once)
{
        uint8_t buf[512] = {0x81, 0xd9};

        cr_expect_eq(scan_header(buf, make_wide(buf, ND_MAP_KEYS_MAX)), 0);
        cr_expect_eq(scan_header(buf, make_wide(buf, ND_MAP_KEYS_MAX + 1)), NDBUS_EHEADER);
        cr_expect_eq(scan_meta(buf, make_wide(buf, ND_MAP_KEYS_MAX + 1)), 0);

        for (unsigned n = ND_KEY_BYTES_MAX - 1; n <= ND_KEY_BYTES_MAX + 1; ++n) {
                buf[0] = 0x81;
                buf[1] = 0xd9;
                buf[2] = (uint8_t)n;
                memset(buf + 3, 'k', n);
                buf[3 + n] = 0xc0;
                cr_expect_eq(scan_header(buf, n + 4), n <= ND_KEY_BYTES_MAX ? 0 : NDBUS_EHEADER);
                cr_expect_eq(scan_meta(buf, n + 4), 0);
        }

        cr_expect_eq(scan_header(BYTES("\x82\xa1x\x01\xa1y\x01")), 0);
        cr_expect_eq(scan_header(BYTES("\x82\xa1x\x01\xa1x\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_header(BYTES("\x82\xa1x\x01\xd9\x01x\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_meta(BYTES("\x82\xa1x\x01\xa1x\x01")), 0);
        cr_expect_eq(scan_header(BYTES("\x81\x05\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_header(BYTES("\x81\xc4\x01x\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_header(BYTES("\x81\x90\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_meta(BYTES("\x81\x90\x01")), 0);
}

Test(scan, frames_and_fields_are_as_strict_as_the_header)
{
#define FRAMES                                                                                     \
        "\x81\xa6"                                                                                 \
        "frames\x92\x80"
#define FIELDS                                                                                     \
        FRAMES "\x81\xa6"                                                                          \
               "fields\x91"

        cr_expect_eq(scan_header(BYTES(FRAMES "\x82\xa1x\x01\xa1y\x01")), 0);
        cr_expect_eq(scan_header(BYTES(FRAMES "\x82\xa1x\x01\xa1x\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_header(BYTES(FRAMES "\x81\x05\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_header(BYTES(FIELDS "\x82\xa1x\x01\xa1y\x01")), 0);
        cr_expect_eq(scan_header(BYTES(FIELDS "\x82\xa1x\x01\xa1x\x01")), NDBUS_EHEADER);
        cr_expect_eq(scan_header(BYTES(FIELDS "\x81\xa6"
                                              "fields\x91\x82\xa1x\x01\xa1x\x01")),
                     NDBUS_EHEADER);
        cr_expect_eq(scan_meta(BYTES(FIELDS "\x82\xa1x\x01\xa1x\x01")), 0);

        /* below a key that the protocol does not know, maps are the user's own */
        cr_expect_eq(scan_header(BYTES(FRAMES "\x81\xa1x\x82\xa1x\x01\xa1x\x01")), 0);
        cr_expect_eq(scan_header(BYTES("\x81\xa1x\x81\xa6"
                                       "frames\x91\x82\x01\x01\x01\x01")),
                     0);
        /* and the keys of one frame are not those of the next */
        cr_expect_eq(scan_header(BYTES("\x81\xa6"
                                       "frames\x92\x81\xa1x\x01\x81\xa1x\x01")),
                     0);
}

Test(scan, the_fault_names_field_and_byte)
{
        struct nd_fault fault;

        cr_expect_eq(nd_scan(BYTES("\x81\xa1x\xdd\x10\x00\x00\x00"), ND_SCAN_META, "meta", &fault),
                     NDBUS_EMETA);
        cr_expect_eq(fault.code, NDBUS_EMETA);
        cr_expect_str_eq(fault.field, "meta");
        cr_expect_str_eq(fault.text, "byte 3: 268435456 objects are announced, 0 bytes are left");

        cr_expect_eq(nd_scan(BYTES("\x82\xa1x\x01\xa1x\x01"), ND_SCAN_HEADER, "header", &fault),
                     NDBUS_EHEADER);
        cr_expect_str_eq(fault.text, "byte 4: key \"x\" stands twice in a map");
}
