/* SPDX-License-Identifier: MIT */

/*
 * Body of RELEASE
 *
 * Binary, unlike most of control: under load it is as frequent as messages, and holds hundreds of
 * places. It may be cut nowhere: a count that the bytes do not bear out is refused.
 */

#include "protocol/shm/release.h"
#include "protocol/byteorder.h"

#define RELEASE_HEAD_BYTES  8u
#define RELEASE_PLACE_BYTES 8u

bool nd_release_add(struct nd_release_writer *writer, uint32_t segment, uint64_t place)
{
        bool is_same = writer->count > 0 && writer->segment == segment;
        size_t n = RELEASE_PLACE_BYTES + (is_same ? 0 : RELEASE_HEAD_BYTES);

        if (n > ND_CONTROL_BODY_BYTES_MAX - writer->n)
                return false;
        if (!is_same) {
                writer->n_head = writer->n;
                writer->segment = segment;
                writer->count = 0;
                nd_store_le32(writer->data + writer->n, segment);
                writer->n += RELEASE_HEAD_BYTES;
        }
        nd_store_le32(writer->data + writer->n_head + 4, ++writer->count);
        nd_store_le64(writer->data + writer->n, place);
        writer->n += RELEASE_PLACE_BYTES;
        return true;
}

int nd_release_next(struct nd_release_reader *reader,
                    uint32_t *ret_segment,
                    uint64_t *ret_place,
                    struct nd_fault *fault)
{
        if (reader->n_left == 0) {
                if (reader->n == 0)
                        return 0;
                if (reader->n < RELEASE_HEAD_BYTES)
                        return nd_fault_set(fault, NDBUS_EPROTOCOL, "RELEASE",
                                            "ends within the head of a group");
                reader->segment = nd_load_le32(reader->data);
                reader->n_left = nd_load_le32(reader->data + 4);
                reader->data += RELEASE_HEAD_BYTES;
                reader->n -= RELEASE_HEAD_BYTES;
                if (reader->n_left == 0 || reader->n_left > reader->n / RELEASE_PLACE_BYTES)
                        return nd_fault_set(fault, NDBUS_EPROTOCOL, "RELEASE",
                                            "says that %u places follow in %zu bytes",
                                            (unsigned)reader->n_left, reader->n);
        }
        *ret_segment = reader->segment;
        *ret_place = nd_load_le64(reader->data);
        reader->data += RELEASE_PLACE_BYTES;
        reader->n -= RELEASE_PLACE_BYTES;
        --reader->n_left;
        return 1;
}
