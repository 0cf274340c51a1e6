/* SPDX-License-Identifier: MIT */

/*
 * Publishing through a ring, against a scripted daemon: which messages go there and which by the socket,
 * and what becomes of it when something ends
 *
 * A PING is the mark between what was published before it and after: when it has come by the socket, all
 * that went through the ring is there.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <ndbus/ndbus.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"

/* Messages of a connection before it asks for a ring; the next one goes behind the question. */
#define N_BEFORE 16u
#define N_BEGUN  (N_BEFORE + 1)

#define SLOW_COPY_BYTES ((size_t)256 << 10)

/* The two threads of a test take turns by these. */
static sem_t go_script, go_test;

static void init(void)
{
        sem_init(&go_script, 0, 0);
        sem_init(&go_test, 0, 0);
}

TestSuite(client_outlet, .init = init, .timeout = 60);

/* ------------------------------------------------------------------------ for scripts */

struct session {
        struct nd_segment segment;
        uint32_t number; /* of the segment */
        struct nd_ring ring;
};

static void expect_number(struct fake_peer *peer, uint64_t number)
{
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->prelude.sequence == number);
}

/* Messages by the socket, @n of them from @number on. */
static void expect_numbers(struct fake_peer *peer, uint64_t number, size_t n)
{
        for (size_t i = 0; i < n; ++i)
                expect_number(peer, number + i);
}

/* Takes what begin_publishing() publishes, and maps the ring. Returns the sequence of its RING. */
static uint64_t begin_asked(struct fake_peer *peer, struct session *s)
{
        uint64_t sequence;

        client_test_accept_ring(peer);
        s->segment = fake_peer_segment(peer, &s->number);
        expect_numbers(peer, 1, N_BEFORE);
        sequence = client_test_map_ring(peer, &s->ring);
        expect_number(peer, N_BEGUN);
        return sequence;
}

/* The same, and lets it be used. */
static void begin(struct fake_peer *peer, struct session *s)
{
        client_test_answer_ring(peer, begin_asked(peer, s));
        client_test_pong(peer, N_BEGUN);
}

static void close_session(struct session *s)
{
        nd_ring_close(&s->ring);
        nd_segment_close(&s->segment);
}

static void end(struct fake_peer *peer, struct session *s)
{
        fake_peer_drain(peer);
        close_session(s);
}

static void refuse(struct fake_peer *peer, uint64_t sequence, int code)
{
        const struct nd_error_header error = {
                .code = (uint32_t)-code, .of = ND_KIND_RING, .text = ND_STRING("not here")};
        struct nd_control_bytes bytes;

        nd_error_header_pack(&error, &bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_ERROR, .sequence = sequence},
                       bytes.data, bytes.n, NULL, 0);
}

static void sleep_in(struct session *s)
{
        must(nd_ring_sleep(&s->ring));
}

/* ------------------------------------------------------------------------ for tests */

static uint8_t copied[SLOW_COPY_BYTES];

/* By a copy of @n bytes, which is in a block from 8 KiB on. */
static int publish_copy(struct ndbus *bus, int64_t n, const struct ndbus_publish_options *options)
{
        const struct ndbus_array array = {.data = copied, .dtype = "uint8", .ndim = 1, .shape = &n};

        return ndbus_publish(bus, "t", &array, 1, options);
}

static int publish_with(struct ndbus *bus, int64_t n, const struct ndbus_publish_options *options)
{
        uint8_t *data;
        struct ndbus_loan *loan = client_test_loan(bus, n, &data);
        int r = ndbus_publish_loan(bus, "t", loan, options);

        if (r)
                ndbus_loan_cancel(loan);
        return r;
}

static void publish(struct ndbus *bus)
{
        cr_assert_eq(publish_with(bus, 1000, NULL), 0, "%s", ndbus_detail());
}

static void publish_more(struct ndbus *bus)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;

        options.more = 1;
        cr_assert_eq(publish_with(bus, 1000, &options), 0, "%s", ndbus_detail());
}

static void publish_n(struct ndbus *bus, size_t n)
{
        for (size_t i = 0; i < n; ++i)
                publish(bus);
}

/* What the script has sent before its PONG is heard, too. */
static void ping(struct ndbus *bus)
{
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0, "%s", ndbus_detail());
}

