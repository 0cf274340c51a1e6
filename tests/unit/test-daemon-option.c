/* SPDX-License-Identifier: MIT */

/*
 * Options of the daemon: ranges, texts of refusals, and that help and manual page know them all
 */

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "daemon/option.h"
#include "protocol/counter.h"
#include "protocol/histogram.h"

enum kind {
        SIZE,
        COUNT,
        MS
};

static const struct row {
        const char *name;
        enum kind kind;
        uint64_t usual;
        uint64_t least;
        uint64_t most;
        const char *help;
        size_t offset;
} rows[] = {

#define ROW(_field, _name, _kind, _when, _default, _least, _most, _help)                           \
        {_name, _kind, _default, _least, _most, _help, offsetof(struct nd_options, _field)},
        ND_OPTIONS(ROW)
#undef ROW
};

static uint64_t value_of(const struct nd_options *options, const struct row *row)
{
        uint64_t value;

        memcpy(&value, (const char *)options + row->offset, sizeof(value));
        return value;
}

static int
parse(const char *one, const char *two, struct nd_options *options, struct nd_fault *fault)
{
        char name[] = "ndbusd", a[512], b[512];
        char *argv[] = {name, one ? a : NULL, two ? b : NULL, NULL};

        snprintf(a, sizeof(a), "%s", one ? one : "");
        snprintf(b, sizeof(b), "%s", two ? two : "");
        *fault = (struct nd_fault){0};
        return nd_options_parse(1 + (one != NULL) + (two != NULL), argv, options, fault);
}

static void expect_refused(const char *one, const char *two, const char *field, const char *text)
{
        struct nd_options options = {.n_listen = 77};
        struct nd_fault fault;

        cr_assert_eq(parse(one, two, &options, &fault), NDBUS_EINVAL, "%s %s", one, two);
        cr_expect_str_eq(fault.field, field, "%s %s: field %s", one, two, fault.field);
        cr_expect(strstr(fault.text, text), "%s %s: '%s' lacks '%s'", one, two, fault.text, text);
        cr_expect_eq(options.n_listen, 77, "written on failure");
}

Test(daemon_option, defaults)
{
        struct nd_options options;
        struct nd_fault fault;

        cr_assert_eq(parse(NULL, NULL, &options, &fault), 0, "%s: %s", fault.field, fault.text);
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                uint64_t value = value_of(&options, &rows[i]);

                cr_expect(rows[i].usual == ND_OPTION_DERIVED ? value > 0 : value == rows[i].usual,
                          "--%s", rows[i].name);
                cr_expect_geq(value, rows[i].least, "--%s", rows[i].name);
                cr_expect_leq(value, rows[i].most, "--%s", rows[i].name);
                cr_expect(rows[i].usual == ND_OPTION_DERIVED || rows[i].usual >= rows[i].least,
                          "--%s", rows[i].name);
        }
        cr_expect_eq(options.n_listen, 0);
        cr_expect_eq(options.log_level, ND_LOG_NOTICE);
        cr_expect_not(options.insecure_anyone);
        cr_expect_leq(options.message_max, options.memory_max / 2);
        cr_expect_leq(options.memory_max,
                      (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2);
}

/* Each limit itself is right, what lies beyond it is not, and is told both. */
Test(daemon_option, ranges)
{
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_options options;
                struct nd_fault fault;
                char name[64], value[64], limit[64];

                snprintf(name, sizeof(name), "--%s", rows[i].name);
                snprintf(value, sizeof(value), "%" PRIu64, rows[i].least);
                cr_assert_eq(parse(name, value, &options, &fault), 0, "%s %s: %s", name, value,
                             fault.text);
                cr_expect_eq(value_of(&options, &rows[i]), rows[i].least, "%s", name);

                snprintf(limit, sizeof(limit), "%" PRIu64, rows[i].most);
                snprintf(value, sizeof(value), "%" PRIu64, rows[i].most + 1);
                expect_refused(name, value, name, limit);
                expect_refused(name, value, name, value);
                if (rows[i].least > 0) {
                        snprintf(value, sizeof(value), "%" PRIu64, rows[i].least - 1);
                        expect_refused(name, value, name, value);
                }
                expect_refused(name, "", name, "''");
                expect_refused(name, "-1", name, "'-1'");
                expect_refused(name, " 9", name, "' 9'");
                expect_refused(name, "nine", name, "'nine'");
                expect_refused(name, "9x", name, "'x'");
                expect_refused(name, "99999999999999999999999", name, limit);
                if (rows[i].kind != SIZE)
                        expect_refused(name, "9M", name, "'M'");
                expect_refused(name, NULL, name, "needs a value");
        }
}

