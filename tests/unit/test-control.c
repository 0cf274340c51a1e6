/* SPDX-License-Identifier: MIT */

/*
 * Headers of control packets
 *
 * What is packed unpacks to the same, for each kind; the bytes themselves are compared in
 * test-golden. Then what a peer may get wrong: a key missing, a type, a range, a pair torn.
 */

#include <criterion/criterion.h>
#include <msgpack.h>
#include <string.h>
#include "protocol/control.h"
#include "protocol/prelude.h"

static bool is_text(struct nd_string string, const char *text)
{
        return string.at && string.n == strlen(text) && memcmp(string.at, text, string.n) == 0;
}

Test(control, connect_round_trip)
{
        struct nd_connect in = {
                .features = ND_FEATURE_SHM | ND_FEATURE_LINK,
                .client = ND_STRING("camera"),
                .pid = 4711,
        };
        struct nd_control_bytes bytes;
        struct nd_connect out;

        nd_connect_pack(&in, &bytes);
        cr_assert_eq(nd_connect_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect_eq(out.features, in.features);
        cr_expect(is_text(out.client, "camera"));
        cr_expect_eq(out.pid, 4711);

        in = (struct nd_connect){0};
        nd_connect_pack(&in, &bytes);
        cr_assert_eq(nd_connect_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect_eq(out.features, 0);
        cr_expect_null(out.client.at);
        cr_expect_eq(out.pid, 0);
}

Test(control, welcome_round_trip)
{
        struct nd_welcome in = {
                .features = ND_FEATURE_LINK,
                .source = UINT64_MAX,
                .grant_bytes = 65536,
                .message_bytes_max = UINT64_C(1) << 40,
                .header_bytes_max = 1 << 20,
                .meta_bytes_max = 1 << 19,
                .dims_max = 64,
                .subscriptions_max = 65536,
                .shm_bytes_max = 3,
                .server = ND_STRING("ndbusd 0.1.0"),
        };
        struct nd_control_bytes bytes;
        struct nd_welcome out;

        nd_welcome_pack(&in, &bytes);
        cr_assert_eq(nd_welcome_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect_eq(out.features, in.features);
        cr_expect_eq(out.source, in.source);
        cr_expect_eq(out.grant_bytes, in.grant_bytes);
        cr_expect_eq(out.message_bytes_max, in.message_bytes_max);
        cr_expect_eq(out.header_bytes_max, in.header_bytes_max);
        cr_expect_eq(out.meta_bytes_max, in.meta_bytes_max);
        cr_expect_eq(out.dims_max, in.dims_max);
        cr_expect_eq(out.subscriptions_max, in.subscriptions_max);
        cr_expect_eq(out.shm_bytes_max, in.shm_bytes_max);
        cr_expect(is_text(out.server, "ndbusd 0.1.0"));
}

Test(control, error_round_trip)
{
        struct nd_fault fault = {0};
        struct nd_error_header in, out;
        struct nd_control_bytes bytes;

        nd_fault_set_limit(&fault, NDBUS_ETOO_BIG, "body_bytes", 1048577, 1048576, "bytes");
        in = nd_error_header_from_fault(&fault, ND_KIND_PUBLISH, true);
        nd_error_header_pack(&in, &bytes);
        cr_assert_eq(nd_error_header_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect_eq(out.code, 40);
        cr_expect_eq(out.of, 16);
        cr_expect(out.closes);
        cr_expect(is_text(out.field, "body_bytes"));
        cr_expect(is_text(out.text, fault.text));
        cr_expect(out.has_numbers);
        cr_expect_eq(out.value, 1048577);
        cr_expect_eq(out.limit, 1048576);

        nd_fault_set(&fault, NDBUS_ENO_SUBSCRIBER, "", "nobody");
        fault.has_numbers = false;
        in = nd_error_header_from_fault(&fault, ND_KIND_PUBLISH, false);
        nd_error_header_pack(&in, &bytes);
        cr_assert_eq(nd_error_header_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect_eq(out.code, 47);
        cr_expect_not(out.closes);
        cr_expect_null(out.field.at);
        cr_expect_not(out.has_numbers);
}

Test(control, subscribe_round_trip)
{
        struct nd_subscribe in = {
                .pattern = ND_STRING("a/**"),
                .policy = ND_POLICY_BLOCK,
                .depth_messages = 1,
                .depth_bytes = UINT64_MAX,
                .window_messages = 256,
                .window_bytes = 4 << 20,
                .retained = false,
        };
        struct nd_control_bytes bytes;
        struct nd_subscribe out;

        nd_subscribe_pack(&in, &bytes);
        cr_assert_eq(nd_subscribe_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect(is_text(out.pattern, "a/**"));
        cr_expect_eq(out.policy, ND_POLICY_BLOCK);
        cr_expect_eq(out.depth_messages, 1);
        cr_expect_eq(out.depth_bytes, UINT64_MAX);
        cr_expect_eq(out.window_messages, 256);
        cr_expect_eq(out.window_bytes, 4 << 20);
        cr_expect_null(out.group.at);
        cr_expect_not(out.retained);

        in.group = ND_STRING("workers");
        in.retained = true;
        nd_subscribe_pack(&in, &bytes);
        cr_assert_eq(nd_subscribe_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect(is_text(out.group, "workers"));
        cr_expect_not(out.retained, "a group gets no retained messages");
}

/* {"pattern": "a", "window": 1, "window_bytes": 0} */
#define SUBSCRIBE_LEAST                                                                            \
        "\x83\xa7pattern\xa1"                                                                      \
        "a\xa6window\x01\xacwindow_bytes\x00"

Test(control, subscribe_has_defaults)
{
        struct nd_subscribe out;

        cr_assert_eq(nd_subscribe_unpack(SUBSCRIBE_LEAST, sizeof(SUBSCRIBE_LEAST) - 1, &out, NULL),
                     0);
        cr_expect_eq(out.policy, ND_POLICY_DROP_OLDEST);
        cr_expect_eq(out.depth_messages, 1000);
        cr_expect_eq(out.depth_bytes, 64 << 20);
        cr_expect_eq(out.window_messages, 1);
        cr_expect_eq(out.window_bytes, 0);
        cr_expect_null(out.group.at);
        cr_expect(out.retained);
}

Test(control, the_small_ones_round_trip)
{
        struct nd_control_bytes bytes;
        struct nd_subscribed subscribed;
        struct nd_unsubscribed unsubscribed;
        struct nd_goodbye goodbye;

        nd_subscribed_pack(&(struct nd_subscribed){5, 6}, &bytes);
        cr_assert_eq(nd_subscribed_unpack(bytes.data, bytes.n, &subscribed, NULL), 0);
        cr_expect_eq(subscribed.depth_messages, 5);
        cr_expect_eq(subscribed.depth_bytes, 6);

        nd_unsubscribed_pack(&(struct nd_unsubscribed){0}, &bytes);
        cr_assert_eq(nd_unsubscribed_unpack(bytes.data, bytes.n, &unsubscribed, NULL), 0);
        cr_expect_eq(unsubscribed.code, 0);
        cr_expect_null(unsubscribed.text.at);
        cr_expect_not(unsubscribed.has_numbers);

        nd_unsubscribed_pack(
                &(struct nd_unsubscribed){63, ND_STRING("too slow"), true, 70000000, 67108864},
                &bytes);
        cr_assert_eq(nd_unsubscribed_unpack(bytes.data, bytes.n, &unsubscribed, NULL), 0);
        cr_expect_eq(unsubscribed.code, 63);
        cr_expect(is_text(unsubscribed.text, "too slow"));
        cr_expect(unsubscribed.has_numbers);
        cr_expect_eq(unsubscribed.value, 70000000);
        cr_expect_eq(unsubscribed.limit, 67108864);

        nd_goodbye_pack(&(struct nd_goodbye){28, ND_STRING("stopping")}, &bytes);
        cr_assert_eq(nd_goodbye_unpack(bytes.data, bytes.n, &goodbye, NULL), 0);
        cr_expect_eq(goodbye.code, 28);
        cr_expect(is_text(goodbye.text, "stopping"));
}

Test(control, goodbye_needs_no_header)
{
        struct nd_goodbye goodbye = {7, ND_STRING("x")};

        cr_assert_eq(nd_goodbye_unpack("", 0, &goodbye, NULL), 0);
        cr_expect_eq(goodbye.code, 0);
        cr_expect_null(goodbye.text.at);
        cr_assert_eq(nd_goodbye_unpack("\x80", 1, &goodbye, NULL), 0);
        cr_expect_eq(goodbye.code, 0);
}

Test(control, topic_asks_in_one_direction_and_tells_in_the_other)
{
        struct nd_topic_header in = {
                .topic = ND_STRING("a/b"),
                .watch = false,
                .allowed = true,
                .subscribers = 7,
                .paused = true,
        };
        struct nd_control_bytes bytes;
        struct nd_topic_header out;

        nd_topic_header_pack(&in, false, &bytes);
        cr_assert_eq(nd_topic_header_unpack(bytes.data, bytes.n, false, &out, NULL), 0);
        cr_expect(is_text(out.topic, "a/b"));
        cr_expect_not(out.watch);
        cr_expect_not(out.allowed);
        cr_expect_eq(nd_topic_header_unpack(bytes.data, bytes.n, true, &out, NULL), NDBUS_EHEADER);

        nd_topic_header_pack(&in, true, &bytes);
        cr_assert_eq(nd_topic_header_unpack(bytes.data, bytes.n, true, &out, NULL), 0);
        cr_expect(out.allowed);
        cr_expect_eq(out.subscribers, 7);
        cr_expect(out.paused);

        cr_assert_eq(nd_topic_header_unpack(bytes.data, bytes.n, false, &out, NULL), 0);
        cr_expect(out.watch, "to ask is to watch");
}

/* --------------------------------------------------------------------------- what fits */

Test(control, cuts_texts_from_outside_between_characters)
{
        static char longest[100000];
        struct nd_control_bytes bytes;
        struct nd_error_header out;
        struct nd_connect connect;

        for (size_t i = 0; i + 1 < sizeof(longest); i += 2)
                memcpy(longest + i, "\xc3\xa9", 2);

        nd_error_header_pack(
                &(struct nd_error_header){
                        .code = 0x7fffffff,
                        .of = 255,
                        .closes = true,
                        .field = {longest, sizeof(longest)},
                        .text = {longest + 1, sizeof(longest) - 1},
                        .has_numbers = true,
                        .value = UINT64_MAX,
                        .limit = UINT64_MAX,
                },
                &bytes);
        cr_assert_eq(nd_error_header_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect_eq(out.field.n, 254, "%zu", out.field.n);
        cr_expect_eq(out.text.n, 1023, "%zu", out.text.n);

        nd_connect_pack(&(struct nd_connect){.features = UINT32_MAX,
                                             .client = {longest, sizeof(longest)},
                                             .pid = UINT64_MAX},
                        &bytes);
        cr_assert_eq(nd_connect_unpack(bytes.data, bytes.n, &connect, NULL), 0);
        cr_expect_eq(connect.features,
                     ND_FEATURE_SHM | ND_FEATURE_LINK | ND_FEATURE_RING | ND_FEATURE_BELL);
        cr_expect_eq(connect.client.n, 254);

        /* not UTF-8 at all: tails without a head */
        memset(longest, 0x80, sizeof(longest));
        nd_connect_pack(&(struct nd_connect){.client = {longest, sizeof(longest)}}, &bytes);
        cr_assert_eq(nd_connect_unpack(bytes.data, bytes.n, &connect, NULL), 0);
        cr_expect_eq(connect.client.n, 0);
}

Test(control, the_greatest_subscribe_fits)
{
        static char name[255];
        struct nd_control_bytes bytes;
        struct nd_subscribe out;

        memset(name, 'n', sizeof(name));
        nd_subscribe_pack(&(struct nd_subscribe){.pattern = {name, sizeof(name)},
                                                 .policy = ND_POLICY_DISCONNECT,
                                                 .depth_messages = UINT64_MAX,
                                                 .depth_bytes = UINT64_MAX,
                                                 .window_messages = UINT64_MAX,
                                                 .window_bytes = UINT64_MAX,
                                                 .group = {name, sizeof(name)}},
                          &bytes);
        cr_assert_eq(nd_subscribe_unpack(bytes.data, bytes.n, &out, NULL), 0);
        cr_expect_eq(out.pattern.n, 255);
        cr_expect_eq(out.group.n, 255);
}

/* ------------------------------------------------------------------------ what is wrong */

enum kind {
        CONNECT,
        WELCOME,
        ERROR_,
        SUBSCRIBE,
        SUBSCRIBED,
        UNSUBSCRIBED,
        ASK,
        TELL,
        GOODBYE,
};

static union {
        struct nd_connect connect;
        struct nd_welcome welcome;
        struct nd_error_header error;
        struct nd_subscribe subscribe;
        struct nd_subscribed subscribed;
        struct nd_unsubscribed unsubscribed;
        struct nd_topic_header topic;
        struct nd_goodbye goodbye;
        uint8_t bytes[256];
} result;

static int unpack(enum kind kind, const void *data, size_t n, struct nd_fault *fault)
{
        switch (kind) {
        case CONNECT:
                return nd_connect_unpack(data, n, &result.connect, fault);
        case WELCOME:
                return nd_welcome_unpack(data, n, &result.welcome, fault);
        case ERROR_:
                return nd_error_header_unpack(data, n, &result.error, fault);
        case SUBSCRIBE:
                return nd_subscribe_unpack(data, n, &result.subscribe, fault);
        case SUBSCRIBED:
                return nd_subscribed_unpack(data, n, &result.subscribed, fault);
        case UNSUBSCRIBED:
                return nd_unsubscribed_unpack(data, n, &result.unsubscribed, fault);
        case ASK:
                return nd_topic_header_unpack(data, n, false, &result.topic, fault);
        case TELL:
                return nd_topic_header_unpack(data, n, true, &result.topic, fault);
        case GOODBYE:
                return nd_goodbye_unpack(data, n, &result.goodbye, fault);
        }
        return -1;
}

#define MAP(_literal) _literal, sizeof(_literal) - 1

static const struct {
        const char *why;
        enum kind kind;
        const char *data;
        size_t n;
        int want;
        const char *field;
} bad[] = {
        {"no bytes", CONNECT, MAP(""), NDBUS_EHEADER, "header"},
        {"not a map", CONNECT, MAP("\x90"), NDBUS_EHEADER, "header"},
        {"features missing", CONNECT, MAP("\x80"), NDBUS_EHEADER, "features"},
        {"features no list", CONNECT,
         MAP("\x81\xa8"
             "features\x01"),
         NDBUS_EHEADER, "features"},
        {"feature no string", CONNECT,
         MAP("\x81\xa8"
             "features\x91\x01"),
         NDBUS_EHEADER, "features"},
        {"client no string", CONNECT,
         MAP("\x82\xa8"
             "features\x90\xa6"
             "client\x01"),
         NDBUS_EHEADER, "client"},
        {"client binary", CONNECT,
         MAP("\x82\xa8"
             "features\x90\xa6"
             "client\xc4\x01x"),
         NDBUS_EHEADER, "client"},
        {"pid negative", CONNECT,
         MAP("\x82\xa8"
             "features\x90\xa3pid\xff"),
         NDBUS_EHEADER, "pid"},
        {"pid no integer", CONNECT,
         MAP("\x82\xa8"
             "features\x90\xa3pid\xca\x3f\x80\x00\x00"),
         NDBUS_EHEADER, "pid"},
        {"key twice", CONNECT,
         MAP("\x82\xa8"
             "features\x90\xa8"
             "features\x90"),
         NDBUS_EHEADER, "header"},
        {"trailing bytes", CONNECT,
         MAP("\x81\xa8"
             "features\x90\xc0"),
         NDBUS_EHEADER, "header"},
        {"cut short", CONNECT,
         MAP("\x81\xa8"
             "features"),
         NDBUS_EHEADER, "header"},

        {"all missing", WELCOME, MAP("\x80"), NDBUS_EHEADER, "features"},
        {"source 0", WELCOME,
         MAP("\x82\xa8"
             "features\x90\xa6source\x00"),
         NDBUS_EHEADER, "source"},
        {"grant missing", WELCOME,
         MAP("\x82\xa8"
             "features\x90\xa6source\x01"),
         NDBUS_EHEADER, "grant"},

        {"code missing", ERROR_, MAP("\x82\xa2of\x00\xa4text\xa1x"), NDBUS_EHEADER, "code"},
        {"code 0", ERROR_,
         MAP("\x83\xa4"
             "code\x00\xa2of\x00\xa4text\xa1x"),
         NDBUS_EHEADER, "code"},
        {"code 2^31", ERROR_,
         MAP("\x83\xa4"
             "code\xce\x80\x00\x00\x00\xa2of\x00\xa4text\xa1x"),
         NDBUS_EHEADER, "code"},
        {"of 256", ERROR_,
         MAP("\x83\xa4"
             "code\x01\xa2of\xcd\x01\x00\xa4text\xa1x"),
         NDBUS_EHEADER, "of"},
        {"text missing", ERROR_,
         MAP("\x82\xa4"
             "code\x01\xa2of\x00"),
         NDBUS_EHEADER, "text"},
        {"closes no bool", ERROR_,
         MAP("\x84\xa4"
             "code\x01\xa2of\x00\xa4text\xa1x\xa6"
             "closes\x01"),
         NDBUS_EHEADER, "closes"},
        {"value alone", ERROR_,
         MAP("\x84\xa4"
             "code\x01\xa2of\x00\xa4text\xa1x\xa5value\x01"),
         NDBUS_EHEADER, "limit"},
        {"limit alone", ERROR_,
         MAP("\x84\xa4"
             "code\x01\xa2of\x00\xa4text\xa1x\xa5limit\x01"),
         NDBUS_EHEADER, "value"},

        {"pattern missing", SUBSCRIBE, MAP("\x82\xa6window\x01\xacwindow_bytes\x00"), NDBUS_EHEADER,
         "pattern"},
        {"pattern wrong", SUBSCRIBE,
         MAP("\x83\xa7pattern\xa2"
             "a*\xa6window\x01\xacwindow_bytes\x00"),
         NDBUS_ETOPIC, "pattern"},
        {"pattern empty", SUBSCRIBE, MAP("\x83\xa7pattern\xa0\xa6window\x01\xacwindow_bytes\x00"),
         NDBUS_ETOPIC, "pattern"},
        {"window missing", SUBSCRIBE,
         MAP("\x82\xa7pattern\xa1"
             "a\xacwindow_bytes\x00"),
         NDBUS_EHEADER, "window"},
        {"window_bytes missing", SUBSCRIBE,
         MAP("\x82\xa7pattern\xa1"
             "a\xa6window\x01"),
         NDBUS_EHEADER, "window_bytes"},
        {"policy unknown", SUBSCRIBE,
         MAP("\x84\xa7pattern\xa1"
             "a\xa6window\x01\xacwindow_bytes\x00\xa6policy\xa4"
             "drop"),
         NDBUS_EHEADER, "policy"},
        {"policy no string", SUBSCRIBE,
         MAP("\x84\xa7pattern\xa1"
             "a\xa6window\x01\xacwindow_bytes\x00\xa6policy\x01"),
         NDBUS_EHEADER, "policy"},
        {"depth 0", SUBSCRIBE,
         MAP("\x84\xa7pattern\xa1"
             "a\xa6window\x01\xacwindow_bytes\x00\xa5"
             "depth\x00"),
         NDBUS_EHEADER, "depth"},
        {"bytes 0", SUBSCRIBE,
         MAP("\x84\xa7pattern\xa1"
             "a\xa6window\x01\xacwindow_bytes\x00\xa5"
             "bytes\x00"),
         NDBUS_EHEADER, "bytes"},
        {"group empty", SUBSCRIBE,
         MAP("\x84\xa7pattern\xa1"
             "a\xa6window\x01\xacwindow_bytes\x00\xa5group\xa0"),
         NDBUS_EHEADER, "group"},
        {"retained no bool", SUBSCRIBE,
         MAP("\x84\xa7pattern\xa1"
             "a\xa6window\x01\xacwindow_bytes\x00\xa8retained\xc0"),
         NDBUS_EHEADER, "retained"},

        {"bytes missing", SUBSCRIBED,
         MAP("\x81\xa5"
             "depth\x01"),
         NDBUS_EHEADER, "bytes"},
        {"code missing", UNSUBSCRIBED, MAP("\x80"), NDBUS_EHEADER, "code"},
        {"pair torn", UNSUBSCRIBED,
         MAP("\x82\xa4"
             "code\x00\xa5value\x01"),
         NDBUS_EHEADER, "limit"},
        {"topic missing", ASK, MAP("\x80"), NDBUS_EHEADER, "topic"},
        {"topic wild", ASK, MAP("\x81\xa5topic\xa1*"), NDBUS_ETOPIC, "topic"},
        {"topic no string", ASK,
         MAP("\x81\xa5topic\xc4\x01"
             "a"),
         NDBUS_EHEADER, "topic"},
        {"allowed missing", TELL,
         MAP("\x81\xa5topic\xa1"
             "a"),
         NDBUS_EHEADER, "allowed"},
        {"text no string", GOODBYE,
         MAP("\x82\xa4"
             "code\x00\xa4text\x90"),
         NDBUS_EHEADER, "text"},

        /* T30: msgpack-c would believe these */
        {"array of 2^28", CONNECT, MAP("\xdd\x10\x00\x00\x00"), NDBUS_EHEADER, "header"},
        {"map of 2^28", CONNECT, MAP("\xdf\x10\x00\x00\x00"), NDBUS_EHEADER, "header"},
        {"bin of 2^32", CONNECT, MAP("\xc6\xff\xff\xff\xff\x01"), NDBUS_EHEADER, "header"},
        {"0xc1", CONNECT, MAP("\xc1"), NDBUS_EHEADER, "header"},
        {"two objects", CONNECT, MAP("\xc0\xc0"), NDBUS_EHEADER, "header"},
        {"one key twice", CONNECT,
         MAP("\x82\xa1"
             "a\x01\xa1"
             "a\x02"),
         NDBUS_EHEADER, "header"},
};

Test(control, refuses_what_is_wrong_names_the_key_and_writes_nothing)
{
        for (size_t i = 0; i < nd_array_size(bad); ++i) {
                struct nd_fault fault = {0};
                int r;

                memset(&result, 0x5a, sizeof(result));
                r = unpack(bad[i].kind, bad[i].data, bad[i].n, &fault);
                cr_expect_eq(r, bad[i].want, "%zu %s: %d", i, bad[i].why, r);
                cr_expect_eq(fault.code, r, "%zu %s", i, bad[i].why);
                cr_expect_str_eq(fault.field, bad[i].field, "%zu %s", i, bad[i].why);
                cr_expect_neq(fault.text[0], '\0', "%zu %s", i, bad[i].why);
                for (size_t k = 0; k < sizeof(result); ++k)
                        cr_assert_eq(result.bytes[k], 0x5a, "%zu %s: result was written", i,
                                     bad[i].why);
                cr_expect_eq(unpack(bad[i].kind, bad[i].data, bad[i].n, NULL), r, "without fault");
        }
}

Test(control, is_refused_at_every_shorter_length)
{
        struct nd_control_bytes bytes;

        nd_connect_pack(
                &(struct nd_connect){.features = 3, .client = ND_STRING("camera"), .pid = 1},
                &bytes);
        for (size_t n = 0; n < bytes.n; ++n)
                cr_expect_eq(unpack(CONNECT, bytes.data, n, NULL), NDBUS_EHEADER, "n=%zu", n);
}

Test(control, passes_over_what_it_does_not_know)
{
        static const struct {
                enum kind kind;
                const char *data;
                size_t n;
        } cases[] = {
                {CONNECT, MAP("\x82\xa8"
                              "features\x93\xa3shm\xa5later\xa4link\xa3new\x81\x01\x92\xc0\xc3")},
                {SUBSCRIBED, MAP("\x83\xa1x\x90\xa5"
                                 "depth\x01\xa5"
                                 "bytes\x01")},
                {GOODBYE, MAP("\x82\xa4"
                              "code\xcc\x00\xa4more\xd9\x02xx")},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                struct nd_fault fault = {0};

                cr_expect_eq(unpack(cases[i].kind, cases[i].data, cases[i].n, &fault), 0,
                             "%zu: %s %s", i, fault.field, fault.text);
        }
        cr_assert_eq(unpack(CONNECT, cases[0].data, cases[0].n, NULL), 0);
        cr_expect_eq(result.connect.features, ND_FEATURE_SHM | ND_FEATURE_LINK);
}

Test(control, latest_has_no_window)
{
        static const char map[] = "\x84\xa7pattern\xa1"
                                  "a\xa6window\x00\xacwindow_bytes\x00\xa6policy\xa6latest";

        cr_assert_eq(unpack(SUBSCRIBE, map, sizeof(map) - 1, NULL), 0);
        cr_expect_eq(result.subscribe.policy, ND_POLICY_LATEST);
        cr_expect_eq(result.subscribe.window_messages, 0);
}

Test(control, policies_have_names)
{
        enum nd_policy policy;

#define XX(_name, _num, _text)                                                                     \
        cr_expect_str_eq(nd_policy_name(ND_POLICY_##_name), _text);                                \
        cr_expect_eq(nd_policy_parse(_text, strlen(_text), &policy), 0);                           \
        cr_expect_eq(policy, ND_POLICY_##_name);                                                   \
        cr_expect_eq(nd_policy_parse(_text, strlen(_text) - 1, &policy), NDBUS_EINVAL);
        ND_POLICY_MAP(XX)
#undef XX
        cr_expect_eq(nd_policy_parse("", 0, &policy), NDBUS_EINVAL);
        cr_expect_eq(nd_policy_parse("Block", 5, &policy), NDBUS_EINVAL);
        cr_expect_eq(policy, ND_POLICY_DISCONNECT, "result was written");
}
