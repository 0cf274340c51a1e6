/* SPDX-License-Identifier: MIT */

/*
 * Hostile segments: each is a typed error, costs no descriptor, and reaches nobody else
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tests/support/bystanders.h"
#include "tests/support/lingering.h"
#include "tests/support/memfd.h"
#include "tests/support/raw-shm.h"

#define BYTES (UINT64_C(1) << 20)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

struct world {
        struct nd_harness *h;
        struct nd_bystanders bystanders;
        size_t n_fds; /* of the daemon, with the bystanders */
};

static void world_init(struct world *w, const struct nd_harness_options *options)
{
        w->h = nd_harness_start(options);
        nd_bystanders_init(&w->bystanders, w->h);
        nd_bystanders_talk(&w->bystanders);
        w->n_fds = nd_harness_fds(w->h);
}

/* All is as it was before the hostile ones came. */
static void world_check(struct world *w)
{
        nd_harness_wait_fds(w->h, w->n_fds, nd_harness_deadline_ms(10000));
        nd_bystanders_check(&w->bystanders);
}

static void world_deinit(struct world *w)
{
        world_check(w);
        nd_bystanders_deinit(&w->bystanders);
        nd_harness_stop(w->h);
}

static int make_socket(void)
{
        int fds[2];

        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        close(fds[1]);
        return fds[0];
}

/* Refused with @code about @field; the connection goes on. */
static void expect_refused(struct nd_raw *raw, int fd, uint64_t bytes, int code, const char *field)
{
        struct nd_error_header error;

        nd_raw_send_segment(raw, 1, bytes, fd);
        error = nd_raw_expect_error(raw, code, false);
        cr_assert_eq(error.of, ND_KIND_SEGMENT);
        cr_assert_eq(error.field.n, strlen(field), "%.*s", (int)error.field.n, error.field.at);
        cr_assert_arr_eq(error.field.at, field, error.field.n, "%.*s", (int)error.field.n,
                         error.field.at);
        if (fd >= 0)
                close(fd);
}

Test(segments, that_are_none_are_refused_and_the_connection_goes_on)
{
        struct nd_segment good;
        struct nd_raw *raw;
        struct world w;

        world_init(&w, NULL);
        raw = nd_raw_open_shm(w.h);
        expect_refused(raw, -1, BYTES, NDBUS_ENO_FD, "fd");
        expect_refused(raw, open("/dev/null", O_RDWR | O_CLOEXEC), BYTES, NDBUS_ESHM, "fd");
        expect_refused(raw, open("/proc/self/exe", O_RDONLY | O_CLOEXEC), BYTES, NDBUS_ESHM, "fd");
        expect_refused(raw, make_socket(), BYTES, NDBUS_ESHM, "fd");
        expect_refused(raw, nd_memfd_reopen(nd_memfd_make(BYTES, BYTES, SEALS), O_WRONLY), BYTES,
                       NDBUS_ESHM, "fd");
        expect_refused(raw, nd_memfd_reopen(nd_memfd_make(BYTES, BYTES, SEALS), O_PATH), BYTES,
                       NDBUS_ESHM, "fd");
        expect_refused(raw, nd_memfd_make(BYTES, BYTES, 0), BYTES, NDBUS_ESHM, "seals");
        for (int seal = 1; seal <= SEALS; seal <<= 1) {
                if (SEALS & seal)
                        expect_refused(raw, nd_memfd_make(BYTES, BYTES, SEALS & ~seal), BYTES,
                                       NDBUS_ESHM, "seals");
        }
        expect_refused(raw, nd_memfd_make(BYTES, BYTES, SEALS), 2 * BYTES, NDBUS_ESHM, "place");
        expect_refused(raw, nd_memfd_make(BYTES, BYTES, SEALS), BYTES - 4096, NDBUS_ESHM, "place");
        expect_refused(raw, nd_memfd_make(BYTES, BYTES, SEALS), 0, NDBUS_ESHM, "place");
        expect_refused(raw, nd_memfd_make(BYTES, BYTES, SEALS), 5, NDBUS_ESHM, "place");
        expect_refused(raw, nd_memfd_make(5, 5, SEALS), 5, NDBUS_ESHM, "place");
        expect_refused(raw, nd_memfd_make(BYTES, 0, SEALS), BYTES, NDBUS_ESHM, "fd");
        expect_refused(raw, nd_memfd_make(BYTES, BYTES - 4096, SEALS), BYTES, NDBUS_ESHM, "fd");
        expect_refused(raw, nd_memfd_make(BYTES, BYTES, SEALS), UINT64_MAX, NDBUS_ELIMIT,
                       "shm-max");
        expect_refused(raw, nd_memfd_make(BYTES, BYTES, SEALS), raw->shm_max + 4096, NDBUS_ELIMIT,
                       "shm-max");

        /* nothing of it was remembered */
        good = nd_raw_segment(BYTES);
        nd_raw_announce(raw, 1, &good);
        cr_assert_eq(nd_raw_stat(raw, "counters", "shm_refused"), 20);
        cr_assert_eq(nd_raw_stat(raw, "memory", "shm"), BYTES);
        nd_segment_close(&good);
        nd_raw_close(raw);
        world_deinit(&w);
}

