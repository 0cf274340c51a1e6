/* SPDX-License-Identifier: MIT */

/*
 * Configuration file: what it sets, what refuses it and where, what the command line overrides, and
 * what a reload takes over
 */

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/config.h"
#include "tests/support/temporary.h"

static char folder[64], path[96];

static void make_folder(void)
{
        nd_temporary_name(folder, sizeof(folder), "config");
        cr_assert(mkdtemp(folder));
        snprintf(path, sizeof(path), "%s/c", folder);
}

static void remove_folder(void)
{
        unlink(path);
        rmdir(folder);
}

TestSuite(config, .init = make_folder, .fini = remove_folder);

static void write_file(const char *text, size_t n)
{
        FILE *file = fopen(path, "we");

        cr_assert(file);
        cr_assert_eq(fwrite(text, 1, n, file), n);
        fclose(file);
}

/* The file's text, and up to two arguments behind --config. */
static int parse(const char *text,
                 const char *one,
                 const char *two,
                 struct nd_options *options,
                 struct nd_fault *fault)
{
        static char name[] = "ndbusd", config[128], a[128], b[128];
        static char *argv[5];

        write_file(text, strlen(text));
        snprintf(config, sizeof(config), "--config=%s", path);
        snprintf(a, sizeof(a), "%s", one ? one : "");
        snprintf(b, sizeof(b), "%s", two ? two : "");
        argv[0] = name;
        argv[1] = config;
        argv[2] = one ? a : NULL;
        argv[3] = two ? b : NULL;
        *fault = (struct nd_fault){0};
        return nd_options_parse(2 + (one != NULL) + (two != NULL), argv, options, fault);
}

Test(config, sets_what_it_names)
{
        struct nd_options options;
        struct nd_fault fault;

        cr_assert_eq(parse("# first\n\n"
                           "memory-max = 64M\n"
                           "  message-max=1M  \r\n"
                           "\tlisten =\tunix:/a b\n"
                           "listen = tcp://127.0.0.1:7\n"
                           "insecure-anyone = yes\n"
                           "log-level = debug\n"
                           "drain-timeout = 0", /* no line end */
                           NULL, NULL, &options, &fault),
                     0, "%s: %s", fault.field, fault.text);
        cr_expect_eq(options.memory_max, 64 * ND_MIB);
        cr_expect_eq(options.message_max, 1 * ND_MIB);
        cr_expect_eq(options.n_listen, 2);
        cr_expect_str_eq(options.listen[0].path, "/a b");
        cr_expect_eq(options.listen[1].port, 7);
        cr_expect(options.insecure_anyone);
        cr_expect_eq(options.log_level, ND_LOG_DEBUG);
        cr_expect_eq(options.drain_timeout_ms, 0);
        cr_expect_eq(options.block_timeout_ms, 60000);
        cr_expect_str_eq(options.config, path);
}

Test(config, the_command_line_wins)
{
        struct nd_options options;
        struct nd_fault fault;

        cr_assert_eq(parse("memory-max = 64M\nlisten = unix:/a\nlisten = unix:/b\n",
                           "--listen=unix:/c", "--memory-max=32M", &options, &fault),
                     0);
        cr_expect_eq(options.memory_max, 32 * ND_MIB);
        cr_assert_eq(options.n_listen, 1);
        cr_expect_str_eq(options.listen[0].path, "/c");
        /* what depends on another option looks at the result */
        cr_expect_eq(parse("message-max = 20M\n", "--memory-max=32M", NULL, &options, &fault),
                     NDBUS_EINVAL);
        cr_expect(strstr(fault.field, "/c:1"), "%s", fault.field);
        cr_expect(strstr(fault.text,
                         "message-max: is 20971520, the limit is 16777216 bytes, half of"),
                  "%s", fault.text);
        cr_expect_eq(parse("\nmemory-max = 32M\n", "--message-max=20M", NULL, &options, &fault),
                     NDBUS_EINVAL);
        cr_expect_str_eq(fault.field, "--message-max");
        /* and the line of what was replaced is not named */
        cr_expect_eq(parse("allow = anyone publish\n", "--allow=token:x publish", NULL, &options,
                           &fault),
                     NDBUS_EINVAL);
        cr_expect_str_eq(fault.field, "--allow");
}

