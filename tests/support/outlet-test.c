/* SPDX-License-Identifier: MIT */

/*
 * What tests of publishing through a ring do again and again
 */

#include "tests/support/outlet-test.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/support/client-test.h"

static void succeeds(int r)
{
        if (r)
                fprintf(stderr, "%s\n", ndbus_detail());
        must(r == 0);
}

void outlet_expect_number(struct fake_peer *peer, uint64_t number)
{
        must(fake_peer_expect(peer, ND_KIND_PUBLISH)->prelude.sequence == number);
}

/* Messages by the socket, @n of them from @number on. */
void outlet_expect_numbers(struct fake_peer *peer, uint64_t number, size_t n)
{
        for (size_t i = 0; i < n; ++i)
                outlet_expect_number(peer, number + i);
}

/* Takes what outlet_begin_publishing() publishes, and maps the ring. Returns the sequence of its RING. */
uint64_t outlet_begin_asked(struct fake_peer *peer, struct outlet_session *s)
{
        uint64_t sequence;

        client_test_accept_ring(peer);
        s->segment = fake_peer_segment(peer, &s->number);
        outlet_expect_numbers(peer, 1, OUTLET_N_BEFORE);
        sequence = client_test_map_ring(peer, &s->ring);
        outlet_expect_number(peer, OUTLET_N_BEGUN);
        return sequence;
}

/* The same, and lets it be used. */
void outlet_begin(struct fake_peer *peer, struct outlet_session *s)
{
        client_test_answer_ring(peer, outlet_begin_asked(peer, s));
        client_test_pong(peer, OUTLET_N_BEGUN);
}

void outlet_close_session(struct outlet_session *s)
{
        nd_ring_close(&s->ring);
        nd_segment_close(&s->segment);
}

void outlet_end(struct fake_peer *peer, struct outlet_session *s)
{
        fake_peer_drain(peer);
        outlet_close_session(s);
}

static uint8_t copied[OUTLET_SLOW_COPY_BYTES];

/* By a copy of @n bytes, which is in a block from 8 KiB on. */
int outlet_publish_copy(struct ndbus *bus, int64_t n, const struct ndbus_publish_options *options)
{
        const struct ndbus_array array = {.data = copied, .dtype = "uint8", .ndim = 1, .shape = &n};

        return ndbus_publish(bus, "t", &array, 1, options);
}

int outlet_publish_with(struct ndbus *bus, int64_t n, const struct ndbus_publish_options *options)
{
        uint8_t *data;
        struct ndbus_loan *loan = client_test_loan(bus, n, &data);
        int r = ndbus_publish_loan(bus, "t", loan, options);

        if (r)
                ndbus_loan_cancel(loan);
        return r;
}

void outlet_publish(struct ndbus *bus)
{
        succeeds(outlet_publish_with(bus, 1000, NULL));
}

void outlet_publish_more(struct ndbus *bus)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;

        options.more = 1;
        succeeds(outlet_publish_with(bus, 1000, &options));
}

void outlet_publish_n(struct ndbus *bus, size_t n)
{
        for (size_t i = 0; i < n; ++i)
                outlet_publish(bus);
}

/* What the script has sent before its PONG is heard, too. */
void outlet_ping(struct ndbus *bus)
{
        succeeds(ndbus_ping(bus, NULL, 5000));
}

/* The other side of outlet_begin(). */
void outlet_begin_publishing(struct ndbus *bus)
{
        outlet_publish_n(bus, OUTLET_N_BEGUN);
        outlet_ping(bus);
}

/* Descriptors of rings of this process: nothing else has that size. */
size_t outlet_n_ring_fds(void)
{
        struct stat st;
        size_t n = 0;

        for (int fd = 0; fd < 256; ++fd)
                n += fstat(fd, &st) == 0 && st.st_size == ND_RING_FILE_BYTES;
        return n;
}

/* Where rings are mapped; how many. */
size_t outlet_ring_mappings(uintptr_t out[static 4])
{
        FILE *file = fopen("/proc/self/maps", "r");
        uintptr_t from, to;
        char line[512];
        size_t n = 0;

        must(file);
        while (fgets(line, sizeof(line), file)) {
                must(sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2);
                if (!strstr(line, "/memfd:") || to - from != ND_RING_FILE_BYTES)
                        continue;
                must(n < 4);
                out[n++] = from;
        }
        fclose(file);
        return n;
}

size_t outlet_n_ring_mappings(void)
{
        uintptr_t at[4];

        return outlet_ring_mappings(at);
}

struct outlet_stage
outlet_stage_open_with(fake_peer_script script, void *userdata, const struct ndbus_options *options)
{
        struct outlet_stage stage = {.n_fds = client_test_n_fds()};

        stage.peer = fake_peer_start(script, userdata);
        succeeds(ndbus_open(&stage.bus, fake_peer_url(stage.peer), options));
        return stage;
}

struct outlet_stage outlet_stage_open(fake_peer_script script, void *userdata)
{
        return outlet_stage_open_with(script, userdata, NULL);
}

size_t outlet_stage_close(struct outlet_stage *stage)
{
        size_t n_unconfirmed = 0;

        ndbus_close(stage->bus, 0, &n_unconfirmed);
        fake_peer_end(stage->peer);
        must(client_test_n_fds() == stage->n_fds);
        must(client_test_n_mappings() == 0);
        return n_unconfirmed;
}

void outlet_expect_loss(struct ndbus *bus)
{
        struct ndbus_message *none;

        must(ndbus_receive(bus, &none, 5000) == NDBUS_ENOTCONN);
        must(outlet_n_ring_fds() == 0);
        must(client_test_n_mappings() == 0); /* of a segment that was published in, or a ring */
}

void outlet_reconnect(struct ndbus *bus)
{
        struct ndbus_message *none;
        int r;

        while ((r = outlet_publish_with(bus, 1000, NULL)) == NDBUS_ENOTCONN)
                ndbus_receive(bus, &none, 1000);
        succeeds(r);
}
