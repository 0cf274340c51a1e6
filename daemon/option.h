/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Options: one table, read by the struct, the parser, --help and the manual page's test
 *
 *   XX(field, "name", kind, default, least, most, "help")
 *
 * Kinds: SIZE in bytes, with suffix K, M, G or T (powers of 1024) or without; COUNT; MS milliseconds.
 * A default of ND_OPTION_DERIVED is worked out at the start; the help says from what.
 */

#include "daemon/log.h"
#include "protocol/fault.h"
#include "protocol/limit.h"
#include "protocol/url.h"

#define ND_LISTEN_MAX     64u
#define ND_OPTION_DERIVED UINT64_MAX

#define ND_OPTIONS(XX)                                                                             \
        XX(memory_max, "memory-max", SIZE, ND_OPTION_DERIVED, 8 * ND_MIB, UINT64_C(1) << 46,       \
           "bytes kept for clients in all; default half of RAM or of the memory cgroup")           \
        XX(message_max, "message-max", SIZE, ND_OPTION_DERIVED, 1, UINT64_C(1) << 45,              \
           "body bytes of one message; default and most half of memory-max")                       \
        XX(shm_max, "shm-max", SIZE, ND_OPTION_DERIVED, 0, UINT64_C(1) << 45,                      \
           "bytes of shared memory of one client; 0: none; default a quarter of RAM or cgroup")    \
        XX(header_max, "header-max", SIZE, ND_HEADER_BYTES_MAX, 256, ND_HEADER_BYTES_MAX,          \
           "header bytes of one message")                                                          \
        XX(meta_max, "meta-max", SIZE, ND_META_BYTES_MAX, 0, ND_META_BYTES_MAX,                    \
           "meta bytes of one message")                                                            \
        XX(clients_max, "clients-max", COUNT, ND_OPTION_DERIVED, 1, 1000000,                       \
           "connections at a time; default and most half of the file descriptor limit")            \
        XX(subscriptions_max, "subscriptions-max", COUNT, 65536, 1, 65536,                         \
           "subscriptions, and watched topics, of one connection")                                 \
        XX(block_timeout_ms, "block-timeout", MS, 60000, 100, 86400000,                            \
           "a blocking subscription that takes nothing for so long is ended")                      \
        XX(drain_timeout_ms, "drain-timeout", MS, 5000, 0, 86400000,                               \
           "how long queues are still flushed after SIGTERM")

struct nd_options {
#define ND_OPTION_FIELD(_field, _name, _kind, _default, _least, _most, _help) uint64_t _field;
        ND_OPTIONS(ND_OPTION_FIELD)
#undef ND_OPTION_FIELD
        struct nd_url listen[ND_LISTEN_MAX];
        size_t n_listen;
        bool insecure_anyone;
        enum nd_log_level log_level;
};

enum {
        _ND_OPTION_E_SUCCESS,

        ND_OPTION_E_DONE, /* --help or --version was printed: exit 0 */
};

/**
 * nd_options_parse() - from the command line
 * @ret:    every option set, by default or by value; what is worked out from the machine included
 * @fault:  filled on failure: field is the option
 *
 * Return: 0; ND_OPTION_E_DONE; NDBUS_EINVAL
 */
int nd_options_parse(int argc, char **argv, struct nd_options *ret, struct nd_fault *fault);

/* The listener that is opened where none was asked for and none was passed by a service manager.
 * Return: 0; NDBUS_EINVAL */
int nd_options_default_listen(struct nd_options *options, struct nd_fault *fault);
