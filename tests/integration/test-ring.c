/* SPDX-License-Identifier: MIT */

/*
 * Rings over the wire: what a client publishes through its ring and what it sends by its socket come
 * in one order, nothing is missed by a daemon that sleeps, ends or is told to stop, and a ring that
 * breaks the rules harms nobody but its client
 *
 * Message k is of size_of(k) bytes, so that its number and its body say the same.
 */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/memfd.h"
#include "tests/support/pattern.h"
#include "tests/support/raw-shm.h"

#define SEGMENT_BYTES (UINT64_C(8) << 20)
#define SLOT_BYTES    4096u
#define SLOTS_N       (SEGMENT_BYTES / SLOT_BYTES)

struct world {
        struct nd_harness *h;
        struct nd_raw *asker;
        struct nd_raw
                *subscriber; /* without shared memory: whatever it receives it receives whole */
        struct nd_raw *publisher; /* NULL: gone */
        struct nd_ring ring;
        struct nd_segment segment; /* number 1 of the publisher */
        uint64_t n_received;
};

static void publisher_init(struct world *w)
{
        w->publisher = nd_raw_open_ring(w->h);
        w->segment = nd_raw_segment(SEGMENT_BYTES);
        nd_raw_announce(w->publisher, 1, &w->segment);
        w->ring = nd_raw_ring(w->publisher);
        w->n_received = 0;
}

static void publisher_deinit(struct world *w)
{
        nd_raw_close(nd_steal(w->publisher));
        nd_ring_close(&w->ring);
        nd_segment_close(&w->segment);
}

static void world_init(struct world *w, const char *const *args)
{
        w->h = nd_harness_start(&(struct nd_harness_options){.args = args});
        w->asker = nd_raw_open(w->h, false);
        w->subscriber = nd_raw_open(w->h, false);
        nd_raw_subscribe(w->subscriber, 1, &(struct nd_raw_subscribe){.pattern = "t"});
        publisher_init(w);
}

static void world_deinit(struct world *w)
{
        if (w->publisher)
                publisher_deinit(w);
        nd_raw_close(w->asker);
        nd_raw_close(w->subscriber);
        nd_harness_stop(w->h);
}

static uint64_t size_of(uint64_t k)
{
        return 1 + k % SLOT_BYTES;
}

/* The next number, by the socket. */
static void by_socket(struct world *w)
{
        uint64_t k = w->publisher->n_published + 1;

        if (k % 3)
                nd_raw_publish(w->publisher, "t", size_of(k));
        else
                nd_raw_publish_block(w->publisher, "t", &w->segment, 1, k % SLOTS_N * SLOT_BYTES,
                                     size_of(k));
}

/* The next number, through the ring. */
static void by_ring(struct world *w)
{
        uint64_t k = w->publisher->n_published + 1;
        uint64_t place = k % SLOTS_N * SLOT_BYTES;

        nd_pattern_fill(w->segment.base + place, 0, size_of(k));
        nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 1, place, size_of(k), 0);
}

/* This one next, in order and once. */
static void expect_bytes(struct world *w, uint64_t n_bytes)
{
        struct nd_raw_message message = nd_raw_receive(w->subscriber);

        cr_assert_eq(message.prelude.sequence, ++w->n_received);
        cr_assert_eq(message.prelude.body_bytes, n_bytes);
        cr_assert_eq(message.n_dropped, 0);
        nd_raw_message_free(&message);
        nd_raw_grant(w->subscriber, 1, 1, n_bytes);
}

static void expect_up_to(struct world *w, uint64_t k)
{
        while (w->n_received < k)
                expect_bytes(w, size_of(w->n_received + 1));
}

static void expect_nothing_more(struct world *w)
{
        nd_raw_flush(w->subscriber);
        cr_assert_not(nd_raw_has_input(w->subscriber));
}

/* The daemon sleeps, and has been asked something since. */
static bool is_asleep(void *userdata)
{
        struct world *w = userdata;

        nd_raw_flush(w->asker);
        return atomic_load(&w->ring.head->is_asleep) == 1;
}

static void wait_asleep(struct world *w)
{
        nd_harness_wait_until(w->h, "the daemon to sleep", is_asleep, w,
                              nd_harness_deadline_ms(20000));
}

