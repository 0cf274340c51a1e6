/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Header of PUBLISH and MESSAGE: topic and frame table; PROTOCOL.md 5
 */

#include "protocol/layout.h"

struct nd_header {
        const char *topic; /* checked, NUL-terminated */
        size_t n_topic;
        const char *encoding; /* or NULL */
        const char *reply;    /* checked topic, or NULL */
        size_t n_frames;
        struct nd_frame *frames; /* checked and placed */
        uint64_t body_bytes;
        const char *unsupported; /* a key that begins with '!', of the header or of a frame, which
                                    the one who reads the frames must understand; or NULL */
        size_t allocated_bytes;  /* of the unpacked header, itself included: to be charged */
};

struct nd_header_limits {
        uint64_t body_bytes_max;
        uint32_t dims_max;
};

/**
 * nd_header_unpack() - parse and check a header
 * @data:       [@n_data] bytes, not retained
 * @limits:     NULL: what the protocol allows
 * @ret_header: one allocation; nd_header_free()
 *
 * Runs nd_scan() first, then msgpack-c, then checks topic, reply and every frame. Unknown keys
 * are passed over.
 *
 * Return: 0; NDBUS_EHEADER (framing: the connection ends); NDBUS_ETOPIC, NDBUS_EDTYPE,
 *         NDBUS_ESHAPE, NDBUS_ELENGTH, NDBUS_ETOO_BIG (this message only); NDBUS_ENOMEM
 */
int nd_header_unpack(const void *data,
                     size_t n_data,
                     const struct nd_header_limits *limits,
                     struct nd_header **ret_header,
                     struct nd_fault *fault);

struct nd_header *nd_header_free(struct nd_header *header);

/**
 * nd_header_pack() - write a header
 * @header:     topic, encoding, reply, n_frames, frames (array and bytes; offset unused)
 * @ret_data:   malloc'd bytes; free()
 *
 * The same header gives the same bytes, so that receivers' caches hit. Keys are written in the
 * order of PROTOCOL.md, optional ones only where needed.
 *
 * Return: 0, NDBUS_ENOMEM
 */
int nd_header_pack(const struct nd_header *header, void **ret_data, size_t *ret_n_data);