/* The other side of begin(). */
static void begin_publishing(struct ndbus *bus)
{
        publish_n(bus, N_BEGUN);
        ping(bus);
}

/* Descriptors of rings of this process: nothing else has that size. */
static size_t n_ring_fds(void)
{
        struct stat st;
        size_t n = 0;

        for (int fd = 0; fd < 256; ++fd)
                n += fstat(fd, &st) == 0 && st.st_size == ND_RING_FILE_BYTES;
        return n;
}

/* Where rings are mapped; how many. */
static size_t ring_mappings(uintptr_t out[static 4])
{
        FILE *file = fopen("/proc/self/maps", "r");
        uintptr_t from, to;
        char line[512];
        size_t n = 0;

        must(file);
        while (fgets(line, sizeof(line), file)) {
                must(sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2);
                if (!strstr(line, "/memfd:") || to - from != ND_RING_FILE_BYTES)
                        continue;
                must(n < 4);
                out[n++] = from;
        }
        fclose(file);
        return n;
}

static size_t n_ring_mappings(void)
{
        uintptr_t at[4];

        return ring_mappings(at);
}

/* A test of one script, which leaves nothing behind. */
struct stage {
        size_t n_fds;
        struct fake_peer *peer;
        struct ndbus *bus;
};

static struct stage stage_open(fake_peer_script script, void *userdata)
{
        struct stage stage = {.n_fds = client_test_n_fds()};

        stage.peer = fake_peer_start(script, userdata);
        stage.bus = client_test_open(stage.peer);
        return stage;
}

static size_t stage_close(struct stage *stage)
{
        size_t n_unconfirmed = 0;

        ndbus_close(stage->bus, 0, &n_unconfirmed);
        fake_peer_end(stage->peer);
        cr_assert_eq(client_test_n_fds(), stage->n_fds);
        cr_assert_eq(client_test_n_mappings(), 0);
        return n_unconfirmed;
}

/* ------------------------------------------------------------------------- asking for one */

static void ask_script(struct fake_peer *peer, void *userdata)
{
        struct session s;
        uint64_t sequence;

        (void)userdata;
        sequence = begin_asked(peer, &s);
        expect_number(peer, 18);
        sem_post(&go_test);
        client_test_answer_ring(peer, sequence);
        client_test_pong(peer, 18);
        expect_number(peer, 20);
        client_test_pong(peer, 18);
        client_test_take_from_ring(&s.ring, 19);
        client_test_take_from_ring(&s.ring, 21);
        client_test_take_from_ring(&s.ring, 22);
        must(nd_ring_is_empty(&s.ring));
        end(peer, &s);
}

Test(client_outlet, after_sixteen_messages_those_in_blocks_go_through_a_ring)
{
        struct stage stage = stage_open(ask_script, NULL);

        publish_n(stage.bus, 18);
        sem_wait(&go_test); /* the script has closed its own */
        cr_assert_eq(n_ring_fds(), 1);
        ping(stage.bus);
        cr_assert_eq(n_ring_fds(), 0, "it is not needed any more");
        publish(stage.bus);
        cr_assert_eq(publish_copy(stage.bus, 1000, NULL), 0, "by the socket");
        publish(stage.bus);
        cr_assert_eq(publish_copy(stage.bus, 10000, NULL), 0, "in a block");
        ping(stage.bus);
        cr_assert_eq(stage_close(&stage), 4);
}

static void without_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint32_t number;

        (void)userdata;
        client_test_accept_shm(peer);
        segment = fake_peer_segment(peer, &number);
        expect_numbers(peer, 1, 40);
        client_test_pong(peer, 40);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

Test(client_outlet, a_daemon_that_knows_no_ring_is_not_asked)
{
        struct stage stage = stage_open(without_script, NULL);

        publish_n(stage.bus, 40);
        ping(stage.bus);
        cr_assert_eq(stage_close(&stage), 0);
}

static void useless_script(struct fake_peer *peer, void *userdata)
{
        struct session s;

        (void)userdata;
        client_test_accept_ring(peer);
        expect_numbers(peer, 1, 20);
        s.segment = fake_peer_segment(peer, &s.number);
        expect_numbers(peer, 21, 10);
        client_test_map_ring(peer, &s.ring);
        expect_number(peer, 31);
        end(peer, &s);
}

