/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Who: whom an operator's rule means, and what a connection is known by
 */

#include "protocol/fault.h"

/* What a connection is known by. */
struct nd_identity {
        const char *token; /* that it has proved; or NULL */
        bool has_user;     /* a Unix socket told them */
        uint32_t uid;
        const uint32_t *gids; /* [n_gids] */
        size_t n_gids;
};

enum nd_who_kind { /* a more special one is greater */
        ND_WHO_ANYONE,
        ND_WHO_GROUP,
        ND_WHO_USER,
        ND_WHO_TOKEN,
};

struct nd_who {
        enum nd_who_kind kind;
        uint32_t id;       /* of a user or a group */
        const char *token; /* borrowed from the text */
};

/**
 * nd_who_parse() - "user:NAME", "group:NAME", "token:NAME" or "anyone"
 * @field:  what to call it in @fault
 *
 * Users and groups may be numbers. Whether there is such a token is not asked.
 *
 * Return: 0; NDBUS_EINVAL
 */
int nd_who_parse(const char *text, const char *field, struct nd_who *ret, struct nd_fault *fault);

bool nd_who_names(const struct nd_who *who, const struct nd_identity *identity);

bool nd_who_is_equal(const struct nd_who *a, const struct nd_who *b);
