/* SPDX-License-Identifier: MIT */

/*
 * The bell of a ring, against a scripted daemon: when it is rung, and what is done without one
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ndbus/ndbus.h>
#include <semaphore.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
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

TestSuite(client_bell, .init = init, .timeout = 60);

static int bell_make(void)
{
        int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

        must(fd >= 0);
        return fd;
}

/* How often it was rung since this was asked last. */
static uint64_t bell_take(int bell)
{
        uint64_t n = 0;

        must(read(bell, &n, sizeof(n)) == (ssize_t)sizeof(n) || errno == EAGAIN);
        return n;
}

/* outlet_begin(), and @fd comes with the answer. */
static void begin_with(struct fake_peer *peer, struct outlet_session *s, int fd)
{
        const struct nd_prelude answer = {
                .kind = ND_KIND_RING,
                .flags = ND_FLAG_FD,
                .sequence = outlet_begin_asked(peer, s),
        };

        fake_peer_send_fds(peer, &answer, &fd, 1);
        client_test_pong(peer, OUTLET_N_BEGUN);
}

/* -------------------------------------------------------------------------- ringing */

static void ring_script(struct fake_peer *peer, void *userdata)
{
        int bell = bell_make();
        struct outlet_session s;

        (void)userdata;
        begin_with(peer, &s, bell);

        client_test_pong(peer, OUTLET_N_BEGUN); /* it is awake */
        client_test_take_from_ring(&s.ring, 18);
        must(bell_take(bell) == 0);
        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);

        client_test_pong(peer, OUTLET_N_BEGUN);
        must(bell_take(bell) == 1);
        must(atomic_load(&s.ring.head->is_asleep) == 0);
        client_test_take_from_ring(&s.ring, 19);
        client_test_take_from_ring(&s.ring, 20);
        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);

        sem_wait(&go_script);
        must(!fake_peer_has_input(peer));
        must(bell_take(bell) == 1);
        client_test_take_from_ring(&s.ring, 21);
        client_test_take_from_ring(&s.ring, 22);
        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);

        sem_wait(&go_script);
        must(!fake_peer_has_input(peer));
        must(bell_take(bell) == 1);
        must(client_test_take_from_ring(&s.ring, 23).body_bytes == OUTLET_SLOW_COPY_BYTES);
        sem_post(&go_test);
        outlet_end(peer, &s);
        close(bell);
}

/* Once, and no WAKE comes; also if more follow, or if copying took long. */
Test(client_bell, is_rung_when_the_daemon_sleeps)
{
        struct outlet_stage stage = outlet_stage_open(ring_script, NULL);

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
        cr_assert_eq(outlet_publish_copy(stage.bus, OUTLET_SLOW_COPY_BYTES, NULL), 0, "%s",
                     ndbus_detail());
        sem_post(&go_script);
        sem_wait(&go_test);
        cr_assert_eq(outlet_stage_close(&stage), 6);
}

/* ------------------------------------------------------------------- what is no bell */