Test(config, what_is_wrong_is_said_with_its_line)
{
        static const struct {
                const char *text;
                const char *line;
                const char *says;
        } rows[] = {
                {"memory = 8M\n", ":1", "memory: is no option"},
                {"\n#\nMemory-max = 8M\n", ":3", "Memory-max: is no option"},
                {"config = /x\n", ":1", "config: is no option"},
                {"help = yes\n", ":1", "help: is no option"},
                {"= 7\n", ":1", "is no option"},
                {"memory-max 8M\n", ":1", "is not NAME = VALUE"},
                {"[section]\n", ":1", "is not NAME = VALUE"},
                {"memory-max =\n", ":1", "memory-max: has no value"},
                {"memory-max = 8M # much\n", ":1",
                 "memory-max: '8M # much' has the unknown suffix"},
                {"memory-max = 7M\n", ":1", "memory-max: 7M is not from 8388608 to"},
                {"memory-max = 9M\nmemory-max = 9M\n", ":2", "memory-max: is there twice"},
                {"log-level = loud\n", ":1", "log-level: 'loud' is not error"},
                {"insecure-anyone = true\n", ":1", "insecure-anyone: 'true' is not yes or no"},
                {"listen = unix:a\n", ":1", "listen: "},
                /* what can be said only when all is read */
                {"allow = anyone publish\n\nallow = token:no publish\n", ":3",
                 "allow: there is no token 'no'"},
                {"#\nlimit = token:no rate=1\n", ":2", "limit: there is no token 'no'"},
                {"memory-max = 8M\nmessage-max = 5M\n", ":2",
                 "message-max: is 5242880, the limit is"},
                {"shm-own-max = 2M\nmemory-max = 8M\n", ":1",
                 "shm-own-max: is 2097152, the limit is"},
                {"#\nclients-max = 1000000\nmemory-max = 8M\n", ":2",
                 "clients-max: is 1000000, the limit is"},
                {"\nlisten = tcp://0.0.0.0:7\n", ":2", "listen: tcp://0.0.0.0 is not loopback"},
                {"metrics = tcp://0.0.0.0:7\n", ":1", "metrics: tcp://0.0.0.0 is not loopback"},
                {"listen = unix:/a\nlisten = unix:/b\nlisten = unix:/a\n", ":3",
                 "listen: unix:/a is there twice"},
                {"metrics = unix:/a\nlisten = unix:/a\n", ":1", "metrics: unix:/a is there twice"},
        };

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                struct nd_options options = {.n_listen = 77};
                struct nd_fault fault;
                size_t n;

                cr_expect_eq(parse(rows[i].text, NULL, NULL, &options, &fault), NDBUS_EINVAL, "%zu",
                             i);
                n = strlen(fault.field) - strlen(rows[i].line);
                cr_expect_str_eq(fault.field + n, rows[i].line, "%zu: %s", i, fault.field);
                cr_expect(strstr(fault.text, rows[i].says), "%zu: %s", i, fault.text);
                cr_expect_eq(options.n_listen, 77, "written on failure");
        }
}

Test(config, no_line_is_read_in_part)
{
        static char text[8192];
        struct nd_options options;
        struct nd_fault fault;

        memset(text, ' ', sizeof(text));
        memcpy(text + 4094, "\nlog-level = debug\n", 20);
        cr_expect_eq(parse(text, NULL, NULL, &options, &fault), 0, "%s", fault.text);
        text[4094] = ' ';
        text[4095] = '\n';
        cr_expect_eq(parse(text, NULL, NULL, &options, &fault), NDBUS_EINVAL);
        cr_expect(strstr(fault.text, "longer than 4094 bytes"), "%s", fault.text);

        write_file("log-level = debug\0 = x\n", 23);
        options = (struct nd_options){0};
        cr_expect_eq(nd_config_read(path, &options, &fault), NDBUS_EINVAL);
        cr_expect(strstr(fault.text, "zero byte"), "%s", fault.text);
}

Test(config, a_file_that_is_not_there)
{
        struct nd_options options;
        struct nd_fault fault;

        cr_expect_eq(nd_config_read("/nowhere/c", &options, &fault), NDBUS_ESYSTEM);
        cr_expect_str_eq(fault.field, "/nowhere/c");
        cr_expect_str_eq(fault.text, "No such file or directory");
        cr_expect_eq(nd_config_read(folder, &options, &fault), NDBUS_ESYSTEM);
        cr_expect_str_eq(fault.text, "is not a file");
}

/* Its open would wait for a writer. */
Test(config, a_fifo_is_refused_at_once)
{
        struct nd_options options;
        struct nd_fault fault;

        cr_assert_eq(mkfifo(path, 0600), 0);
        cr_expect_eq(nd_config_read(path, &options, &fault), NDBUS_ESYSTEM);
        cr_expect_str_eq(fault.text, "is not a file");
}

