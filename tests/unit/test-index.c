/* SPDX-License-Identifier: MIT */

/*
 * Index: bounded while it is made, right when it is read, refused when anything disagrees
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "protocol/index.h"

static struct nd_record record_of(uint64_t body_bytes, uint64_t time_ns)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .header_bytes = 20,
                .body_bytes = body_bytes,
                .time_ns = time_ns,
        };
        struct nd_record record;

        cr_assert_eq(nd_record_place(&prelude, &record, NULL), 0);
        return record;
}

static void add(struct nd_index *index, const char *topic, uint64_t body_bytes, uint64_t time_ns)
{
        struct nd_record record = record_of(body_bytes, time_ns);

        cr_assert_eq(nd_index_add(index, topic, strlen(topic), &record), 0);
}

/* Packs, finds at the end of a file, unpacks. */
static void again(const struct nd_index *index, struct nd_index *ret)
{
        struct nd_fault fault = {0};
        uint64_t at;
        void *data;
        size_t n;

        cr_assert_eq(nd_index_pack(index, &data, &n), 0);
        at = nd_index_locate((const uint8_t *)data + n - 8, index->bytes + n);
        cr_assert_eq(at, index->bytes);
        cr_assert_eq(nd_index_unpack(data, n, at, ret, &fault), 0, "%s", fault.text);
        free(data);
}

Test(index, counts_what_it_is_given)
{
        struct nd_index index = {.n_gaps = 2}, read;

        add(&index, "a", 12, 100);
        add(&index, "b/c", 0, 90);
        add(&index, "a", 70, 110);
        again(&index, &read);
        cr_expect_eq(read.n_records, 3u);
        cr_expect_eq(read.bytes, 256u + 192u + 320u);
        cr_expect_eq(read.body_bytes, 82u);
        cr_expect_eq(read.time_first_ns, 100u);
        cr_expect_eq(read.time_max_ns, 110u);
        cr_expect_eq(read.n_gaps, 2u);
        cr_assert_eq(read.n_topics, 2u);
        cr_expect_str_eq(read.topics[0].topic, "a");
        cr_expect_eq(read.topics[0].n_records, 2u);
        cr_expect_eq(read.topics[0].body_bytes, 82u);
        cr_expect_str_eq(read.topics[1].topic, "b/c");
        cr_expect_eq(read.topics[1].n_records, 1u);
        nd_index_deinit(&read);
        nd_index_deinit(&index);
}

Test(index, of_nothing)
{
        struct nd_index index = {.n_dropped = 5}, read;

        again(&index, &read);
        cr_expect_eq(read.n_records, 0u);
        cr_expect_eq(read.n_dropped, 5u);
        cr_expect_eq(nd_index_seek(&read, 1000), 0u);
        nd_index_deinit(&read);
}

Test(index, is_bounded_however_many_records_there_are)
{
        const uint64_t n = 3 * UINT64_C(65536) + 5;
        struct nd_index index = {.n_records = 0}, read;
        struct nd_record record = record_of(0, 0);

        for (uint64_t i = 0; i < n; ++i) {
                record.prelude.time_ns = 1000 + i;
                cr_assert_eq(nd_index_add(&index, "t", 1, &record), 0);
        }
        cr_expect_eq(index.step, 4u);
        again(&index, &read);
        cr_expect_eq(read.n_records, n);
        cr_assert_eq(read.n_places, (n + 3) / 4);
        for (size_t i = 0; i < read.n_places; ++i) {
                cr_assert_eq(read.places[i].offset, 4 * i * record.record_bytes, "%zu", i);
                cr_assert_eq(read.places[i].time_ns, i ? 1000 + 4 * i - 1 : 0, "%zu", i);
        }
        nd_index_deinit(&read);
        nd_index_deinit(&index);
}

Test(index, counts_topics_it_has_no_room_for_together)
{
        struct nd_index index = {.n_records = 0}, read;
        char topic[32];

        for (unsigned round = 0; round < 2; ++round)
                for (unsigned i = 0; i < ND_INDEX_TOPICS_MAX + 10; ++i) {
                        snprintf(topic, sizeof(topic), "t/%u", i);
                        add(&index, topic, 1, 0);
                }
        again(&index, &read);
        cr_assert_eq(read.n_topics, ND_INDEX_TOPICS_MAX);
        cr_expect_eq(read.n_elsewhere, 20u);
        for (size_t i = 0; i < read.n_topics; ++i)
                cr_assert_eq(read.topics[i].n_records, 2u, "%zu", i);
        nd_index_deinit(&read);
        nd_index_deinit(&index);
}

