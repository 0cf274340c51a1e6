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
        struct nd_who who;
        uint64_t most[_ND_LIMIT_N];
        char *text;  /* the words, which who points into */
        char *given; /* as it was written */
};

struct nd_limits {
        size_t n;
        struct limits_rule *rules;
};

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
        char *save = NULL, *save_list = NULL;
        char *who = strtok_r(rule->text, spaces, &save);
        char *list = strtok_r(NULL, spaces, &save);
        int r;

        if (!who || !list || strtok_r(NULL, spaces, &save))
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%s' is not WHO NAME=VALUE,NAME=VALUE ...", rule->given);
        r = nd_who_parse(who, field, &rule->who, fault);
        for (char *one = strtok_r(list, ",", &save_list); !r && one;
             one = strtok_r(NULL, ",", &save_list))
                r = limits_parse_one(rule, one, field, fault);
        return r;
}

/* Does another rule say the same of the same WHO? */
static int limits_check(const struct nd_limits *limits,
                        const struct limits_rule *rule,
                        const char *field,
                        struct nd_fault *fault)
{
        for (size_t i = 0; limits && i < limits->n; ++i) {
                const struct limits_rule *other = &limits->rules[i];

                for (size_t k = 0; k < _ND_LIMIT_N && nd_who_is_equal(&other->who, &rule->who); ++k)
                        if (other->most[k] != ND_LIMIT_NONE && rule->most[k] != ND_LIMIT_NONE)
                                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                                    "'%s': '%s' has said %s already", rule->given,
                                                    other->given, limit_rows[k].name);
        }
        if (limits && limits->n == ND_LIMITS_MAX)
                return nd_fault_set_limit(fault, NDBUS_EINVAL, field, ND_LIMITS_MAX + 1,
                                          ND_LIMITS_MAX, "rules");
        return 0;
}

static void limits_deinit(struct limits_rule *rule)
{
        free(rule->text);
        free(rule->given);
}

int nd_limits_add(struct nd_limits **limits,
                  const char *text,
                  const char *field,
                  struct nd_fault *fault)
{
        struct limits_rule rule = {.text = strdup(text), .given = strdup(text)};
        struct limits_rule *more = NULL;
        int r = rule.text && rule.given ? 0 : nd_fault_set(fault, NDBUS_ENOMEM, field, "no memory");

        for (size_t i = 0; i < _ND_LIMIT_N; ++i)
                rule.most[i] = ND_LIMIT_NONE;
        r = r ? r : limits_parse(&rule, field, fault);
        r = r ? r : limits_check(*limits, &rule, field, fault);
        if (!r && !*limits)
                *limits = calloc(1, sizeof(**limits));
        if (!r && *limits)
                more = reallocarray((*limits)->rules, (*limits)->n + 1, sizeof(rule));
        if (!r && !more)
                r = nd_fault_set(fault, NDBUS_ENOMEM, field, "no memory");
        if (r) {
                limits_deinit(&rule);
                return r;
        }
        more[(*limits)->n++] = rule;
        (*limits)->rules = more;
        return 0;
}

void nd_limits_free(struct nd_limits *limits)
{
        for (size_t i = 0; limits && i < limits->n; ++i)
                limits_deinit(&limits->rules[i]);
        if (limits)
                free(limits->rules);
        free(limits);
}

const char *nd_limits_unknown_token(const struct nd_limits *limits,
                                    bool (*is_known)(const void *userdata, const char *name),
                                    const void *userdata)
{
        for (size_t i = 0; limits && i < limits->n; ++i)
                if (limits->rules[i].who.kind == ND_WHO_TOKEN &&
                    !is_known(userdata, limits->rules[i].who.token))
                        return limits->rules[i].who.token;
        return NULL;
}

bool nd_limits_are_equal(const struct nd_limits *a, const struct nd_limits *b)
{
        if (!a || !b)
                return a == b;
        if (a->n != b->n)
                return false;
        for (size_t i = 0; i < a->n; ++i)
                if (a->rules[i].who.id != b->rules[i].who.id ||
                    strcmp(a->rules[i].given, b->rules[i].given) != 0)
                        return false;
        return true;
}

/* ------------------------------------------------------------------------------- of one identity */

void nd_limits_resolve(const struct nd_limits *limits,
                       const struct nd_identity *identity,
                       uint64_t ret_most[static _ND_LIMIT_N])
{
        enum nd_who_kind kinds[_ND_LIMIT_N];

        for (size_t k = 0; k < _ND_LIMIT_N; ++k)
                ret_most[k] = ND_LIMIT_NONE;
        for (size_t i = 0; limits && i < limits->n; ++i) {
                const struct limits_rule *rule = &limits->rules[i];

                for (size_t k = 0; k < _ND_LIMIT_N && nd_who_names(&rule->who, identity); ++k) {
                        bool is_first = ret_most[k] == ND_LIMIT_NONE;

                        if (rule->most[k] == ND_LIMIT_NONE ||
                            (!is_first && rule->who.kind < kinds[k]))
                                continue;
                        ret_most[k] = !is_first && rule->who.kind == kinds[k]
                                              ? nd_max_u64(ret_most[k], rule->most[k])
                                              : rule->most[k];
                        kinds[k] = rule->who.kind;
                }
        }
}
