/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: one session, byte by byte
 *
 * The input is what a client sends. Whatever it is: the daemon does not crash, what it answers is
 * well-formed, its numbers add up, a well-behaved subscriber beside it hears well-formed packets
 * only, nobody hears a topic that the rules do not let him hear, and when all have gone nothing is
 * kept.
 *
 * Byte 0: 1 the handshake is done for it; 2 there is a subscriber to everything; 4 the client
 * reads nothing; 8 the subscriber reads nothing; 16 time passes at the end; 32 both have shared
 * memory; 64 and it has announced segment 1; 128 a descriptor comes with the first bytes. Byte 1: where
 * the bytes are cut; 255: byte 2 is what the operator has set, enum set, and byte 3 where they are cut.
 */

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
#include "protocol/control.h"
#include "protocol/header.h"
#include "protocol/hello.h"
#include "protocol/topic.h"
#include "tests/support/embedded.h"
#include "tests/support/temporary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

enum set {
        SET_TCP = 1u << 0,      /* the client comes by TCP */
        SET_RULES = 1u << 1,    /* the subscriber, and who comes by TCP, have other rights */
        SET_LIMITS = 1u << 2,   /* that are met at once */
        SET_TOKEN = 1u << 3,    /* there is one */
        SET_ANYONE = 1u << 4,   /* and who comes by TCP does without */
        SET_NAMELESS = 1u << 5, /* the handshake that is done for the client names none */
        SET_RELOAD = 1u << 6,   /* half way: other rules, no limits that are met at once */
        SET_SECRET = 1u << 7,   /* and another secret */
};

#define CUT_IS_SET 255u

/* ------------------------------------------------------------------------------------ operator */

#define TOKEN_NAME "lab"

static const char secret[] = "correct horse battery staple"; /* of PROTOCOL.md's example */
static const char other_secret[] = "wrong horse battery staple";

/* What a client with these settings may hear at most; NULL: everything. */
static const char *const *heard_patterns(unsigned set, bool is_tcp)
{
        static const char *const of_user[] = {"a/**", "b/**", "c/*", NULL};
        static const char *const of_token[] = {"a/**", "c/*", NULL};
        static const char *const of_anyone[] = {"c/*", NULL};

        if (!(set & SET_RULES) || (!is_tcp && set & SET_RELOAD))
                return NULL;
        return !is_tcp ? of_user : set & SET_TOKEN ? of_token : of_anyone;
}

