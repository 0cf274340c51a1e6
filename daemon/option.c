/* SPDX-License-Identifier: MIT */

/*
 * Options
 *
 * Long options only, and the same names in the configuration file, by the same table. Values are
 * checked against its ranges, and the machine is asked where it says so; what is wrong is said in one
 * line that names the option, the value and what would be right.
 *
 * The command line is read first, to find the file; then the defaults are overlaid by the file and
 * that by the command line. The same is done at every reload, so that an option that was taken out of
 * the file has its default again.
 */

#include "daemon/option.h"
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "daemon/config.h"
#include "daemon/number.h"
#include "daemon/reach.h"
#include "protocol/fault.h"
#include "protocol/shm/room.h"

enum option_kind {
        OPTION_SIZE,
        OPTION_COUNT,
        OPTION_MS,
};

static const struct option_row {
        const char *name;
        enum option_kind kind;
        bool is_reloaded;
        size_t offset;
        uint64_t usual;
        uint64_t least;
        uint64_t most;
        const char *help;
} option_rows[] = {

#define OPTION_START  false
#define OPTION_RELOAD true
#define OPTION_ROW(_field, _name, _kind, _when, _default, _least, _most, _help)                    \
        {_name,    OPTION_##_kind, OPTION_##_when, offsetof(struct nd_options, _field),            \
         _default, _least,         _most,          _help},
        ND_OPTIONS(OPTION_ROW)
#undef OPTION_ROW
};

/* Of the memory, for the first windows of as many clients as there may be. */
#define OPTION_CLIENTS_PART 8u

/* Of the memory, for segments of the daemon's own: with what windows and retained values may take, the
 * largest message still finds room (credit.c). */
#define OPTION_OWN_PART 8u

enum option_plain {
        OPTION_LISTEN = 1000,
        OPTION_INSECURE_ANYONE,
        OPTION_LOG_LEVEL,
        OPTION_ALLOW,
        OPTION_LIMIT,
        OPTION_TOKEN,
        OPTION_METRICS,
        OPTION_FILE_N, /* the others are for the command line only */
        OPTION_CONFIG,
        OPTION_CHECK_CONFIG,
        OPTION_HELP,
        OPTION_VERSION,
};

static const struct option option_plain[] = {
        {"listen", required_argument, NULL, OPTION_LISTEN},
        {"insecure-anyone", no_argument, NULL, OPTION_INSECURE_ANYONE},
        {"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
        {"allow", required_argument, NULL, OPTION_ALLOW},
        {"limit", required_argument, NULL, OPTION_LIMIT},
        {"token", required_argument, NULL, OPTION_TOKEN},
        {"metrics", required_argument, NULL, OPTION_METRICS},
        {"config", required_argument, NULL, OPTION_CONFIG},
        {"check-config", no_argument, NULL, OPTION_CHECK_CONFIG},
        {"help", no_argument, NULL, OPTION_HELP},
        {"version", no_argument, NULL, OPTION_VERSION},
};

static void option_print_help(void)
{
        static const char *const units[] = {
                [OPTION_SIZE] = "SIZE", [OPTION_COUNT] = "N", [OPTION_MS] = "MS"};

        printf("Usage: ndbusd [OPTION]...\n\n"
               "Routes messages of n-dimensional arrays between the clients of this machine and,\n"
               "if asked to listen on TCP, of others.\n\n"
               "  --listen URL             unix:/path or tcp://host:port; may be given again; default\n"
               "                           one Unix socket: /run/ndbus/ndbus.sock for root or with\n"
               "                           RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR/ndbus/ndbus.sock\n"
               "  --insecure-anyone        listen on addresses that are not loopback: whoever reaches\n"
               "                           them may do what anyone may\n"
               "  --log-level LEVEL        error, warning, notice, info or debug; default notice\n"
               "  --allow RULE             'WHO RIGHT[,RIGHT]... [PATTERN]...': WHO is user:NAME,\n"
               "                           group:NAME, token:NAME or anyone; the rights are publish,\n"
               "                           subscribe, block, retain, group and stats; may be given again; without\n"
               "                           any everybody may do everything\n"
               "  --limit RULE             'WHO NAME=VALUE[,NAME=VALUE]...': what each identity that WHO names\n"
               "                           may have, over all its connections; the names are\n"
               "                           " ND_LIMITS_NAMES ";\n"
               "                           may be given again\n"
               "  --token 'NAME FILE'      who comes by TCP must prove to know the secret in FILE; may be\n"
               "                           given again\n"
               "  --metrics URL            unix:/path or tcp://host:port where GET /metrics is answered, for\n"
               "                           Prometheus; may be given again\n"
               "  --config FILE            read options from FILE too: NAME = VALUE, one a line; with\n"
               "                           RUNTIME_DIRECTORY " ND_CONFIG_PATH "\n"
               "                           if it is there\n"
               "  --check-config           say whether the options and the file are right, and exit\n");
        for (size_t i = 0; i < _ND_OPTION_N; ++i) {
                const struct option_row *row = &option_rows[i];
                int n = printf("  --%s %s", row->name, units[row->kind]);

                printf("%*s%s", n < 26 ? 27 - n : 1, "", row->help);
                if (row->usual != ND_OPTION_DERIVED)
                        printf("; default %" PRIu64, row->usual);
                printf("\n");
        }
        printf("  --help                   print this and exit\n"
               "  --version                print the version and exit\n\n"
               "SIZE is in bytes, or with suffix K, M, G or T in powers of 1024. MS is milliseconds.\n");
}

/* RAM, or the memory cgroup this process is in if that is less. */
static uint64_t option_memory(void)
{
        uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES);

        return nd_min_u64(nd_room_cgroup_max(""), pages * (uint64_t)sysconf(_SC_PAGESIZE));
}

