/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: indexes
 *
 * Any bytes as the end of a file: no crash; whatever unpacks is within its bounds, finds only places
 * that it has, and packs back to the same bytes.
 */

#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct nd_fault fault = {0};
        struct nd_index index;
        uint64_t at;
        void *again;
        size_t n_again;
        int r;

        if (n_data < 8)
                return 0;
        at = nd_index_locate(data + n_data - 8, n_data);
        if (at == UINT64_MAX)
                at = 0;
        nd_assert(at < n_data);
        r = nd_index_unpack(data + at, n_data - at, at, &index, &fault);
        nd_assert(r == fault.code);
        if (r) {
                nd_assert(r == NDBUS_ECORRUPT || r == NDBUS_ETRUNCATED || r == NDBUS_EUNSUPPORTED);
                return 0;
        }

        nd_assert(index.bytes <= at);
        nd_assert(index.n_places <= ND_INDEX_PLACES_MAX && index.n_topics <= ND_INDEX_TOPICS_MAX);
        for (size_t i = 0; i < index.n_places; ++i)
                nd_assert(nd_index_seek(&index, index.places[i].time_ns) <= index.places[i].offset);
        nd_assert(nd_index_seek(&index, UINT64_MAX) <= index.bytes);

        nd_assert(nd_index_pack(&index, &again, &n_again) == 0);
        nd_assert(n_again == n_data - at);
        /* the numbers of messages in the prelude are passed over */
        nd_assert(memcmp((uint8_t *)again + ND_RECORD_LEAD_BYTES, data + at + ND_RECORD_LEAD_BYTES,
                         n_again - ND_RECORD_LEAD_BYTES) == 0);
        free(again);
        nd_index_deinit(&index);
        return 0;
}