/* The operator sets this; at a reload it is partly something else. */
static void operate(unsigned set, bool is_reload)
{
        struct nd_embedded_setting settings[16];
        char user[128], group[128], limit[128], token[PATH_MAX + 8], path[PATH_MAX];
        size_t n = 0;
        int fd;

        nd_temporary_name(path, sizeof(path), "token");
        if (set & SET_TOKEN) {
                const char *text = is_reload && set & SET_SECRET ? other_secret : secret;

                fd = mkostemp(path, O_CLOEXEC);
                nd_assert(fd >= 0);
                nd_assert(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
                close(fd);
                snprintf(token, sizeof(token), TOKEN_NAME " %s", path);
                settings[n++] = (struct nd_embedded_setting){"token", token};
        }
        if (set & SET_ANYONE)
                settings[n++] = (struct nd_embedded_setting){"insecure-anyone", "yes"};
        if (set & SET_RULES && !is_reload) {
                snprintf(user, sizeof(user), "user:%u publish,subscribe,block,group,retain a/**",
                         geteuid());
                snprintf(group, sizeof(group), "group:%u publish,subscribe b/**", getegid());
                settings[n++] = (struct nd_embedded_setting){"allow", user};
                settings[n++] = (struct nd_embedded_setting){"allow", group};
                settings[n++] = (struct nd_embedded_setting){"allow", "anyone subscribe c/*"};
                settings[n++] = (struct nd_embedded_setting){"allow", "anyone publish d"};
                settings[n++] = (struct nd_embedded_setting){
                        "allow", "token:" TOKEN_NAME " publish,retain,subscribe,stats a/** c/*"};
        } else if (set & SET_RULES) {
                snprintf(user, sizeof(user), "user:%u publish,subscribe,block,group,retain,stats",
                         geteuid());
                settings[n++] = (struct nd_embedded_setting){"allow", user};
                settings[n++] = (struct nd_embedded_setting){"allow", "token:" TOKEN_NAME
                                                                      " publish,subscribe a/*"};
        }
        if (set & SET_LIMITS && !is_reload) {
                snprintf(limit, sizeof(limit), "group:%u topics=3,subscriptions=3", getegid());
                settings[n++] = (struct nd_embedded_setting){
                        "limit", "anyone connections=1,subscriptions=2,topics=2,message=4K,"
                                 "rate=4,queued=2K,retained=1K,held=64K"};
                settings[n++] = (struct nd_embedded_setting){"limit", limit};
                settings[n++] = (struct nd_embedded_setting){
                        "limit", "token:" TOKEN_NAME " subscriptions=1,message=1K"};
        }
        nd_embedded_set(settings, n);
        if (set & SET_TOKEN)
                unlink(path);
}

/* ------------------------------------------------------------------------------------- clients */

/* @userdata: the patterns that are allowed; NULL: all */
static void hear(void *userdata, const struct nd_packet *packet, const uint8_t *body)
{
        const char *const *pattern = userdata;
        struct nd_header *header;

        (void)body;
        if (!pattern || packet->prelude.kind != ND_KIND_MESSAGE)
                return;
        nd_assert(nd_header_unpack(packet->header, packet->prelude.header_bytes, NULL, &header,
                                   NULL) == 0);
        /* answers to one's own requests need no right */
        while (header->topic[0] != '$' &&
               !nd_pattern_match(*pattern, strlen(*pattern), header->topic, header->n_topic))
                nd_assert(*++pattern);
        nd_header_free(header);
}

static void send_packet(struct nd_embedded_peer *peer,
                        struct nd_prelude prelude,
                        const struct nd_control_bytes *header)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        prelude.header_bytes = (uint32_t)header->n;
        nd_prelude_pack(&prelude, bytes);
        nd_assert(nd_embedded_send(peer, bytes, sizeof(bytes)));
        nd_assert(nd_embedded_send(peer, header->data, header->n));
}

/* @proves: it names the token, and proves it if it is asked to */
static void shake_hands(struct nd_embedded_peer *peer, uint32_t features, bool proves)
{
        /* of PROTOCOL.md's example, as its hello, its nonces and its token are */
        static const char nonce[] = " !\"#$%&'()*+,-./0123456789:;<=>?";
        static const char proof[] =
                "\xf0\xd6\x85\x40\xee\xed\xa1\x3a\x3e\x51\x86\xcb\xbd\x8e\xf6\x75"
                "\x26\x76\x14\xfa\x59\xec\x7c\x39\x19\xbc\x1f\x4e\xec\x64\x24\x01";
        const struct nd_hello hello = {ND_VERSION, ND_VERSION};
        const struct nd_auth auth = {ND_STRING(nonce), ND_STRING(proof)};
        struct nd_connect connect = {.features = features, .client = ND_STRING("fuzz")};
        struct nd_control_bytes header;
        uint8_t bytes[ND_HELLO_BYTES];

        nd_hello_pack(&hello, bytes);
        nd_assert(nd_embedded_send(peer, bytes, sizeof(bytes)));
        if (proves)
                connect.token = ND_STRING(TOKEN_NAME);
        nd_connect_pack(&connect, &header);
        send_packet(peer, (struct nd_prelude){.kind = ND_KIND_CONNECT, .sequence = 1}, &header);
        if (proves) {
                nd_auth_pack(&auth, &header);
                send_packet(peer, (struct nd_prelude){.kind = ND_KIND_AUTH, .sequence = 1},
                            &header);
        }
        nd_embedded_run(2);
}