/* PONG, of the first PING: so many are routed. */
static void expect_routed(struct nd_raw *raw, uint64_t n)
{
        uint64_t number = ++raw->n_requests;
        const struct nd_raw_packet *packet;

        nd_raw_send_prelude(raw, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = number});
        do
                packet = nd_raw_next(raw);
        while (packet && packet->prelude.kind != ND_KIND_PONG);
        cr_assert(packet, "closed");
        cr_assert_eq(packet->prelude.sequence, number);
        cr_assert_eq(packet->prelude.place, n);
}

static uint64_t taken(struct world *w)
{
        return atomic_load(&w->ring.head->taken);
}

/* ------------------------------------------------------------------------------------------ order */

Test(ring, and_socket_have_one_order)
{
        uint64_t n_by_ring = 0;
        struct world w;

        world_init(&w, NULL);
        for (uint64_t k = 1; k <= 1500; ++k) {
                if (k % 7 < 4)
                        by_ring(&w);
                else
                        by_socket(&w);
                n_by_ring += k % 7 < 4;
                if (k % 5 == 0)
                        nd_raw_ring_wake(w.publisher, &w.ring);
                if (k % 50 == 0) {
                        nd_raw_ring_wake(w.publisher, &w.ring);
                        expect_up_to(&w, k);
                }
        }
        expect_nothing_more(&w);
        cr_assert_eq(nd_raw_stat(w.asker, "counters", "ring_messages"), n_by_ring);
        nd_raw_check_stats(w.asker);
        world_deinit(&w);
}

Test(ring, waits_for_a_number_that_comes_by_the_socket)
{
        struct world w;

        world_init(&w, NULL);
        for (uint64_t k = 1; k < 200; k += 4) {
                uint64_t before = taken(&w);

                w.publisher->n_published = k; /* the one before it is kept back */
                by_ring(&w);
                by_ring(&w);
                nd_raw_ring_wake(w.publisher, &w.ring);
                wait_asleep(&w);
                by_ring(&w); /* behind what waits, and announced too */
                nd_raw_ring_wake(w.publisher, &w.ring);
                wait_asleep(&w);
                cr_assert_eq(taken(&w), before);
                expect_nothing_more(&w);

                w.publisher->n_published = k - 1;
                by_socket(&w);
                w.publisher->n_published = k + 3;
                expect_up_to(&w, k + 3);
                wait_asleep(&w);
                cr_assert_eq(taken(&w), w.ring.position);
        }
        world_deinit(&w);
}

/* A PUBLISH of so many bytes in its packet, or in one chunk on a stream; its bytes come in two parts, and
 * nothing after them. */
static void in_two_parts(struct world *w, uint32_t n_bytes, bool is_chunk)
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
        wait_asleep(w);
        expect_nothing_more(w);
        nd_raw_send(w->publisher, body + n_bytes / 2, n_bytes - n_bytes / 2);
}

/* The end of a body lets the ring go on, if nothing comes behind it. */
Test(ring, waits_for_the_end_of_a_body)
{
        struct world w;

        world_init(&w, NULL);
        for (unsigned i = 0; i < 40; ++i) {
                const uint32_t n_bytes = 20000 + i;
                bool is_chunk = i % 2;

                if (is_chunk)
                        nd_raw_publish_begin(w.publisher, "t", n_bytes, 1);
                else
                        ++w.publisher->n_published;
                by_ring(&w);
                nd_raw_ring_wake(w.publisher, &w.ring);
                wait_asleep(&w);
                in_two_parts(&w, n_bytes, is_chunk);
                expect_bytes(&w, n_bytes);
                expect_up_to(&w, w.n_received + 1);
        }
        world_deinit(&w);
}

/* And for the end of a stream, though its message is taken back. */
Test(ring, goes_on_behind_a_stream_that_is_reset)
{
        struct world w;

        world_init(&w, NULL);
        nd_raw_publish_begin(w.publisher, "t", 20000, 1);
        by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        wait_asleep(&w);
        expect_nothing_more(&w);
        nd_raw_send_prelude(w.publisher, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 1});
        expect_bytes(&w, size_of(2));
        world_deinit(&w);
}