static int make_pipe(void)
{
        int fds[2];

        must(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
        close(fds[0]); /* a write would raise SIGPIPE */
        return fds[1];
}

static int make_socket(void)
{
        int fds[2];

        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
        close(fds[0]);
        return fds[1];
}

static int make_file(void)
{
        int fd = memfd_create("file", MFD_CLOEXEC);

        must(fd >= 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
        return fd;
}

static int make_device(void)
{
        int fd = open("/dev/full", O_RDWR | O_CLOEXEC | O_NONBLOCK);

        must(fd >= 0);
        return fd;
}

static int make_set(void)
{
        int fd = epoll_create1(EPOLL_CLOEXEC);

        must(fd >= 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
        return fd;
}

static int make_waiting(void)
{
        int fd = bell_make();

        must(fcntl(fd, F_SETFL, 0) == 0);
        return fd;
}

static int make_full(void)
{
        const uint64_t most = UINT64_MAX - 1;
        int fd = bell_make();

        must(write(fd, &most, sizeof(most)) == (ssize_t)sizeof(most));
        return fd;
}

static void no_bell_script(struct fake_peer *peer, void *userdata)
{
        int (*make)(void) = *(int (**)(void))userdata;
        struct outlet_session s;
        struct stat st;
        int fd = make();

        begin_with(peer, &s, fd);
        for (uint64_t number = 18; number <= 20; ++number) {
                must(nd_ring_sleep(&s.ring));
                sem_post(&go_test);
                fake_peer_expect(peer, ND_KIND_WAKE);
                client_test_pong(peer, number);
                client_test_take_from_ring(&s.ring, number);
        }
        sem_post(&go_test); /* and what takes long to copy goes by the socket */
        outlet_expect_number(peer, 21);
        must(fstat(fd, &st) == 0 && st.st_size == 0);
        close(fd);
        outlet_end(peer, &s);
}

Test(client_bell, that_cannot_be_rung_is_none)
{
        static int (*const makes[])(void) = {make_pipe, make_socket,  make_file, make_device,
                                             make_set,  make_waiting, make_full};

        for (size_t i = 0; i < nd_array_size(makes); ++i) {
                int (*make)(void) = makes[i];
                struct outlet_stage stage = outlet_stage_open(no_bell_script, &make);

                outlet_begin_publishing(stage.bus);
                for (unsigned k = 0; k < 3; ++k) {
                        sem_wait(&go_test);
                        outlet_publish(stage.bus);
                        outlet_ping(stage.bus);
                }
                sem_wait(&go_test);
                cr_assert_eq(outlet_publish_copy(stage.bus, OUTLET_SLOW_COPY_BYTES, NULL), 0, "%s",
                             ndbus_detail());
                cr_assert_eq(outlet_stage_close(&stage), 1);
        }
}

static void limit_script(struct fake_peer *peer, void *userdata)
{
        struct nd_prelude answer = {.kind = ND_KIND_RING, .flags = ND_FLAG_FD};
        int bell = bell_make();
        struct outlet_session s;

        (void)userdata;
        answer.sequence = outlet_begin_asked(peer, &s);
        sem_post(&go_test);
        sem_wait(&go_script);
        fake_peer_send_fds(peer, &answer, &bell, 1);
        client_test_pong(peer, OUTLET_N_BEGUN);
        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);
        fake_peer_expect(peer, ND_KIND_WAKE);
        client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1);
        must(bell_take(bell) == 0);
        close(bell);
        outlet_end(peer, &s);
}

/* This process may open no more files. */
Test(client_bell, for_which_there_is_no_descriptor_is_none)
{
        struct outlet_stage stage = outlet_stage_open(limit_script, NULL);
        struct rlimit limit;

        outlet_publish_n(stage.bus, OUTLET_N_BEGUN);
        sem_wait(&go_test); /* the script has opened all of its own */
        client_test_forbid_fds(&limit);
        sem_post(&go_script);
        outlet_ping(stage.bus);
        client_test_allow_fds(&limit);
        sem_wait(&go_test);
        outlet_publish(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), 1);
}

struct bad_answer {
        bool is_unagreed; /* there is to be no bell on this connection */
        uint16_t flags;
        size_t n_fds;
        int code;
};

static void bad_answer_script(struct fake_peer *peer, void *userdata)
{
        const struct bad_answer *bad = userdata;
        const int bells[] = {bell_make(), bell_make()};
        struct nd_prelude answer = {.kind = ND_KIND_RING, .flags = bad->flags};
        struct outlet_session s;

        if (bad->is_unagreed)
                fake_peer_welcome(peer)->features = ND_FEATURE_SHM | ND_FEATURE_RING;
        answer.sequence = outlet_begin_asked(peer, &s);
        if (bad->n_fds > 0)
                fake_peer_send_fds(peer, &answer, bells, bad->n_fds);
        else
                fake_peer_send(peer, &answer, NULL, 0, NULL, 0);
        for (size_t i = 0; i < nd_array_size(bells); ++i)
                close(bells[i]);
        outlet_end(peer, &s);
}

