/* SPDX-License-Identifier: MIT */

/*
 * Options
 *
 * Every type at its limits, and that an error names what was given and what would be right.
 */

#include <criterion/criterion.h>
#include <string.h>
#include "client/command/option.h"

#define TRIAL_OPTIONS(XX, S)                                                                       \
        XX(S, retain, "retain", FLAG, 0, 0, 0, "", "Keep it.")                                     \
        XX(S, url, "url", TEXT, 0, 0, 0, "URL", "Where the daemon is.")                            \
        XX(S, meta, "meta", LIST, 0, 0, 0, "KEY=VALUE", "More about it.")                          \
        XX(S, count, "count", COUNT, 7, 1, 1000, "N", "How many.")                                 \
        XX(S, bytes, "bytes", SIZE, 4096, 1, INT64_MAX, "SIZE", "How much.")                       \
        XX(S, timeout_ms, "timeout", TIME, 5000, 0, 3600000, "S", "How long.")                     \
        XX(S, rate, "rate", RATE, 0, 0, 1000000, "HZ", "How often.")                               \
        XX(S, factor, "factor", FACTOR, 1, 0, 10, "X", "How much faster.")                         \
        XX(S, output, "output", TEXT, 0, 0, 0, "DIR", "Where to.")                                 \
        XX(S, policy, "policy", CHOICE, 1, 0, 2, "one|two|three",                                  \
           "A sentence that is much too long for one line of eighty characters, so it is broken.")

ND_OPTION_DEFINE(trial, TRIAL_OPTIONS);

static const struct nd_command command = {
        .name = "trial",
        .arguments = "TOPIC [FILE]",
        .summary = "Try it.",
        .n_arguments_min = 1,
        .n_arguments_max = 2,
        .options = trial_options,
        .n_options = nd_array_size(trial_options),
        .values_bytes = sizeof(struct nd_trial_options),
};

/* Copies, as argv is not const. */
static int parse(const char *const *words, struct nd_option_result *ret, struct nd_fault *fault)
{
        static char buffer[32][128];
        char *argv[32];
        int argc = 0;

        for (; words[argc]; ++argc) {
                snprintf(buffer[argc], sizeof(buffer[argc]), "%s", words[argc]);
                argv[argc] = buffer[argc];
        }
        return nd_option_parse(&command, argc, argv, ret, fault);
}

Test(option, has_defaults)
{
        const char *const words[] = {"t", NULL};
        struct nd_option_result result;
        const struct nd_trial_options *o;

        cr_assert_eq(parse(words, &result, NULL), 0);
        o = result.values;
        cr_expect_not(o->retain);
        cr_expect_null(o->url);
        cr_expect_eq(o->meta.n, 0);
        cr_expect_eq(o->count, 7);
        cr_expect_eq(o->bytes, 4096);
        cr_expect_eq(o->timeout_ms, 5000);
        cr_expect(o->rate == 0);
        cr_expect(o->factor == 1);
        cr_expect_eq(o->policy, 1);
        cr_assert_eq(result.n_arguments, 1);
        nd_option_result_deinit(&command, &result);
}

Test(option, reads_every_type_in_any_order)
{
        const char *const words[] = {"--retain", "t",          "--url=tcp://h:1?a=b",
                                     "--meta",   "a=1",        "--count",
                                     "1000",     "-",          "--meta",
                                     "b=2",      "--bytes=2G", "--timeout",
                                     "2.5",      "--rate",     "0.5",
                                     "--policy", "three",      "--factor=0",
                                     "-o",       "d=e",        NULL};
        struct nd_option_result result;
        const struct nd_trial_options *o;

        cr_assert_eq(parse(words, &result, NULL), 0);
        o = result.values;
        cr_expect(o->retain);
        cr_expect_str_eq(o->url, "tcp://h:1?a=b");
        cr_assert_eq(o->meta.n, 2);
        cr_expect_str_eq(o->meta.items[0], "a=1");
        cr_expect_str_eq(o->meta.items[1], "b=2");
        cr_expect_eq(o->count, 1000);
        cr_expect_eq(o->bytes, UINT64_C(2) << 30);
        cr_expect_eq(o->timeout_ms, 2500);
        cr_expect(o->rate == 0.5);
        cr_expect(o->factor == 0);
        cr_expect_eq(o->policy, 2);
        cr_expect_str_eq(o->output, "d=e");
        cr_assert_eq(result.n_arguments, 2);
        cr_expect_str_eq(result.arguments[1], "-");
        nd_option_result_deinit(&command, &result);
}

