/* SPDX-License-Identifier: MIT */

/*
 * Rings over the wire: what a client publishes through its ring and what it sends by its socket come
 * in one order, and nothing is missed by a daemon that sleeps, ends or is told to stop
 */

#include <criterion/criterion.h>
#include <linux/sockios.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/pattern.h"
#include "tests/support/ring-world.h"

/* ------------------------------------------------------------------------------------------ order */

Test(ring, and_socket_have_one_order)
{
        uint64_t n_by_ring = 0;
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (uint64_t k = 1; k <= 1500; ++k) {
                if (k % 7 < 4)
                        ring_world_by_ring(&w);
                else
                        ring_world_by_socket(&w);
                n_by_ring += k % 7 < 4;
                if (k % 5 == 0)
                        nd_raw_ring_wake(w.publisher, &w.ring);
                if (k % 50 == 0) {
                        nd_raw_ring_wake(w.publisher, &w.ring);
                        ring_world_expect_up_to(&w, k);
                }
        }
        ring_world_expect_nothing_more(&w);
        cr_assert_eq(nd_raw_stat(w.asker, "counters", "ring_messages"), n_by_ring);
        nd_raw_check_stats(w.asker);
        ring_world_deinit(&w);
}

Test(ring, waits_for_a_number_that_comes_by_the_socket)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (uint64_t k = 1; k < 200; k += 4) {
                uint64_t before = ring_world_taken(&w);

                w.publisher->n_published = k; /* the one before it is kept back */
                ring_world_by_ring(&w);
                ring_world_by_ring(&w);
                nd_raw_ring_wake(w.publisher, &w.ring);
                ring_world_wait_asleep(&w);
                ring_world_by_ring(&w); /* behind what waits, and announced too */
                nd_raw_ring_wake(w.publisher, &w.ring);
                ring_world_wait_asleep(&w);
                cr_assert_eq(ring_world_taken(&w), before);
                ring_world_expect_nothing_more(&w);

                w.publisher->n_published = k - 1;
                ring_world_by_socket(&w);
                w.publisher->n_published = k + 3;
                ring_world_expect_up_to(&w, k + 3);
                ring_world_wait_asleep(&w);
                cr_assert_eq(ring_world_taken(&w), w.ring.position);
        }
        ring_world_deinit(&w);
}

/* A PUBLISH of so many bytes in its packet, or in one chunk on a stream; its bytes come in two parts, and
 * nothing after them. */
static void in_two_parts(struct ring_world *w, uint32_t n_bytes, bool is_chunk)
{
        size_t n_header = 0;
        nd_autofree uint8_t *header = is_chunk ? NULL : nd_raw_header("t", n_bytes, &n_header);
        nd_autofree uint8_t *body = malloc(n_bytes);
        struct nd_prelude prelude = {
                .kind = is_chunk ? ND_KIND_CHUNK : ND_KIND_PUBLISH,
                .stream = is_chunk ? 1 : 0,
                .sequence = is_chunk ? 0 : w->n_received + 1,
                .header_bytes = (uint32_t)n_header,
                .body_bytes = n_bytes,
        };
        uint8_t packed[ND_PRELUDE_BYTES];

        cr_assert(body);
        nd_pattern_fill(body, 0, n_bytes);
        nd_raw_await_credit(w->publisher, ND_PRELUDE_BYTES + n_header + n_bytes);
        w->publisher->credit -= ND_PRELUDE_BYTES + n_header + n_bytes;
        nd_prelude_pack(&prelude, packed);
        nd_raw_send(w->publisher, packed, sizeof(packed));
        nd_raw_send(w->publisher, header, n_header);
        nd_raw_send(w->publisher, body, n_bytes / 2);
        ring_world_wait_asleep(w);
        ring_world_expect_nothing_more(w);
        nd_raw_send(w->publisher, body + n_bytes / 2, n_bytes - n_bytes / 2);
}