Test(segments, that_linger_do_not_stop_the_daemon)
{
        struct nd_raw *refused, *plain;
        struct world w;
        int fds[2][2];

        world_init(&w, NULL);
        refused = nd_raw_open_shm(w.h);
        plain = nd_raw_open(w.h, false);
        for (size_t i = 0; i < 2; ++i)
                nd_lingering_make(fds[i]);

        /* the daemon has the last descriptor of each when it reads */
        nd_harness_signal(w.h, SIGSTOP);
        nd_raw_send_segment(refused, 1, BYTES, fds[0][0]);
        nd_raw_send_fds(plain, "x", 1, &fds[1][0], 1);
        for (size_t i = 0; i < 2; ++i)
                close(fds[i][0]);
        nd_harness_signal(w.h, SIGCONT);

        nd_raw_expect_error(refused, NDBUS_ESHM, false);
        nd_raw_expect_error(plain, NDBUS_EFDS, true);
        nd_bystanders_check(&w.bystanders);
        nd_raw_close(refused);
        nd_raw_close(plain);
        for (size_t i = 0; i < 2; ++i)
                close(fds[i][1]); /* unread, so the other end is reset */
        world_deinit(&w);
}

/* One that ends the connection. */
static void expect_fatal(struct world *w, struct nd_raw *raw, int code, const char *text)
{
        struct nd_error_header error = nd_raw_expect_error(raw, code, true);

        cr_assert_not_null(memmem(error.text.at, error.text.n, text, strlen(text)), "%.*s",
                           (int)error.text.n, error.text.at);
        nd_raw_expect_closed(raw);
        nd_raw_close(raw);
        world_check(w);
}

static void
send_prelude_fds(struct nd_raw *raw, const struct nd_prelude *prelude, const int *fds, size_t n_fds)
{
        uint8_t bytes[ND_PRELUDE_BYTES];

        nd_prelude_pack(prelude, bytes);
        nd_raw_send_fds(raw, bytes, sizeof(bytes), fds, n_fds);
}

#define N_HANGING 32u /* a quarter of the descriptors */

/* Descriptors that hang when they are closed come until no more are taken. Others go on, newcomers wait,
 * and all is as before when they hang no more; or the daemon ends in the midst of it. */