/* Raises the soft limit to the hard one: a connection is a descriptor. */
static uint64_t option_descriptors(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
                return 1024;
        if (limit.rlim_cur < limit.rlim_max) {
                struct rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};

                if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
                        limit = raised;
        }
        return nd_min_u64(limit.rlim_cur, 2000000);
}

static uint64_t *option_value(struct nd_options *options, const struct option_row *row)
{
        return (uint64_t *)(void *)((char *)options + row->offset);
}

static int option_parse_bool(const char *field, const char *text, bool *ret, struct nd_fault *fault)
{
        *ret = strcmp(text, "yes") == 0;
        if (!*ret && strcmp(text, "no") != 0)
                return nd_fault_set(fault, NDBUS_EINVAL, field, "'%s' is not yes or no", text);
        return 0;
}

static int option_add_url(const char *text,
                          unsigned line,
                          const char *field,
                          size_t n_most,
                          struct nd_url *urls,
                          unsigned *lines,
                          size_t *n,
                          struct nd_fault *fault)
{
        if (*n == n_most)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, field, n_most + 1, n_most,
                                          "listeners");
        lines[*n] = line;
        return nd_url_parse(text, field, &urls[(*n)++], fault);
}

static int option_add_rule(int (*add)(struct nd_rules **rules,
                                      const char *text,
                                      const char *field,
                                      struct nd_fault *fault),
                           struct nd_rules **rules,
                           const char *text,
                           unsigned line,
                           const char *field,
                           struct nd_fault *fault)
{
        int r = add(rules, text, field, fault);

        if (r == 0)
                (*rules)->rules[(*rules)->n - 1]->line = line;
        return r;
}

/* @text: NULL for a flag on the command line */
static int option_set_plain(struct nd_options *options,
                            int option,
                            const char *field,
                            const char *text,
                            unsigned line,
                            struct nd_fault *fault)
{
        switch (option) {
        case OPTION_LISTEN:
                return option_add_url(text, line, field, ND_LISTEN_MAX, options->listen,
                                      options->listen_lines, &options->n_listen, fault);
        case OPTION_METRICS:
                return option_add_url(text, line, field, ND_METRICS_MAX, options->metrics,
                                      options->metrics_lines, &options->n_metrics, fault);
        case OPTION_INSECURE_ANYONE:
                return option_parse_bool(field, text ? text : "yes", &options->insecure_anyone,
                                         fault);
        case OPTION_ALLOW:
                return option_add_rule(nd_rights_add, &options->rules, text, line, field, fault);
        case OPTION_LIMIT:
                return option_add_rule(nd_limits_add, &options->limits, text, line, field, fault);
        case OPTION_TOKEN:
                return nd_tokens_add(&options->tokens, text, field, fault);
        default:
                if (!nd_log_level_parse(text, &options->log_level))
                        return nd_fault_set(fault, NDBUS_EINVAL, field,
                                            "'%s' is not error, warning, notice, info or debug",
                                            text);
                return 0;
        }
}