/* The end of a body lets the ring go on, if nothing comes behind it. */
Test(ring, waits_for_the_end_of_a_body)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (unsigned i = 0; i < 40; ++i) {
                const uint32_t n_bytes = 20000 + i;
                bool is_chunk = i % 2;

                if (is_chunk)
                        nd_raw_publish_begin(w.publisher, "t", n_bytes, 1);
                else
                        ++w.publisher->n_published;
                ring_world_by_ring(&w);
                nd_raw_ring_wake(w.publisher, &w.ring);
                ring_world_wait_asleep(&w);
                in_two_parts(&w, n_bytes, is_chunk);
                ring_world_expect_bytes(&w, n_bytes);
                ring_world_expect_up_to(&w, w.n_received + 1);
        }
        ring_world_deinit(&w);
}

/* And for the end of a stream, though its message is taken back. */
Test(ring, goes_on_behind_a_stream_that_is_reset)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        nd_raw_publish_begin(w.publisher, "t", 20000, 1);
        ring_world_by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        ring_world_wait_asleep(&w);
        ring_world_expect_nothing_more(&w);
        nd_raw_send_prelude(w.publisher, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 1});
        ring_world_expect_bytes(&w, ring_world_size(2));
        ring_world_deinit(&w);
}

Test(ring, is_taken_before_a_ping)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (uint64_t k = 10; k <= 1000; k += 10) {
                while (w.publisher->n_published < k)
                        ring_world_by_ring(&w);
                ring_world_expect_routed(w.publisher, k);
                ring_world_expect_up_to(&w, k);
        }
        ring_world_deinit(&w);
}

Test(ring, is_taken_before_a_goodbye)
{
        const struct nd_raw_packet *packet;
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (unsigned i = 0; i < 100; ++i)
                ring_world_by_ring(&w);
        nd_raw_send_prelude(w.publisher, (struct nd_prelude){.kind = ND_KIND_GOODBYE});
        do
                packet = nd_raw_next(w.publisher);
        while (packet && packet->prelude.kind != ND_KIND_GOODBYE);
        cr_assert(packet, "closed");
        cr_assert_eq(packet->prelude.place, 100);
        ring_world_by_ring(&w); /* too late */
        nd_raw_send_wake(w.publisher);
        ring_world_leave(&w);
        ring_world_expect_up_to(&w, 100);
        ring_world_expect_nothing_more(&w);
        ring_world_deinit(&w);
}

/* --------------------------------------------------------------------------------------- sleeping */

/* By WAKE or by the bell: it is one. */
typedef void (*call_func)(struct nd_raw *raw);
typedef void (*call_if_asleep_func)(struct nd_raw *raw, struct nd_ring *ring);

static void be_asleep_until_woken(call_func call)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        cr_assert_eq(atomic_load(&w.ring.head->is_asleep), 1);
        for (uint64_t k = 1; k <= 100; ++k) {
                uint64_t before = ring_world_taken(&w);

                ring_world_by_ring(&w);
                nd_raw_flush(w.asker); /* its loop has come round */
                cr_assert_eq(ring_world_taken(&w), before);
                cr_assert(nd_ring_must_wake(&w.ring));
                call(w.publisher);
                ring_world_expect_up_to(&w, k);
                ring_world_wait_asleep(&w);
                cr_assert_eq(ring_world_taken(&w), w.ring.position);
        }
        ring_world_deinit(&w);
}

Test(ring, is_asleep_until_it_is_woken)
{
        be_asleep_until_woken(nd_raw_send_wake);
}

Test(ring, is_asleep_until_its_bell_is_rung)
{
        be_asleep_until_woken(nd_raw_ring_bell);
}

static void sleep_again(call_func call, call_if_asleep_func call_if_asleep)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (unsigned i = 0; i < 100; ++i) {
                cr_assert(nd_ring_must_wake(&w.ring));
                call(w.publisher);
                ring_world_wait_asleep(&w);
                call(w.publisher); /* it says that it sleeps, and is woken all the same */
        }
        ring_world_expect_routed(w.publisher, 0);
        ring_world_wait_asleep(&w);
        ring_world_by_ring(&w);
        call_if_asleep(w.publisher, &w.ring);
        ring_world_expect_up_to(&w, 1);
        ring_world_deinit(&w);
}

Test(ring, in_which_nothing_is_sleeps_again)
{
        sleep_again(nd_raw_send_wake, nd_raw_ring_wake);
}

