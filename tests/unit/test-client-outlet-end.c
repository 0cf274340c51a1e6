/* SPDX-License-Identifier: MIT */

/*
 * What is left of a ring when its connection or its process ends, against a scripted daemon
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/client-test.h"
#include "tests/support/fake-peer.h"
#include "tests/support/outlet-test.h"

static sem_t go_script;

static void init(void)
{
        sem_init(&go_script, 0, 0);
}

TestSuite(client_outlet_end, .init = init, .timeout = 60);

static void lost_script(struct fake_peer *peer, void *userdata)
{
        const bool *has_next = userdata;
        struct outlet_session s;

        outlet_begin(peer, &s);
        client_test_pong(peer, OUTLET_N_BEGUN + 1);
        outlet_close_session(&s);
        fake_peer_hang_up(peer);
        if (*has_next) {
                outlet_begin(peer, &s);
                client_test_pong(peer, 0);
                client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1);
        } else {
                client_test_accept_shm(peer);
                s.segment = fake_peer_segment(peer, &s.number);
                outlet_expect_numbers(peer, 1, OUTLET_N_BEGUN);
                client_test_pong(peer, 0);
                outlet_expect_number(peer, OUTLET_N_BEGUN + 1);
                client_test_pong(peer, 0);
        }
        outlet_end(peer, &s);
}

Test(client_outlet_end, what_is_lost_in_a_ring_is_unconfirmed)
{
        for (unsigned i = 0; i < 2; ++i) {
                bool has_next = i == 0;
                struct outlet_stage stage = outlet_stage_open(lost_script, &has_next);

                outlet_begin_publishing(stage.bus);
                outlet_publish_n(stage.bus, 3);
                outlet_ping(stage.bus); /* two are not routed */
                outlet_expect_loss(stage.bus);
                cr_assert_eq(ndbus_flush(stage.bus, 0), NDBUS_ENOTCONN);
                cr_assert(strstr(ndbus_detail(), "2 messages"), "%s", ndbus_detail());
                outlet_reconnect(stage.bus);
                outlet_publish_n(stage.bus, OUTLET_N_BEFORE);
                outlet_ping(stage.bus);
                outlet_publish(stage.bus);
                outlet_ping(stage.bus);
                cr_assert_eq(outlet_stage_close(&stage),
                             2 + OUTLET_N_BEGUN + 1 - (has_next ? OUTLET_N_BEGUN : 0));
        }
}

static void asked_script(struct fake_peer *peer, void *userdata)
{
        struct outlet_session s;

        (void)userdata;
        outlet_begin_asked(peer, &s);
        outlet_close_session(&s);
        fake_peer_hang_up(peer);
        outlet_begin(peer, &s);
        outlet_end(peer, &s);
}

Test(client_outlet_end, a_ring_without_an_answer_goes_with_its_connection)
{
        struct outlet_stage stage = outlet_stage_open(asked_script, NULL);

        outlet_publish_n(stage.bus, OUTLET_N_BEGUN);
        outlet_expect_loss(stage.bus);
        outlet_reconnect(stage.bus);
        outlet_publish_n(stage.bus, OUTLET_N_BEFORE);
        outlet_ping(stage.bus);
        cr_assert_eq(outlet_stage_close(&stage), OUTLET_N_BEGUN);
}

static void closed_script(struct fake_peer *peer, void *userdata)
{
        const bool *is_answered = userdata;
        struct outlet_session s;

        if (*is_answered)
                outlet_begin(peer, &s);
        else
                outlet_begin_asked(peer, &s);
        outlet_end(peer, &s);
}

Test(client_outlet_end, closing_leaves_neither_ring_nor_descriptor)
{
        for (unsigned i = 0; i < 2; ++i) {
                bool is_answered = i == 1;
                struct outlet_stage stage = outlet_stage_open(closed_script, &is_answered);

                outlet_publish_n(stage.bus, OUTLET_N_BEGUN);
                if (is_answered) {
                        outlet_ping(stage.bus);
                        outlet_publish_n(stage.bus, 2);
                }
                cr_assert_eq(outlet_stage_close(&stage), is_answered ? 2 : OUTLET_N_BEGUN);
        }
}

static void forked_script(struct fake_peer *peer, void *userdata)
{
        const bool *is_answered = userdata;
        struct outlet_session s;
        uint64_t sequence;

        sequence = outlet_begin_asked(peer, &s);
        if (*is_answered)
                client_test_answer_ring(peer, sequence);
        client_test_pong(peer, OUTLET_N_BEGUN);
        if (!*is_answered) {
                sem_wait(&go_script);
                client_test_answer_ring(peer, sequence);
        }
        client_test_pong(peer, OUTLET_N_BEGUN);
        client_test_pong(peer, OUTLET_N_BEGUN);
        client_test_take_from_ring(&s.ring, OUTLET_N_BEGUN + 1);
        outlet_end(peer, &s);
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
        if (outlet_n_ring_fds() > 0)
                return 2;
        if (outlet_publish_copy(bus, 10000, NULL) != NDBUS_EFORKED)
                return 3;
        if (ndbus_close(bus, 0, NULL))
                return 4;
        if (at[0] != 7 || at[ND_RING_FILE_BYTES - 1] != 7)
                return 5;
        return outlet_n_ring_mappings() == 1 ? 0 : 6;
}

/* Of two mappings the child has that of the script. */
static uintptr_t missing_in_child(const uintptr_t *before)
{
        uintptr_t now[4];

        if (outlet_ring_mappings(now) != 1)
                return 0;
        return before[0] == now[0] ? before[1] : before[0];
}

Test(client_outlet_end, a_child_does_not_have_the_ring)
{
        for (unsigned i = 0; i < 2; ++i) {
                bool is_answered = i == 1;
                struct outlet_stage stage = outlet_stage_open(forked_script, &is_answered);
                uintptr_t before[4];
                int status;
                pid_t pid;

                outlet_begin_publishing(stage.bus);
                cr_assert_eq(outlet_ring_mappings(before), 2, "of both ends");
                cr_assert_eq(outlet_n_ring_fds(), is_answered ? 0 : 1);
                pid = fork();
                if (pid == 0)
                        _exit(close_in_child(stage.bus, missing_in_child(before)));
                cr_assert_eq(waitpid(pid, &status, 0), pid);
                cr_assert_eq(status, 0, "status %#x", (unsigned)status);
                cr_assert_eq(outlet_n_ring_mappings(), 2);
                if (!is_answered)
                        sem_post(&go_script);
                outlet_ping(stage.bus);
                outlet_publish(stage.bus);
                outlet_ping(stage.bus);
                cr_assert_eq(outlet_stage_close(&stage), 1);
        }
}
