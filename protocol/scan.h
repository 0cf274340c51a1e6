/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Bounded scan of msgpack
 *
 * msgpack-c believes counts before the bytes are there: five bytes make it reserve gigabytes. This
 * scan walks the complete, size-capped bytes first, without recursion and without allocation, so
 * that what msgpack-c is given afterwards is known to be whole, shallow and small.
 *
 * Accepted: exactly one object, a map; every count no greater than the bytes that are left; depth
 * at most ND_SCAN_DEPTH_MAX; no trailing bytes; 0xc1 never.
 */

#include "protocol/fault.h"
#include "protocol/limit.h"

enum nd_scan_mode {
        /* A header: keys of the map, and of each map in its list "frames" and of their "fields",
         * are strings of at most ND_KEY_BYTES_MAX bytes, at most ND_MAP_KEYS_MAX of them, none
         * twice. Maps below keys that the protocol does not know are the user's own. */
        ND_SCAN_HEADER,
        /* meta: the user's own map; only size, depth and completeness matter */
        ND_SCAN_META,
};

/**
 * nd_scan() - check msgpack bytes before msgpack-c sees them
 * @data:       [@n_data] complete bytes, borrowed
 * @field:      what to call it in @fault: "header", "meta"
 *
 * Return: 0; NDBUS_EHEADER (mode HEADER) or NDBUS_EMETA (mode META) with @fault naming the byte
 */
int nd_scan(const void *data,
            size_t n_data,
            enum nd_scan_mode mode,
            const char *field,
            struct nd_fault *fault);
