/* SPDX-License-Identifier: MIT */

/*
 * Messages in shared memory, against a scripted daemon: what is held and released, what is refused, and
 * what becomes of it when something ends
 */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ndbus/ndbus.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "client/dlpack.h"
#include "protocol/shm/release.h"
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

TestSuite(client_hold, .init = init, .timeout = 60);

/* ------------------------------------------------------------------------ for scripts */

static struct nd_segment make_segment(void)
{
        struct nd_segment segment = ND_SEGMENT_NULL;
        struct nd_room room;

        nd_room_read("", &room);
        must(nd_segment_create(BYTES, &room, &segment, NULL) == 0);
        nd_pattern_fill(segment.base, 0, BYTES);
        return segment;
}

static void hand_fd(struct fake_peer *peer, uint32_t number, int fd, uint64_t bytes)
{
        const struct nd_prelude p = {
                .kind = ND_KIND_SEGMENT, .flags = ND_FLAG_FD, .segment = number, .place = bytes};

        fake_peer_send_fds(peer, &p, &fd, 1);
}

/* A MESSAGE of @n bytes at @place. */
static void send_block(struct fake_peer *peer,
                       uint32_t sub,
                       uint32_t segment,
                       uint64_t place,
                       uint64_t n,
                       uint64_t sequence)
{
        const struct nd_prelude p = {
                .kind = ND_KIND_MESSAGE,
                .flags = ND_FLAG_BODY_IN_BLOCK,
                .body_bytes = n,
                .place = place,
                .source = 7,
                .sequence = sequence,
                .subscription = sub,
                .segment = segment,
        };
        size_t n_header;
        void *header = fake_peer_header("t", n, &n_header);

        fake_peer_send_message(peer, &p, header, n_header, NULL, 0);
        free(header);
}

/* The client releases exactly these, in this order. */
static void
expect_release(struct fake_peer *peer, uint32_t segment, const uint64_t *places, size_t n)
{
        for (size_t i = 0; i < n;) {
                const struct fake_packet *packet = fake_peer_expect(peer, ND_KIND_RELEASE);
                struct nd_release_reader reader = {packet->body, packet->n_body, 0, 0};
                uint32_t number;
                uint64_t place;

                while (nd_release_next(&reader, &number, &place, NULL) == 1) {
                        must(i < n && number == segment && place == places[i]);
                        ++i;
                }
        }
}

/* ------------------------------------------------------------------------ receiving */

static struct ndbus *open_subscribed(struct fake_peer *peer)
{
        struct ndbus *bus = client_test_open(peer);

        cr_assert_eq(ndbus_subscribe(bus, "t", NULL, NULL), 0, "%s", ndbus_detail());
        return bus;
}

static const struct ndbus_array *array_of(struct ndbus_message *m)
{
        const struct ndbus_array *array;

        cr_assert_eq(ndbus_message_arrays(m, &array), 1);
        return array;
}

static void two_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 9, segment.fd, BYTES);
        send_block(peer, sub, 9, 4096, 5000, 1);
        send_block(peer, sub, 9, 4096, 5000, 2);
        expect_release(peer, 9, (const uint64_t[]){4096, 4096}, 2);
        sem_post(&go_test);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

