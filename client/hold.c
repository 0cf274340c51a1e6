/* SPDX-License-Identifier: MIT */

/*
 * Holding blocks
 *
 * A message in a block lies in memory that its publisher uses again once the daemon has heard that
 * nobody reads it. So whoever frees the last reference to it, a message or an export, on any thread,
 * must be heard, and soon: the publisher may be waiting while this program does something else for an
 * hour. And nothing but that may release it: a connection that is closed releases all that it holds.
 *
 * Hence a holder, one for each connection that maps segments, which lives as long as the last block
 * of it. It knows whether somebody sends on the connection: the bus does within its calls, but for its
 * sleeps. Who frees a block queues it, and sends what is queued unless somebody does already; who
 * sends looks once more before it says that it no longer does, so nothing is left behind.
 *
 * In a flow of messages each RELEASE would be a system call, and wake the daemon. As long as
 * messages wait in the bus to be received, whose blocks are held in any case, releases gather.
 *
 * A bus that closes or replaces a connection of which blocks are held leaves the socket to the
 * holder, behind a GOODBYE, which ends all deliveries. Nothing is read from it any more; what the
 * daemon had sent and nobody took is released when it is closed.
 *
 * In a forked child the mappings can be read, and freeing tells nobody: it is the parent's.
 */

#include "client/hold.h"
#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>
#include "client/bus.h"
#include "client/outgoing.h"
#include "protocol/shm/release.h"
#include "protocol/shm/segment.h"

/* When so many blocks are to be released they are, however many messages wait; or so many bytes, because
 * as long as their publisher has not got them back it makes more. */
#define GATHER_MAX       64u
#define GATHER_BYTES_MAX ((uint64_t)32 << 20)

/* In one packet: each takes at most 16 bytes of its body. */
#define RELEASE_N_MAX 256u

/* More segments than any daemon hands out in earnest. */
#define MAPPINGS_MAX 65536u

struct nd_mapping {
        struct nd_list node; /* in the holder; last used first */
        atomic_size_t n_refs;
        uint32_t number;
        struct nd_segment segment; /* not mapped: it could not be */
};

struct nd_holder {
        struct nd_fork_guard guard; /* fds[0]: the socket, once the bus has left it */
        atomic_size_t n_refs;       /* the bus's, and one for each hold */

        struct nd_fork_lock lock;
        pthread_cond_t is_free;  /* whoever was sending no longer does */
        bool is_sending;         /* somebody is, and alone may touch what is below */
        bool is_gathering;       /* RELEASE may wait a little */
        bool has_woken;          /* the bus's eventfd is written and not yet read */
        struct nd_list released; /* struct nd_hold.node */
        size_t n_released;
        uint64_t released_bytes;

        struct ndbus *bus;       /* NULL: it has gone */
        struct nd_output output; /* then: what it left unsent */
        bool is_mute;            /* then: a packet was cut, nothing more can be said */
        size_t n_held;           /* blocks that the daemon believes to be held here */
        struct nd_list mappings; /* of the bus alone */
        size_t n_mappings;
};

static void holder_unref(struct nd_holder *holder)
{
        if (atomic_fetch_sub_explicit(&holder->n_refs, 1, memory_order_acq_rel) > 1)
                return;
        nd_assert(nd_list_is_empty(&holder->released));
        nd_assert(holder->guard.is_child || holder->guard.fds[0] < 0);
        nd_output_deinit(&holder->output);
        nd_fork_lock_deinit(&holder->lock);
        nd_fork_guard_deinit(&holder->guard);
        if (!holder->guard.is_child)
                pthread_cond_destroy(&holder->is_free);
        free(holder);
}

static int holder_new(struct ndbus *bus, struct nd_holder **ret)
{
        struct nd_holder *holder = calloc(1, sizeof(*holder));

        if (!holder)
                return NDBUS_ENOMEM;
        if (nd_fork_guard_init(&holder->guard) || pthread_cond_init(&holder->is_free, NULL)) {
                nd_fork_guard_deinit(&holder->guard);
                free(holder);
                return NDBUS_ENOMEM;
        }
        nd_fork_lock_init(&holder->lock);
        atomic_init(&holder->n_refs, 1);
        holder->bus = bus;
        nd_list_init(&holder->mappings);
        nd_list_init(&holder->released);
        *ret = holder;
        return 0;
}

static void mapping_unref(struct nd_mapping *mapping)
{
        if (atomic_fetch_sub_explicit(&mapping->n_refs, 1, memory_order_acq_rel) > 1)
                return;
        nd_segment_close(&mapping->segment);
        free(mapping);
}

