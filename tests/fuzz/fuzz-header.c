/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: header
 *
 * Any bytes: no crash and one of the documented errors. What unpacks is made of valid arrays that
 * fill the body, packs to a header that unpacks again, and packs to the same bytes from then on.
 */

#include <string.h>
#include "protocol/header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

static bool is_documented(int r)
{
        return r == NDBUS_EHEADER || r == NDBUS_ETOPIC || r == NDBUS_EDTYPE || r == NDBUS_ESHAPE ||
               r == NDBUS_ELENGTH || r == NDBUS_ETOO_BIG;
}

static void check_frames(const struct nd_header *h)
{
        uint64_t end = 0;

        for (size_t i = 0; i < h->n_frames; ++i) {
                const struct nd_frame *f = &h->frames[i];
                uint64_t logical = 1, bits = nd_layout_bits(&f->array);

                nd_assert(f->offset % ND_ALIGN_BYTES == 0);
                nd_assert(f->offset >= end && f->offset - end < ND_ALIGN_BYTES);
                end = f->offset + f->bytes;
                nd_assert(f->array.data == NULL);
                nd_assert(nd_layout_check(f, "frame", NULL) == 0);
                nd_assert(bits > 0);
                nd_layout_overlaps(&f->array);
                nd_layout_is_c(&f->array);

                for (int32_t k = 0; k < f->array.ndim; ++k)
                        nd_assert(!nd_mul_overflow(logical, (uint64_t)f->array.shape[k], &logical));
                nd_assert((logical == 0) == (f->bytes == 0));
        }
        nd_assert(h->body_bytes == end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        struct nd_header *first = NULL, *second = NULL;
        void *first_data = NULL, *second_data = NULL;
        size_t n_first, n_second;
        struct nd_fault fault = {0};
        int r;

        r = nd_header_unpack(data, n_data, NULL, &first, &fault);
        nd_assert(r == fault.code);
        if (r) {
                nd_assert(is_documented(r));
                nd_assert(!first);
                return 0;
        }
        check_frames(first);

        nd_assert(nd_header_pack(first, &first_data, &n_first) == 0);
        nd_assert(nd_header_unpack(first_data, n_first, NULL, &second, NULL) == 0);
        check_frames(second);
        nd_assert(second->n_frames == first->n_frames);
        nd_assert(second->body_bytes == first->body_bytes);
        nd_assert(strcmp(second->topic, first->topic) == 0);
        nd_assert(!second->unsupported);

        nd_assert(nd_header_pack(second, &second_data, &n_second) == 0);
        nd_assert(n_second == n_first);
        nd_assert(memcmp(second_data, first_data, n_first) == 0);

        nd_header_free(first);
        nd_header_free(second);
        free(first_data);
        free(second_data);
        return 0;
}
