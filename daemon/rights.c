/* SPDX-License-Identifier: MIT */

/*
 * Rights
 *
 * A rule is WHO, rights, patterns. Rules only ever allow, so their order means nothing, and who reads
 * the file need not think of exceptions to exceptions.
 *
 * What a connection may do is asked when it subscribes, when it publishes with a header that is new,
 * and when a route is made; never for each message.
 *
 * Two patterns are compared segment by segment: do they meet, that is, is there a topic that both
 * match; does one cover the other, that is, match every topic that the other does. For covering, the
 * wildcards of the other are taken as segments of their own that only wildcards match, so it is never
 * said wrongly; that several patterns cover one together is not found.
 */

#include "daemon/rights.h"
#include <string.h>
#include "protocol/topic.h"

#define RULE_SEGMENTS_MAX (ND_TOPIC_BYTES_MAX / 2 + 1)

struct rule {
        struct nd_rule rule; /* first: its memory is the rule's */
        unsigned rights;
        size_t n_patterns;
        const char *patterns[ND_RULE_PATTERNS_MAX];
};

struct nd_rights {
        size_t n;
        const struct rule *rules[];
};

/* ----------------------------------------------------------------------------------- patterns */

struct segment {
        const char *at;
        size_t n;
};

static size_t pattern_split(const char *pattern,
                            size_t n_pattern,
                            struct segment out[static RULE_SEGMENTS_MAX + 1])
{
        size_t i_at = 0, n = 0;

        while (nd_topic_next_segment(pattern, n_pattern, &i_at, &out[n].at, &out[n].n))
                ++n;
        return n;
}

static bool segment_is(const struct segment *segment, const char *text)
{
        return segment->n == strlen(text) && memcmp(segment->at, text, segment->n) == 0;
}

static bool segment_meets(const struct segment *a, const struct segment *b, bool is_cover)
{
        if (segment_is(a, "*") || (!is_cover && segment_is(b, "*")))
                return true;
        return a->n == b->n && memcmp(a->at, b->at, a->n) == 0;
}

/* Do the patterns meet; with @is_cover, does @a cover @b? From the ends to the starts: fits[i][k] says
 * it of the segments from i and k on. */
static bool pattern_fits(const char *a, const char *b, size_t n_b, bool is_cover)
{
        struct segment of_a[RULE_SEGMENTS_MAX + 1], of_b[RULE_SEGMENTS_MAX + 1];
        bool fits[2][RULE_SEGMENTS_MAX + 1];
        size_t n_of_a = pattern_split(a, strlen(a), of_a);
        size_t n_of_b = pattern_split(b, n_b, of_b);

        if ((a[0] == '$') != (b[0] == '$'))
                return false; /* wildcards do not lead to the system's topics */
        for (size_t i = n_of_a + 1; i-- > 0;) {
                bool *here = fits[i & 1], *next = fits[(i + 1) & 1];
                bool a_any = i < n_of_a && segment_is(&of_a[i], "**");

                for (size_t k = n_of_b + 1; k-- > 0;) {
                        bool b_any = k < n_of_b && segment_is(&of_b[k], "**");

                        here[k] = i == n_of_a && k == n_of_b;
                        if (a_any)
                                here[k] = next[k] || (k < n_of_b && here[k + 1]);
                        if (b_any && !is_cover)
                                here[k] = here[k] || here[k + 1] || (i < n_of_a && next[k]);
                        if (!a_any && !b_any && i < n_of_a && k < n_of_b)
                                here[k] =
                                        next[k + 1] && segment_meets(&of_a[i], &of_b[k], is_cover);
                }
        }
        return fits[0][0];
}

/* -------------------------------------------------------------------------------------- rules */

static const char *right_name(enum nd_right right)
{
#define XX(_name, _bit, _text)                                                                     \
        if (right == ND_RIGHT_##_name)                                                             \
                return _text;
        ND_RIGHTS(XX)
#undef XX
        return "?";
}

static int
rule_parse_rights(struct rule *rule, char *text, const char *field, struct nd_fault *fault)
{
        for (char *name; (name = strsep(&text, ","));) {
                unsigned right = 0;

                if (*name == '\0')
                        return nd_fault_set(fault, NDBUS_EINVAL, field,
                                            "'%s' has a comma and no right beside it",
                                            rule->rule.given);
#define XX(_name, _bit, _text)                                                                     \
        if (strcmp(name, _text) == 0)                                                              \
                right = 1u << (_bit);
                ND_RIGHTS(XX)
#undef XX
                if (!right)
                        return nd_fault_set(fault, NDBUS_EINVAL, field,
                                            "'%s' is not publish, subscribe, block, retain, group "
                                            "or stats",
                                            name);
                rule->rights |= right;
        }
        return 0;
}

static int rule_parse_pattern(struct rule *rule,
                              const char *pattern,
                              const char *field,
                              struct nd_fault *fault)
{
        struct nd_fault why;

        if (rule->n_patterns == ND_RULE_PATTERNS_MAX)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, field, ND_RULE_PATTERNS_MAX + 1,
                                          ND_RULE_PATTERNS_MAX, "patterns of one rule");
        if (nd_pattern_check(pattern, strlen(pattern), &why))
                return nd_fault_set(fault, NDBUS_EINVAL, field, "pattern '%s' %s", pattern,
                                    why.text);
        if (pattern[0] == '$')
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "pattern '%s': topics that begin with '$' are the system's",
                                    pattern);
        rule->patterns[rule->n_patterns++] = pattern;
        return 0;
}

