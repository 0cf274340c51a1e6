/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Index: what a file of records holds, as its last record; PROTOCOL.md 9.1
 *
 * It is made while the records are written and costs bounded memory however many they are: of
 * records every so-manyth has a place, and when there are too many places every second one goes;
 * of topics the first so many are counted apart.
 */

#include "protocol/record.h"

/* Where a record begins. */
struct nd_index_place {
        uint64_t offset;  /* from the first record that the index covers */
        uint64_t time_ns; /* greatest of all records before it; 0 of the first */
};

struct nd_index_topic {
        char *topic; /* NUL-terminated, checked */
        size_t n_topic;
        uint64_t n_records;
        uint64_t body_bytes;
};

/* All zero is an index of nothing. */
struct nd_index {
        uint64_t n_records;
        uint64_t bytes; /* of these records; they stand in front of the index */
        uint64_t body_bytes;
        uint64_t time_first_ns; /* of the first record */
        uint64_t time_max_ns;   /* greatest of all */
        uint64_t n_dropped;     /* messages that were announced as dropped while recording */
        uint64_t n_gaps;        /* gaps of unknown size */
        uint64_t step;          /* every so-manyth record has a place; 0 without records */
        struct nd_index_place *places;
        size_t n_places;
        struct nd_index_topic *topics; /* in order of appearance */
        size_t n_topics;
        uint64_t n_elsewhere;  /* records on topics that are not listed */
        uint16_t *topic_slots; /* hash table over topics while it is made */
};

/**
 * nd_index_add() - count the record that comes next
 * @topic:         checked; need not end in NUL
 * @record_bytes:  of the whole record
 *
 * Return: 0; NDBUS_ENOMEM, and nothing was counted
 */
int nd_index_add(struct nd_index *index,
                 const char *topic,
                 size_t n_topic,
                 const struct nd_record *record);

/**
 * nd_index_pack() - make the record that ends the file
 * @ret_data:  malloc'd; free()
 *
 * Return: 0; NDBUS_ENOMEM
 */
int nd_index_pack(const struct nd_index *index, void **ret_data, size_t *ret_n_data);

/**
 * nd_index_locate() - where an index would begin in a file
 * @tail:  the last 8 bytes
 *
 * Return: offset from the start of the file; UINT64_MAX: there is none
 */
uint64_t nd_index_locate(const uint8_t tail[static 8], uint64_t file_bytes);

/* Does the record at the start of the bytes, if it is one, say that it is an index? */
bool nd_index_is_there(const void *data, uint64_t n_data);

/**
 * nd_index_unpack() - read the record of an index
 * @data:    [@n_data] exactly the record
 * @offset:  of @data in its file: what it covers must fit in front of it
 *
 * Return: 0; NDBUS_ECORRUPT with the byte of the file; what nd_record_unpack() returns; NDBUS_ENOMEM
 */
int nd_index_unpack(const void *data,
                    uint64_t n_data,
                    uint64_t offset,
                    struct nd_index *ret,
                    struct nd_fault *fault);

/**
 * nd_index_seek() - the last place in front of the first record of a time
 *
 * The first record whose time is at least @time_ns, if there is one, stands at this offset or behind
 * it, at most nd_index.step records further.
 */
uint64_t nd_index_seek(const struct nd_index *index, uint64_t time_ns);

void nd_index_deinit(struct nd_index *index);
