/* SPDX-License-Identifier: MIT */

/*
 * The two loops that are timed
 *
 * A run goes: greet until every subscriber has seen a greeting (systems differ in when a
 * subscription is in force), warm up with messages of full size until their pages exist on the whole
 * way, wait until the subscribers have those, start the clock, publish for a given time, say the end.
 * The clock stops at each subscriber when it sees the end; the slowest counts.
 *
 * In the timed part a message costs the harness its head (32 bytes) at both ends and one store into
 * shared memory at the subscriber. Nothing of the payload is looked at; its length and sequence are,
 * so that what was lost is known and told.
 */

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/bench/harness.h"

#define LOOP_WINDOW_BYTES   (UINT64_C(64) << 20)
#define LOOP_GREET_BYTES    64u
#define LOOP_WARM_NS        UINT64_C(40000000)
#define LOOP_WARM_SHARED_NS UINT64_C(1500000000) /* segments grow to what is in flight */
#define LOOP_WARM_MIN       3u                   /* as many buffers as are in use at a time */
#define LOOP_MESSAGES_MIN   2u
#define LOOP_CLOCK_INTERVAL 64u /* small messages: one look at the clock for so many */

struct publisher {
        const struct bench_options *options;
        struct bench_board *board;
        void *pub;
        unsigned char *message; /* [size] */
        uint64_t window;        /* messages ahead of the slowest subscriber; 0: no limit */
        uint64_t slowest;       /* last known */
};

uint64_t bench_patience_ns(const struct bench_options *options)
{
        double bytes = (double)options->size * (options->n_subscribers + 1);

        return (uint64_t)((5 + bytes / (32 << 20)) * 1e9);
}

void bench_write_loan(void *at, const void *message)
{
        struct bench_head head;

        memcpy(&head, message, sizeof(head));
        if (head.time_ns)
                head.time_ns = bench_now_ns();
        memcpy(at, &head, sizeof(head));
}

static int
publisher_send(struct publisher *p, enum bench_kind kind, uint64_t sequence, size_t n, bool more)
{
        const struct bench_head head = {
                .magic = BENCH_MAGIC,
                .kind = kind,
                .sequence = sequence,
                .time_ns = p->options->latency ? bench_now_ns() : 0,
        };

        memcpy(p->message, &head, sizeof(head));
        return bench_system.pub_send(p->pub, p->message, n, more);
}

static uint64_t publisher_slowest(const struct publisher *p, bool warm)
{
        uint64_t slowest = UINT64_MAX;

        for (unsigned i = 0; i < p->options->n_subscribers; ++i) {
                struct bench_lane *lane = &p->board->lanes[i];
                uint64_t n = atomic_load_explicit(warm ? &lane->warm : &lane->seen,
                                                  memory_order_relaxed);

                if (n < slowest)
                        slowest = n;
        }

        return slowest;
}

/* Wait until every subscriber has seen message number sequence. */
static int publisher_wait(struct publisher *p, uint64_t sequence, bool warm)
{
        uint64_t began_ns = bench_now_ns(), slowest = publisher_slowest(p, warm), last = slowest;

        while (slowest < sequence) {
                if (bench_now_ns() - began_ns > bench_patience_ns(p->options))
                        return bench_say("message %llu did not arrive everywhere",
                                         (unsigned long long)sequence);

                bench_nap_us(50);
                slowest = publisher_slowest(p, warm);
                if (slowest != last)
                        began_ns = bench_now_ns();
                last = slowest;
        }

        if (!warm)
                p->slowest = slowest;

        return BENCH_OK;
}

static bool publisher_all_ready(const struct publisher *p)
{
        for (unsigned i = 0; i < p->options->n_subscribers; ++i)
                if (!atomic_load(&p->board->lanes[i].ready))
                        return false;

        return true;
}

static int publisher_greet(struct publisher *p)
{
        uint64_t began_ns = bench_now_ns();

        while (!publisher_all_ready(p)) {
                if (bench_now_ns() - began_ns > bench_patience_ns(p->options))
                        return bench_say("not every subscriber became ready");

                if (!bench_system.is_stream &&
                    publisher_send(p, BENCH_HELLO, 0, LOOP_GREET_BYTES, false))
                        return BENCH_FAILED;

                bench_nap_us(2000);
        }

        return BENCH_OK;
}

static int publisher_warm_up(struct publisher *p)
{
        const uint64_t enough_ns =
                p->options->way == BENCH_STREAM ? LOOP_WARM_NS : LOOP_WARM_SHARED_NS;
        uint64_t began_ns = bench_now_ns(), n = 0;

        do {
                ++n;
                if (publisher_send(p, BENCH_WARM, n, p->options->size, false))
                        return BENCH_FAILED;
                if (p->window && n > p->window && publisher_wait(p, n - p->window, true))
                        return BENCH_FAILED;
        } while (n < LOOP_WARM_MIN || bench_now_ns() - began_ns < enough_ns);

        return publisher_wait(p, n, true);
}

