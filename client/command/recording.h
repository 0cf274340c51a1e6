/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Recording: received messages into a file of records that is readable at every moment
 */

#include <ndbus/ndbus.h>
#include "protocol/index.h"

/* Records up to so many bytes are gathered, so that small messages share a system call. */
#define ND_RECORDING_GATHER_BYTES (256u * 1024u)

/* Parsed headers that are kept: a steady stream has the same one again and again. */
#define ND_RECORDING_HEADERS 8u

struct nd_recording_header {
        void *bytes; /* [n_bytes] as it came */
        size_t n_bytes;
        struct nd_header *header;
};

struct nd_recording {
        int fd;
        bool is_regular;  /* what is half written can be taken back */
        bool has_failed;  /* a write did; nothing more can be added */
        uint64_t n_bytes; /* of whole records that are in the file */
        uint64_t n_records;
        uint8_t *gathered; /* [n_gathered] whole records that are not yet in the file */
        size_t n_gathered;
        uint64_t n_gathered_records;
        struct nd_recording_header headers[ND_RECORDING_HEADERS];
        size_t i_next_header;
        struct nd_index index;
};

/**
 * nd_recording_open() - begin a file
 * @path:        "-" is stdout
 * @is_replace:  an existing file is emptied; else it is an error, unless it is empty or no regular one
 *
 * Return: 0; NDBUS_ESYSTEM; NDBUS_EINVAL for a file that exists; NDBUS_ENOMEM
 */
int nd_recording_open(struct nd_recording *recording,
                      const char *path,
                      bool is_replace,
                      struct nd_fault *fault);

/**
 * nd_recording_add() - write a message, now or with the next ones
 *
 * After an error the file ends with the last whole record that fits, and nothing can be added.
 *
 * Return: 0; NDBUS_ESYSTEM; NDBUS_ENOMEM
 */
int nd_recording_add(struct nd_recording *recording,
                     const struct ndbus_message *message,
                     struct nd_fault *fault);

/* Is there something that nd_recording_flush() would write? */
static inline bool nd_recording_is_gathering(const struct nd_recording *recording)
{
        return recording->n_gathered > 0;
}

/* Writes what was gathered. As nd_recording_add(). */
int nd_recording_flush(struct nd_recording *recording, struct nd_fault *fault);

/**
 * nd_recording_finish() - write the rest and the index, and close; not after a write that failed
 * @n_dropped, @n_gaps:  for the index
 */
int nd_recording_finish(struct nd_recording *recording,
                        uint64_t n_dropped,
                        uint64_t n_gaps,
                        struct nd_fault *fault);

/* Closes the file as it is, if it is open, and frees everything. */
void nd_recording_deinit(struct nd_recording *recording);
