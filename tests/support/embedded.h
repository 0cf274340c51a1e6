/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Embedded daemon: the daemon's server in the test's own process, with clients over socket pairs
 *
 * For targets that need thousands of sessions a second, and to look at the server's own structures
 * between any two steps. Nothing listens and no timer runs but what the server starts on demand;
 * nd_embedded_later() stands in for the tick and for what waits for a moment. The nonces by which clients prove a token are those of
 * PROTOCOL.md's example, so that the proof is known beforehand.
 */

#include "daemon/server.h"
#include "protocol/reader.h"

/** One server for the life of the process. */
struct nd_server *nd_embedded_server(void);

/** What an operator sets. */
struct nd_embedded_setting {
        const char *name; /**< of an option that a reload takes over, or "insecure-anyone" */
        const char *value;
};

/**
 * nd_embedded_set() - a reload with these settings and no others
 *
 * Without a "limit" it is the one that was there at the start. "insecure-anyone" is taken over while
 * nobody is connected.
 */
void nd_embedded_set(const struct nd_embedded_setting *settings, size_t n_settings);

/** Let the loop take in all that there is, n times at most. */
void nd_embedded_run(unsigned n);

/** Let deadlines see a time this far from now. */
void nd_embedded_later(uint64_t ms);

/** A segment for the life of the process, which every client may announce as its own; at i lies the
 * byte 31 * i + 7. */
#define ND_EMBEDDED_SEGMENT_BYTES (UINT64_C(4) << 20)
const struct nd_segment *nd_embedded_segment(void);

/** Fails unless for every sink matched = delivered + dropped + queued, sums of the queues agree with
 * what is in them, every identity is charged what it has, and nobody is in who had to prove a token and
 * did not. */
void nd_embedded_check(void);

/** All clients have gone: everything is as it was at the start. */
void nd_embedded_check_empty(void);

/** One end of a socket pair; the server has the other. */
struct nd_embedded_peer {
        int fd; /**< non-blocking; -1: none */
        uint8_t *buffer;
        size_t n_buffer;
        size_t n_buffer_max;
        bool is_greeted; /**< the answer to hello has been taken */
        bool has_ended;  /**< the server closed it */
        int fds[8];      /**< [n_fds] that came and were not taken */
        size_t n_fds;
};

/** @is_tcp: the server takes it for one who came by TCP: it passes no descriptors, and the kernel says
 * nothing of it. */
void nd_embedded_open(struct nd_embedded_peer *peer, bool is_tcp);
void nd_embedded_close(struct nd_embedded_peer *peer);

/** False: the socket takes no more now. True: all of it was taken, or the server has closed. */
bool nd_embedded_send(struct nd_embedded_peer *peer, const void *bytes, size_t n_bytes);

/** The same in one piece, and a descriptor with its first byte. */
void nd_embedded_send_fd(struct nd_embedded_peer *peer, const void *bytes, size_t n_bytes, int fd);

/** The first descriptor that came; fails if there is none. close() */
int nd_embedded_take_fd(struct nd_embedded_peer *peer);

/**
 * nd_embedded_read() - take whole packets out of what the server sent
 * @n_bytes_max:  read at most so much from the socket
 * @take:         called for each; body is [nd_prelude_inline_bytes()]
 *
 * Fails if what the server sends is not what the protocol allows a daemon to send.
 */
void nd_embedded_read(struct nd_embedded_peer *peer,
                      size_t n_bytes_max,
                      void (*take)(void *userdata,
                                   const struct nd_packet *packet,
                                   const uint8_t *body),
                      void *userdata);