/* Neither what is not in blocks goes through it, nor what takes long to copy there. */
Test(client_outlet, whom_a_ring_would_not_serve_asks_for_none)
{
        struct stage stage = stage_open(useless_script, NULL);

        for (unsigned i = 0; i < 20; ++i)
                cr_assert_eq(publish_copy(stage.bus, 1000, NULL), 0, "%s", ndbus_detail());
        for (unsigned i = 0; i < 10; ++i)
                cr_assert_eq(publish_copy(stage.bus, SLOW_COPY_BYTES, NULL), 0, "%s",
                             ndbus_detail());
        publish(stage.bus);
        cr_assert_eq(stage_close(&stage), 31);
}

static void refuse_script(struct fake_peer *peer, void *userdata)
{
        const int *code = userdata;
        struct session s;
        uint64_t sequence;

        sequence = begin_asked(peer, &s);
        refuse(peer, sequence, *code);
        client_test_pong(peer, N_BEGUN);
        expect_numbers(peer, N_BEGUN + 1, 20);
        client_test_pong(peer, N_BEGUN + 20);
        must(nd_ring_is_empty(&s.ring));
        close_session(&s);
        fake_peer_hang_up(peer);
        begin(peer, &s);
        client_test_pong(peer, N_BEGUN);
        client_test_take_from_ring(&s.ring, N_BEGUN + 1);
        end(peer, &s);
}

static void expect_loss(struct ndbus *bus)
{
        struct ndbus_message *none;

        cr_assert_eq(ndbus_receive(bus, &none, 5000), NDBUS_ENOTCONN, "%s", ndbus_detail());
        cr_assert_eq(n_ring_fds(), 0);
        cr_assert_eq(client_test_n_mappings(), 0, "of a segment that was published in, or a ring");
}

static void reconnect(struct ndbus *bus)
{
        struct ndbus_message *none;
        int r;

        while ((r = publish_with(bus, 1000, NULL)) == NDBUS_ENOTCONN)
                ndbus_receive(bus, &none, 1000);
        cr_assert_eq(r, 0, "%s", ndbus_detail());
}

Test(client_outlet, a_refused_ring_is_asked_for_again_by_the_next_connection_alone)
{
        static int codes[] = {NDBUS_ENO_FD, NDBUS_ESHM, NDBUS_ESYSTEM};

        for (size_t i = 0; i < nd_array_size(codes); ++i) {
                struct stage stage = stage_open(refuse_script, &codes[i]);

                begin_publishing(stage.bus);
                cr_assert_eq(n_ring_fds(), 0);
                publish_n(stage.bus, 20);
                ping(stage.bus);
                expect_loss(stage.bus);
                reconnect(stage.bus);
                publish_n(stage.bus, N_BEFORE);
                ping(stage.bus);
                publish(stage.bus);
                ping(stage.bus);
                cr_assert_eq(stage_close(&stage), 1);
        }
}

static void other_refusal_script(struct fake_peer *peer, void *userdata)
{
        struct session s;
        uint64_t sequence;

        (void)userdata;
        sequence = begin_asked(peer, &s);
        refuse(peer, sequence + 10, NDBUS_ESHM);
        client_test_answer_ring(peer, sequence);
        client_test_pong(peer, N_BEGUN);
        client_test_pong(peer, N_BEGUN);
        client_test_take_from_ring(&s.ring, N_BEGUN + 1);
        end(peer, &s);
}

static void count_notice(void *userdata, int code, const char *text)
{
        size_t *n = userdata;

        cr_assert_eq(code, NDBUS_ESHM, "%s", text);
        cr_assert(strstr(text, "RING"), "%s", text);
        ++*n;
}

/* Like every error that no call waits for. */
Test(client_outlet, a_refusal_of_what_was_not_asked_is_told)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct stage stage = {.n_fds = client_test_n_fds()};
        size_t n_notices = 0;

        options.notice = count_notice;
        options.userdata = &n_notices;
        stage.peer = fake_peer_start(other_refusal_script, NULL);
        cr_assert_eq(ndbus_open(&stage.bus, fake_peer_url(stage.peer), &options), 0);
        begin_publishing(stage.bus);
        cr_assert_eq(n_notices, 1);
        publish(stage.bus);
        ping(stage.bus);
        cr_assert_eq(stage_close(&stage), 1);
}

