/* SPDX-License-Identifier: MIT */

/*
 * A publisher's blocks
 *
 * A block is free, loaned (to the application, or to a publishing call that copies into it), or
 * published; from there only the daemon's RELEASE makes it free again, on the connection on which it
 * was published. When that is lost nobody will ever say that its readers are done. So the segment
 * retires: no block is taken from it any more, and it goes with the last loan in it. Readers keep
 * their mappings. So do those of segments in which all is released, and the next daemon does not know who
 * they are and what they may see: all that were ever published in retire.
 *
 * The daemon retires one too, when somebody who has it may no longer see every topic. What is published
 * in it is released as ever, and it is given back with its last block. What is loaned in it goes by the
 * socket. Since what is written until that is heard is seen, the socket is read before a block is taken,
 * but not a hundred times before a hundred small ones.
 *
 * A segment is announced when a block is first taken from it, again on each new connection. The daemon
 * answers at once, so a message that may wait for its turn waits for that; one that may not goes by the
 * socket, as it does when there is no block. Nothing ever waits for a RELEASE.
 */

#include "client/supply.h"
#include <unistd.h>
#include "client/bus.h"
#include "client/outgoing.h"
#include "protocol/shm/release.h"

/* A segment in which nothing has been for so long is given back. */
#define IDLE_NS (10 * ND_NS_PER_S)

/* When there was no memory for a segment, it is not tried again for a while: looking costs more than
 * sending by the socket. */
#define RETRY_NS ND_NS_PER_S

/* What the daemon says is heard before a block is taken, so often. */
#define HEAR_NS (10 * ND_NS_PER_MS)

/* Notes of taken blocks: 0, or this. */
#define NOTE_PUBLISHED 1u

struct nd_supply *nd_supply_new(struct ndbus *bus)
{
        struct nd_supply *supply = calloc(1, sizeof(*supply));

        if (!supply)
                return NULL;
        supply->bus = bus;
        nd_list_init(&supply->loans);
        nd_shm_pool_init(&supply->pool, 0);
        return supply;
}

static void supply_free(struct nd_supply *supply)
{
        nd_header_cache_deinit(&supply->descriptions);
        nd_shm_pool_deinit(&supply->pool);
        free(supply);
}

/* Its descriptor is closed in a child from now on, or no longer. False: there is no place. */
static bool segment_register(struct ndbus *bus, struct nd_shm_segment *segment)
{
        for (size_t i = ND_FD_SEGMENTS; i < ND_FORK_FDS; ++i) {
                if (bus->guard.fds[i] >= 0)
                        continue;
                bus->guard.fds[i] = segment->memory.fd;
                segment->i_fd = i;
                return true;
        }
        return false;
}

static void segment_drop(struct nd_supply *supply, struct nd_shm_segment *segment)
{
        if (supply->bus)
                supply->bus->guard.fds[segment->i_fd] = -1;
        nd_shm_pool_drop(&supply->pool, segment);
}

/* Nothing is taken from it. False: the daemon could not be told. */
static bool segment_give_back(struct nd_supply *supply, struct nd_shm_segment *segment)
{
        const struct nd_prelude gone = {
                .kind = ND_KIND_SEGMENT_GONE,
                .segment = segment->number,
        };

        if (segment->state == ND_SEGMENT_OPEN && supply->is_on &&
            nd_output_packet(&supply->bus->output, &gone, NULL, 0, NULL, 0))
                return false;
        segment_drop(supply, segment);
        return true;
}

/* A retired segment goes with its last block; what was published in it on a lost connection is none. One
 * that is being published in is needed until that is over. */
static void segment_settle(struct nd_supply *supply, struct nd_shm_segment *segment)
{
        size_t n_used = segment->blocks.n_used;

        if (segment->state == ND_SEGMENT_UNKNOWN)
                n_used -= segment->n_published;
        if (segment->is_retired && segment->state != ND_SEGMENT_ASKED && n_used == 0 &&
            segment != supply->publishing.segment)
                segment_give_back(supply, segment);
}

void nd_supply_close(struct nd_supply *supply)
{
        bool is_child;

        if (!supply)
                return;
        is_child = supply->bus->guard.is_child;
        nd_list_for_each_safe (i, &supply->pool.segments) {
                struct nd_shm_segment *segment = nd_list_entry(i, struct nd_shm_segment, node);

                if (is_child) /* neither descriptor nor mapping are here */
                        segment->memory = (struct nd_segment)ND_SEGMENT_NULL;
                nd_segment_close_fd(&segment->memory);
                supply->bus->guard.fds[segment->i_fd] = -1;
        }
        supply->bus = NULL;
        supply->is_on = false;
        if (nd_list_is_empty(&supply->loans))
                supply_free(supply);
}