Test(ring, is_taken_before_a_ping)
{
        struct world w;

        world_init(&w, NULL);
        for (uint64_t k = 10; k <= 1000; k += 10) {
                while (w.publisher->n_published < k)
                        by_ring(&w);
                expect_routed(w.publisher, k);
                expect_up_to(&w, k);
        }
        world_deinit(&w);
}

Test(ring, is_taken_before_a_goodbye)
{
        const struct nd_raw_packet *packet;
        struct world w;

        world_init(&w, NULL);
        for (unsigned i = 0; i < 100; ++i)
                by_ring(&w);
        nd_raw_send_prelude(w.publisher, (struct nd_prelude){.kind = ND_KIND_GOODBYE});
        do
                packet = nd_raw_next(w.publisher);
        while (packet && packet->prelude.kind != ND_KIND_GOODBYE);
        cr_assert(packet, "closed");
        cr_assert_eq(packet->prelude.place, 100);
        by_ring(&w); /* too late */
        nd_raw_send_wake(w.publisher);
        publisher_deinit(&w);
        expect_up_to(&w, 100);
        expect_nothing_more(&w);
        world_deinit(&w);
}

/* --------------------------------------------------------------------------------------- sleeping */

Test(ring, is_asleep_until_it_is_woken)
{
        struct world w;

        world_init(&w, NULL);
        cr_assert_eq(atomic_load(&w.ring.head->is_asleep), 1);
        for (uint64_t k = 1; k <= 100; ++k) {
                uint64_t before = taken(&w);

                by_ring(&w);
                nd_raw_flush(w.asker); /* its loop has come round */
                cr_assert_eq(taken(&w), before);
                cr_assert(nd_ring_must_wake(&w.ring));
                nd_raw_send_wake(w.publisher);
                expect_up_to(&w, k);
                wait_asleep(&w);
                cr_assert_eq(taken(&w), w.ring.position);
        }
        world_deinit(&w);
}

Test(ring, in_which_nothing_is_sleeps_again)
{
        struct world w;

        world_init(&w, NULL);
        for (unsigned i = 0; i < 100; ++i) {
                cr_assert(nd_ring_must_wake(&w.ring));
                nd_raw_send_wake(w.publisher);
                wait_asleep(&w);
                nd_raw_send_wake(
                        w.publisher); /* it says that it sleeps, and is woken all the same */
        }
        expect_routed(w.publisher, 0);
        wait_asleep(&w);
        by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        expect_up_to(&w, 1);
        world_deinit(&w);
}

/* Looks at what is taken so many times, or until it is all. */
static bool is_all_taken(struct world *w, unsigned n_looks)
{
        while (n_looks > 0 && taken(w) != w->ring.position)
                --n_looks;
        return n_looks > 0;
}

/* Looks whether the daemon sleeps so many times, or until it does. Returns how often. */
static unsigned look(struct world *w, unsigned n_looks)
{
        unsigned n = 0;

        while (n < n_looks && !atomic_load(&w->ring.head->is_asleep))
                ++n;
        return n;
}

/* Both ends run at the same time, if there are processors for that. */
static void part(struct world *w)
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
Test(ring, loses_no_wake_up)
{
        unsigned n_looks = 0;
        struct world w;

        world_init(&w, NULL);
        part(&w);
        for (uint64_t k = 1; k <= 20000; ++k) {
                by_ring(&w);
                nd_raw_ring_wake(w.publisher, &w.ring);
                if (!is_all_taken(&w, 100000) || k % 100 == 0)
                        expect_up_to(&w, k);
                if (k % 2 == 0)
                        n_looks = look(&w, 100000);
                else
                        (void)look(&w, n_looks - n_looks / 256 * (unsigned)(k / 2 % 128));
        }
        world_deinit(&w);
}

/* ------------------------------------------------------------------------------------------ death */

/* Mappings of rings that the daemon has. */
static size_t n_mappings(struct nd_harness *h)
{
        char path[64], line[512];
        size_t n = 0;
        FILE *f;

        snprintf(path, sizeof(path), "/proc/%d/maps", (int)h->pid);
        f = fopen(path, "re");
        cr_assert(f);
        while (fgets(line, sizeof(line), f))
                n += strstr(line, "memfd:ndbus-ring") != NULL;
        fclose(f);
        return n;
}

