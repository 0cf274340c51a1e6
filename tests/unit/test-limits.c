/* SPDX-License-Identifier: MIT */

/*
 * Limits: what is read, which rule counts for whom; accounts: who is who
 */

#include <criterion/criterion.h>
#include <string.h>
#include "daemon/quota.h"

static struct nd_rules *limits_of(const char *const *texts)
{
        struct nd_rules *limits = NULL;
        struct nd_fault fault;

        for (; *texts; ++texts)
                cr_assert_eq(nd_limits_add(&limits, *texts, "limit", &fault), 0, "%s: %s", *texts,
                             fault.text);
        return limits;
}

Test(limits, without_a_rule_there_is_none)
{
        uint64_t most[_ND_LIMIT_N] = {0};

        nd_limits_resolve(NULL, &(struct nd_identity){.has_user = true}, most);
        for (enum nd_limit i = 0; i < _ND_LIMIT_N; ++i)
                cr_expect_eq(most[i], ND_LIMIT_NONE, "%s", nd_limit_name(i));
}

/* Every name there is, and the list of names that help and refusals print. */
Test(limits, names)
{
        char text[64];

        for (enum nd_limit i = 0; i < _ND_LIMIT_N; ++i) {
                const char *const texts[] = {text, NULL};
                uint64_t most[_ND_LIMIT_N];
                struct nd_rules *limits;

                snprintf(text, sizeof(text), "anyone %s=7", nd_limit_name(i));
                limits = limits_of(texts);
                nd_limits_resolve(limits, &(struct nd_identity){0}, most);
                for (enum nd_limit k = 0; k < _ND_LIMIT_N; ++k)
                        cr_expect_eq(most[k], k == i ? 7 : ND_LIMIT_NONE, "%s", text);
                nd_rules_free(limits);
                cr_expect(strstr(ND_LIMITS_NAMES, nd_limit_name(i)), "%s", nd_limit_name(i));
        }
}

/* In whatever order they are given. */
Test(limits, the_most_special_rule_counts)
{
        static const char *const rules[] = {
                "anyone connections=1,queued=1K",   "group:70 connections=5,topics=9",
                "group:71 connections=4,queued=3K", "user:7 queued=2K",
                "token:lab queued=4K,rate=6",       NULL};
        const char *const turned[] = {rules[4], rules[3], rules[2], rules[1], rules[0], NULL};
        static const uint32_t gids[] = {70, 71};

        static const struct {
                struct nd_identity identity;
                uint64_t connections, queued, topics, rate;
        } rows[] = {
                {{.has_user = true, .uid = 8}, 1, 1024, ND_LIMIT_NONE, ND_LIMIT_NONE},
                {{.has_user = true, .uid = 7}, 1, 2048, ND_LIMIT_NONE, ND_LIMIT_NONE},
                {{.has_user = true, .uid = 8, .gids = gids, .n_gids = 1},
                 5,
                 1024,
                 9,
                 ND_LIMIT_NONE},
                {{.has_user = true, .uid = 8, .gids = gids, .n_gids = 2},
                 5,
                 3072,
                 9,
                 ND_LIMIT_NONE},
                {{.has_user = true, .uid = 7, .gids = gids, .n_gids = 2},
                 5,
                 2048,
                 9,
                 ND_LIMIT_NONE},
                {{.token = "lab"}, 1, 4096, ND_LIMIT_NONE, 6},
                {{.token = "other"}, 1, 1024, ND_LIMIT_NONE, ND_LIMIT_NONE},
                {{.uid = 7}, 1, 1024, ND_LIMIT_NONE, ND_LIMIT_NONE}, /* TCP */
        };

        for (int is_turned = 0; is_turned < 2; ++is_turned) {
                struct nd_rules *limits = limits_of(is_turned ? turned : rules);

                for (size_t i = 0; i < nd_array_size(rows); ++i) {
                        uint64_t most[_ND_LIMIT_N];

                        nd_limits_resolve(limits, &rows[i].identity, most);
                        cr_expect_eq(most[ND_LIMIT_CONNECTIONS], rows[i].connections, "%zu", i);
                        cr_expect_eq(most[ND_LIMIT_QUEUED], rows[i].queued, "%zu", i);
                        cr_expect_eq(most[ND_LIMIT_TOPICS], rows[i].topics, "%zu", i);
                        cr_expect_eq(most[ND_LIMIT_RATE], rows[i].rate, "%zu", i);
                }
                nd_rules_free(limits);
        }
}

Test(limits, refusals)
{
        static const struct {
                const char *text, *says;
        } rows[] = {
                {"", "is not WHO"},
                {"anyone", "is not WHO"},
                {"anyone queued=1 rate=1", "is not WHO"},
                {"any queued=1", "'any' is not user:NAME"},
                {"user:4294967295 queued=1", "is no number of a user"},
                {"anyone queued", "'queued' is not NAME=VALUE"},
                {"anyone =1", "'' is no limit"},
                {"anyone queued=1,", "'anyone queued=1,' has a comma and no limit beside it"},
                {"anyone ,queued=1", "has a comma and no limit"},
                {"anyone queued=1,,rate=1", "has a comma and no limit"},
                {"anyone ,", "has a comma and no limit"},
                {"anyone Queued=1", "'Queued' is no limit"},
                {"anyone queued=", "queued: '' is not a number"},
                {"anyone queued=1,queued=1", "queued is there twice"},
                {"anyone queued=70368744177665", "queued: 70368744177665 is not from 0 to"},
                {"anyone rate=0", "rate: 0 is not from 1 to"},
                {"anyone held=1KK", "held: '1KK' has the unknown suffix 'K'"},
                {"anyone topics=3", "'anyone topics=5' has said topics already"},
        };

        static const char *const first[] = {"anyone topics=5", NULL};
        struct nd_rules *limits = limits_of(first);
        struct nd_fault fault;

        for (size_t i = 0; i < nd_array_size(rows); ++i) {
                cr_expect_eq(nd_limits_add(&limits, rows[i].text, "f", &fault), NDBUS_EINVAL, "%s",
                             rows[i].text);
                cr_expect_str_eq(fault.field, "f");
                cr_expect(strstr(fault.text, rows[i].says), "%s: %s", rows[i].text, fault.text);
        }
        cr_expect_eq(nd_limits_add(&limits, "group:1 topics=5", "f", &fault), 0);
        nd_rules_free(limits);
}

