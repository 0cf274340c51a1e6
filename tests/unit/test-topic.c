/* SPDX-License-Identifier: MIT */

/*
 * Topics and patterns
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/topic.h"

#define LIT(_text) _text, sizeof(_text) - 1

struct text {
        const char *at;
        size_t n;
};

#define TEXT(_text)                                                                                \
        {                                                                                          \
                LIT(_text)                                                                         \
        }

static const struct text good_topics[] = {
        TEXT("a"),
        TEXT("a/b/c"),
        TEXT("$sys/clients"),
        TEXT("$reply/123/4"),
        TEXT("a/$b"),
        TEXT("a b"),
        TEXT("."),
        TEXT("#/+/>"),    /* wildcards of others are ordinary characters */
        TEXT("\xc2\xa0"), /* U+00A0, the first behind the C1 controls */
        TEXT("mesure/\xc3\xa9t\xc3\xa9"),
        TEXT("\xdf\xbf"),         /* U+07FF */
        TEXT("\xe0\xa0\x80"),     /* U+0800 */
        TEXT("\xed\x9f\xbf"),     /* U+D7FF, below the surrogates */
        TEXT("\xee\x80\x80"),     /* U+E000, above them */
        TEXT("\xef\xbf\xbf"),     /* U+FFFF */
        TEXT("\xf0\x90\x80\x80"), /* U+10000 */
        TEXT("\xf4\x8f\xbf\xbf"), /* U+10FFFF */
};

/* of topics and patterns alike */
static const struct text bad_texts[] = {
        TEXT(""),
        TEXT("/"),
        TEXT("/a"),
        TEXT("a/"),
        TEXT("a//b"),
        TEXT("a\0b"),
        TEXT("\0"),
        TEXT("a\nb"),
        TEXT("\x1f"),
        TEXT("\x7f"),
        TEXT("\xc2\x80"), /* U+0080 */
        TEXT("\xc2\x9f"), /* U+009F */
        TEXT("\x80"),     /* a tail without its head */
        TEXT("\xbf"),
        TEXT("\xc3"), /* heads without their tails */
        TEXT("\xe2\x82"),
        TEXT("\xf0\x90\x80"),
        TEXT("\xc3/"),
        TEXT("\xe2\x82/\xac"),
        TEXT("\xc0\xaf"), /* overlong '/' */
        TEXT("\xc0\x80"), /* overlong NUL */
        TEXT("\xc1\xbf"),
        TEXT("\xe0\x80\xaf"),
        TEXT("\xe0\x9f\xbf"),
        TEXT("\xf0\x80\x80\xaf"),
        TEXT("\xf0\x8f\xbf\xbf"),
        TEXT("\xed\xa0\x80"),     /* U+D800 */
        TEXT("\xed\xbf\xbf"),     /* U+DFFF */
        TEXT("\xf4\x90\x80\x80"), /* U+110000 */
        TEXT("\xf5\x80\x80\x80"),
        TEXT("\xf8\x88\x80\x80\x80"),
        TEXT("\xfe"),
        TEXT("\xff"),
};

Test(topic, accepts_what_is_right)
{
        for (size_t i = 0; i < nd_array_size(good_topics); ++i) {
                struct nd_fault fault = {0};

                cr_expect_eq(nd_topic_check(good_topics[i].at, good_topics[i].n, &fault), 0,
                             "%zu: %s", i, fault.text);
                cr_expect_eq(nd_pattern_check(good_topics[i].at, good_topics[i].n, &fault), 0,
                             "%zu: %s", i, fault.text);
        }
}

Test(topic, refuses_what_is_wrong)
{
        for (size_t i = 0; i < nd_array_size(bad_texts); ++i) {
                struct nd_fault fault = {0};

                cr_expect_eq(nd_topic_check(bad_texts[i].at, bad_texts[i].n, &fault), NDBUS_ETOPIC,
                             "%zu", i);
                cr_expect_str_eq(fault.field, "topic");
                cr_expect_eq(nd_pattern_check(bad_texts[i].at, bad_texts[i].n, &fault),
                             NDBUS_ETOPIC, "%zu", i);
                cr_expect_str_eq(fault.field, "pattern");
        }
}