static void mapping_forget(struct nd_holder *holder, struct nd_mapping *mapping)
{
        nd_list_unlink(&mapping->node);
        --holder->n_mappings;
        mapping_unref(mapping);
}

static struct nd_mapping *mapping_find(struct nd_holder *holder, uint32_t number)
{
        nd_list_for_each (i, &holder->mappings) {
                struct nd_mapping *mapping = nd_list_entry(i, struct nd_mapping, node);

                if (mapping->number != number)
                        continue;
                if (holder->mappings.next != &mapping->node) {
                        nd_list_unlink(&mapping->node);
                        nd_list_push_head(&holder->mappings, &mapping->node);
                }
                return mapping;
        }
        return NULL;
}

/* ------------------------------------------------------------------------------ releasing */

/* Ends a hold that the daemon has been told of, or need not be. While sending. */
static void hold_end(struct nd_hold *hold)
{
        struct nd_holder *holder = hold->holder;

        nd_list_unlink(&hold->node);
        mapping_unref(hold->mapping);
        free(hold);
        --holder->n_held;
        holder_unref(holder);
}

/* The first holds of @list, as many as a packet says, go to @told. False: no memory to say it. */
static bool output_release(struct nd_output *output, struct nd_list *list, struct nd_list *told)
{
        struct nd_prelude p = {.kind = ND_KIND_RELEASE};
        struct nd_release_writer writer = {0};
        uint8_t *at = nd_output_reserve(output, ND_PRELUDE_BYTES + RELEASE_N_MAX * 16u);

        if (!at)
                return false;
        writer.data = at + ND_PRELUDE_BYTES;
        for (size_t n = 0; n < RELEASE_N_MAX && !nd_list_is_empty(list); ++n) {
                struct nd_hold *hold = nd_list_entry(list->next, struct nd_hold, node);

                nd_release_add(&writer, hold->mapping->number, hold->place);
                nd_list_unlink(&hold->node);
                nd_list_push_tail(told, &hold->node);
        }
        p.body_bytes = writer.n;
        nd_prelude_pack(&p, at);
        nd_output_commit(output, ND_PRELUDE_BYTES + writer.n);
        return true;
}

/* Says RELEASE for @list. What there is no memory for stays there. */
static void output_release_all(struct nd_output *output, struct nd_list *list)
{
        struct nd_list told = ND_LIST_INIT(told);

        while (!nd_list_is_empty(list) && output_release(output, list, &told))
                nd_list_for_each_safe (i, &told)
                        hold_end(nd_list_entry(i, struct nd_hold, node));
}

static void holder_close_socket(struct nd_holder *holder)
{
        if (holder->guard.fds[0] >= 0)
                close(holder->guard.fds[0]);
        holder->guard.fds[0] = -1;
        nd_output_reset(&holder->output);
}

/* Sends after the bus has gone. False: it cannot be said. */
static bool holder_send_alone(struct nd_holder *holder, struct nd_list *list)
{
        int r;

        if (holder->guard.fds[0] < 0 || holder->is_mute) {
                nd_list_for_each_safe (i, list)
                        hold_end(nd_list_entry(i, struct nd_hold, node));
        } else {
                output_release_all(&holder->output, list);
                r = nd_output_send(&holder->output, holder->guard.fds[0]);
                if (r && r != EAGAIN)
                        holder_close_socket(holder);
        }
        if (holder->n_held == 0)
                holder_close_socket(holder);
        return nd_list_is_empty(list);
}

/* Sends for the bus, which is not in a call or has called this. What the socket does not take waits
 * for its next call; so does everything while a message is sent in part. */
static bool holder_send_for_bus(struct nd_holder *holder, struct nd_list *list)
{
        struct ndbus *bus = holder->bus;

        if (bus->outgoing && nd_outgoing_is_torn(bus->outgoing))
                return false;
        output_release_all(&bus->output, list);
        nd_output_send(&bus->output, nd_bus_socket(bus));
        return nd_list_is_empty(list);
}

/* It sleeps, or its application does, and does not know that the socket is to be waited for. */
static void holder_wake_bus(struct nd_holder *holder)
{
        if (holder->bus && nd_output_bytes(&holder->bus->output) > 0 && !holder->has_woken)
                holder->has_woken = nd_fd_wake(holder->bus);
}

/* With the lock, which is dropped meanwhile, by who is sending: says what is queued, and what is queued
 * while it does. */