/* What the daemon keeps for its clients. */
struct kept {
        struct world *w;
        size_t n_fds;
        size_t n_mappings;
        uint64_t shm_bytes;
};

static bool is_kept(void *userdata)
{
        const struct kept *kept = userdata;

        return nd_raw_stat(kept->w->asker, "memory", "shm") == kept->shm_bytes &&
               nd_raw_stat(kept->w->asker, "memory", "messages") == 0 &&
               nd_harness_fds(kept->w->h) == kept->n_fds &&
               n_mappings(kept->w->h) == kept->n_mappings;
}

static void wait_kept(struct kept *kept)
{
        nd_harness_wait_until(kept->w->h, "the daemon to keep nothing of the dead", is_kept, kept,
                              nd_harness_deadline_ms(20000));
}

Test(ring, of_a_client_that_leaves_is_emptied)
{
        struct kept kept;
        struct world w;

        world_init(&w, NULL);
        publisher_deinit(&w);
        kept = (struct kept){.w = &w, .n_fds = w.h->n_fds_ready + 2};
        wait_kept(&kept);
        for (unsigned i = 0; i < 20; ++i) {
                publisher_init(&w);
                cr_assert_eq(n_mappings(w.h), 1);
                for (unsigned k = 0; k < 100; ++k)
                        by_ring(&w);
                if (i % 2)
                        by_socket(&w);
                publisher_deinit(&w);
                expect_up_to(&w, 100 + i % 2);
                expect_nothing_more(&w);
                wait_kept(&kept);
        }
        world_deinit(&w);
}

/* A process that publishes through a ring of its own, says so, and waits to be killed. */
_Noreturn static void die(struct nd_harness *h, int fd)
{
        struct world w = {.h = h};

        publisher_init(&w);
        by_socket(&w);
        for (unsigned k = 0; k < 100; ++k)
                by_ring(&w);
        if (write(fd, "x", 1) != 1)
                _exit(1);
        for (;;)
                pause();
}

Test(ring, of_a_client_that_is_killed_is_emptied)
{
        struct kept kept;
        struct world w;

        world_init(&w, NULL);
        publisher_deinit(&w);
        kept = (struct kept){.w = &w, .n_fds = w.h->n_fds_ready + 2};
        wait_kept(&kept);
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
                expect_up_to(&w, 101);
                expect_nothing_more(&w);
                wait_kept(&kept);
        }
        world_deinit(&w);
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
        struct world w;
        int status;

        world_init(&w, NULL);
        nd_harness_signal(w.h, SIGSTOP);
        for (unsigned k = 0; k < 200; ++k)
                by_ring(&w);
        if (stopping == LEFT)
                publisher_deinit(&w);
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
                cr_assert_eq(packet->prelude.body_bytes, size_of(w.n_received));
        }
        cr_assert(nd_harness_wait_exit(w.h, nd_harness_deadline_ms(20000), &status), "it runs");
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %#x", status);
        world_deinit(&w);
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
        struct world *w = userdata;
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
        struct world w;

        world_init(&w, NULL);
        for (size_t i = 0; i < ASKED_N; ++i)
                nd_prelude_pack(&(struct nd_prelude){.kind = ND_KIND_STATS,
                                                     .sequence = ++w.publisher->n_requests},
                                bytes + i * ND_PRELUDE_BYTES);
        nd_raw_send(w.publisher, bytes, sizeof(bytes));
        nd_harness_wait_until(w.h, "requests to be left", is_unread, &w,
                              nd_harness_deadline_ms(20000));
        for (unsigned k = 0; k < 10; ++k)
                by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        nd_raw_flush(w.asker);
        expect_nothing_more(&w);
        cr_assert_eq(taken(&w), 0);
        expect_answers(w.publisher, ND_KIND_STATS_REPLY, ASKED_N);
        expect_up_to(&w, 10);
        world_deinit(&w);
}

/* There is room in the ring again; or the daemon has done all there is to do, and left something there. */
static bool is_settled(void *userdata)
{
        struct world *w = userdata;

        nd_raw_flush(w->asker);
        return w->ring.position - taken(w) <= ND_RING_BYTES / 2 || is_unread(w);
}