/* Against every record one by one, with clocks that go back. */
Test(index, finds_a_place_that_is_not_too_late)
{
        static const uint64_t times[] = {50, 60, 40, 70, 70, 65, 200, 100, 300, 10};
        struct nd_index index = {.n_records = 0};

        for (size_t i = 0; i < nd_array_size(times); ++i)
                add(&index, "t", 0, times[i]);
        index.step = 1;
        for (uint64_t t = 0; t <= 310; ++t) {
                uint64_t at = nd_index_seek(&index, t), first = UINT64_MAX;

                for (size_t i = 0; i < nd_array_size(times); ++i)
                        if (times[i] >= t && first == UINT64_MAX)
                                first = i * 192;
                cr_expect(at <= first, "%llu", (unsigned long long)t);
                if (first != UINT64_MAX)
                        cr_expect_eq(at, first, "%llu: %llu, not %llu", (unsigned long long)t,
                                     (unsigned long long)at, (unsigned long long)first);
        }
        nd_index_deinit(&index);
}

Test(index, a_file_without_one)
{
        static const uint64_t tails[] = {0, 1, 63, 64, 128, 1 << 20, UINT64_MAX, (1 << 20) + 64};
        uint8_t tail[8];

        for (size_t i = 0; i < nd_array_size(tails); ++i) {
                nd_store_le64(tail, tails[i]);
                cr_expect_eq(nd_index_locate(tail, 1 << 20), tails[i] == 1 << 20 ? 0 : UINT64_MAX,
                             "%zu", i);
        }
}

Test(index, every_damaged_byte_of_its_structure_is_noticed)
{
        struct nd_index index = {.n_records = 0};
        struct nd_fault fault;
        uint8_t *data;
        size_t n;

        add(&index, "a", 12, 0);
        add(&index, "b", 12, 0);
        cr_assert_eq(nd_index_pack(&index, (void **)&data, &n), 0);
        for (size_t at = 0; at < n; ++at) {
                /* times, drops and gaps are free; the other end of a size may still fit; a letter
                 * may be another one; body bytes may be more than the topics' */
                bool is_free = (at >= 96 && at < 128) /* of the prelude: source to time */ ||
                               (at >= 128 + 16 && at < 128 + 56);
                struct nd_index read;
                int r;

                if (at >= 128 + 88 && at < n - 8)
                        continue; /* below */
                data[at] ^= 0x80;
                r = nd_index_unpack(data, n, index.bytes, &read, &fault);
                if (!r)
                        nd_index_deinit(&read);
                cr_expect(r != 0 || is_free, "byte %zu", at);
                data[at] ^= 0x80;
        }
        free(data);
        nd_index_deinit(&index);
}

Test(index, what_disagrees_is_corrupt)
{
        /* which u64 of the body, what it becomes, what is said */
        static const struct {
                size_t at;
                uint64_t value;
                const char *says;
        } rows[] = {
                {0, 3, "its places are not as many as it says"},
                {8, 513, "it covers more than stands in front of it"},
                {8, 256, "a place is not behind the others"},
                {56, 0, "its step is wrong"},
                {56, 2, "its places are not as many as it says"},
                {64, UINT64_MAX, "its places are not as many as it says"},
                {72, 3, "it has more topics than it may"},
                {72, 1, "its topics do not add up"},
                {80, 1, "its topics do not add up"},
                {88, 64, "a place is not behind the others"},
                {96, 1, "a time is before the others"},
                {104, 0, "a place is not behind the others"},
                {104, 257, "a place is not behind the others"},
                {120, 0, "its topics do not add up"},
                {120, 3, "a topic has more than there is in all"},
                {128, 25, "a topic has more than there is in all"},
        };
        struct nd_index index = {.n_records = 0}, read = {.n_records = 77};
        struct nd_fault fault;
        uint8_t *data, *copy;
        size_t n;

        add(&index, "a", 12, 5);
        add(&index, "b", 12, 6);
        cr_assert_eq(nd_index_pack(&index, (void **)&data, &n), 0);
        copy = malloc(n);
        cr_assert_not_null(copy);
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                memcpy(copy, data, n);
                nd_store_le64(copy + 128 + rows[i].at, rows[i].value);
                cr_expect_eq(nd_index_unpack(copy, n, index.bytes, &read, &fault), NDBUS_ECORRUPT,
                             "row %zu", i);
                cr_expect_not_null(strstr(fault.text, rows[i].says), "row %zu: %s", i, fault.text);
        }
        /* a topic, its length, what stands behind */
        memcpy(copy, data, n);
        copy[128 + 136] = 255;
        cr_expect_eq(nd_index_unpack(copy, n, index.bytes, &read, &fault), NDBUS_ECORRUPT);
        memcpy(copy, data, n);
        copy[128 + 137] = '*';
        cr_expect_eq(nd_index_unpack(copy, n, index.bytes, &read, &fault), NDBUS_ECORRUPT);
        memcpy(copy, data, n);
        copy[n - 9] = 1;
        cr_expect_eq(nd_index_unpack(copy, n, index.bytes, &read, &fault), NDBUS_ECORRUPT);
        cr_expect_eq(nd_index_unpack(data, n, index.bytes - 64, &read, &fault), NDBUS_ECORRUPT);
        for (size_t k = 0; k < n; k += 64)
                cr_expect_neq(nd_index_unpack(data, k, index.bytes, &read, &fault), 0, "%zu", k);
        cr_expect_eq(read.n_records, 77u, "a result was written");
        free(copy);
        free(data);
        nd_index_deinit(&index);
}
