/* SPDX-License-Identifier: MIT */

/*
 * Publishing in shared memory, against a scripted daemon: segments, blocks, loans, and what becomes of
 * them when something ends
 */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ndbus/ndbus.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"
#include "tests/support/pattern.h"

#define BYTES ((uint64_t)1 << 20)

/* The two threads of a test take turns by these. */
static sem_t go_script, go_test;

static void init(void)
{
        sem_init(&go_script, 0, 0);
        sem_init(&go_test, 0, 0);
}

TestSuite(client_loan, .init = init, .timeout = 60);

/* ---------------------------------------------------------------------- publishing */

static uint8_t source[BYTES];

static struct ndbus_array bytes_array(const int64_t *shape)
{
        return (struct ndbus_array){.data = source, .dtype = "uint8", .ndim = 1, .shape = shape};
}

static int publish(struct ndbus *bus, int64_t n)
{
        const struct ndbus_array array = bytes_array(&n);

        return ndbus_publish(bus, "t", &array, 1, NULL);
}

static void copy_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint64_t first, second;
        uint32_t number;

        (void)userdata;
        client_test_accept_shm(peer);
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->n_body == 1000);
        segment = fake_peer_segment(peer, &number);
        first = client_test_expect_block(peer, number, 500000);
        must(nd_pattern_compare(segment.base + first, 0, 500000) == 500000);
        second = client_test_expect_block(peer, number, 500000);
        must(second != first);
        client_test_release(peer, number, first);
        client_test_pong(peer, 0);
        must(client_test_expect_block(peer, number, 500000) == first);
        client_test_pong(peer, 0);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

Test(client_loan, publish_copies_a_large_body_into_a_block_and_uses_released_ones_again)
{
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(copy_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        nd_pattern_fill(source, 0, sizeof(source));
        cr_assert_eq(publish(bus, 1000), 0);
        cr_assert_eq(publish(bus, 500000), 0);
        cr_assert_eq(publish(bus, 500000), 0);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        cr_assert_eq(publish(bus, 500000), 0);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        cr_assert_eq(client_test_shm_stats(bus).published, 3);
        cr_assert_eq(client_test_shm_stats(bus).fallback, 0);
        cr_assert_eq(client_test_shm_stats(bus).blocks, 2);
        cr_assert_eq(client_test_shm_stats(bus).segments, 1);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_fds(), n_before);
        cr_assert_eq(client_test_n_mappings(), 0);
}

static void hasty_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint32_t number;
        uint64_t place;

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 16 * BYTES;
        client_test_accept_shm(peer);
        segment = fake_peer_segment(peer, &number);
        place = client_test_expect_block(peer, number, BYTES);
        client_test_release(peer, number, place);
        client_test_pong(peer, 0);
        sem_wait(&go_script); /* it is being published in again, and the socket is full */
        client_test_release(peer, number, place);
        sem_wait(&go_script); /* it has heard that; before, nothing may leave */
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

static int tell_script(void *userdata)
{
        bool *is_told = userdata;

        if (*is_told)
                sem_post(&go_script);
        *is_told = false;
        return 0;
}

/* A daemon that releases what it cannot have: the block is still the application's. */
Test(client_loan, what_has_not_left_is_not_released)
{
        struct ndbus_publish_options once = NDBUS_PUBLISH_OPTIONS_INIT;
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        const struct ndbus_array small = bytes_array(&(int64_t){4000});
        struct fake_peer *peer = fake_peer_start(hasty_script, NULL);
        struct ndbus_loan *again;
        bool is_told = false;
        uint8_t *data;
        struct ndbus *bus;
        int r;

        once.timeout_ms = 0;
        options.interrupted = tell_script;
        options.userdata = &is_told;
        cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
        cr_assert_eq(ndbus_publish_loan(bus, "t", client_test_loan(bus, BYTES, &data), NULL), 0);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        again = client_test_loan(bus, BYTES, &data);
        while ((r = ndbus_publish(bus, "t", &small, 1, &once)) == 0)
                continue;
        cr_assert_eq(r, NDBUS_EWOULDBLOCK, "%s", ndbus_detail());
        is_told = true;
        cr_assert_neq(ndbus_publish_loan(bus, "t", again, NULL), 0);
        sem_post(&go_script);
        cr_assert(strstr(ndbus_detail(), "RELEASE"), "%s", ndbus_detail());
        memset(data, 1, BYTES);
        ndbus_loan_cancel(again);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_mappings(), 0);
}

