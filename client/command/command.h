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
extern const struct nd_command nd_command_record;
extern const struct nd_command nd_command_replay;
extern const struct nd_command nd_command_info;
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

/** The same, with what else the options say. */
struct ndbus *nd_command_open_with(const char *url, struct ndbus_options *options);

/* Dtypes and shapes of a message as two words, several divided by ';'; "-" without arrays. */
void nd_command_write_arrays(FILE *out, const struct ndbus_array *arrays, size_t n_arrays);

/* A peer's text as one word or cell: control characters become '?'. */
void nd_command_write_text(FILE *out, const char *text);

/* ndbus_close(), and its error printed. Returns an exit status. */
int nd_command_close(struct ndbus *bus, int timeout_ms);

/* "subscribed to PATTERN" on stderr: scripts wait for it. */
void nd_command_say_subscribed(const char *pattern);

/* Losses of a subscription of which something was said, on a line or otherwise. */
struct nd_losses {
        const struct ndbus_subscription *subscription;
        uint64_t n_told;
        uint64_t n_gaps_told;
};

/* What goes before @message is told by what is printed of it. */
void nd_losses_told(struct nd_losses *losses, const struct ndbus_message *message);

/* Says on stderr what was not told yet; @where: " since ...", or "". */
void nd_losses_say(struct nd_losses *losses, const char *pattern, const char *where);

/**
 * nd_losses_end() - the same when nothing more will be received
 *
 * The daemon is asked for a sign of life first: what it announced before that is heard.
 */
void nd_losses_end(struct nd_losses *losses,
                   struct ndbus *bus,
                   const char *pattern,
                   const char *where);

/**
 * nd_command_reconnects() - does an error of ndbus_receive() end only this connection?
 * @told_ns:  when it was said last; 0 at first and after a message
 *
 * Says so, not too often, and waits a little: what is not there is not asked for in a tight loop.
 */
bool nd_command_reconnects(int r, uint64_t *told_ns);

/**
 * nd_command_wait() - until a moment of CLOCK_MONOTONIC, serving the connection meanwhile
 *
 * Return: 0; a negative enum ndbus_err after which nothing more can be published
 */
int nd_command_wait(struct ndbus *bus, uint64_t due_ns);

/* What is over when a publish comes back with this: the connection, or the user's patience. */
bool nd_command_is_over(int r);

/* --repeat with a path that cannot be read again; says so. ND_EXIT_OK, ND_EXIT_USAGE */
int nd_command_check_repeat(const char *path, uint64_t repeat);

/* milliseconds as the library takes them */
static inline int nd_command_timeout(int64_t ms)
{
        return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

/* How long a command waits for leave to send, and for the daemon's answer at the end: --block, --timeout */
static inline int nd_command_leave(bool block, int64_t timeout_ms)
{
        return block ? -1 : nd_command_timeout(timeout_ms);
}

#define ND_COMMAND_LEAVE_OPTIONS(XX, S)                                                            \
        XX(S, timeout_ms, "timeout", TIME, 5000, 0, INT32_MAX, "S",                                \
           "Seconds to wait for leave to send each message, and for the daemon's answer at the "   \
           "end. Default 5.")                                                                      \
        XX(S, block, "block", FLAG, 0, 0, 0, "", "Wait as long as it takes for leave to send.")

/* Of commands that have no daemon to ask what the most is. */
#define ND_COMMAND_MESSAGE_MAX_OPTION(XX, S)                                                       \
        XX(S, message_max, "message-max", SIZE, INT64_C(1) << 30, 1, INT64_MAX, "SIZE",            \
           "Bytes of one message of a pipe, which is kept in memory. Default 1G.")

/* Of commands that write arrays of others into files. */
#define ND_COMMAND_BROADCAST_MAX_OPTION(XX, S)                                                     \
        XX(S, broadcast_max, "broadcast-max", SIZE, INT64_C(1) << 30, 0, INT64_MAX, "SIZE",        \
           "Bytes of a file whose array repeats elements, as a broadcast axis does: a few that "   \
           "come can be any number written out. Default 1G.")

#define ND_COMMAND_URL_OPTION(XX, S)                                                               \
        XX(S, url, "url", URL, 0, 0, 0, "URL",                                                     \
           "unix:/path or tcp://host:port of the daemon. Default: $NDBUS_URL, else the user's "    \
           "socket if there is one, else unix:/run/ndbus/ndbus.sock.")