static void hang(bool is_released)
{
        const struct nd_harness_rlimit limit = {RLIMIT_NOFILE, {4 * N_HANGING, 4 * N_HANGING}};
        const struct nd_harness_options options = {.rlimits = &limit, .n_rlimits = 1};
        const struct nd_prelude ping = {.kind = ND_KIND_PING, .sequence = 99};
        uint8_t bytes[ND_PRELUDE_BYTES];
        struct nd_raw *raw, *late, *old;
        struct nd_error_header error;
        int peers[N_HANGING + 1], status;
        struct nd_segment good;
        struct world w;
        char *log;

        world_init(&w, &options);
        old = nd_raw_open_shm(w.h);
        late = nd_raw_open_shm(w.h);
        good = nd_raw_segment(BYTES);
        nd_prelude_pack(&ping, bytes);
        for (size_t i = 0; i <= N_HANGING; ++i) {
                int fd;

                peers[i] = nd_lingering_make_nested(&fd);
                raw = i < N_HANGING ? nd_raw_open_shm(w.h) : late;
                /* the daemon has the last one, and keeps it until the packet is whole */
                nd_raw_send_fds(raw, bytes, 1, &fd, 1);
                close(fd);
                nd_raw_send(raw, bytes + 1, sizeof(bytes) - 1);
                if (i < N_HANGING)
                        nd_raw_expect(raw, ND_KIND_PONG);
                error = nd_raw_expect_error(raw, NDBUS_EFDS, true);
                if (i == N_HANGING) {
                        cr_assert_eq(error.value, N_HANGING + 1);
                        cr_assert_eq(error.limit, N_HANGING);
                }
                nd_raw_expect_closed(raw);
                nd_raw_close(raw);
                nd_bystanders_check(&w.bystanders);
        }
        cr_assert_eq(nd_raw_stat(old, "counters", "fds_refused"), 1);
        nd_raw_flush(old);

        raw = nd_raw_open_bare(w.h, false); /* it is not accepted */
        nd_raw_flush(old);
        cr_assert_eq(nd_raw_stat(old, "counters", "clients_accepted"), 2 + 2 + N_HANGING);
        log = nd_harness_log(w.h);
        cr_assert_not_null(strstr(log, "do not close pending=32 limit=32"), "%s", log);
        free(log);
        nd_raw_close(raw);

        if (is_released) {
                for (size_t i = 0; i < nd_array_size(peers); ++i)
                        close(peers[i]);
                raw = nd_raw_open_shm(w.h);
                nd_raw_announce(raw, 1, &good);
                nd_raw_close(raw);
                nd_raw_announce(old, 1, &good);
        }
        nd_raw_close(old);
        nd_segment_close(&good);
        if (is_released) {
                world_deinit(&w);
                return;
        }
        nd_bystanders_deinit(&w.bystanders);
        nd_harness_signal(w.h, SIGTERM);
        cr_assert(nd_harness_wait_exit(w.h, nd_harness_deadline_ms(20000), &status));
        cr_assert_eq(status, 0);
        for (size_t i = 0; i < nd_array_size(peers); ++i)
                close(peers[i]);
        nd_harness_stop(w.h);
}

Test(segments, that_hang_in_their_closing_stop_nobody)
{
        hang(true);
}

Test(segments, that_hang_in_their_closing_do_not_keep_the_daemon)
{
        hang(false);
}

