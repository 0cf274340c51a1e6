/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: scan of msgpack
 *
 * Any bytes: no crash; what a header may be, meta may be; and what the scan takes, msgpack-c reads
 * whole, without asking for more memory than the scan promised.
 */

#include <msgpack.h>
#include "protocol/base.h"
#include "protocol/scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        msgpack_unpacked unpacked;
        struct nd_fault fault = {0};
        size_t at = 0;
        int r_header, r_meta;

        r_header = nd_scan(data, n_data, ND_SCAN_HEADER, "header", &fault);
        nd_assert(r_header == 0 || r_header == NDBUS_EHEADER);
        nd_assert(r_header == fault.code);
        r_meta = nd_scan(data, n_data, ND_SCAN_META, "meta", NULL);
        nd_assert(r_meta == 0 || r_meta == NDBUS_EMETA);
        nd_assert(r_header != 0 || r_meta == 0);
        if (r_meta != 0)
                return 0;

        msgpack_unpacked_init(&unpacked);
        nd_assert(msgpack_unpack_next(&unpacked, (const char *)data, n_data, &at) ==
                  MSGPACK_UNPACK_SUCCESS);
        nd_assert(at == n_data);
        nd_assert(unpacked.data.type == MSGPACK_OBJECT_MAP);
        msgpack_unpacked_destroy(&unpacked);
        return 0;
}