void nd_supply_start(struct ndbus *bus)
{
        const struct nd_welcome *limits = &bus->connection.limits;
        struct nd_supply *supply = bus->supply;
        uint64_t bytes_max = limits->shm_bytes_max;

        if (bus->options.shm_max > 0)
                bytes_max = nd_min_u64(bytes_max, bus->options.shm_max);
        supply->is_on = bus->connection.features & ND_FEATURE_SHM;
        supply->pool.bytes_max = bytes_max;
        supply->failed_bytes = 0;
}

void nd_supply_lost(struct ndbus *bus)
{
        struct nd_supply *supply = bus->supply;

        supply->is_on = false;
        supply->n_published = 0;
        nd_list_for_each_safe (i, &supply->pool.segments) {
                struct nd_shm_segment *segment = nd_list_entry(i, struct nd_shm_segment, node);

                segment->state = ND_SEGMENT_UNKNOWN;
                if (segment->was_published)
                        segment->is_retired = true;
                segment_settle(supply, segment);
        }
}

/* Has it announced, if it is not. False: that has to wait. */
static bool segment_announce(struct ndbus *bus, struct nd_shm_segment *segment)
{
        uint64_t sequence = bus->connection.n_requests + 1;
        const struct nd_prelude p = {
                .kind = ND_KIND_SEGMENT,
                .flags = ND_FLAG_FD,
                .place = segment->memory.bytes,
                .sequence = sequence,
                .segment = bus->supply->last_number + 1,
        };

        if (segment->state != ND_SEGMENT_UNKNOWN)
                return true;
        if (!nd_output_packet_with_fd(&bus->output, &p, segment->memory.fd))
                return false;
        bus->connection.n_requests = sequence;
        segment->number = ++bus->supply->last_number;
        segment->sequence = sequence;
        segment->state = ND_SEGMENT_ASKED;
        return true;
}

static bool supply_grow(struct ndbus *bus, uint64_t bytes)
{
        struct nd_supply *supply = bus->supply;
        uint64_t now = nd_clock_coarse_ns();
        struct nd_shm_segment *segment;

        if (supply->failed_bytes > 0 && bytes >= supply->failed_bytes &&
            now < supply->failed_ns + RETRY_NS)
                return false;
        if (nd_shm_pool_grow(&supply->pool, bytes, now, &segment, NULL)) {
                supply->failed_bytes = bytes;
                supply->failed_ns = now;
                return false;
        }
        supply->failed_bytes = 0;
        if (!segment_register(bus, segment)) {
                nd_shm_pool_drop(&supply->pool, segment);
                return false;
        }
        return true;
}

/* If it is some time, or @read_bytes, since that was done last. */
static void supply_hear(struct ndbus *bus, uint64_t read_bytes)
{
        struct nd_supply *supply = bus->supply;
        uint64_t now = nd_clock_coarse_ns();

        if (!supply->is_on || (now - supply->heard_ns < HEAR_NS &&
                               (supply->unheard_bytes == 0 || supply->unheard_bytes < read_bytes)))
                return;
        supply->heard_ns = now;
        supply->unheard_bytes = 0;
        while (nd_input_read(bus) && supply->is_on && !bus->input.is_dry)
                continue;
}

void nd_supply_hear(struct ndbus *bus)
{
        supply_hear(bus, UINT64_MAX);
}

bool nd_supply_take(struct ndbus *bus,
                    uint64_t bytes,
                    uint64_t read_bytes,
                    struct nd_supply_block *ret)
{
        struct nd_supply *supply = bus->supply;
        struct nd_supply_block block;
        bool is_taken;

        supply_hear(bus, read_bytes);
        if (!supply->is_on)
                return false;
        is_taken = nd_shm_pool_take(&supply->pool, bytes, &block.segment, &block.place);
        if (!is_taken) {
                nd_input_read(bus); /* perhaps something is released */
                is_taken = supply->is_on &&
                           nd_shm_pool_take(&supply->pool, bytes, &block.segment, &block.place);
        }
        if (!is_taken && supply->is_on && supply_grow(bus, bytes))
                is_taken = nd_shm_pool_take(&supply->pool, bytes, &block.segment, &block.place);
        if (!is_taken)
                return false;
        if (!segment_announce(bus, block.segment)) {
                nd_supply_give(supply, &block);
                return false;
        }
        *ret = block;
        return true;
}

void nd_supply_give(struct nd_supply *supply, const struct nd_supply_block *block)
{
        struct nd_shm_segment *segment = block->segment;

        nd_shm_pool_give(segment, block->place, nd_clock_coarse_ns());
        segment_settle(supply, segment);
}

void nd_supply_loan_ended(struct nd_supply *supply)
{
        if (!supply->bus && nd_list_is_empty(&supply->loans))
                supply_free(supply);
}

bool nd_supply_wait_open(struct ndbus *bus,
                         const struct nd_supply_block *block,
                         uint64_t deadline_ns)
{
        struct nd_shm_segment *segment = block->segment;

        if (!bus->supply->is_on || segment->is_retired || !segment_announce(bus, segment))
                return false;
        while (segment->state == ND_SEGMENT_ASKED && nd_bus_is_ready(bus))
                if (nd_bus_turn(bus, deadline_ns, false) <= 0)
                        break;
        return nd_supply_is_open(block) && nd_bus_is_ready(bus);
}

