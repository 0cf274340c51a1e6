/* SPDX-License-Identifier: MIT */

/*
 * Reading a command line by a table
 *
 * Not getopt_long(): it prints its own errors, takes abbreviations, which then can never be made
 * ambiguous by a new option, and knows nothing of ranges. An error says what was given and what
 * would have been right; for a name that is nearly one of ours it says which.
 *
 * "-o" is the one short name, for --output, because every packer in the world has it.
 */

#include "client/command/option.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "client/command/spelling.h"
#include "protocol/limit.h"
#include "protocol/topic.h"
#include "protocol/url.h"

#define OPTION_HELP_COLUMN 30
#define OPTION_HELP_WIDTH  80

static const struct nd_option *
option_find(const struct nd_command *command, const char *name, size_t n)
{
        for (size_t i = 0; i < command->n_options; ++i)
                if (strlen(command->options[i].name) == n &&
                    memcmp(command->options[i].name, name, n) == 0)
                        return &command->options[i];
        return NULL;
}

/* Edit distance, as far as 3. */
static unsigned option_distance(const char *a, const char *b)
{
        size_t n_a = strlen(a), n_b = strlen(b);
        unsigned row[64];

        if (n_b + 1 > nd_array_size(row) || n_a > 64)
                return 3;
        for (size_t k = 0; k <= n_b; ++k)
                row[k] = (unsigned)k;
        for (size_t i = 1; i <= n_a; ++i) {
                unsigned diagonal = row[0];

                row[0] = (unsigned)i;
                for (size_t k = 1; k <= n_b; ++k) {
                        unsigned best = diagonal + (a[i - 1] != b[k - 1]);

                        diagonal = row[k];
                        if (row[k] + 1 < best)
                                best = row[k] + 1;
                        if (row[k - 1] + 1 < best)
                                best = row[k - 1] + 1;
                        row[k] = best;
                }
        }
        return row[n_b];
}

static int option_unknown(const struct nd_command *command,
                          const char *given,
                          const char *name,
                          struct nd_fault *fault)
{
        const struct nd_option *nearest = NULL;
        unsigned least = 3;

        for (size_t i = 0; i < command->n_options; ++i) {
                unsigned distance = option_distance(name, command->options[i].name);

                if (distance < least) {
                        least = distance;
                        nearest = &command->options[i];
                }
        }
        if (nearest)
                return nd_fault_set(fault, NDBUS_EINVAL, given,
                                    "no such option; did you mean --%s?", nearest->name);
        return nd_fault_set(fault, NDBUS_EINVAL, given,
                            "no such option; 'ndbus %s --help' lists them", command->name);
}

static int option_refuse(const char *given,
                         const char *value,
                         const char *kind,
                         const char *right,
                         struct nd_fault *fault)
{
        return nd_fault_set(fault, NDBUS_EINVAL, given, "'%.60s' is no %s; give %s", value, kind,
                            right);
}

bool nd_option_parse_size(const char *text, uint64_t *ret_bytes)
{
        static const char units[] = "KMGT";
        uint64_t value = 0;
        const char *s = text, *unit;

        for (; *s >= '0' && *s <= '9'; ++s)
                if (nd_mul_overflow(value, UINT64_C(10), &value) ||
                    nd_add_overflow(value, (uint64_t)(*s - '0'), &value))
                        return false;
        if (s == text)
                return false;
        unit = *s ? strchr(units, *s) : NULL;
        if (unit) {
                if (nd_mul_overflow(value, UINT64_C(1024) << (10 * (unit - units)), &value))
                        return false;
                ++s;
                if (*s == 'i' && s[1] == 'B')
                        s += 2;
        } else if (*s == 'B') {
                ++s;
        }
        if (*s)
                return false;
        *ret_bytes = value;
        return true;
}

static bool option_parse_count(const char *text, uint64_t *ret)
{
        uint64_t value = 0;

        if (!*text)
                return false;
        for (; *text; ++text)
                if (*text < '0' || *text > '9')
                        return false;
                else if (nd_mul_overflow(value, UINT64_C(10), &value) ||
                         nd_add_overflow(value, (uint64_t)(*text - '0'), &value))
                        value = UINT64_MAX; /* out of every range */
        *ret = value;
        return true;
}