Test(limits, as_many_rules_as_there_is_room_for)
{
        struct nd_rules *limits = NULL;
        struct nd_fault fault;
        char text[64];

        for (unsigned i = 0; i <= ND_RULES_MAX; ++i) {
                int r;

                snprintf(text, sizeof(text), "user:%u rate=1", i);
                r = nd_limits_add(&limits, text, "f", &fault);
                cr_assert_eq(r, i < ND_RULES_MAX ? 0 : NDBUS_EINVAL, "%u", i);
        }
        cr_expect_eq(fault.limit, ND_RULES_MAX);
        nd_rules_free(limits);
}

Test(limits, are_compared_as_written)
{
        static const char *const a[] = {"anyone rate=1", "user:1 rate=2", NULL};
        static const char *const b[] = {"anyone rate=1", "user:1 rate=3", NULL};
        struct nd_rules *x = limits_of(a), *y = limits_of(a), *z = limits_of(b);

        cr_expect(nd_rules_are_equal(NULL, NULL));
        cr_expect(nd_rules_are_equal(x, y));
        cr_expect_not(nd_rules_are_equal(x, z));
        cr_expect_not(nd_rules_are_equal(x, NULL));
        nd_rules_free(x);
        nd_rules_free(y);
        nd_rules_free(z);
}

/* One account for one identity, as long as somebody has it; a number of its own for each. */
Test(limits, accounts)
{
        static const struct nd_identity identities[] = {
                {.has_user = true, .uid = 0},
                {.has_user = true, .uid = UINT32_MAX - 1},
                {.token = "0123456789012345678901234567890123456789012345678901234567890123"},
                {.token = "012345678901234567890123456789012345678901234567890123456789012x"},
                {.token = "tcp"},
                {0},
        };
        struct nd_account *accounts_of[nd_array_size(identities)];
        struct nd_counters counters = {0};
        struct nd_accounts accounts;
        struct nd_quota quota = {0};
        struct nd_fault fault;

        nd_accounts_init(&accounts, &counters);
        for (size_t i = 0; i < nd_array_size(identities); ++i) {
                accounts_of[i] = nd_account_find(&accounts, &identities[i]);
                cr_assert(accounts_of[i]);
                cr_expect_eq(accounts.n, i + 1, "%s", accounts_of[i]->name);
                cr_expect_eq(nd_account_find(&accounts, &identities[i]), accounts_of[i]);
                nd_account_unref(accounts_of[i]);
        }
        quota.account = accounts_of[0];
        quota.most[ND_LIMIT_TOPICS] = 2;
        cr_expect_eq(nd_quota_check(&quota, ND_LIMIT_TOPICS, 2, &fault), 0);
        nd_quota_charge(&quota, ND_LIMIT_TOPICS, 2);
        cr_expect_eq(nd_quota_check(&quota, ND_LIMIT_TOPICS, 0, &fault), 0);
        cr_expect_eq(nd_quota_check(&quota, ND_LIMIT_TOPICS, 1, &fault), NDBUS_ELIMIT);
        cr_expect_str_eq(fault.field, "topics");
        cr_expect_str_eq(fault.text,
                         "is 3, the limit is 2 topics published on or watched for user:0");
        cr_expect(fault.has_numbers && fault.value == 3 && fault.limit == 2);
        cr_expect_eq(counters.limited, 1);
        quota.most[ND_LIMIT_TOPICS] = 1; /* lowered: what there is stays */
        cr_expect_eq(nd_quota_check(&quota, ND_LIMIT_TOPICS, 0, &fault), NDBUS_ELIMIT);
        cr_expect_eq(nd_quota_check(&quota, ND_LIMIT_TOPICS, UINT64_MAX, &fault), NDBUS_ELIMIT);
        nd_quota_discharge(&quota, ND_LIMIT_TOPICS, 2);

        /* what came before its time outlives its connections */
        accounts_of[1]->rate_ns = 1000;
        for (size_t i = 0; i < nd_array_size(identities); ++i)
                nd_account_unref(accounts_of[i]);
        cr_expect_eq(accounts.n, 1);
        nd_accounts_sweep(&accounts, 999);
        cr_expect_eq(accounts.n, 1);
        cr_expect_eq(nd_account_find(&accounts, &identities[1]), accounts_of[1]);
        nd_accounts_sweep(&accounts, UINT64_MAX);
        cr_expect_eq(accounts.n, 1, "somebody has it");
        nd_account_unref(accounts_of[1]);
        nd_accounts_sweep(&accounts, 1000);
        cr_expect_eq(accounts.n, 0);
}
