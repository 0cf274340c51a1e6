/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Layout: how many bytes an array takes, where each frame of a body lies; PROTOCOL.md 5
 *
 * All arithmetic on a peer's or a user's numbers is overflow-checked here, so that what passes
 * may be added, multiplied and allocated without further checks.
 */

#include <ndbus/array.h>
#include "protocol/fault.h"
#include "protocol/limit.h"

/* A frame as it stands in a header. */
struct nd_frame {
        struct ndbus_array array; /* data is NULL; strides NULL or >= 0; dtype NULL: raw bytes */
        uint64_t bytes;           /* in the body */
        uint64_t offset;          /* from the start of the body, a multiple of ND_ALIGN_BYTES */
};

enum nd_order {
        ND_ORDER_C,      /* contiguous in C order: sent as it lies, no strides in the header */
        ND_ORDER_DENSE,  /* fills its extent once in another axis order, or has broadcast axes
                            (stride 0): sent as it lies, with strides */
        ND_ORDER_GATHER, /* anything else: packed to C order by the sender */
};

/* What a sender does with one array. */
struct nd_plan {
        enum nd_order order;
        uint64_t bytes;    /* that travel */
        uint64_t elements; /* logical, repetitions of broadcast axes included */
        uint32_t itemsize; /* bytes of one element, lanes included; 0 if elements are packed bits */
};

/**
 * nd_layout_plan() - check a user's array and decide how it travels
 * @array:  as the user gave it; strides of any sign
 * @field:  what to call it in @fault ("arrays[1]")
 *
 * Checks dtype and width, lanes, unit, fields, flags, dimensions, strides, that data is there,
 * that the logical size is below 2^63. Packed types under 8 bits have no strides.
 * dtype "object" is NDBUS_EDTYPE: use pickle by name.
 *
 * Return: 0, NDBUS_EDTYPE, NDBUS_ESHAPE, NDBUS_EINVAL, NDBUS_EUNSUPPORTED (a codec)
 */
int nd_layout_plan(const struct ndbus_array *array,
                   const char *field,
                   struct nd_plan *ret,
                   struct nd_fault *fault);

/**
 * nd_layout_check() - check one frame of a peer's header, frame->bytes included
 *
 * The same rules, for what may stand on the wire: strides are not negative and the extent, or the
 * packed size without strides, equals frame->bytes. Sets nothing.
 *
 * Return: 0, NDBUS_EDTYPE, NDBUS_ESHAPE, NDBUS_ELENGTH
 */
int nd_layout_check(const struct nd_frame *frame, const char *field, struct nd_fault *fault);

/**
 * nd_layout_place() - give each frame its offset
 * @frames:         bytes set; offset is written
 * @ret_body_bytes: last offset + last bytes; 0 without frames
 *
 * Return: 0, or NDBUS_ETOO_BIG if the sum exceeds ND_BODY_BYTES_MAX
 */
int nd_layout_place(struct nd_frame *frames,
                    size_t n_frames,
                    uint64_t *ret_body_bytes,
                    struct nd_fault *fault);

/* Do elements of a received array share bytes (a stride 0 axis longer than 1, or overlap)? Such
 * arrays are handed out read-only. */
bool nd_layout_overlaps(const struct ndbus_array *array);

/* Would the array lie in C order without its strides? True without strides and if it is empty; what
 * the strides of axes of length 1 say does not matter. The array must have been checked. */
bool nd_layout_is_c(const struct ndbus_array *array);

/* Bits of one element, lanes included, from the dtype's own width where array->bits is 0. */
uint32_t nd_layout_bits(const struct ndbus_array *array);