/* Held by what is said about the very messages in it. */
Test(ring, is_held_back_by_the_answers_to_what_is_in_it)
{
        uint64_t n_published = 0, before;
        struct world w;

        world_init(&w, NULL);
        w.publisher->credit = UINT64_MAX / 2; /* the daemon's answers are not read */
        do {
                while (w.ring.position - taken(&w) < ND_RING_BYTES - 256) {
                        nd_raw_ring_publish_in(w.publisher, &w.ring, "$no", 1,
                                               n_published++ % SLOTS_N * SLOT_BYTES, 10, 0);
                        cr_assert_lt(n_published, 40000);
                }
                nd_raw_send_wake(w.publisher);
                nd_harness_wait_until(w.h, "the ring to be taken, or held", is_settled, &w,
                                      nd_harness_deadline_ms(20000));
        } while (!is_unread(&w));
        before = taken(&w);
        nd_raw_flush(w.asker);
        cr_assert_eq(taken(&w), before);
        nd_raw_publish(w.asker, "t", 100);
        expect_bytes(&w, 100);

        expect_answers(w.publisher, ND_KIND_ERROR, n_published);
        expect_routed(w.publisher, n_published);
        cr_assert_eq(taken(&w), w.ring.position);
        w.n_received = 0;
        by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        expect_bytes(&w, size_of(n_published + 1));
        world_deinit(&w);
}

/* ---------------------------------------------------------------------------- as by the socket */

Test(ring, has_the_rights_of_its_client)
{
        static const char *const args[] = {"--allow", "anyone publish t", "--allow",
                                           "anyone subscribe,stats", NULL};
        struct nd_error_header error;
        struct world w;
        uint64_t place;

        world_init(&w, args);
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

        by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        expect_bytes(&w, size_of(3));
        expect_routed(w.publisher, 3);
        world_deinit(&w);
}