Test(ring, in_which_nothing_is_sleeps_again_after_its_bell)
{
        sleep_again(nd_raw_ring_bell, nd_raw_ring_call);
}

/* Looks at what is taken so many times, or until it is all. */
static bool is_all_taken(struct ring_world *w, unsigned n_looks)
{
        while (n_looks > 0 && ring_world_taken(w) != w->ring.position)
                --n_looks;
        return n_looks > 0;
}

/* Looks whether the daemon sleeps so many times, or until it does. Returns how often. */
static unsigned look(struct ring_world *w, unsigned n_looks)
{
        unsigned n = 0;

        while (n < n_looks && !atomic_load(&w->ring.head->is_asleep))
                ++n;
        return n;
}

/* Both ends run at the same time, if there are processors for that. */
static void part(struct ring_world *w)
{
        cpu_set_t cpus, one;
        size_t cpu = 0;

        cr_assert_eq(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
        if (CPU_COUNT(&cpus) < 2)
                return;
        while (!CPU_ISSET(cpu, &cpus))
                ++cpu;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CPU_CLR(cpu, &cpus);
        cr_assert_eq(sched_setaffinity(w->h->pid, sizeof(one), &one), 0);
        cr_assert_eq(sched_setaffinity(0, sizeof(cpus), &cpus), 0);
}

/* Every other time the client writes about when the daemon fell asleep the time before. Whoever misses a
 * wake-up misses the message, until the next one is written. */
static void lose_no_wake_up(call_if_asleep_func call_if_asleep)
{
        unsigned n_looks = 0;
        struct ring_world w;

        ring_world_init(&w, NULL);
        part(&w);
        for (uint64_t k = 1; k <= 5000; ++k) {
                ring_world_by_ring(&w);
                call_if_asleep(w.publisher, &w.ring);
                if (!is_all_taken(&w, 20000) || k % 100 == 0)
                        ring_world_expect_up_to(&w, k);
                if (k % 2 == 0)
                        n_looks = look(&w, 20000);
                else
                        (void)look(&w, n_looks - n_looks / 256 * (unsigned)(k / 2 % 128));
        }
        ring_world_deinit(&w);
}

Test(ring, loses_no_wake_up)
{
        lose_no_wake_up(nd_raw_ring_wake);
}

Test(ring, loses_no_bell)
{
        lose_no_wake_up(nd_raw_ring_call);
}

/* ------------------------------------------------------------------------------------------ death */

Test(ring, of_a_client_that_leaves_is_emptied)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        ring_world_wait_left(&w);
        for (unsigned i = 0; i < 20; ++i) {
                ring_world_join(&w);
                cr_assert_eq(ring_world_n_mappings(&w), 1);
                for (unsigned k = 0; k < 100; ++k)
                        ring_world_by_ring(&w);
                if (i % 2)
                        ring_world_by_socket(&w);
                ring_world_leave(&w);
                ring_world_expect_up_to(&w, 100 + i % 2);
                ring_world_expect_nothing_more(&w);
                ring_world_wait_left(&w);
        }
        ring_world_deinit(&w);
}

/* A process that publishes through a ring of its own, says so, and waits to be killed. */
_Noreturn static void die(struct nd_harness *h, int fd)
{
        struct ring_world w = {.h = h};

        ring_world_join(&w);
        ring_world_by_socket(&w);
        for (unsigned k = 0; k < 100; ++k)
                ring_world_by_ring(&w);
        if (write(fd, "x", 1) != 1)
                _exit(1);
        for (;;)
                pause();
}

Test(ring, of_a_client_that_is_killed_is_emptied)
{
        struct ring_world w;

        ring_world_init(&w, NULL);
        ring_world_leave(&w);
        ring_world_wait_left(&w);
        for (unsigned i = 0; i < 20; ++i) {
                int fds[2], status;
                char byte;
                pid_t pid;

                cr_assert_eq(pipe(fds), 0);
                pid = fork();
                cr_assert_geq(pid, 0);
                if (pid == 0) {
                        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                        close(fds[0]);
                        die(w.h, fds[1]);
                }
                close(fds[1]);
                cr_assert_eq(read(fds[0], &byte, 1), 1, "it has ended");
                close(fds[0]);
                cr_assert_eq(kill(pid, SIGKILL), 0);
                cr_assert_eq(waitpid(pid, &status, 0), pid);
                cr_assert(WIFSIGNALED(status), "status %#x", status);
                w.n_received = 0;
                ring_world_expect_up_to(&w, 101);
                ring_world_expect_nothing_more(&w);
                ring_world_wait_left(&w);
        }
        ring_world_deinit(&w);
}