Test(daemon_option, sizes)
{
        static const struct {
                const char *text;
                uint64_t value;
        } sizes[] = {
                {"8388608", 8 * ND_MIB}, {"8192K", 8 * ND_MIB}, {"8M", 8 * ND_MIB},
                {"3G", 3 * ND_GIB},      {"2T", 2048 * ND_GIB},
        };

        for (size_t i = 0; i < nd_array_size(sizes); ++i) {
                struct nd_options options;
                struct nd_fault fault;

                cr_assert_eq(parse("--memory-max", sizes[i].text, &options, &fault), 0);
                cr_expect_eq(options.memory_max, sizes[i].value, "%s", sizes[i].text);
                cr_expect_eq(options.message_max, sizes[i].value / 2);
        }
        expect_refused("--memory-max", "8m", "--memory-max", "'m'");
        expect_refused("--memory-max", "8MB", "--memory-max", "'B'");
        expect_refused("--memory-max", "8MiB", "--memory-max", "'iB'");
        expect_refused("--memory-max", "18014398509481984K", "--memory-max", "is not from");
}

Test(daemon_option, together)
{
        struct nd_options options;
        struct nd_fault fault;

        expect_refused("--memory-max=8M", "--message-max=5M", "--message-max", "4194304");
        cr_expect_eq(parse("--memory-max=8M", "--message-max=4M", &options, &fault), 0);
        expect_refused("--memory-max=8M", "--shm-own-max=2M", "--shm-own-max", "1048576");
        cr_expect_eq(parse("--memory-max=8M", "--shm-own-max=0", &options, &fault), 0);
        cr_expect_eq(options.shm_own_max, 0);
        cr_expect_eq(parse("--memory-max=8M", "--shm-max=0", &options, &fault), 0);
        cr_expect_eq(options.shm_own_max, 1 << 20);
        cr_expect_eq(options.message_max, 4 * ND_MIB);
}

Test(daemon_option, others)
{
        struct nd_options options;
        struct nd_fault fault;

        expect_refused("--bogus", NULL, "--bogus", "is no option");
        expect_refused("--bogus=7", NULL, "--bogus=7", "is no option");
        expect_refused("-v", NULL, "-v", "is no option");
        expect_refused("-xy", NULL, "-xy", "is no option");
        expect_refused("--insecure-anyone", "-l", "-l", "is no option");
        expect_refused("file", NULL, "file", "options only");
        expect_refused("--help=x", NULL, "--help=x", "");
        expect_refused("--log-level", "loud", "--log-level", "'loud'");
        expect_refused("--log-level", "", "--log-level", "debug");
        expect_refused("--listen", "/run/x", "--listen", "unix:");
        expect_refused("--listen", "http://x", "--listen", "http");
        expect_refused("--listen", "tcp://[::1", "--listen", "]");
        expect_refused("--listen", "unix:relative", "--listen", "relative");
        cr_expect_eq(parse("--log-level", "debug", &options, &fault), 0);
        cr_expect_eq(options.log_level, ND_LOG_DEBUG);
        cr_expect_eq(parse("--listen", "tcp://localhost:1", &options, &fault), 0);
        cr_expect_eq(options.n_listen, 1);
        cr_expect_eq(options.listen[0].port, 1);
        expect_refused("--metrics", "/run/x", "--metrics", "unix:");
        cr_expect_eq(parse("--metrics", "tcp://localhost:2", &options, &fault), 0);
        cr_expect_eq(options.n_listen, 0);
        cr_expect_eq(options.n_metrics, 1);
        cr_expect_eq(options.metrics[0].port, 2);
}

Test(daemon_option, as_many_listeners_as_there_is_room_for)
{
        static char listen[ND_LISTEN_MAX + 1][32], name[] = "ndbusd";
        char *argv[ND_LISTEN_MAX + 3] = {name};
        struct nd_options options;
        struct nd_fault fault;

        for (size_t i = 0; i < nd_array_size(listen); ++i) {
                snprintf(listen[i], sizeof(listen[i]), "--listen=unix:/%zu", i);
                argv[1 + i] = listen[i];
        }
        cr_expect_eq(nd_options_parse(ND_LISTEN_MAX + 1, argv, &options, &fault), 0);
        cr_expect_eq(options.n_listen, ND_LISTEN_MAX);
        cr_expect_eq(nd_options_parse(ND_LISTEN_MAX + 2, argv, &options, &fault), NDBUS_EINVAL);
        cr_expect_str_eq(fault.field, "--listen");
        cr_expect_eq(fault.limit, ND_LISTEN_MAX);
}

