/* SPDX-License-Identifier: MIT */

/*
 * Publishing through a ring, against a scripted daemon: which messages go there and which by the socket
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"
#include "tests/support/outlet-test.h"

/* The two threads of a test take turns by these. */
static sem_t go_script, go_test;

static void init(void)
{
        sem_init(&go_script, 0, 0);
        sem_init(&go_test, 0, 0);
}

TestSuite(client_outlet, .init = init, .timeout = 60);

/* ------------------------------------------------------------------------ for scripts */

static void refuse(struct fake_peer *peer, uint64_t sequence, int code)
{
        const struct nd_error_header error = {
                .code = (uint32_t)-code, .of = ND_KIND_RING, .text = ND_STRING("not here")};
        struct nd_control_bytes bytes;

        nd_error_header_pack(&error, &bytes);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_ERROR, .sequence = sequence},
                       bytes.data, bytes.n, NULL, 0);
}

/* ------------------------------------------------------------------------- asking for one */

static void ask_script(struct fake_peer *peer, void *userdata)
{
        struct outlet_session s;
        uint64_t sequence;

        (void)userdata;
        sequence = outlet_begin_asked(peer, &s);
        outlet_expect_number(peer, 18);
        sem_post(&go_test);
        client_test_answer_ring(peer, sequence);
        client_test_pong(peer, 18);
        outlet_expect_number(peer, 20);
        client_test_pong(peer, 18);
        client_test_take_from_ring(&s.ring, 19);
        client_test_take_from_ring(&s.ring, 21);
        client_test_take_from_ring(&s.ring, 22);
        must(nd_ring_is_empty(&s.ring));
        outlet_end(peer, &s);
}

Test(client_outlet, after_sixteen_messages_those_in_blocks_go_through_a_ring)
{
        struct outlet_stage stage = outlet_stage_open(ask_script, NULL);

        outlet_publish_n(stage.bus, 18);
        sem_wait(&go_test); /* the script has closed its own */
        cr_assert_eq(outlet_n_ring_fds(), 1);
        outlet_ping(stage.bus);
        cr_assert_eq(outlet_n_ring_fds(), 0, "it is not needed any more");
        outlet_publish(stage.bus);
        cr_assert_eq(outlet_publish_copy(stage.bus, 1000, NULL), 0, "by the socket");
        outlet_publish(stage.bus);
        cr_assert_eq(outlet_publish_copy(stage.bus, 10000, NULL), 0, "in a block");
        outlet_ping(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), 4);
}

static void without_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint32_t number;

        (void)userdata;
        client_test_accept_shm(peer);
        segment = fake_peer_segment(peer, &number);
        outlet_expect_numbers(peer, 1, 40);
        client_test_pong(peer, 40);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

Test(client_outlet, a_daemon_that_knows_no_ring_is_not_asked)
{
        struct outlet_stage stage = outlet_stage_open(without_script, NULL);

        outlet_publish_n(stage.bus, 40);
        outlet_ping(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), 0);
}

static void no_blocks_script(struct fake_peer *peer, void *userdata)
{
        struct outlet_session s;

        (void)userdata;
        client_test_accept_ring(peer);
        outlet_expect_numbers(peer, 1, 20);
        s.segment = fake_peer_segment(peer, &s.number);
        client_test_map_ring(peer, &s.ring);
        outlet_expect_number(peer, 21);
        outlet_end(peer, &s);
}

Test(client_outlet, who_publishes_nothing_in_blocks_asks_for_none)
{
        struct outlet_stage stage = outlet_stage_open(no_blocks_script, NULL);

        for (unsigned i = 0; i < 20; ++i)
                cr_assert_eq(outlet_publish_copy(stage.bus, 1000, NULL), 0, "%s", ndbus_detail());
        outlet_publish(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), 21);
}

