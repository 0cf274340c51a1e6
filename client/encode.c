/* SPDX-License-Identifier: MIT */

/*
 * Packed headers, kept
 *
 * The messages of a stream differ in their data, and hardly ever in topic, dtypes and shapes. So the
 * header of such a stream is packed once. To know that it is the same, everything that it depends
 * on is written into a key, and keys are compared as bytes. Pointers are no part of it: callers
 * reuse memory for other contents, and build equal descriptions in new places.
 *
 * Writing the key is the price of a hit, some tens of nanoseconds. Hashing it would cost as much
 * as comparing it with all eight.
 */

#include "client/encode.h"
#include <string.h>
#include "protocol/topic.h"

static int key_add(struct nd_encoder *encoder, const void *data, size_t n)
{
        size_t n_max = encoder->n_key_max;
        uint8_t *key;

        if (n > n_max - encoder->n_key) {
                while (n > n_max - encoder->n_key)
                        n_max = n_max ? n_max * 2 : 512;
                key = realloc(encoder->key, n_max);
                if (!key)
                        return NDBUS_ENOMEM;
                encoder->key = key;
                encoder->n_key_max = n_max;
        }
        if (n)
                memcpy(encoder->key + encoder->n_key, data, n);
        encoder->n_key += n;
        return 0;
}

/* With its NUL, behind a byte that tells NULL from "". */
static int key_add_string(struct nd_encoder *encoder, const char *string)
{
        if (!string)
                return key_add(encoder, "", 1);
        if (key_add(encoder, "\1", 1))
                return NDBUS_ENOMEM;
        return key_add(encoder, string, strlen(string) + 1);
}

static int key_add_shape(struct nd_encoder *encoder, const int64_t *shape, int32_t ndim)
{
        if (ndim <= 0 || ndim > NDBUS_DIMS_MAX || !shape)
                return 0;
        return key_add(encoder, shape, (size_t)ndim * sizeof(*shape));
}

/* Deeper than any legal nesting of records is refused by whoever checks them; the key only must
 * not run away before that. */
static int
key_add_fields(struct nd_encoder *encoder, const struct ndbus_field *fields, uint32_t n, int depth)
{
        int r = 0;

        if (!fields || n > ND_FIELDS_MAX || depth > (int)ND_SCAN_DEPTH_MAX)
                return 0;
        for (uint32_t i = 0; i < n && !r; ++i) {
                const struct ndbus_field *field = &fields[i];
                const uint64_t numbers[] = {
                        field->offset,         field->bits,           field->flags,
                        (uint64_t)field->ndim, field->n_fields,       field->unit_count,
                        field->shape != NULL,  field->fields != NULL,
                };

                r = key_add(encoder, numbers, sizeof(numbers));
                r = r ? r : key_add_string(encoder, field->name);
                r = r ? r : key_add_string(encoder, field->dtype);
                r = r ? r : key_add_string(encoder, field->unit);
                r = r ? r : key_add_shape(encoder, field->shape, field->ndim);
                r = r ? r : key_add_fields(encoder, field->fields, field->n_fields, depth + 1);
        }
        return r;
}

static int key_add_array(struct nd_encoder *encoder, const struct ndbus_array *array)
{
        const uint64_t numbers[] = {
                (uint64_t)array->bits << 32 | array->flags,
                (uint64_t)array->lanes << 32 | (uint32_t)array->ndim,
                (uint64_t)array->n_fields << 32 | array->unit_count,
                (uint64_t)(array->shape != NULL) << 3 | (uint64_t)(array->strides != NULL) << 2 |
                        (uint64_t)(array->fields != NULL) << 1,
        };
        int r;

        r = key_add(encoder, numbers, sizeof(numbers));
        r = r ? r : key_add_string(encoder, array->dtype);
        r = r ? r : key_add_shape(encoder, array->shape, array->ndim);
        r = r ? r : key_add_shape(encoder, array->strides, array->ndim);
        r = r ? r : key_add_string(encoder, array->name);
        r = r ? r : key_add_string(encoder, array->unit);
        r = r ? r : key_add_string(encoder, array->codec);
        r = r ? r : key_add_string(encoder, array->device);
        if (array->fields)
                r = r ? r : key_add_fields(encoder, array->fields, array->n_fields, 0);
        return r;
}

static int encoder_make_key(struct nd_encoder *encoder, const struct nd_encode_input *input)
{
        int r;

        encoder->n_key = 0;
        r = key_add_string(encoder, input->topic);
        r = r ? r : key_add_string(encoder, input->reply);
        r = r ? r : key_add_string(encoder, input->encoding);
        for (size_t i = 0; i < input->n_arrays && !r; ++i)
                r = key_add_array(encoder, &input->arrays[i]);
        return r;
}

static struct nd_encoded *encoder_find(struct nd_encoder *encoder, size_t n_arrays)
{
        size_t i = encoder->i_last;

        for (size_t j = 0; j < ND_HEADER_CACHE_N; ++j) {
                struct nd_encoded *entry = &encoder->entries[i];

                if (entry->n_key == encoder->n_key && entry->n_arrays == n_arrays &&
                    memcmp(entry->key, encoder->key, entry->n_key) == 0) {
                        encoder->i_last = i;
                        return entry;
                }
                i = (i + 1) % ND_HEADER_CACHE_N;
        }
        return NULL;
}

