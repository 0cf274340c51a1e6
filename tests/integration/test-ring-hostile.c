/* SPDX-License-Identifier: MIT */

/*
 * Rings that break the rules, and what is no ring at all: what their clients are told, and that nobody
 * else notices
 */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/memfd.h"
#include "tests/support/pattern.h"
#include "tests/support/ring-world.h"

/* Others publish and receive as before, and nothing of the hostile one has come between. */
static void others_go_on(struct ring_world *w, uint64_t *n_sent)
{
        struct nd_raw_message message;

        nd_raw_publish(w->asker, "t", 100);
        message = nd_raw_receive(w->subscriber);
        cr_assert_eq(message.prelude.source, w->asker->source);
        cr_assert_eq(message.prelude.sequence, ++*n_sent);
        nd_raw_message_free(&message);
        nd_raw_grant(w->subscriber, 1, 1, 100);
        nd_raw_check_stats(w->asker);
}

static bool is_field(const struct nd_error_header *error, const char *field)
{
        return error->field.n == strlen(field) &&
               memcmp(error->field.at, field, error->field.n) == 0;
}

/* Refused with @code about @field; the connection goes on. Closes @fd. */
static void expect_refused(struct nd_raw *raw, int fd, uint64_t bytes, int code, const char *field)
{
        struct nd_error_header error;

        nd_raw_send_ring(raw, bytes, fd);
        error = nd_raw_expect_error(raw, code, false);
        cr_assert_eq(error.of, ND_KIND_RING);
        cr_assert(is_field(&error, field), "%.*s", (int)error.field.n, error.field.at);
        if (fd >= 0)
                close(fd);
}

static int memfd_of(uint64_t n_bytes, int seals)
{
        return nd_memfd_make(n_bytes, n_bytes, seals);
}

Test(ring_hostile, that_is_none_is_refused_and_the_connection_goes_on)
{
        enum {
                BYTES = ND_RING_FILE_BYTES
        };
        struct ring_world w;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        ring_world_wait_left(&w);

        w.publisher = nd_raw_open_ring(w.h);
        expect_refused(w.publisher, -1, BYTES, NDBUS_ENO_FD, "fd");
        expect_refused(w.publisher, open("/dev/null", O_RDWR | O_CLOEXEC), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, open("/dev/zero", O_RDWR | O_CLOEXEC), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, nd_memfd_reopen(memfd_of(BYTES, 0), O_RDONLY), BYTES,
                       NDBUS_ESHM, "fd");
        expect_refused(w.publisher, nd_memfd_reopen(memfd_of(BYTES, 0), O_WRONLY), BYTES,
                       NDBUS_ESHM, "fd");
        expect_refused(w.publisher, nd_memfd_reopen(memfd_of(BYTES, 0), O_PATH), BYTES, NDBUS_ESHM,
                       "fd");
        expect_refused(w.publisher, memfd_of(BYTES, F_SEAL_WRITE), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, memfd_of(BYTES, F_SEAL_FUTURE_WRITE), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, memfd_of(BYTES, F_SEAL_SEAL), BYTES, NDBUS_ESHM, "seals");
        expect_refused(w.publisher, nd_memfd_make(BYTES, 0, 0), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, nd_memfd_make(BYTES, BYTES - 4096, 0), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, memfd_of(1, 0), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, memfd_of(BYTES - 1, 0), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, memfd_of(BYTES + 4096, 0), BYTES, NDBUS_ESHM, "fd");
        expect_refused(w.publisher, memfd_of(BYTES, 0), BYTES - 4096, NDBUS_ESHM, "place");
        expect_refused(w.publisher, memfd_of(BYTES, 0), BYTES + 1, NDBUS_ESHM, "place");
        expect_refused(w.publisher, memfd_of(BYTES, 0), 0, NDBUS_ESHM, "place");
        expect_refused(w.publisher, memfd_of(BYTES, 0), UINT64_MAX, NDBUS_ESHM, "place");
        cr_assert_eq(nd_raw_stat(w.asker, "counters", "shm_refused"), 18);
        cr_assert_eq(ring_world_n_mappings(&w), 0);

        /* nothing of it was remembered */
        w.ring = nd_raw_ring(w.publisher);
        w.segment = nd_raw_segment(RING_WORLD_SEGMENT_BYTES);
        nd_raw_announce(w.publisher, 1, &w.segment);
        ring_world_by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        ring_world_expect_up_to(&w, 1);
        ring_world_leave(&w);
        ring_world_wait_left(&w);
        ring_world_deinit(&w);
}