/* What the start would refuse, without that any socket is opened. */
Test(daemon_option, listeners_together)
{
        static const char *const right[][2] = {
                {"--listen=tcp://127.0.0.1:7", "--listen=tcp://127.0.0.1:8"},
                {"--listen=tcp://127.0.0.1:0", "--listen=tcp://127.0.0.1:0"},
                {"--listen=tcp://[::1]:7", "--metrics=tcp://127.9.9.9:7"},
                {"--listen=tcp://0.0.0.0:7", "--insecure-anyone"},
                {"--metrics=tcp://[::]:7", "--insecure-anyone"},
                {"--listen=tcp://no.such.name.invalid:7", NULL}, /* nobody is asked */
        };
        struct nd_options options;
        struct nd_fault fault;

        for (size_t i = 0; i < nd_array_size(right); ++i)
                cr_expect_eq(parse(right[i][0], right[i][1], &options, &fault), 0, "%s: %s",
                             right[i][0], fault.text);
        expect_refused("--listen=tcp://0.0.0.0:7", NULL, "--listen",
                       "tcp://0.0.0.0 is not loopback");
        expect_refused("--listen=tcp://[::]:7", NULL, "--listen", "give --token, or say");
        expect_refused("--metrics=tcp://10.0.0.1:7", NULL, "--metrics", "tcp://10.0.0.1 is not");
        expect_refused("--listen=unix:/x", "--listen=unix:/x", "--listen",
                       "unix:/x is there twice");
        expect_refused("--metrics=unix:/x", "--metrics=unix:/x", "--metrics", "is there twice");
        expect_refused("--metrics=tcp://[::1]:7", "--listen=tcp://[::1]:7", "--metrics",
                       "tcp://[::1]:7 is there twice");
}

static const char *const plain[] = {
        "--listen", "--metrics", "--insecure-anyone", "--log-level", "--allow",  "--limit",
        "--token",  "--config",  "--check-config",    "--help",      "--version"};

Test(daemon_option, help_knows_all, .init = cr_redirect_stdout)
{
        struct nd_options options;
        struct nd_fault fault;
        static char text[16384];
        FILE *out;

        cr_assert_eq(parse("--help", NULL, &options, &fault), ND_OPTION_E_DONE);
        fflush(stdout);
        out = cr_get_redirected_stdout();
        text[fread(text, 1, sizeof(text) - 1, out)] = '\0';
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                char name[64];

                snprintf(name, sizeof(name), "  --%s ", rows[i].name);
                cr_expect(strstr(text, name), "no '%s' in --help", name);
                cr_expect(strstr(text, rows[i].help), "no text of '%s' in --help", name);
        }
        for (size_t i = 0; i < nd_array_size(plain); ++i)
                cr_expect(strstr(text, plain[i]), "no %s in --help", plain[i]);
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
                cr_expect_leq(strcspn(line, "\n"), 120, "%.40s...", line);
}

/* MANUAL is the source of the page, in which "-" is written "\-" */
static void read_manual(char *text, size_t n_text)
{
        FILE *file = fopen(MANUAL, "re");
        size_t n = 0;
        int c;

        cr_assert(file, MANUAL);
        while ((c = fgetc(file)) != EOF && n + 1 < n_text) {
                if (c != '\\')
                        text[n++] = (char)c;
        }
        text[n] = '\0';
        fclose(file);
}

Test(daemon_option, manual_knows_all)
{
        static const char *const rules[] = {".BI --allow ", ".BI --limit "};
        static char text[65536];

        read_manual(text, sizeof(text));
        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                char what[128];

                snprintf(what, sizeof(what), ".BI --%s ", rows[i].name);
                cr_expect(strstr(text, what), "no '%s' in the manual page", what);
                if (rows[i].usual == ND_OPTION_DERIVED)
                        continue;
                if (rows[i].usual >= ND_MIB && rows[i].usual % ND_MIB == 0)
                        snprintf(what, sizeof(what), "Default: %" PRIu64 " MiB",
                                 rows[i].usual / ND_MIB);
                else
                        snprintf(what, sizeof(what), "Default: %" PRIu64, rows[i].usual);
                cr_expect(strstr(strstr(text, rows[i].name), what), "--%s: no '%s'", rows[i].name,
                          what);
        }
        for (size_t i = 0; i < nd_array_size(plain); ++i)
                cr_expect(strstr(text, plain[i]), "no %s in the manual page", plain[i]);
        for (size_t i = 0; i < nd_array_size(rules); ++i) {
                const char *at = strstr(text, rules[i]);
                char what[64];

                snprintf(what, sizeof(what), "up to %u times.\n.TP\n", ND_RULES_MAX);
                at = at ? strstr(at, "may be given again, ") : NULL;
                cr_expect(at && strncmp(at + 20, what, strlen(what)) == 0, "%s: no '%s'", rules[i],
                          what);
        }
        cr_expect(strstr(text, "\nA line has at most 4094 bytes.\n"));
#define COUNTER(_name, _text)                                                                      \
        cr_expect(strstr(text, "\n.B " #_name "\n"), "no counter " #_name " in the manual page");
        ND_COUNTERS(COUNTER)
#undef COUNTER
#define HISTOGRAM(_name, _bounds, _text)                                                           \
        cr_expect(strstr(text, "\n.B ndbus_" #_name "\n"),                                         \
                  "no ndbus_" #_name " in the manual page");
        ND_HISTOGRAMS(HISTOGRAM)
#undef HISTOGRAM
}