Test(segments, whose_descriptors_are_not_announced_end_the_connection)
{
        const struct nd_prelude ping = {.kind = ND_KIND_PING, .sequence = 99};
        const struct nd_prelude segment = {.kind = ND_KIND_SEGMENT,
                                           .flags = ND_FLAG_FD,
                                           .segment = 1,
                                           .place = BYTES,
                                           .sequence = 99};
        struct nd_segment good;
        int fds[253];
        struct nd_raw *raw;
        struct world w;
        uint8_t bytes[ND_PRELUDE_BYTES];

        world_init(&w, NULL);
        good = nd_raw_segment(BYTES);
        for (size_t i = 0; i < nd_array_size(fds); ++i)
                fds[i] = good.fd;

        raw = nd_raw_open_shm(w.h);
        send_prelude_fds(raw, &ping, fds, 1);
        nd_raw_expect(raw, ND_KIND_PONG);
        expect_fatal(&w, raw, NDBUS_EFDS, "no packet took it");

        raw = nd_raw_open_shm(w.h); /* two where one is */
        send_prelude_fds(raw, &segment, fds, 2);
        nd_raw_expect(raw, ND_KIND_SEGMENT);
        expect_fatal(&w, raw, NDBUS_EFDS, "no packet took it");

        raw = nd_raw_open_shm(w.h); /* in the middle of a packet, which does not take it */
        nd_prelude_pack(&ping, bytes);
        nd_raw_send(raw, bytes, 10);
        nd_raw_send_fds(raw, bytes + 10, sizeof(bytes) - 10, fds, 1);
        nd_raw_expect(raw, ND_KIND_PONG);
        expect_fatal(&w, raw, NDBUS_EFDS, "no packet took it");

        raw = nd_raw_open_shm(w.h);
        send_prelude_fds(raw, &segment, fds, 9);
        expect_fatal(&w, raw, NDBUS_EFDS, "is 9 descriptors");

        raw = nd_raw_open_shm(w.h);
        send_prelude_fds(raw, &segment, fds, 253);
        expect_fatal(&w, raw, NDBUS_EFDS, "is 253 descriptors");

        raw = nd_raw_open_shm(w.h); /* one after another, and no packet is whole */
        nd_prelude_pack(&segment, bytes);
        for (size_t i = 0; i < 9; ++i)
                nd_raw_send_fds(raw, bytes + i, 1, fds, 1);
        expect_fatal(&w, raw, NDBUS_EFDS, "is 9 descriptors");

        raw = nd_raw_open(w.h, false); /* without the feature */
        send_prelude_fds(raw, &ping, fds, 1);
        expect_fatal(&w, raw, NDBUS_EFDS, "none belongs here");

        raw = nd_raw_open_hello(w.h, false); /* before CONNECT */
        nd_raw_send_fds(raw, bytes, 1, fds, 1);
        expect_fatal(&w, raw, NDBUS_EFDS, "none belongs here");

        raw = nd_raw_open_bare(w.h, false); /* before hello: nobody to be told */
        nd_raw_send_fds(raw, "NDBUS", 5, fds, 1);
        nd_raw_expect_closed(raw);
        nd_raw_close(raw);

        nd_segment_close(&good);
        world_deinit(&w);
}

Test(segments, that_come_when_there_are_no_descriptors_end_the_connection)
{
        const struct nd_harness_rlimit limit = {RLIMIT_NOFILE, {64, 64}};
        const struct nd_harness_options options = {.rlimits = &limit, .n_rlimits = 1};
        static const char text[] = "the 16 segments of all clients and the ";
        struct nd_error_header error;
        struct nd_segment good;
        struct nd_raw *idle[64];
        struct nd_raw *raw;
        struct world w;
        size_t n = 0;
        int fds[253];

        world_init(&w, &options);
        good = nd_raw_segment(BYTES);
        for (size_t i = 0; i < nd_array_size(fds); ++i)
                fds[i] = good.fd;
        raw = nd_raw_open_shm(w.h);
        nd_raw_send_fds(raw, "x", 1, fds, nd_array_size(fds)); /* it cannot take so many */
        expect_fatal(&w, raw, NDBUS_EFDS, "could not be taken");

        /* segments take a quarter of the descriptors at most: others can still connect */
        for (; n < 4; ++n)
                idle[n] = nd_raw_open_shm(w.h);
        for (uint32_t i = 1; i <= 16; ++i)
                nd_raw_announce(idle[i % 4], i, &good);
        for (size_t i = 0; i < 4; ++i) {
                nd_raw_send_segment(idle[i], 17, BYTES, good.fd);
                error = nd_raw_expect_error(idle[i], NDBUS_ENO_FD, false);
                cr_assert_gt(error.value, error.limit);
                cr_assert_eq(error.limit, 16);
                cr_assert_not_null(memmem(error.text.at, error.text.n, text, strlen(text)), "%.*s",
                                   (int)error.text.n, error.text.at);
        }
        nd_bystanders_check(&w.bystanders);
        nd_raw_close(idle[0]); /* room for four */
        nd_harness_wait_fds(w.h, w.n_fds + 3 + 12, nd_harness_deadline_ms(10000));
        nd_raw_announce(idle[1], 17, &good);
        for (size_t i = 1; i < n; ++i)
                nd_raw_close(idle[i]);
        nd_segment_close(&good);
        world_deinit(&w);
}

