/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Message: immutable once routed, shared by every queue that holds it
 */

#include <sys/uio.h>
#include "daemon/arena.h"
#include "daemon/memory.h"
#include "daemon/slab.h"
#include "protocol/list.h"
#include "protocol/prelude.h"

struct nd_block;
struct nd_pair;
struct nd_publisher;
struct nd_topic;

/* A message that takes no more, meta and body included, is of this size, from a slab. */
#define ND_MESSAGE_SMALL_BYTES 512u

/* Where messages live and what they cost. */
struct nd_store {
        struct nd_arena arena;
        struct nd_memory memory;
        struct nd_slab small_messages; /* [ND_MESSAGE_SMALL_BYTES] each */
        struct nd_slab entries;        /* struct nd_entry, queue.c */
        struct nd_slab shm_blocks;     /* struct nd_block */
        struct nd_slab shm_holds;      /* struct nd_hold */
        uint64_t n_messages;
        uint64_t messages_bytes; /* of memory.used_bytes: charged for messages */
};

/* Return: 0, -ENOMEM */
int nd_store_init(struct nd_store *store, uint64_t memory_max);
/* All messages must be gone. */
void nd_store_deinit(struct nd_store *store);

/* Header bytes as they came, shared by all messages of a steady stream. One thread: plain count. */
struct nd_header_bytes {
        uint32_t n_refs;
        uint32_t n;
        uint8_t bytes[];
};

struct nd_header_bytes *nd_header_bytes_new(const void *data, uint32_t n);
struct nd_header_bytes *nd_header_bytes_ref(struct nd_header_bytes *header);
struct nd_header_bytes *nd_header_bytes_unref(struct nd_header_bytes *header);

struct nd_message {
        struct nd_store *store;
        uint32_t n_refs; /* the loop's thread only */
        uint32_t n_pins; /* block queues and the retained table: memory shortage does not take it */
        uint32_t n_over; /* block queues that hold it beyond their limits */
        bool is_complete; /* the last byte is here: published */
        bool is_retained; /* published with retain */
        bool is_charged;
        bool is_small; /* from the slab */
        uint32_t meta_bytes;
        uint64_t body_bytes;
        uint64_t received_bytes;  /* of the body */
        uint64_t available_bytes; /* of the body, in complete chunks: may be passed on */
        uint64_t cost_bytes;      /* what it takes of memory and counts for identities */
        uint64_t charged_bytes; /* of it; a body in the daemon's own segment is charged with that */
        uint64_t own_bytes;     /* of it, without its places in queues */
        uint64_t source;
        uint64_t sequence;
        uint64_t time_ns;
        struct nd_topic *topic;         /* reference */
        struct nd_header_bytes *header; /* reference */
        struct nd_publisher *publisher; /* who is owed credit for it, or still sends it; or NULL */
        struct nd_list in_publisher;    /* nd_publisher.backlog or .held */
        uint64_t number;                /* of its PUBLISH */
        uint64_t credit_bytes;          /* that the publisher is owed */
        struct nd_pair *pair;           /* until it is routed; or NULL */
        bool is_announced;              /* its receivers were settled before its last byte */
        bool is_waiting;                /* for memory: in the backlog */
        bool is_over;                   /* counted in nd_publisher.n_over */
        bool is_clearing;               /* nothing in it: clears the topic's retained value */
        struct nd_list entries;         /* nd_entry.in_message: every queue that holds it */
        struct nd_block *block;         /* wanted: its body lies there; or NULL */
        struct nd_message *copy; /* reference: its body, moved out of shared memory; or NULL */
        size_t n_blocks;
        size_t n_blocks_freed; /* from the start: nobody needs them any more */
        uint8_t **blocks;      /* [n_blocks], NULL where nothing has arrived yet */
        uint8_t *meta;
        uint8_t *
                tail; /* what does not fill a block; of a body in a block of shared memory all of it,
                        * NULL until nd_message_reach() */
};

/* What a message of these sizes is charged, without its header and its places in queues. */
uint64_t nd_message_cost(uint64_t meta_bytes, uint64_t body_bytes);

/* It will have @n_bytes of places in queues, which are charged with it. Before it is charged. */
void nd_message_add_cost(struct nd_message *message, uint64_t n_bytes);

/**
 * nd_message_new() - an empty message, to be filled by nd_message_space() and _received()
 * @header: a reference is taken
 * @topic:  a reference is taken
 * @meta:   [prelude->meta_bytes], copied
 * @block:  of shared memory, where its body is already, or will be received if it is the daemon's own;
 *          or NULL
 *
 * Return: NULL if there is no memory
 */
struct nd_message *nd_message_new(struct nd_store *store,
                                  const struct nd_prelude *prelude,
                                  struct nd_header_bytes *header,
                                  struct nd_topic *topic,
                                  const uint8_t *meta,
                                  struct nd_block *block);
struct nd_message *nd_message_ref(struct nd_message *message);
struct nd_message *nd_message_unref(struct nd_message *message);

/* Empty, to take a copy of the body of a message that lies in shared memory; charged with that one.
 * NULL: no memory */
struct nd_message *nd_message_new_copy(const struct nd_message *message);

/* Its body is in @copy from now on, which is complete and given away. */
void nd_message_move(struct nd_message *message, struct nd_message *copy);

/* Makes the body of a message readable. false: its segment cannot be mapped */
bool nd_message_reach(struct nd_message *message);

/* Charges the whole message; once. */
bool nd_message_charge(struct nd_message *message);

/**
 * nd_message_space() - where the next body bytes belong
 * @n_bytes:  at most this many
 * @iov:      [@n_iov] filled
 * @ret_n:    how many entries were filled
 *
 * Return: bytes of space in @iov; 0 if there is no block to be had
 */
size_t nd_message_space(struct nd_message *message,
                        uint64_t n_bytes,
                        struct iovec *iov,
                        size_t n_iov,
                        size_t *ret_n);

/* The next @n bytes were put there. */
void nd_message_received(struct nd_message *message, size_t n_bytes);

/**
 * nd_message_body() - body bytes for sending
 * @from, @to:  range of the body, received and not freed
 *
 * Return: entries of @iov that were filled; less than the range needs if @n_iov is too small
 */
size_t nd_message_body(const struct nd_message *message,
                       uint64_t from,
                       uint64_t to,
                       struct iovec *iov,
                       size_t n_iov);

/* Frees the blocks before @offset: every receiver is past them. */
void nd_message_free_before(struct nd_message *message, uint64_t offset);
