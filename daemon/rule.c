/* SPDX-License-Identifier: MIT */

/*
 * Rule
 *
 * Each has memory of its own, so it stays where it is while its list grows, and what a connection may do
 * can point to it.
 */

#include "daemon/rule.h"
#include <stdlib.h>
#include <string.h>

void *nd_rule_new(size_t n_bytes, const char *text)
{
        struct nd_rule *rule = calloc(1, n_bytes);

        if (!rule)
                return NULL;
        rule->text = strdup(text);
        rule->given = strdup(text);
        if (!rule->text || !rule->given) {
                nd_rule_free(rule);
                return NULL;
        }
        return rule;
}

void nd_rule_free(struct nd_rule *rule)
{
        free(rule->text);
        free(rule->given);
        free(rule);
}

int nd_rules_append(struct nd_rules **rules,
                    struct nd_rule *rule,
                    const char *field,
                    struct nd_fault *fault)
{
        struct nd_rule **more = NULL;

        if (*rules && (*rules)->n == ND_RULES_MAX)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, field, ND_RULES_MAX + 1,
                                          ND_RULES_MAX, "rules");
        if (!*rules)
                *rules = calloc(1, sizeof(**rules));
        if (*rules)
                more = reallocarray((*rules)->rules, (*rules)->n + 1, sizeof(struct nd_rule *));
        if (!more)
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "no memory");
        more[(*rules)->n++] = rule;
        (*rules)->rules = more;
        return 0;
}

void nd_rules_free(struct nd_rules *rules)
{
        for (size_t i = 0; rules && i < rules->n; ++i)
                nd_rule_free(rules->rules[i]);
        if (rules)
                free(rules->rules);
        free(rules);
}

const struct nd_rule *nd_rules_find_unknown(const struct nd_rules *rules,
                                            bool (*is_known)(const void *userdata,
                                                             const char *name),
                                            const void *userdata)
{
        for (size_t i = 0; rules && i < rules->n; ++i)
                if (rules->rules[i]->who.kind == ND_WHO_TOKEN &&
                    !is_known(userdata, rules->rules[i]->who.token))
                        return rules->rules[i];
        return NULL;
}

bool nd_rules_are_equal(const struct nd_rules *a, const struct nd_rules *b)
{
        if (!a || !b)
                return a == b;
        if (a->n != b->n)
                return false;
        for (size_t i = 0; i < a->n; ++i)
                if (a->rules[i]->who.id != b->rules[i]->who.id ||
                    strcmp(a->rules[i]->given, b->rules[i]->given) != 0)
                        return false;
        return true;
}
