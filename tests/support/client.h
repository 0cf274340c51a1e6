/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Client: the library in tests of behaviour, over every transport
 *
 * Short names for what nearly every such test does. Each ends the test, with the library's own
 * words, when the library says anything but success, or waits longer than any machine takes.
 */

#include <ndbus/ndbus.h>
#include <stdbool.h>
#include <stdint.h>
#include "tests/support/harness.h"

/** Long enough for anything that is not a contract; for waits that normally end at once. */
#define ND_CLIENT_WAIT_MS 20000

struct nd_transport {
        const char *name;
        bool is_tcp;
        bool is_shm;
};

/** Those in which bodies are sent by the socket come first; the last one is shared memory. */
#define ND_TRANSPORTS_N 2u
#define ND_WAYS_N       3u
extern const struct nd_transport nd_transports[ND_WAYS_N];

const char *nd_client_url(const struct nd_harness *h, const struct nd_transport *transport);

/** options may be NULL; whether memory is shared is said by the transport; nd_client_close() */
struct ndbus *nd_client_open(struct nd_harness *h,
                             const struct nd_transport *transport,
                             const struct ndbus_options *options);

/** All that was published has been routed. */
void nd_client_close(struct ndbus *bus);

/** options may be NULL. */
struct ndbus_subscription *nd_client_subscribe(struct ndbus *bus,
                                               const char *pattern,
                                               const struct ndbus_subscribe_options *options);

/** P(n) as one frame of raw bytes that say which message they are of: the first 8 are the number,
 * if there are that many. Returns what ndbus_publish() does. */
int nd_client_try_publish(
        struct ndbus *bus, const char *topic, uint64_t number, size_t n_bytes, int timeout_ms);
void nd_client_publish(struct ndbus *bus, const char *topic, uint64_t number, size_t n_bytes);

/** P(n_bytes) as one uint8 array on a topic, by a connection of its own: for a thread. */
struct nd_large {
        struct nd_harness *harness;
        const struct nd_transport *transport;
        const char *topic;
        uint64_t n_bytes;
};

/** pthread_create()'s function; userdata is struct nd_large. */
void *nd_client_publish_large(void *userdata);

void nd_client_flush(struct ndbus *bus);

/** The next message; ndbus_message_free() */
struct ndbus_message *nd_client_receive(struct ndbus *bus);

/** The number of a message published as above, whose every byte is checked. Frees it. */
uint64_t nd_client_take_number(struct ndbus_message *m);

/** Receive, check and free: the number, and no gap. */
void nd_client_expect(struct ndbus *bus, uint64_t number);