/* ----------------------------------------------------------------------------------------- stopping */

enum stopping {
        ANNOUNCED,     /* WAKE is under way */
        NOT_ANNOUNCED, /* the client stands still between writing and that */
        LEFT,          /* it has ended */
};

/* What is in the ring when the daemon is told to stop is delivered. */
static void stop(enum stopping stopping)
{
        struct ring_world w;
        int status;

        ring_world_init(&w, NULL);
        nd_harness_signal(w.h, SIGSTOP);
        for (unsigned k = 0; k < 200; ++k)
                ring_world_by_ring(&w);
        if (stopping == LEFT)
                ring_world_leave(&w);
        else if (stopping == ANNOUNCED)
                nd_raw_ring_wake(w.publisher, &w.ring);
        nd_harness_signal(w.h, SIGTERM);
        nd_harness_signal(w.h, SIGCONT);
        while (w.n_received < 200) {
                const struct nd_raw_packet *packet = nd_raw_next_other(w.subscriber);

                cr_assert(packet, "closed after %llu messages", (unsigned long long)w.n_received);
                if (packet->prelude.kind == ND_KIND_GOODBYE)
                        continue;
                cr_assert_eq(packet->prelude.kind, ND_KIND_MESSAGE);
                cr_assert_eq(packet->prelude.sequence, ++w.n_received);
                cr_assert_eq(packet->prelude.body_bytes, ring_world_size(w.n_received));
        }
        cr_assert(nd_harness_wait_exit(w.h, nd_harness_deadline_ms(20000), &status), "it runs");
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %#x", status);
        ring_world_deinit(&w);
}

Test(ring, that_is_announced_is_emptied_before_the_daemon_stops)
{
        stop(ANNOUNCED);
}

Test(ring, that_is_not_announced_is_emptied_before_the_daemon_stops)
{
        stop(NOT_ANNOUNCED);
}

Test(ring, of_a_client_that_left_is_emptied_before_the_daemon_stops)
{
        stop(LEFT);
}

/* ------------------------------------------------------------------------------------ held back */

/* The daemon has done all there is to do, and has left something in the publisher's socket. */
static bool is_unread(void *userdata)
{
        struct ring_world *w = userdata;
        int n = 0;

        return nd_proc_is_asleep(w->h->pid) && ioctl(w->publisher->fd, SIOCOUTQ, &n) == 0 && n > 0;
}

/* The next answers are so many of this kind, whatever comes between them. */
static void expect_answers(struct nd_raw *raw, enum nd_kind kind, uint64_t n)
{
        while (n > 0) {
                const struct nd_raw_packet *packet = nd_raw_next(raw);

                cr_assert(packet, "closed, and %llu are missing", (unsigned long long)n);
                n -= packet->prelude.kind == kind && packet->prelude.body_bytes == 0;
        }
}

/* Held by what its client asked by the socket. */
Test(ring, is_held_back_while_answers_are_not_read)
{
        enum {
                ASKED_N = 2560
        };

        static uint8_t bytes[ASKED_N * ND_PRELUDE_BYTES];
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (size_t i = 0; i < ASKED_N; ++i)
                nd_prelude_pack(&(struct nd_prelude){.kind = ND_KIND_STATS,
                                                     .sequence = ++w.publisher->n_requests},
                                bytes + i * ND_PRELUDE_BYTES);
        nd_raw_send(w.publisher, bytes, sizeof(bytes));
        nd_harness_wait_until(w.h, "requests to be left", is_unread, &w,
                              nd_harness_deadline_ms(20000));
        for (unsigned k = 0; k < 10; ++k)
                ring_world_by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        nd_raw_flush(w.asker);
        ring_world_expect_nothing_more(&w);
        cr_assert_eq(ring_world_taken(&w), 0);
        expect_answers(w.publisher, ND_KIND_STATS_REPLY, ASKED_N);
        ring_world_expect_up_to(&w, 10);
        ring_world_deinit(&w);
}

