/* SPDX-License-Identifier: MIT */

/*
 * URLs
 *
 * An address as people write it on a command line. Only what both ends can use is accepted, and
 * everything else is refused with what would have been right: a path that is cut to fit a
 * sockaddr binds somewhere else and says it succeeded.
 */

#include "protocol/url.h"
#include <string.h>
#include "protocol/limit.h"

#define URL_FORMS "unix:/path or tcp://host:port"

static int
parse_unix(const char *path, const char *field, struct nd_url *ret, struct nd_fault *fault)
{
        size_t n = strlen(path);

        if (path[0] != '/')
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "has the path \"%s\", which must begin with '/'", path);
        if (n > ND_UNIX_PATH_BYTES_MAX)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, field, n, ND_UNIX_PATH_BYTES_MAX,
                                          "bytes of path");

        *ret = (struct nd_url){.type = ND_URL_UNIX};
        memcpy(ret->path, path, n);
        return 0;
}

static bool host_has_only(const char *host, size_t n, const char *allowed)
{
        for (size_t i = 0; i < n; ++i)
                if (!strchr(allowed, host[i]))
                        return false;
        return true;
}

#define DIGITS  "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

static int parse_port(const char *text, const char *field, uint16_t *ret, struct nd_fault *fault)
{
        unsigned long port = 0;
        size_t n = strlen(text);

        if (n == 0 || n > 5 || !host_has_only(text, n, DIGITS) ||
            (port = strtoul(text, NULL, 10)) > UINT16_MAX)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "has the port \"%s\"; a number from 0 to 65535 is wanted",
                                    text);
        *ret = (uint16_t)port;
        return 0;
}

static int
parse_tcp(const char *text, const char *field, struct nd_url *ret, struct nd_fault *fault)
{
        struct nd_url url = {.type = ND_URL_TCP, .port = ND_PORT};
        const char *host = text, *rest;
        bool is_bracketed = text[0] == '[';
        size_t n;
        int r;

        if (is_bracketed) {
                ++host;
                rest = strchr(host, ']');
                if (!rest)
                        return nd_fault_set(fault, NDBUS_EINVAL, field,
                                            "has a '[' without a ']': \"%s\"", text);
                n = (size_t)(rest - host);
                ++rest;
        } else {
                n = strcspn(host, ":");
                rest = host + n;
                if (rest[0] == ':' && strchr(rest + 1, ':'))
                        return nd_fault_set(fault, NDBUS_EINVAL, field,
                                            "has more than one ':'; an IPv6 host stands in "
                                            "brackets: tcp://[::1]:6328");
        }

        if (n == 0)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "has no host; " URL_FORMS " is wanted");
        if (n > ND_HOST_BYTES_MAX)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, field, n, ND_HOST_BYTES_MAX,
                                          "bytes of host");
        /* behind '%' an IPv6 address has the name of an interface */
        if (!host_has_only(host, n, is_bracketed ? DIGITS LETTERS ":.%_-" : DIGITS LETTERS "._-"))
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "has the host \"%.*s\", which is no "
                                    "name and no address",
                                    (int)n, host);
        if (rest[0] == ':') {
                r = parse_port(rest + 1, field, &url.port, fault);
                if (r)
                        return r;
        } else if (rest[0] != '\0') {
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "has \"%s\" behind the host; only :port may stand there", rest);
        }

        memcpy(url.host, host, n);
        *ret = url;
        return 0;
}

int nd_url_parse(const char *text, const char *field, struct nd_url *ret, struct nd_fault *fault)
{
        if (strncmp(text, "unix:", 5) == 0)
                return parse_unix(text + 5, field, ret, fault);
        if (strncmp(text, "tcp://", 6) == 0)
                return parse_tcp(text + 6, field, ret, fault);
        return nd_fault_set(fault, NDBUS_EINVAL, field, "is \"%s\"; " URL_FORMS " is wanted", text);
}

char *nd_url_format(const struct nd_url *url, char *out, size_t n_out)
{
        bool is_v6 = strchr(url->host, ':');

        if (url->type == ND_URL_UNIX)
                snprintf(out, n_out, "unix:%s", url->path);
        else
                snprintf(out, n_out, "tcp://%s%s%s:%u", is_v6 ? "[" : "", url->host,
                         is_v6 ? "]" : "", (unsigned)url->port);
        return out;
}