static int option_set(struct nd_options *options,
                      int option,
                      const char *field,
                      const char *text,
                      unsigned line,
                      struct nd_fault *fault)
{
        const struct option_row *row;

        if (option >= OPTION_LISTEN)
                return option_set_plain(options, option, field, text, line, fault);
        row = &option_rows[option];
        options->origins[option] = (struct nd_option_origin){.line = line};
        return nd_number_parse(text, row->kind == OPTION_SIZE, row->least, row->most, field,
                               option_value(options, row), fault);
}

/* The number of an option that may stand in a file; -1: there is none of this name. */
static int option_find(const char *name)
{
        for (size_t i = 0; i < _ND_OPTION_N; ++i)
                if (strcmp(option_rows[i].name, name) == 0)
                        return (int)i;
        for (size_t i = 0; i < nd_array_size(option_plain); ++i)
                if (option_plain[i].val < OPTION_FILE_N && strcmp(option_plain[i].name, name) == 0)
                        return option_plain[i].val;
        return -1;
}

int nd_options_set(struct nd_options *options,
                   const char *name,
                   const char *value,
                   unsigned line,
                   uint64_t *seen,
                   struct nd_fault *fault)
{
        int option = option_find(name);
        unsigned bit = option >= OPTION_LISTEN ? (unsigned)(option - OPTION_LISTEN)
                                               : (unsigned)(option + OPTION_FILE_N - OPTION_LISTEN);

        if (option < 0)
                return nd_fault_set(fault, NDBUS_EINVAL, name, "is no option; see ndbusd --help");
        if (option != OPTION_LISTEN && option != OPTION_ALLOW && option != OPTION_LIMIT &&
            option != OPTION_TOKEN && option != OPTION_METRICS && *seen >> bit & 1)
                return nd_fault_set(fault, NDBUS_EINVAL, name, "is there twice");
        *seen |= UINT64_C(1) << bit;
        return option_set(options, option, name, value, line, fault);
}

/* What nobody said is worked out from the machine, and from what else is in force. */
static void option_derive(struct nd_options *options)
{
        if (options->memory_max == ND_OPTION_DERIVED)
                options->memory_max = option_memory() / 2;
        if (options->shm_max == ND_OPTION_DERIVED)
                options->shm_max = option_memory() / 4;
        if (options->message_max == ND_OPTION_DERIVED)
                options->message_max = options->memory_max / 2;
        if (options->shm_own_max == ND_OPTION_DERIVED)
                options->shm_own_max = options->memory_max / OPTION_OWN_PART;
        if (options->clients_max == ND_OPTION_DERIVED)
                options->clients_max = nd_min_u64(option_descriptors() / 2,
                                                  options->memory_max / OPTION_CLIENTS_PART /
                                                          ND_PUBLISH_WINDOW_BYTES_MIN);
}

/* ------------------------------------------------------------------------- what must fit together */

/* In @fault, whose field is an option: where it was said. */
static int option_locate(const struct nd_options *options, unsigned line, struct nd_fault *fault)
{
        char field[sizeof(fault->field)];

        if (line > 0)
                return nd_config_locate(options->config, line, fault);
        snprintf(field, sizeof(field), "--%.40s", fault->field);
        memcpy(fault->field, field, sizeof(field));
        return fault->code;
}

static int option_check_most(const struct nd_options *options,
                             size_t i_row,
                             uint64_t value,
                             uint64_t most,
                             const char *unit,
                             struct nd_fault *fault)
{
        if (value <= most)
                return 0;
        nd_fault_set_numbers(fault, NDBUS_EINVAL, option_rows[i_row].name, value, most,
                             "is %" PRIu64 ", the limit is %" PRIu64 " %s", value, most, unit);
        return option_locate(options, options->origins[i_row].line, fault);
}

static bool option_has_token(const void *tokens, const char *name)
{
        return nd_tokens_have(tokens, name);
}

static int option_check_rules(const struct nd_options *options,
                              const struct nd_rules *rules,
                              const char *name,
                              struct nd_fault *fault)
{
        const struct nd_rule *rule =
                nd_rules_find_unknown(rules, option_has_token, options->tokens);

