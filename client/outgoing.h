/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Outgoing: one message on its way to the socket
 */

#include "client/body.h"
#include "client/bus.h"

struct nd_outgoing {
        /* what is sent; set by the caller, borrowed */
        const void *header;
        size_t n_header;
        const void *meta;
        size_t n_meta;
        struct nd_body *body; /* empty if it is in a block: */
        uint16_t flags;
        uint32_t segment; /* 0: it is not */
        uint64_t place;
        uint64_t block_bytes;
        bool is_loan;
        bool is_slow; /* it took longer to copy than a system call takes */

        /* how far it is */
        uint64_t number;     /* n-th PUBLISH of the connection */
        uint64_t generation; /* of the connection */
        uint64_t time_ns;
        uint32_t stream;   /* 0: the body is in the PUBLISH packet */
        bool has_begun;    /* leave was given: number and credit are taken */
        bool is_done;      /* it counts as sent: nd_outgoing_finish() */
        bool is_in_packet; /* a packet is begun: */
        bool is_lead_left; /*   the bytes before its body are not all sent */
        size_t lead_sent;
        uint64_t position;     /* of the body: sent */
        uint64_t packet_end;   /* of the body: where the packet at hand ends */
        uint64_t packet_bytes; /* of the body, in a CHUNK at hand */
        uint64_t credit_taken; /* when it began */
        uint64_t leaves_at;    /* nd_output.n_left when it has left; 0: it was not put */
};

enum nd_outgoing_result {
        ND_OUTGOING_DONE,
        ND_OUTGOING_NEEDS_SOCKET, /* it is full */
        ND_OUTGOING_NEEDS_CREDIT,
        ND_OUTGOING_LOST, /* the connection */
};

/* Bytes of a message sent whole in one packet. */
static inline uint64_t nd_outgoing_bytes(const struct nd_outgoing *out)
{
        return ND_PRELUDE_BYTES + out->n_header + out->n_meta + out->body->bytes;
}

/* Has a packet been sent in part? Then nothing but its rest may follow. */
static inline bool nd_outgoing_is_torn(const struct nd_outgoing *out)
{
        return out->is_in_packet && !(out->is_lead_left && out->lead_sent == 0);
}

/* Is there leave to begin? */
bool nd_outgoing_may_begin(const struct ndbus *bus, const struct nd_outgoing *out);

/* Takes number, stream and credit. Leave must have been given. */
void nd_outgoing_begin(struct ndbus *bus, struct nd_outgoing *out);

/* The connection on which it was begun is gone. */
static inline bool nd_outgoing_is_lost(const struct ndbus *bus, const struct nd_outgoing *out)
{
        return bus->connection.generation != out->generation ||
               bus->connection.state != ND_STATE_READY;
}

/* Begins a message and puts all of it into the output, or into the outlet, whence it has left: for small ones
 * that are sent whole. 0 or NDBUS_ENOMEM, then it has not begun. */
int nd_outgoing_put(struct ndbus *bus, struct nd_outgoing *out);

/* It counts as sent: from now on it is either confirmed or told to be unconfirmed. */
void nd_outgoing_finish(struct ndbus *bus, struct nd_outgoing *out);

/* Can the other end have all of it? */
bool nd_outgoing_has_left(const struct ndbus *bus, const struct nd_outgoing *out);

/* The connection is lost: one that was put into the output is finished only if all of it has left, or
 * @has_output: still will. */
void nd_outgoing_lost(struct ndbus *bus, struct nd_outgoing *out, bool has_output);

/* Sends as much as goes without waiting; @ret_moved: at least one byte left. */
enum nd_outgoing_result
nd_outgoing_step(struct ndbus *bus, struct nd_outgoing *out, bool *ret_moved);

/**
 * nd_outgoing_give_up() - end a message that cannot go on
 *
 * What was begun of a packet is kept and sent later. If that is the end of the message, it counts
 * as sent; else a RESET follows.
 *
 * Return: 1 it is complete; 0 it was taken back; NDBUS_ENOMEM the connection had to be closed
 */
int nd_outgoing_give_up(struct ndbus *bus, struct nd_outgoing *out);
