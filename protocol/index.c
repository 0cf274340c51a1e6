/* SPDX-License-Identifier: MIT */

/*
 * Index
 *
 *   0         88              88 + 16 a place              end - 8
 *   +---------+---------------+------------------------+---+---------------+
 *   | counts  | places        | topics                 | 0 | record bytes  |
 *   +---------+---------------+------------------------+---+---------------+
 *
 * in the body of a record of kind 201. Its length stands at the very end, so that a reader that has
 * the end of a file finds the start of the index, also when files were put together.
 *
 * Places have times so that a moment is found without reading what is before it. Clocks of
 * publishers differ and are set, so times need not rise from record to record; the greatest time so
 * far does, and the first record that is late enough is never in front of the place that it finds.
 */

#include "protocol/index.h"
#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/topic.h"

#define INDEX_COUNTS_BYTES 88u
#define INDEX_PLACE_BYTES  16u
#define INDEX_TOPIC_BYTES  17u /* and the topic */
#define INDEX_TAIL_BYTES   8u

#define INDEX_SLOTS (2u * ND_INDEX_TOPICS_MAX)

_Static_assert((INDEX_SLOTS & (INDEX_SLOTS - 1)) == 0, "slots are masked");
_Static_assert(ND_INDEX_TOPICS_MAX < UINT16_MAX, "a slot holds the number of a topic, from 1");
_Static_assert(ND_INDEX_PLACES_MAX % 2 == 0, "every second place goes");

/* The u64s of the counts, in order. */
#define INDEX_COUNTS(XX, _index)                                                                   \
        XX((_index)->n_records)                                                                    \
        XX((_index)->bytes)                                                                        \
        XX((_index)->body_bytes)                                                                   \
        XX((_index)->time_first_ns)                                                                \
        XX((_index)->time_max_ns)                                                                  \
        XX((_index)->n_dropped)                                                                    \
        XX((_index)->n_gaps)                                                                       \
        XX((_index)->step)                                                                         \
        XX((_index)->n_places)                                                                     \
        XX((_index)->n_topics)                                                                     \
        XX((_index)->n_elsewhere)

/* ----------------------------------------------------------------------------------- making */

/* The slot of a topic: holds its number, or 0 where it belongs. */
static uint16_t *index_slot(const struct nd_index *index, const char *topic, size_t n_topic)
{
        uint32_t hash = UINT32_C(0x811c9dc5); /* FNV-1a */

        for (size_t i = 0; i < n_topic; ++i)
                hash = (hash ^ (uint8_t)topic[i]) * UINT32_C(0x01000193);
        for (uint32_t i = hash;; ++i) {
                uint16_t *slot = &index->topic_slots[i & (INDEX_SLOTS - 1)];
                const struct nd_index_topic *t = *slot ? &index->topics[*slot - 1] : NULL;

                if (!t || (t->n_topic == n_topic && memcmp(t->topic, topic, n_topic) == 0))
                        return slot;
        }
}

/* The topic's row, made if there is room; *ret is NULL if there is none. */
static int
index_topic(struct nd_index *index, const char *topic, size_t n_topic, struct nd_index_topic **ret)
{
        uint16_t *slot;
        char *copy;

        if (!index->topics) {
                index->topics = calloc(ND_INDEX_TOPICS_MAX, sizeof(*index->topics));
                if (!index->topics)
                        return NDBUS_ENOMEM;
        }
        if (!index->topic_slots) {
                index->topic_slots = calloc(INDEX_SLOTS, sizeof(*index->topic_slots));
                if (!index->topic_slots)
                        return NDBUS_ENOMEM;
        }
        slot = index_slot(index, topic, n_topic);
        *ret = NULL;
        if (!*slot && index->n_topics < ND_INDEX_TOPICS_MAX) {
                copy = malloc(n_topic + 1);
                if (!copy)
                        return NDBUS_ENOMEM;
                memcpy(copy, topic, n_topic);
                copy[n_topic] = '\0';
                index->topics[index->n_topics].topic = copy;
                index->topics[index->n_topics].n_topic = n_topic;
                *slot = (uint16_t)++index->n_topics;
        }
        if (*slot)
                *ret = &index->topics[*slot - 1];
        return 0;
}