Test(segments, of_one_client_are_64_of_shm_max_bytes)
{
        static const char *const args[] = {"--shm-max", "1M", NULL};
        const struct nd_harness_options options = {.args = args};
        const struct nd_prelude gone = {.kind = ND_KIND_SEGMENT_GONE, .segment = 64};
        struct nd_segment small, large;
        struct nd_raw *raw;
        struct world w;

        world_init(&w, &options);
        small = nd_raw_segment(4096);
        large = nd_raw_segment(BYTES);
        raw = nd_raw_open_shm(w.h);
        cr_assert_eq(raw->shm_max, BYTES);
        for (uint32_t i = 1; i <= 64; ++i)
                nd_raw_announce(raw, i, &small);
        for (uint32_t i = 0; i < 10000; ++i) {
                nd_raw_send_segment(raw, 65 + i, 4096, small.fd);
                nd_raw_expect_error(raw, NDBUS_ELIMIT, false);
        }
        nd_raw_send_prelude(raw, gone);
        nd_raw_announce(raw, 65, &small);

        nd_raw_send_segment(raw, 3, 4096, small.fd); /* a number that is in use */
        expect_fatal(&w, raw, NDBUS_EPROTOCOL, "announced already");

        raw = nd_raw_open_shm(w.h);
        nd_raw_announce(raw, 7, &large);
        nd_raw_send_segment(raw, 8, 4096, small.fd);
        nd_raw_expect_error(raw, NDBUS_ELIMIT, false);
        nd_raw_close(raw);
        nd_segment_close(&small);
        nd_segment_close(&large);
        world_deinit(&w);
}

/* The kernel lets a user have as many descriptors under way as it may have open. */
Test(segments, that_the_kernel_does_not_pass_on_are_read_by_the_daemon)
{
        static const struct nd_harness_rlimit limit = {RLIMIT_NOFILE, {64, 64}};
        const struct nd_harness_options options = {
                .rlimits = &limit, .n_rlimits = 1, .unprivileged = true};
        struct nd_segment segments[8];
        struct nd_raw *readers[12];
        struct nd_raw *raw;
        struct world w;
        size_t n_blocks = 0, n_bodies = 0;

        world_init(&w, &options);
        raw = nd_raw_open_shm(w.h);
        for (size_t i = 0; i < nd_array_size(readers); ++i) {
                readers[i] = nd_raw_open_shm(w.h);
                nd_raw_subscribe(readers[i], 1, &(struct nd_raw_subscribe){.pattern = "t"});
        }
        for (uint32_t i = 0; i < nd_array_size(segments); ++i) {
                segments[i] = nd_raw_segment(4096);
                nd_raw_announce(raw, i + 1, &segments[i]);
        }
        for (uint32_t i = 0; i < nd_array_size(segments); ++i)
                nd_raw_publish_block(raw, "t", &segments[i], i + 1, 64, 1000);
        nd_raw_flush(raw);
        for (size_t i = 0; i < nd_array_size(readers); ++i) {
                for (size_t k = 0; k < nd_array_size(segments); ++k) {
                        struct nd_prelude message = nd_raw_receive_either(readers[i]);

                        cr_assert_eq(message.sequence, k + 1);
                        if (message.flags & ND_FLAG_BODY_IN_BLOCK)
                                ++n_blocks;
                        else
                                ++n_bodies;
                }
        }
        cr_assert_eq(n_blocks + n_bodies, 96);
        cr_assert_gt(n_bodies, 0);
        cr_assert_eq(nd_raw_stat(raw, "counters", "shm_fallback"), n_bodies);
        for (size_t i = 0; i < nd_array_size(readers); ++i)
                nd_raw_close(readers[i]);
        nd_raw_close(raw);
        for (size_t i = 0; i < nd_array_size(segments); ++i)
                nd_segment_close(&segments[i]);
        /* the bystander heard nothing but "t" */
        for (size_t i = 0; i < nd_array_size(segments); ++i) {
                struct nd_raw_message message = nd_raw_receive(w.bystanders.subscriber);

                nd_raw_message_free(&message);
        }
        world_deinit(&w);
}