Test(config, checks)
{
        struct nd_options options;
        struct nd_fault fault;

        cr_redirect_stdout();
        cr_expect_eq(parse("log-level = debug\n", "--check-config", NULL, &options, &fault),
                     ND_OPTION_E_DONE);
        cr_expect_eq(parse("log-level = loud\n", "--check-config", NULL, &options, &fault),
                     NDBUS_EINVAL);
}

Test(config, a_reload_takes_what_can_change)
{
        struct nd_options options, changed;
        struct nd_fault fault;

        nd_log_set_level(ND_LOG_ERROR);
        cr_assert_eq(parse("memory-max = 64M\nlisten = unix:/a\n", NULL, NULL, &options, &fault),
                     0);
        cr_assert_eq(
                parse("memory-max = 32M\nlisten = unix:/b\nsubscriptions-max = 5\nlog-level = debug\n"
                      "shm-max = 0\ninsecure-anyone = yes\n",
                      NULL, NULL, &changed, &fault),
                0);
        nd_options_reload(&options, &changed);
        cr_expect_eq(options.memory_max, 64 * ND_MIB);
        cr_expect_eq(options.message_max, 32 * ND_MIB);
        cr_expect_neq(options.shm_max, 0);
        cr_expect_eq(options.subscriptions_max, 5);
        cr_expect_eq(options.log_level, ND_LOG_DEBUG);
        cr_expect_not(options.insecure_anyone);
        cr_expect_str_eq(options.listen[0].path, "/a");

        /* and what was taken out of the file has its default again */
        cr_assert_eq(parse("memory-max = 64M\nlisten = unix:/a\n", NULL, NULL, &changed, &fault),
                     0);
        nd_options_reload(&options, &changed);
        cr_expect_eq(options.subscriptions_max, 65536);
}

/* What waits for the next start has no effect before, on nothing. */
Test(config, a_reload_derives_from_what_is_in_force)
{
        struct nd_options options, changed;
        struct nd_fault fault;

        nd_log_set_level(ND_LOG_ERROR);
        cr_assert_eq(parse("memory-max = 64M\nclients-max = 7\n", NULL, NULL, &options, &fault), 0);
        cr_assert_eq(parse("memory-max = 8M\n", NULL, NULL, &changed, &fault), 0);
        cr_assert_eq(changed.clients_max, 16);
        nd_options_reload(&options, &changed);
        cr_expect_eq(options.memory_max, 64 * ND_MIB);
        cr_expect_eq(options.clients_max, 128);

        cr_assert_eq(parse("memory-max = 8M\nclients-max = 9\n", NULL, NULL, &changed, &fault), 0);
        nd_options_reload(&options, &changed);
        cr_expect_eq(options.clients_max, 9);
}

/* The example says every option, and is right when everything in it is said. */
Test(config, the_example_is_whole)
{
        static char line[256], all[16384], comments[16384];
        char what[64];
        FILE *file = fopen(CONFIG_EXAMPLE, "re");
        struct nd_options options;
        struct nd_fault fault;
        size_t n_tokens = 0;

        cr_assert(file, CONFIG_EXAMPLE);
        while (fgets(line, sizeof(line), file)) {
                bool is_token = strncmp(line, "#token = ", 9) == 0; /* its file is not here */

                n_tokens += is_token;
                strncat(comments, line, sizeof(comments) - strlen(comments) - 1);
                if (line[0] == '#' && line[1] >= 'a' && line[1] <= 'z' && strchr(line, '=') &&
                    !is_token)
                        strncat(all, line + 1, sizeof(all) - strlen(all) - 1);
        }
        fclose(file);
        cr_assert_eq(parse(all, NULL, NULL, &options, &fault), 0, "%s: %s", fault.field,
                     fault.text);
#define ROW(_field, _name, _kind, _when, _default, _least, _most, _help)                           \
        cr_expect(strstr(all, _name " = "), "no " _name " in the example");                        \
        if ((uint64_t)(_default) != ND_OPTION_DERIVED)                                             \
                cr_expect_eq(options._field, (uint64_t)(_default), _name);
        ND_OPTIONS(ROW)
#undef ROW
        cr_expect(strstr(all, "listen = ") && strstr(all, "insecure-anyone = no") &&
                  strstr(all, "log-level = notice") && strstr(all, "allow = "));
        cr_expect_eq(n_tokens, 1);
        snprintf(what, sizeof(what), "up to %u times", ND_RULES_MAX);
        cr_expect(strstr(comments, what), "no '%s' in the example", what);
        cr_expect(strstr(comments, "at most 4094 bytes"));
        nd_options_deinit(&options);
}