void nd_supply_publish(struct nd_supply *supply, const struct nd_supply_block *block)
{
        *nd_blocks_note(&block->segment->blocks, block->place) = NOTE_PUBLISHED;
        ++block->segment->n_published;
        ++supply->n_published;
        block->segment->was_published = true;
        supply->publishing = *block;
}

void nd_supply_published(struct nd_supply *supply,
                         const struct nd_supply_block *block,
                         uint64_t bytes,
                         bool is_so)
{
        struct nd_shm_segment *segment = block->segment;

        supply->publishing = (struct nd_supply_block){0};
        if (is_so) {
                ++supply->n_in_blocks;
                supply->unheard_bytes += bytes;
                segment_settle(supply, segment);
        } else {
                *nd_blocks_note(&segment->blocks, block->place) = 0;
                --segment->n_published;
                if (segment->state == ND_SEGMENT_OPEN)
                        --supply->n_published;
        }
}

/* Is it published, and may be released? While it is being sent, not before the daemon can have all of its
 * PUBLISH. */
static bool supply_is_out(const struct ndbus *bus, struct nd_shm_segment *segment, uint64_t place)
{
        const struct nd_supply_block *publishing = &bus->supply->publishing;
        const uint32_t *note;

        if (!segment || segment->state != ND_SEGMENT_OPEN)
                return false;
        if (segment == publishing->segment && place == publishing->place &&
            !(bus->outgoing && nd_outgoing_has_left(bus, bus->outgoing)))
                return false;
        note = nd_blocks_note(&segment->blocks, place);
        return note && *note == NOTE_PUBLISHED;
}

int nd_supply_hear_release(struct ndbus *bus,
                           const struct nd_packet *packet,
                           struct nd_fault *fault)
{
        struct nd_release_reader reader = {packet->body, packet->prelude.body_bytes, 0, 0};
        struct nd_supply *supply = bus->supply;
        uint64_t now = nd_clock_coarse_ns(), place;
        struct nd_shm_segment *segment = NULL;
        uint32_t number;
        int r;

        while ((r = nd_release_next(&reader, &number, &place, fault)) == 1) {
                if (!segment || segment->number != number)
                        segment = nd_shm_pool_find(&supply->pool, number);
                if (!supply_is_out(bus, segment, place))
                        return nd_fault_set(fault, NDBUS_EPROTOCOL, "RELEASE",
                                            "of segment %u, place %llu, which is not published",
                                            number, (unsigned long long)place);
                --segment->n_published;
                --supply->n_published;
                nd_shm_pool_give(segment, place, now);
                if (segment->is_retired)
                        segment_settle(supply, nd_steal(segment));
        }
        return r;
}

int nd_supply_hear_answer(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        struct nd_shm_segment *segment = nd_shm_pool_find(&bus->supply->pool, p->segment);

        if (!segment || segment->state != ND_SEGMENT_ASKED || segment->sequence != p->sequence)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "SEGMENT",
                                    "answers about segment %u, which was not asked", p->segment);
        segment->state = ND_SEGMENT_OPEN;
        segment_settle(bus->supply, segment);
        return 0;
}

int nd_supply_hear_retired(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        struct nd_supply *supply = bus->supply;
        struct nd_shm_segment *segment = nd_shm_pool_find(&supply->pool, p->segment);

        if (p->segment > supply->last_number)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u was not announced",
                                    p->segment);
        if (!segment) /* it was given back a moment ago */
                return 0;
        segment->is_retired = true;
        segment_settle(supply, segment);
        return 0;
}

void nd_supply_hear_refusal(struct ndbus *bus, uint64_t sequence)
{
        struct nd_supply *supply = bus->supply;

        nd_list_for_each_safe (i, &supply->pool.segments) {
                struct nd_shm_segment *segment = nd_list_entry(i, struct nd_shm_segment, node);

                if (segment->state != ND_SEGMENT_ASKED || segment->sequence != sequence)
                        continue;
                supply->failed_bytes = 1; /* no other one for a while either */
                supply->failed_ns = nd_clock_coarse_ns();
                segment->state = ND_SEGMENT_UNKNOWN;
                segment->is_retired = true;
                segment_settle(supply, segment);
        }
}

void nd_supply_trim(struct ndbus *bus)
{
        struct nd_supply *supply = bus->supply;
        uint64_t now = nd_clock_coarse_ns();
        struct nd_shm_segment *segment;

        if (now - supply->trimmed_ns < IDLE_NS / 10)
                return;
        supply->trimmed_ns = now;
        while ((segment = nd_shm_pool_idle(&supply->pool, now > IDLE_NS ? now - IDLE_NS : 0))) {
                if (segment->state == ND_SEGMENT_ASKED)
                        return;
                if (!segment_give_back(supply, segment))
                        return;
        }
}