static int rule_parse(struct rule *rule, const char *field, struct nd_fault *fault)
{
        static const char spaces[] = " \t";
        char *save = NULL;
        char *who = strtok_r(rule->rule.text, spaces, &save);
        char *rights = strtok_r(NULL, spaces, &save);
        int r;

        if (!who || !rights)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%s' is not WHO RIGHT,RIGHT PATTERN ...", rule->rule.given);
        r = nd_who_parse(who, field, &rule->rule.who, fault);
        r = r ? r : rule_parse_rights(rule, rights, field, fault);
        for (char *word; !r && (word = strtok_r(NULL, spaces, &save));)
                r = rule_parse_pattern(rule, word, field, fault);
        if (!r && rule->n_patterns == 0)
                rule->patterns[rule->n_patterns++] = "**";
        return r;
}

int nd_rights_add(struct nd_rules **rules,
                  const char *text,
                  const char *field,
                  struct nd_fault *fault)
{
        struct rule *rule = nd_rule_new(sizeof(*rule), text);
        int r;

        if (!rule)
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "no memory");
        r = rule_parse(rule, field, fault);
        r = r ? r : nd_rules_append(rules, &rule->rule, field, fault);
        if (r)
                nd_rule_free(&rule->rule);
        return r;
}

/* -------------------------------------------------------------------------- of one connection */

uint64_t nd_rights_cost(const struct nd_rules *rules)
{
        return rules ? sizeof(struct nd_rights) + rules->n * sizeof(struct rule *) : 0;
}

int nd_rights_resolve(const struct nd_rules *rules,
                      const struct nd_identity *identity,
                      struct nd_rights **ret_rights)
{
        struct nd_rights *rights = NULL;

        if (rules) {
                rights = malloc(nd_rights_cost(rules));
                if (!rights)
                        return NDBUS_ENOMEM;
                rights->n = 0;
                for (size_t i = 0; i < rules->n; ++i)
                        if (nd_who_names(&rules->rules[i]->who, identity))
                                rights->rules[rights->n++] =
                                        nd_container_of(rules->rules[i], struct rule, rule);
        }
        *ret_rights = rights;
        return 0;
}

bool nd_rights_are_any(const struct nd_rights *rights)
{
        return !rights || rights->n > 0;
}

bool nd_rights_allow_stats(const struct nd_rights *rights)
{
        bool is_allowed = !rights;

        for (size_t i = 0; rights && i < rights->n; ++i)
                is_allowed = is_allowed || rights->rules[i]->rights & ND_RIGHT_STATS;
        return is_allowed;
}

static bool rule_matches(const struct rule *rule, const char *topic, size_t n_topic)
{
        for (size_t i = 0; i < rule->n_patterns; ++i)
                if (nd_pattern_match(rule->patterns[i], strlen(rule->patterns[i]), topic, n_topic))
                        return true;
        return false;
}

bool nd_rights_allow(const struct nd_rights *rights,
                     unsigned needs,
                     const char *topic,
                     size_t n_topic)
{
        if (!rights)
                return true;
        for (size_t i = 0; needs && i < rights->n; ++i)
                if (rights->rules[i]->rights & needs &&
                    rule_matches(rights->rules[i], topic, n_topic))
                        needs &= ~rights->rules[i]->rights;
        return needs == 0;
}

/* Those of @needs for which no rule has a pattern that fits. */
static unsigned rights_unfit(const struct nd_rights *rights,
                             unsigned needs,
                             const char *pattern,
                             size_t n_pattern,
                             bool is_cover)
{
        for (size_t i = 0; rights && needs && i < rights->n; ++i) {
                const struct rule *rule = rights->rules[i];

                for (size_t k = 0; rule->rights & needs && k < rule->n_patterns; ++k)
                        if (pattern_fits(rule->patterns[k], pattern, n_pattern, is_cover))
                                needs &= ~rule->rights;
        }
        return rights ? needs : 0;
}

bool nd_rights_cover(const struct nd_rights *rights,
                     unsigned needs,
                     const char *pattern,
                     size_t n_pattern)
{
        return rights_unfit(rights, needs, pattern, n_pattern, true) == 0;
}

unsigned nd_rights_missing(const struct nd_rights *rights,
                           unsigned needs,
                           const char *pattern,
                           size_t n_pattern)
{
        unsigned missing = rights_unfit(rights, needs, pattern, n_pattern, false);

        return missing & ~(missing - 1);
}

int nd_rights_deny(enum nd_right right,
                   const char *field,
                   const char *name,
                   size_t n_name,
                   struct nd_fault *fault)
{
        return nd_fault_set(fault, NDBUS_EDENIED, field, "the right '%s' on %.*s is missing",
                            right_name(right), (int)n_name, name);
}
