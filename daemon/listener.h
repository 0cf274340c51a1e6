/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Listener: a socket that accepts; opened by us or by the service manager
 */

#include <sys/socket.h>
#include <uv.h>
#include "protocol/fault.h"
#include "protocol/list.h"
#include "protocol/url.h"

struct nd_server;

enum nd_listener_purpose {
        ND_LISTENER_BUS,     /* clients: --listen, and what the service manager passes */
        ND_LISTENER_METRICS, /* who asks by HTTP: --metrics */
};

struct nd_listener {
        struct nd_server *server;
        enum nd_listener_purpose purpose;
        struct nd_list in_server;
        uv_poll_t poll;
        int fd;
        int lock_fd; /* of a Unix socket that we opened; else -1 */
        bool is_tcp;
        bool is_owned;     /* the path is ours to unlink */
        struct nd_url url; /* with the port that the system gave */
};

/**
 * nd_listener_open() - bind and listen
 *
 * A Unix socket is guarded by a lock file beside it, so that a second daemon never takes a live
 * one's path and a dead one's path never stops a start. A file that is no socket is not touched.
 * The folder is made if only its last part is missing. Mode 0660. TCP that is not loopback needs
 * tokens or --insecure-anyone; for metrics only that, because HTTP proves none.
 *
 * Return: 0, or a negative enum ndbus_err with @fault naming the address
 */
int nd_listener_open(struct nd_server *server,
                     const struct nd_url *url,
                     enum nd_listener_purpose purpose,
                     struct nd_fault *fault);

/* Takes over a listening socket; checks family, type and that it listens. */
int nd_listener_adopt(struct nd_server *server, int fd, struct nd_fault *fault);

/* All listeners are open: accept. */
int nd_listener_start(struct nd_listener *listener);
/* Closes it, unlinks what is ours; freed when the loop has let go of it. */
void nd_listener_stop(struct nd_listener *listener);
/* Stops accepting for now, or goes on. */
void nd_listener_pause(struct nd_listener *listener, bool is_paused);

/* Writes "host:port" of an Internet address; false if it is none. */
bool nd_listener_format_address(const struct sockaddr_storage *address, char *out, size_t n_out);