/* "-2.5e3"; strtod() alone would take "inf", "0x1p3" and spaces too. */
static bool option_parse_decimal(const char *text, double *ret)
{
        static const char digits[] = "0123456789";
        const char *s = text + (*text == '-');
        size_t n = strspn(s, digits), n_behind = 0;

        s += n;
        if (*s == '.') {
                n_behind = strspn(++s, digits);
                s += n_behind;
        }
        if (n + n_behind == 0)
                return false;
        if (*s == 'e' || *s == 'E') {
                ++s;
                s += *s == '-' || *s == '+';
                n = strspn(s, digits);
                if (n == 0)
                        return false;
                s += n;
        }
        if (*s)
                return false;
        *ret = strtod(text, NULL);
        return true;
}

static int option_set_whole(const struct nd_option *option,
                            const char *given,
                            const char *value,
                            uint64_t *ret,
                            struct nd_fault *fault)
{
        bool is_size = option->type == ND_OPTION_SIZE;
        uint64_t number = 0;
        char right[96];

        snprintf(right, sizeof(right), "%" PRId64 " to %" PRId64 "%s", option->min, option->max,
                 is_size ? " bytes, as in 64K or 16M" : "");
        if (!(is_size ? nd_option_parse_size(value, &number) : option_parse_count(value, &number)))
                return option_refuse(given, value, is_size ? "size" : "whole number", right, fault);
        if (number < (uint64_t)option->min || number > (uint64_t)option->max)
                return nd_fault_set(fault, NDBUS_EINVAL, given, "%.60s is out of range; give %s",
                                    value, right);
        *ret = number;
        return 0;
}

/* Seconds become milliseconds; their table has milliseconds too. */
static int option_set_decimal(const struct nd_option *option,
                              const char *given,
                              const char *value,
                              double *ret,
                              struct nd_fault *fault)
{
        bool is_time = option->type == ND_OPTION_TIME;
        bool is_rate = option->type == ND_OPTION_RATE;
        double number = 0;
        char right[96];

        if (is_time)
                snprintf(right, sizeof(right), "%.10g to %.10g seconds", (double)option->min / 1000,
                         (double)option->max / 1000);
        else if (!is_rate)
                snprintf(right, sizeof(right), "%" PRId64 " to %" PRId64, option->min, option->max);
        else
                snprintf(right, sizeof(right), "more than 0, at most %" PRId64 ", a second",
                         option->max);
        if (!option_parse_decimal(value, &number))
                return option_refuse(given, value, "number", right, fault);
        if (is_time)
                number *= 1000;
        if (number < (double)option->min || number > (double)option->max ||
            (is_rate && number <= 0))
                return nd_fault_set(fault, NDBUS_EINVAL, given, "%.60s is out of range; give %s",
                                    value, right);
        *ret = number;
        return 0;
}

static int option_set_choice(const struct nd_option *option,
                             const char *given,
                             const char *value,
                             uint64_t *ret,
                             struct nd_fault *fault)
{
        const char *choice = option->value;

        for (uint64_t i = 0;; ++i) {
                size_t n = strcspn(choice, "|");

                if (strlen(value) == n && memcmp(choice, value, n) == 0) {
                        *ret = i;
                        return 0;
                }
                if (!choice[n])
                        break;
                choice += n + 1;
        }
        return nd_fault_set(fault, NDBUS_EINVAL, given, "'%.60s' is not known; give one of %s",
                            value, option->value);
}

static int option_append(struct nd_option_list *list, const char *value, struct nd_fault *fault)
{
        const char **items = reallocarray(list->items, list->n + 1, sizeof(*items));

        if (!items)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        items[list->n++] = value;
        list->items = items;
        return 0;
}

static int option_check_words(const char *given,
                              const char *value,
                              int (*check)(const char *, size_t, struct nd_fault *),
                              struct nd_fault *fault)
{
        struct nd_fault why = {.code = 0};

        if (check(value, strlen(value), &why))
                return nd_fault_set(fault, NDBUS_EINVAL, given, "%s: %s", why.field, why.text);
        return 0;
}

/* What need not ask anybody is refused before anything is done. */
static int option_check_text(enum nd_option_type type,
                             const char *given,
                             const char *value,
                             struct nd_fault *fault)
{
        int64_t shape[NDBUS_DIMS_MAX];
        struct nd_spelling dtype;
        struct nd_url url;
        int32_t ndim;

        switch (type) {
        case ND_OPTION_URL:
                return nd_url_parse(value, given, &url, fault);
        case ND_OPTION_DTYPE:
                return nd_spelling_parse_dtype(value, given, &dtype, fault);
        case ND_OPTION_SHAPE:
                return nd_spelling_parse_shape(value, given, shape, &ndim, fault);
        default:
                if (*value && strlen(value) <= ND_NAME_BYTES_MAX)
                        return 0;
                return nd_fault_set(fault, NDBUS_EINVAL, given,
                                    "has %zu bytes; give a name of 1 to %u", strlen(value),
                                    ND_NAME_BYTES_MAX);
        }
}

