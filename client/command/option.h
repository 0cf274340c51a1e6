/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Options: one table a subcommand
 *
 * A table is an X-macro, XX(S, field, "name", TYPE, default, min, max, "VALUE", "text"), from
 * which come the struct that holds the values, their defaults, the ranges that are checked, and
 * --help. S is the struct's type. `name` without dashes; long options only, as --name VALUE or
 * --name=VALUE.
 */

#include "protocol/fault.h"

enum nd_option_type {
        ND_OPTION_FLAG,     /* bool; no value */
        ND_OPTION_TEXT,     /* const char *, NULL if not given */
        ND_OPTION_URL,      /* TEXT that must be a URL of a daemon */
        ND_OPTION_DTYPE,    /* TEXT, as nd_spelling_parse_dtype() */
        ND_OPTION_SHAPE,    /* TEXT, as nd_spelling_parse_shape() */
        ND_OPTION_NAME,     /* TEXT of 1 to 255 bytes */
        ND_OPTION_LIST,     /* struct nd_option_list: may be given several times */
        ND_OPTION_PATTERNS, /* LIST of patterns */
        ND_OPTION_COUNT,    /* uint64_t */
        ND_OPTION_SIZE,     /* uint64_t bytes: 4096, 64K, 16M, 2G, also KiB ... */
        ND_OPTION_TIME,     /* int64_t milliseconds: seconds with a fraction, "2.5" */
        ND_OPTION_RATE,     /* double, a second; 0 if not given; table's numbers are whole */
        ND_OPTION_FACTOR,   /* double, 0 or more; table's numbers are whole */
        ND_OPTION_CHOICE,   /* uint64_t: the index in VALUE, "one|two|three" */
};

struct nd_option_list {
        const char **items; /* [n], borrowed from argv */
        size_t n;
};

#define ND_OPTION_C_FLAG     bool
#define ND_OPTION_C_TEXT     const char *
#define ND_OPTION_C_URL      const char *
#define ND_OPTION_C_DTYPE    const char *
#define ND_OPTION_C_SHAPE    const char *
#define ND_OPTION_C_NAME     const char *
#define ND_OPTION_C_PATTERNS struct nd_option_list
#define ND_OPTION_C_LIST     struct nd_option_list
#define ND_OPTION_C_COUNT    uint64_t
#define ND_OPTION_C_SIZE     uint64_t
#define ND_OPTION_C_TIME     int64_t
#define ND_OPTION_C_RATE     double
#define ND_OPTION_C_FACTOR   double
#define ND_OPTION_C_CHOICE   uint64_t

struct nd_option {
        const char *name;
        enum nd_option_type type;
        size_t offset; /* of the field in the struct of values */
        int64_t fallback;
        int64_t min;
        int64_t max;
        const char *value; /* what --help calls it; of CHOICE: the choices */
        const char *text;
};

#define ND_OPTION_FIELD(_s, _field, _name, _type, _fallback, _min, _max, _value, _text)            \
        ND_OPTION_C_##_type _field;
#define ND_OPTION_ROW(_s, _field, _name, _type, _fallback, _min, _max, _value, _text)              \
        {                                                                                          \
                .name = (_name),                                                                   \
                .type = ND_OPTION_##_type,                                                         \
                .offset = offsetof(_s, _field),                                                    \
                .fallback = (_fallback),                                                           \
                .min = (_min),                                                                     \
                .max = (_max),                                                                     \
                .value = (_value),                                                                 \
                .text = (_text),                                                                   \
        },
#define ND_OPTION_CHECK(_s, _field, _name, _type, _fallback, _min, _max, _value, _text)            \
        _Static_assert((int64_t)(_min) <= (int64_t)(_max), "range of " _name);

/* Defines struct nd_NAME_options and NAME_options[] from the table. */
#define ND_OPTION_DEFINE(_name, _table)                                                            \
        struct nd_##_name##_options {                                                              \
                _table(ND_OPTION_FIELD, )                                                          \
        };                                                                                         \
        _table(ND_OPTION_CHECK, ) static const struct nd_option _name##_options[] = {              \
                _table(ND_OPTION_ROW, struct nd_##_name##_options)}

/* What the arguments must be, beyond their number. */
enum nd_arguments {
        ND_ARGUMENTS_ANY,
        ND_ARGUMENTS_TOPIC,    /* the first is a topic */
        ND_ARGUMENTS_PATTERN,  /* the first is a pattern */
        ND_ARGUMENTS_PATTERNS, /* all are */
};

struct nd_command {
        const char *name;
        const char *arguments; /* "TOPIC FILE..." */
        const char *summary;   /* one line */
        const char *details;   /* paragraphs, or NULL */
        unsigned n_arguments_min;
        unsigned n_arguments_max;
        enum nd_arguments checks;
        const struct nd_option *options;
        size_t n_options;
        size_t values_bytes; /* of the struct of values */
        bool prints;         /* what it prints is the purpose: not without a stdout */
        int (*run)(const void *values,
                   char *const *arguments,
                   size_t n_arguments); /* exit status */
};

struct nd_option_result {
        void *values;     /* struct of values */
        char **arguments; /* [n_arguments] what is no option, in order; borrowed from argv */
        size_t n_arguments;
        bool wants_help; /* --help was there; nothing else was looked at */
};

/**
 * nd_option_parse() - read a command line
 * @argv:  [@argc] behind the name of the subcommand
 *
 * Options and arguments may stand in any order; behind "--" nothing is an option; "-" is an
 * argument.
 *
 * Return: 0; NDBUS_EINVAL with @fault naming the option, the value and what would be right;
 *         NDBUS_ENOMEM
 */
int nd_option_parse(const struct nd_command *command,
                    int argc,
                    char **argv,
                    struct nd_option_result *ret,
                    struct nd_fault *fault);

void nd_option_result_deinit(const struct nd_command *command, struct nd_option_result *result);

void nd_option_write_help(const struct nd_command *command, FILE *out);

/* "64K", "16 MiB" without the space, "4096"; false if it is no size. */
bool nd_option_parse_size(const char *text, uint64_t *ret_bytes);
