/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: records
 *
 * Any bytes: no crash; whatever unpacks lies within the bytes, one part behind the other, and packs
 * back to the same lead.
 */

#include <string.h>
#include "protocol/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        uint8_t lead[ND_RECORD_LEAD_BYTES];
        struct nd_fault fault = {0};
        struct nd_record record, again;
        const struct nd_prelude *p = &record.prelude;
        int r;

        r = nd_record_unpack(data, n_data, 1000, &record, &fault);
        if (r == 1) {
                nd_assert(n_data == 0);
                return 0;
        }
        nd_assert(r == fault.code);
        if (r) {
                nd_assert(r == NDBUS_ECORRUPT || r == NDBUS_ETRUNCATED || r == NDBUS_EUNSUPPORTED);
                return 0;
        }

        nd_assert(record.header_offset == ND_RECORD_LEAD_BYTES);
        nd_assert(record.meta_offset == record.header_offset + p->header_bytes);
        nd_assert(record.body_offset >= record.meta_offset + p->meta_bytes);
        nd_assert(record.body_offset % ND_ALIGN_BYTES == 0);
        nd_assert(record.record_bytes >= record.body_offset + p->body_bytes);
        nd_assert(record.record_bytes <= n_data);

        nd_record_pack_lead(&record, lead);
        nd_assert(memcmp(lead, data, sizeof(lead)) == 0);
        nd_assert(nd_record_place(p, &again, NULL) == 0);
        nd_assert(again.record_bytes == record.record_bytes);

        /* and it is truncated wherever it is cut */
        for (uint64_t n = 1; n < record.record_bytes; n += 37)
                nd_assert(nd_record_unpack(data, n, 0, &again, NULL) == NDBUS_ETRUNCATED);
        return 0;
}
