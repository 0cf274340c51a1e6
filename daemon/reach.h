/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Reach: from where a TCP listener can be reached, and whether that is meant
 */

#include <netdb.h>
#include "daemon/option.h"

/* Loopback: from this machine alone. @address: of IPv4 or IPv6 */
bool nd_reach_is_local(const struct sockaddr *address);

/**
 * nd_reach_find() - the addresses of a TCP listener's host
 * @is_asked: look names up, which can mean to ask the network; else only numbers are found
 * @field:    what to call it in @fault
 * @ret:      freeaddrinfo()
 *
 * Return: 0; NDBUS_ESYSTEM: none was found
 */
int nd_reach_find(const struct nd_url *url,
                  bool is_asked,
                  const char *field,
                  struct addrinfo **ret,
                  struct nd_fault *fault);

/**
 * nd_reach_check() - may a listener be opened at @address?
 * @url:        what the operator calls it
 * @is_metrics: nobody proves a token there
 * @field:      what to call it in @fault
 *
 * Return: 0; NDBUS_EINVAL: it is reached from elsewhere, and nobody said that this is meant
 */
int nd_reach_check(const struct nd_options *options,
                   const struct sockaddr *address,
                   const struct nd_url *url,
                   bool is_metrics,
                   const char *field,
                   struct nd_fault *fault);
