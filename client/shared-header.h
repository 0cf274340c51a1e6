/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Shared header: a parsed header that many messages refer to
 */

#include <stdatomic.h>
#include "protocol/header.h"

struct nd_shared_header {
        _Atomic uint32_t n_refs;
        struct nd_header *header;
        struct ndbus_array *arrays; /* [header->n_frames] as a message shows them, data NULL */
        int64_t *raw_shapes;        /* of those that are shown as raw bytes */
        size_t n_bytes;
        uint8_t bytes[]; /* as they came: what the cache compares */
};

/* 0; what nd_header_unpack() returns; NDBUS_ENOMEM. One reference. */
int nd_shared_header_new(const void *data,
                         size_t n_data,
                         const struct nd_header_limits *limits,
                         struct nd_shared_header **ret,
                         struct nd_fault *fault);

/* Any thread. unref accepts NULL and returns NULL. */
struct nd_shared_header *nd_shared_header_ref(struct nd_shared_header *shared);
struct nd_shared_header *nd_shared_header_unref(struct nd_shared_header *shared);

/* The last few of a connection. */
struct nd_header_cache {
        struct nd_shared_header *entries[ND_HEADER_CACHE_N];
        size_t i_last;
        size_t i_next;
};

/* As nd_shared_header_new(), from the cache if it is there. The reference is the caller's. */
int nd_header_cache_get(struct nd_header_cache *cache,
                        const void *data,
                        size_t n_data,
                        const struct nd_header_limits *limits,
                        struct nd_shared_header **ret,
                        struct nd_fault *fault);

void nd_header_cache_deinit(struct nd_header_cache *cache);