/* The next packet but RELEASE and CREDIT, which come when they come; NULL: the end. */
static const struct nd_raw_packet *next_said(struct nd_raw *raw)
{
        const struct nd_raw_packet *packet;

        do
                packet = nd_raw_next_other(raw);
        while (packet && packet->prelude.kind == ND_KIND_RELEASE);
        return packet;
}

/* PROTOCOL about this field, and the end. Closes. */
static void expect_end(struct nd_raw *raw, const char *field)
{
        const struct nd_raw_packet *packet = next_said(raw);
        struct nd_error_header error;

        cr_assert(packet, "closed without a word");
        cr_assert_eq(packet->prelude.kind, ND_KIND_ERROR);
        cr_assert_eq(
                nd_error_header_unpack(packet->header, packet->prelude.header_bytes, &error, NULL),
                0);
        cr_assert_eq(error.code, -NDBUS_EPROTOCOL);
        cr_assert(error.closes);
        cr_assert(is_field(&error, field), "%.*s, not %s", (int)error.field.n, error.field.at,
                  field);
        cr_assert_null(next_said(raw));
        nd_raw_close(raw);
}

/* RING and WAKE where they do not belong. */
Test(ring_hostile, that_nobody_agreed_on_ends_the_connection)
{
        static const struct {
                bool is_tcp;
                uint32_t features;
        } peers[] = {
                {false, 0},
                {false, ND_FEATURE_SHM},
                {false, ND_FEATURE_RING}, /* without shared memory there is none */
                {true, 0},
                {true, ND_FEATURE_SHM | ND_FEATURE_RING},
        };
        struct ring_world w;
        uint64_t n_sent = 0;
        struct nd_raw *raw;
        int fd;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        for (size_t i = 0; i < nd_array_size(peers); ++i) {
                raw = nd_raw_open_features(w.h, peers[i].is_tcp, peers[i].features);
                cr_assert_eq(raw->features,
                             peers[i].is_tcp ? 0 : peers[i].features & ND_FEATURE_SHM);
                nd_raw_send_ring(raw, ND_RING_FILE_BYTES, -1);
                expect_end(raw, "kind");
                raw = nd_raw_open_features(w.h, peers[i].is_tcp, peers[i].features);
                nd_raw_send_wake(raw);
                expect_end(raw, "kind");
        }
        fd = memfd_of(ND_RING_FILE_BYTES, 0);
        raw = nd_raw_open_shm(w.h);
        nd_raw_send_ring(raw, ND_RING_FILE_BYTES, fd);
        expect_end(raw, "kind");

        raw = nd_raw_open_ring(w.h); /* it may have one, and has none */
        nd_raw_send_wake(raw);
        expect_end(raw, "kind");

        ring_world_join(&w); /* it has one */
        nd_raw_send_ring(w.publisher, ND_RING_FILE_BYTES, fd);
        expect_end(nd_steal(w.publisher), "kind");
        nd_ring_close(&w.ring);
        nd_segment_close(&w.segment);
        close(fd);
        ring_world_wait_left(&w);
        others_go_on(&w, &n_sent);
        ring_world_deinit(&w);
}

static void put_bare(struct ring_world *w, struct nd_prelude prelude)
{
        nd_raw_ring_put(w->publisher, &w->ring, prelude, NULL, 0);
}

static void put_publish(struct ring_world *w, struct nd_prelude changed)
{
        size_t n_header;
        nd_autofree uint8_t *header = nd_raw_header("t", 10, &n_header);

        changed.kind = ND_KIND_PUBLISH;
        changed.body_bytes = 10;
        nd_raw_ring_put(w->publisher, &w->ring, changed, header, n_header);
}

static void write_half_a_prelude(struct ring_world *w)
{
        static const uint8_t half[ND_PRELUDE_BYTES / 2] = {ND_KIND_PUBLISH};

        cr_assert(nd_ring_put(&w->ring, half, sizeof(half)));
}

static void write_no_header(struct ring_world *w)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        nd_prelude_pack(&(struct nd_prelude){.kind = ND_KIND_PUBLISH,
                                             .flags = ND_FLAG_BODY_IN_BLOCK,
                                             .sequence = 1,
                                             .segment = 1,
                                             .body_bytes = 10,
                                             .header_bytes = 50},
                        bytes);
        cr_assert(nd_ring_put(&w->ring, bytes, sizeof(bytes)));
}

static void write_ping(struct ring_world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = 100});
}

static void write_chunk(struct ring_world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_CHUNK, .stream = 1, .body_bytes = 10});
}

static void write_wake(struct ring_world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_WAKE});
}