/* T24: a view is read-only, and a write to it faults. */
static void write_faults(const struct ndbus_array *array)
{
        int status;
        pid_t pid = fork();

        if (pid == 0) {
                signal(SIGSEGV, SIG_DFL);
                *(volatile uint8_t *)(uintptr_t)array->data = 1;
                _exit(0);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_neq(status, 0);
}

Test(client_hold, a_message_is_read_where_it_lies_and_released_once_for_each_delivery)
{
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(two_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *a = client_test_receive(bus), *b = client_test_receive(bus);

        cr_assert_eq(array_of(a)->data, array_of(b)->data);
        cr_assert_eq((uintptr_t)array_of(a)->data % 64, 0);
        cr_assert_eq(array_of(a)->flags, NDBUS_READ_ONLY);
        cr_assert_eq(nd_pattern_compare(array_of(a)->data, 4096, 5000), 5000);
        cr_assert_eq(client_test_shm_stats(bus).held, 2);
        write_faults(array_of(a));
        ndbus_message_free(a);
        cr_assert_eq(nd_pattern_compare(array_of(b)->data, 4096, 5000), 5000);
        ndbus_message_free(b);
        sem_wait(&go_test); /* both are released, and this thread has called nothing meanwhile */
        cr_assert_eq(client_test_shm_stats(bus).held, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_fds(), n_before);
        cr_assert_eq(client_test_n_mappings(), 0);
}

static void credit_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 2, segment.fd, BYTES);
        send_block(peer, sub, 2, 0, 1000, 1);
        must(fake_peer_read(peer)->prelude.kind == ND_KIND_CREDIT);
        sem_post(&go_test);
        expect_release(peer, 2, (const uint64_t[]){0}, 1);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

/* Or nothing more can come to who works on a message for an hour, and its queue blocks or drops. */
Test(client_hold, credit_for_a_block_is_sent_though_the_message_is_kept)
{
        struct ndbus_subscribe_options options = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct fake_peer *peer = fake_peer_start(credit_script, NULL);
        struct ndbus *bus = client_test_open(peer);
        struct ndbus_message *m;

        options.window_bytes = 1000; /* one message fills it */
        cr_assert_eq(ndbus_subscribe(bus, "t", &options, NULL), 0, "%s", ndbus_detail());
        m = client_test_receive(bus);
        sem_wait(&go_test); /* this thread has called nothing meanwhile */
        ndbus_message_free(m);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void export_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 3, segment.fd, BYTES);
        send_block(peer, sub, 3, 0, 1000, 1);
        send_block(peer, sub, 3, 64 * 100, 1000, 2);
        expect_release(peer, 3, (const uint64_t[]){64 * 100}, 1);
        sem_post(&go_test);
        expect_release(peer, 3, (const uint64_t[]){0}, 1);
        sem_post(&go_test);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

static void *delete_it(void *userdata)
{
        DLManagedTensorVersioned *tensor = userdata;

        must(nd_pattern_compare(tensor->dl_tensor.data, 0, 1000) == 1000);
        tensor->deleter(tensor);
        return NULL;
}

/* The bus's thread sleeps elsewhere: whoever deletes the last export tells the daemon. */
Test(client_hold, an_export_keeps_the_block_until_its_deleter_runs_on_any_thread)
{
        struct fake_peer *peer = fake_peer_start(export_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *m = client_test_receive(bus);
        struct DLManagedTensorVersioned *tensor;
        pthread_t thread;
        void *legacy;

        cr_assert_eq(ndbus_message_export(m, 0, &tensor), 0);
        cr_assert(tensor->flags & ND_DLPACK_FLAG_READ_ONLY);
        cr_assert_eq(ndbus_message_export_legacy(m, 0, &legacy), NDBUS_EINVAL);
        ndbus_message_free(m);
        ndbus_message_free(client_test_receive(bus));
        sem_wait(&go_test);
        cr_assert_eq(client_test_shm_stats(bus).held, 1);
        cr_assert_eq(pthread_create(&thread, NULL, delete_it, tensor), 0);
        sem_wait(&go_test);
        pthread_join(thread, NULL);
        cr_assert_eq(client_test_shm_stats(bus).held, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

static void own_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 1, segment.fd, BYTES);
        send_block(peer, sub, 1, 128, 100000, 1);
        expect_release(peer, 1, (const uint64_t[]){128}, 1);
        memset(segment.base, 0xee, BYTES);
        sem_post(&go_test);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

Test(client_hold, a_private_copy_is_writable_and_lets_go_of_the_block)
{
        struct fake_peer *peer = fake_peer_start(own_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *m = client_test_receive(bus);

        cr_assert_eq(ndbus_message_own(m), 0);
        sem_wait(&go_test);
        cr_assert_eq(array_of(m)->flags, 0);
        cr_assert_eq((uintptr_t)array_of(m)->data % 64, 0);
        cr_assert_eq(nd_pattern_compare(array_of(m)->data, 128, 100000), 100000);
        *(uint8_t *)(uintptr_t)array_of(m)->data = 1;
        ndbus_message_free(m);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* One that cannot be mapped, of each kind: the daemon is told, what was in it counts as dropped, and what
 * comes by the socket is taken. */
static int bad_fd(unsigned i)
{
        static const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        must(fd >= 0);
        if (i == 0) {
                close(fd);
                return open("/dev/zero", O_RDWR | O_CLOEXEC);
        }
        must(ftruncate(fd, (off_t)(i == 1 ? BYTES / 2 : BYTES)) == 0);
        if (i != 2)
                must(fallocate(fd, 0, 0, (off_t)(i == 1 ? BYTES / 2 : BYTES)) == 0);
        must(fcntl(fd, F_ADD_SEALS, i == 3 ? seals & ~F_SEAL_SHRINK : seals) == 0);
        return fd;
}

#define N_BAD 4u

static void bad_script(struct fake_peer *peer, void *userdata)
{
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        for (uint32_t i = 0; i < N_BAD; ++i) {
                const struct fake_packet *packet;
                int fd = bad_fd(i);

                hand_fd(peer, i + 1, fd, BYTES);
                send_block(peer, sub, i + 1, 0, 1000, 2 * i + 1);
                packet = fake_peer_expect(peer, ND_KIND_SEGMENT_GONE);
                must(packet->prelude.segment == i + 1 && packet->prelude.sequence == 1);
                fake_peer_send_pattern(peer, sub, 1000, 2 * i + 2, 0);
                close(fd);
        }
        fake_peer_drain(peer);
}

Test(client_hold, a_segment_that_is_none_is_refused_and_the_socket_goes_on)
{
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(bad_script, NULL);
        struct ndbus *bus = open_subscribed(peer);

        for (uint32_t i = 0; i < N_BAD; ++i)
                client_test_expect(bus, 2 * i + 2, 1000, 1);
        cr_assert_eq(client_test_shm_stats(bus).held, 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_fds(), n_before);
}

static void no_fd_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        sem_wait(&go_script);
        hand_fd(peer, 1, segment.fd, BYTES);
        send_block(peer, sub, 1, 0, 1000, 1);
        fake_peer_send_pattern(peer, sub, 1000, 2, 0);
        must(fake_peer_expect(peer, ND_KIND_SEGMENT_GONE)->prelude.sequence == 1);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

/* T52: this process may open no more files. */
Test(client_hold, at_the_descriptor_limit_the_socket_carries_it)
{
        struct fake_peer *peer = fake_peer_start(no_fd_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct rlimit limit;

        client_test_forbid_fds(&limit);
        sem_post(&go_script);
        client_test_expect(bus, 2, 1000, 1);
        client_test_allow_fds(&limit);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* ------------------------------------------------------------- what no daemon may do */

enum sin {
        SIN_UNKNOWN_SEGMENT,
        SIN_OUTSIDE,
        SIN_FAR_OUTSIDE,
        SIN_NO_FD,
        SIN_STRAY_FD,
        SIN_MANY_FDS,
        SIN_NUMBER_IN_USE,
        SIN_GONE_UNKNOWN,
        SIN_RELEASE_UNKNOWN,
        SIN_ANSWER_UNASKED,
        SIN_GONE_AND_USED,
        N_SINS,
};

static void sin_script(struct fake_peer *peer, void *userdata)
{
        enum sin sin = *(enum sin *)userdata;
        struct nd_segment segment = make_segment();
        struct nd_prelude p = {.kind = ND_KIND_SEGMENT, .segment = 1, .place = BYTES};
        int fds[ND_FDS_MAX + 1];
        uint32_t sub;

        for (size_t i = 0; i < nd_array_size(fds); ++i)
                fds[i] = segment.fd;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 1, segment.fd, BYTES);
        switch (sin) {
        case SIN_UNKNOWN_SEGMENT:
                send_block(peer, sub, 2, 0, 64, 1);
                break;
        case SIN_OUTSIDE:
                send_block(peer, sub, 1, BYTES - 64, 65, 1);
                break;
        case SIN_FAR_OUTSIDE:
                send_block(peer, sub, 1, UINT64_MAX - 63, 64, 1);
                break;
        case SIN_NO_FD:
                p.segment = 2;
                p.flags = ND_FLAG_FD;
                fake_peer_send(peer, &p, NULL, 0, NULL, 0);
                break;
        case SIN_STRAY_FD:
                p.kind = ND_KIND_PONG;
                fake_peer_send_fds(peer, &p, fds, 1);
                break;
        case SIN_MANY_FDS:
                p.segment = 2;
                p.flags = ND_FLAG_FD;
                fake_peer_send_fds(peer, &p, fds, nd_array_size(fds));
                break;
        case SIN_NUMBER_IN_USE:
                hand_fd(peer, 1, segment.fd, BYTES);
                break;
        case SIN_GONE_UNKNOWN:
                p = (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = 2};
                fake_peer_send(peer, &p, NULL, 0, NULL, 0);
                break;
        case SIN_RELEASE_UNKNOWN:
                client_test_release(peer, 1, 0);
                break;
        case SIN_ANSWER_UNASKED:
                fake_peer_send(peer, &p, NULL, 0, NULL, 0);
                break;
        default:
                p = (struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = 1};
                fake_peer_send(peer, &p, NULL, 0, NULL, 0);
                send_block(peer, sub, 1, 0, 64, 1);
        }
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

Test(client_hold, whatever_breaks_the_rules_ends_the_connection_and_leaves_nothing_open)
{
        size_t n_before = client_test_n_fds();

        for (enum sin sin = 0; sin < N_SINS; ++sin) {
                struct fake_peer *peer = fake_peer_start(sin_script, &sin);
                struct ndbus *bus = open_subscribed(peer);
                struct ndbus_message *m;
                int r = ndbus_receive(bus, &m, 5000);

                cr_assert(r == NDBUS_EPROTOCOL || r == NDBUS_EFDS, "sin %d: %s: %s", sin,
                          ndbus_errname(r), ndbus_detail());
                ndbus_close(bus, 0, NULL);
                fake_peer_end(peer);
                cr_assert_eq(client_test_n_fds(), n_before, "sin %d", sin);
                cr_assert_eq(client_test_n_mappings(), 0, "sin %d", sin);
        }
}

/* ---------------------------------------------------------------------- endings */

static void gone_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 1, segment.fd, BYTES);
        send_block(peer, sub, 1, 64, 1000, 1);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = 1}, NULL,
                       0, NULL, 0);
        fake_peer_send_pattern(peer, sub, 100, 2, 0);
        nd_segment_close(&segment);
        expect_release(peer, 1, (const uint64_t[]){64}, 1);
        sem_post(&go_test);
        fake_peer_drain(peer);
}

Test(client_hold, a_segment_that_is_gone_lasts_as_long_as_its_messages)
{
        struct fake_peer *peer = fake_peer_start(gone_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *m = client_test_receive(bus);

        client_test_expect(bus, 2, 100, 0);
        cr_assert_eq(nd_pattern_compare(array_of(m)->data, 64, 1000), 1000);
        ndbus_message_free(m);
        sem_wait(&go_test);
        cr_assert_eq(client_test_n_mappings(), 0);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}

/* The daemon sends one more while the client says GOODBYE. */
static void close_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 1, segment.fd, BYTES);
        send_block(peer, sub, 1, 0, 1000, 1);
        send_block(peer, sub, 1, 1024, 1000, 2);
        fake_peer_expect(peer, ND_KIND_PING); /* of the flush that a close begins with */
        send_block(peer, sub, 1, 2048, 1000, 3);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_PONG, .sequence = 3}, NULL, 0,
                       NULL, 0);
        fake_peer_expect(peer, ND_KIND_GOODBYE);
        send_block(peer, sub, 1, 4096, 1000, 4);
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_GOODBYE}, NULL, 0, NULL, 0);
        expect_release(peer, 1, (const uint64_t[]){1024, 2048, 4096}, 3);
        sem_post(&go_test);
        expect_release(peer, 1, (const uint64_t[]){0}, 1);
        must(fake_peer_read(peer) == NULL);
        sem_post(&go_test);
        nd_segment_close(&segment);
}