Test(option, ends_at_two_dashes)
{
        const char *const words[] = {"--", "--count", "--", NULL};
        struct nd_option_result result;

        cr_assert_eq(parse(words, &result, NULL), 0);
        cr_assert_eq(result.n_arguments, 2);
        cr_expect_str_eq(result.arguments[0], "--count");
        cr_expect_str_eq(result.arguments[1], "--");
        nd_option_result_deinit(&command, &result);
}

Test(option, says_what_is_wrong_and_what_would_be_right)
{
        static const struct {
                const char *words[4];
                const char *field, *text;
        } cases[] = {
                {{"--cuont", "3"}, "--cuont", "no such option; did you mean --count?"},
                {{"--frobnicate"},
                 "--frobnicate",
                 "no such option; 'ndbus trial --help' lists them"},
                {{"-x"}, "-x", "no such option; 'ndbus trial --help' lists them"},
                {{"--count"}, "--count", "needs a value: --count N"},
                {{"--count", "0"}, "--count", "0 is out of range; give 1 to 1000"},
                {{"--count=1001"}, "--count", "1001 is out of range; give 1 to 1000"},
                {{"--count", "-3"}, "--count", "'-3' is no whole number; give 1 to 1000"},
                {{"--count", ""}, "--count", "'' is no whole number; give 1 to 1000"},
                {{"--count", "99999999999999999999"},
                 "--count",
                 "99999999999999999999 is out of range; give 1 to 1000"},
                {{"--bytes", "3X"},
                 "--bytes",
                 "'3X' is no size; give 1 to 9223372036854775807 bytes, as in 64K or 16M"},
                {{"--bytes", "99999999T"},
                 "--bytes",
                 "'99999999T' is no size; give 1 to 9223372036854775807 bytes, as in 64K or 16M"},
                {{"--timeout", "soon"}, "--timeout", "'soon' is no number; give 0 to 3600 seconds"},
                {{"--timeout", "3601"},
                 "--timeout",
                 "3601 is out of range; give 0 to 3600 seconds"},
                {{"--timeout", "nan"}, "--timeout", "'nan' is no number; give 0 to 3600 seconds"},
                {{"--rate", "0"},
                 "--rate",
                 "0 is out of range; give more than 0, at most 1000000, a second"},
                {{"--policy", "four"},
                 "--policy",
                 "'four' is not known; give one of one|two|three"},
                {{"--policy", "on"}, "--policy", "'on' is not known; give one of one|two|three"},
                {{"--retain=yes"}, "--retain", "takes no value, 'yes' was given"},
                {{NULL}, "", "0 of 1 arguments are there; the usage is: ndbus trial TOPIC [FILE]"},
                {{"a", "b", "c"},
                 "c",
                 "one argument too many; the usage is: ndbus trial TOPIC [FILE]"},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                struct nd_option_result result;
                struct nd_fault fault = {.code = 0};

                cr_expect_eq(parse(cases[i].words, &result, &fault), NDBUS_EINVAL, "case %zu", i);
                cr_expect_str_eq(fault.field, cases[i].field);
                cr_expect_str_eq(fault.text, cases[i].text);
        }
}

Test(option, helps)
{
        const char *const words[] = {"--help", NULL};
        struct nd_option_result result;
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        cr_assert_eq(parse(words, &result, NULL), 0);
        cr_expect(result.wants_help);
        nd_option_result_deinit(&command, &result);

        nd_option_write_help(&command, out);
        fclose(out);
        cr_expect_eq(strncmp(text, "usage: ndbus trial [options] TOPIC [FILE]\n\nTry it.\n", 51), 0,
                     "%s", text);
        cr_expect_not_null(strstr(text, "\n  --count N                   How many.\n"), "%s", text);
        for (char *line = text; *line; line = strchr(line, '\n') + 1)
                cr_expect_leq(strcspn(line, "\n"), 80, "%s", text);
        free(text);
}

Test(option, reads_sizes)
{
        static const struct {
                const char *text;
                uint64_t want; /* 0: refused */
        } cases[] = {
                {"1", 1},  {"64K", 65536}, {"16M", 16777216}, {"1G", 1073741824}, {"2KiB", 2048},
                {"5B", 5}, {"", 0},        {"K", 0},          {"1KB", 0},         {"1.5M", 0},
                {" 1", 0}, {"-1", 0},      {"1Ki", 0},        {"16777216T", 0},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                uint64_t got = 0;

                cr_expect_eq(nd_option_parse_size(cases[i].text, &got), cases[i].want != 0, "%s",
                             cases[i].text);
                cr_expect_eq(got, cases[i].want, "%s", cases[i].text);
        }
}
