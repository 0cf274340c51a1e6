/* SPDX-License-Identifier: MIT */

/*
 * Configuration file
 *
 *   # a comment
 *   memory-max = 8G
 *   listen = unix:/run/ndbus/ndbus.sock
 *   listen = tcp://127.0.0.1
 *
 * NAME = VALUE, the names and values of the command line; a value goes to the end of its line, without
 * spaces around it. Flags are yes or no. There are no sections, quotes, or continued lines: nothing
 * that could be meant differently than it is read. What is not understood refuses the whole file, for a
 * setting that is passed over is one that its author believes in.
 */

#include "daemon/config.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_LINE_BYTES  4096u
#define CONFIG_FIELD_BYTES 40u

/* FILE or FILE:LINE, and of a long path its end. */
static void config_place(const char *path, unsigned line, char out[static CONFIG_FIELD_BYTES])
{
        char number[16] = "";
        size_t n = strlen(path), n_most;

        if (line > 0)
                snprintf(number, sizeof(number), ":%u", line);
        n_most = CONFIG_FIELD_BYTES - strlen(number) - 4;
        snprintf(out, CONFIG_FIELD_BYTES, "%s%s%s", n > n_most ? "..." : "",
                 path + (n > n_most ? n - n_most : 0), number);
}

static int config_fail(const char *path, unsigned line, const char *what, struct nd_fault *fault)
{
        char place[CONFIG_FIELD_BYTES];

        config_place(path, line, place);
        return nd_fault_set(fault, line > 0 ? NDBUS_EINVAL : NDBUS_ESYSTEM, place, "%s", what);
}

int nd_config_locate(const char *path, unsigned line, struct nd_fault *fault)
{
        const struct nd_fault why = *fault;
        char place[CONFIG_FIELD_BYTES];

        config_place(path, line, place);
        return nd_fault_set(fault, why.code, place, "%s: %s", why.field, why.text);
}

static bool config_is_space(char c)
{
        return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static char *config_trim(char *text)
{
        size_t n;

        while (config_is_space(*text))
                ++text;
        n = strlen(text);
        while (n > 0 && config_is_space(text[n - 1]))
                text[--n] = '\0';
        return text;
}

/* One line, without its comment. */
static int config_set(const char *path,
                      unsigned number,
                      char *line,
                      struct nd_options *options,
                      uint64_t *seen,
                      struct nd_fault *fault)
{
        char *name = config_trim(line), *value;
        int r;

        if (*name == '\0' || *name == '#')
                return 0;
        value = strchr(name, '=');
        if (!value)
                return config_fail(path, number, "is not NAME = VALUE", fault);
        *value++ = '\0';
        name = config_trim(name);
        value = config_trim(value);
        if (*value == '\0')
                r = nd_fault_set(fault, NDBUS_EINVAL, name, "has no value");
        else
                r = nd_options_set(options, name, value, number, seen, fault);
        return r ? nd_config_locate(path, number, fault) : 0;
}

static int
config_read_lines(FILE *file, const char *path, struct nd_options *options, struct nd_fault *fault)
{
        char line[CONFIG_LINE_BYTES];
        unsigned number = 0;
        uint64_t seen = 0;
        int r = 0;

        while (r == 0 && fgets(line, sizeof(line), file)) {
                size_t n = strlen(line);

                ++number;
                if (n + 1 == sizeof(line) && line[n - 1] != '\n')
                        return config_fail(path, number, "is longer than 4094 bytes", fault);
                if (n == 0 || (line[n - 1] != '\n' && !feof(file)))
                        return config_fail(path, number, "has a zero byte", fault);
                r = config_set(path, number, line, options, &seen, fault);
        }
        if (r == 0 && ferror(file))
                return config_fail(path, 0, strerror(errno), fault);
        return r;
}

/* Only a regular file is read; the open itself waits for nobody, as that of a FIFO would. */
static int config_open(const char *path, FILE **ret_file, struct nd_fault *fault)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        struct stat status;
        int r;

        if (fd < 0)
                return config_fail(path, 0, strerror(errno), fault);
        if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode)) {
                close(fd);
                return config_fail(path, 0, "is not a file", fault);
        }
        *ret_file = fdopen(fd, "r");
        if (*ret_file)
                return 0;
        r = config_fail(path, 0, strerror(errno), fault);
        close(fd);
        return r;
}

int nd_config_read(const char *path, struct nd_options *options, struct nd_fault *fault)
{
        FILE *file;
        int r = config_open(path, &file, fault);

        if (r)
                return r;
        r = config_read_lines(file, path, options, fault);
        fclose(file);
        return r;
}