        if (!rule)
                return 0;
        nd_fault_set(fault, NDBUS_EINVAL, name, "there is no token '%s'", rule->who.token);
        return option_locate(options, rule->line, fault);
}

static bool option_is_same_url(const struct nd_url *a, const struct nd_url *b)
{
        if (a->type != b->type)
                return false;
        return a->type == ND_URL_UNIX ? strcmp(a->path, b->path) == 0
                                      : strcmp(a->host, b->host) == 0 && a->port == b->port;
}

static int option_check_url(const struct nd_options *options,
                            const struct nd_url *url,
                            bool is_metrics,
                            bool is_asked,
                            struct nd_fault *fault)
{
        const char *name = is_metrics ? "metrics" : "listen";
        struct addrinfo *info;
        int r;

        if (url->type == ND_URL_UNIX)
                return 0;
        r = nd_reach_find(url, is_asked, name, &info, fault);
        if (r < 0)
                return is_asked ? r : 0; /* a name */
        r = nd_reach_check(options, info->ai_addr, url, is_metrics, name, fault);
        freeaddrinfo(info);
        return r;
}

/* Do they exclude each other? Of port 0 each gets another. */
static int option_check_urls(const struct nd_url *one,
                             const struct nd_url *other,
                             bool is_metrics,
                             struct nd_fault *fault)
{
        char text[ND_HOST_BYTES_MAX + 32];

        if (!option_is_same_url(one, other) || (one->type == ND_URL_TCP && one->port == 0))
                return 0;
        return nd_fault_set(fault, NDBUS_EINVAL, is_metrics ? "metrics" : "listen",
                            "%s is there twice", nd_url_format(one, text, sizeof(text)));
}

static int
option_check_listeners(const struct nd_options *options, bool is_asked, struct nd_fault *fault)
{
        const struct nd_url *urls[ND_LISTEN_MAX + ND_METRICS_MAX];

        for (size_t i = 0; i < options->n_listen + options->n_metrics; ++i) {
                bool is_metrics = i >= options->n_listen;
                size_t at = is_metrics ? i - options->n_listen : i;
                int r;

                urls[i] = is_metrics ? &options->metrics[at] : &options->listen[at];
                r = option_check_url(options, urls[i], is_metrics, is_asked, fault);
                for (size_t k = 0; k < i && r == 0; ++k)
                        r = option_check_urls(urls[i], urls[k], is_metrics, fault);
                if (r != 0)
                        return option_locate(options,
                                             is_metrics ? options->metrics_lines[at]
                                                        : options->listen_lines[at],
                                             fault);
        }
        return 0;
}

/* What depends on something else; no socket is opened. @is_asked: names of hosts are looked up */
static int option_check(const struct nd_options *options, bool is_asked, struct nd_fault *fault)
{
        uint64_t memory_max = options->memory_max;
        int r;

        r = option_check_most(options, ND_OPTION_I_message_max, options->message_max,
                              memory_max / 2, "bytes, half of memory-max", fault);
        r = r ? r
              : option_check_most(options, ND_OPTION_I_shm_own_max, options->shm_own_max,
                                  memory_max / OPTION_OWN_PART, "bytes, an eighth of memory-max",
                                  fault);
        r = r ? r
              : option_check_most(options, ND_OPTION_I_clients_max, options->clients_max,
                                  option_descriptors() / 2,
                                  "connections, half of the file descriptor limit", fault);
        r = r ? r : option_check_rules(options, options->rules, "allow", fault);
        r = r ? r : option_check_rules(options, options->limits, "limit", fault);
        return r ? r : option_check_listeners(options, is_asked, fault);
}

/* --------------------------------------------------------------------------------- the command line */

/* The default listener, where none was asked for. */
static int option_default_listen(struct nd_options *options, struct nd_fault *fault)
{
        const char *folder = getenv("XDG_RUNTIME_DIR");
        char url[256];

        if (geteuid() == 0 || getenv("RUNTIME_DIRECTORY"))
                folder = "/run";
        if (!folder || folder[0] != '/')
                return nd_fault_set(fault, NDBUS_EINVAL, "--listen",
                                    "there is no default: XDG_RUNTIME_DIR is not set; say "
                                    "--listen unix:/path");
        snprintf(url, sizeof(url), "unix:%s/ndbus/ndbus.sock", folder);
        options->n_listen = 1;
        return nd_url_parse(url, "--listen", &options->listen[0], fault);
}

