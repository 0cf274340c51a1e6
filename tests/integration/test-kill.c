/* SPDX-License-Identifier: MIT */

/*
 * Death at any moment: processes that publish in shared memory, and that hold it, are killed
 *
 * What dies is chosen by a seed, and so is the number of messages after which it does. Whatever it
 * is: a publisher that lives gets its blocks back and goes on, a subscriber that lives goes on to
 * hear what is right, and when both are dead the daemon keeps nothing of them.
 */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "protocol/shm/release.h"
#include "tests/support/raw-shm.h"

#define ROUNDS_N   60u
#define SLOTS_N    16u
#define SLOT_BYTES 65536u
#define HELD_N     3u

/* A process that says one byte for each message. */
struct actor {
        pid_t pid;
        int fd;
};

static uint32_t random_state;

static uint32_t random_below(uint32_t n)
{
        random_state = random_state * 1664525u + 1013904223u;
        return (random_state >> 8) % n;
}

static void tell(int fd)
{
        if (write(fd, "x", 1) != 1)
                _exit(1);
}

static void take_released(struct nd_raw *raw, bool *is_free, size_t *n_free)
{
        const struct nd_raw_packet *packet = nd_raw_expect(raw, ND_KIND_RELEASE);
        struct nd_release_reader reader = {
                .data = packet->body,
                .n = packet->prelude.body_bytes,
        };
        uint32_t segment;
        uint64_t place;

        while (nd_release_next(&reader, &segment, &place, NULL) > 0) {
                if (is_free[place / SLOT_BYTES])
                        nd_harness_fail(NULL, "a block is released twice");
                is_free[place / SLOT_BYTES] = true;
                ++*n_free;
        }
}

_Noreturn static void publish(struct nd_harness *h, int fd)
{
        struct nd_raw *raw = nd_raw_open_shm(h);
        struct nd_segment segment = nd_raw_segment(SLOTS_N * SLOT_BYTES);
        bool is_free[SLOTS_N];
        size_t n_free = SLOTS_N;

        memset(is_free, true, sizeof(is_free));
        nd_raw_announce(raw, 1, &segment);
        for (uint32_t i = 0;; i = (i + 1) % SLOTS_N) {
                while (n_free == 0)
                        take_released(raw, is_free, &n_free);
                if (!is_free[i])
                        continue;
                is_free[i] = false;
                --n_free;
                nd_raw_publish_block(raw, "t", &segment, 1, i * SLOT_BYTES,
                                     1 + random_below(SLOT_BYTES));
                tell(fd);
        }
}

_Noreturn static void subscribe(struct nd_harness *h, int fd)
{
        struct nd_raw *raw = nd_raw_open_shm(h);
        struct nd_prelude held[HELD_N];
        uint64_t n = 0;

        raw->ignores_gone = true;
        nd_raw_subscribe(raw, 1, &(struct nd_raw_subscribe){.pattern = "t", .window = 8});
        tell(fd);
        for (;; ++n) {
                struct nd_prelude message;

                if (n >= HELD_N)
                        nd_raw_release(raw, held[n % HELD_N].segment, held[n % HELD_N].place);
                do { /* what was copied out of a dead one's segment is not held */
                        message = nd_raw_receive_either(raw);
                        nd_raw_grant(raw, 1, 1, message.body_bytes);
                } while (!(message.flags & ND_FLAG_BODY_IN_BLOCK));
                held[n % HELD_N] = message;
                tell(fd);
        }
}

static struct actor start(struct nd_harness *h, void (*act)(struct nd_harness *, int))
{
        struct actor actor;
        int fds[2];

        cr_assert_eq(pipe(fds), 0);
        actor.fd = fds[0];
        actor.pid = fork();
        cr_assert_geq(actor.pid, 0);
        if (actor.pid == 0) {
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                close(fds[0]);
                act(h, fds[1]);
        }
        close(fds[1]);
        return actor;
}

/* It goes on: so many more messages. */
static void await(const struct actor *actor, size_t n)
{
        char byte;

        for (; n > 0; --n)
                cr_assert_eq(read(actor->fd, &byte, 1), 1, "it has ended");
}

static void kill_actor(struct actor *actor)
{
        int status;

        cr_assert_eq(kill(actor->pid, SIGKILL), 0);
        cr_assert_eq(waitpid(actor->pid, &status, 0), actor->pid);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %#x", status);
        close(actor->fd);
}

/* Nobody but the asker is there. What is charged is not compared, because the asker's own answers
 * are in it; the daemon asserts at its end that it is nothing. */
struct idle {
        struct nd_harness *h;
        struct nd_raw *asker;
        size_t n_fds;
};

static bool is_idle(void *userdata)
{
        const struct idle *idle = userdata;

        return nd_raw_stat(idle->asker, "memory", "shm") == 0 &&
               nd_raw_stat(idle->asker, "memory", "messages") == 0 &&
               nd_harness_fds(idle->h) == idle->n_fds;
}

Test(kill, leaves_nothing_and_stops_nobody)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct idle idle = {.h = h, .asker = nd_raw_open(h, false)};

        nd_raw_flush(idle.asker);
        idle.n_fds = nd_harness_fds(h);
        random_state = (uint32_t)time(NULL) ^ (uint32_t)getpid() << 16;
        for (unsigned i = 0; i < ROUNDS_N; ++i) {
                uint32_t seed = random_state;
                struct actor subscriber = start(h, subscribe);
                struct actor publisher;

                fprintf(stderr, "round %u seed %u\n", i, seed);
                await(&subscriber, 1); /* it has subscribed */
                publisher = start(h, publish);
                await(&publisher, random_below(40));
                if (random_below(2)) {
                        kill_actor(&subscriber);
                        await(&publisher, 10 * SLOTS_N); /* its blocks come back */
                        subscriber = start(h, subscribe);
                        await(&subscriber, 1 + random_below(40));
                } else {
                        await(&subscriber, random_below(20));
                        kill_actor(&publisher);
                        publisher = start(h, publish);
                        await(&subscriber, 1 + random_below(40)); /* it hears the next one */
                }
                if (random_below(2)) {
                        kill_actor(&publisher);
                        kill_actor(&subscriber);
                } else {
                        kill_actor(&subscriber);
                        kill_actor(&publisher);
                }
                nd_harness_wait_until(h, "the daemon to keep nothing", is_idle, &idle,
                                      nd_harness_deadline_ms(20000));
        }
        nd_raw_close(idle.asker);
        nd_harness_stop(h);
}