Test(client_bell, that_does_not_come_as_is_said_ends_the_connection)
{
        static const struct bad_answer bad[] = {
                {false, ND_FLAG_FD, 0, NDBUS_EPROTOCOL},
                {false, ND_FLAG_FD, 2, NDBUS_EFDS},
                {false, 0, 1, NDBUS_EFDS},
                {true, ND_FLAG_FD, 1, NDBUS_EPROTOCOL},
        };

        for (size_t i = 0; i < nd_array_size(bad); ++i) {
                struct bad_answer one = bad[i];
                struct outlet_stage stage = outlet_stage_open(bad_answer_script, &one);
                struct ndbus_message *none;

                outlet_publish_n(stage.bus, OUTLET_N_BEGUN);
                cr_assert_eq(ndbus_receive(stage.bus, &none, 5000), bad[i].code, "%zu: %s", i,
                             ndbus_detail());
                cr_assert(strstr(ndbus_detail(), bad[i].is_unagreed ? "bell" : "descriptor"), "%s",
                          ndbus_detail());
                outlet_stage_close(&stage);
        }
}

/* --------------------------------------------------------------------------- endings */

/* Eventfds of this process; the test's runner has some. */
static size_t n_eventfds(void)
{
        char path[32], name[32];
        size_t n = 0;

        for (int fd = 0; fd < 256; ++fd) {
                snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
                n += readlink(path, name, sizeof(name)) == 20 &&
                     memcmp(name, "anon_inode:[eventfd]", 20) == 0;
        }
        return n;
}

static void end_script(struct fake_peer *peer, void *userdata)
{
        int bell = bell_make();
        struct outlet_session s;

        (void)userdata;
        begin_with(peer, &s, bell);
        close(bell);
        sem_post(&go_test);
        sem_wait(&go_script);
        outlet_close_session(&s);
        fake_peer_hang_up(peer);
        outlet_begin(peer, &s); /* without one */
        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);
        fake_peer_expect(peer, ND_KIND_WAKE);
        client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1);
        outlet_end(peer, &s);
}

Test(client_bell, goes_with_its_connection)
{
        size_t n_before = n_eventfds();
        struct outlet_stage stage = outlet_stage_open(end_script, NULL);

        outlet_begin_publishing(stage.bus);
        sem_wait(&go_test);
        cr_assert_eq(n_eventfds(), n_before + 1);
        sem_post(&go_script);
        outlet_expect_loss(stage.bus);
        cr_assert_eq(n_eventfds(), n_before);
        outlet_reconnect(stage.bus);
        outlet_publish_n(stage.bus, OUTLET_N_BEFORE);
        outlet_ping(stage.bus);
        sem_wait(&go_test);
        outlet_publish(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), 1);
}

static void forked_script(struct fake_peer *peer, void *userdata)
{
        int bell = bell_make();
        struct outlet_session s;

        (void)userdata;
        begin_with(peer, &s, bell);
        must(nd_ring_sleep(&s.ring));
        sem_post(&go_test);
        client_test_pong(peer, OUTLET_N_BEGUN);
        must(bell_take(bell) == 1);
        close(bell);
        outlet_end(peer, &s);
}

Test(client_bell, is_not_inherited_by_a_child)
{
        size_t n_before = n_eventfds();
        struct outlet_stage stage = outlet_stage_open(forked_script, NULL);
        int status;
        pid_t pid;

        outlet_begin_publishing(stage.bus);
        sem_wait(&go_test);
        cr_assert_eq(n_eventfds(), n_before + 2, "the script's too");
        pid = fork();
        if (pid == 0)
                _exit(n_eventfds() != n_before + 1 ||
                      outlet_publish_copy(stage.bus, 10000, NULL) != NDBUS_EFORKED);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0, "status %#x", (unsigned)status);
        outlet_publish(stage.bus);
        outlet_ping(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), 1);
}