static void refuse_script(struct fake_peer *peer, void *userdata)
{
        const int *code = userdata;
        struct outlet_session s;
        uint64_t sequence;

        sequence = outlet_begin_asked(peer, &s);
        refuse(peer, sequence, *code);
        client_test_pong(peer, OUTLET_N_BEGUN);
        outlet_expect_numbers(peer, OUTLET_N_BEGUN + 1, 20);
        client_test_pong(peer, OUTLET_N_BEGUN + 20);
        must(nd_ring_is_empty(&s.ring));
        outlet_close_session(&s);
        fake_peer_hang_up(peer);
        outlet_begin(peer, &s);
        client_test_pong(peer, OUTLET_N_BEGUN);
        client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1);
        outlet_end(peer, &s);
}

Test(client_outlet, a_refused_ring_is_asked_for_again_by_the_next_connection_alone)
{
        static int codes[] = {NDBUS_ENO_FD, NDBUS_ESHM, NDBUS_ESYSTEM};

        for (size_t i = 0; i < nd_array_size(codes); ++i) {
                struct outlet_stage stage = outlet_stage_open(refuse_script, &codes[i]);

                outlet_begin_publishing(stage.bus);
                cr_assert_eq(outlet_n_ring_fds(), 0);
                outlet_publish_n(stage.bus, 20);
                outlet_ping(stage.bus);
                outlet_expect_loss(stage.bus);
                outlet_reconnect(stage.bus);
                outlet_publish_n(stage.bus, OUTLET_N_BEFORE);
                outlet_ping(stage.bus);
                outlet_publish(stage.bus);
                outlet_ping(stage.bus);
                cr_assert_eq(outlet_stage_close(&stage), 1);
        }
}

static void other_refusal_script(struct fake_peer *peer, void *userdata)
{
        struct outlet_session s;
        uint64_t sequence;

        (void)userdata;
        sequence = outlet_begin_asked(peer, &s);
        refuse(peer, sequence + 10, NDBUS_ESHM);
        client_test_answer_ring(peer, sequence);
        client_test_pong(peer, OUTLET_N_BEGUN);
        client_test_pong(peer, OUTLET_N_BEGUN);
        client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1);
        outlet_end(peer, &s);
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
        struct outlet_stage stage;
        size_t n_notices = 0;

        options.notice = count_notice;
        options.userdata = &n_notices;
        stage = outlet_stage_open_with(other_refusal_script, NULL, &options);
        outlet_begin_publishing(stage.bus);
        cr_assert_eq(n_notices, 1);
        outlet_publish(stage.bus);
        outlet_ping(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), 1);
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
        struct outlet_session s = {0};
        uint64_t sequence = 1;

        if (*bad == NOT_ASKED) {
                client_test_accept_ring(peer);
                s.segment = fake_peer_segment(peer, &s.number);
                outlet_expect_number(peer, 1);
        } else {
                sequence = outlet_begin_asked(peer, &s);
        }
        if (*bad == TWICE)
                client_test_answer_ring(peer, sequence);
        if (*bad == AFTER_REFUSAL)
                refuse(peer, sequence, NDBUS_ESHM);
        client_test_answer_ring(peer, *bad == OTHER_NUMBER ? sequence - 1 : sequence);
        outlet_end(peer, &s);
}

Test(client_outlet, an_answer_to_no_question_ends_the_connection)
{
        for (enum bad_answer bad = 0; bad < N_BAD_ANSWERS; ++bad) {
                struct outlet_stage stage = outlet_stage_open(bad_answer_script, &bad);
                struct ndbus_message *none;

                outlet_publish_n(stage.bus, bad == NOT_ASKED ? 1 : OUTLET_N_BEGUN);
                cr_assert_eq(ndbus_receive(stage.bus, &none, 5000), NDBUS_EPROTOCOL, "%d: %s",
                             (int)bad, ndbus_detail());
                cr_assert(strstr(ndbus_detail(), "RING"), "%s", ndbus_detail());
                cr_assert_eq(outlet_n_ring_fds(), 0);
                outlet_stage_close(&stage);
        }
}

/* ------------------------------------------------------------------------- waking */