static void write_ring(struct ring_world *w)
{
        put_bare(w,
                 (struct nd_prelude){.kind = ND_KIND_RING, .flags = ND_FLAG_FD, .sequence = 100});
}

static void write_goodbye(struct ring_world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_GOODBYE});
}

static void write_message(struct ring_world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_MESSAGE});
}

static void write_nothing_known(struct ring_world *w)
{
        put_bare(w, (struct nd_prelude){.kind = 0});
}

static void write_whole_body(struct ring_world *w)
{
        put_publish(w, (struct nd_prelude){.sequence = 1});
}

static void write_chunks(struct ring_world *w)
{
        put_publish(w, (struct nd_prelude){
                               .sequence = 1, .flags = ND_FLAG_BODY_IN_CHUNKS, .stream = 1});
}

static void write_number_0(struct ring_world *w)
{
        put_publish(w, (struct nd_prelude){.flags = ND_FLAG_BODY_IN_BLOCK, .segment = 1});
}

static void write_number_again(struct ring_world *w)
{
        ring_world_by_ring(w);
        w->publisher->n_published = 0;
        ring_world_by_ring(w);
}

static void write_number_0_behind_a_stream(struct ring_world *w)
{
        nd_raw_publish_begin(w->publisher, "t", 20000, 1);
        write_number_0(w);
        nd_raw_send_wake(w->publisher);
        ring_world_wait_asleep(w);
        nd_raw_send_prelude(w->publisher, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 1});
}

static void write_source(struct ring_world *w)
{
        put_publish(w, (struct nd_prelude){.flags = ND_FLAG_BODY_IN_BLOCK,
                                           .segment = 1,
                                           .sequence = 1,
                                           .source = 7});
}

static void write_beyond(struct ring_world *w)
{
        atomic_store(&w->ring.head->written, ND_RING_BYTES + 1);
}

static void write_far_beyond(struct ring_world *w)
{
        atomic_store(&w->ring.head->written, UINT64_MAX);
}

static void write_back(struct ring_world *w)
{
        ring_world_by_ring(w);
        ring_world_expect_routed(w->publisher, 1); /* it is taken */
        atomic_store(&w->ring.head->written, 0);
}

static void write_nothing(struct ring_world *w)
{
        atomic_store(&w->ring.head->written, ND_RING_BYTES); /* zeros */
}

static void write_unknown_segment(struct ring_world *w)
{
        nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 2, 0, 10, 0);
}

static void write_place_outside(struct ring_world *w)
{
        nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 1, RING_WORLD_SEGMENT_BYTES - 9, 10, 0);
}

static void write_block_twice(struct ring_world *w)
{
        nd_pattern_fill(w->segment.base, 0, 10);
        for (unsigned i = 0; i < 2; ++i)
                nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 1, 0, 10, 0);
}

Test(ring_hostile, that_breaks_the_rules_ends_the_connection)
{
        static const struct {
                const char *what;
                void (*write)(struct ring_world *w);
                const char *field;
                uint64_t n_routed; /* before that */
        } cases[] = {
                {"half a prelude", write_half_a_prelude, "written", 0},
                {"a packet without its header", write_no_header, "written", 0},
                {"PING", write_ping, "kind", 0},
                {"CHUNK", write_chunk, "kind", 0},
                {"WAKE", write_wake, "kind", 0},
                {"RING", write_ring, "kind", 0},
                {"GOODBYE", write_goodbye, "kind", 0},
                {"MESSAGE", write_message, "kind", 0},
                {"no kind", write_nothing_known, "kind", 0},
                {"PUBLISH with its body", write_whole_body, "kind", 0},
                {"PUBLISH in chunks", write_chunks, "kind", 0},
                {"number 0", write_number_0, "sequence", 0},
                {"a number again", write_number_again, "sequence", 1},
                {"number 0 behind a stream", write_number_0_behind_a_stream, "sequence", 0},
                {"a source", write_source, "source", 0},
                {"one byte too many", write_beyond, "written", 0},
                {"2^64-1 bytes", write_far_beyond, "written", 0},
                {"fewer bytes than before", write_back, "written", 1},
                {"zeros", write_nothing, "kind", 0},
                {"a segment that is not announced", write_unknown_segment, "segment", 0},
                {"a place outside", write_place_outside, "place", 0},
                {"a block twice", write_block_twice, "place", 1},
        };
        struct ring_world w;
        uint64_t n_sent = 0;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                fprintf(stderr, "%s\n", cases[i].what);
                ring_world_join(&w);
                cases[i].write(&w);
                nd_raw_send_wake(w.publisher);
                expect_end(nd_steal(w.publisher), cases[i].field);
                nd_ring_close(&w.ring);
                nd_segment_close(&w.segment);
                for (uint64_t k = 0; k < cases[i].n_routed; ++k) {
                        struct nd_raw_message message = nd_raw_receive(w.subscriber);

                        nd_raw_grant(w.subscriber, 1, 1, message.prelude.body_bytes);
                        nd_raw_message_free(&message);
                }
                ring_world_wait_left(&w);
                others_go_on(&w, &n_sent);
        }
        ring_world_deinit(&w);
}

