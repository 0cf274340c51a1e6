/* SPDX-License-Identifier: MIT */

/*
 * Reach
 *
 * Of a host that is a number it is known as soon as the options are read, so a start, a reload and a
 * check of the configuration are refused by the same words. A name is looked up when its listener is
 * opened, and for a check; not at a reload, when clients would wait for the network.
 */

#include "daemon/reach.h"
#include <netinet/in.h>

bool nd_reach_is_local(const struct sockaddr *address)
{
        if (address->sa_family == AF_INET) {
                const struct sockaddr_in *in = (const void *)address;

                return ntohl(in->sin_addr.s_addr) >> 24 == 127;
        }
        const struct sockaddr_in6 *in6 = (const void *)address;

        return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

int nd_reach_find(const struct nd_url *url,
                  bool is_asked,
                  const char *field,
                  struct addrinfo **ret,
                  struct nd_fault *fault)
{
        const struct addrinfo hints = {
                .ai_family = AF_UNSPEC,
                .ai_socktype = SOCK_STREAM,
                .ai_flags = AI_PASSIVE | AI_NUMERICSERV | (is_asked ? 0 : AI_NUMERICHOST),
        };
        char port[8];
        int r;

        snprintf(port, sizeof(port), "%u", url->port);
        r = getaddrinfo(url->host, port, &hints, ret);
        if (r == 0)
                return 0;
        return nd_fault_set(fault, NDBUS_ESYSTEM, field, "tcp://%s: %s", url->host,
                            gai_strerror(r));
}

int nd_reach_check(const struct nd_options *options,
                   const struct sockaddr *address,
                   const struct nd_url *url,
                   bool is_metrics,
                   const char *field,
                   struct nd_fault *fault)
{
        if (nd_reach_is_local(address) || options->insecure_anyone ||
            (!is_metrics && options->tokens))
                return 0;
        return nd_fault_set(fault, NDBUS_EINVAL, field,
                            "tcp://%s is not loopback: whoever reaches it could read %s "
                            "--insecure-anyone if that is meant",
                            url->host,
                            is_metrics ? "what the daemon counts; say"
                                       : "and publish everything; give --token, or say");
}
