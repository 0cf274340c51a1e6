/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Records: a message as a byte string, and files of them; PROTOCOL.md 9
 *
 * A record is a 64-byte head, a PUBLISH prelude, header, meta, zeros to a multiple of 64, the
 * body, zeros to a multiple of 64: so that in a mapped file every frame lies at a multiple of 64.
 */

#include "protocol/header.h"
#include "protocol/prelude.h"

/* Where each part of a record stands; offsets from the start of the record. */
struct nd_record {
        struct nd_prelude prelude;
        uint64_t header_offset;
        uint64_t meta_offset;
        uint64_t body_offset;
        uint64_t record_bytes; /* whole record */
};

/**
 * nd_record_place() - compute a record's offsets from its prelude
 *
 * Return: 0, NDBUS_ETOO_BIG if the sum does not fit 2^63
 */
int nd_record_place(const struct nd_prelude *prelude,
                    struct nd_record *ret,
                    struct nd_fault *fault);

/* Writes head and prelude, 128 bytes. What only means something on a connection (stream, place,
 * subscription, segment, flags of how the body travels) is written as zero. */
#define ND_RECORD_LEAD_BYTES (ND_RECORD_HEAD_BYTES + ND_PRELUDE_BYTES)
void nd_record_pack_lead(const struct nd_record *record, uint8_t out[static ND_RECORD_LEAD_BYTES]);

/**
 * nd_record_unpack() - find the record at the start of bytes
 * @data:    [@n_data], borrowed; may hold more records behind this one
 * @offset:  of @data in its file, only for the texts of @fault
 *
 * Checks magic, version, reserved bytes, sizes; not the header's contents.
 *
 * Return: 0; 1 if @n_data is 0; NDBUS_ECORRUPT; NDBUS_ETRUNCATED with the byte where it ends;
 *         NDBUS_EUNSUPPORTED for a version that is not 1
 */
int nd_record_unpack(const void *data,
                     uint64_t n_data,
                     uint64_t offset,
                     struct nd_record *ret,
                     struct nd_fault *fault);
