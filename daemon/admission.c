/* SPDX-License-Identifier: MIT */

/*
 * Admission
 *
 * Of a Unix socket the kernel says who is at the other end: user, group, and the further groups. That
 * is asked once, at CONNECT, and again when the rules have changed.
 *
 * A wildcard subscription gets those topics that its client may subscribe to; routes leave it out of
 * the others, so it costs nothing per message. What cannot be cut down like that must be allowed on
 * all of the pattern: to block publishers, and to share a group, whose members get each other's
 * messages. Segments show all topics that are in them, so they go only to who may see everything.
 */

#include "daemon/admission.h"
#include <inttypes.h>
#include <sys/socket.h>
#include "daemon/server.h"
#include "daemon/sink.h"

#define ADMISSION_GROUPS_MAX 65536u /* NGROUPS_MAX */

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* Linux 4.13 */
#endif

/* The primary group and the others. @ret_gids: free() */
static size_t admission_groups(int fd, uint32_t gid, uint32_t **ret_gids)
{
        socklen_t n = 16 * sizeof(uint32_t);
        uint32_t *gids = NULL;

        for (unsigned tries = 0; tries < 2; ++tries) {
                uint32_t *more = realloc(gids, n + sizeof(uint32_t));

                if (!more)
                        break;
                gids = more;
                if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, gids + 1, &n) == 0) {
                        gids[0] = gid;
                        *ret_gids = gids;
                        return 1 + n / sizeof(uint32_t);
                }
                if (n > ADMISSION_GROUPS_MAX * sizeof(uint32_t)) /* it says how many there are */
                        break;
        }
        if (gids)
                gids[0] = gid;
        *ret_gids = gids;
        return gids ? 1 : 0;
}

static int admission_resolve(struct nd_connection *connection, struct nd_rights **ret)
{
        struct nd_identity identity = {0};
        nd_autofree uint32_t *gids = NULL;
        struct ucred who;
        socklen_t n = sizeof(who);

        if (!connection->is_tcp &&
            getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0) {
                identity.has_user = true;
                identity.uid = who.uid;
                identity.n_gids = admission_groups(connection->fd, who.gid, &gids);
                identity.gids = gids;
        }
        return nd_rights_resolve(connection->server->options.rules, &identity, ret);
}

/* Takes over @rights, of which @n_bytes are charged. */
static void
admission_set(struct nd_connection *connection, struct nd_rights *rights, uint64_t n_bytes)
{
        nd_memory_discharge(&connection->server->store.memory, connection->rights_bytes);
        free(connection->rights);
        connection->rights = rights;
        connection->rights_bytes = n_bytes;
        connection->sees_all = nd_rights_cover(rights, ND_RIGHT_SUBSCRIBE, "**", 2);
}

static int admission_refuse(struct nd_connection *connection, struct nd_fault *fault)
{
        ++connection->server->counters.denied;
        return nd_fault_set(fault, NDBUS_EDENIED, "identity", "no rule allows anything to %s",
                            connection->peer[0] ? connection->peer : "this peer");
}

int nd_admission_begin(struct nd_connection *connection, struct nd_fault *fault)
{
        struct nd_memory *memory = &connection->server->store.memory;
        uint64_t cost = nd_rights_cost(connection->server->options.rules);
        struct nd_rights *rights;

        if (!nd_server_charge(connection->server, cost))
                return nd_memory_fault(memory, cost, fault);
        if (admission_resolve(connection, &rights)) {
                nd_memory_discharge(memory, cost);
                return nd_fault_set(fault, NDBUS_ENOMEM, "identity", "no memory");
        }
        admission_set(connection, rights, cost);
        return nd_rights_are_any(rights) ? 0 : admission_refuse(connection, fault);
}

void nd_admission_end(struct nd_connection *connection)
{
        admission_set(connection, NULL, 0);
}

/* -------------------------------------------------------------------------------- subscriptions */

/* Answers to one's own requests need no right. */
static bool admission_is_own(const char *pattern)
{
        return pattern[0] == '$';
}

static int admission_check(const struct nd_connection *connection,
                           const struct nd_string *pattern,
                           bool is_block,
                           bool is_group,
                           struct nd_fault *fault)
{
        const struct nd_rights *rights = connection->rights;
        unsigned whole = (is_block ? ND_RIGHT_BLOCK : 0u) | (is_group ? ND_RIGHT_GROUP : 0u);
        unsigned missing;

        if (!rights || admission_is_own(pattern->at))
                return 0;
        missing = nd_rights_missing(rights, ND_RIGHT_SUBSCRIBE, pattern->at, pattern->n);
        if (!missing && is_group &&
            !nd_rights_cover(rights, ND_RIGHT_SUBSCRIBE, pattern->at, pattern->n))
                missing = ND_RIGHT_SUBSCRIBE;
        for (unsigned right = 1; !missing && right <= whole; right <<= 1)
                if (whole & right && !nd_rights_cover(rights, right, pattern->at, pattern->n))
                        missing = right;
        if (!missing)
                return 0;
        ++connection->server->counters.denied;
        return nd_rights_deny((enum nd_right)missing, "pattern", pattern->at, pattern->n, fault);
}

int nd_admission_check_subscribe(const struct nd_connection *connection,
                                 const struct nd_subscribe *ask,
                                 struct nd_fault *fault)
{
        return admission_check(connection, &ask->pattern, ask->policy == ND_POLICY_BLOCK,
                               ask->group.n > 0, fault);
}

void nd_admission_filter(const struct nd_connection *connection, struct nd_sink *sink)
{
        if (!nd_sink_is_group(sink) && !admission_is_own(sink->names))
                sink->target.rights = connection->rights;
}

/* Its subscriptions by its new rights: they go on, with other topics perhaps, or end. */
static void admission_renew_subscriptions(struct nd_connection *connection)
{
        struct nd_subscription *subscription, *next;

        RB_FOREACH_SAFE (subscription, nd_subscription_tree, &connection->subscriptions, next) {
                struct nd_sink *sink = subscription->sink;
                const struct nd_string pattern = {sink->names, sink->n_pattern};
                struct nd_fault fault;

                nd_admission_filter(connection, sink);
                if (admission_check(connection, &pattern, sink->queue.policy == ND_POLICY_BLOCK,
                                    nd_sink_is_group(sink), &fault) < 0)
                        nd_subscription_end(subscription, &fault, 0);
        }
}

void nd_admission_renew(struct nd_connection *connection)
{
        struct nd_server *server = connection->server;
        uint64_t cost = nd_rights_cost(server->options.rules);
        struct nd_rights *rights;
        struct nd_fault fault;

        if (connection->state != ND_CONNECTION_OPEN)
                return;
        if (admission_resolve(connection, &rights)) {
                nd_connection_mark_closing(connection);
                return;
        }
        server->store.memory.used_bytes += cost; /* bounded, and no reason to lose the client */
        admission_set(connection, rights, cost);
        nd_publisher_forget_headers(&connection->publisher);
        admission_renew_subscriptions(connection);
        if (!nd_rights_are_any(rights)) {
                admission_refuse(connection, &fault);
                nd_connection_fail(connection, &fault, 0, 0);
        }
}
