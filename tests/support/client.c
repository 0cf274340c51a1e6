/* SPDX-License-Identifier: MIT */

/*
 * Client
 *
 * A message of these tests carries its own number in its bytes, so that what arrives can be told
 * apart without trusting the header that is under test, and a mixture of two messages shows.
 */

#include "tests/support/client.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "tests/support/pattern.h"

#define NUMBER_BYTES 8u

const struct nd_transport nd_transports[ND_WAYS_N] = {
        {"unix", false, false},
        {"tcp", true, false},
        {"shm", false, true},
};

static void require(int r, const char *what)
{
        if (r)
                nd_harness_fail(NULL, "%s: %s: %s", what, ndbus_errname(r), ndbus_detail());
}

const char *nd_client_url(const struct nd_harness *h, const struct nd_transport *transport)
{
        return transport->is_tcp ? h->tcp_url : h->unix_url;
}

struct ndbus *nd_client_open(struct nd_harness *h,
                             const struct nd_transport *transport,
                             const struct ndbus_options *options)
{
        struct ndbus_options all = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;

        if (options)
                all = *options;
        all.no_shm = !transport->is_shm;
        all.connect_timeout_ms = ND_CLIENT_WAIT_MS;
        require(ndbus_open(&bus, nd_client_url(h, transport), &all), "ndbus_open");
        return bus;
}

void nd_client_close(struct ndbus *bus)
{
        size_t n = 0;

        require(ndbus_close(bus, ND_CLIENT_WAIT_MS, &n), "ndbus_close");
        if (n)
                nd_harness_fail(NULL, "ndbus_close: %zu messages are not confirmed", n);
}

struct ndbus_subscription *nd_client_subscribe(struct ndbus *bus,
                                               const char *pattern,
                                               const struct ndbus_subscribe_options *options)
{
        struct ndbus_subscription *sub = NULL;

        require(ndbus_subscribe(bus, pattern, options, &sub), "ndbus_subscribe");
        return sub;
}

int nd_client_try_publish(
        struct ndbus *bus, const char *topic, uint64_t number, size_t n_bytes, int timeout_ms)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        int64_t shape = (int64_t)n_bytes;
        uint8_t *bytes = malloc(n_bytes + NUMBER_BYTES);
        struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
        int r;

        if (!bytes)
                nd_harness_fail(NULL, "out of memory");
        options.timeout_ms = timeout_ms;
        nd_pattern_fill(bytes, 0, n_bytes);
        if (n_bytes >= NUMBER_BYTES)
                nd_store_le64(bytes, number);
        r = ndbus_publish(bus, topic, &array, 1, &options);
        free(bytes);
        return r;
}

void nd_client_publish(struct ndbus *bus, const char *topic, uint64_t number, size_t n_bytes)
{
        require(nd_client_try_publish(bus, topic, number, n_bytes, ND_CLIENT_WAIT_MS),
                "ndbus_publish");
}

void *nd_client_publish_large(void *userdata)
{
        const struct nd_large *large = userdata;
        struct ndbus *bus = nd_client_open(large->harness, large->transport, NULL);
        void *memory = nd_pattern_map(large->n_bytes);
        int64_t shape = (int64_t)large->n_bytes;
        struct ndbus_array array = {.data = memory, .dtype = "uint8", .ndim = 1, .shape = &shape};

        if (!memory)
                nd_harness_fail(NULL, "no memory for P(%" PRIu64 ")", large->n_bytes);
        require(ndbus_publish(bus, large->topic, &array, 1, NULL), "ndbus_publish");
        nd_client_close(bus);
        nd_pattern_unmap(memory, large->n_bytes);
        return NULL;
}

void nd_client_flush(struct ndbus *bus)
{
        require(ndbus_flush(bus, ND_CLIENT_WAIT_MS), "ndbus_flush");
}

struct ndbus_message *nd_client_receive(struct ndbus *bus)
{
        struct ndbus_message *m = NULL;

        require(ndbus_receive(bus, &m, ND_CLIENT_WAIT_MS), "ndbus_receive");
        return m;
}

uint64_t nd_client_take_number(struct ndbus_message *m)
{
        const struct ndbus_array *arrays;
        size_t n = ndbus_message_arrays(m, &arrays), n_bytes;
        const uint8_t *bytes;
        uint64_t number = 0;

        if (n != 1 || arrays[0].dtype || arrays[0].ndim != 1)
                nd_harness_fail(NULL, "%s: not one frame of raw bytes", ndbus_message_topic(m));
        bytes = arrays[0].data;
        n_bytes = (size_t)arrays[0].shape[0];
        if (n_bytes >= NUMBER_BYTES) {
                number = nd_load_le64(bytes);
                bytes += NUMBER_BYTES;
                n_bytes -= NUMBER_BYTES;
                if (nd_pattern_compare(bytes, NUMBER_BYTES, n_bytes) != n_bytes)
                        nd_harness_fail(NULL, "message %" PRIu64 " is damaged", number);
        }
        ndbus_message_free(m);
        return number;
}

void nd_client_expect(struct ndbus *bus, uint64_t number)
{
        struct ndbus_message *m = nd_client_receive(bus);
        uint64_t dropped = ndbus_message_dropped(m), got = nd_client_take_number(m);

        if (got != number || dropped != 0)
                nd_harness_fail(NULL,
                                "message %" PRIu64 " after a gap of %" PRIu64 " came, "
                                "expected was %" PRIu64,
                                got, dropped, number);
}
