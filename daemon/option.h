/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Options: one table, read by the struct, the parser, --help and the manual page's test
 *
 *   XX(field, "name", kind, when, default, least, most, "help")
 *
 * Kinds: SIZE in bytes, with suffix K, M, G or T (powers of 1024) or without; COUNT; MS milliseconds.
 * When: START, what is changed in the configuration file matters at the next start, as for all sizes
 * that clients were told and hold the daemon to; RELOAD, at once.
 * A default of ND_OPTION_DERIVED is worked out at the start; the help says from what.
 */

#include "daemon/limits.h"
#include "daemon/log.h"
#include "daemon/rights.h"
#include "daemon/token.h"
#include "protocol/fault.h"
#include "protocol/limit.h"
#include "protocol/url.h"

#define ND_LISTEN_MAX     64u
#define ND_METRICS_MAX    8u
#define ND_CONFIG_PATH    "/etc/ndbus/ndbusd.conf" /* of the system's service */
#define ND_OPTION_DERIVED UINT64_MAX
#define ND_EXIT_USAGE     2 /* exit status where the options are wrong */

#define ND_OPTIONS(XX)                                                                             \
        XX(memory_max, "memory-max", SIZE, START, ND_OPTION_DERIVED, 8 * ND_MIB,                   \
           UINT64_C(1) << 46,                                                                      \
           "bytes kept for clients in all; default half of RAM or of the memory cgroup")           \
        XX(message_max, "message-max", SIZE, START, ND_OPTION_DERIVED, 1, UINT64_C(1) << 45,       \
           "body bytes of one message; default and most half of memory-max")                       \
        XX(shm_max, "shm-max", SIZE, START, ND_OPTION_DERIVED, 0, UINT64_C(1) << 45,               \
           "bytes of shared memory of one client; 0: none; default a quarter of RAM or cgroup")    \
        XX(shm_own_max, "shm-own-max", SIZE, START, ND_OPTION_DERIVED, 0, UINT64_C(1) << 45,       \
           "bytes of the daemon's own shared memory; default and most an eighth of memory-max")    \
        XX(header_max, "header-max", SIZE, START, ND_HEADER_BYTES_MAX, 256, ND_HEADER_BYTES_MAX,   \
           "header bytes of one message")                                                          \
        XX(meta_max, "meta-max", SIZE, START, ND_META_BYTES_MAX, 0, ND_META_BYTES_MAX,             \
           "meta bytes of one message")                                                            \
        XX(clients_max, "clients-max", COUNT, RELOAD, ND_OPTION_DERIVED, 1, 1000000,               \
           "connections at a time; default one for 512K of memory-max; most half of the fd limit") \
        XX(subscriptions_max, "subscriptions-max", COUNT, RELOAD, 65536, 1, 65536,                 \
           "subscriptions, and watched topics, of one connection")                                 \
        XX(block_timeout_ms, "block-timeout", MS, RELOAD, 60000, 100, 86400000,                    \
           "a blocking subscription that takes nothing for so long is ended")                      \
        XX(drain_timeout_ms, "drain-timeout", MS, RELOAD, 5000, 0, 86400000,                       \
           "how long queues are still flushed after SIGTERM")

enum {
#define ND_OPTION_ENUM(_field, _name, _kind, _when, _default, _least, _most, _help)                \
        ND_OPTION_I_##_field,
        ND_OPTIONS(ND_OPTION_ENUM)
#undef ND_OPTION_ENUM
        _ND_OPTION_N,
};

/* Where a value is from, for what is found wrong when all of them are known. */
struct nd_option_origin {
        unsigned line;   /* of the configuration file; 0: it is not from there */
        bool is_derived; /* nobody said it */
};

struct nd_options {
#define ND_OPTION_FIELD(_field, _name, _kind, _when, _default, _least, _most, _help)               \
        uint64_t _field;
        ND_OPTIONS(ND_OPTION_FIELD)
#undef ND_OPTION_FIELD
        struct nd_option_origin origins[_ND_OPTION_N]; /* in the order of the table */
        struct nd_url listen[ND_LISTEN_MAX];
        unsigned listen_lines[ND_LISTEN_MAX]; /* as nd_option_origin.line */
        size_t n_listen;
        struct nd_url metrics[ND_METRICS_MAX];
        unsigned metrics_lines[ND_METRICS_MAX];
        size_t n_metrics;
        bool insecure_anyone;
        enum nd_log_level log_level;
        struct nd_rules *rules;   /* what is allowed; NULL: everything */
        struct nd_rules *limits;  /* of identities; NULL: none */
        struct nd_tokens *tokens; /* that clients can prove on TCP; NULL: none */
        const char *config;       /* the file that was read; NULL: none */
        bool reloads;             /* at SIGHUP: there is a file, or there may be one by then */
        int argc;                 /* what it was made from: read again at a reload */
        char **argv;
};

enum {
        _ND_OPTION_E_SUCCESS,

        ND_OPTION_E_DONE, /* what was asked for has been printed: exit 0 */
};

/**
 * nd_options_parse() - from the command line, and from the file that it or the environment names
 * @ret:    every option set, by default or by value; what is worked out from the machine included;
 *          borrows @argv; nd_options_deinit()
 * @fault:  filled on failure: field is the option, or FILE:LINE
 *
 * Return: 0; ND_OPTION_E_DONE; NDBUS_EINVAL; NDBUS_ESYSTEM for a file that cannot be read
 */
int nd_options_parse(int argc, char **argv, struct nd_options *ret, struct nd_fault *fault);

/**
 * nd_options_set() - set one option by its name
 * @line:   where the configuration file says it; 0: it is not from there
 * @seen:   options that were set before, 0 at first: only a list may be set again
 * @fault:  filled on failure: field is the name
 *
 * Return: 0; NDBUS_EINVAL
 */
int nd_options_set(struct nd_options *options,
                   const char *name,
                   const char *value,
                   unsigned line,
                   uint64_t *seen,
                   struct nd_fault *fault);

void nd_options_deinit(struct nd_options *options);

/* Takes over what can change while the daemon runs, and logs what did and what cannot. What nobody said
 * is worked out from the values in force. */
void nd_options_reload(struct nd_options *options, const struct nd_options *changed);

/* The listener that is opened where none was asked for and none was passed by a service manager.
 * Return: 0; NDBUS_EINVAL */
int nd_options_default_listen(struct nd_options *options, struct nd_fault *fault);
