/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Rule: what an operator says of WHO
 *
 * Rights and limits are lists of rules. A rule of either kind begins with a struct nd_rule.
 */

#include "daemon/who.h"

#define ND_RULES_MAX 1024u /* in one list */

struct nd_rule {
        struct nd_who who;
        char *text;    /* the words, which who and the rest point into */
        char *given;   /* as it was written */
        unsigned line; /* of the configuration file; 0: it is not from there */
};

struct nd_rules {
        size_t n;
        struct nd_rule **rules;
};

/* Memory of @n_bytes, zero but for the text; nd_rule_free(). NULL: there is none. */
void *nd_rule_new(size_t n_bytes, const char *text);

void nd_rule_free(struct nd_rule *rule);

/**
 * nd_rules_append() - takes @rule on success
 * @rules:  NULL at first: made
 * @field:  what to call it in @fault
 *
 * Return: 0; NDBUS_EINVAL: there are ND_RULES_MAX; NDBUS_ENOMEM
 */
int nd_rules_append(struct nd_rules **rules,
                    struct nd_rule *rule,
                    const char *field,
                    struct nd_fault *fault);

/* Accepts NULL. Nothing that was resolved from them may be in use. */
void nd_rules_free(struct nd_rules *rules);

/* The first rule that names a token which @is_known does not know; NULL: there is none. */
const struct nd_rule *nd_rules_find_unknown(const struct nd_rules *rules,
                                            bool (*is_known)(const void *userdata,
                                                             const char *name),
                                            const void *userdata);

/* Do they say the same in the same words, of the same users and groups? */
bool nd_rules_are_equal(const struct nd_rules *a, const struct nd_rules *b);
