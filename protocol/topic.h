/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Topics and patterns; PROTOCOL.md 6
 *
 * A topic is 1 to 255 bytes of UTF-8 in '/'-separated segments, none empty, without '*' and control
 * characters. In a pattern "*" stands for one whole segment, "**" for any number of them, none
 * included. A topic whose first segment begins with '$' is matched only by patterns that begin with
 * '$' too, so that nobody hears the system's topics by way of a wildcard.
 */

#include "protocol/fault.h"
#include "protocol/limit.h"

/* 0 or NDBUS_ETOPIC. Strings need no NUL; a NUL inside is a control character. */
int nd_topic_check(const char *topic, size_t n_topic, struct nd_fault *fault);
int nd_pattern_check(const char *pattern, size_t n_pattern, struct nd_fault *fault);

/* Both must have been checked. Bounded by n_pattern * n_topic steps whatever the pattern. */
bool nd_pattern_match(const char *pattern, size_t n_pattern, const char *topic, size_t n_topic);

/* Does the pattern have a wildcard? */
bool nd_pattern_is_wild(const char *pattern, size_t n_pattern);

/*
 * The segment that begins at *@i_at of a checked topic or pattern; moves *@i_at behind it and its
 * '/'. Returns false when there is none left.
 */
bool nd_topic_next_segment(const char *topic,
                           size_t n_topic,
                           size_t *i_at,
                           const char **ret_segment,
                           size_t *ret_n_segment);

/* Is it one that requests are answered on, $reply/...? Of the system's topics clients publish on
 * these alone. */
bool nd_topic_is_answer(const char *topic);

/* Is it $reply/SOURCE/N, both in decimal, where this source awaits an answer? */
bool nd_topic_is_answer_to(const char *topic, uint64_t source);