static void wake_script(struct fake_peer *peer, void *userdata)
{
        struct outlet_session s;

        (void)userdata;
        outlet_begin(peer, &s);

        client_test_pong(peer, OUTLET_N_BEGUN); /* it is awake */
        client_test_take_from_ring(&s.ring, 18);
        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);
        fake_peer_expect(peer, ND_KIND_WAKE);
        client_test_pong(peer, OUTLET_N_BEGUN);
        must(atomic_load(&s.ring.head->is_asleep) == 0);
        client_test_take_from_ring(&s.ring, 19);
        client_test_take_from_ring(&s.ring, 20);

        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);
        sem_wait(&go_script);
        client_test_take_from_ring(&s.ring, 21);
        client_test_take_from_ring(&s.ring, 22);
        must(!fake_peer_has_input(peer));
        sem_post(&go_test);
        fake_peer_expect(peer, ND_KIND_WAKE);
        client_test_pong(peer, 22);

        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);
        sem_wait(&go_script);
        fake_peer_expect(peer, ND_KIND_WAKE);
        must(!fake_peer_has_input(peer));
        sem_post(&go_test);
        client_test_take_from_ring(&s.ring, 23);
        client_test_take_from_ring(&s.ring, 24);
        outlet_end(peer, &s);
}

/* Once, and with those that may wait only when they may wait no longer. */
Test(client_outlet, a_daemon_is_woken_when_it_sleeps)
{
        struct outlet_stage stage = outlet_stage_open(wake_script, NULL);

        outlet_begin_publishing(stage.bus);
        outlet_publish(stage.bus);
        outlet_ping(stage.bus);
        sem_wait(&go_test);
        outlet_publish(stage.bus);
        outlet_publish(stage.bus);
        outlet_ping(stage.bus);

        sem_wait(&go_test);
        outlet_publish_more(stage.bus);
        outlet_publish_more(stage.bus);
        sem_post(&go_script);
        sem_wait(&go_test);
        cr_assert_eq(ndbus_flush(stage.bus, 5000), 0, "%s", ndbus_detail());

        sem_wait(&go_test);
        outlet_publish_more(stage.bus);
        outlet_publish(stage.bus);
        sem_post(&go_script);
        sem_wait(&go_test);
        outlet_stage_close(&stage);
}

/* ------------------------------------------------------------------------- order */

/* One by the socket, behind what was just read, and another one through the ring. */
static uint64_t expect_pair(struct fake_peer *peer, struct outlet_session *s, uint64_t *number)
{
        uint64_t asked;

        outlet_expect_number(peer, ++*number);
        asked = client_test_expect_ping(peer);
        client_test_take_from_ring(&s->ring, ++*number);
        must(nd_ring_is_empty(&s->ring));
        return asked;
}

static void expect_behind(struct fake_peer *peer, struct outlet_session *s, uint64_t *number)
{
        client_test_answer_ping(peer, expect_pair(peer, s, number), 0);
}

static void order_script(struct fake_peer *peer, void *userdata)
{
        struct nd_topic_header topic = {.topic = ND_STRING("t"), .allowed = true, .subscribers = 1};
        struct nd_prelude p = {.kind = ND_KIND_SEGMENT_GONE, .sequence = 1};
        struct nd_control_bytes bytes;
        struct nd_segment large;
        uint64_t number = OUTLET_N_BEGUN, asked;
        struct outlet_session s;
        uint32_t sub;

        (void)userdata;
        outlet_begin(peer, &s);
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
        outlet_end(peer, &s);
}

static void publish_behind(struct ndbus *bus)
{
        outlet_publish_n(bus, 2);
        outlet_ping(bus);
}