static void exhaust_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segments[2];
        uint32_t numbers[2];

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 8 * BYTES;
        client_test_accept_shm_of(peer, 5 * BYTES);
        segments[0] = fake_peer_segment(peer, &numbers[0]);
        for (unsigned i = 0; i < 4; ++i)
                client_test_expect_block(peer, numbers[0], BYTES);
        segments[1] = fake_peer_segment(peer, &numbers[1]);
        must(numbers[1] != numbers[0] && segments[1].bytes == BYTES);
        client_test_expect_block(peer, numbers[1], BYTES);
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->n_body == BYTES);
        client_test_release(peer, numbers[0], 2 * BYTES);
        client_test_pong(peer, 0);
        must(client_test_expect_block(peer, numbers[0], BYTES) == 2 * BYTES);
        fake_peer_drain(peer);
        nd_segment_close(&segments[0]);
        nd_segment_close(&segments[1]);
}

/* T52: shm-max. */
Test(client_loan, when_blocks_run_out_there_is_another_segment_then_the_socket)
{
        struct fake_peer *peer = fake_peer_start(exhaust_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        for (unsigned i = 0; i < 6; ++i)
                cr_assert_eq(publish(bus, BYTES), 0, "%s", ndbus_detail());
        cr_assert_eq(client_test_shm_stats(bus).published, 5);
        cr_assert_eq(client_test_shm_stats(bus).fallback, 1);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        cr_assert_eq(publish(bus, BYTES), 0);
        cr_assert_eq(client_test_shm_stats(bus).published, 6);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void refuse_script(struct fake_peer *peer, void *userdata)
{
        const struct fake_packet *packet;
        struct nd_control_bytes bytes;

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 8 * BYTES;
        client_test_accept_shm(peer);
        packet = fake_peer_expect(peer, ND_KIND_SEGMENT);
        nd_error_header_pack(&(struct nd_error_header){.code = -NDBUS_ENO_FD,
                                                       .of = ND_KIND_SEGMENT,
                                                       .text = ND_STRING("no more")},
                             &bytes);
        fake_peer_send(
                peer,
                &(struct nd_prelude){.kind = ND_KIND_ERROR, .sequence = packet->prelude.sequence},
                bytes.data, bytes.n, NULL, 0);
        for (unsigned i = 0; i < 2; ++i)
                must(fake_peer_expect(peer, ND_KIND_PUBLISH)->n_body == 500000);
        fake_peer_drain(peer);
}

Test(client_loan, a_refused_segment_is_not_used_and_the_socket_carries_it)
{
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(refuse_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        cr_assert_eq(publish(bus, 500000), 0, "%s", ndbus_detail());
        cr_assert_eq(publish(bus, 500000), 0);
        cr_assert_eq(client_test_shm_stats(bus).published, 0);
        cr_assert_eq(client_test_shm_stats(bus).fallback, 2);
        cr_assert_eq(client_test_shm_stats(bus).segments, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_fds(), n_before);
}

static void loan_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint32_t number;
        uint64_t place;

        (void)userdata;
        client_test_accept_shm(peer);
        segment = fake_peer_segment(peer, &number);
        place = client_test_expect_block(peer, number, 320);
        must(nd_pattern_compare(segment.base + place, 0, 100) == 100);
        for (unsigned i = 100; i < 128; ++i)
                must(segment.base[place + i] == 0);
        must(nd_pattern_compare(segment.base + place + 128, 128, 64) == 64);
        client_test_release(peer, number, place);
        client_test_pong(peer, 0);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

/* T22: three arrays, written in place; gaps are zero whatever was there before. */
Test(client_loan, a_loan_is_laid_out_like_a_body)
{
        static const int64_t shapes[] = {100, 8, 2};
        struct ndbus_array arrays[3] = {
                {.dtype = "uint8", .ndim = 1, .shape = &shapes[0], .name = "a"},
                {.dtype = "float64", .ndim = 1, .shape = &shapes[1]},
                {.dtype = "uint8", .ndim = 1, .shape = (const int64_t[]){128}},
        };
        struct fake_peer *peer = fake_peer_start(loan_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_loan *loan, *dirty;
        uint8_t *data;

        {
                int64_t n = 320;
                struct ndbus_array array = bytes_array(&n);

                cr_assert_eq(ndbus_loan(bus, &array, 1, &dirty), 0);
                data = (uint8_t *)(uintptr_t)array.data;
                memset(data, 0xff, 320);
                ndbus_loan_cancel(dirty);
        }
        cr_assert_eq(ndbus_loan(bus, arrays, 3, &loan), 0, "%s", ndbus_detail());
        cr_assert_eq(arrays[0].data, data);
        cr_assert_eq(arrays[1].data, data + 128);
        cr_assert_eq(arrays[2].data, data + 192);
        nd_pattern_fill(data, 0, 100);
        nd_pattern_fill(data + 128, 128, 192);
        cr_assert_eq(client_test_shm_stats(bus).blocks, 1);
        cr_assert_eq(ndbus_publish_loan(bus, "t", loan, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        cr_assert_eq(client_test_shm_stats(bus).blocks, 0, "free exactly once");
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void lost_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment;
        uint32_t number;

        (void)userdata;
        client_test_accept_shm(peer);
        segment = fake_peer_segment(peer, &number);
        client_test_expect_block(peer, number, 100000);
        must(nd_pattern_compare(segment.base, 0, 100000) == 100000);
        fake_peer_hang_up(peer);
        sem_post(&go_test);
        sem_wait(&go_script);
        /* whatever was written since then, what was published is as it was */
        must(nd_pattern_compare(segment.base, 0, 100000) == 100000);
        nd_segment_close(&segment);
        client_test_accept_shm(peer);
        segment = fake_peer_segment(peer, &number);
        client_test_expect_block(peer, number, 100000);
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->n_body == 200);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

/* T22: a loan to a daemon that is gone stays the caller's; a block that was published there is never
 * written again. */
Test(client_loan, after_a_lost_connection_no_published_block_is_used_again)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(lost_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_message *none;
        struct ndbus_loan *a, *kept;
        uint8_t *data, *kept_data;
        int r;

        a = client_test_loan(bus, 100000, &data);
        nd_pattern_fill(data, 0, 100000);
        kept = client_test_loan(bus, 200, &kept_data);
        cr_assert_eq(ndbus_publish_loan(bus, "t", a, NULL), 0, "%s", ndbus_detail());
        sem_wait(&go_test);
        options.timeout_ms = 0;
        do
                r = ndbus_publish_loan(bus, "t", kept, &options);
        while (r == 0 && (kept = client_test_loan(bus, 200, &kept_data)));
        cr_assert_eq(r, NDBUS_ENOTCONN);
        memset(kept_data, 7, 200);
        sem_post(&go_script);
        nd_pattern_fill(source, 0, sizeof(source));
        while ((r = publish(bus, 100000)) == NDBUS_ENOTCONN)
                ndbus_receive(bus, &none, 1000); /* says the loss, then connects */
        cr_assert_eq(r, 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_publish_loan(bus, "t", kept, NULL), 0, "by the socket");
        cr_assert_eq(client_test_shm_stats(bus).segments, 1, "the old one went with its last loan");
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_fds(), n_before);
}

/* ------------------------------------------------------------------------- the daemon retires segments */

static void retire(struct fake_peer *peer, uint32_t segment)
{
        const struct nd_prelude p = {
                .kind = ND_KIND_SEGMENT_GONE, .segment = segment, .sequence = 1};

        fake_peer_send(peer, &p, NULL, 0, NULL, 0);
}

static void expect_given_back(struct fake_peer *peer, uint32_t segment)
{
        const struct nd_prelude *p = &fake_peer_expect(peer, ND_KIND_SEGMENT_GONE)->prelude;

        must(p->segment == segment && p->sequence == 0);
}

static void retire_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment old, next;
        uint32_t number, next_number;
        uint64_t place;

        (void)userdata;
        client_test_accept_shm(peer);
        old = fake_peer_segment(peer, &number);
        place = client_test_expect_block(peer, number, 100000);
        retire(peer, number);
        client_test_pong(peer, 0);
        next = fake_peer_segment(peer, &next_number);
        must(next_number != number);
        client_test_expect_block(peer, next_number, 100000);
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->n_body == 20000);
        client_test_expect_block(peer, next_number, 30000);
        client_test_release(peer, number, place);
        client_test_pong(peer, 0);
        expect_given_back(peer, number);
        client_test_pong(peer, 0);
        retire(peer, number); /* it has crossed that */
        client_test_pong(peer, 0);
        fake_peer_drain(peer);
        nd_segment_close(&old);
        nd_segment_close(&next);
}

/* What is published in it is released as ever; loans in it go by the socket; it goes with its last block. */
Test(client_loan, no_block_is_taken_from_a_retired_segment)
{
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(retire_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_loan *sent, *cancelled;
        uint8_t *data;

        sent = client_test_loan(bus, 20000, &data);
        cancelled = client_test_loan(bus, 20000, &data);
        cr_assert_eq(publish(bus, 100000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(publish(bus, 100000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_publish_loan(bus, "t", sent, NULL), 0, "%s", ndbus_detail());
        cr_assert_eq(client_test_shm_stats(bus).fallback, 1);
        cr_assert_eq(ndbus_publish_loan(bus, "t", client_test_loan(bus, 30000, &data), NULL), 0);
        ndbus_loan_cancel(cancelled);
        cr_assert_eq(client_test_shm_stats(bus).segments, 2, "a block of it is not released");
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(client_test_shm_stats(bus).segments, 1);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0, "%s", ndbus_detail());
        cr_assert_eq(client_test_shm_stats(bus).published, 3);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_fds(), n_before);
        cr_assert_eq(client_test_n_mappings(), 0);
}

static void retire_quietly_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segments[2];
        uint32_t numbers[2];

        (void)userdata;
        client_test_accept_shm(peer);
        segments[0] = fake_peer_segment(peer, &numbers[0]);
        client_test_expect_block(peer, numbers[0], 100000);
        retire(peer, numbers[0]);
        sem_post(&go_test);
        segments[1] = fake_peer_segment(peer, &numbers[1]);
        client_test_expect_block(peer, numbers[1], 100000);
        fake_peer_drain(peer);
        nd_segment_close(&segments[0]);
        nd_segment_close(&segments[1]);
}

static uint64_t coarse_ms(void)
{
        struct timespec at;

        clock_gettime(CLOCK_MONOTONIC_COARSE, &at);
        return (uint64_t)at.tv_sec * 1000 + (uint64_t)at.tv_nsec / 1000000;
}

/* By more than a publisher leaves the socket unread. */
static void clock_goes_on(void)
{
        uint64_t start = coarse_ms();

        while (coarse_ms() < start + 30)
                sched_yield();
}

/* It does nothing but publish, and little of that. */
Test(client_loan, a_publisher_looks_for_the_daemons_word_before_it_writes)
{
        struct fake_peer *peer = fake_peer_start(retire_quietly_script, NULL);
        struct ndbus *bus = client_test_open(peer);

        cr_assert_eq(publish(bus, 100000), 0, "%s", ndbus_detail());
        sem_wait(&go_test);
        clock_goes_on();
        cr_assert_eq(publish(bus, 100000), 0, "%s", ndbus_detail());
        cr_assert_eq(client_test_shm_stats(bus).published, 2);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

#define LARGE_BYTES (20 * ND_MIB)

static void retire_waiting_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segments[3];
        uint32_t numbers[3];
        uint64_t ping;

        (void)userdata;
        client_test_accept_shm_of(peer, 2 * LARGE_BYTES);
        segments[0] = fake_peer_segment(peer, &numbers[0]);
        client_test_expect_block(peer, numbers[0], LARGE_BYTES);
        segments[1] = fake_peer_segment(peer, &numbers[1]);
        ping = client_test_expect_ping(peer);
        retire(peer, numbers[1]);
        client_test_answer_ping(peer, ping, 1);
        expect_given_back(peer, numbers[1]);
        segments[2] = fake_peer_segment(peer, &numbers[2]);
        client_test_expect_block(peer, numbers[2], LARGE_BYTES);
        must(segments[1].base[0] == 0 && segments[2].base[0] == 7);
        fake_peer_drain(peer);
        for (unsigned i = 0; i < 3; ++i)
                nd_segment_close(&segments[i]);
}

/* It has its block, but nothing is in it yet. */
Test(client_loan, a_message_that_waits_takes_another_block_when_its_segment_retires)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        struct fake_peer *peer = fake_peer_start(retire_waiting_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        const int64_t n = LARGE_BYTES;
        struct ndbus_array array = bytes_array(&n);
        uint8_t *large = malloc(LARGE_BYTES);

        cr_assert(large);
        memset(large, 7, LARGE_BYTES);
        array.data = large;
        options.timeout_ms = 20000;
        for (unsigned i = 0; i < 2; ++i)
                cr_assert_eq(ndbus_publish(bus, "t", &array, 1, &options), 0, "%s", ndbus_detail());
        cr_assert_eq(client_test_shm_stats(bus).published, 2);
        cr_assert_eq(client_test_shm_stats(bus).fallback, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        free(large);
}

static ino_t inode_of(const struct nd_segment *segment)
{
        struct stat st;

        must(fstat(segment->fd, &st) == 0);
        return st.st_ino;
}

static void retire_lost_script(struct fake_peer *peer, void *userdata)
{
        const bool *is_published = userdata;
        struct nd_segment old, next;
        uint32_t number;

        client_test_accept_shm(peer);
        old = fake_peer_segment(peer, &number);
        if (*is_published)
                client_test_release(peer, number, client_test_expect_block(peer, number, 100000));
        else
                retire(peer, number);
        client_test_pong(peer, 0);
        fake_peer_hang_up(peer);
        client_test_accept_shm(peer);
        next = fake_peer_segment(peer, &number);
        must(inode_of(&next) != inode_of(&old));
        client_test_expect_block(peer, number, 100000);
        fake_peer_drain(peer);
        nd_segment_close(&old);
        nd_segment_close(&next);
}

/* The next daemon does not know who has it: neither one that was retired is announced again, nor one that
 * somebody may have been handed, although nothing is in it. */
Test(client_loan, a_segment_that_others_may_have_does_not_outlive_its_connection)
{
        for (unsigned i = 0; i < 2; ++i) {
                bool is_published = i == 1;
                struct fake_peer *peer = fake_peer_start(retire_lost_script, &is_published);
                struct ndbus *bus = client_test_open(peer);
                struct ndbus_loan *loaned = NULL;
                struct ndbus_message *none;
                uint8_t *data;
                int r;

                if (is_published)
                        cr_assert_eq(publish(bus, 100000), 0, "%s", ndbus_detail());
                else
                        loaned = client_test_loan(bus, 100000, &data);
                cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0, "%s", ndbus_detail());
                ndbus_loan_cancel(loaned);
                cr_assert_eq(ndbus_receive(bus, &none, 5000), NDBUS_ENOTCONN);
                while ((r = publish(bus, 100000)) == NDBUS_ENOTCONN)
                        ndbus_receive(bus, &none, 1000);
                cr_assert_eq(r, 0, "%s", ndbus_detail());
                cr_assert_eq(client_test_shm_stats(bus).segments, 1);
                ndbus_close(bus, 0, NULL);
                fake_peer_end(peer);
        }
}

static void retire_badly_script(struct fake_peer *peer, void *userdata)
{
        const struct nd_prelude *gone = userdata;
        struct nd_segment segment;
        uint32_t number;

        client_test_accept_shm(peer);
        segment = fake_peer_segment(peer, &number);
        fake_peer_send(peer, gone, NULL, 0, NULL, 0);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

Test(client_loan, a_daemon_that_retires_nonsense_is_left)
{
        static struct nd_prelude gone[] = {
                {.kind = ND_KIND_SEGMENT_GONE, .segment = 2, .sequence = 1},
                {.kind = ND_KIND_SEGMENT_GONE, .segment = 1, .sequence = 2},
        };
        static const char *const says[] = {"2 was not announced", "is 2, must be 0 or 1"};

        for (unsigned i = 0; i < 2; ++i) {
                struct fake_peer *peer = fake_peer_start(retire_badly_script, &gone[i]);
                struct ndbus *bus = client_test_open(peer);
                struct ndbus_message *none;
                struct ndbus_loan *loaned;
                uint8_t *data;

                loaned = client_test_loan(bus, 100000, &data);
                cr_assert_eq(ndbus_receive(bus, &none, 5000), NDBUS_EPROTOCOL);
                cr_assert(strstr(ndbus_detail(), says[i]), "%s", ndbus_detail());
                ndbus_loan_cancel(loaned);
                ndbus_close(bus, 0, NULL);
                fake_peer_end(peer);
        }
}

static void drain_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        client_test_accept_shm(peer);
        fake_peer_drain(peer);
}

Test(client_loan, a_loan_outlives_its_bus)
{
        struct fake_peer *peer = fake_peer_start(drain_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_loan *shared = NULL;
        uint8_t *data;

        shared = client_test_loan(bus, 100000, &data);
        ndbus_close(bus, 0, NULL);
        memset(data, 1, 100000);
        cr_assert_eq(client_test_n_mappings(), 1);
        ndbus_loan_cancel(shared);
        cr_assert_eq(client_test_n_mappings(), 0);
        ndbus_loan_cancel(NULL);
        fake_peer_end(peer);
}

static void announced_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        client_test_accept_shm(peer);
        fake_peer_expect(peer, ND_KIND_SEGMENT);
        close(fake_peer_take_fd(peer));
        sem_post(&go_test);
        fake_peer_drain(peer);
}

static size_t n_sealed_fds(void)
{
        size_t n = 0;

        for (int fd = 3; fd < 64; ++fd)
                n += fcntl(fd, F_GET_SEALS) >= (F_SEAL_SHRINK | F_SEAL_GROW);
        return n;
}

Test(client_loan, a_child_has_neither_memory_nor_descriptors_of_a_publisher)
{
        struct fake_peer *peer = fake_peer_start(announced_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_loan *loaned;
        uint8_t *data;
        int status;
        pid_t pid;

        loaned = client_test_loan(bus, 100000, &data);
        sem_wait(&go_test);
        cr_assert_eq(n_sealed_fds(), 1);
        pid = fork();
        if (pid == 0) {
                if (client_test_n_mappings() > 0)
                        _exit(1);
                if (n_sealed_fds() > 0)
                        _exit(2);
                ndbus_loan_cancel(loaned);
                _exit(ndbus_close(bus, 0, NULL) ? 3 : 0);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0, "status %#x", (unsigned)status);
        ndbus_loan_cancel(loaned);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void plain_script(struct fake_peer *peer, void *userdata)
{
        (void)userdata;
        fake_peer_accept(peer);
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->n_body == 40000);
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->n_body == 1000);
        fake_peer_drain(peer);
}

/* A daemon without the feature, and a client that does not want it: loans work all the same. */
Test(client_loan, without_shared_memory_loans_are_ordinary_memory)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct fake_peer *peer;
        struct ndbus_loan *loaned;
        struct ndbus *bus;
        uint8_t *data;

        for (unsigned i = 0; i < 2; ++i) {
                options.no_shm = i == 1;
                peer = fake_peer_start(plain_script, NULL);
                cr_assert_eq(ndbus_open(&bus, fake_peer_url(peer), &options), 0);
                cr_assert_eq(publish(bus, 40000), 0);
                loaned = client_test_loan(bus, 1000, &data);
                memset(data, 1, 1000);
                cr_assert_eq(ndbus_publish_loan(bus, "t", loaned, NULL), 0);
                cr_assert_eq(client_test_shm_stats(bus).published +
                                     client_test_shm_stats(bus).segments,
                             0);
                ndbus_close(bus, 0, NULL);
                fake_peer_end(peer);
        }
}

Test(client_loan, what_cannot_be_loaned)
{
        static const int64_t shape[] = {4, 4}, strides[] = {8, 1}, empty[] = {0, 4};
        struct fake_peer *peer = fake_peer_start(drain_script, NULL);
        struct ndbus *bus = client_test_open(peer), *other = NULL;
        struct ndbus_array array = {.dtype = "uint8", .ndim = 2, .shape = shape};
        struct ndbus_loan *loaned = NULL;

        array.strides = strides;
        cr_assert_eq(ndbus_loan(bus, &array, 1, &loaned), NDBUS_ESHAPE);
        cr_assert_null(array.data);
        array.strides = NULL;
        array.dtype = "object";
        cr_assert_eq(ndbus_loan(bus, &array, 1, &loaned), NDBUS_EDTYPE);
        cr_assert_eq(ndbus_loan(bus, NULL, 1, &loaned), NDBUS_EINVAL);
        cr_assert_null(loaned);
        array.dtype = "uint8";
        array.shape = empty;
        cr_assert_eq(ndbus_loan(bus, &array, 1, &loaned), 0);
        cr_assert_eq(ndbus_publish_loan(bus, "bad//topic", loaned, NULL), NDBUS_ETOPIC);
        cr_assert_eq(ndbus_publish_loan(other, "t", loaned, NULL), NDBUS_EINVAL);
        cr_assert_eq(ndbus_publish_loan(bus, "t", loaned, NULL), 0, "it was the caller's still");
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}
