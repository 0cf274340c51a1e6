/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Outbox: what a connection is being sent
 */

#include "daemon/subscription.h"

struct nd_outbox {
        struct nd_connection *connection;
        uint8_t *control; /* whole control packets, [n_control_max], sent up to i_control */
        size_t n_control;
        size_t i_control;
        size_t n_control_max;
        int fd;               /* that goes with one of them; -1: there is none */
        size_t fd_at;         /* the packet's first byte in control */
        struct nd_list ready; /* nd_subscription.in_ready, in turn */
        bool is_blocked; /* the socket took less than it was given: wait until it is writable */
        uint64_t last_move_ns; /* when the socket last took a byte */
        uint32_t last_stream;
        uint64_t n_messages;
        uint64_t n_bytes;

        struct nd_half { /* a packet of which the socket took a part */
                bool is_active;
                bool has_header;
                bool is_last;
                struct nd_entry *entry; /* NULL for a GAP */
                uint64_t from;
                uint64_t to;
                uint64_t sent_bytes; /* of the packet */
                uint64_t total_bytes;
                uint8_t prelude[ND_PRELUDE_BYTES];
        } half;
};

void nd_outbox_init(struct nd_outbox *outbox, struct nd_connection *connection);
/* Frees what it holds; subscriptions must have been freed before. */
void nd_outbox_deinit(struct nd_outbox *outbox);

/**
 * nd_outbox_control() - queue one control packet
 * @prelude:  header_bytes and body_bytes are set here
 * @header:   or NULL
 * @body:     [@n_body] or NULL
 *
 * Never fails for want of room: whoever answers a peer first asks nd_outbox_is_full(). Without
 * memory the connection is marked for closing.
 */
void nd_outbox_control(struct nd_outbox *outbox,
                       struct nd_prelude *prelude,
                       const struct nd_control_bytes *header,
                       const void *body,
                       size_t n_body);

/* The same with a descriptor, which stays the caller's: open until this is sent or the outbox goes. One at a
 * time; if it cannot be sent, or is -1, the packet goes without FD. */
void nd_outbox_control_with_fd(struct nd_outbox *outbox, struct nd_prelude *prelude, int fd);

/* Bytes that are no packet: the hello. */
void nd_outbox_bytes(struct nd_outbox *outbox, const void *data, size_t n_bytes);

/* Takes back the @n_bytes queued last, of which nothing can have been sent yet. */
void nd_outbox_uncontrol(struct nd_outbox *outbox, size_t n_bytes);

/* The peer does not read its answers: read nothing more from it until it does. */
bool nd_outbox_is_full(const struct nd_outbox *outbox);

bool nd_outbox_has_output(const struct nd_outbox *outbox);

/* A subscription ends: its half-sent packet still goes, and the entry with it. */
void nd_outbox_orphan(struct nd_outbox *outbox, const struct nd_subscription *subscription);

uint32_t nd_outbox_next_stream(struct nd_outbox *outbox);

/* Writes until the socket is full, there is nothing more, or it was this connection's turn long
 * enough. Marks the connection for closing if the peer is gone. */
void nd_outbox_write(struct nd_outbox *outbox);