enum bad_answer {
        NOT_ASKED,
        OTHER_NUMBER,
        TWICE,
        AFTER_REFUSAL,
        N_BAD_ANSWERS,
};

static void bad_answer_script(struct fake_peer *peer, void *userdata)
{
        const enum bad_answer *bad = userdata;
        struct session s = {0};
        uint64_t sequence = 1;

        if (*bad == NOT_ASKED) {
                client_test_accept_ring(peer);
                s.segment = fake_peer_segment(peer, &s.number);
                expect_number(peer, 1);
        } else {
                sequence = begin_asked(peer, &s);
        }
        if (*bad == TWICE)
                client_test_answer_ring(peer, sequence);
        if (*bad == AFTER_REFUSAL)
                refuse(peer, sequence, NDBUS_ESHM);
        client_test_answer_ring(peer, *bad == OTHER_NUMBER ? sequence - 1 : sequence);
        end(peer, &s);
}

Test(client_outlet, an_answer_to_no_question_ends_the_connection)
{
        for (enum bad_answer bad = 0; bad < N_BAD_ANSWERS; ++bad) {
                struct stage stage = stage_open(bad_answer_script, &bad);
                struct ndbus_message *none;

                publish_n(stage.bus, bad == NOT_ASKED ? 1 : N_BEGUN);
                cr_assert_eq(ndbus_receive(stage.bus, &none, 5000), NDBUS_EPROTOCOL, "%d: %s",
                             (int)bad, ndbus_detail());
                cr_assert(strstr(ndbus_detail(), "RING"), "%s", ndbus_detail());
                cr_assert_eq(n_ring_fds(), 0);
                stage_close(&stage);
        }
}

/* ------------------------------------------------------------------------- waking */

static void wake_script(struct fake_peer *peer, void *userdata)
{
        struct session s;

        (void)userdata;
        begin(peer, &s);

        client_test_pong(peer, N_BEGUN); /* it is awake */
        client_test_take_from_ring(&s.ring, 18);
        sleep_in(&s);
        sem_post(&go_test);
        fake_peer_expect(peer, ND_KIND_WAKE);
        client_test_pong(peer, N_BEGUN);
        must(atomic_load(&s.ring.head->is_asleep) == 0);
        client_test_take_from_ring(&s.ring, 19);
        client_test_take_from_ring(&s.ring, 20);

        sleep_in(&s);
        sem_post(&go_test);
        sem_wait(&go_script);
        client_test_take_from_ring(&s.ring, 21);
        client_test_take_from_ring(&s.ring, 22);
        must(!fake_peer_has_input(peer));
        sem_post(&go_test);
        fake_peer_expect(peer, ND_KIND_WAKE);
        client_test_pong(peer, 22);

        sleep_in(&s);
        sem_post(&go_test);
        sem_wait(&go_script);
        fake_peer_expect(peer, ND_KIND_WAKE);
        must(!fake_peer_has_input(peer));
        sem_post(&go_test);
        client_test_take_from_ring(&s.ring, 23);
        client_test_take_from_ring(&s.ring, 24);
        end(peer, &s);
}

/* Once, and with those that may wait only when they may wait no longer. */
Test(client_outlet, a_daemon_is_woken_when_it_sleeps)
{
        struct stage stage = stage_open(wake_script, NULL);

        begin_publishing(stage.bus);
        publish(stage.bus);
        ping(stage.bus);
        sem_wait(&go_test);
        publish(stage.bus);
        publish(stage.bus);
        ping(stage.bus);

        sem_wait(&go_test);
        publish_more(stage.bus);
        publish_more(stage.bus);
        sem_post(&go_script);
        sem_wait(&go_test);
        cr_assert_eq(ndbus_flush(stage.bus, 5000), 0, "%s", ndbus_detail());

        sem_wait(&go_test);
        publish_more(stage.bus);
        publish(stage.bus);
        sem_post(&go_script);
        sem_wait(&go_test);
        stage_close(&stage);
}

/* ------------------------------------------------------------------------- order */

/* One by the socket, behind what was just read, and another one through the ring. */
static uint64_t expect_pair(struct fake_peer *peer, struct session *s, uint64_t *number)
{
        uint64_t asked;

        expect_number(peer, ++*number);
        asked = client_test_expect_ping(peer);
        client_test_take_from_ring(&s->ring, ++*number);
        must(nd_ring_is_empty(&s->ring));
        return asked;
}

