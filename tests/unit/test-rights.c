/* SPDX-License-Identifier: MIT */

/*
 * Rights: which patterns meet and cover which, against all topics that there are; who is named
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "daemon/rights.h"
#include "protocol/topic.h"

static struct nd_rights *
resolve(const char *const *texts, const struct nd_identity *identity, struct nd_rules **ret)
{
        struct nd_rights *rights;
        struct nd_fault fault;

        *ret = NULL;
        for (; *texts; ++texts)
                cr_assert_eq(nd_rights_add(ret, *texts, "allow", &fault), 0, "%s: %s", *texts,
                             fault.text);
        cr_assert_eq(nd_rights_resolve(*ret, identity, &rights), 0);
        return rights;
}

Test(rights, a_comma_without_a_right_is_refused)
{
        static const char *const texts[] = {"anyone publish,", "anyone ,publish",
                                            "anyone publish,,retain", "anyone ,"};
        struct nd_rules *rules = NULL;
        struct nd_fault fault;

        for (size_t i = 0; i < nd_array_size(texts); ++i) {
                cr_expect_eq(nd_rights_add(&rules, texts[i], "f", &fault), NDBUS_EINVAL, "%s",
                             texts[i]);
                cr_expect_str_eq(fault.field, "f");
                cr_expect(strstr(fault.text, texts[i]) && strstr(fault.text, "no right beside it"),
                          "%s: %s", texts[i], fault.text);
        }
        cr_expect_null(rules);
}

Test(rights, without_rules_everything_is_allowed)
{
        const struct nd_identity identity = {.has_user = true};
        struct nd_rights *rights;

        cr_assert_eq(nd_rights_resolve(NULL, &identity, &rights), 0);
        cr_expect_null(rights);
        cr_expect(nd_rights_are_any(rights) && nd_rights_allow_stats(rights));
        cr_expect(nd_rights_allow(rights, ND_RIGHT_PUBLISH, "a", 1));
        cr_expect(nd_rights_cover(rights, ND_RIGHT_BLOCK, "**", 2));
        cr_expect_eq(nd_rights_missing(rights, ND_RIGHT_GROUP, "**", 2), 0);
}

Test(rights, who_is_named)
{
        static const char *const texts[] = {"user:7 publish u", "group:70 publish g",
                                            "anyone subscribe,stats a", NULL};
        static const uint32_t gids[] = {69, 70};

        static const struct {
                struct nd_identity identity;
                bool user, group;
        } rows[] = {
                {{.has_user = true, .uid = 7}, true, false},
                {{.has_user = true, .uid = 70, .gids = gids, .n_gids = 1}, false, false},
                {{.has_user = true, .uid = 8, .gids = gids, .n_gids = 2}, false, true},
                {{.has_user = true, .uid = 7, .gids = gids, .n_gids = 2}, true, true},
                {{.has_user = false, .uid = 7}, false, false}, /* TCP */
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_rules *rules;
                struct nd_rights *rights = resolve(texts, &rows[i].identity, &rules);

                cr_expect_eq(nd_rights_allow(rights, ND_RIGHT_PUBLISH, "u", 1), rows[i].user, "%zu",
                             i);
                cr_expect_eq(nd_rights_allow(rights, ND_RIGHT_PUBLISH, "g", 1), rows[i].group,
                             "%zu", i);
                cr_expect(nd_rights_allow(rights, ND_RIGHT_SUBSCRIBE, "a", 1));
                cr_expect_not(nd_rights_allow(rights, ND_RIGHT_SUBSCRIBE, "u", 1));
                cr_expect_not(nd_rights_allow(rights, ND_RIGHT_PUBLISH, "a", 1));
                cr_expect(nd_rights_allow_stats(rights));
                free(rights);
                nd_rules_free(rules);
        }
}

Test(rights, several_rules_add_up)
{
        static const char *const texts[] = {"anyone publish a/**", "anyone retain */b", NULL};
        const struct nd_identity identity = {0};
        struct nd_rules *rules;
        struct nd_rights *rights = resolve(texts, &identity, &rules);
        const unsigned both = ND_RIGHT_PUBLISH | ND_RIGHT_RETAIN;

        cr_expect(nd_rights_allow(rights, both, "a/b", 3));
        cr_expect_not(nd_rights_allow(rights, both, "a/c", 3));
        cr_expect_not(nd_rights_allow(rights, both, "c/b", 3));
        cr_expect_eq(nd_rights_missing(rights, both | ND_RIGHT_GROUP, "a/b", 3), ND_RIGHT_GROUP);
        cr_expect_eq(nd_rights_missing(rights, both, "c/b", 3), ND_RIGHT_PUBLISH);
        cr_expect_not(nd_rights_allow_stats(rights));
        free(rights);
        nd_rules_free(rules);
}