int nd_options_default_listen(struct nd_options *options, struct nd_fault *fault)
{
        return options->n_listen > 0 ? 0 : option_default_listen(options, fault);
}

/* What getopt has just refused. In the middle of "-xy" it has not gone on to the next yet. */
static const char *option_refused(char **argv)
{
        const char *next = argv[optind];
        bool is_short = next && next[0] == '-' && next[1] != '-' && strchr(next, optopt);

        return is_short && optopt != 0 ? next : argv[optind - 1];
}

static void option_set_defaults(struct nd_options *options)
{
        *options = (struct nd_options){.log_level = ND_LOG_NOTICE};
        for (size_t i = 0; i < _ND_OPTION_N; ++i) {
                *option_value(options, &option_rows[i]) = option_rows[i].usual;
                options->origins[i].is_derived = option_rows[i].usual == ND_OPTION_DERIVED;
        }
}

/* What only the command line can say. */
struct option_line {
        const char *config;
        bool is_check;
        bool has_listen;
        bool has_allow;
        bool has_limit;
        bool has_token;
        bool has_metrics;
};

/* Options of the command line alone; anything else is set. */
static int option_take(struct nd_options *options,
                       int option,
                       const char *name,
                       struct option_line *line,
                       struct nd_fault *fault)
{
        char field[40];

        switch (option) {
        case OPTION_CONFIG:
                line->config = optarg;
                return 0;
        case OPTION_CHECK_CONFIG:
                line->is_check = true;
                return 0;
        case OPTION_HELP:
                option_print_help();
                return ND_OPTION_E_DONE;
        case OPTION_VERSION:
                printf("ndbusd %s\n", ND_PROJECT_VERSION);
                return ND_OPTION_E_DONE;
        case OPTION_LISTEN:
                if (!line->has_listen) /* instead of those of the file */
                        options->n_listen = 0;
                line->has_listen = true;
                break;
        case OPTION_METRICS:
                if (!line->has_metrics)
                        options->n_metrics = 0;
                line->has_metrics = true;
                break;
        case OPTION_ALLOW:
                if (!line->has_allow) {
                        nd_rules_free(options->rules);
                        options->rules = NULL;
                }
                line->has_allow = true;
                break;
        case OPTION_LIMIT:
                if (!line->has_limit) {
                        nd_rules_free(options->limits);
                        options->limits = NULL;
                }
                line->has_limit = true;
                break;
        case OPTION_TOKEN:
                if (!line->has_token) {
                        nd_tokens_free(options->tokens);
                        options->tokens = NULL;
                }
                line->has_token = true;
                break;
        }
        snprintf(field, sizeof(field), "--%s", name);
        return option_set(options, option, field, optarg, 0, fault);
}

static int option_read_line(int argc,
                            char **argv,
                            struct nd_options *options,
                            struct option_line *line,
                            struct nd_fault *fault)
{
        struct option table[_ND_OPTION_N + nd_array_size(option_plain) + 1] = {0};
        int option, i_table, r;

        for (size_t i = 0; i < _ND_OPTION_N; ++i)
                table[i] = (struct option){option_rows[i].name, required_argument, NULL, (int)i};
        memcpy(table + _ND_OPTION_N, option_plain, sizeof(option_plain));

        *line = (struct option_line){0};
        opterr = 0;
        optind = 0; /* also forgets where in "-xy" an earlier parse ended */
        while ((option = getopt_long(argc, argv, ":", table, &i_table)) != -1) {
                if (option == ':')
                        return nd_fault_set(fault, NDBUS_EINVAL, argv[optind - 1],
                                            "needs a value; see --help");
                if (option == '?')
                        return nd_fault_set(fault, NDBUS_EINVAL, option_refused(argv),
                                            "is no option; see --help");
                r = option_take(options, option, table[i_table].name, line, fault);
                if (r != 0)
                        return r;
        }
        if (optind < argc)
                return nd_fault_set(fault, NDBUS_EINVAL, argv[optind],
                                    "ndbusd takes options only; see --help");
        return 0;
}

/* The system's service has a file of its own, which need not be there. */
static bool option_is_service(void)
{
        return getenv("RUNTIME_DIRECTORY");
}

