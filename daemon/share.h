/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Share: a segment that a publisher has announced, and the blocks of it that are published
 *
 * A block is published from the PUBLISH that names it until its publisher is told that it is
 * released. Messages want it (queues, retained values) and clients hold it (nd_hold, ledger.h);
 * when neither is left it is released. A segment of the daemon's own is like a publisher's (own.h).
 */

#include <bsd/sys/tree.h>
#include "daemon/rescue.h"
#include "protocol/list.h"
#include "protocol/prelude.h"
#include "protocol/shm/segment.h"

struct nd_connection;
struct nd_server;
struct nd_share;
struct nd_shm_segment;

struct nd_block {
        RB_ENTRY(nd_block) in_share;
        struct nd_list in_released; /* nd_lender.released: its publisher is to be told */
        struct nd_share *share;
        struct nd_message *message; /* whose body it is; or NULL */
        uint64_t place;
        uint64_t bytes;
        uint32_t n_wants; /* messages, and whoever is about to make one */
        uint32_t n_holds; /* clients */
};

RB_HEAD(nd_block_tree, nd_block);

struct nd_share {
        RB_ENTRY(nd_share) in_lender;
        struct nd_list in_server; /* nd_server.shares */
        struct nd_server *server;
        struct nd_connection *owner; /* NULL: it is gone, and the number free */
        struct nd_shm_segment *own; /* NULL unless it is the daemon's own; then there is no owner */
        uint64_t filled_bytes;      /* own: so many of its bytes have memory */
        uint32_t number;            /* the owner's */
        struct nd_segment memory;   /* mapped only if bytes of it had to be sent by a socket */
        struct nd_block_tree blocks; /* by place */
        size_t n_blocks;
        size_t n_wanted; /* of them, wanted by messages */
        uint64_t wanted_bytes;
        uint64_t
                charged_bytes; /* owner gone: what is charged beyond the messages in it; own: all */
        bool is_busy;          /* it does not go now, whatever is left of it */
        bool was_left;   /* a client that was handed it is gone, and may have kept its mapping */
        bool is_retired; /* one that may have it may not see what comes: it is handed to nobody */
        struct nd_rescue rescue; /* owner gone */
        struct nd_list handed;   /* nd_handed.in_share */
};

RB_HEAD(nd_share_tree, nd_share);

/* What a connection publishes in. */
struct nd_lender {
        struct nd_share_tree shares; /* by number */
        size_t n_shares;
        uint64_t bytes;          /* of all of them */
        struct nd_list released; /* nd_block.in_released */
};

void nd_lender_init(struct nd_lender *lender);

/* Its connection is gone, or publishes no more: what nobody needs goes, the rest when it can. */
void nd_lender_deinit(struct nd_lender *lender);

/* SEGMENT from a client. Takes over @fd; -1: none came. The answer is queued.
 * Return: 0, or a negative enum ndbus_err that closes the connection */
int nd_share_announce(struct nd_connection *connection,
                      const struct nd_prelude *prelude,
                      int fd,
                      struct nd_fault *fault);

/* SEGMENT_GONE from the owner. Return: 0, NDBUS_EPROTOCOL */
int nd_share_withdraw(struct nd_connection *connection, uint32_t number, struct nd_fault *fault);

/**
 * nd_lender_block() - the block that a PUBLISH names, wanted once
 *
 * Return: 0; NDBUS_EPROTOCOL if it is no such block; NDBUS_ENO_SPACE if there is no memory to note
 *         it: then it is not published
 */
int nd_lender_block(struct nd_connection *connection,
                    const struct nd_prelude *prelude,
                    struct nd_block **ret,
                    struct nd_fault *fault);

/* A segment of the daemon's own, charged whole. NULL: no memory */
struct nd_share *nd_share_new_own(struct nd_server *server, struct nd_shm_segment *segment);

/* It is given back; no block is in it. */
void nd_share_end_own(struct nd_share *share);

/* A block of it, wanted once. NULL: there is no memory to note it */
struct nd_block *
nd_share_add(struct nd_share *share, uint64_t place, uint64_t bytes, struct nd_fault *fault);

/* Tells it of blocks that are released, as many as there is room for. */
void nd_lender_write_released(struct nd_connection *connection);

/* Tells it of one that was never noted. */
void nd_lender_release(struct nd_connection *connection, uint32_t number, uint64_t place);

struct nd_block *nd_block_want(struct nd_block *block);
/* Accepts NULL, and returns it. */
struct nd_block *nd_block_unwant(struct nd_block *block);
void nd_block_hold(struct nd_block *block);
void nd_block_unhold(struct nd_block *block);

/* Accepts NULL. */
bool nd_block_is_own(const struct nd_block *block);

/* Its bytes, for sending; NULL: the segment cannot be mapped. */
uint8_t *nd_block_bytes(struct nd_block *block);

/* Somebody has it who may not see what is published from now on: no more blocks are taken from it, and its
 * owner is told so. Nothing new comes into one without an owner. */
void nd_share_retire(struct nd_share *share);

/* The same of all that were left: rules have changed, and who has them cannot be asked. */
void nd_shares_retire_left(struct nd_server *server);

/* Nothing refers to it any more, if that is so: it is freed. */
void nd_share_settle(struct nd_share *share);

RB_PROTOTYPE(nd_block_tree, nd_block, in_share, nd_block_compare)
RB_PROTOTYPE(nd_share_tree, nd_share, in_lender, nd_share_compare)
