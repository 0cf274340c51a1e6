/* SPDX-License-Identifier: MIT */

/*
 * Fuzz: topics and patterns
 *
 * The input is a pattern, a NUL, and a topic. What the checks accept, the matcher must judge as a
 * naive recursive one does; and every topic is a pattern that matches itself.
 */

#include <string.h>
#include "protocol/base.h"
#include "protocol/topic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

/* The definition, word by word; exponential, so only short inputs are given to it. */
static bool naive(const char *p, const char *p_end, const char *t, const char *t_end, bool is_first)
{
        const char *p_slash, *t_slash, *p_next, *t_next;

        if (p == p_end)
                return t == t_end;
        if (is_first && t < t_end && t[0] == '$' && p[0] == '*')
                return false;
        p_slash = memchr(p, '/', (size_t)(p_end - p));
        p_slash = p_slash ? p_slash : p_end;
        p_next = p_slash < p_end ? p_slash + 1 : p_end;

        t_slash = t < t_end ? memchr(t, '/', (size_t)(t_end - t)) : NULL;
        t_slash = t_slash ? t_slash : t_end;
        t_next = t_slash < t_end ? t_slash + 1 : t_end;

        if (p_slash - p == 2 && memcmp(p, "**", 2) == 0)
                return naive(p_next, p_end, t, t_end, false) ||
                       (t < t_end && naive(p, p_end, t_next, t_end, false));
        if (t == t_end)
                return false;
        if (p_slash - p == 1 && p[0] == '*')
                return naive(p_next, p_end, t_next, t_end, false);
        return p_slash - p == t_slash - t && memcmp(p, t, (size_t)(p_slash - p)) == 0 &&
               naive(p_next, p_end, t_next, t_end, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data)
{
        const char *pattern = (const char *)data, *topic;
        const uint8_t *nul = n_data ? memchr(data, '\0', n_data) : NULL;
        size_t n_pattern, n_topic;
        struct nd_fault fault = {0};
        int r;

        if (!nul)
                return 0;
        n_pattern = (size_t)(nul - data);
        topic = (const char *)nul + 1;
        n_topic = n_data - n_pattern - 1;

        r = nd_pattern_check(pattern, n_pattern, &fault);
        nd_assert(r == 0 || (r == NDBUS_ETOPIC && fault.text[0]));
        if (r)
                n_pattern = 0;

        r = nd_topic_check(topic, n_topic, &fault);
        nd_assert(r == 0 || r == NDBUS_ETOPIC);
        if (r)
                return 0;
        nd_assert(nd_pattern_check(topic, n_topic, NULL) == 0);
        nd_assert(nd_pattern_match(topic, n_topic, topic, n_topic));

        if (n_pattern == 0)
                return 0;
        if (n_pattern > 32 || n_topic > 32) {
                nd_pattern_match(pattern, n_pattern, topic, n_topic);
                return 0;
        }
        nd_assert(nd_pattern_match(pattern, n_pattern, topic, n_topic) ==
                  naive(pattern, pattern + n_pattern, topic, topic + n_topic, true));
        return 0;
}