static int option_set(const struct nd_option *option,
                      void *values,
                      const char *given,
                      const char *value,
                      struct nd_fault *fault)
{
        void *field = (char *)values + option->offset;
        double number = 0;
        int r = 0;

        switch (option->type) {
        case ND_OPTION_FLAG:
                *(bool *)field = true;
                break;
        case ND_OPTION_URL:
        case ND_OPTION_DTYPE:
        case ND_OPTION_SHAPE:
        case ND_OPTION_NAME:
                r = option_check_text(option->type, given, value, fault);
                *(const char **)field = value;
                break;
        case ND_OPTION_TEXT:
                *(const char **)field = value;
                break;
        case ND_OPTION_PATTERNS:
                r = option_check_words(given, value, nd_pattern_check, fault);
                r = r ? r : option_append(field, value, fault);
                break;
        case ND_OPTION_LIST:
                r = option_append(field, value, fault);
                break;
        case ND_OPTION_COUNT:
        case ND_OPTION_SIZE:
                r = option_set_whole(option, given, value, field, fault);
                break;
        case ND_OPTION_TIME:
                r = option_set_decimal(option, given, value, &number, fault);
                if (!r)
                        *(int64_t *)field = (int64_t)(number + 0.5);
                break;
        case ND_OPTION_RATE:
        case ND_OPTION_FACTOR:
                r = option_set_decimal(option, given, value, field, fault);
                break;
        case ND_OPTION_CHOICE:
                r = option_set_choice(option, given, value, field, fault);
                break;
        }
        return r;
}

static void option_set_default(const struct nd_option *option, void *values)
{
        void *field = (char *)values + option->offset;

        switch (option->type) {
        case ND_OPTION_FLAG:
        case ND_OPTION_TEXT:
        case ND_OPTION_URL:
        case ND_OPTION_DTYPE:
        case ND_OPTION_SHAPE:
        case ND_OPTION_NAME:
        case ND_OPTION_PATTERNS:
        case ND_OPTION_LIST:
                break; /* all zero */
        case ND_OPTION_COUNT:
        case ND_OPTION_SIZE:
        case ND_OPTION_CHOICE:
                *(uint64_t *)field = (uint64_t)option->fallback;
                break;
        case ND_OPTION_TIME:
                *(int64_t *)field = option->fallback;
                break;
        case ND_OPTION_RATE:
        case ND_OPTION_FACTOR:
                *(double *)field = (double)option->fallback;
                break;
        }
}

/* One option at argv[*i]; moves *i over its value. */
static int option_take(const struct nd_command *command,
                       int argc,
                       char **argv,
                       int *i,
                       void *values,
                       struct nd_fault *fault)
{
        const char *text = argv[*i], *equals = strchr(text, '='), *value = NULL;
        bool is_short_output = strcmp(text, "-o") == 0;
        const char *name = is_short_output ? "output" : text + strspn(text, "-");
        size_t n = is_short_output ? 6 : equals ? (size_t)(equals - name) : strlen(name);
        const struct nd_option *option = NULL;
        char given[48], bare[64];

        snprintf(given, sizeof(given), "%.*s",
                 equals && !is_short_output ? (int)(equals - text) : (int)strlen(text), text);
        if (is_short_output || name == text + 2)
                option = option_find(command, name, n);
        if (!option) {
                snprintf(bare, sizeof(bare), "%s", given + strspn(given, "-"));
                return option_unknown(command, given, bare, fault);
        }
        if (option->type == ND_OPTION_FLAG) {
                if (equals)
                        return nd_fault_set(fault, NDBUS_EINVAL, given,
                                            "takes no value, '%.60s' was given", equals + 1);
        } else if (equals && !is_short_output) {
                value = equals + 1;
        } else if (*i + 1 < argc) {
                value = argv[++*i];
        } else {
                return nd_fault_set(fault, NDBUS_EINVAL, given, "needs a value: %s %s", given,
                                    option->value);
        }
        return option_set(option, values, given, value, fault);
}

