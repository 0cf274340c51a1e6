/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Supply: a publisher's segments and the blocks in them
 */

#include "client/shared-header.h"
#include "protocol/fault.h"
#include "protocol/reader.h"
#include "protocol/shm/pool.h"

/* From this size on ndbus_publish() copies a body into a block rather than send it by the socket. */
#define ND_SHM_COPY_BYTES_MIN (UINT64_C(8) << 10)

struct ndbus;

/* What a segment is to the daemon of this connection. */
enum nd_segment_state {
        ND_SEGMENT_UNKNOWN, /* it was not told */
        ND_SEGMENT_ASKED,   /* it has not answered yet */
        ND_SEGMENT_OPEN,    /* messages may be published in it */
};

/* One that is taken, and not published. */
struct nd_supply_block {
        struct nd_shm_segment *segment; /* NULL: none */
        uint64_t place;
};

struct nd_supply {
        struct nd_shm_pool pool;
        struct ndbus *bus;                   /* NULL: it has gone, loans have not */
        struct nd_list loans;                /* struct ndbus_loan */
        struct nd_header_cache descriptions; /* of loans */
        bool is_on;                          /* this connection has shared memory */
        uint32_t last_number;                /* of a segment */
        struct nd_supply_block publishing;   /* it is just being published; or none */
        size_t n_published;                  /* blocks on this connection that are not released */
        uint64_t failed_bytes;               /* no segment for so much could be had */
        uint64_t failed_ns;                  /* then */
        uint64_t trimmed_ns;
        uint64_t heard_ns;      /* what the daemon has to say was looked for */
        uint64_t unheard_bytes; /* published since then */
        uint64_t n_in_blocks;   /* messages published so */
        uint64_t n_fallback;    /* that would have been, but went by the socket */
};

struct nd_supply *nd_supply_new(struct ndbus *bus);

/* The bus goes. Loaned blocks stay until they are given. Accepts NULL. */
void nd_supply_close(struct nd_supply *supply);

/* A connection is ready; it is lost: what was published on it is never touched again. */
void nd_supply_start(struct ndbus *bus);
void nd_supply_lost(struct ndbus *bus);

/* Takes a block if one is to be had, for which a segment may be made and announced. Waits for nothing. What
 * the daemon has said is taken in first, if @read_bytes were published since that was done last. */
bool nd_supply_take(struct ndbus *bus,
                    uint64_t bytes,
                    uint64_t read_bytes,
                    struct nd_supply_block *ret);
void nd_supply_give(struct nd_supply *supply, const struct nd_supply_block *block);

/* Takes in what the daemon has said, if that was not done just now. */
void nd_supply_hear(struct ndbus *bus);

/* One is off the list. */
void nd_supply_loan_ended(struct nd_supply *supply);

/* May it be published from? Waits until the daemon has answered about its segment. */
bool nd_supply_wait_open(struct ndbus *bus,
                         const struct nd_supply_block *block,
                         uint64_t deadline_ns);

/* It is about to be published: it may be released before the call that does it returns. */
void nd_supply_publish(struct nd_supply *supply, const struct nd_supply_block *block);
/* Then: it is the daemon's, with a body of @bytes, until it is released; or the daemon does not have all of its
 * PUBLISH, and never will, and it is the caller's again. */
void nd_supply_published(struct nd_supply *supply,
                         const struct nd_supply_block *block,
                         uint64_t bytes,
                         bool is_so);

static inline bool nd_supply_is_open(const struct nd_supply_block *block)
{
        return block->segment->state == ND_SEGMENT_OPEN && !block->segment->is_retired;
}

/* Has the daemon retired its segment? */
static inline bool nd_supply_is_retired(const struct nd_supply_block *block)
{
        return block->segment->state == ND_SEGMENT_OPEN && block->segment->is_retired;
}

static inline uint8_t *nd_supply_data(const struct nd_supply_block *block)
{
        return block->segment->memory.base + block->place;
}

/* What the daemon says. 0, or a fault that ends the connection. */
int nd_supply_hear_release(struct ndbus *bus,
                           const struct nd_packet *packet,
                           struct nd_fault *fault);
int nd_supply_hear_answer(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault);
void nd_supply_hear_refusal(struct ndbus *bus, uint64_t sequence);
int nd_supply_hear_retired(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault);

/* Gives back segments that have lain idle; cheap when called often. */
void nd_supply_trim(struct ndbus *bus);
