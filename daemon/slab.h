/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Slab: small allocations of one size that are made and freed with every message
 *
 * What is given back is taken again, last in first out, without asking malloc. Up to ND_SLAB_KEPT of
 * them are kept; they belong to the daemon and are charged to nobody. Under AddressSanitizer none is
 * kept, so that it sees every use after free.
 */

#include <stdlib.h>
#include "protocol/base.h"

#if defined(__SANITIZE_ADDRESS__)
#define ND_SLAB_KEPT 0u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ND_SLAB_KEPT 0u
#endif
#endif
#ifndef ND_SLAB_KEPT
#define ND_SLAB_KEPT 4096u
#endif

struct nd_slab {
        struct nd_slab_free {
                struct nd_slab_free *next;
        } * free;

        size_t n_free;
};

/* @n_bytes: the same in every call for this slab. NULL: no memory */
static inline void *nd_slab_take(struct nd_slab *slab, size_t n_bytes)
{
        struct nd_slab_free *piece = slab->free;

        if (!piece)
                return malloc(n_bytes);
        slab->free = piece->next;
        --slab->n_free;
        return piece;
}

static inline void nd_slab_give(struct nd_slab *slab, void *taken)
{
        struct nd_slab_free *piece = taken;

        if (slab->n_free + 1 > ND_SLAB_KEPT) {
                free(taken);
                return;
        }
        piece->next = slab->free;
        slab->free = piece;
        ++slab->n_free;
}

static inline void nd_slab_deinit(struct nd_slab *slab)
{
        while (slab->free)
                free(nd_slab_take(slab, 0));
}