Test(ring, retains)
{
        struct nd_raw_message message;
        struct nd_raw *late;
        struct world w;

        world_init(&w, NULL);
        for (uint64_t k = 1; k <= 3; ++k) {
                nd_pattern_fill(w.segment.base + k * SLOT_BYTES, 0, size_of(k));
                nd_raw_ring_publish_in(w.publisher, &w.ring, "t", 1, k * SLOT_BYTES, size_of(k),
                                       ND_FLAG_RETAINED);
        }
        expect_routed(w.publisher, 3);
        late = nd_raw_open(w.h, false);
        nd_raw_subscribe(late, 1, &(struct nd_raw_subscribe){.pattern = "t"});
        message = nd_raw_receive(late);
        cr_assert_eq(message.prelude.sequence, 3);
        cr_assert_eq(message.prelude.body_bytes, size_of(3));
        cr_assert(message.prelude.flags & ND_FLAG_RETAINED);
        nd_raw_message_free(&message);
        nd_raw_close(late);
        expect_up_to(&w, 3);
        world_deinit(&w);
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
        struct world w;

        world_init(&w, NULL);
        blocks = nd_raw_open(w.h, false);
        nd_raw_subscribe(
                blocks, 1,
                &(struct nd_raw_subscribe){
                        .pattern = "p", .policy = ND_POLICY_BLOCK, .depth = 2, .window = 1});
        for (uint64_t k = 0; k < 6; ++k) {
                nd_pattern_fill(w.segment.base + k * SLOT_BYTES, 0, 10);
                nd_raw_ring_publish_in(w.publisher, &w.ring, "p", 1, k * SLOT_BYTES, 10, 0);
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
        world_deinit(&w);
}

/* What comes through the ring is paid for like the rest. */
Test(ring, does_not_lend_more_than_the_window)
{
        struct nd_raw *blocks;
        struct world w;

        world_init(&w, NULL);
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
                nd_raw_ring_publish_in(w.publisher, &w.ring, "p", 1, k * SLOT_BYTES, 10, 0);
        nd_raw_ring_wake(w.publisher, &w.ring);
        nd_harness_signal(w.h, SIGCONT);
        nd_raw_expect_error(w.publisher, NDBUS_ECREDIT, true);
        publisher_deinit(&w);
        nd_raw_close(blocks);
        world_deinit(&w);
}

/* ---------------------------------------------------------------------------------------- hostile */

/* Others publish and receive as before, and nothing of the hostile one has come between. */
static void others_go_on(struct world *w, uint64_t *n_sent)
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

Test(ring, that_is_none_is_refused_and_the_connection_goes_on)
{
        enum {
                BYTES = ND_RING_FILE_BYTES
        };
        struct kept kept;
        struct world w;

        world_init(&w, NULL);
        publisher_deinit(&w);
        kept = (struct kept){.w = &w, .n_fds = w.h->n_fds_ready + 2};
        wait_kept(&kept);

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
        cr_assert_eq(n_mappings(w.h), 0);

        /* nothing of it was remembered */
        w.ring = nd_raw_ring(w.publisher);
        w.segment = nd_raw_segment(SEGMENT_BYTES);
        nd_raw_announce(w.publisher, 1, &w.segment);
        by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        expect_up_to(&w, 1);
        publisher_deinit(&w);
        wait_kept(&kept);
        world_deinit(&w);
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
Test(ring, that_nobody_agreed_on_ends_the_connection)
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
        struct kept kept;
        struct world w;
        uint64_t n_sent = 0;
        struct nd_raw *raw;
        int fd;

        world_init(&w, NULL);
        publisher_deinit(&w);
        kept = (struct kept){.w = &w, .n_fds = w.h->n_fds_ready + 2};
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

        publisher_init(&w); /* it has one */
        nd_raw_send_ring(w.publisher, ND_RING_FILE_BYTES, fd);
        expect_end(nd_steal(w.publisher), "kind");
        nd_ring_close(&w.ring);
        nd_segment_close(&w.segment);
        close(fd);
        wait_kept(&kept);
        others_go_on(&w, &n_sent);
        world_deinit(&w);
}

static void put_bare(struct world *w, struct nd_prelude prelude)
{
        nd_raw_ring_put(w->publisher, &w->ring, prelude, NULL, 0);
}

static void put_publish(struct world *w, struct nd_prelude changed)
{
        size_t n_header;
        nd_autofree uint8_t *header = nd_raw_header("t", 10, &n_header);

        changed.kind = ND_KIND_PUBLISH;
        changed.body_bytes = 10;
        nd_raw_ring_put(w->publisher, &w->ring, changed, header, n_header);
}

static void write_half_a_prelude(struct world *w)
{
        static const uint8_t half[ND_PRELUDE_BYTES / 2] = {ND_KIND_PUBLISH};

        cr_assert(nd_ring_put(&w->ring, half, sizeof(half)));
}

static void write_no_header(struct world *w)
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

static void write_ping(struct world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_PING, .sequence = 100});
}

static void write_chunk(struct world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_CHUNK, .stream = 1, .body_bytes = 10});
}

static void write_wake(struct world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_WAKE});
}

static void write_ring(struct world *w)
{
        put_bare(w,
                 (struct nd_prelude){.kind = ND_KIND_RING, .flags = ND_FLAG_FD, .sequence = 100});
}

static void write_goodbye(struct world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_GOODBYE});
}

static void write_message(struct world *w)
{
        put_bare(w, (struct nd_prelude){.kind = ND_KIND_MESSAGE});
}

static void write_nothing_known(struct world *w)
{
        put_bare(w, (struct nd_prelude){.kind = 0});
}

static void write_whole_body(struct world *w)
{
        put_publish(w, (struct nd_prelude){.sequence = 1});
}

static void write_chunks(struct world *w)
{
        put_publish(w, (struct nd_prelude){
                               .sequence = 1, .flags = ND_FLAG_BODY_IN_CHUNKS, .stream = 1});
}

static void write_number_0(struct world *w)
{
        put_publish(w, (struct nd_prelude){.flags = ND_FLAG_BODY_IN_BLOCK, .segment = 1});
}

static void write_number_again(struct world *w)
{
        by_ring(w);
        w->publisher->n_published = 0;
        by_ring(w);
}

static void write_number_0_behind_a_stream(struct world *w)
{
        nd_raw_publish_begin(w->publisher, "t", 20000, 1);
        write_number_0(w);
        nd_raw_send_wake(w->publisher);
        wait_asleep(w);
        nd_raw_send_prelude(w->publisher, (struct nd_prelude){.kind = ND_KIND_RESET, .stream = 1});
}

