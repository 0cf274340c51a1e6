/* SPDX-License-Identifier: MIT */

/*
 * Records: a message as a byte string
 *
 *   0        8         9        16               24        64          128
 *   +--------+---------+--------+----------------+---------+-----------+--------+------+---------
 *   | magic  | version | 7 zero | bytes of all   | 40 zero | prelude   | header | meta | 0 | body
 *   +--------+---------+--------+----------------+---------+-----------+--------+------+---------
 *
 * The magic is made like PNG's: a first byte that no text has, and a line end that a transfer as
 * text would change. The length of the whole record stands in front, so that a reader skips what it
 * does not know; it also follows from the prelude, and both must agree: a record that is cut, or
 * whose sizes were damaged, is noticed before any of it is used.
 *
 * What belongs to a connection (stream, segment, place, subscription, how the body travels) means
 * nothing in a file: it is written as zero and refused when it is not.
 */

#include "protocol/record.h"
#include <string.h>
#include "protocol/byteorder.h"

#define RECORD_VERSION    1u
#define RECORD_VERSION_AT 8u
#define RECORD_BYTES_AT   16u

/* Flags that say something about the message rather than about how it travels. */
#define RECORD_FLAGS (ND_FLAG_RETAINED | ND_FLAG_REDELIVERED | ND_FLAG_LINK)

static const uint8_t record_magic[8] = {0x89, 'N', 'D', 'B', 'U', 'S', '\r', '\n'};

_Static_assert(ND_RECORD_HEAD_BYTES % ND_ALIGN_BYTES == 0, "the prelude is aligned");
_Static_assert(ND_RECORD_LEAD_BYTES % ND_ALIGN_BYTES == 0, "the header is aligned");

/* Rounds @v up to the next multiple of 64; true if that does not fit 63 bits. */
static bool record_align_overflow(uint64_t v, uint64_t *ret)
{
        if (v > (uint64_t)INT64_MAX - (ND_ALIGN_BYTES - 1))
                return true;
        *ret = (v + ND_ALIGN_BYTES - 1) & ~(uint64_t)(ND_ALIGN_BYTES - 1);
        return false;
}

int nd_record_place(const struct nd_prelude *prelude, struct nd_record *ret, struct nd_fault *fault)
{
        struct nd_record record = {.prelude = *prelude};
        uint64_t end;

        record.header_offset = ND_RECORD_LEAD_BYTES;
        record.meta_offset = record.header_offset + prelude->header_bytes;
        if (record_align_overflow(record.meta_offset + prelude->meta_bytes, &record.body_offset) ||
            nd_add_overflow(record.body_offset, prelude->body_bytes, &end) ||
            record_align_overflow(end, &record.record_bytes))
                return nd_fault_set_limit(fault, NDBUS_ETOO_BIG, "body", prelude->body_bytes,
                                          ND_BODY_BYTES_MAX, "bytes");
        *ret = record;
        return 0;
}

void nd_record_pack_lead(const struct nd_record *record, uint8_t out[static ND_RECORD_LEAD_BYTES])
{
        struct nd_prelude prelude = record->prelude;

        prelude.reserved = 0;
        prelude.flags &= RECORD_FLAGS;
        prelude.stream = 0;
        prelude.place = 0;
        prelude.subscription = 0;
        prelude.segment = 0;

        memset(out, 0, ND_RECORD_HEAD_BYTES);
        memcpy(out, record_magic, sizeof(record_magic));
        out[RECORD_VERSION_AT] = RECORD_VERSION;
        nd_store_le64(out + RECORD_BYTES_AT, record->record_bytes);
        nd_prelude_pack(&prelude, out + ND_RECORD_HEAD_BYTES);
}

static int record_corrupt(struct nd_fault *fault, uint64_t at, const char *what)
{
        return nd_fault_set(fault, NDBUS_ECORRUPT, "record", "byte %llu: %s",
                            (unsigned long long)at, what);
}

static bool record_is_zero(const uint8_t *p, size_t n)
{
        for (size_t i = 0; i < n; ++i) {
                if (p[i])
                        return false;
        }
        return true;
}