static void announce(struct nd_embedded_peer *peer)
{
        const struct nd_segment *segment = nd_embedded_segment();
        const struct nd_prelude prelude = {
                .kind = ND_KIND_SEGMENT,
                .flags = ND_FLAG_FD,
                .segment = 1,
                .place = segment->bytes,
                .sequence = 2,
        };
        uint8_t bytes[ND_PRELUDE_BYTES];

        nd_prelude_pack(&prelude, bytes);
        nd_embedded_send_fd(peer, bytes, sizeof(bytes), segment->fd);
        nd_embedded_run(2);
}

static void subscribe(struct nd_embedded_peer *peer, uint32_t features)
{
        const struct nd_subscribe ask = {
                .pattern = ND_STRING("**"),
                .depth_messages = 10,
                .depth_bytes = ND_MIB,
                .window_messages = 10,
                .window_bytes = ND_MIB,
                .retained = true,
        };
        struct nd_control_bytes header;

        shake_hands(peer, features, false);
        nd_subscribe_pack(&ask, &header);
        send_packet(
                peer,
                (struct nd_prelude){.kind = ND_KIND_SUBSCRIBE, .sequence = 2, .subscription = 1},
                &header);
        nd_embedded_run(2);
}

/* Who is not let in is told so after a while, and has some time to hear it. */
static void let_time_pass(void)
{
        nd_embedded_later(31000);
        nd_embedded_later(62000);
        nd_embedded_check();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct nd_embedded_peer client, subscriber = {.fd = -1};
        void *client_hears, *subscriber_hears;
        uint32_t features, cut, cut_max;
        size_t i_first = 2;
        unsigned set = 0;
        bool is_tcp, is_due;

        if (n_data < 2 || (data[1] == CUT_IS_SET && n_data < 4))
                return 0;
        cut_max = data[1];
        if (data[1] == CUT_IS_SET) {
                set = data[2];
                cut_max = data[3];
                i_first = 4;
                operate(set, false);
        }
        is_tcp = set & SET_TCP;
        is_due = set & SET_RELOAD;
        client_hears = (void *)(uintptr_t)heard_patterns(set, is_tcp);
        subscriber_hears = (void *)(uintptr_t)heard_patterns(set, false);
        features = data[0] & 32 ? ND_FEATURE_SHM : 0;
        nd_embedded_open(&client, is_tcp);
        if (data[0] & 2) {
                nd_embedded_open(&subscriber, false);
                subscribe(&subscriber, features);
        }
        if (data[0] & 1) {
                shake_hands(&client, features, is_tcp && set & SET_TOKEN && !(set & SET_NAMELESS));
                if (features && data[0] & 64 && !is_tcp)
                        announce(&client);
        }

        cut = cut_max;
        for (size_t i = i_first; i < n_data && !client.has_ended;) {
                size_t n = n_data - i;

                if (cut_max > 0) {
                        cut = cut * 1664525u + 1013904223u;
                        n = nd_min_u64(n, 1 + (cut >> 24) % cut_max);
                }
                if (i == i_first && data[0] & 128 && !is_tcp)
                        nd_embedded_send_fd(&client, data + i, n, nd_embedded_segment()->fd);
                else if (!nd_embedded_send(&client, data + i, n))
                        break; /* it owes too many answers, and will not read them */
                i += n;
                nd_embedded_run(1);
                if (is_due && i >= n_data / 2) {
                        operate(set, true);
                        is_due = false;
                }
                if (!(data[0] & 4))
                        nd_embedded_read(&client, SIZE_MAX, hear, client_hears);
                if (!(data[0] & 8))
                        nd_embedded_read(&subscriber, SIZE_MAX, hear, subscriber_hears);
                nd_embedded_check();
        }
        if (data[0] & 16)
                let_time_pass();
        nd_embedded_read(&client, data[0] & 4 ? 0 : SIZE_MAX, hear, client_hears);
        nd_embedded_close(&client);
        nd_embedded_run(2);
        if (set & SET_TOKEN)
                let_time_pass();
        nd_embedded_check();
        nd_embedded_read(&subscriber, SIZE_MAX, hear, subscriber_hears);
        nd_embedded_close(&subscriber);
        nd_embedded_run(3);
        nd_embedded_check_empty();
        if (set)
                nd_embedded_set(NULL, 0);
        return 0;
}