static void write_source(struct world *w)
{
        put_publish(w, (struct nd_prelude){.flags = ND_FLAG_BODY_IN_BLOCK,
                                           .segment = 1,
                                           .sequence = 1,
                                           .source = 7});
}

static void write_beyond(struct world *w)
{
        atomic_store(&w->ring.head->written, ND_RING_BYTES + 1);
}

static void write_far_beyond(struct world *w)
{
        atomic_store(&w->ring.head->written, UINT64_MAX);
}

static void write_back(struct world *w)
{
        by_ring(w);
        expect_routed(w->publisher, 1); /* it is taken */
        atomic_store(&w->ring.head->written, 0);
}

static void write_nothing(struct world *w)
{
        atomic_store(&w->ring.head->written, ND_RING_BYTES); /* zeros */
}

static void write_unknown_segment(struct world *w)
{
        nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 2, 0, 10, 0);
}

static void write_place_outside(struct world *w)
{
        nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 1, SEGMENT_BYTES - 9, 10, 0);
}

static void write_block_twice(struct world *w)
{
        nd_pattern_fill(w->segment.base, 0, 10);
        for (unsigned i = 0; i < 2; ++i)
                nd_raw_ring_publish_in(w->publisher, &w->ring, "t", 1, 0, 10, 0);
}

Test(ring, that_breaks_the_rules_ends_the_connection)
{
        static const struct {
                const char *what;
                void (*write)(struct world *w);
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
        struct kept kept;
        struct world w;
        uint64_t n_sent = 0;

        world_init(&w, NULL);
        publisher_deinit(&w);
        kept = (struct kept){.w = &w, .n_fds = w.h->n_fds_ready + 2};
        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                fprintf(stderr, "%s\n", cases[i].what);
                publisher_init(&w);
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
                wait_kept(&kept);
                others_go_on(&w, &n_sent);
        }
        world_deinit(&w);
}

/* A number that never comes: what is in the ring waits, the socket does not. */
Test(ring, whose_turn_never_comes_harms_nobody)
{
        uint64_t before;
        struct world w;

        world_init(&w, NULL);
        before = taken(&w);
        w.publisher->n_published = 20000;
        by_ring(&w);
        nd_raw_ring_wake(w.publisher, &w.ring);
        w.publisher->n_published = 0;
        while (w.n_received < 10000) {
                for (unsigned i = 0; i < 100; ++i)
                        nd_raw_publish(w.publisher, "t", size_of(w.publisher->n_published + 1));
                if (w.n_received % 1000 == 0)
                        nd_raw_send_wake(w.publisher);
                expect_up_to(&w, w.publisher->n_published);
        }
        wait_asleep(&w);
        cr_assert_eq(taken(&w), before);
        publisher_deinit(&w);
        expect_nothing_more(&w);
        world_deinit(&w);
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
static void suffer(struct world *w, bool changes_positions, uint32_t seed)
{
        struct vandal vandal = {
                .ring = &w->ring, .state = seed, .changes_positions = changes_positions};
        const struct nd_raw_packet *packet = NULL;
        pthread_t thread;

        publisher_init(w);
        for (unsigned k = 0; w->ring.position < ND_RING_BYTES / 2; ++k)
                nd_raw_ring_publish_in(w->publisher, &w->ring, "$no", 1, k * SLOT_BYTES, 10, 0);
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
        publisher_deinit(w);
}

Test(ring, that_changes_while_it_is_read_harms_nobody)
{
        uint32_t seed = (uint32_t)getpid();
        struct kept kept;
        struct world w;
        uint64_t n_sent = 0;

        world_init(&w, NULL);
        publisher_deinit(&w);
        kept = (struct kept){.w = &w, .n_fds = w.h->n_fds_ready + 2};
        for (unsigned i = 0; i < 60; ++i) {
                fprintf(stderr, "round %u seed %u\n", i, seed);
                suffer(&w, i % 2, seed);
                random_next(&seed);
                wait_kept(&kept);
                others_go_on(&w, &n_sent);
        }
        world_deinit(&w);
}
