/* SPDX-License-Identifier: MIT */

/*
 * Who
 *
 * Names of users and groups are looked up when the rule is read, once, and never while the daemon
 * serves: that can mean to ask the network.
 */

#include "daemon/who.h"
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

/* A number, or a name that the system knows. */
static int
who_parse_id(struct nd_who *who, const char *name, const char *field, struct nd_fault *fault)
{
        const struct passwd *user;
        const struct group *group;
        unsigned long number;
        char *end;

        errno = 0;
        number = strtoul(name, &end, 10);
        if (name[0] >= '0' && name[0] <= '9' && *end == '\0') {
                if (errno || number >= UINT32_MAX)
                        return nd_fault_set(fault, NDBUS_EINVAL, field, "'%s' is no number of a %s",
                                            name, who->kind == ND_WHO_USER ? "user" : "group");
                who->id = (uint32_t)number;
                return 0;
        }
        if (who->kind == ND_WHO_USER) {
                user = getpwnam(name);
                if (!user)
                        return nd_fault_set(fault, NDBUS_EINVAL, field, "there is no user '%s'",
                                            name);
                who->id = user->pw_uid;
        } else {
                group = getgrnam(name);
                if (!group)
                        return nd_fault_set(fault, NDBUS_EINVAL, field, "there is no group '%s'",
                                            name);
                who->id = group->gr_gid;
        }
        return 0;
}

int nd_who_parse(const char *text, const char *field, struct nd_who *ret, struct nd_fault *fault)
{
        *ret = (struct nd_who){.kind = ND_WHO_ANYONE};
        if (strcmp(text, "anyone") == 0)
                return 0;
        if (strncmp(text, "user:", 5) == 0) {
                ret->kind = ND_WHO_USER;
                return who_parse_id(ret, text + 5, field, fault);
        }
        if (strncmp(text, "group:", 6) == 0) {
                ret->kind = ND_WHO_GROUP;
                return who_parse_id(ret, text + 6, field, fault);
        }
        if (strncmp(text, "token:", 6) == 0) {
                ret->kind = ND_WHO_TOKEN;
                ret->token = text + 6;
                return 0;
        }
        return nd_fault_set(fault, NDBUS_EINVAL, field,
                            "'%s' is not user:NAME, group:NAME, token:NAME or anyone", text);
}

bool nd_who_names(const struct nd_who *who, const struct nd_identity *identity)
{
        switch (who->kind) {
        case ND_WHO_USER:
                return identity->has_user && identity->uid == who->id;
        case ND_WHO_GROUP:
                for (size_t i = 0; i < identity->n_gids; ++i)
                        if (identity->gids[i] == who->id)
                                return true;
                return false;
        case ND_WHO_TOKEN:
                return identity->token && strcmp(identity->token, who->token) == 0;
        case ND_WHO_ANYONE:
                return true;
        }
        return false;
}

bool nd_who_is_equal(const struct nd_who *a, const struct nd_who *b)
{
        return a->kind == b->kind && a->id == b->id &&
               (a->kind != ND_WHO_TOKEN || strcmp(a->token, b->token) == 0);
}