/* A place for the record that comes next, if it is its turn. */
static int index_place(struct nd_index *index)
{
        if (!index->places) {
                index->places = calloc(ND_INDEX_PLACES_MAX, sizeof(*index->places));
                if (!index->places)
                        return NDBUS_ENOMEM;
                index->step = 1;
        }
        if (index->n_records % index->step != 0)
                return 0;
        if (index->n_places == ND_INDEX_PLACES_MAX) {
                index->n_places /= 2;
                for (size_t i = 0; i < index->n_places; ++i)
                        index->places[i] = index->places[2 * i];
                index->step *=
                        2; /* and as many records as places there were are a multiple of it */
        }
        index->places[index->n_places++] = (struct nd_index_place){
                .offset = index->bytes,
                .time_ns = index->time_max_ns,
        };
        return 0;
}

int nd_index_add(struct nd_index *index,
                 const char *topic,
                 size_t n_topic,
                 const struct nd_record *record)
{
        const struct nd_prelude *p = &record->prelude;
        struct nd_index_topic *row;

        if (index_topic(index, topic, n_topic, &row) || index_place(index))
                return NDBUS_ENOMEM;
        if (row) {
                ++row->n_records;
                row->body_bytes += p->body_bytes;
        } else {
                ++index->n_elsewhere;
        }
        if (index->n_records++ == 0)
                index->time_first_ns = p->time_ns;
        index->time_max_ns = nd_max_u64(index->time_max_ns, p->time_ns);
        index->bytes += record->record_bytes;
        index->body_bytes += p->body_bytes;
        return 0;
}

int nd_index_pack(const struct nd_index *index, void **ret_data, size_t *ret_n_data)
{
        uint64_t n = INDEX_COUNTS_BYTES + index->n_places * INDEX_PLACE_BYTES;
        struct nd_prelude prelude = {.kind = ND_KIND_FILE_INDEX};
        struct nd_record record;
        uint8_t *data, *p;

        for (size_t i = 0; i < index->n_topics; ++i)
                n += INDEX_TOPIC_BYTES + index->topics[i].n_topic;
        n += INDEX_TAIL_BYTES;
        prelude.body_bytes = (n + ND_ALIGN_BYTES - 1) / ND_ALIGN_BYTES * ND_ALIGN_BYTES;
        if (nd_record_place(&prelude, &record, NULL))
                nd_assert(false); /* its parts are bounded */
        data = calloc(1, (size_t)record.record_bytes);
        if (!data)
                return NDBUS_ENOMEM;

        nd_record_pack_lead(&record, data);
        p = data + record.body_offset;
#define XX(_count)                                                                                 \
        nd_store_le64(p, (_count));                                                                \
        p += 8;
        INDEX_COUNTS(XX, index)
#undef XX
        for (size_t i = 0; i < index->n_places; ++i, p += INDEX_PLACE_BYTES) {
                nd_store_le64(p, index->places[i].offset);
                nd_store_le64(p + 8, index->places[i].time_ns);
        }
        for (size_t i = 0; i < index->n_topics; ++i) {
                const struct nd_index_topic *t = &index->topics[i];

                nd_store_le64(p, t->n_records);
                nd_store_le64(p + 8, t->body_bytes);
                p[16] = (uint8_t)t->n_topic;
                memcpy(p + INDEX_TOPIC_BYTES, t->topic, t->n_topic);
                p += INDEX_TOPIC_BYTES + t->n_topic;
        }
        nd_store_le64(data + record.record_bytes - INDEX_TAIL_BYTES, record.record_bytes);
        *ret_data = data;
        *ret_n_data = (size_t)record.record_bytes;
        return 0;
}