Test(topic, is_at_most_255_bytes)
{
        char text[256];
        struct nd_fault fault = {0};

        memset(text, 'a', sizeof(text));
        cr_expect_eq(nd_topic_check(text, 255, &fault), 0);
        cr_expect_eq(nd_pattern_check(text, 255, &fault), 0);
        cr_expect_eq(nd_topic_check(text, 256, &fault), NDBUS_ETOPIC);
        cr_expect(fault.has_numbers);
        cr_expect_eq(fault.value, 256);
        cr_expect_eq(fault.limit, 255);
        cr_expect_eq(nd_pattern_check(text, 256, &fault), NDBUS_ETOPIC);
}

Test(topic, has_no_asterisk)
{
        static const char *const texts[] = {"*", "**", "a/*", "a*b", "a/**/b"};

        for (size_t i = 0; i < nd_array_size(texts); ++i)
                cr_expect_eq(nd_topic_check(texts[i], strlen(texts[i]), NULL), NDBUS_ETOPIC, "%s",
                             texts[i]);
}

Test(pattern, has_wildcards_for_whole_segments_only)
{
        static const struct {
                const char *pattern;
                int want;
        } cases[] = {
                {"*", 0},
                {"**", 0},
                {"a/*/b/**", 0},
                {"**/**", 0},
                {"$sys/**", 0},
                {"**/**/**/**/**/**/**/**", 0}, /* 8 */
                {"**/**/**/**/**/**/**/**/**", NDBUS_ETOPIC},
                {"***", NDBUS_ETOPIC},
                {"a*", NDBUS_ETOPIC},
                {"*a", NDBUS_ETOPIC},
                {"a/b*/c", NDBUS_ETOPIC},
                {"**a", NDBUS_ETOPIC},
                {"a/***/b", NDBUS_ETOPIC},
                {"a//*", NDBUS_ETOPIC},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                const char *p = cases[i].pattern;

                cr_expect_eq(nd_pattern_check(p, strlen(p), NULL), cases[i].want, "%s", p);
        }
}

Test(pattern, is_wild_with_an_asterisk)
{
        cr_expect(nd_pattern_is_wild(LIT("a/*")));
        cr_expect(nd_pattern_is_wild(LIT("**")));
        cr_expect_not(nd_pattern_is_wild(LIT("a/b")));
        cr_expect_not(nd_pattern_is_wild(NULL, 0));
}

static const struct {
        const char *pattern;
        const char *topic;
        bool want;
} matches[] = {
        /* T47 */
        {"a/*", "a/b", true},
        {"a/*", "a/bc", true},
        {"a/b", "a/b", true},
        {"a/b", "a/bc", false},
        {"tx", "tx_trytes", false},
        {"a/*", "tx_trytes", false},

        {"a", "a", true},
        {"a", "b", false},
        {"a", "a/b", false},
        {"a/b", "a", false},
        {"a/b", "ab", false},
        {"A", "a", false},

        {"*", "a", true},
        {"*", "a/b", false},
        {"*/*", "a/b", true},
        {"*/b", "a/b", true},
        {"a/*", "a", false},
        {"a/*/c", "a/b/c", true},
        {"a/*/c", "a/b/d/c", false},

        {"**", "a", true},
        {"**", "a/b/c", true},
        {"a/**", "a", true},
        {"a/**", "a/b/c", true},
        {"a/**", "ab", false},
        {"**/c", "c", true},
        {"**/c", "a/b/c", true},
        {"**/c", "a/b/cd", false},
        {"a/**/d", "a/d", true},
        {"a/**/d", "a/b/c/d", true},
        {"a/**/d", "a/b/c/d/e", false},
        {"a/**/d", "a/d/b/d", true},
        {"**/*", "a", true},
        {"**/*", "a/b", true},
        {"*/**", "a", true},
        {"*/**/*", "a", false},
        {"*/**/*", "a/b", true},
        {"**/**", "a", true},
        {"**/a/**/a/**", "a", false},
        {"**/a/**/a/**", "a/a", true},
        {"**/a/**/a/**", "b/a/b/a/b", true},
        {"**/a/b/**/a/c", "a/a/b/a/b/a/c", true},
        {"**/a/*/c/**", "x/a/a/b/c/y", true},

        /* no wildcard in front, whatever it stands for, leads to the system's topics */
        {"*", "$sys", false},
        {"**", "$sys", false},
        {"**", "$sys/a", false},
        {"*/a", "$sys/a", false},
        {"**/a", "$sys/a", false},
        {"$sys", "$sys", true},
        {"$sys/*", "$sys/a", true},
        {"$sys/**", "$sys", true},
        {"$sys/**", "$sys/a/b", true},
        {"**/$sys/a", "$sys/a", false},
        {"**/$reply/7/1", "$reply/7/1", false},
        {"**/**/$sys/**/b", "$sys/a/b", false},
        {"**/$sys/a", "b/$sys/a", true},
        {"a/*", "a/$b", true},
        {"**", "a/$b", true},
        {"*/**", "$sys/a", false},
};