static void expect_behind(struct fake_peer *peer, struct session *s, uint64_t *number)
{
        client_test_answer_ping(peer, expect_pair(peer, s, number), 0);
}

static void order_script(struct fake_peer *peer, void *userdata)
{
        struct nd_topic_header topic = {.topic = ND_STRING("t"), .allowed = true, .subscribers = 1};
        struct nd_prelude p = {.kind = ND_KIND_SEGMENT_GONE, .sequence = 1};
        struct nd_control_bytes bytes;
        struct nd_segment large;
        uint64_t number = N_BEGUN, asked;
        struct session s;
        uint32_t sub;

        (void)userdata;
        begin(peer, &s);
        sub = fake_peer_subscribed(peer);
        expect_behind(peer, &s, &number);

        fake_peer_send_pattern(peer, sub, 10, 1, 0);
        must(fake_peer_expect(peer, ND_KIND_CREDIT)->prelude.subscription == sub);
        client_test_pong(peer, 0);
        client_test_take_from_ring(&s.ring, ++number);

        fake_peer_expect(peer, ND_KIND_UNSUBSCRIBE);
        expect_behind(peer, &s, &number);

        large = fake_peer_segment(peer, &p.segment);
        asked = expect_pair(peer, &s, &number);
        fake_peer_send(peer, &p, NULL, 0, NULL, 0);
        client_test_answer_ping(peer, asked, 0);

        fake_peer_expect(peer, ND_KIND_SEGMENT_GONE);
        expect_behind(peer, &s, &number);

        p = fake_peer_expect(peer, ND_KIND_TOPIC)->prelude;
        nd_topic_header_pack(&topic, true, &bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_TOPIC, .sequence = p.sequence},
                       bytes.data, bytes.n, NULL, 0);
        expect_behind(peer, &s, &number);

        p = fake_peer_expect(peer, ND_KIND_STATS)->prelude;
        p.kind = ND_KIND_STATS_REPLY;
        fake_peer_send(peer, &p, NULL, 0, "\x80", 1);
        fake_peer_send(peer, &p, NULL, 0, NULL, 0);
        expect_behind(peer, &s, &number);
        nd_segment_close(&large);
        end(peer, &s);
}

static void publish_behind(struct ndbus *bus)
{
        publish_n(bus, 2);
        ping(bus);
}

/* What has no number of its own stands in the socket before the next message; that goes there too. */
Test(client_outlet, a_message_does_not_overtake_what_was_asked_before)
{
        struct ndbus_subscribe_options sub_options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct stage stage = stage_open(order_script, NULL);
        struct ndbus_subscription *sub = NULL;
        void *stats;
        size_t n_stats;
        uint8_t *data;

        begin_publishing(stage.bus);
        sub_options.window = 1;
        cr_assert_eq(ndbus_subscribe(stage.bus, "t", &sub_options, &sub), 0, "%s", ndbus_detail());
        publish_behind(stage.bus);

        client_test_expect(stage.bus, 1, 10, 0); /* CREDIT may be overtaken */
        publish(stage.bus);
        ping(stage.bus);

        cr_assert_eq(ndbus_unsubscribe(sub), 0);
        publish_behind(stage.bus);

        /* the daemon retires what is announced for this */
        ndbus_loan_cancel(client_test_loan(stage.bus, 30 * ND_MIB, &data));
        publish_behind(stage.bus);
        publish_behind(stage.bus);

        options.if_wanted = 1;
        cr_assert_eq(publish_with(stage.bus, 1000, &options), 0, "%s", ndbus_detail());
        publish(stage.bus);
        ping(stage.bus);

        cr_assert_eq(ndbus_stats(stage.bus, &stats, &n_stats, 5000), 0, "%s", ndbus_detail());
        free(stats);
        publish_behind(stage.bus);
        stage_close(&stage);
}

/* ------------------------------------------------------------------------- a full ring */

#define META_BYTES 7000u
#define FILL_N     12u /* more than are room for */

static void expect_ring_full(struct session *s, uint64_t n_packet, uint64_t first, uint64_t number)
{
        uint64_t n = (number - first) * n_packet;

        must(n <= ND_RING_BYTES && n + n_packet > ND_RING_BYTES);
        must(nd_ring_is_empty(&s->ring) == false);
}

