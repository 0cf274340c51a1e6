/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Subscription: a connection's part in a sink: its window, and what it is being sent
 */

#include "daemon/sink.h"

struct nd_connection;

struct nd_subscription {
        RB_ENTRY(nd_subscription) in_connection;
        struct nd_list in_ready; /* nd_outbox.ready: it may have something to send */
        struct nd_list in_sink;  /* nd_sink.members */
        struct nd_connection *connection;
        struct nd_sink *sink;
        uint32_t id;
        struct nd_list old;      /* entries of retained values that go first */
        struct nd_entry *cut;    /* begun while its message arrived, not yet sent whole */
        struct nd_entry *stream; /* begun from the queue, not yet sent whole */
        bool is_cut_next;        /* the two take turns */
        bool is_on_demand;       /* policy latest: a message only when asked for */
        int64_t messages_left;   /* of the window; below 0 when a cut-through completed late */
        int64_t bytes_left;
        uint64_t messages_out; /* begun and not yet granted back */
        uint64_t bytes_out;
        uint64_t charged_bytes;

        /* of a member of a group */
        struct nd_list assigned;   /* entries that it was chosen for, not begun */
        struct nd_list unfinished; /* entries that it was sent whole and has not finished */
        struct nd_entry
                *at_work; /* of a group: the one that does not count in its limits, or NULL */
        uint64_t n_assigned;
        uint64_t n_assigned_bytes;
        uint64_t n_deliveries; /* messages begun: numbers them */
};

/* One packet of a subscription, taken to be sent. Undone if the socket took no byte of it. */
struct nd_piece {
        enum nd_kind kind; /* MESSAGE, CHUNK, GAP, SEGMENT */

        enum nd_piece_origin {
                ND_PIECE_FROM_QUEUE,
                ND_PIECE_FROM_ASSIGNED, /* it was in a group's queue; up to here it stood in one */
                ND_PIECE_FROM_OLD,
                ND_PIECE_FROM_ARRIVING,
                ND_PIECE_CONTINUES, /* the stream or the cut-through under way */
        } origin;
        struct nd_subscription *subscription;
        struct nd_entry *entry;   /* NULL for SEGMENT, and a GAP behind the last entry */
        struct nd_handed *handed; /* SEGMENT; MESSAGE whose body is in a block of it; or NULL */
        uint64_t from;            /* body bytes in this packet */
        uint64_t to;
        uint64_t gap;
        bool is_last; /* the entry ends with this packet */
        bool is_cut;
        bool is_fallback; /* its body is in a block, and goes by the socket all the same */
};

/**
 * nd_subscription_new() - subscribe, with a sink of its own or as a member of a group
 * @ask:  checked; what the daemon's limits lower has been lowered
 *
 * Return: 0; NDBUS_EGROUP, NDBUS_ENO_SPACE, NDBUS_ENOMEM
 */
int nd_subscription_new(struct nd_connection *connection,
                        uint32_t id,
                        const struct nd_subscribe *ask,
                        struct nd_fault *fault);

/**
 * nd_subscription_end() - unsubscribe, by whoever's wish, and free it
 * @fault:     why; NULL: the client asked
 * @sequence:  the request that is answered; 0: none
 *
 * What waits counts as dropped and is told with UNSUBSCRIBED; streams that were begun are RESET.
 */
void nd_subscription_end(struct nd_subscription *subscription,
                         const struct nd_fault *fault,
                         uint64_t sequence);

/* The daemon stops: nothing more is sent. What was begun is RESET and, of a group, goes back to the
 * queue; what a member of a group was sent whole is its own. */
void nd_subscription_stop(struct nd_subscription *subscription);
/* Behind that, for all members of its sink: what waits is dropped and told by GAP, for a group to the
 * first that is asked. Return: how many messages */
uint64_t nd_subscription_give_up(struct nd_subscription *subscription);

/* Frees it without a word: the connection is gone. */
void nd_subscription_free(struct nd_subscription *subscription);

/* More of it may be passed on. */
void nd_entry_advanced(struct nd_entry *entry);
/* Its last byte has come. May end the subscription, which frees the entry. */
void nd_entry_completed(struct nd_entry *entry);
/* It ended before its last byte: it never existed. */
void nd_entry_aborted(struct nd_entry *entry);
/* Memory is short: take it back, wherever it is. */
void nd_entry_taken_back(struct nd_entry *entry);

/* Gives back the window of one message. */
void nd_subscription_return_window(struct nd_subscription *subscription, uint64_t n_bytes);

/* CREDIT. Return: 0, NDBUS_ECREDIT */
int nd_subscription_grant(struct nd_subscription *subscription,
                          uint64_t n_messages,
                          uint64_t n_bytes,
                          struct nd_fault *fault);

/* Takes the next packet, if there is one that the window allows. */
bool nd_subscription_take(struct nd_subscription *subscription, struct nd_piece *ret);
/* Nothing of it was sent. Pieces are undone in the reverse order of taking. */
void nd_piece_undo(struct nd_piece *piece);
/* Its first byte is in the socket. */
void nd_piece_begun(const struct nd_piece *piece);
/* Its last byte is in the socket; the entry may be gone afterwards. */
void nd_entry_sent(struct nd_entry *entry, uint64_t to, bool is_last);
/* Fills the prelude of this packet. */
void nd_piece_prelude(const struct nd_piece *piece, struct nd_prelude *ret);

/* It may have something to send. */
void nd_subscription_wake(struct nd_subscription *subscription);