static bool has_room(struct ring_world *w)
{
        return w->ring.position - ring_world_taken(w) <= ND_RING_BYTES / 2;
}

/* There is room in the ring again; or the daemon has done all there is to do, and left something there. It may have
 * read WAKE before that, and keep it for later. */
static bool is_settled(void *userdata)
{
        struct ring_world *w = userdata;

        nd_raw_flush(w->asker);
        return has_room(w) || nd_proc_is_asleep(w->h->pid);
}

/* Held by what is said about the very messages in it. */
Test(ring, is_held_back_by_the_answers_to_what_is_in_it)
{
        uint64_t n_published = 0, before;
        struct ring_world w;

        ring_world_init(&w, NULL);
        w.publisher->credit = UINT64_MAX / 2; /* the daemon's answers are not read */
        do {
                while (w.ring.position - ring_world_taken(&w) < ND_RING_BYTES - 256) {
                        nd_raw_ring_publish_in(
                                w.publisher, &w.ring, "$no", 1,
                                n_published++ % RING_WORLD_SLOTS_N * RING_WORLD_SLOT_BYTES, 10, 0);
                        cr_assert_lt(n_published, 40000);
                }
                nd_raw_send_wake(w.publisher);
                nd_harness_wait_until(w.h, "the ring to be taken, or held", is_settled, &w,
                                      nd_harness_deadline_ms(20000));
        } while (has_room(&w));
        before = ring_world_taken(&w);
        nd_raw_flush(w.asker);
        cr_assert_eq(ring_world_taken(&w), before);
        nd_raw_publish(w.asker, "t", 100);
        ring_world_expect_bytes(&w, 100);

        expect_answers(w.publisher, ND_KIND_ERROR, n_published);
        ring_world_expect_routed(w.publisher, n_published);
        cr_assert_eq(ring_world_taken(&w), w.ring.position);
        w.n_received = 0;
        ring_world_by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        ring_world_expect_bytes(&w, ring_world_size(n_published + 1));
        ring_world_deinit(&w);
}

/* ---------------------------------------------------------------------------- as by the socket */

Test(ring, has_the_rights_of_its_client)
{
        static const char *const args[] = {"--allow", "anyone publish t", "--allow",
                                           "anyone subscribe,stats", NULL};
        struct nd_error_header error;
        struct ring_world w;
        uint64_t place;

        ring_world_init(&w, args);
        nd_raw_ring_publish_in(w.publisher, &w.ring, "u", 1, 4096, 10, 0);
        nd_raw_ring_wake(w.publisher, &w.ring);
        error = nd_raw_expect_error(w.publisher, NDBUS_EDENIED, false);
        cr_assert_eq(error.of, ND_KIND_PUBLISH);
        nd_raw_expect_released(w.publisher, 1, &place);
        cr_assert_eq(place, 4096);
        nd_raw_ring_publish_in(w.publisher, &w.ring, "t", 1, 4096, 10, ND_FLAG_RETAINED);
        nd_raw_ring_wake(w.publisher, &w.ring);
        nd_raw_expect_error(w.publisher, NDBUS_EDENIED, false);
        nd_raw_expect_released(w.publisher, 1, &place);

        ring_world_by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        ring_world_expect_bytes(&w, ring_world_size(3));
        ring_world_expect_routed(w.publisher, 3);
        ring_world_deinit(&w);
}

