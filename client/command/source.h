/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Sources: the messages in a file or on stdin
 *
 * .npy, ndbus records, or raw bytes whose dtype the user says. A file that can be mapped is, so
 * that elements go from the page cache to the socket; a pipe is read as far as each message needs,
 * so that an endless one works. Arrays that were saved one behind another into one file are as
 * many messages.
 */

#include <ndbus/array.h>
#include "protocol/index.h"

struct ndbus_message;
struct nd_source;

struct nd_progress;

struct nd_source_options {
        const char *dtype;            /* as nd_spelling_parse_dtype(), or NULL */
        const char *shape;            /* as nd_spelling_parse_shape(), or NULL */
        uint64_t message_max;         /* bytes of one message of a pipe: it is kept in memory */
        struct nd_progress *progress; /* told how much of a pipe was read; borrowed; or NULL */
};

struct nd_source_message {
        const struct ndbus_array *arrays; /* [n_arrays] */
        size_t n_arrays;
        const void *meta; /* [n_meta], of a record; else NULL */
        size_t n_meta;
        const char *encoding;         /* of a record, or NULL */
        const char *note;             /* what is lost of it, or NULL */
        uint64_t offset;              /* where it begins in the file */
        struct ndbus_message *record; /* if it is an ndbus record; borrowed; else NULL */
        uint64_t n_bytes;             /* of the file that are this message */
};

/**
 * nd_source_open() - open a file
 * @path:     "-" is stdin
 * @options:  borrowed for the call
 *
 * Return: 0; NDBUS_ESYSTEM; NDBUS_EINVAL for options; NDBUS_ENOMEM
 */
int nd_source_open(struct nd_source **ret_source,
                   const char *path,
                   const struct nd_source_options *options,
                   struct nd_fault *fault);

/**
 * nd_source_next() - the next message
 * @ret_message:  valid until the next call or nd_source_free()
 *
 * Waiting for a pipe ends at a signal that was caught (report.h): between messages as at the end of
 * the file, within one with NDBUS_EINTERRUPTED.
 *
 * Return: 0; 1 there is none left; else nothing more can be read: NDBUS_EINTERRUPTED, NDBUS_ECORRUPT,
 *         NDBUS_ETRUNCATED, NDBUS_ETOO_BIG, NDBUS_EDTYPE, NDBUS_ESHAPE, NDBUS_ELENGTH, NDBUS_EUNSUPPORTED ...
 */
int nd_source_next(struct nd_source *source,
                   struct nd_source_message *ret_message,
                   struct nd_fault *fault);

/**
 * nd_source_index() - the index at the end of the file
 * @ret_index:  nd_index_deinit()
 *
 * Return: 0; 1 there is none, or the file is a pipe, or the index does not cover all that is in
 *         front of it, as of files that were put together; NDBUS_ECORRUPT, NDBUS_ENOMEM
 */
int nd_source_index(const struct nd_source *source,
                    struct nd_index *ret_index,
                    struct nd_fault *fault);

/* Goes on with what stands at this offset of a file that has an index; before the first message. */
void nd_source_seek(struct nd_source *source, uint64_t offset);

/**
 * nd_source_check() - is the file still as long as when it was opened?
 *
 * Publishing from a mapped file that others have cut short fails in ways that do not name the file.
 *
 * Return: 0; NDBUS_ETRUNCATED
 */
int nd_source_check(const struct nd_source *source, struct nd_fault *fault);

struct nd_source *nd_source_free(struct nd_source *source);

ND_DEFINE_CLEANUP(struct nd_source *, nd_source_free);

/**
 * nd_source_each() - every message of a file, in order
 * @take:  is given each, valid until it returns. Anything but 0 is the end
 *
 * Return: 0; what @take returned; negative, with @fault: what nd_source_open() and nd_source_next()
 *         return
 */
int nd_source_each(const char *path,
                   const struct nd_source_options *options,
                   int (*take)(void *userdata,
                               const char *path,
                               const struct nd_source_message *message),
                   void *userdata,
                   struct nd_fault *fault);

/* The bytes of "a/b.npy" that name it, "b": what a frame made of it is called. "-" has none. */
void nd_source_stem(const char *path, char *out, size_t n_out);