/* What has no number of its own stands in the socket before the next message; that goes there too. */
Test(client_outlet, a_message_does_not_overtake_what_was_asked_before)
{
        struct ndbus_subscribe_options sub_options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct outlet_stage stage = outlet_stage_open(order_script, NULL);
        struct ndbus_subscription *sub = NULL;
        void *stats;
        size_t n_stats;
        uint8_t *data;

        outlet_begin_publishing(stage.bus);
        sub_options.window = 1;
        cr_assert_eq(ndbus_subscribe(stage.bus, "t", &sub_options, &sub), 0, "%s", ndbus_detail());
        publish_behind(stage.bus);

        client_test_expect(stage.bus, 1, 10, 0); /* CREDIT may be overtaken */
        outlet_publish(stage.bus);
        outlet_ping(stage.bus);

        cr_assert_eq(ndbus_unsubscribe(sub), 0);
        publish_behind(stage.bus);

        /* the daemon retires what is announced for this */
        ndbus_loan_cancel(client_test_loan(stage.bus, 30 * ND_MIB, &data));
        publish_behind(stage.bus);
        publish_behind(stage.bus);

        options.if_wanted = 1;
        cr_assert_eq(outlet_publish_with(stage.bus, 1000, &options), 0, "%s", ndbus_detail());
        outlet_publish(stage.bus);
        outlet_ping(stage.bus);

        cr_assert_eq(ndbus_stats(stage.bus, &stats, &n_stats, 5000), 0, "%s", ndbus_detail());
        free(stats);
        publish_behind(stage.bus);
        outlet_stage_close(&stage);
}

/* ------------------------------------------------------------------------- a full ring */

#define META_BYTES 7000u
#define FILL_N     12u /* more than are room for */

static void expect_full(uint64_t n_packet, uint64_t n)
{
        must(n * n_packet <= ND_RING_BYTES && (n + 1) * n_packet > ND_RING_BYTES);
}

static void full_script(struct fake_peer *peer, void *userdata)
{
        /* of which the client believes none */
        static const uint64_t lies[] = {1, ND_RING_BYTES, UINT64_MAX / 2,
                                        UINT64_MAX - ND_RING_BYTES};
        uint64_t number, next = OUTLET_N_BEGUN + 1, n_packet, position;
        const struct nd_prelude *p;
        struct outlet_session s;

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 4 * ND_MIB;
        outlet_begin(peer, &s);

        p = &fake_peer_expect(peer, ND_KIND_PUBLISH)->prelude;
        number = p->sequence;
        n_packet = ND_PRELUDE_BYTES + p->header_bytes + p->meta_bytes;
        expect_full(n_packet, number - next);
        outlet_expect_numbers(peer, number + 1, next + FILL_N - number - 1);
        client_test_pong(peer, 0);
        while (next < number)
                client_test_take_from_ring(&s.ring, next++);
        must(nd_ring_is_empty(&s.ring));
        sem_post(&go_test);

        /* there is room again, and one that lies on both sides of the end */
        next = OUTLET_N_BEGUN + 1 + FILL_N;
        number = fake_peer_expect(peer, ND_KIND_PUBLISH)->prelude.sequence;
        expect_full(n_packet, number - next);
        outlet_expect_numbers(peer, number + 1, next + FILL_N - number - 1);
        position = atomic_load(&s.ring.head->written);
        for (size_t i = 0; i < nd_array_size(lies); ++i) {
                atomic_store(&s.ring.head->taken, position + lies[i]);
                client_test_pong(peer, 0);
                outlet_expect_number(peer, next + FILL_N + i);
                must(atomic_load(&s.ring.head->written) == position);
        }
        client_test_pong(peer, 0);
        while (next < number)
                client_test_take_from_ring(&s.ring, next++);
        must(nd_ring_is_empty(&s.ring));
        sem_post(&go_test);
        client_test_pong(peer, 0);
        client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1 + 2 * FILL_N + nd_array_size(lies));
        outlet_end(peer, &s);
}

Test(client_outlet, what_has_no_room_in_the_ring_goes_by_the_socket)
{
        static uint8_t meta[META_BYTES] = {
                0x81, 0xa1, 'm', 0xc5, (META_BYTES - 6) >> 8, (META_BYTES - 6) & 0xff};
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct outlet_stage stage = outlet_stage_open(full_script, NULL);

        options.meta = meta;
        options.n_meta = sizeof(meta);
        outlet_begin_publishing(stage.bus);
        for (size_t i = 0; i < FILL_N; ++i)
                cr_assert_eq(outlet_publish_with(stage.bus, 1000, &options), 0, "%s",
                             ndbus_detail());
        outlet_ping(stage.bus);
        sem_wait(&go_test);
        for (size_t i = 0; i < FILL_N; ++i)
                cr_assert_eq(outlet_publish_with(stage.bus, 1000, &options), 0, "%s",
                             ndbus_detail());
        for (size_t i = 0; i < 4; ++i) {
                outlet_ping(stage.bus);
                cr_assert_eq(outlet_publish_with(stage.bus, 1000, &options), 0, "%s",
                             ndbus_detail());
        }
        outlet_ping(stage.bus);
        sem_wait(&go_test);
        cr_assert_eq(outlet_publish_with(stage.bus, 1000, &options), 0, "%s", ndbus_detail());
        outlet_ping(stage.bus);
        outlet_stage_close(&stage);
}

