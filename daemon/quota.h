/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Quota: what each identity has, counted over all its connections, and how much it may have
 *
 * An identity is a user on Unix sockets, a token that was proved, or all those together who come by
 * TCP without one. Whoever gives a client something that is limited asks first, charges it, and
 * discharges it when it is gone. What is above a limit that was lowered meanwhile stays, and no more
 * is given.
 */

#include <bsd/sys/tree.h>
#include "daemon/limits.h"
#include "protocol/counter.h"

#define ND_ACCOUNT_NAME_BYTES 80u

/* One identity. It lives as long as there is a connection of it, or something that it has left, or a
 * message of it that was before its time: else a new connection would be a new identity. */
struct nd_account {
        RB_ENTRY(nd_account) in_accounts;
        struct nd_accounts *accounts;
        size_t n_refs;
        uint64_t used[_ND_LIMIT_N];       /* of those that are counted; MESSAGE and RATE stay 0 */
        uint64_t least[_ND_LIMIT_N];      /* that one of its connections may have; see STATS */
        uint64_t rate_ns;                 /* up to when the messages that came are leave's worth */
        uint64_t stuck_bytes;             /* queued, when all that could be sent last was */
        char name[ND_ACCOUNT_NAME_BYTES]; /* "user:1000", "token:lab", "tcp" */
};

RB_HEAD(nd_account_tree, nd_account);

struct nd_accounts {
        struct nd_account_tree tree;
        size_t n;
        struct nd_counters *counters;
};

void nd_accounts_init(struct nd_accounts *accounts, struct nd_counters *counters);

/**
 * nd_account_find() - the account of an identity, made if it is new; a reference
 *
 * Return: NULL: no memory
 */
struct nd_account *nd_account_find(struct nd_accounts *accounts,
                                   const struct nd_identity *identity);
struct nd_account *nd_account_ref(struct nd_account *account);
/* Accepts NULL. Return: NULL */
struct nd_account *nd_account_unref(struct nd_account *account);

/* Forgets those whose time has come; once a second, and with UINT64_MAX in the end. */
void nd_accounts_sweep(struct nd_accounts *accounts, uint64_t now_ns);

/* A connection's part in it. */
struct nd_quota {
        struct nd_account *account; /* NULL: it is not known yet who it is */
        uint64_t most[_ND_LIMIT_N];
};

static inline void nd_quota_charge(const struct nd_quota *quota, enum nd_limit limit, uint64_t n)
{
        quota->account->used[limit] += n;
}

static inline void nd_quota_discharge(const struct nd_quota *quota, enum nd_limit limit, uint64_t n)
{
        nd_assert(n <= quota->account->used[limit]);
        quota->account->used[limit] -= n;
}

/* Would @n more be too much? */
static inline bool nd_quota_is_over(const struct nd_quota *quota, enum nd_limit limit, uint64_t n)
{
        uint64_t used = quota->account->used[limit];

        return used > quota->most[limit] || n > quota->most[limit] - used;
}

/* @value is over a limit: @code with both numbers, counted. Return: @code */
int nd_quota_fault(const struct nd_quota *quota,
                   int code,
                   enum nd_limit limit,
                   uint64_t value,
                   struct nd_fault *fault);

/* May it have @n more? Return: 0, NDBUS_ELIMIT */
int nd_quota_check(const struct nd_quota *quota,
                   enum nd_limit limit,
                   uint64_t n,
                   struct nd_fault *fault);

RB_PROTOTYPE(nd_account_tree, nd_account, in_accounts, nd_account_compare)
