/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Encode: packed headers of the messages that are published, the recent ones kept
 */

#include "protocol/header.h"

/* What stays the same from message to message of a stream. */
struct nd_encoded {
        uint8_t *key; /* all that the header depends on */
        size_t n_key;
        void *header; /* packed */
        size_t n_header;
        size_t n_topic;
        struct nd_plan *plans; /* [n_arrays] */
        size_t n_arrays;
        int32_t ndim_max;
        uint64_t body_bytes;
};

struct nd_encoder {
        struct nd_encoded entries[ND_HEADER_CACHE_N];
        size_t i_last; /* hit or made last */
        size_t i_next; /* to be replaced next */
        uint8_t *key;  /* of the message at hand */
        size_t n_key;
        size_t n_key_max;
};

/* What a header is made of. */
struct nd_encode_input {
        const char *topic;
        const char *reply;    /* or NULL */
        const char *encoding; /* or NULL */
        const struct ndbus_array *arrays;
        size_t n_arrays;
};

/**
 * nd_encode() - find or make the header of a message
 * @ret:  borrowed from the encoder until the next call
 *
 * Checks everything that can be checked without a daemon: topic, reply, arrays.
 *
 * Return: 0, or what nd_topic_check(), nd_layout_plan(), nd_layout_place() return; NDBUS_ENOMEM
 */
int nd_encode(struct nd_encoder *encoder,
              const struct nd_encode_input *input,
              const struct nd_encoded **ret,
              struct nd_fault *fault);

void nd_encoder_deinit(struct nd_encoder *encoder);
