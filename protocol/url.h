/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * URLs: unix:/path and tcp://host:port
 *
 * Only syntax: nothing is looked up. A unix path is absolute and at most 107 bytes, so that it
 * fits sockaddr_un with its NUL. An IPv6 host stands in brackets; the port may be left out (6328);
 * port 0 is accepted for listening and asks the system for one.
 */

#include "protocol/fault.h"

enum nd_url_type {
        ND_URL_UNIX,
        ND_URL_TCP,
};

#define ND_UNIX_PATH_BYTES_MAX 107u
#define ND_HOST_BYTES_MAX      255u

struct nd_url {
        enum nd_url_type type;
        char path[ND_UNIX_PATH_BYTES_MAX + 1]; /* unix */
        char host[ND_HOST_BYTES_MAX + 1];      /* tcp; without brackets */
        uint16_t port;
};

/* 0 or NDBUS_EINVAL; @field names where the URL came from ("--listen", "url"). */
int nd_url_parse(const char *text, const char *field, struct nd_url *ret, struct nd_fault *fault);

/* Writes the canonical text, NUL-terminated, cut to @n_out; returns @out. */
char *nd_url_format(const struct nd_url *url, char *out, size_t n_out);