/* ---------------------------------------------------------------------------------- reading */

/* A piece of the body that is still to be read. */
struct index_bytes {
        const uint8_t *p;
        uint64_t n;
        uint64_t offset; /* in the file */
};

static int index_corrupt(struct nd_fault *fault, uint64_t at, const char *what)
{
        return nd_fault_set(fault, NDBUS_ECORRUPT, "index", "byte %llu: %s", (unsigned long long)at,
                            what);
}

static void index_take(struct index_bytes *in, uint64_t n)
{
        in->p += n;
        in->n -= n;
        in->offset += n;
}

static int index_unpack_counts(struct index_bytes *in, struct nd_index *ret, struct nd_fault *fault)
{
        const uint8_t *p = in->p;

        if (in->n < INDEX_COUNTS_BYTES + INDEX_TAIL_BYTES)
                return index_corrupt(fault, in->offset, "it is too short");
#define XX(_count)                                                                                 \
        _count = nd_load_le64(p);                                                                  \
        p += 8;
        INDEX_COUNTS(XX, ret)
#undef XX
        if ((ret->n_records == 0) != (ret->step == 0))
                return index_corrupt(fault, in->offset, "its step is wrong");
        if (ret->n_places > ND_INDEX_PLACES_MAX ||
            ret->n_places != (ret->step ? (ret->n_records - 1) / ret->step + 1 : 0))
                return index_corrupt(fault, in->offset, "its places are not as many as it says");
        if (ret->n_topics > ND_INDEX_TOPICS_MAX || ret->n_topics > ret->n_records)
                return index_corrupt(fault, in->offset, "it has more topics than it may");
        index_take(in, INDEX_COUNTS_BYTES);
        return 0;
}

static int index_unpack_places(struct index_bytes *in, struct nd_index *ret, struct nd_fault *fault)
{
        size_t n = ret->n_places;

        if (n > in->n / INDEX_PLACE_BYTES)
                return index_corrupt(fault, in->offset, "it ends within its places");
        ret->places = calloc(n + 1, sizeof(*ret->places));
        if (!ret->places)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        for (size_t i = 0; i < n; ++i) {
                struct nd_index_place *place = &ret->places[i];

                place->offset = nd_load_le64(in->p);
                place->time_ns = nd_load_le64(in->p + 8);
                if (place->offset % ND_ALIGN_BYTES || place->offset >= ret->bytes ||
                    (i == 0 ? place->offset != 0 : place->offset <= place[-1].offset))
                        return index_corrupt(fault, in->offset, "a place is not behind the others");
                if (i == 0 ? place->time_ns != 0 : place->time_ns < place[-1].time_ns)
                        return index_corrupt(fault, in->offset, "a time is before the others");
                index_take(in, INDEX_PLACE_BYTES);
        }
        return 0;
}

static int index_unpack_topics(struct index_bytes *in,
                               size_t n_topics,
                               struct nd_index *ret,
                               struct nd_fault *fault)
{
        uint64_t n_left = ret->n_records, bytes_left = ret->body_bytes;
        size_t n;

        ret->topics = calloc(n_topics + 1, sizeof(*ret->topics));
        if (!ret->topics)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        while (ret->n_topics < n_topics) {
                struct nd_index_topic *t = &ret->topics[ret->n_topics];

                if (in->n < INDEX_TOPIC_BYTES || in->n - INDEX_TOPIC_BYTES < in->p[16])
                        return index_corrupt(fault, in->offset, "it ends within its topics");
                n = in->p[16];
                t->n_records = nd_load_le64(in->p);
                t->body_bytes = nd_load_le64(in->p + 8);
                if (nd_topic_check((const char *)in->p + INDEX_TOPIC_BYTES, n, NULL))
                        return index_corrupt(fault, in->offset, "a topic is malformed");
                if (t->n_records > n_left || t->body_bytes > bytes_left)
                        return index_corrupt(fault, in->offset,
                                             "a topic has more than there is in all");
                t->topic = malloc(n + 1);
                if (!t->topic)
                        return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
                memcpy(t->topic, in->p + INDEX_TOPIC_BYTES, n);
                t->topic[n] = '\0';
                t->n_topic = n;
                ++ret->n_topics;
                n_left -= t->n_records;
                bytes_left -= t->body_bytes;
                index_take(in, INDEX_TOPIC_BYTES + n);
        }
        if (ret->n_elsewhere != n_left)
                return index_corrupt(fault, in->offset, "its topics do not add up");
        return 0;
}