static void holder_send(struct nd_holder *holder)
{
        struct nd_list list = ND_LIST_INIT(list);
        bool is_said = true;

        while (is_said && holder->n_released > 0 &&
               (!holder->is_gathering || holder->n_released >= GATHER_MAX ||
                holder->released_bytes >= GATHER_BYTES_MAX)) {
                nd_list_move(&holder->released, &list);
                holder->n_released = 0;
                holder->released_bytes = 0;
                nd_fork_lock_drop(&holder->lock);
                is_said = holder->bus ? holder_send_for_bus(holder, &list)
                                      : holder_send_alone(holder, &list);
                nd_fork_lock_take(&holder->lock);
        }
        nd_list_for_each (i, &list) {
                ++holder->n_released;
                holder->released_bytes += nd_list_entry(i, struct nd_hold, node)->bytes;
        }
        nd_list_move(&list, &holder->released);
}

static void holder_gather(struct nd_holder *holder, bool is_gathering)
{
        holder->is_gathering = is_gathering;
        holder_send(holder);
}

/* The last reference to a block is gone, on any thread. */
static void hold_released(struct nd_buffer *keeper)
{
        struct nd_hold *hold = nd_container_of(keeper, struct nd_hold, keeper);
        struct nd_holder *holder = hold->holder;

        if (holder->guard.is_child) {
                mapping_unref(hold->mapping);
                free(hold);
                holder_unref(holder);
                return;
        }
        atomic_fetch_add_explicit(&holder->n_refs, 1, memory_order_relaxed);
        nd_fork_lock_take(&holder->lock);
        nd_list_push_tail(&holder->released, &hold->node);
        ++holder->n_released;
        holder->released_bytes += hold->bytes;
        if (!holder->is_sending) {
                holder->is_sending = true;
                holder_send(holder);
                holder_wake_bus(holder);
                holder->is_sending = false;
                pthread_cond_signal(&holder->is_free);
        }
        nd_fork_lock_drop(&holder->lock);
        holder_unref(holder);
}

/* ---------------------------------------------------------------------------- the bus's side */

void nd_hold_enter(struct ndbus *bus)
{
        struct nd_holder *holder = bus->holder;

        if (!holder)
                return;
        nd_fork_lock_take(&holder->lock);
        while (holder->is_sending)
                pthread_cond_wait(&holder->is_free, &holder->lock.mutex);
        holder->is_sending = true;
        nd_fork_lock_drop(&holder->lock);
}

void nd_hold_leave(struct ndbus *bus, bool is_asleep)
{
        struct nd_holder *holder = bus->holder;

        if (!holder)
                return;
        nd_fork_lock_take(&holder->lock);
        holder_gather(holder, !is_asleep && !nd_list_is_empty(&bus->arrivals));
        holder->is_sending = false;
        nd_fork_lock_drop(&holder->lock);
}

void nd_hold_collect(struct ndbus *bus)
{
        struct nd_holder *holder = bus->holder;

        if (!holder)
                return;
        nd_fork_lock_take(&holder->lock);
        if (holder->has_woken)
                nd_fd_drain_wake(bus);
        holder->has_woken = false;
        holder_gather(holder, !nd_list_is_empty(&bus->arrivals));
        nd_fork_lock_drop(&holder->lock);
}

void nd_hold_tell(struct ndbus *bus)
{
        struct nd_holder *holder = bus->holder;

        if (!holder)
                return;
        nd_fork_lock_take(&holder->lock);
        holder_gather(holder, false);
        nd_fork_lock_drop(&holder->lock);
}

size_t nd_hold_count(const struct ndbus *bus)
{
        return bus->holder ? bus->holder->n_held : 0;
}

bool nd_hold_part(struct ndbus *bus, bool is_over)
{
        struct nd_holder *holder = bus->holder;
        struct nd_control_bytes bytes;
        bool has_output = false;

        if (!holder)
                return false;
        bus->holder = NULL;
        nd_list_for_each_safe (i, &holder->mappings)
                mapping_forget(holder, nd_list_entry(i, struct nd_mapping, node));
        holder->is_mute = bus->outgoing && nd_outgoing_is_torn(bus->outgoing);
        if (holder->n_held > 0 && !is_over) {
                nd_fd_forget_socket(bus);
                holder->guard.fds[0] = bus->guard.fds[ND_FD_SOCKET];
                bus->guard.fds[ND_FD_SOCKET] = -1;
                holder->output = bus->output;
                bus->output = (struct nd_output){.n_left = holder->output.n_left};
                nd_goodbye_pack(&(struct nd_goodbye){0}, &bytes);
                if (!bus->connection.is_closing &&
                    nd_output_packet(&holder->output, &(struct nd_prelude){.kind = ND_KIND_GOODBYE},
                                     bytes.data, bytes.n, NULL, 0))
                        holder->is_mute = true;
                if (!holder->is_mute)
                        nd_output_send(&holder->output, holder->guard.fds[0]);
                holder->output.n_fds = 0; /* the bus closes them; packets that wait go without */
                has_output = !holder->is_mute;
        }
        nd_fork_lock_take(&holder->lock);
        holder->bus = NULL;
        holder_gather(holder, false);
        holder->is_sending = false;
        nd_fork_lock_drop(&holder->lock);
        holder_unref(holder);
        return has_output;
}