/* Magic, version and zeros, as far as @n_data bytes show them. */
static int
record_check_head(const uint8_t *p, uint64_t n_data, uint64_t offset, struct nd_fault *fault)
{
        size_t n = (size_t)nd_min_u64(n_data, ND_RECORD_HEAD_BYTES);
        size_t zeros_at = RECORD_VERSION_AT + 1, length_end = RECORD_BYTES_AT + 8;

        if (memcmp(p, record_magic, nd_min_u64(n, sizeof(record_magic))) != 0)
                return record_corrupt(fault, offset, "no record begins here");
        if (n > RECORD_VERSION_AT && p[RECORD_VERSION_AT] != RECORD_VERSION)
                return nd_fault_set(fault, NDBUS_EUNSUPPORTED, "record",
                                    "byte %llu: version %u, only %u is known",
                                    (unsigned long long)offset + RECORD_VERSION_AT,
                                    p[RECORD_VERSION_AT], RECORD_VERSION);
        if (n > zeros_at &&
            !record_is_zero(p + zeros_at, nd_min_u64(n, RECORD_BYTES_AT) - zeros_at))
                return record_corrupt(fault, offset + zeros_at, "reserved bytes are not zero");
        if (n > length_end && !record_is_zero(p + length_end, n - length_end))
                return record_corrupt(fault, offset + length_end, "reserved bytes are not zero");
        return 0;
}

static int
record_check_prelude(const struct nd_prelude *prelude, uint64_t at, struct nd_fault *fault)
{
        if (prelude->kind != ND_KIND_PUBLISH && prelude->kind != ND_KIND_FILE_INDEX)
                return record_corrupt(fault, at, "this kind of packet is not for files");
        if (prelude->reserved || prelude->stream || prelude->place || prelude->subscription ||
            prelude->segment)
                return record_corrupt(fault, at, "a field of connections is not zero");
        if (prelude->flags & ~(unsigned)RECORD_FLAGS)
                return record_corrupt(fault, at, "a flag that is not for files");
        if (prelude->header_bytes > ND_HEADER_BYTES_MAX)
                return record_corrupt(fault, at, "the header is larger than 1 MiB");
        if (prelude->meta_bytes > ND_META_BYTES_MAX)
                return record_corrupt(fault, at, "meta is larger than 1 MiB");
        if (prelude->body_bytes > ND_BODY_BYTES_MAX)
                return record_corrupt(fault, at, "the body is larger than 2^62 bytes");
        return 0;
}

static int record_truncated(struct nd_fault *fault, uint64_t offset, uint64_t n, uint64_t n_needed)
{
        nd_fault_set(fault, NDBUS_ETRUNCATED, "record",
                     "begins at byte %llu and ends at byte %llu, after %llu of %llu bytes",
                     (unsigned long long)offset, (unsigned long long)(offset + n),
                     (unsigned long long)n, (unsigned long long)n_needed);
        if (fault) {
                fault->has_numbers = true;
                fault->value = n;
                fault->limit = n_needed;
        }
        return NDBUS_ETRUNCATED;
}

int nd_record_unpack(const void *data,
                     uint64_t n_data,
                     uint64_t offset,
                     struct nd_record *ret,
                     struct nd_fault *fault)
{
        const uint8_t *p = data;
        struct nd_prelude prelude;
        struct nd_record record;
        int r;

        if (n_data == 0)
                return 1;
        r = record_check_head(p, n_data, offset, fault);
        if (r)
                return r;
        if (n_data < ND_RECORD_LEAD_BYTES)
                return record_truncated(fault, offset, n_data, ND_RECORD_LEAD_BYTES);

        nd_prelude_unpack(p + ND_RECORD_HEAD_BYTES, &prelude);
        r = record_check_prelude(&prelude, offset + ND_RECORD_HEAD_BYTES, fault);
        if (r)
                return r;
        r = nd_record_place(&prelude, &record, fault);
        nd_assert(r == 0); /* sizes were bounded just now */
        if (nd_load_le64(p + RECORD_BYTES_AT) != record.record_bytes)
                return record_corrupt(fault, offset + RECORD_BYTES_AT,
                                      "the record's length is not that of its parts");
        if (n_data < record.record_bytes)
                return record_truncated(fault, offset, n_data, record.record_bytes);

        *ret = record;
        return 0;
}
