/* SPDX-License-Identifier: MIT */

/*
 * Quota
 *
 * Everything is counted for one identity, never for a group or for all: so who reaches a limit has
 * reached it alone, and a limit that is meant for everybody is each one's own.
 *
 * Connections of one user can be in different groups, as processes are, and so have different limits;
 * what they are compared with is the same.
 */

#include "daemon/quota.h"
#include <inttypes.h>
#include <string.h>
#include "protocol/token.h"

_Static_assert(ND_ACCOUNT_NAME_BYTES > sizeof("token:") + ND_TOKEN_NAME_BYTES_MAX, "names fit");

static int nd_account_compare(struct nd_account *a, struct nd_account *b)
{
        return strcmp(a->name, b->name);
}

RB_GENERATE(nd_account_tree, nd_account, in_accounts, nd_account_compare)

void nd_accounts_init(struct nd_accounts *accounts, struct nd_counters *counters)
{
        *accounts = (struct nd_accounts){.counters = counters};
        RB_INIT(&accounts->tree);
}

struct nd_account *nd_account_find(struct nd_accounts *accounts, const struct nd_identity *identity)
{
        struct nd_account key = {.n_refs = 1, .accounts = accounts};
        struct nd_account *account;

        if (identity->token)
                snprintf(key.name, sizeof(key.name), "token:%s", identity->token);
        else if (identity->has_user)
                snprintf(key.name, sizeof(key.name), "user:%" PRIu32, identity->uid);
        else
                snprintf(key.name, sizeof(key.name), "tcp");
        account = RB_FIND(nd_account_tree, &accounts->tree, &key);
        if (account)
                return nd_account_ref(account);
        account = malloc(sizeof(*account));
        if (!account)
                return NULL;
        *account = key;
        RB_INSERT(nd_account_tree, &accounts->tree, account);
        ++accounts->n;
        return account;
}

static void account_free(struct nd_account *account)
{
        for (size_t i = 0; i < _ND_LIMIT_N; ++i)
                nd_assert(account->used[i] == 0);
        RB_REMOVE(nd_account_tree, &account->accounts->tree, account);
        --account->accounts->n;
        free(account);
}

struct nd_account *nd_account_ref(struct nd_account *account)
{
        ++account->n_refs;
        return account;
}

struct nd_account *nd_account_unref(struct nd_account *account)
{
        if (account && --account->n_refs == 0 && account->rate_ns == 0)
                account_free(account);
        return NULL;
}

void nd_accounts_sweep(struct nd_accounts *accounts, uint64_t now_ns)
{
        struct nd_account *account, *next;

        RB_FOREACH_SAFE (account, nd_account_tree, &accounts->tree, next)
                if (account->n_refs == 0 && account->rate_ns <= now_ns)
                        account_free(account);
}

int nd_quota_fault(const struct nd_quota *quota,
                   int code,
                   enum nd_limit limit,
                   uint64_t value,
                   struct nd_fault *fault)
{
        uint64_t most = quota->most[limit];

        ++quota->account->accounts->counters->limited;
        return nd_fault_set_numbers(fault, code, nd_limit_name(limit), value, most,
                                    "is %" PRIu64 ", the limit is %" PRIu64 " %s for %s", value,
                                    most, nd_limit_unit(limit), quota->account->name);
}

int nd_quota_check(const struct nd_quota *quota,
                   enum nd_limit limit,
                   uint64_t n,
                   struct nd_fault *fault)
{
        if (!nd_quota_is_over(quota, limit, n))
                return 0;
        return nd_quota_fault(quota, NDBUS_ELIMIT, limit, quota->account->used[limit] + n, fault);
}
