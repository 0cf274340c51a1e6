/* SPDX-License-Identifier: MIT */

/*
 * Topics and patterns
 *
 * Topics are shown to operators, compared byte by byte and used as keys. So they are strict: UTF-8
 * in its one shortest form, nothing that moves a terminal's cursor, and no second spelling of the
 * same topic by empty segments. Wildcards stand for whole segments only.
 *
 * Matching walks both strings once and remembers only the last "**" it met: when what follows does
 * not fit, that "**" takes one segment more. An earlier "**" never has to be asked again, because
 * whatever it could give up the later one can take as well. That bounds the work by the product
 * of the lengths, where recursion over several "**" would be exponential.
 */

#include "protocol/topic.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "protocol/utf8.h"

/* U+0000 to U+001F, U+007F to U+009F: the latter two bytes long, beginning with 0xc2. */
static bool is_control(const uint8_t *p)
{
        return p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
}

/* What topics and patterns have in common: length, UTF-8, no control characters, no empty segment. */
static int check_text(const char *text, size_t n_text, const char *field, struct nd_fault *fault)
{
        const uint8_t *p = (const uint8_t *)text;
        bool at_start = true; /* of a segment */

        if (n_text == 0)
                return nd_fault_set(fault, NDBUS_ETOPIC, field, "is empty");
        if (n_text > ND_TOPIC_BYTES_MAX)
                return nd_fault_set_limit(fault, NDBUS_ETOPIC, field, n_text, ND_TOPIC_BYTES_MAX,
                                          "bytes");

        if (!nd_utf8_is_valid(text, n_text))
                return nd_fault_set(fault, NDBUS_ETOPIC, field, "is not UTF-8");

        for (size_t i = 0; i < n_text; ++i) {
                if (is_control(p + i))
                        return nd_fault_set(fault, NDBUS_ETOPIC, field,
                                            "has a control character at byte %zu", i);
                if (p[i] == '/' && at_start)
                        return nd_fault_set(fault, NDBUS_ETOPIC, field,
                                            "has an empty segment at byte %zu", i);
                at_start = p[i] == '/';
        }
        if (at_start)
                return nd_fault_set(fault, NDBUS_ETOPIC, field, "ends with an empty segment");
        return 0;
}

int nd_topic_check(const char *topic, size_t n_topic, struct nd_fault *fault)
{
        int r = check_text(topic, n_topic, "topic", fault);

        if (r)
                return r;
        if (nd_pattern_is_wild(topic, n_topic))
                return nd_fault_set(fault, NDBUS_ETOPIC, "topic",
                                    "has a '*', which only patterns may have");
        return 0;
}

static bool segment_is_globstar(const char *segment, size_t n)
{
        return n == 2 && segment[0] == '*' && segment[1] == '*';
}

int nd_pattern_check(const char *pattern, size_t n_pattern, struct nd_fault *fault)
{
        const char *segment;
        size_t at = 0, n, n_globstars = 0;
        int r;

        r = check_text(pattern, n_pattern, "pattern", fault);
        if (r)
                return r;

        while (nd_topic_next_segment(pattern, n_pattern, &at, &segment, &n)) {
                if (segment_is_globstar(segment, n))
                        ++n_globstars;
                else if (n > 1 && nd_pattern_is_wild(segment, n))
                        return nd_fault_set(
                                fault, NDBUS_ETOPIC, "pattern",
                                "has a '*' in the segment at byte %zu; a wildcard stands "
                                "for whole segments",
                                (size_t)(segment - pattern));
        }
        if (n_globstars > ND_GLOBSTARS_MAX)
                return nd_fault_set_limit(fault, NDBUS_ETOPIC, "pattern", n_globstars,
                                          ND_GLOBSTARS_MAX, "\"**\"");
        return 0;
}

bool nd_pattern_is_wild(const char *pattern, size_t n_pattern)
{
        return n_pattern > 0 && memchr(pattern, '*', n_pattern);
}

bool nd_topic_next_segment(const char *topic,
                           size_t n_topic,
                           size_t *i_at,
                           const char **ret_segment,
                           size_t *ret_n_segment)
{
        const char *slash;
        size_t at = *i_at, n;

        if (at >= n_topic)
                return false;

        slash = memchr(topic + at, '/', n_topic - at);
        n = slash ? (size_t)(slash - (topic + at)) : n_topic - at;

        *ret_segment = topic + at;
        *ret_n_segment = n;
        *i_at = at + n + (slash ? 1 : 0);
        return true;
}

bool nd_pattern_match(const char *pattern, size_t n_pattern, const char *topic, size_t n_topic)
{
        bool has_star = false;
        size_t i_p = 0, i_t = 0;       /* where the next segments begin */
        size_t star_p = 0, star_t = 0; /* behind the last "**"; what it does not take yet */
        size_t n_p, n_t;
        const char *p, *t;

        /* also where a "**" in front stands for nothing: $reply/... is one client's alone */
        if (n_topic > 0 && topic[0] == '$' && (n_pattern == 0 || pattern[0] != '$'))
                return false;

        while (i_t < n_topic) {
                size_t next_p = i_p, next_t = i_t;

                if (nd_topic_next_segment(pattern, n_pattern, &next_p, &p, &n_p)) {
                        if (segment_is_globstar(p, n_p)) {
                                has_star = true;
                                star_p = i_p = next_p;
                                star_t = i_t;
                                continue;
                        }
                        nd_topic_next_segment(topic, n_topic, &next_t, &t, &n_t);
                        if ((n_p == 1 && p[0] == '*') || (n_p == n_t && memcmp(p, t, n_p) == 0)) {
                                i_p = next_p;
                                i_t = next_t;
                                continue;
                        }
                }

                /* it does not fit: the last "**" takes one segment more */
                if (!has_star)
                        return false;
                nd_topic_next_segment(topic, n_topic, &star_t, &t, &n_t);
                i_t = star_t;
                i_p = star_p;
        }

        /* the topic is used up: what is left of the pattern must be content with nothing */
        while (nd_topic_next_segment(pattern, n_pattern, &i_p, &p, &n_p))
                if (!segment_is_globstar(p, n_p))
                        return false;
        return true;
}

bool nd_topic_is_answer(const char *topic)
{
        return strncmp(topic, "$reply/", 7) == 0;
}

bool nd_topic_is_answer_to(const char *topic, uint64_t source)
{
        char own[40];
        int n = snprintf(own, sizeof(own), "$reply/%" PRIu64 "/", source);
        size_t n_digits;

        if (strncmp(topic, own, (size_t)n) != 0)
                return false;
        n_digits = strspn(topic + n, "0123456789");
        return n_digits > 0 && topic[(size_t)n + n_digits] == '\0';
}
