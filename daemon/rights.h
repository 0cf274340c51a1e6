/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Rights: who may do what on which topics
 *
 * Rules come from the options; a connection has those that name it, for as long as they are in force.
 * Without any rule everybody may do everything; with the first one only what a rule allows.
 */

#include "daemon/rule.h"

/* XX(NAME, bit, "name") */
#define ND_RIGHTS(XX)                                                                              \
        XX(PUBLISH, 0, "publish")                                                                  \
        XX(SUBSCRIBE, 1, "subscribe")                                                              \
        XX(BLOCK, 2, "block")                                                                      \
        XX(RETAIN, 3, "retain")                                                                    \
        XX(GROUP, 4, "group")                                                                      \
        XX(STATS, 5, "stats")

enum nd_right {
#define ND_RIGHT_ENUM(_name, _bit, _text) ND_RIGHT_##_name = 1u << (_bit),
        ND_RIGHTS(ND_RIGHT_ENUM)
#undef ND_RIGHT_ENUM
};

#define ND_RULE_PATTERNS_MAX 64u

/**
 * nd_rights_add() - one more rule
 * @rules:  NULL at first: made
 * @text:   "WHO RIGHT[,RIGHT]... [PATTERN]...", as ndbusd(8) says
 * @field:  what to call it in @fault
 *
 * Return: 0; NDBUS_EINVAL, NDBUS_ENOMEM
 */
int nd_rights_add(struct nd_rules **rules,
                  const char *text,
                  const char *field,
                  struct nd_fault *fault);

/* The rules that name one connection; NULL: there are no rules, everything is allowed. */
struct nd_rights;

/**
 * nd_rights_resolve() - the rules that name an identity
 * @ret_rights:  free(); borrows from @rules. NULL if @rules is
 *
 * Return: 0; NDBUS_ENOMEM
 */
int nd_rights_resolve(const struct nd_rules *rules,
                      const struct nd_identity *identity,
                      struct nd_rights **ret_rights);

/* Bytes that nd_rights_resolve() allocates. */
uint64_t nd_rights_cost(const struct nd_rules *rules);

/* Is anything allowed at all? */
bool nd_rights_are_any(const struct nd_rights *rights);

/* May it read what the daemon counts? */
bool nd_rights_allow_stats(const struct nd_rights *rights);

/* Does the topic match a pattern of each of @needs, enum nd_right? */
bool nd_rights_allow(const struct nd_rights *rights,
                     unsigned needs,
                     const char *topic,
                     size_t n_topic);

/* Is each of @needs allowed on all topics that @pattern matches, by one rule? */
bool nd_rights_cover(const struct nd_rights *rights,
                     unsigned needs,
                     const char *pattern,
                     size_t n_pattern);

/**
 * nd_rights_missing() - the first of @needs that is allowed on no topic that @pattern matches
 *
 * Return: an enum nd_right; 0 if there is none
 */
unsigned nd_rights_missing(const struct nd_rights *rights,
                           unsigned needs,
                           const char *pattern,
                           size_t n_pattern);

/* A right that the topic or pattern needs is missing. Return: NDBUS_EDENIED */
int nd_rights_deny(enum nd_right right,
                   const char *field,
                   const char *name,
                   size_t n_name,
                   struct nd_fault *fault);
