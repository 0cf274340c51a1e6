/* SPDX-License-Identifier: MIT */

/*
 * Arrays and meta as one byte string
 *
 * A record of a file is a message that was never sent: the same header, the same body, with a head
 * in front. Packing makes one that names no topic of its own; unpacking makes a message whose
 * arrays lie in the caller's bytes, which may be a mapped file.
 */

#include <string.h>
#include "client/body.h"
#include "client/detail.h"
#include "client/encode.h"
#include "client/export.h"
#include "client/message.h"
#include "protocol/record.h"
#include "protocol/scan.h"

/* A header has to have a topic; this is what a record says that was made without one. */
#define PACK_TOPIC "array"

static int check_meta(const void *meta, size_t n_meta)
{
        struct nd_fault fault = {0};

        if (n_meta == 0)
                return 0;
        if (!meta)
                return nd_detail_say(NDBUS_EINVAL, "meta: is NULL, but n_meta is not 0");
        if (n_meta > ND_META_BYTES_MAX)
                return nd_detail_fail(NDBUS_ETOO_BIG, "meta: has %zu bytes, the limit is %u",
                                      n_meta, ND_META_BYTES_MAX);
        return nd_scan(meta, n_meta, ND_SCAN_META, "meta", &fault) ? nd_detail_fault(&fault) : 0;
}

/* Writes the record that @encoded and @body describe. */
static int pack_record(const struct nd_encoded *encoded,
                       struct nd_body *body,
                       const void *meta,
                       size_t n_meta,
                       void **ret,
                       size_t *ret_bytes)
{
        const struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .header_bytes = (uint32_t)encoded->n_header,
                .meta_bytes = (uint32_t)n_meta,
                .body_bytes = encoded->body_bytes,
        };
        struct nd_fault fault = {0};
        struct nd_record record;
        uint8_t *data;
        uint64_t at;

        if (nd_record_place(&prelude, &record, &fault))
                return nd_detail_fault(&fault);
        if (record.record_bytes > SIZE_MAX / 2)
                return nd_detail_fail(NDBUS_ETOO_BIG, "record: has %llu bytes",
                                      (unsigned long long)record.record_bytes);
        data = aligned_alloc(ND_ALIGN_BYTES, (size_t)record.record_bytes);
        if (!data)
                return nd_detail_fail(NDBUS_ENOMEM, "record: no memory for %llu bytes",
                                      (unsigned long long)record.record_bytes);
        nd_record_pack_lead(&record, data);
        memcpy(data + record.header_offset, encoded->header, encoded->n_header);
        if (n_meta)
                memcpy(data + record.meta_offset, meta, n_meta);
        at = record.meta_offset + n_meta;
        memset(data + at, 0, record.body_offset - at);
        nd_body_copy(body, 0, body->bytes, data + record.body_offset);
        at = record.body_offset + body->bytes;
        memset(data + at, 0, record.record_bytes - at);
        *ret = data;
        *ret_bytes = (size_t)record.record_bytes;
        return 0;
}

ND_PUBLIC int ndbus_pack_encoded(const struct ndbus_array *arrays,
                                 size_t n_arrays,
                                 const void *meta,
                                 size_t n_meta,
                                 const char *encoding,
                                 void **ret,
                                 size_t *ret_bytes)
{
        const struct nd_encode_input input = {
                .topic = PACK_TOPIC,
                .arrays = arrays,
                .n_arrays = n_arrays,
                .encoding = encoding,
        };
        struct nd_encoder encoder = {0};
        struct nd_body_store store = {0};
        const struct nd_encoded *encoded;
        struct nd_fault fault = {0};
        struct nd_body body;
        int r;

        if (!ret || !ret_bytes || (!arrays && n_arrays > 0))
                return nd_detail_say(NDBUS_EINVAL, "arrays, ret, ret_bytes: are NULL");
        r = check_meta(meta, n_meta);
        if (r)
                return r;
        r = nd_encode(&encoder, &input, &encoded, &fault);
        if (r)
                r = nd_detail_fault(&fault);
        else if (nd_body_init(&body, &store, arrays, encoded->plans, n_arrays, encoded->body_bytes))
                r = nd_detail_say(NDBUS_ENOMEM, "out of memory");
        else
                r = pack_record(encoded, &body, meta, n_meta, ret, ret_bytes);
        nd_body_store_deinit(&store);
        nd_encoder_deinit(&encoder);
        return r;
}

