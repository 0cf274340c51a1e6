/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Limits: how much each identity may have, as the options say
 *
 * What is counted against them is the business of quota.h.
 *
 *   XX(NAME, "name", kind, least, "what a number of them is")
 *
 * Kinds: SIZE in bytes, COUNT.
 */

#include "daemon/rule.h"

#define ND_LIMITS(XX)                                                                              \
        XX(CONNECTIONS, "connections", COUNT, 1, "connections")                                    \
        XX(SUBSCRIPTIONS, "subscriptions", COUNT, 0, "subscriptions")                              \
        XX(TOPICS, "topics", COUNT, 0, "topics published on or watched")                           \
        XX(MESSAGE, "message", SIZE, 0, "bytes of one message")                                    \
        XX(RATE, "rate", COUNT, 1, "messages a second")                                            \
        XX(QUEUED, "queued", SIZE, 0, "bytes queued")                                              \
        XX(RETAINED, "retained", SIZE, 0, "bytes retained")                                        \
        XX(HELD, "held", SIZE, 0, "bytes of shared memory held")

enum nd_limit {
#define ND_LIMIT_ENUM(_name, _text, _kind, _least, _unit) ND_LIMIT_##_name,
        ND_LIMITS(ND_LIMIT_ENUM)
#undef ND_LIMIT_ENUM
        _ND_LIMIT_N,
};

#define ND_LIMIT_NONE   UINT64_MAX
#define ND_LIMIT_MOST   (UINT64_C(1) << 46) /* that can be given: sums never overflow */
#define ND_LIMITS_NAMES "connections, subscriptions, topics, message, rate, queued, retained, held"

const char *nd_limit_name(enum nd_limit limit);
const char *nd_limit_unit(enum nd_limit limit);

/**
 * nd_limits_add() - one more rule
 * @limits:  NULL at first: made
 * @text:    "WHO NAME=VALUE[,NAME=VALUE]...", as ndbusd(8) says
 * @field:   what to call it in @fault
 *
 * Return: 0; NDBUS_EINVAL, NDBUS_ENOMEM
 */
int nd_limits_add(struct nd_rules **limits,
                  const char *text,
                  const char *field,
                  struct nd_fault *fault);

/* Of each limit what the most special rule says that names the identity; of several groups the one
 * that allows most. Accepts NULL. */
void nd_limits_resolve(const struct nd_rules *limits,
                       const struct nd_identity *identity,
                       uint64_t ret_most[static _ND_LIMIT_N]);