/* A number that never comes: what is in the ring waits, the socket does not. */
Test(ring_hostile, whose_turn_never_comes_harms_nobody)
{
        uint64_t before;
        struct ring_world w;

        ring_world_init(&w, NULL);
        before = ring_world_taken(&w);
        w.publisher->n_published = 20000;
        ring_world_by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        w.publisher->n_published = 0;
        while (w.n_received < 10000) {
                for (unsigned i = 0; i < 100; ++i)
                        nd_raw_publish(w.publisher, "t",
                                       ring_world_size(w.publisher->n_published + 1));
                if (w.n_received % 1000 == 0)
                        nd_raw_send_wake(w.publisher);
                ring_world_expect_up_to(&w, w.publisher->n_published);
        }
        ring_world_wait_asleep(&w);
        cr_assert_eq(ring_world_taken(&w), before);
        ring_world_leave(&w);
        ring_world_expect_nothing_more(&w);
        ring_world_deinit(&w);
}

/* ----- positions and bytes that change while they are read */

#define VANDAL_WRITES_N 100000u

struct vandal {
        struct nd_ring *ring;
        uint32_t state;
        bool changes_positions;
        atomic_bool is_done;
};

static uint32_t random_next(uint32_t *state)
{
        *state = *state * 1664525u + 1013904223u;
        return *state >> 8;
}

static void *vandalize(void *argument)
{
        struct vandal *vandal = argument;
        struct nd_ring_head *head = vandal->ring->head;

        for (unsigned i = 0; i < VANDAL_WRITES_N; ++i) {
                uint32_t what = random_next(&vandal->state);
                volatile uint8_t *byte =
                        vandal->ring->data + random_next(&vandal->state) % ND_RING_BYTES;
                uint8_t old = *byte;

                if (!vandal->changes_positions || what % 4 == 0) {
                        *byte = (uint8_t)(old ^ 1u << what % 8);
                        *byte = old;
                } else if (what % 4 == 1) {
                        atomic_store(&head->written,
                                     random_next(&vandal->state) % (2 * ND_RING_BYTES));
                } else if (what % 4 == 2) {
                        atomic_store(&head->taken, random_next(&vandal->state));
                } else {
                        atomic_store(&head->is_asleep, what / 4);
                }
        }
        atomic_store(&vandal->is_done, true);
        return NULL;
}

/* One client whose ring changes under the daemon's hands, until it is thrown out or has had enough. */
static void suffer(struct ring_world *w, bool changes_positions, uint32_t seed)
{
        struct vandal vandal = {
                .ring = &w->ring, .state = seed, .changes_positions = changes_positions};
        const struct nd_raw_packet *packet = NULL;
        pthread_t thread;

        ring_world_join(w);
        for (unsigned k = 0; w->ring.position < ND_RING_BYTES / 2; ++k)
                nd_raw_ring_publish_in(w->publisher, &w->ring, "$no", 1, k * RING_WORLD_SLOT_BYTES,
                                       10, 0);
        cr_assert_eq(pthread_create(&thread, NULL, vandalize, &vandal), 0);
        do {
                uint64_t number = ++w->publisher->n_requests;

                nd_raw_send_wake(w->publisher);
                nd_raw_send_prelude(w->publisher,
                                    (struct nd_prelude){.kind = ND_KIND_PING, .sequence = number});
                do
                        packet = nd_raw_next(w->publisher);
                while (packet && packet->prelude.kind != ND_KIND_PONG);
        } while (packet && !atomic_load(&vandal.is_done));
        cr_assert_eq(pthread_join(thread, NULL), 0);
        ring_world_leave(w);
}

Test(ring_hostile, that_changes_while_it_is_read_harms_nobody)
{
        uint32_t seed = (uint32_t)getpid();
        struct ring_world w;
        uint64_t n_sent = 0;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        for (unsigned i = 0; i < 60; ++i) {
                fprintf(stderr, "round %u seed %u\n", i, seed);
                suffer(&w, i % 2, seed);
                random_next(&seed);
                ring_world_wait_left(&w);
                others_go_on(&w, &n_sent);
        }
        ring_world_deinit(&w);
}