/* --------------------------------------------------------------------------------- segments */

/* Maps it, if it is one. The descriptor is closed in any case: the mapping needs none. */
static void mapping_open(struct nd_mapping *mapping, int fd, uint64_t bytes)
{
        if (fd < 0)
                return;
        if (nd_segment_check(fd, bytes, NULL) == 0 &&
            nd_segment_map_read(fd, bytes, &mapping->segment, NULL) == 0)
                nd_segment_close_fd(&mapping->segment);
        else
                close(fd);
}

int nd_hold_segment(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        struct nd_holder *holder = bus->holder;
        struct nd_mapping *mapping;
        int fd;

        if (!holder) {
                if (holder_new(bus, &holder))
                        return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
                holder->is_sending = true; /* this is within a call */
                nd_fd_add_wake(bus);       /* or freeing may have to wait for the next call */
                bus->holder = holder;
        }
        if (mapping_find(holder, p->segment))
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u is in use", p->segment);
        if (holder->n_mappings >= MAPPINGS_MAX)
                return nd_fault_set_limit(fault, NDBUS_EPROTOCOL, "segments", MAPPINGS_MAX + 1,
                                          MAPPINGS_MAX, "");
        mapping = calloc(1, sizeof(*mapping));
        if (!mapping)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        if (!nd_input_take_fd(&bus->input, &fd)) {
                free(mapping);
                return nd_fault_set(fault, NDBUS_EFDS, "SEGMENT", "%u came without a descriptor",
                                    p->segment);
        }
        mapping->segment.fd = -1;
        mapping->number = p->segment;
        atomic_init(&mapping->n_refs, 1);
        nd_list_push_head(&holder->mappings, &mapping->node);
        ++holder->n_mappings;
        mapping_open(mapping, fd, p->place);
        if (!mapping->segment.base &&
            nd_output_packet(&bus->output,
                             &(struct nd_prelude){.kind = ND_KIND_SEGMENT_GONE,
                                                  .segment = p->segment,
                                                  .sequence = 1},
                             NULL, 0, NULL, 0))
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        return 0;
}

int nd_hold_segment_gone(struct ndbus *bus, const struct nd_prelude *p, struct nd_fault *fault)
{
        struct nd_mapping *mapping = bus->holder ? mapping_find(bus->holder, p->segment) : NULL;

        if (!mapping)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u was not handed out",
                                    p->segment);
        mapping_forget(bus->holder, mapping);
        return 0;
}

int nd_hold_block(struct ndbus *bus,
                  const struct nd_prelude *p,
                  struct nd_hold **ret,
                  struct nd_fault *fault)
{
        struct nd_mapping *mapping = bus->holder ? mapping_find(bus->holder, p->segment) : NULL;
        struct nd_hold *hold;

        if (!mapping)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "segment", "%u was not handed out",
                                    p->segment);
        if (!mapping->segment.base) {
                *ret = NULL;
                return 0;
        }
        if (p->place > mapping->segment.bytes || p->body_bytes > mapping->segment.bytes - p->place)
                return nd_fault_set(fault, NDBUS_EPROTOCOL, "place",
                                    "%llu: %llu bytes there are not within the segment's %llu",
                                    (unsigned long long)p->place, (unsigned long long)p->body_bytes,
                                    (unsigned long long)mapping->segment.bytes);
        hold = malloc(sizeof(*hold));
        if (!hold)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        nd_buffer_init_foreign(&hold->keeper, hold_released);
        nd_list_init(&hold->node);
        hold->holder = bus->holder;
        hold->mapping = mapping;
        hold->place = p->place;
        hold->bytes = p->body_bytes;
        atomic_fetch_add_explicit(&mapping->n_refs, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&bus->holder->n_refs, 1, memory_order_relaxed);
        ++bus->holder->n_held;
        *ret = hold;
        return 0;
}

const uint8_t *nd_hold_body(const struct nd_hold *hold)
{
        return hold->mapping->segment.base + hold->place;
}