Test(segments, in_which_blocks_are_wrong_end_the_connection)
{
        static const struct {
                uint32_t segment;
                uint64_t place;
                uint64_t n_bytes;
                const char *text;
        } bad[] = {
                {2, 0, 10, "2 is not announced"},
                {1, BYTES, 1, "is not within"},
                {1, BYTES - 64, 65, "is not within"},
                {1, 0, BYTES + 1, "is not within"},
                {1, UINT64_MAX - 63, 64, "is not within"},
                {1, 64, ND_BODY_BYTES_MAX, "is not within"},
                {1, 63, 1, "not a multiple of 64"},
                {0, 64, 1, "is 0"},
                {1, 0, 0, "is 0"},
        };
        const struct nd_prelude gone = {.kind = ND_KIND_SEGMENT_GONE, .segment = 5};
        struct nd_segment good;
        struct nd_raw *raw;
        struct world w;

        world_init(&w, NULL);
        good = nd_raw_segment(BYTES);
        for (size_t i = 0; i < nd_array_size(bad); ++i) {
                raw = nd_raw_open_shm(w.h);
                nd_raw_announce(raw, 1, &good);
                nd_raw_publish_in(raw, "t", bad[i].segment, bad[i].place, bad[i].n_bytes, 0);
                expect_fatal(&w, raw, NDBUS_EPROTOCOL, bad[i].text);
        }

        raw = nd_raw_open_shm(w.h);
        nd_raw_send_prelude(raw, gone);
        expect_fatal(&w, raw, NDBUS_EPROTOCOL, "5 is not announced");
        nd_segment_close(&good);
        world_deinit(&w);
}

Test(segments, are_not_given_where_they_cannot_be)
{
        static const char *const args[] = {"--shm-max", "0", NULL};
        const struct nd_harness_options options = {.args = args};
        const struct nd_prelude segment = {.kind = ND_KIND_SEGMENT, .segment = 1};
        struct nd_raw *raw;
        struct world w;

        world_init(&w, &options);
        raw = nd_raw_open_features(w.h, false, ND_FEATURE_SHM);
        cr_assert_eq(raw->shm_max, 0);
        nd_raw_send_prelude(raw, segment);
        expect_fatal(&w, raw, NDBUS_EPROTOCOL, "not one that a client sends");
        world_deinit(&w);

        world_init(&w, NULL);
        raw = nd_raw_open_features(w.h, true, ND_FEATURE_SHM); /* TCP */
        cr_assert_eq(raw->shm_max, 0);
        nd_raw_send_prelude(raw, segment);
        expect_fatal(&w, raw, NDBUS_EPROTOCOL, "not one that a client sends");
        world_deinit(&w);
}

Test(segments, are_not_released_by_who_does_not_hold_them)
{
        static const uint8_t bad[][24] = {
                {1, 0, 0, 0, 1, 0, 0, 0},         /* it holds nothing */
                {0, 0, 0, 0, 1, 0, 0, 0},         /* no segment */
                {1, 0, 0, 0, 0, 0, 0, 0},         /* no places */
                {1, 0, 0, 0, 3, 0, 0, 0},         /* more than follow */
                {1, 0, 0, 0, 255, 255, 255, 255}, /* many more */
        };
        const struct nd_prelude release = {.kind = ND_KIND_RELEASE, .body_bytes = 24};
        struct world w;

        world_init(&w, NULL);
        for (size_t i = 0; i < nd_array_size(bad); ++i) {
                struct nd_raw *raw = nd_raw_open_shm(w.h);

                nd_raw_send_packet(raw, release, NULL, 0, NULL, 0, bad[i], sizeof(bad[i]));
                expect_fatal(&w, raw, NDBUS_EPROTOCOL, "");
        }
        world_deinit(&w);
}