static void encoded_deinit(struct nd_encoded *entry)
{
        free(entry->key);
        free(entry->header);
        free(entry->plans);
        *entry = (struct nd_encoded){0};
}

static int string_check(const char *string, const char *field, struct nd_fault *fault)
{
        size_t n = string ? strnlen(string, ND_NAME_BYTES_MAX + 1) : 1;

        if (n == 0)
                return nd_fault_set(fault, NDBUS_EINVAL, field, "is empty");
        if (n > ND_NAME_BYTES_MAX)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, field, strlen(string),
                                          ND_NAME_BYTES_MAX, "bytes");
        return 0;
}

/* Plans every array and writes the frame table. */
static int encoded_plan(struct nd_encoded *entry,
                        const struct nd_encode_input *input,
                        struct nd_frame *frames,
                        struct nd_fault *fault)
{
        char field[32];
        int r;

        for (size_t i = 0; i < input->n_arrays; ++i) {
                const struct ndbus_array *array = &input->arrays[i];

                snprintf(field, sizeof(field), "arrays[%zu]", i);
                r = nd_layout_plan(array, field, &entry->plans[i], fault);
                r = r ? r : string_check(array->name, field, fault);
                r = r ? r : string_check(array->device, field, fault);
                if (r)
                        return r;
                frames[i].array = *array;
                frames[i].array.data = NULL;
                frames[i].array.bits = nd_layout_bits(array) / (array->lanes ? array->lanes : 1u);
                if (entry->plans[i].order != ND_ORDER_DENSE)
                        frames[i].array.strides = NULL;
                frames[i].bytes = entry->plans[i].bytes;
                if (array->ndim > entry->ndim_max)
                        entry->ndim_max = array->ndim;
        }
        return nd_layout_place(frames, input->n_arrays, &entry->body_bytes, fault);
}

static int
encoded_pack(struct nd_encoded *entry, const struct nd_encode_input *input, struct nd_fault *fault)
{
        nd_autofree struct nd_frame *frames = NULL;
        struct nd_header header;
        int r;

        entry->n_topic = strnlen(input->topic, ND_TOPIC_BYTES_MAX + 1);
        r = nd_topic_check(input->topic, entry->n_topic, fault);
        if (!r && input->reply)
                r = nd_topic_check(input->reply, strnlen(input->reply, ND_TOPIC_BYTES_MAX + 1),
                                   fault);
        r = r ? r : string_check(input->encoding, "encoding", fault);
        if (r)
                return r;

        entry->n_arrays = input->n_arrays;
        entry->plans = calloc(input->n_arrays + 1, sizeof(*entry->plans));
        frames = calloc(input->n_arrays + 1, sizeof(*frames));
        if (!entry->plans || !frames)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        r = encoded_plan(entry, input, frames, fault);
        if (r)
                return r;

        header = (struct nd_header){
                .topic = input->topic,
                .n_topic = entry->n_topic,
                .encoding = input->encoding,
                .reply = input->reply,
                .n_frames = input->n_arrays,
                .frames = frames,
                .body_bytes = entry->body_bytes,
        };
        r = nd_header_pack(&header, &entry->header, &entry->n_header);
        if (r)
                return nd_fault_set(fault, r, "", "out of memory");
        if (entry->n_header > ND_HEADER_BYTES_MAX)
                return nd_fault_set_limit(fault, NDBUS_ETOO_BIG, "header", entry->n_header,
                                          ND_HEADER_BYTES_MAX, "bytes");
        return 0;
}

int nd_encode(struct nd_encoder *encoder,
              const struct nd_encode_input *input,
              const struct nd_encoded **ret,
              struct nd_fault *fault)
{
        struct nd_encoded *entry;
        struct nd_encoded made = {0};
        int r;

        if (encoder_make_key(encoder, input))
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        entry = encoder_find(encoder, input->n_arrays);
        if (entry) {
                for (size_t i = 0; i < input->n_arrays; ++i)
                        if (!input->arrays[i].data && entry->plans[i].bytes)
                                return nd_fault_set(fault, NDBUS_EINVAL, "arrays",
                                                    "data of array %zu is NULL, but it has %llu "
                                                    "bytes",
                                                    i, (unsigned long long)entry->plans[i].bytes);
                *ret = entry;
                return 0;
        }

        r = encoded_pack(&made, input, fault);
        if (!r) {
                made.key = malloc(encoder->n_key);
                if (!made.key)
                        r = nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        }
        if (r) {
                encoded_deinit(&made);
                return r;
        }
        memcpy(made.key, encoder->key, encoder->n_key);
        made.n_key = encoder->n_key;

        entry = &encoder->entries[encoder->i_next];
        encoded_deinit(entry);
        *entry = made;
        encoder->i_last = encoder->i_next;
        encoder->i_next = (encoder->i_next + 1) % ND_HEADER_CACHE_N;
        *ret = entry;
        return 0;
}

void nd_encoder_deinit(struct nd_encoder *encoder)
{
        for (size_t i = 0; i < ND_HEADER_CACHE_N; ++i)
                encoded_deinit(&encoder->entries[i]);
        free(encoder->key);
        *encoder = (struct nd_encoder){0};
}