static void slow_script(struct fake_peer *peer, void *userdata)
{
        struct outlet_session s;

        (void)userdata;
        outlet_begin(peer, &s);
        outlet_expect_number(peer, OUTLET_N_BEGUN + 2);
        client_test_pong(peer, 0);
        client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1);
        must(client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 3).body_bytes ==
             OUTLET_SLOW_COPY_BYTES);
        must(nd_ring_is_empty(&s.ring));
        outlet_end(peer, &s);
}

/* To put it into the ring and then to call by the socket would be slower. */
Test(client_outlet, a_copy_that_takes_long_goes_by_the_socket_without_a_bell)
{
        struct outlet_stage stage = outlet_stage_open(slow_script, NULL);

        outlet_begin_publishing(stage.bus);
        cr_assert_eq(outlet_publish_copy(stage.bus, OUTLET_SLOW_COPY_BYTES - 1, NULL), 0, "%s",
                     ndbus_detail());
        cr_assert_eq(outlet_publish_copy(stage.bus, OUTLET_SLOW_COPY_BYTES, NULL), 0, "%s",
                     ndbus_detail());
        cr_assert_eq(outlet_publish_with(stage.bus, OUTLET_SLOW_COPY_BYTES, NULL), 0, "%s",
                     ndbus_detail());
        outlet_ping(stage.bus);
        outlet_stage_close(&stage);
}

/* ------------------------------------------------------------------------- release */

static struct outlet_session released;
static _Atomic uint64_t released_number; /* of its message */

static void release_script(struct fake_peer *peer, void *userdata)
{
        struct nd_prelude p;

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 16 * ND_MIB;
        outlet_begin(peer, &released);
        sem_wait(&go_script);
        p = client_test_take_from_ring(&released.ring, atomic_load(&released_number));
        client_test_release(peer, released.number, p.place);
        sem_post(&go_test);
        sem_wait(&go_script); /* it has heard that; before, nothing may leave */
        outlet_end(peer, &released);
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
        while ((r = outlet_publish_copy(bus, 7000, &once)) == 0)
                atomic_fetch_add(&released_number, 1);
        cr_assert_eq(r, NDBUS_EWOULDBLOCK, "%s", ndbus_detail());
        cr_assert(strstr(ndbus_detail(), "socket"), "%s", ndbus_detail());
}

/* The daemon has all of it as soon as it is written: its answer may come before the call returns. */
Test(client_outlet, a_block_may_be_released_as_soon_as_it_is_in_the_ring)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct outlet_stage stage;
        struct ndbus_loan *loan;
        int n_told = 2;
        size_t n_blocks;
        uint8_t *data;

        options.interrupted = tell_script;
        options.userdata = &n_told;
        stage = outlet_stage_open_with(release_script, NULL, &options);
        outlet_begin_publishing(stage.bus);
        n_blocks = client_test_shm_stats(stage.bus).blocks;
        loan = client_test_loan(stage.bus, 1000, &data);
        atomic_store(&released_number, OUTLET_N_BEGUN + 1);
        fill_socket(stage.bus);
        n_told = 0;
        cr_assert_eq(ndbus_publish_loan(stage.bus, "t", loan, NULL), 0, "%s", ndbus_detail());
        cr_assert_geq(n_told, 2, "it waited");
        cr_assert_eq(client_test_shm_stats(stage.bus).blocks, n_blocks, "%s", ndbus_detail());
        outlet_stage_close(&stage);
}
