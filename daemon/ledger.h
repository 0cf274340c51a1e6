/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Ledger: who was handed which segment, and who holds which block
 */

#include "daemon/share.h"
#include "protocol/reader.h"

/* Deliveries of one block to one client that it has not released. */
struct nd_hold {
        RB_ENTRY(nd_hold) in_handed;
        struct nd_block *block;
        uint32_t n;
        uint64_t since_ns;
};

/* A client may hold this part of shm-max, and of shm-own-max. */
#define ND_HOLDER_PART 4u

RB_HEAD(nd_hold_tree, nd_hold);

/* A segment that a client was, or is about to be, handed. */
struct nd_handed {
        RB_ENTRY(nd_handed) in_holder; /* by number */
        RB_ENTRY(nd_handed) in_shares; /* of the same holder, by share */
        struct nd_list in_share;       /* nd_share.handed */
        struct nd_connection *connection;
        struct nd_share *share;
        uint32_t number; /* the client's name for it */

        enum nd_handed_state {
                ND_HANDED_NEW, /* no MESSAGE in it before SEGMENT */
                ND_HANDED_TOLD,
                ND_HANDED_REFUSED, /* the client cannot have it: its messages go by the socket */
                ND_HANDED_GONE,    /* no MESSAGE in it will come */
        } state;
        struct nd_hold_tree holds; /* by place */
};

RB_HEAD(nd_handed_tree, nd_handed);
RB_HEAD(nd_handed_share_tree, nd_handed);

/* What a connection was handed. */
struct nd_holder {
        struct nd_handed_tree handed;
        struct nd_handed_share_tree by_share;
        uint32_t last_number;
        uint64_t n_held; /* deliveries */
        uint64_t held_bytes;
        uint64_t held_own_bytes; /* of them, in segments of the daemon's own */
};

void nd_holder_init(struct nd_holder *holder);

/* Its rights are not known any more, and it may keep what it was handed. */
void nd_holder_leave(struct nd_holder *holder);

/* It may not see every topic any more: what it was handed retires. */
void nd_holder_retire(struct nd_holder *holder);

/* Its connection is gone: all that it holds is released. */
void nd_holder_deinit(struct nd_holder *holder);

/* How a message in a block goes to a client. */
enum nd_way {
        ND_WAY_BLOCK,
        ND_WAY_HAND,     /* in the block, but the segment is to be handed over first */
        ND_WAY_SOCKET,   /* the client has no shared memory */
        ND_WAY_FALLBACK, /* it has, but this one goes by the socket */
};

/* Does the client get bodies in blocks, if nothing comes in between? */
bool nd_ledger_takes_blocks(const struct nd_connection *connection);

/* *@ret_handed: the segment there, with BLOCK and HAND. */
enum nd_way nd_ledger_way(struct nd_connection *connection,
                          struct nd_block *block,
                          struct nd_handed **ret_handed);

/* One more delivery, or one that was undone. false: no memory */
bool nd_ledger_hold(struct nd_handed *handed, struct nd_block *block);
void nd_ledger_unhold(struct nd_handed *handed, struct nd_block *block);

/* RELEASE. Return: 0, NDBUS_EPROTOCOL */
int nd_ledger_release(struct nd_connection *connection,
                      const struct nd_packet *packet,
                      struct nd_fault *fault);

/* It cannot be handed over, or the client cannot map it. */
void nd_handed_refuse(struct nd_handed *handed);
/* SEGMENT_GONE from a client, about a segment that it cannot map. Return: 0, NDBUS_EPROTOCOL */
int nd_ledger_unmappable(struct nd_connection *connection, uint32_t number, struct nd_fault *fault);

/* No MESSAGE in the segment will come: those who have it are told. */
void nd_ledger_segment_gone(struct nd_share *share);

/* When the oldest block was begun to be held; 0: it holds none. */
uint64_t nd_holder_oldest_ns(struct nd_holder *holder);
