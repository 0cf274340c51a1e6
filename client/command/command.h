/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * The subcommands, and what several of them do
 */

#include <ndbus/ndbus.h>
#include "client/command/option.h"

extern const struct nd_command nd_command_pub;
extern const struct nd_command nd_command_sub;
extern const struct nd_command nd_command_pack;
extern const struct nd_command nd_command_unpack;
extern const struct nd_command nd_command_request;
extern const struct nd_command nd_command_reply;
extern const struct nd_command nd_command_stat;
extern const struct nd_command nd_command_ping;
extern const struct nd_command nd_command_bench;

/**
 * nd_command_open() - connect, or say why not
 * @url:  NULL: the default
 *
 * Waits end at SIGINT and SIGTERM: NDBUS_EINTERRUPTED.
 *
 * Return: the bus; NULL, and the error is printed
 */
struct ndbus *nd_command_open(const char *url);

/* Dtypes and shapes of a message as two words, several divided by ';'; "-" without arrays. */
void nd_command_write_arrays(FILE *out, const struct ndbus_array *arrays, size_t n_arrays);

/* A peer's text as one word or cell: control characters become '?'. */
void nd_command_write_text(FILE *out, const char *text);

/* ndbus_close(), and its error printed. Returns an exit status. */
int nd_command_close(struct ndbus *bus, int timeout_ms);

/* milliseconds as the library takes them */
static inline int nd_command_timeout(int64_t ms)
{
        return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

#define ND_COMMAND_URL_OPTION(XX, S)                                                               \
        XX(S, url, "url", TEXT, 0, 0, 0, "URL",                                                    \
           "unix:/path or tcp://host:port of the daemon. Default: $NDBUS_URL, else the user's "    \
           "socket if there is one, else unix:/run/ndbus/ndbus.sock.")