/* All patterns and topics of up to 3 segments over a small alphabet: meeting is that some topic
 * matches both; covering is never said if a topic speaks against it, and always of oneself. */
Test(rights, meeting_and_covering_are_what_topics_say)
{
        static const char *const words[] = {"a", "b", "*", "**"};
        static char patterns[84][16], topics[400][16];
        size_t n_patterns = 0, n_topics = 0;
        const struct nd_identity identity = {0};

        for (size_t n = 1; n <= 3; ++n)
                for (size_t code = 0; code < (size_t)1 << (2 * n); ++code) {
                        char *to = patterns[n_patterns++];

                        for (size_t i = 0; i < n; ++i)
                                to += sprintf(to, "%s%s", i ? "/" : "", words[code >> (2 * i) & 3]);
                }
        /* longer than the patterns, so that "**" can stand for much, and with a third word */
        for (size_t n = 1; n <= 5; ++n)
                for (size_t code = 0, end = 1; end && code < 243; ++code) {
                        char *to = topics[n_topics];
                        size_t rest = code;

                        for (size_t i = 0; i < n; ++i, rest /= 3)
                                to += sprintf(to, "%s%c", i ? "/" : "", "abc"[rest % 3]);
                        end = rest == 0;
                        n_topics += end && n_topics + 1 < nd_array_size(topics);
                }
        cr_assert_eq(n_patterns, nd_array_size(patterns));
        cr_assert_geq(n_topics, 363);

        for (size_t i = 0; i < n_patterns; ++i) {
                char rule[64];
                const char *texts[] = {rule, NULL};
                struct nd_rules *rules;
                struct nd_rights *rights;

                snprintf(rule, sizeof(rule), "anyone subscribe %s", patterns[i]);
                rights = resolve(texts, &identity, &rules);
                for (size_t k = 0; k < n_patterns; ++k) {
                        const char *b = patterns[k];
                        bool meets = false, covers = true;
                        bool said_missing =
                                nd_rights_missing(rights, ND_RIGHT_SUBSCRIBE, b, strlen(b)) != 0;
                        bool said_covers =
                                nd_rights_cover(rights, ND_RIGHT_SUBSCRIBE, b, strlen(b));

                        for (size_t t = 0; t < n_topics; ++t) {
                                size_t n = strlen(topics[t]);
                                bool in_b = nd_pattern_match(b, strlen(b), topics[t], n);
                                bool in_a = nd_pattern_match(patterns[i], strlen(patterns[i]),
                                                             topics[t], n);

                                meets = meets || (in_a && in_b);
                                covers = covers && (in_a || !in_b);
                        }
                        cr_assert_eq(said_missing, !meets, "%s, %s", patterns[i], b);
                        cr_assert(!said_covers || covers, "%s, %s", patterns[i], b);
                        cr_assert(said_covers || i != k, "%s", b);
                        if (nd_pattern_is_wild(b, strlen(b)) == false)
                                cr_assert_eq(said_covers, covers, "%s, %s", patterns[i], b);
                }
                free(rights);
                nd_rules_free(rules);
        }
}

Test(rights, the_longest_patterns)
{
        static char rule[300], pattern[256];
        const char *texts[] = {rule, NULL};
        const struct nd_identity identity = {0};
        struct nd_rules *rules;
        struct nd_rights *rights;

        for (size_t i = 0; i < 255; ++i)
                pattern[i] = i % 2 ? '/' : 'a';
        snprintf(rule, sizeof(rule), "anyone subscribe **/%s", pattern + 4);
        rights = resolve(texts, &identity, &rules);
        cr_expect(nd_rights_cover(rights, ND_RIGHT_SUBSCRIBE, pattern, 255));
        cr_expect(nd_rights_allow(rights, ND_RIGHT_SUBSCRIBE, pattern, 255));
        pattern[254] = 'b';
        cr_expect_not(nd_rights_cover(rights, ND_RIGHT_SUBSCRIBE, pattern, 255));
        cr_expect_eq(nd_rights_missing(rights, ND_RIGHT_SUBSCRIBE, pattern, 255),
                     ND_RIGHT_SUBSCRIBE);
        free(rights);
        nd_rules_free(rules);
}

Test(rights, wildcards_do_not_lead_to_the_systems_topics)
{
        static const char *const texts[] = {"anyone subscribe **", NULL};
        const struct nd_identity identity = {0};
        struct nd_rules *rules;
        struct nd_rights *rights = resolve(texts, &identity, &rules);

        cr_expect_not(nd_rights_cover(rights, ND_RIGHT_SUBSCRIBE, "$sys/**", 7));
        cr_expect_neq(nd_rights_missing(rights, ND_RIGHT_SUBSCRIBE, "$sys/a", 6), 0);
        cr_expect_not(nd_rights_allow(rights, ND_RIGHT_SUBSCRIBE, "$sys/a", 6));
        free(rights);
        nd_rules_free(rules);
}
