/* SPDX-License-Identifier: MIT */

/*
 * Options
 *
 * Long options only. Values are checked against the table's range, and the machine is asked where
 * the table says so; what is wrong is said in one line that names the option, the value and what
 * would be right.
 */

#include "daemon/option.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
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
        size_t offset;
        uint64_t usual;
        uint64_t least;
        uint64_t most;
        const char *help;
} option_rows[] = {

#define OPTION_ROW(_field, _name, _kind, _default, _least, _most, _help)                           \
        {_name, OPTION_##_kind, offsetof(struct nd_options, _field), _default, _least,             \
         _most, _help},
        ND_OPTIONS(OPTION_ROW)
#undef OPTION_ROW
};

#define OPTION_N nd_array_size(option_rows)

enum option_plain {
        OPTION_LISTEN = 1000,
        OPTION_INSECURE_ANYONE,
        OPTION_LOG_LEVEL,
        OPTION_HELP,
        OPTION_VERSION,
};

static const struct option option_plain[] = {
        {"listen", required_argument, NULL, OPTION_LISTEN},
        {"insecure-anyone", no_argument, NULL, OPTION_INSECURE_ANYONE},
        {"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
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
               "                           them may read and publish everything\n"
               "  --log-level LEVEL        error, warning, notice, info or debug; default notice\n");
        for (size_t i = 0; i < OPTION_N; ++i) {
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

static int option_parse_number(const struct option_row *row,
                               const char *field,
                               const char *text,
                               uint64_t *ret,
                               struct nd_fault *fault)
{
        static const char suffixes[] = "KMGT";
        const char *suffix;
        unsigned shift = 0;
        uint64_t value;
        char *end;

        errno = 0;
        value = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || errno != 0)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%s' is not a number from %" PRIu64 " to %" PRIu64, text,
                                    row->least, row->most);
        if (row->kind == OPTION_SIZE && *end != '\0' && (suffix = strchr(suffixes, *end))) {
                shift = 10 * (unsigned)(suffix - suffixes + 1);
                ++end;
        }
        if (*end != '\0')
                return nd_fault_set(fault, NDBUS_EINVAL, field, "'%s' has the unknown suffix '%s'",
                                    text, end);
        if (value > UINT64_MAX >> shift || value << shift < row->least ||
            value << shift > row->most)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "%s is not from %" PRIu64 " to %" PRIu64, text, row->least,
                                    row->most);
        *ret = value << shift;
        return 0;
}

static int
option_set_plain(struct nd_options *options, int option, const char *text, struct nd_fault *fault)
{
        switch (option) {
        case OPTION_LISTEN:
                if (options->n_listen == ND_LISTEN_MAX)
                        return nd_fault_set_limit(fault, NDBUS_EINVAL, "--listen",
                                                  ND_LISTEN_MAX + 1, ND_LISTEN_MAX, "listeners");
                return nd_url_parse(text, "--listen", &options->listen[options->n_listen++], fault);
        case OPTION_INSECURE_ANYONE:
                options->insecure_anyone = true;
                return 0;
        case OPTION_LOG_LEVEL:
                if (!nd_log_level_parse(text, &options->log_level))
                        return nd_fault_set(fault, NDBUS_EINVAL, "--log-level",
                                            "'%s' is not error, warning, notice, info or debug",
                                            text);
                return 0;
        case OPTION_HELP:
                option_print_help();
                return ND_OPTION_E_DONE;
        default:
                printf("ndbusd %s\n", ND_PROJECT_VERSION);
                return ND_OPTION_E_DONE;
        }
}

/* What the table leaves to the machine, and what depends on something else. */
static int option_complete(struct nd_options *options, struct nd_fault *fault)
{
        uint64_t descriptors = option_descriptors();

        if (options->memory_max == ND_OPTION_DERIVED)
                options->memory_max = option_memory() / 2;
        if (options->shm_max == ND_OPTION_DERIVED)
                options->shm_max = option_memory() / 4;
        if (options->message_max == ND_OPTION_DERIVED)
                options->message_max = options->memory_max / 2;
        if (options->message_max > options->memory_max / 2)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, "--message-max",
                                          options->message_max, options->memory_max / 2,
                                          "bytes, half of --memory-max");
        if (options->clients_max == ND_OPTION_DERIVED)
                options->clients_max = descriptors / 2;
        if (options->clients_max > descriptors / 2)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, "--clients-max",
                                          options->clients_max, descriptors / 2,
                                          "half of the file descriptor limit");
        return 0;
}

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

int nd_options_parse(int argc, char **argv, struct nd_options *ret, struct nd_fault *fault)
{
        struct option table[OPTION_N + nd_array_size(option_plain) + 1] = {0};
        struct nd_options options = {.log_level = ND_LOG_NOTICE};
        int option;
        int r;

        for (size_t i = 0; i < OPTION_N; ++i) {
                table[i] = (struct option){option_rows[i].name, required_argument, NULL, (int)i};
                *(uint64_t *)(void *)((char *)&options + option_rows[i].offset) =
                        option_rows[i].usual;
        }
        memcpy(table + OPTION_N, option_plain, sizeof(option_plain));

        opterr = 0;
        optind = 0; /* also forgets where in "-xy" an earlier parse ended */
        while ((option = getopt_long(argc, argv, ":", table, NULL)) != -1) {
                char field[40];

                if (option == ':')
                        return nd_fault_set(fault, NDBUS_EINVAL, argv[optind - 1],
                                            "needs a value; see --help");
                if (option == '?')
                        return nd_fault_set(fault, NDBUS_EINVAL, option_refused(argv),
                                            "is no option; see --help");
                if (option >= OPTION_LISTEN) {
                        r = option_set_plain(&options, option, optarg, fault);
                } else {
                        const struct option_row *row = &option_rows[option];

                        snprintf(field, sizeof(field), "--%s", row->name);
                        r = option_parse_number(
                                row, field, optarg,
                                (uint64_t *)(void *)((char *)&options + row->offset), fault);
                }
                if (r != 0)
                        return r;
        }
        if (optind < argc)
                return nd_fault_set(fault, NDBUS_EINVAL, argv[optind],
                                    "ndbusd takes options only; see --help");
        r = option_complete(&options, fault);
        if (r == 0)
                *ret = options;
        return r;
}