static void publisher_sleep_until(uint64_t at_ns)
{
        const struct timespec ts = {
                .tv_sec = (time_t)(at_ns / UINT64_C(1000000000)),
                .tv_nsec = (long)(at_ns % UINT64_C(1000000000)),
        };

        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

static int publisher_run_timed(struct publisher *p)
{
        const struct bench_options *o = p->options;
        const uint64_t duration_ns = (uint64_t)(o->seconds * 1e9);
        const uint64_t period_ns = o->latency ? (uint64_t)(1e9 / o->rate_hz) : 0;
        const uint64_t interval = o->size <= 4096 && !o->latency ? LOOP_CLOCK_INTERVAL : 1;
        uint64_t start_ns = bench_now_ns(), n = 0;

        p->board->start_ns = start_ns;

        while (n < o->count_max) {
                if (n >= LOOP_MESSAGES_MIN && n % interval == 0 &&
                    bench_now_ns() - start_ns >= duration_ns)
                        break;

                ++n;
                if (period_ns)
                        publisher_sleep_until(start_ns + n * period_ns);
                if (p->window && n > p->slowest + p->window &&
                    publisher_wait(p, n - p->window, false))
                        return BENCH_FAILED;
                if (publisher_send(p, BENCH_DATA, n, o->size, o->batch > 1 && n % o->batch != 0))
                        return BENCH_FAILED;
        }

        atomic_store(&p->board->total, n);
        if (!bench_system.is_stream && publisher_send(p, BENCH_END, n + 1, LOOP_GREET_BYTES, false))
                return BENCH_FAILED;

        return bench_system.pub_end(p->pub);
}

/* A subscriber that has died is waited for like one that moves nothing. */
static void publisher_wait_done(const struct publisher *p)
{
        uint64_t moved_ns = bench_now_ns(), last = 0;

        for (;;) {
                uint64_t sum = 0;
                unsigned n_done = 0;

                for (unsigned i = 0; i < p->options->n_subscribers; ++i) {
                        struct bench_lane *lane = &p->board->lanes[i];

                        n_done += __atomic_load_n(&lane->done, __ATOMIC_ACQUIRE) != 0;
                        sum += atomic_load_explicit(&lane->seen, memory_order_relaxed);
                }

                if (n_done == p->options->n_subscribers || atomic_load(&p->board->failed) ||
                    bench_now_ns() - moved_ns > bench_patience_ns(p->options))
                        return;

                if (sum != last)
                        moved_ns = bench_now_ns();
                last = sum;
                bench_nap_us(200);
        }
}

static uint64_t publisher_window(const struct bench_options *options)
{
        uint64_t window = LOOP_WINDOW_BYTES / options->size;

        if (!bench_system.window_messages)
                return 0;
        if (window < 2)
                window = 2;

        return window < bench_system.window_messages ? window : bench_system.window_messages;
}

int bench_publish_all(const struct bench_options *options, struct bench_board *board)
{
        struct publisher p = {
                .options = options, .board = board, .window = publisher_window(options)};
        size_t n_message = options->size < LOOP_GREET_BYTES ? LOOP_GREET_BYTES : options->size;
        int r;

        p.message = aligned_alloc(4096, (n_message + 4095) / 4096 * 4096);
        if (!p.message)
                return bench_say("no memory for a message of %zu bytes", n_message);
        memset(p.message, 0x5a, n_message);

        r = bench_system.pub_open(options, &p.pub);
        if (!r) {
                r = publisher_greet(&p);
                if (!r)
                        r = publisher_warm_up(&p);

                board->cpu_start_ns = bench_cpu_ns(options->daemon);
                if (!r)
                        r = publisher_run_timed(&p);
                if (r)
                        atomic_store(&board->failed, 1);

                else
                        publisher_wait_done(&p);

                bench_system.pub_close(p.pub);
        }

        free(p.message);
        return r;
}

/* Data: one comparison for what is as expected, the rest only when it is not. */
static void lane_take(const struct bench_options *options,
                      struct bench_lane *lane,
                      const struct bench_head *head,
                      size_t n_bytes)
{
        uint64_t expected = atomic_load_explicit(&lane->seen, memory_order_relaxed) + 1;

        if (n_bytes != options->size) {
                ++lane->bad;
                return;
        }

        if (head->sequence < expected) {
                ++lane->disorder;
                return;
        }

        ++lane->received;
        if (options->latency && lane->n_latencies < BENCH_LATENCY_MAX)
                lane->latencies[lane->n_latencies++] = bench_now_ns() - head->time_ns;
        atomic_store_explicit(&lane->seen, head->sequence, memory_order_relaxed);
}

static void lane_finish(struct bench_lane *lane, int how)
{
        lane->end_ns = bench_now_ns();
        __atomic_store_n(&lane->done, how, __ATOMIC_RELEASE);
}

int bench_subscribe_all(const struct bench_options *options,
                        struct bench_board *board,
                        struct bench_lane *lane)
{
        const uint64_t patience_ns = bench_patience_ns(options);
        uint64_t n_idle_s = 0;
        void *sub;
        int r;

        if (bench_system.sub_open(options, &sub))
                return BENCH_FAILED;

        if (bench_system.is_stream)
                atomic_store(&lane->ready, 1);

        while (!lane->done) {
                struct bench_head head;
                const void *data;
                size_t n_bytes;

                r = bench_system.sub_receive(sub, &data, &n_bytes);
                if (r == BENCH_TIMEOUT && !atomic_load(&board->failed) &&
                    ++n_idle_s * UINT64_C(1000000000) < patience_ns)
                        continue;
                if (r) {
                        lane_finish(lane, r == BENCH_ENDED ? 1 : -1);
                        break;
                }

                n_idle_s = 0;
                memcpy(&head, data, sizeof(head));
                if (head.magic != BENCH_MAGIC)
                        ++lane->bad;
                else if (head.kind == BENCH_DATA)
                        lane_take(options, lane, &head, n_bytes);
                else if (head.kind == BENCH_WARM)
                        atomic_store(&lane->warm, head.sequence);
                else if (head.kind == BENCH_HELLO)
                        atomic_store(&lane->ready, 1);
                else
                        lane_finish(lane, 1);
        }

        bench_system.sub_close(sub);
        return BENCH_OK;
}