ND_PUBLIC int ndbus_pack(const struct ndbus_array *arrays,
                         size_t n_arrays,
                         const void *meta,
                         size_t n_meta,
                         void **ret,
                         size_t *ret_bytes)
{
        return ndbus_pack_encoded(arrays, n_arrays, meta, n_meta, NULL, ret, ret_bytes);
}

/* The first record that is a message; what is an index is passed over. *@ret_at: where it begins. Sets the
 * detail. */
static int find_record(const uint8_t *bytes, size_t n_bytes, struct nd_record *ret, size_t *ret_at)
{
        struct nd_fault fault = {0};
        size_t at = 0;
        int r;

        for (;;) {
                r = nd_record_unpack(bytes + at, n_bytes - at, 0, ret, &fault);
                if (r == 1 && at > 0)
                        return nd_detail_say(NDBUS_EENDED, "record: an index is all there is");
                if (r == 1)
                        return nd_detail_say(NDBUS_ETRUNCATED, "record: ends at byte 0");
                if (r)
                        return nd_detail_fault(&fault);
                if (ret->prelude.kind != ND_KIND_FILE_INDEX)
                        break;
                at += (size_t)ret->record_bytes;
        }
        *ret_at = at;
        return 0;
}

/* Makes the message of a record that was found. */
static int unpack_record(const uint8_t *bytes,
                         const struct nd_record *record,
                         struct ndbus_message **ret_message)
{
        const struct nd_prelude *p = &record->prelude;
        const uint8_t *meta = bytes + record->meta_offset;
        struct nd_shared_header *shared;
        struct nd_fault fault = {0};
        struct nd_pool *pool;
        int r;

        if (p->meta_bytes && nd_scan(meta, p->meta_bytes, ND_SCAN_META, "meta", &fault))
                return nd_detail_fault(&fault);
        if (nd_shared_header_new(bytes + record->header_offset, p->header_bytes, NULL, &shared,
                                 &fault))
                return nd_detail_fault(&fault);
        if (shared->header->unsupported) {
                r = nd_detail_fail(NDBUS_EUNSUPPORTED,
                                   "header: needs \"%s\", which this library does not know",
                                   shared->header->unsupported);
                nd_shared_header_unref(shared);
                return r;
        }
        if (shared->header->body_bytes != p->body_bytes) {
                r = nd_detail_fail(NDBUS_ELENGTH, "body: has %llu bytes, the frames take %llu",
                                   (unsigned long long)p->body_bytes,
                                   (unsigned long long)shared->header->body_bytes);
                nd_shared_header_unref(shared);
                return r;
        }
        pool = nd_pool_new();
        r = pool ? nd_message_new_borrowed(pool, shared, p, meta, bytes + record->body_offset,
                                           ret_message)
                 : NDBUS_ENOMEM;
        nd_pool_close(pool); /* the message keeps it */
        nd_shared_header_unref(shared);
        return r ? nd_detail_say(NDBUS_ENOMEM, "out of memory") : 0;
}

ND_PUBLIC int ndbus_unpack(const void *bytes,
                           size_t n_bytes,
                           struct ndbus_message **ret_message,
                           size_t *ret_bytes)
{
        struct nd_record record;
        size_t at = 0;
        int r;

        if (!ret_message || (!bytes && n_bytes > 0))
                return nd_detail_say(NDBUS_EINVAL, "bytes, ret_message: are NULL");
        r = find_record(bytes, n_bytes, &record, &at);
        r = r ? r : unpack_record((const uint8_t *)bytes + at, &record, ret_message);
        if (!r && ret_bytes)
                *ret_bytes = at + (size_t)record.record_bytes;
        return r;
}
