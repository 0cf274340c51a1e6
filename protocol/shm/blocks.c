/* SPDX-License-Identifier: MIT */

/*
 * Blocks
 *
 * Best fit, and neighbours that are free are one: a publisher sends a few sizes again and again, and
 * with both the segment stays usable for a large array after any number of small ones. Every
 * operation takes logarithmic time, whatever the sizes: free pieces are in a treap by size, taken
 * ones in one by place, because a RELEASE names places.
 *
 * Decided against: size classes (a quarter of the memory would be rounding, and an array of 256 MiB
 * is taken to be 320), first fit (leaves more pieces and looks at many), bitmaps (a megabyte of bits
 * for each segment of 512 MiB to be searched for runs).
 */

#include "protocol/shm/blocks.h"
#include <ndbus/error.h>
#include "protocol/limit.h"

/* from this size on a block begins at a page and fills pages */
#define BLOCKS_PAGE_FROM_BYTES (UINT64_C(1) << 20)

struct nd_extent {
        uint64_t place;
        uint64_t bytes;
        struct nd_extent *before; /* neighbours in the segment; NULL at its ends */
        struct nd_extent *after;
        struct nd_extent *less; /* in its tree */
        struct nd_extent *more;
        uint32_t priority; /* random; no node in a tree has less than those below it */
        uint32_t note;     /* the owner's, while it is used */
        bool is_used;
};

/* Trees. A treap is split at a key and two are merged; all else is made of these. */

static bool blocks_is_less(const struct nd_extent *a, const struct nd_extent *b)
{
        if (!a->is_used && a->bytes != b->bytes)
                return a->bytes < b->bytes;
        return a->place < b->place;
}

/* Divides @tree into what is less than @at, and the rest. */
static void blocks_split(struct nd_extent *tree,
                         const struct nd_extent *at,
                         struct nd_extent **ret_less,
                         struct nd_extent **ret_rest)
{
        while (tree) {
                if (blocks_is_less(tree, at)) {
                        *ret_less = tree;
                        ret_less = &tree->more;
                        tree = tree->more;
                } else {
                        *ret_rest = tree;
                        ret_rest = &tree->less;
                        tree = tree->less;
                }
        }
        *ret_less = NULL;
        *ret_rest = NULL;
}

/* All of @less is less than all of @more. */
static struct nd_extent *blocks_merge(struct nd_extent *less, struct nd_extent *more)
{
        struct nd_extent *tree = NULL, **link = &tree;

        while (less && more) {
                if (less->priority > more->priority) {
                        *link = less;
                        link = &less->more;
                        less = less->more;
                } else {
                        *link = more;
                        link = &more->less;
                        more = more->less;
                }
        }
        *link = less ? less : more;
        return tree;
}

static void blocks_insert(struct nd_extent **link, struct nd_extent *block)
{
        while (*link && (*link)->priority >= block->priority)
                link = blocks_is_less(block, *link) ? &(*link)->less : &(*link)->more;
        blocks_split(*link, block, &block->less, &block->more);
        *link = block;
}

static void blocks_remove(struct nd_extent **link, struct nd_extent *block)
{
        while (*link != block)
                link = blocks_is_less(block, *link) ? &(*link)->less : &(*link)->more;
        *link = blocks_merge(block->less, block->more);
}

/* xorshift: a tree is as balanced as its priorities are random */
static uint32_t blocks_random(struct nd_blocks *blocks)
{
        blocks->random ^= blocks->random << 13;
        blocks->random ^= blocks->random >> 7;
        blocks->random ^= blocks->random << 17;
        return (uint32_t)(blocks->random >> 32);
}

int nd_blocks_init(struct nd_blocks *blocks, uint64_t bytes)
{
        struct nd_extent *block = calloc(1, sizeof(*block));

        nd_assert(bytes > 0 && bytes % ND_SEGMENT_UNIT_BYTES == 0);
        if (!block)
                return NDBUS_ENOMEM;
        *blocks = (struct nd_blocks){.bytes = bytes,
                                     .first = block,
                                     .free = block,
                                     .random = UINT64_C(88172645463325252)};
        block->bytes = bytes;
        block->priority = blocks_random(blocks);
        return 0;
}

void nd_blocks_deinit(struct nd_blocks *blocks)
{
        struct nd_extent *next;

        for (struct nd_extent *i = blocks->first; i; i = next) {
                next = i->after;
                free(i);
        }
        *blocks = (struct nd_blocks){0};
}

static uint64_t blocks_round_up(uint64_t n, uint64_t unit)
{
        return (n + unit - 1) / unit * unit;
}

/* Bytes at the start of @block that alignment leaves free. */
static uint64_t blocks_lead(const struct nd_extent *block, uint64_t unit)
{
        return blocks_round_up(block->place, unit) - block->place;
}

/* The smallest free one that is not less than (@bytes, @place). */
static struct nd_extent *
blocks_least(const struct nd_blocks *blocks, uint64_t bytes, uint64_t place)
{
        const struct nd_extent least = {.bytes = bytes, .place = place};
        struct nd_extent *i = blocks->free, *found = NULL;

        while (i) {
                if (blocks_is_less(i, &least)) {
                        i = i->more;
                } else {
                        found = i;
                        i = i->less;
                }
        }
        return found;
}