Test(client_hold, what_is_held_at_the_close_keeps_the_socket_and_nothing_else)
{
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(close_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *m = client_test_receive(bus);

        ndbus_close(bus, 5000, NULL);
        sem_wait(&go_test);
        cr_assert_eq(nd_pattern_compare(array_of(m)->data, 0, 1000), 1000);
        cr_assert_eq(client_test_n_mappings(), 2, "the script's and ours");
        ndbus_message_free(m);
        sem_wait(&go_test);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_mappings(), 0);
        cr_assert_eq(client_test_n_fds(), n_before);
}

/* Of what fills the socket, so many make room for all that waits in the bus. */
#define N_READ 12u

static void stuck_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment(), theirs;
        uint32_t sub, number;

        (void)userdata;
        fake_peer_welcome(peer)->grant_bytes = 16 * ND_MIB;
        client_test_accept_ring(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 1, segment.fd, BYTES);
        send_block(peer, sub, 1, 0, 1000, 1);
        theirs = fake_peer_segment(peer, &number);
        sem_wait(&go_script); /* it has closed the bus */
        for (unsigned i = 0; i < 1 + N_READ; ++i)
                fake_peer_expect(peer, ND_KIND_PUBLISH);
        sem_post(&go_test);
        while (fake_peer_read(peer)->prelude.kind != ND_KIND_RING)
                continue;
        must(fake_peer_take_fd(peer) < 0);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
        nd_segment_close(&theirs);
}

