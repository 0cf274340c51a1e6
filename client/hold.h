/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Hold: blocks of shared memory that received messages lie in, and giving them back
 */

#include "client/pool.h"
#include "protocol/fault.h"
#include "protocol/list.h"
#include "protocol/prelude.h"

struct ndbus;
struct nd_holder;

/* One delivery in a block. Whoever reads it has a reference to @keeper: nd_buffer_ref(). */
struct nd_hold {
        struct nd_buffer keeper;
        struct nd_list node; /* in the holder, then: released and not yet told */
        struct nd_holder *holder;
        struct nd_mapping *mapping;
        uint64_t place;
        uint64_t bytes;
};

/* All of it is for the bus's thread, within a call. */

/* A segment was announced, its descriptor is taken from the input. 0, or a fault that ends the
 * connection. */
int nd_hold_segment(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault);
int nd_hold_segment_gone(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault);

/**
 * nd_hold_block() - the block that a MESSAGE is in
 * @ret:  one reference; NULL if its segment could not be mapped: the daemon knows
 *
 * Return: 0, or a fault that ends the connection
 */
int nd_hold_block(struct ndbus *bus,
                  const struct nd_prelude *p,
                  struct nd_hold **ret,
                  struct nd_fault *fault);

const uint8_t *nd_hold_body(const struct nd_hold *hold);

/* Blocks that are held, or that the daemon has not been told of yet. */
size_t nd_hold_count(const struct ndbus *bus);

/* Sends RELEASE for what was freed, with what is in the output. */
void nd_hold_tell(struct ndbus *bus);

/* The same if it is time. */
void nd_hold_collect(struct ndbus *bus);

/* A call begins, ends; so does a sleep, the other way round. Outside of calls, and during sleeps, freeing
 * sends by itself. */
void nd_hold_enter(struct ndbus *bus);
void nd_hold_leave(struct ndbus *bus, bool is_asleep);

/* The bus leaves its socket, within a call. If blocks are held it stays open for their RELEASEs, and the
 * bus no longer has it. @is_over: the other end has closed it. True: what waits in the output stays
 * with the socket, and is sent. */
bool nd_hold_part(struct ndbus *bus, bool is_over);
