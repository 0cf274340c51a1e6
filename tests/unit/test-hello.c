/* SPDX-License-Identifier: MIT */

/*
 * Hello
 *
 * The golden bytes are the examples of PROTOCOL.md. Everything else is the negative space: whoever
 * is not one of us is told apart at the first wrong byte.
 */

#include <criterion/criterion.h>
#include <ndbus/error.h>
#include <string.h>
#include "protocol/hello.h"

static const uint8_t golden[ND_HELLO_BYTES] = "NDBUS\0\1\1";
static const uint8_t golden_reply[ND_HELLO_BYTES] = "NDBUS\0\1\0\1\1";
static const uint8_t golden_full[ND_HELLO_BYTES] = "NDBUS\0\0\26\1\1";

Test(hello, packs_and_unpacks_the_golden_bytes)
{
        uint8_t out[ND_HELLO_BYTES];
        struct nd_hello hello;

        nd_hello_pack(&(struct nd_hello){1, 1}, out);
        cr_assert_arr_eq(out, golden, sizeof(out));
        cr_assert_eq(nd_hello_unpack(golden, sizeof(golden), &hello), 0);
        cr_assert_eq(hello.version_min, 1);
        cr_assert_eq(hello.version_max, 1);
}

Test(hello, packs_and_unpacks_both_answers)
{
        uint8_t out[ND_HELLO_BYTES];
        struct nd_hello_reply reply;

        nd_hello_reply_pack(&(struct nd_hello_reply){1, 0, 1, 1}, out);
        cr_assert_arr_eq(out, golden_reply, sizeof(out));
        cr_assert_eq(nd_hello_reply_unpack(out, sizeof(out), &reply), 0);
        cr_assert_eq(reply.version, 1);
        cr_assert_eq(reply.reason, 0);

        nd_hello_reply_pack(&(struct nd_hello_reply){0, -NDBUS_ESERVER_FULL, 1, 1}, out);
        cr_assert_arr_eq(out, golden_full, sizeof(out));
        cr_assert_eq(nd_hello_reply_unpack(out, sizeof(out), &reply), 0);
        cr_assert_eq(reply.version, 0);
        cr_assert_eq(reply.reason, 22);
        cr_assert_eq(reply.version_min, 1);
        cr_assert_eq(reply.version_max, 1);
}

Test(hello, is_short_at_every_shorter_length)
{
        struct nd_hello hello = {7, 7};
        struct nd_hello_reply reply = {7, 7, 7, 7};

        for (size_t n = 0; n < ND_HELLO_BYTES; ++n) {
                cr_expect_eq(nd_hello_unpack(golden, n, &hello), ND_HELLO_E_SHORT, "n=%zu", n);
                cr_expect_eq(nd_hello_reply_unpack(golden_reply, n, &reply), ND_HELLO_E_SHORT,
                             "n=%zu", n);
                cr_expect_eq(nd_hello_reply_unpack(golden_full, n, &reply), ND_HELLO_E_SHORT,
                             "n=%zu", n);
        }
        cr_expect_eq(hello.version_min, 7, "result was written");
        cr_expect_eq(reply.version, 7, "result was written");
}

Test(hello, accepts_no_bytes_at_all)
{
        struct nd_hello hello;

        cr_assert_eq(nd_hello_unpack(NULL, 0, &hello), ND_HELLO_E_SHORT);
}

/* T31: an HTTP client, a TLS client, noise */
Test(hello, tells_strangers_at_the_first_wrong_byte)
{
        static const struct {
                const char *bytes;
                size_t n_wrong; /* how many bytes show it */
        } cases[] = {
                {"GET / HTTP/1.0\r\n\r\n", 1},
                {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03........", 1},
                {"\x00\x00\x00\x00\x00\x00\x00\x00........", 1},
                {"NATS\0\0\1\1........", 2},
                {"NDBUX\0\1\1........", 5},
                {"NDBUS \1\1........", 6},
                {"NDBUS\0\0\1........", 7}, /* there is no version 0 */
                {"NDBUS\0\2\1........", 8}, /* the lowest is above the highest */
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                struct nd_hello hello;
                size_t n = cases[i].n_wrong;

                cr_expect_eq(nd_hello_unpack(cases[i].bytes, n - 1, &hello), ND_HELLO_E_SHORT,
                             "case %zu", i);
                for (; n <= ND_HELLO_BYTES; ++n)
                        cr_expect_eq(nd_hello_unpack(cases[i].bytes, n, &hello), ND_HELLO_E_ALIEN,
                                     "case %zu, n=%zu", i, n);
        }
}

Test(hello, does_not_look_at_the_last_bytes)
{
        uint8_t bytes[ND_HELLO_BYTES + 3];
        struct nd_hello hello;
        struct nd_hello_reply reply;

        memset(bytes, 0xff, sizeof(bytes));
        memcpy(bytes, golden, 8);
        cr_expect_eq(nd_hello_unpack(bytes, sizeof(bytes), &hello), 0);
        memcpy(bytes, golden_reply, 10);
        cr_expect_eq(nd_hello_reply_unpack(bytes, sizeof(bytes), &reply), 0);
}

Test(hello, refuses_an_answer_that_contradicts_itself)
{
        struct nd_hello_reply reply;

        cr_expect_eq(nd_hello_reply_unpack("NDBUS\0\0\0........", 8, &reply), ND_HELLO_E_ALIEN);
        cr_expect_eq(nd_hello_reply_unpack("NDBUS\0\1\26........", 8, &reply), ND_HELLO_E_ALIEN);
        cr_expect_eq(nd_hello_reply_unpack("HTTP/1.0 400 Bad", 16, &reply), ND_HELLO_E_ALIEN);
}