static int index_unpack_body(struct index_bytes *in, struct nd_index *ret, struct nd_fault *fault)
{
        size_t n_topics;
        int r;

        r = index_unpack_counts(in, ret, fault);
        n_topics = ret->n_topics;
        ret->n_topics = 0; /* of which there are rows */
        if (r)
                return r;
        in->n -= INDEX_TAIL_BYTES;
        r = index_unpack_places(in, ret, fault);
        r = r ? r : index_unpack_topics(in, n_topics, ret, fault);
        if (!r && in->n >= ND_ALIGN_BYTES)
                r = index_corrupt(fault, in->offset, "there is more than it says");
        for (; !r && in->n > 0; index_take(in, 1))
                if (*in->p)
                        r = index_corrupt(fault, in->offset, "there is more than it says");
        return r;
}

uint64_t nd_index_locate(const uint8_t tail[static 8], uint64_t file_bytes)
{
        uint64_t n = nd_load_le64(tail);

        if (n > file_bytes || n % ND_ALIGN_BYTES || n < ND_RECORD_LEAD_BYTES + INDEX_COUNTS_BYTES)
                return UINT64_MAX;
        return file_bytes - n;
}

bool nd_index_is_there(const void *data, uint64_t n_data)
{
        struct nd_record record;

        return nd_record_unpack(data, n_data, 0, &record, NULL) == 0 &&
               record.prelude.kind == ND_KIND_FILE_INDEX && record.record_bytes == n_data;
}

int nd_index_unpack(const void *data,
                    uint64_t n_data,
                    uint64_t offset,
                    struct nd_index *ret,
                    struct nd_fault *fault)
{
        const uint8_t *p = data;
        struct nd_index index = {.n_records = 0};
        struct nd_record record;
        struct index_bytes in;
        int r;

        r = nd_record_unpack(data, n_data, offset, &record, fault);
        if (r == 1 || (!r && (record.prelude.kind != ND_KIND_FILE_INDEX ||
                              record.body_offset != ND_RECORD_LEAD_BYTES ||
                              record.body_offset + record.prelude.body_bytes != n_data)))
                return index_corrupt(fault, offset, "this is no index");
        if (r)
                return r;
        in = (struct index_bytes){
                .p = p + record.body_offset,
                .n = record.prelude.body_bytes,
                .offset = offset + record.body_offset,
        };
        r = index_unpack_body(&in, &index, fault);
        if (!r && nd_load_le64(p + n_data - INDEX_TAIL_BYTES) != n_data)
                r = index_corrupt(fault, offset + n_data - INDEX_TAIL_BYTES,
                                  "its length is not that of the record");
        if (!r && index.bytes > offset)
                r = index_corrupt(fault, offset, "it covers more than stands in front of it");
        if (r) {
                nd_index_deinit(&index);
                return r;
        }
        *ret = index;
        return 0;
}

uint64_t nd_index_seek(const struct nd_index *index, uint64_t time_ns)
{
        size_t low = 0, high = index->n_places; /* places below low are early enough */

        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (index->places[middle].time_ns < time_ns)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low > 0 ? index->places[low - 1].offset : 0;
}

void nd_index_deinit(struct nd_index *index)
{
        for (size_t i = 0; i < index->n_topics; ++i)
                free(index->topics[i].topic);
        free(index->topics);
        free(index->topic_slots);
        free(index->places);
        *index = (struct nd_index){.n_records = 0};
}
