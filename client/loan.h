/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Loan: memory in which arrays are written before they are published
 */

#include "client/pool.h"
#include "client/shared-header.h"
#include "client/supply.h"

struct ndbus_loan {
        struct nd_list node; /* in the supply */
        struct nd_supply *supply;
        struct nd_shared_header *shared; /* holds what the arrays point to, but for their data */
        struct nd_supply_block block;    /* where it is, if it is in shared memory */
        struct nd_buffer *buffer;        /* if it is not; NULL: no bytes */
        uint64_t body_bytes;
        size_t n_arrays;
        struct ndbus_array arrays[];
};