static void full_script(struct fake_peer *peer, void *userdata)
{
        /* of which the client believes none */
        static const uint64_t lies[] = {1, ND_RING_BYTES, UINT64_MAX / 2,
                                        UINT64_MAX - ND_RING_BYTES};
        uint64_t number, next = N_BEGUN + 1, n_packet, position;
        const struct nd_prelude *p;
        struct session s;

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 4 * ND_MIB;
        begin(peer, &s);

        p = &fake_peer_expect(peer, ND_KIND_PUBLISH)->prelude;
        number = p->sequence;
        n_packet = ND_PRELUDE_BYTES + p->header_bytes + p->meta_bytes;
        expect_ring_full(&s, n_packet, next, number);
        expect_numbers(peer, number + 1, next + FILL_N - number - 1);
        client_test_pong(peer, 0);
        while (next < number)
                client_test_take_from_ring(&s.ring, next++);
        must(nd_ring_is_empty(&s.ring));
        sem_post(&go_test);

        /* there is room again, and one that lies on both sides of the end */
        next = N_BEGUN + 1 + FILL_N;
        number = fake_peer_expect(peer, ND_KIND_PUBLISH)->prelude.sequence;
        expect_ring_full(&s, n_packet, next, number);
        expect_numbers(peer, number + 1, next + FILL_N - number - 1);
        position = atomic_load(&s.ring.head->written);
        for (size_t i = 0; i < nd_array_size(lies); ++i) {
                atomic_store(&s.ring.head->taken, position + lies[i]);
                client_test_pong(peer, 0);
                expect_number(peer, next + FILL_N + i);
                must(atomic_load(&s.ring.head->written) == position);
        }
        client_test_pong(peer, 0);
        while (next < number)
                client_test_take_from_ring(&s.ring, next++);
        must(nd_ring_is_empty(&s.ring));
        sem_post(&go_test);
        client_test_pong(peer, 0);
        client_test_take_from_ring(&s.ring, N_BEGUN + 1 + 2 * FILL_N + nd_array_size(lies));
        end(peer, &s);
}

Test(client_outlet, what_has_no_room_in_the_ring_goes_by_the_socket)
{
        static uint8_t meta[META_BYTES] = {
                0x81, 0xa1, 'm', 0xc5, (META_BYTES - 6) >> 8, (META_BYTES - 6) & 0xff};
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct stage stage = stage_open(full_script, NULL);

        options.meta = meta;
        options.n_meta = sizeof(meta);
        begin_publishing(stage.bus);
        for (size_t i = 0; i < FILL_N; ++i)
                cr_assert_eq(publish_with(stage.bus, 1000, &options), 0, "%s", ndbus_detail());
        ping(stage.bus);
        sem_wait(&go_test);
        for (size_t i = 0; i < FILL_N; ++i)
                cr_assert_eq(publish_with(stage.bus, 1000, &options), 0, "%s", ndbus_detail());
        for (size_t i = 0; i < 4; ++i) {
                ping(stage.bus);
                cr_assert_eq(publish_with(stage.bus, 1000, &options), 0, "%s", ndbus_detail());
        }
        ping(stage.bus);
        sem_wait(&go_test);
        cr_assert_eq(publish_with(stage.bus, 1000, &options), 0, "%s", ndbus_detail());
        ping(stage.bus);
        stage_close(&stage);
}

static void slow_script(struct fake_peer *peer, void *userdata)
{
        struct session s;

        (void)userdata;
        begin(peer, &s);
        expect_number(peer, N_BEGUN + 2);
        client_test_pong(peer, 0);
        client_test_take_from_ring(&s.ring, N_BEGUN + 1);
        must(client_test_take_from_ring(&s.ring, N_BEGUN + 3).body_bytes == SLOW_COPY_BYTES);
        must(nd_ring_is_empty(&s.ring));
        end(peer, &s);
}