/* The smallest free one that holds @bytes from a multiple of @unit on. The first one that is large
 * enough does, unless it is less than a unit larger and begins at a bad place. */
static struct nd_extent *blocks_find(const struct nd_blocks *blocks, uint64_t bytes, uint64_t unit)
{
        struct nd_extent *block = blocks_least(blocks, bytes, 0);

        while (block && block->bytes - bytes < blocks_lead(block, unit))
                block = blocks_least(blocks, block->bytes, block->place + 1);
        return block;
}

/* Makes @fresh the first @bytes of @block, which is in no tree. */
static void blocks_cut_lead(struct nd_blocks *blocks,
                            struct nd_extent *block,
                            struct nd_extent *fresh,
                            uint64_t bytes)
{
        *fresh = (struct nd_extent){.place = block->place,
                                    .bytes = bytes,
                                    .before = block->before,
                                    .after = block,
                                    .priority = blocks_random(blocks)};
        if (fresh->before)
                fresh->before->after = fresh;
        else
                blocks->first = fresh;
        block->before = fresh;
        block->place += bytes;
        block->bytes -= bytes;
        blocks_insert(&blocks->free, fresh);
}

/* Makes @fresh what is beyond the first @bytes of @block, which is in no tree. */
static void blocks_cut_rest(struct nd_blocks *blocks,
                            struct nd_extent *block,
                            struct nd_extent *fresh,
                            uint64_t bytes)
{
        *fresh = (struct nd_extent){.place = block->place + bytes,
                                    .bytes = block->bytes - bytes,
                                    .before = block,
                                    .after = block->after,
                                    .priority = blocks_random(blocks)};
        if (fresh->after)
                fresh->after->before = fresh;
        block->after = fresh;
        block->bytes = bytes;
        blocks_insert(&blocks->free, fresh);
}

bool nd_blocks_take(struct nd_blocks *blocks, uint64_t bytes, uint64_t *ret_place)
{
        uint64_t unit = bytes >= BLOCKS_PAGE_FROM_BYTES ? ND_SEGMENT_UNIT_BYTES : ND_ALIGN_BYTES;
        struct nd_extent *block, *lead = NULL, *rest = NULL;
        bool has_lead, has_rest;

        nd_assert(bytes > 0);
        if (bytes > blocks->bytes)
                return false;
        bytes = blocks_round_up(bytes, unit);
        block = blocks_find(blocks, bytes, unit);
        if (!block)
                return false;

        has_lead = blocks_lead(block, unit) > 0;
        has_rest = block->bytes - blocks_lead(block, unit) > bytes;
        if ((has_lead && !(lead = malloc(sizeof(*lead)))) ||
            (has_rest && !(rest = malloc(sizeof(*rest))))) {
                free(lead);
                return false;
        }
        blocks_remove(&blocks->free, block);
        if (lead)
                blocks_cut_lead(blocks, block, lead, blocks_lead(block, unit));
        if (rest)
                blocks_cut_rest(blocks, block, rest, bytes);
        block->is_used = true;
        block->note = 0;
        blocks_insert(&blocks->used, block);
        blocks->used_bytes += block->bytes;
        ++blocks->n_used;
        *ret_place = block->place;
        return true;
}

/* Makes @block and the one after it, which are in no tree, one. */
static void blocks_join(struct nd_extent *block)
{
        struct nd_extent *after = block->after;

        block->bytes += after->bytes;
        block->after = after->after;
        if (block->after)
                block->after->before = block;
        free(after);
}

static struct nd_extent *blocks_at(const struct nd_blocks *blocks, uint64_t place)
{
        struct nd_extent *i = blocks->used;

        while (i && i->place != place)
                i = place < i->place ? i->less : i->more;
        return i;
}

uint32_t *nd_blocks_note(struct nd_blocks *blocks, uint64_t place)
{
        struct nd_extent *block = blocks_at(blocks, place);

        return block ? &block->note : NULL;
}

bool nd_blocks_give(struct nd_blocks *blocks, uint64_t place)
{
        struct nd_extent *block = blocks_at(blocks, place);

        if (!block)
                return false;
        blocks_remove(&blocks->used, block);
        blocks->used_bytes -= block->bytes;
        --blocks->n_used;
        block->is_used = false;
        if (block->after && !block->after->is_used) {
                blocks_remove(&blocks->free, block->after);
                blocks_join(block);
        }
        if (block->before && !block->before->is_used) {
                block = block->before;
                blocks_remove(&blocks->free, block);
                blocks_join(block);
        }
        blocks_insert(&blocks->free, block);
        return true;
}

uint64_t nd_blocks_largest_free(const struct nd_blocks *blocks)
{
        const struct nd_extent *i = blocks->free;

        while (i && i->more)
                i = i->more;
        return i ? i->bytes : 0;
}