static int option_check_arguments(const struct nd_command *command,
                                  const struct nd_option_result *result,
                                  struct nd_fault *fault)
{
        if (result->n_arguments < command->n_arguments_min)
                return nd_fault_set(fault, NDBUS_EINVAL, "",
                                    "%zu of %u arguments are there; the usage is: ndbus %s %s",
                                    result->n_arguments, command->n_arguments_min, command->name,
                                    command->arguments);
        if (result->n_arguments > command->n_arguments_max)
                return nd_fault_set(
                        fault, NDBUS_EINVAL, result->arguments[command->n_arguments_max],
                        "one argument too many; the usage is: ndbus %s%s%s", command->name,
                        *command->arguments ? " " : "", command->arguments);
        for (size_t i = 0; i < result->n_arguments; ++i) {
                bool is_first = i == 0;
                int r = 0;

                if (command->checks == ND_ARGUMENTS_TOPIC && is_first)
                        r = option_check_words(result->arguments[i], result->arguments[i],
                                               nd_topic_check, fault);
                else if (command->checks == ND_ARGUMENTS_PATTERNS ||
                         (command->checks == ND_ARGUMENTS_PATTERN && is_first))
                        r = option_check_words(result->arguments[i], result->arguments[i],
                                               nd_pattern_check, fault);
                if (r)
                        return r;
        }
        return 0;
}

int nd_option_parse(const struct nd_command *command,
                    int argc,
                    char **argv,
                    struct nd_option_result *ret,
                    struct nd_fault *fault)
{
        struct nd_option_result result = {.n_arguments = 0};
        bool is_behind = false;
        int r = 0;

        result.values = calloc(1, command->values_bytes + 1);
        result.arguments = calloc((size_t)argc + 1, sizeof(*result.arguments));
        if (!result.values || !result.arguments) {
                r = nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
                goto fail;
        }
        for (size_t i = 0; i < command->n_options; ++i)
                option_set_default(&command->options[i], result.values);

        for (int i = 0; i < argc && !result.wants_help; ++i) {
                if (!is_behind && strcmp(argv[i], "--") == 0)
                        is_behind = true;
                else if (!is_behind && strcmp(argv[i], "--help") == 0)
                        result.wants_help = true;
                else if (is_behind || argv[i][0] != '-' || argv[i][1] == '\0')
                        result.arguments[result.n_arguments++] = argv[i];
                else
                        r = option_take(command, argc, argv, &i, result.values, fault);
                if (r)
                        goto fail;
        }
        if (!result.wants_help)
                r = option_check_arguments(command, &result, fault);
        if (r)
                goto fail;
        *ret = result;
        return 0;

fail:
        nd_option_result_deinit(command, &result);
        return r;
}

void nd_option_result_deinit(const struct nd_command *command, struct nd_option_result *result)
{
        for (size_t i = 0; result->values && i < command->n_options; ++i)
                if (command->options[i].type == ND_OPTION_LIST ||
                    command->options[i].type == ND_OPTION_PATTERNS) {
                        struct nd_option_list *list =
                                (void *)((char *)result->values + command->options[i].offset);

                        free(list->items);
                }
        free(result->values);
        free(result->arguments);
        *result = (struct nd_option_result){.n_arguments = 0};
}

/* Words from column @indent on, broken before the width. @column: where the line stands now. */
static void option_write_words(FILE *out, const char *text, int indent, int column)
{
        while (*text) {
                int n = (int)strcspn(text, " ");

                if (column + 1 + n > OPTION_HELP_WIDTH) {
                        fprintf(out, "\n%*s", indent, "");
                        column = indent;
                } else if (column > indent) {
                        fputc(' ', out);
                        ++column;
                }
                fprintf(out, "%.*s", n, text);
                column += n;
                text += n;
                text += strspn(text, " ");
        }
        fputc('\n', out);
}

static void option_write_row(FILE *out, const char *name, const char *value, const char *text)
{
        int column = fprintf(out, *value ? "  --%s %s" : "  --%s", name, value);

        if (column > OPTION_HELP_COLUMN - 2) {
                fprintf(out, "\n%*s", OPTION_HELP_COLUMN, "");
        } else {
                fprintf(out, "%*s", OPTION_HELP_COLUMN - column, "");
        }
        option_write_words(out, text, OPTION_HELP_COLUMN, OPTION_HELP_COLUMN);
}

void nd_option_write_help(const struct nd_command *command, FILE *out)
{
        fprintf(out, "usage: ndbus %s [options]%s%s\n\n", command->name,
                *command->arguments ? " " : "", command->arguments);
        option_write_words(out, command->summary, 0, 0);
        if (command->details) {
                fputc('\n', out);
                option_write_words(out, command->details, 0, 0);
        }
        fputs("\noptions:\n", out);
        for (size_t i = 0; i < command->n_options; ++i)
                option_write_row(out, command->options[i].name, command->options[i].value,
                                 command->options[i].text);
        option_write_row(out, "help", "", "print this and exit");
}
