/* SPDX-License-Identifier: MIT */

/*
 * Limits
 *
 * A rule is WHO and numbers. Other than rights, numbers do not add up: for each of them the most
 * special rule counts, token and user before group before anyone, so that a default can be given to
 * all and an exception to one, in any order. The same number for the same WHO twice is refused: one
 * of the two would be believed in for nothing.
 */

#include "daemon/limits.h"
#include <string.h>
#include "daemon/number.h"

enum limit_kind {
        LIMIT_SIZE,
        LIMIT_COUNT,
};

static const struct limit_row {
        const char *name;
        enum limit_kind kind;
        uint64_t least;
        const char *unit;
} limit_rows[] = {

#define LIMIT_ROW(_name, _text, _kind, _least, _unit) {_text, LIMIT_##_kind, _least, _unit},
        ND_LIMITS(LIMIT_ROW)
#undef LIMIT_ROW
};

struct limits_rule {
        struct nd_rule rule; /* first: its memory is the rule's */
        uint64_t most[_ND_LIMIT_N];
};

static const struct limits_rule *limits_at(const struct nd_rules *limits, size_t i)
{
        return nd_container_of(limits->rules[i], struct limits_rule, rule);
}

const char *nd_limit_name(enum nd_limit limit)
{
        return limit_rows[limit].name;
}

const char *nd_limit_unit(enum nd_limit limit)
{
        return limit_rows[limit].unit;
}

/* ------------------------------------------------------------------------------------- reading */

/* NAME=VALUE */
static int
limits_parse_one(struct limits_rule *rule, char *text, const char *field, struct nd_fault *fault)
{
        char *value = strchr(text, '=');
        struct nd_fault why;
        size_t i = 0;

        if (!value)
                return nd_fault_set(fault, NDBUS_EINVAL, field, "'%s' is not NAME=VALUE", text);
        *value++ = '\0';
        while (i < _ND_LIMIT_N && strcmp(limit_rows[i].name, text) != 0)
                ++i;
        if (i == _ND_LIMIT_N)
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%s' is no limit; there are " ND_LIMITS_NAMES, text);
        if (rule->most[i] != ND_LIMIT_NONE)
                return nd_fault_set(fault, NDBUS_EINVAL, field, "%s is there twice", text);
        if (nd_number_parse(value, limit_rows[i].kind == LIMIT_SIZE, limit_rows[i].least,
                            ND_LIMIT_MOST, text, &rule->most[i], &why) < 0)
                return nd_fault_set(fault, NDBUS_EINVAL, field, "%s: %s", text, why.text);
        return 0;
}

static int limits_parse(struct limits_rule *rule, const char *field, struct nd_fault *fault)
{
        static const char spaces[] = " \t";
        char *save = NULL;
        char *who = strtok_r(rule->rule.text, spaces, &save);
        char *list = strtok_r(NULL, spaces, &save);
        int r;

        if (!who || !list || strtok_r(NULL, spaces, &save))
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%s' is not WHO NAME=VALUE,NAME=VALUE ...", rule->rule.given);
        r = nd_who_parse(who, field, &rule->rule.who, fault);
        for (char *one; !r && (one = strsep(&list, ","));)
                r = *one ? limits_parse_one(rule, one, field, fault)
                         : nd_fault_set(fault, NDBUS_EINVAL, field,
                                        "'%s' has a comma and no limit beside it",
                                        rule->rule.given);
        return r;
}

/* Does another rule say the same of the same WHO? */
static int limits_check(const struct nd_rules *limits,
                        const struct limits_rule *rule,
                        const char *field,
                        struct nd_fault *fault)
{
        for (size_t i = 0; limits && i < limits->n; ++i) {
                const struct limits_rule *other = limits_at(limits, i);

                for (size_t k = 0;
                     k < _ND_LIMIT_N && nd_who_is_equal(&other->rule.who, &rule->rule.who); ++k)
                        if (other->most[k] != ND_LIMIT_NONE && rule->most[k] != ND_LIMIT_NONE)
                                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                                    "'%s': '%s' has said %s already",
                                                    rule->rule.given, other->rule.given,
                                                    limit_rows[k].name);
        }
        return 0;
}

int nd_limits_add(struct nd_rules **limits,
                  const char *text,
                  const char *field,
                  struct nd_fault *fault)
{
        struct limits_rule *rule = nd_rule_new(sizeof(*rule), text);
        int r;

        if (!rule)
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "no memory");
        for (size_t i = 0; i < _ND_LIMIT_N; ++i)
                rule->most[i] = ND_LIMIT_NONE;
        r = limits_parse(rule, field, fault);
        r = r ? r : limits_check(*limits, rule, field, fault);
        r = r ? r : nd_rules_append(limits, &rule->rule, field, fault);
        if (r)
                nd_rule_free(&rule->rule);
        return r;
}

/* ------------------------------------------------------------------------------- of one identity */

void nd_limits_resolve(const struct nd_rules *limits,
                       const struct nd_identity *identity,
                       uint64_t ret_most[static _ND_LIMIT_N])
{
        enum nd_who_kind kinds[_ND_LIMIT_N];

        for (size_t k = 0; k < _ND_LIMIT_N; ++k)
                ret_most[k] = ND_LIMIT_NONE;
        for (size_t i = 0; limits && i < limits->n; ++i) {
                const struct limits_rule *rule = limits_at(limits, i);

                for (size_t k = 0; k < _ND_LIMIT_N && nd_who_names(&rule->rule.who, identity);
                     ++k) {
                        bool is_first = ret_most[k] == ND_LIMIT_NONE;

                        if (rule->most[k] == ND_LIMIT_NONE ||
                            (!is_first && rule->rule.who.kind < kinds[k]))
                                continue;
                        ret_most[k] = !is_first && rule->rule.who.kind == kinds[k]
                                              ? nd_max_u64(ret_most[k], rule->most[k])
                                              : rule->most[k];
                        kinds[k] = rule->rule.who.kind;
                }
        }
}