Test(client_outlet, a_copy_that_takes_long_goes_by_the_socket)
{
        struct stage stage = stage_open(slow_script, NULL);

        begin_publishing(stage.bus);
        cr_assert_eq(publish_copy(stage.bus, SLOW_COPY_BYTES - 1, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(publish_copy(stage.bus, SLOW_COPY_BYTES, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(publish_with(stage.bus, SLOW_COPY_BYTES, NULL), 0, "%s", ndbus_detail());
        ping(stage.bus);
        stage_close(&stage);
}

/* ------------------------------------------------------------------------- release */

static struct session released;
static _Atomic uint64_t released_number; /* of its message */

static void release_script(struct fake_peer *peer, void *userdata)
{
        struct nd_prelude p;

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 16 * ND_MIB;
        begin(peer, &released);
        sem_wait(&go_script);
        p = client_test_take_from_ring(&released.ring, atomic_load(&released_number));
        client_test_release(peer, released.number, p.place);
        sem_post(&go_test);
        sem_wait(&go_script); /* it has heard that; before, nothing may leave */
        end(peer, &released);
}

/* Its call waits for room in the socket. When it asks again, it has read what was sent to it. */
static int tell_script(void *userdata)
{
        int *n_told = userdata;

        if (*n_told < 2)
                sem_post(&go_script);
        if (++*n_told == 1)
                sem_wait(&go_test);
        return 0;
}

/* Of what waits in the bus then there is room for a small one more: nine such messages are far from 64 KiB. */
static void fill_socket(struct ndbus *bus)
{
        struct ndbus_publish_options once = NDBUS_PUBLISH_OPTIONS_INIT;
        int r;

        once.timeout_ms = 0;
        while ((r = publish_copy(bus, 7000, &once)) == 0)
                atomic_fetch_add(&released_number, 1);
        cr_assert_eq(r, NDBUS_EWOULDBLOCK, "%s", ndbus_detail());
        cr_assert(strstr(ndbus_detail(), "socket"), "%s", ndbus_detail());
}

/* The daemon has all of it as soon as it is written: its answer may come before the call returns. */
Test(client_outlet, a_block_may_be_released_as_soon_as_it_is_in_the_ring)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct stage stage = {.n_fds = client_test_n_fds()};
        struct ndbus_loan *loan;
        int n_told = 2;
        size_t n_blocks;
        uint8_t *data;

        options.interrupted = tell_script;
        options.userdata = &n_told;
        stage.peer = fake_peer_start(release_script, NULL);
        cr_assert_eq(ndbus_open(&stage.bus, fake_peer_url(stage.peer), &options), 0);
        begin_publishing(stage.bus);
        n_blocks = client_test_shm_stats(stage.bus).blocks;
        loan = client_test_loan(stage.bus, 1000, &data);
        atomic_store(&released_number, N_BEGUN + 1);
        fill_socket(stage.bus);
        n_told = 0;
        cr_assert_eq(ndbus_publish_loan(stage.bus, "t", loan, NULL), 0, "%s", ndbus_detail());
        cr_assert_geq(n_told, 2, "it waited");
        cr_assert_eq(client_test_shm_stats(stage.bus).blocks, n_blocks, "%s", ndbus_detail());
        stage_close(&stage);
}

/* ------------------------------------------------------------------------- the end of it */

static void lost_script(struct fake_peer *peer, void *userdata)
{
        const bool *has_next = userdata;
        struct session s;

        begin(peer, &s);
        client_test_pong(peer, N_BEGUN + 1);
        close_session(&s);
        fake_peer_hang_up(peer);
        if (*has_next) {
                begin(peer, &s);
                client_test_pong(peer, 0);
                client_test_take_from_ring(&s.ring, N_BEGUN + 1);
        } else {
                client_test_accept_shm(peer);
                s.segment = fake_peer_segment(peer, &s.number);
                expect_numbers(peer, 1, N_BEGUN);
                client_test_pong(peer, 0);
                expect_number(peer, N_BEGUN + 1);
                client_test_pong(peer, 0);
        }
        end(peer, &s);
}

Test(client_outlet, what_is_lost_in_a_ring_is_unconfirmed)
{
        for (unsigned i = 0; i < 2; ++i) {
                bool has_next = i == 0;
                struct stage stage = stage_open(lost_script, &has_next);

                begin_publishing(stage.bus);
                publish_n(stage.bus, 3);
                ping(stage.bus); /* two are not routed */
                expect_loss(stage.bus);
                cr_assert_eq(ndbus_flush(stage.bus, 0), NDBUS_ENOTCONN);
                cr_assert(strstr(ndbus_detail(), "2 messages"), "%s", ndbus_detail());
                reconnect(stage.bus);
                publish_n(stage.bus, N_BEFORE);
                ping(stage.bus);
                publish(stage.bus);
                ping(stage.bus);
                cr_assert_eq(stage_close(&stage), 2 + N_BEGUN + 1 - (has_next ? N_BEGUN : 0));
        }
}

static void asked_script(struct fake_peer *peer, void *userdata)
{
        struct session s;

        (void)userdata;
        begin_asked(peer, &s);
        close_session(&s);
        fake_peer_hang_up(peer);
        begin(peer, &s);
        end(peer, &s);
}

Test(client_outlet, a_ring_without_an_answer_goes_with_its_connection)
{
        struct stage stage = stage_open(asked_script, NULL);

        publish_n(stage.bus, N_BEGUN);
        expect_loss(stage.bus);
        reconnect(stage.bus);
        publish_n(stage.bus, N_BEFORE);
        ping(stage.bus);
        cr_assert_eq(stage_close(&stage), N_BEGUN);
}

static void closed_script(struct fake_peer *peer, void *userdata)
{
        const bool *is_answered = userdata;
        struct session s;

        if (*is_answered)
                begin(peer, &s);
        else
                begin_asked(peer, &s);
        end(peer, &s);
}

Test(client_outlet, closing_leaves_neither_ring_nor_descriptor)
{
        for (unsigned i = 0; i < 2; ++i) {
                bool is_answered = i == 1;
                struct stage stage = stage_open(closed_script, &is_answered);

                publish_n(stage.bus, N_BEGUN);
                if (is_answered) {
                        ping(stage.bus);
                        publish_n(stage.bus, 2);
                }
                cr_assert_eq(stage_close(&stage), is_answered ? 2 : N_BEGUN);
        }
}

static void forked_script(struct fake_peer *peer, void *userdata)
{
        const bool *is_answered = userdata;
        struct session s;
        uint64_t sequence;

        sequence = begin_asked(peer, &s);
        if (*is_answered)
                client_test_answer_ring(peer, sequence);
        client_test_pong(peer, N_BEGUN);
        if (!*is_answered) {
                sem_wait(&go_script);
                client_test_answer_ring(peer, sequence);
        }
        client_test_pong(peer, N_BEGUN);
        client_test_pong(peer, N_BEGUN);
        client_test_take_from_ring(&s.ring, N_BEGUN + 1);
        end(peer, &s);
}

/* A child of a process that has the mapping of its own end at @gone puts something else there, which it
 * has still when it has closed the bus. */
static int close_in_child(struct ndbus *bus, uintptr_t gone)
{
        uint8_t *at = mmap((void *)gone, ND_RING_FILE_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

        if (at != (uint8_t *)gone)
                return 1;
        memset(at, 7, ND_RING_FILE_BYTES);
        if (n_ring_fds() > 0)
                return 2;
        if (publish_copy(bus, 10000, NULL) != NDBUS_EFORKED)
                return 3;
        if (ndbus_close(bus, 0, NULL))
                return 4;
        if (at[0] != 7 || at[ND_RING_FILE_BYTES - 1] != 7)
                return 5;
        return n_ring_mappings() == 1 ? 0 : 6;
}

/* Of two mappings the child has that of the script. */
static uintptr_t missing_in_child(const uintptr_t *before)
{
        uintptr_t now[4];

        if (ring_mappings(now) != 1)
                return 0;
        return before[0] == now[0] ? before[1] : before[0];
}

Test(client_outlet, a_child_does_not_have_the_ring)
{
        for (unsigned i = 0; i < 2; ++i) {
                bool is_answered = i == 1;
                struct stage stage = stage_open(forked_script, &is_answered);
                uintptr_t before[4];
                int status;
                pid_t pid;

                begin_publishing(stage.bus);
                cr_assert_eq(ring_mappings(before), 2, "of both ends");
                cr_assert_eq(n_ring_fds(), is_answered ? 0 : 1);
                pid = fork();
                if (pid == 0)
                        _exit(close_in_child(stage.bus, missing_in_child(before)));
                cr_assert_eq(waitpid(pid, &status, 0), pid);
                cr_assert_eq(status, 0, "status %#x", (unsigned)status);
                cr_assert_eq(n_ring_mappings(), 2);
                if (!is_answered)
                        sem_post(&go_script);
                ping(stage.bus);
                publish(stage.bus);
                ping(stage.bus);
                cr_assert_eq(stage_close(&stage), 1);
        }
}