Test(ring, retains)
{
        struct nd_raw_message message;
        struct nd_raw *late;
        struct ring_world w;

        ring_world_init(&w, NULL);
        for (uint64_t k = 1; k <= 3; ++k) {
                nd_pattern_fill(w.segment.base + k * RING_WORLD_SLOT_BYTES, 0, ring_world_size(k));
                nd_raw_ring_publish_in(w.publisher, &w.ring, "t", 1, k * RING_WORLD_SLOT_BYTES,
                                       ring_world_size(k), ND_FLAG_RETAINED);
        }
        ring_world_expect_routed(w.publisher, 3);
        late = nd_raw_open(w.h, false);
        nd_raw_subscribe(late, 1, &(struct nd_raw_subscribe){.pattern = "t"});
        message = nd_raw_receive(late);
        cr_assert_eq(message.prelude.sequence, 3);
        cr_assert_eq(message.prelude.body_bytes, ring_world_size(3));
        cr_assert(message.prelude.flags & ND_FLAG_RETAINED);
        nd_raw_message_free(&message);
        nd_raw_close(late);
        ring_world_expect_up_to(&w, 3);
        ring_world_deinit(&w);
}

/* The next TOPIC says this of "p". */
static void expect_paused(struct nd_raw *raw, bool is_paused)
{
        const struct nd_raw_packet *packet;
        struct nd_topic_header said;

        do
                packet = nd_raw_next(raw);
        while (packet && packet->prelude.kind != ND_KIND_TOPIC);
        cr_assert(packet, "closed");
        cr_assert_eq(nd_topic_header_unpack(packet->header, packet->prelude.header_bytes, true,
                                            &said, NULL),
                     0);
        cr_assert(said.topic.n == 1 && said.topic.at[0] == 'p');
        cr_assert_eq(said.paused, is_paused);
}

/* A queue that blocks: its publisher is told to pause, and to go on; nothing is lost. */
Test(ring, is_paused_by_a_queue_that_blocks)
{
        struct nd_raw *blocks;
        struct ring_world w;

        ring_world_init(&w, NULL);
        blocks = nd_raw_open(w.h, false);
        nd_raw_subscribe(
                blocks, 1,
                &(struct nd_raw_subscribe){
                        .pattern = "p", .policy = ND_POLICY_BLOCK, .depth = 2, .window = 1});
        for (uint64_t k = 0; k < 6; ++k) {
                nd_pattern_fill(w.segment.base + k * RING_WORLD_SLOT_BYTES, 0, 10);
                nd_raw_ring_publish_in(w.publisher, &w.ring, "p", 1, k * RING_WORLD_SLOT_BYTES, 10,
                                       0);
        }
        nd_raw_ring_wake(w.publisher, &w.ring);
        expect_paused(w.publisher, true);
        for (uint64_t k = 1; k <= 6; ++k) {
                struct nd_raw_message message = nd_raw_receive(blocks);

                cr_assert_eq(message.prelude.sequence, k);
                cr_assert_eq(message.n_dropped, 0);
                nd_raw_message_free(&message);
                nd_raw_grant(blocks, 1, 1, 10);
        }
        expect_paused(w.publisher, false);
        nd_raw_check_stats(w.asker);
        nd_raw_close(blocks);
        ring_world_deinit(&w);
}

/* What comes through the ring is paid for like the rest. */
Test(ring, does_not_lend_more_than_the_window)
{
        struct nd_raw *blocks;
        struct ring_world w;

        ring_world_init(&w, NULL);
        blocks = nd_raw_open(w.h, false);
        nd_raw_subscribe(
                blocks, 1,
                &(struct nd_raw_subscribe){
                        .pattern = "p", .policy = ND_POLICY_BLOCK, .depth = 1, .window = 1});
        cr_assert_eq(w.publisher->credit, ND_PUBLISH_WINDOW_BYTES_MIN);
        nd_harness_signal(w.h, SIGSTOP); /* so that nothing is granted meanwhile */
        nd_raw_publish(w.publisher, "p", 3000);
        w.publisher->credit = UINT64_MAX / 2;
        for (uint64_t k = 0; w.ring.position < ND_RING_BYTES - 256; ++k)
                nd_raw_ring_publish_in(w.publisher, &w.ring, "p", 1, k * RING_WORLD_SLOT_BYTES, 10,
                                       0);
        nd_raw_ring_wake(w.publisher, &w.ring);
        nd_harness_signal(w.h, SIGCONT);
        nd_raw_expect_error(w.publisher, NDBUS_ECREDIT, true);
        ring_world_leave(&w);
        nd_raw_close(blocks);
        ring_world_deinit(&w);
}
