/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Message: what was received, or unpacked
 */

#include <ndbus/ndbus.h>
#include <sys/uio.h>
#include "client/finish.h"
#include "client/hold.h"
#include "client/pool.h"
#include "client/shared-header.h"
#include "protocol/list.h"
#include "protocol/prelude.h"

/* Bodies up to this size lie in one piece behind their message. */
#define ND_SMALL_BODY_BYTES_MAX 4096u

/* Pages are made at most so far ahead of the bytes that go into them. */
#define ND_POPULATE_AHEAD_BYTES (UINT64_C(4) << 20)

/* What waits to be handed out by a receiving call, in the order in which it came. */
struct nd_arrival {
        struct nd_list in_bus;
        struct nd_list in_subscription;
        bool is_end; /* the end of a subscription, not a message */
};

/* Where the frames' bytes are. */
enum nd_body_place {
        ND_BODY_TOGETHER, /* behind the message, in its own memory */
        ND_BODY_APART,    /* each frame in a buffer of its own */
        ND_BODY_BORROWED, /* in the caller's bytes */
        ND_BODY_IN_BLOCK, /* in shared memory */
};

struct ndbus_message {
        struct nd_arrival arrival;
        struct nd_buffer *memory; /* holds this struct and everything it points to that is not
                                     counted on its own */
        struct nd_shared_header *shared;
        enum nd_body_place place;
        uint16_t flags;      /* enum nd_flag */
        bool has_left_place; /* ndbus_message_own() gave at least one array memory of its own */
        uint32_t subscription;
        uint64_t source;
        uint64_t sequence;
        uint64_t time_ns;
        uint64_t dropped;
        uint64_t body_bytes;
        void *userdata;
        struct nd_hold *hold;     /* of the block that it is in; or NULL */
        struct nd_finish *finish; /* of a group: what freeing it says; or NULL */
        size_t n_arrays;
        struct ndbus_array *arrays;
        struct nd_buffer **frames; /* [n_arrays] buffer of that frame alone, or NULL */
        uint8_t *body;             /* if the frames are together */
        const uint8_t *meta;
        size_t n_meta;
        const uint8_t *refused_meta; /* [n_refused_meta] what came instead of one */
        size_t n_refused_meta;
        size_t i_fill; /* frame that the last received byte belongs to */
};

/**
 * nd_message_new() - make a message that is to be filled
 * @shared:   its header; a reference is taken
 * @meta:     copied; left out, and kept in mind, if it is no sound msgpack map
 *
 * Return: 0, NDBUS_ENOMEM
 */
int nd_message_new(struct nd_pool *pool,
                   struct nd_shared_header *shared,
                   const struct nd_prelude *prelude,
                   const void *meta,
                   struct ndbus_message **ret);

/* The same with its body in @body, which is borrowed; everything is read-only then. */
int nd_message_new_borrowed(struct nd_pool *pool,
                            struct nd_shared_header *shared,
                            const struct nd_prelude *prelude,
                            const void *meta,
                            const void *body,
                            struct ndbus_message **ret);

/* The same in a block; takes @hold on success. */
int nd_message_new_in_block(struct nd_pool *pool,
                            struct nd_shared_header *shared,
                            const struct nd_prelude *prelude,
                            const void *meta,
                            struct nd_hold *hold,
                            struct ndbus_message **ret);

/**
 * nd_message_fill_iov() - where the body's bytes from @from on go
 *
 * Fills at most @n_iov pieces for at most @n bytes. @from never goes back.
 *
 * Return: the number of pieces; @ret_bytes what they take
 */
size_t nd_message_fill_iov(struct ndbus_message *m,
                           uint64_t from,
                           uint64_t n,
                           struct iovec *iov,
                           size_t n_iov,
                           uint64_t *ret_bytes);

/* Copies bytes [@from, @from + @n) of the body to where they belong. */
void nd_message_fill(struct ndbus_message *m, uint64_t from, const void *data, uint64_t n);

/* What keeps the bytes of an array alive, alone if possible. Borrowed. */
struct nd_buffer *nd_message_keeper(const struct ndbus_message *m, size_t i_array);