/* It is closed with the bus, and its number may be something else's. */
Test(client_hold, what_waits_at_the_close_leaves_without_its_descriptor)
{
        static uint8_t bytes[7000];
        const int64_t shape = sizeof(bytes);
        const struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        struct ndbus_publish_options once = NDBUS_PUBLISH_OPTIONS_INIT;
        size_t n_before = client_test_n_fds(), n_sent = 0;
        struct fake_peer *peer = fake_peer_start(stuck_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *m = client_test_receive(bus);
        int others[8];
        uint8_t *data;

        cr_assert_eq(ndbus_publish_loan(bus, "x", client_test_loan(bus, 100, &data), NULL), 0);
        once.timeout_ms = 0;
        while (ndbus_publish(bus, "x", &array, 1, &once) == 0)
                ++n_sent;
        cr_assert_geq(n_sent, 2 * N_READ, "%s", ndbus_detail());
        cr_assert_eq(ndbus_publish_loan(bus, "x", client_test_loan(bus, 100, &data), &once), 0,
                     "%s", ndbus_detail());
        ndbus_close(bus, 0, NULL);
        for (unsigned i = 0; i < nd_array_size(others); ++i)
                others[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        sem_post(&go_script);
        sem_wait(&go_test);
        ndbus_message_free(m);
        fake_peer_end(peer);
        for (unsigned i = 0; i < nd_array_size(others); ++i)
                close(others[i]);
        cr_assert_eq(client_test_n_fds(), n_before);
        cr_assert_eq(client_test_n_mappings(), 0);
}

/* The connection is given up by the client, while the daemon believes in it. */
static void replace_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 1, segment.fd, BYTES);
        send_block(peer, sub, 1, 0, 1000, 1);
        sem_wait(&go_script); /* it has that one */
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE, .segment = 5}, NULL,
                       0, NULL, 0);
        fake_peer_expect(peer, ND_KIND_GOODBYE);
        sem_post(&go_test);
        expect_release(peer, 1, (const uint64_t[]){0}, 1);
        must(fake_peer_read(peer) == NULL);
        sem_post(&go_test);
        nd_segment_close(&segment);
}

