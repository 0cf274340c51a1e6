/* SPDX-License-Identifier: MIT */

/*
 * Loans
 *
 * Arrays that are written where they are sent from. In shared memory that is where subscribers read
 * them, and nobody copies anything. Where there is none, a loan is ordinary memory and is sent by the
 * socket: programs need no second way.
 *
 * A loan must remember its arrays, all that hangs on them included, and the form in which the library
 * keeps such things is a parsed header. So the arrays are packed into one, of no real topic, and
 * parsed; both are cached, since loans come in streams like messages do.
 *
 * A loan outlives its bus: the application may be writing into it.
 */

#include "client/loan.h"
#include <string.h>
#include "client/bus.h"
#include "client/detail.h"
#include "client/export.h"

/* Arrays without bytes point here, and all do before there is memory. */
static _Alignas(ND_ALIGN_BYTES) uint8_t no_bytes[ND_ALIGN_BYTES];

static void arrays_set(struct ndbus_array *arrays, size_t n_arrays, const void *data)
{
        for (size_t i = 0; i < n_arrays; ++i)
                arrays[i].data = data;
}

static int plans_check(const struct nd_encoded *encoded)
{
        for (size_t i = 0; i < encoded->n_arrays; ++i)
                if (encoded->plans[i].order == ND_ORDER_GATHER && encoded->plans[i].bytes > 0)
                        return nd_detail_fail(NDBUS_ESHAPE,
                                              "arrays[%zu].strides: what is written in place must "
                                              "be dense, this would be packed",
                                              i);
        return 0;
}

/* Parses what the arrays are, and checks that they can be written in place. */
static int loan_describe(struct ndbus *bus,
                         const struct ndbus_array *arrays,
                         size_t n_arrays,
                         struct nd_shared_header **ret)
{
        const struct nd_encode_input input = {
                .topic = "loan", .arrays = arrays, .n_arrays = n_arrays};
        const struct nd_encoded *encoded;
        struct nd_fault fault;
        int r;

        if (nd_encode(&bus->encoder, &input, &encoded, &fault))
                return nd_detail_fault(&fault);
        r = plans_check(encoded);
        if (r)
                return r;
        if (nd_header_cache_get(&bus->supply->descriptions, encoded->header, encoded->n_header,
                                NULL, ret, &fault))
                return nd_detail_fault(&fault);
        return 0;
}

/* The socket is read when a loan is taken, so often on the way as far ahead of the daemon as may be: then the
 * publishing call, which is what a reader waits for, need not. */
#define LOAN_READ_SHARE 8u

/* NULL: there is none. */
static uint8_t *loan_find_memory(struct ndbus *bus, struct ndbus_loan *loan)
{
        if (loan->body_bytes == 0)
                return no_bytes;
        if (nd_supply_take(bus, loan->body_bytes, bus->credit.lead_bytes / LOAN_READ_SHARE,
                           &loan->block))
                return nd_supply_data(&loan->block);
        loan->buffer = nd_pool_take(bus->pool, loan->body_bytes);
        if (!loan->buffer)
                return NULL;
        nd_buffer_populate(loan->buffer, loan->body_bytes);
        return loan->buffer->data;
}

/* Points the arrays into the memory, and clears the gaps between them. */
static void loan_lay_out(struct ndbus_loan *loan, uint8_t *body, struct ndbus_array *arrays)
{
        const struct nd_frame *frames = loan->shared->header->frames;
        uint64_t end = 0;

        for (size_t i = 0; i < loan->n_arrays; ++i) {
                loan->arrays[i] = loan->shared->arrays[i];
                loan->arrays[i].flags = frames[i].array.flags;
                if (frames[i].bytes == 0) {
                        loan->arrays[i].data = no_bytes;
                } else {
                        memset(body + end, 0, frames[i].offset - end);
                        end = frames[i].offset + frames[i].bytes;
                        loan->arrays[i].data = body + frames[i].offset;
                }
                arrays[i].data = loan->arrays[i].data;
        }
}

static void loan_free(struct ndbus_loan *loan)
{
        struct nd_supply *supply = loan->supply;

        nd_list_unlink(&loan->node);
        nd_shared_header_unref(loan->shared);
        nd_buffer_unref(loan->buffer);
        free(loan);
        nd_supply_loan_ended(supply);
}

static int
loan(struct ndbus *bus, struct ndbus_array *arrays, size_t n_arrays, struct ndbus_loan **ret_loan)
{
        struct nd_shared_header *shared;
        struct ndbus_loan *loan;
        uint8_t *body;
        int r;

        r = loan_describe(bus, arrays, n_arrays, &shared);
        if (r)
                return r;
        loan = malloc(sizeof(*loan) + n_arrays * sizeof(*arrays));
        if (!loan) {
                nd_shared_header_unref(shared);
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        }
        *loan = (struct ndbus_loan){
                .supply = bus->supply,
                .shared = shared,
                .body_bytes = shared->header->body_bytes,
                .n_arrays = n_arrays,
        };
        nd_list_push_tail(&bus->supply->loans, &loan->node);
        body = loan_find_memory(bus, loan);
        if (!body) {
                r = nd_detail_fail(NDBUS_ENOMEM, "arrays: no memory for %llu bytes",
                                   (unsigned long long)loan->body_bytes);
                loan_free(loan);
                return r;
        }
        loan_lay_out(loan, body, arrays);
        if (bus->output.n_fds > 0)
                nd_connection_send(bus); /* the daemon can answer while the arrays are written */
        *ret_loan = loan;
        return 0;
}

ND_PUBLIC int ndbus_loan(struct ndbus *bus,
                         struct ndbus_array *arrays,
                         size_t n_arrays,
                         struct ndbus_loan **ret_loan)
{
        int r = nd_bus_enter(bus);

        if (r)
                return r;
        if ((!arrays && n_arrays > 0) || !ret_loan)
                return nd_bus_leave(bus, nd_detail_say(NDBUS_EINVAL, "arrays, ret_loan: are NULL"));
        arrays_set(arrays, n_arrays, no_bytes);
        r = loan(bus, arrays, n_arrays, ret_loan);
        if (r)
                arrays_set(arrays, n_arrays, NULL);
        return nd_bus_leave(bus, r);
}

ND_PUBLIC void ndbus_loan_cancel(struct ndbus_loan *loan)
{
        struct nd_supply *supply;

        if (!loan)
                return;
        supply = loan->supply;
        if (loan->block.segment && !(supply->bus && supply->bus->guard.is_child))
                nd_supply_give(supply, &loan->block);
        loan_free(loan);
}

ND_PUBLIC int ndbus_shm_stats(const struct ndbus *bus, struct ndbus_shm_stats *ret_stats)
{
        const struct nd_supply *supply;

        if (!bus || !ret_stats)
                return nd_detail_say(NDBUS_EINVAL, "bus, ret_stats: are NULL");
        if (ret_stats->size < sizeof(*ret_stats))
                return nd_detail_fail(NDBUS_EINVAL, "ret_stats->size: is %zu, must be %zu",
                                      ret_stats->size, sizeof(*ret_stats));
        supply = bus->supply;
        *ret_stats = (struct ndbus_shm_stats){
                .size = sizeof(*ret_stats),
                .published = supply->n_in_blocks,
                .fallback = supply->n_fallback,
                .segments = supply->pool.n_segments,
                .segment_bytes = supply->pool.bytes,
                .held = nd_hold_count(bus),
        };
        nd_list_for_each (i, &supply->pool.segments)
                ret_stats->blocks += nd_list_entry(i, struct nd_shm_segment, node)->blocks.n_used;
        return 0;
}