static const char *option_default_config(void)
{
        return option_is_service() && access(ND_CONFIG_PATH, F_OK) == 0 ? ND_CONFIG_PATH : NULL;
}

void nd_options_deinit(struct nd_options *options)
{
        nd_rules_free(options->rules);
        nd_rules_free(options->limits);
        nd_tokens_free(options->tokens);
        options->rules = NULL;
        options->limits = NULL;
        options->tokens = NULL;
}

/* The file below the command line, if there is one. */
static int option_read(int argc,
                       char **argv,
                       struct nd_options *options,
                       struct option_line *line,
                       struct nd_fault *fault)
{
        const char *config;
        int r;

        option_set_defaults(options);
        r = option_read_line(argc, argv, options, line, fault);
        config = line->config ? line->config : option_default_config();
        if (r == 0 && config) {
                nd_options_deinit(options);
                option_set_defaults(options);
                options->config = config;
                r = nd_config_read(config, options, fault);
                r = r ? r : option_read_line(argc, argv, options, line, fault);
        }
        options->reloads = config || option_is_service();
        if (r != 0)
                return r;
        option_derive(options);
        return option_check(options, line->is_check, fault);
}

int nd_options_parse(int argc, char **argv, struct nd_options *ret, struct nd_fault *fault)
{
        struct nd_options options;
        struct option_line line;
        int r;

        r = option_read(argc, argv, &options, &line, fault);
        if (r == 0 && line.is_check) {
                printf("%s: ok\n", options.config ? options.config : "ndbusd");
                r = ND_OPTION_E_DONE;
        }
        if (r != 0) {
                nd_options_deinit(&options);
                return r;
        }
        options.argc = argc;
        options.argv = argv;
        *ret = options;
        return 0;
}

/* ------------------------------------------------------------------------------------- reloading */

static bool option_same_urls(const struct nd_url *a, size_t n_a, const struct nd_url *b, size_t n_b)
{
        if (n_a != n_b)
                return false;
        for (size_t i = 0; i < n_a; ++i)
                if (!option_is_same_url(&a[i], &b[i]))
                        return false;
        return true;
}

static bool option_keep(const char *name, bool is_changed)
{
        if (is_changed)
                nd_log(ND_LOG_WARNING, "reload option=%s: changes take effect at the next start",
                       name);
        return is_changed;
}

void nd_options_reload(struct nd_options *options, const struct nd_options *changed)
{
        struct nd_options old = *options;

        *options = *changed;
        for (size_t i = 0; i < _ND_OPTION_N; ++i) {
                const struct option_row *row = &option_rows[i];
                uint64_t was = *option_value(&old, row), *is = option_value(options, row);

                if (!row->is_reloaded && option_keep(row->name, was != *is))
                        *is = was;
                if (row->is_reloaded && changed->origins[i].is_derived)
                        *is = ND_OPTION_DERIVED;
        }
        option_derive(options); /* not from what waits for the next start */
        for (size_t i = 0; i < _ND_OPTION_N; ++i) {
                const struct option_row *row = &option_rows[i];
                uint64_t was = *option_value(&old, row), is = *option_value(options, row);

                if (was != is)
                        nd_log(ND_LOG_NOTICE, "reload option=%s from=%" PRIu64 " to=%" PRIu64,
                               row->name, was, is);
        }
        option_keep("listen", !option_same_urls(old.listen, old.n_listen, changed->listen,
                                                changed->n_listen));
        option_keep("metrics", !option_same_urls(old.metrics, old.n_metrics, changed->metrics,
                                                 changed->n_metrics));
        option_keep("insecure-anyone", old.insecure_anyone != changed->insecure_anyone);
        memcpy(options->listen, old.listen, sizeof(old.listen));
        options->n_listen = old.n_listen;
        memcpy(options->metrics, old.metrics, sizeof(old.metrics));
        options->n_metrics = old.n_metrics;
        options->insecure_anyone = old.insecure_anyone;
        if (!nd_rules_are_equal(old.rules, changed->rules))
                nd_log(ND_LOG_NOTICE, "reload option=allow: the rules have changed");
        if (!nd_rules_are_equal(old.limits, changed->limits))
                nd_log(ND_LOG_NOTICE, "reload option=limit: the limits have changed");
}