Test(client_hold, what_is_held_when_the_connection_is_replaced_keeps_the_old_socket)
{
        size_t n_before = client_test_n_fds();
        struct fake_peer *peer = fake_peer_start(replace_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *m = client_test_receive(bus), *other;

        sem_post(&go_script);
        cr_assert_eq(ndbus_receive(bus, &other, 5000), NDBUS_EPROTOCOL);
        sem_wait(&go_test); /* GOODBYE came, and no end of the stream */
        cr_assert_eq(nd_pattern_compare(array_of(m)->data, 0, 1000), 1000);
        ndbus_message_free(m);
        sem_wait(&go_test);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
        cr_assert_eq(client_test_n_fds(), n_before);
        cr_assert_eq(client_test_n_mappings(), 0);
}

static void fork_script(struct fake_peer *peer, void *userdata)
{
        struct nd_segment segment = make_segment();
        uint32_t sub;

        (void)userdata;
        client_test_accept_shm(peer);
        sub = fake_peer_subscribed(peer);
        hand_fd(peer, 1, segment.fd, BYTES);
        send_block(peer, sub, 1, 64, 1000, 1);
        fake_peer_expect(peer, ND_KIND_PING); /* after the child has freed its message */
        fake_peer_send(peer, &(struct nd_prelude){.kind = ND_KIND_PONG, .sequence = 3}, NULL, 0,
                       NULL, 0);
        expect_release(peer, 1, (const uint64_t[]){64}, 1);
        sem_post(&go_test);
        fake_peer_drain(peer);
        nd_segment_close(&segment);
}

static int in_child(struct ndbus *bus, struct ndbus_message *m)
{
        const struct ndbus_array *array;

        if (ndbus_message_arrays(m, &array) != 1 ||
            nd_pattern_compare(array->data, 64, 1000) != 1000 || ndbus_message_own(m))
                return 1;
        ndbus_message_free(m);
        return ndbus_close(bus, 0, NULL) ? 2 : 0;
}

Test(client_hold, a_child_may_read_and_copy_and_releases_nothing)
{
        struct fake_peer *peer = fake_peer_start(fork_script, NULL);
        struct ndbus *bus = open_subscribed(peer);
        struct ndbus_message *m = client_test_receive(bus);
        int status;
        pid_t pid = fork();

        if (pid == 0)
                _exit(in_child(bus, m));
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0, "status %#x", (unsigned)status);
        cr_assert_eq(ndbus_ping(bus, NULL, 5000), 0);
        ndbus_message_free(m);
        sem_wait(&go_test);
        ndbus_close(bus, 0, NULL);
        fake_peer_end(peer);
}
