/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Fake peer: a daemon that does what its script says, for tests of the client library
 *
 * A script is a function that runs in a thread of its own and speaks packets over a Unix socket in
 * a private folder. It says things that no daemon would, or at moments that no daemon would choose.
 * fake_peer_serve() is the other extreme: a daemon for one client, that hands what is published to
 * that client's own subscriptions.
 *
 * What the script did not expect ends the process with a sentence: a failed test. When the client
 * closes the connection while a packet is awaited, functions that say so return NULL or false.
 */

#include <stdbool.h>
#include "protocol/control.h"
#include "protocol/prelude.h"
#include "protocol/shm/segment.h"

struct fake_peer;

typedef void (*fake_peer_script)(struct fake_peer *peer, void *userdata);

/** Listens, and runs the script in a thread. */
struct fake_peer *fake_peer_start(fake_peer_script script, void *userdata);

/** "unix:..."; valid until the end. */
const char *fake_peer_url(const struct fake_peer *peer);

/** Waits for the script to return, closes what is open, frees. */
void fake_peer_end(struct fake_peer *peer);

/* ------------------------------------------------------------------- for scripts alone */

/** A packet as received: header, meta and body whole, valid until the next one is read. */
struct fake_packet {
        struct nd_prelude prelude;
        const uint8_t *header;
        const uint8_t *meta;
        const uint8_t *body; /**< [n_body] of this packet */
        size_t n_body;
};

/** What fake_peer_accept() says in WELCOME; to be changed before. It must not offer what CONNECT did
 *  not. */
struct nd_welcome *fake_peer_welcome(struct fake_peer *peer);

/** Accepts a connection and nothing more; the one before is closed. */
void fake_peer_accept_bare(struct fake_peer *peer);

/** Accepts a connection, hello, CONNECT, WELCOME. */
void fake_peer_accept(struct fake_peer *peer);

/** Closes the connection, listens on. */
void fake_peer_hang_up(struct fake_peer *peer);

/** Stops listening as well: the next connect() is refused. */
void fake_peer_stop_listening(struct fake_peer *peer);
void fake_peer_listen_again(struct fake_peer *peer);

/** The next packet; NULL: the client has closed. */
const struct fake_packet *fake_peer_read(struct fake_peer *peer);

/** The next packet but CREDIT, which must be of that kind. */
const struct fake_packet *fake_peer_expect(struct fake_peer *peer, enum nd_kind kind);

/** Has the client sent anything that is not read? */
bool fake_peer_has_input(const struct fake_peer *peer);

/** Reads until the client closes. */
void fake_peer_drain(struct fake_peer *peer);

/** A packet: sizes are set here. */
void fake_peer_send(struct fake_peer *peer,
                    const struct nd_prelude *prelude,
                    const void *header,
                    size_t n_header,
                    const void *body,
                    size_t n_body);

/** A packet without header and body, with descriptors, which stay the caller's. */
void fake_peer_send_fds(struct fake_peer *peer,
                        const struct nd_prelude *prelude,
                        const int *fds,
                        size_t n_fds);

/** The descriptor that came with the packet read last; -1: none did. The caller's. */
int fake_peer_take_fd(struct fake_peer *peer);

/** Has the client said SEGMENT, with a descriptor: answers that it may be used, and returns it. */
struct nd_segment fake_peer_segment(struct fake_peer *peer, uint32_t *ret_number);

/** The same where body_bytes is of the whole message, and is taken as it stands. */
void fake_peer_send_message(struct fake_peer *peer,
                            const struct nd_prelude *prelude,
                            const void *header,
                            size_t n_header,
                            const void *body,
                            size_t n_body);

/** Bytes as they are. False: the client has closed. */
bool fake_peer_send_bytes(struct fake_peer *peer, const void *bytes, size_t n);

/** Expects SUBSCRIBE and says SUBSCRIBED; returns its number. */
uint32_t fake_peer_subscribed(struct fake_peer *peer);

/** A header of one frame of so many raw bytes; free(). */
void *fake_peer_header(const char *topic, uint64_t frame_bytes, size_t *ret_n);

/** CREDIT for publishing. */
void fake_peer_grant(struct fake_peer *peer, uint64_t bytes, uint64_t n_routed);

/** Serves one connection as the head of this page says, until the client closes it. Expects that
 *  windows and credit are kept. */
void fake_peer_serve(struct fake_peer *peer);

/** A script that accepts one connection and serves it. */
void fake_peer_serve_script(struct fake_peer *peer, void *userdata);