Test(pattern, matches_by_segments)
{
        for (size_t i = 0; i < nd_array_size(matches); ++i) {
                const char *p = matches[i].pattern, *t = matches[i].topic;

                cr_assert_eq(nd_pattern_check(p, strlen(p), NULL), 0, "%s", p);
                cr_assert_eq(nd_topic_check(t, strlen(t), NULL), 0, "%s", t);
                cr_expect_eq(nd_pattern_match(p, strlen(p), t, strlen(t)), matches[i].want,
                             "%s and %s", p, t);
        }
}

/* Eight "**" between equal segments: a matcher that tries all ways would not come back. */
Test(pattern, is_bounded_whatever_the_pattern, .timeout = 10)
{
        char pattern[] = "**/a/**/a/**/a/**/a/**/a/**/a/**/a/**/a/b";
        char topic[256];
        size_t n = 0;

        while (n + 2 <= ND_TOPIC_BYTES_MAX) {
                topic[n++] = 'a';
                topic[n++] = '/';
        }
        topic[n - 1] = '\0';

        for (int i = 0; i < 10000; ++i)
                cr_assert_not(nd_pattern_match(pattern, sizeof(pattern) - 1, topic, n - 1));
}

Test(topic, is_walked_segment_by_segment)
{
        const char *segment;
        size_t at = 0, n;

        cr_assert(nd_topic_next_segment(LIT("ab/c/**"), &at, &segment, &n));
        cr_expect(n == 2 && memcmp(segment, "ab", 2) == 0);
        cr_assert(nd_topic_next_segment(LIT("ab/c/**"), &at, &segment, &n));
        cr_expect(n == 1 && memcmp(segment, "c", 1) == 0);
        cr_assert(nd_topic_next_segment(LIT("ab/c/**"), &at, &segment, &n));
        cr_expect(n == 2 && memcmp(segment, "**", 2) == 0);
        cr_expect_not(nd_topic_next_segment(LIT("ab/c/**"), &at, &segment, &n));
        cr_expect_not(nd_topic_next_segment(LIT("ab/c/**"), &at, &segment, &n));
        cr_expect(n == 2, "results were written");
}

Test(topic, where_a_source_awaits_its_answers)
{
        cr_expect(nd_topic_is_answer_to("$reply/7/1", 7));
        cr_expect(nd_topic_is_answer_to("$reply/18446744073709551615/18446744073709551615",
                                        UINT64_MAX));
        cr_expect_not(nd_topic_is_answer_to("$reply/7/1", 8));
        cr_expect_not(nd_topic_is_answer_to("$reply/7/1", 77));
        cr_expect_not(nd_topic_is_answer_to("$reply/77/1", 7));
        cr_expect_not(nd_topic_is_answer_to("$reply/7", 7));
        cr_expect_not(nd_topic_is_answer_to("$reply/7/", 7));
        cr_expect_not(nd_topic_is_answer_to("$reply/7/x", 7));
        cr_expect_not(nd_topic_is_answer_to("$reply/7/1/2", 7));
        cr_expect_not(nd_topic_is_answer_to("$reply/07/1", 7));
        cr_expect_not(nd_topic_is_answer_to("a/$reply/7/1", 7));
        cr_expect_not(nd_topic_is_answer_to("", 7));
}
