/* SPDX-License-Identifier: MIT */

/*
 * Admission
 *
 * Of a Unix socket the kernel says who is at the other end: user, group, and the further groups. That
 * is asked once, at CONNECT, and again when the rules have changed.
 *
 * Who comes by TCP proves to know a token, if there are any: the daemon makes up a nonce, the client
 * another, and both prove the secret over both and all that was said before. Who does not prove it is
 * told so a second later, and not read from until then; as long as many wait for that, others are told
 * at once, so that waiting costs the daemon little and guessing costs the guesser much. A name that is
 * not known is asked like any other.
 *
 * A wildcard subscription gets those topics that its client may subscribe to; routes leave it out of
 * the others, so it costs nothing per message. What cannot be cut down like that must be allowed on
 * all of the pattern: to block publishers, and to share a group, whose members get each other's
 * messages. Segments show all topics that are in them, so they go only to who may see everything; when
 * that changes, nothing more is to be written into those that it has.
 */

#include "daemon/admission.h"
#include <ctype.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include "daemon/server.h"
#include "daemon/sink.h"
#include "protocol/hello.h"

#define ADMISSION_DENIED_MS  1000u
#define ADMISSION_DENIED_MAX 64u    /* connections that wait to be told */
#define ADMISSION_GROUPS_MAX 65536u /* NGROUPS_MAX */
#define ADMISSION_OVER_MAX   8u /* connections of an identity that are told that it has too many */

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

/* As far as it is known. @ret_gids: free() */
static void admission_identify(const struct nd_connection *connection,
                               struct nd_identity *ret,
                               uint32_t **ret_gids)
{
        const struct nd_options *options = &connection->server->options;
        struct ucred who;
        socklen_t n = sizeof(who);

        *ret = (struct nd_identity){0};
        *ret_gids = NULL;
        if (!connection->is_tcp &&
            getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0) {
                ret->has_user = true;
                ret->uid = who.uid;
                if (options->rules || options->limits)
                        ret->n_gids = admission_groups(connection->fd, who.gid, ret_gids);
                ret->gids = *ret_gids;
        }
        if (connection->token[0])
                ret->token = connection->token;
}

static int admission_resolve(struct nd_connection *connection, struct nd_rights **ret)
{
        nd_autofree uint32_t *gids = NULL;
        struct nd_identity identity;

        admission_identify(connection, &identity, &gids);
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

void nd_admission_copy_name(struct nd_string name, char *out, size_t n_out)
{
        size_t n = nd_min_u64(name.n, n_out - 1);

        for (size_t i = 0; i < n; ++i)
                out[i] = isprint((unsigned char)name.at[i]) && name.at[i] != '"' ? name.at[i] : '?';
        out[n] = '\0';
}

/* ------------------------------------------------------------------------------------- tokens */

static void admission_forget_exchange(struct nd_connection *connection)
{
        if (!connection->exchange)
                return;
        nd_memory_discharge(&connection->server->store.memory, sizeof(*connection->exchange));
        free(nd_steal(connection->exchange));
}

/* Tokens are for TCP; on a Unix socket the kernel vouches. */
static bool admission_needs_token(const struct nd_connection *connection)
{
        const struct nd_options *options = &connection->server->options;

        return connection->is_tcp && options->tokens && !options->insecure_anyone;
}

int nd_admission_ask(struct nd_connection *connection,
                     struct nd_string token,
                     struct nd_auth *ret_ask,
                     struct nd_fault *fault)
{
        struct nd_server *server = connection->server;
        const struct nd_hello_reply reply = {ND_VERSION, 0, ND_VERSION, ND_VERSION};
        struct nd_token_exchange *exchange;

        if (!connection->is_tcp || !server->options.tokens || !token.at) {
                if (!admission_needs_token(connection))
                        return ND_ADMISSION_E_OPEN;
                ++server->counters.denied;
                return nd_fault_set(fault, NDBUS_EDENIED, "token",
                                    "is missing; who comes by TCP has to prove one");
        }
        if (!nd_server_charge(server, sizeof(*exchange)))
                return nd_memory_fault(&server->store.memory, sizeof(*exchange), fault);
        exchange = calloc(1, sizeof(*exchange));
        if (!exchange || getrandom(exchange->daemon_nonce, sizeof(exchange->daemon_nonce), 0) !=
                                 sizeof(exchange->daemon_nonce)) {
                nd_memory_discharge(&server->store.memory, sizeof(*exchange));
                free(exchange);
                return nd_fault_set(fault, NDBUS_ENOMEM, "token", "no memory, or no random bytes");
        }
        memcpy(exchange->client_hello, connection->hello, sizeof(exchange->client_hello));
        nd_hello_reply_pack(&reply, exchange->daemon_hello);
        memcpy(exchange->name, token.at, nd_min_u64(token.n, ND_TOKEN_NAME_BYTES_MAX));
        connection->exchange = exchange;
        *ret_ask = (struct nd_auth){
                .nonce = {(const char *)exchange->daemon_nonce, sizeof(exchange->daemon_nonce)},
        };
        return ND_ADMISSION_E_ASKED;
}

bool nd_admission_prove(struct nd_connection *connection,
                        const struct nd_auth *auth,
                        uint8_t *ret_proof)
{
        struct nd_server *server = connection->server;
        struct nd_token_exchange *exchange = connection->exchange;
        size_t n = strlen(connection->peer);

        memcpy(exchange->client_nonce, auth->nonce.at, sizeof(exchange->client_nonce));
        if (nd_tokens_check(server->options.tokens, exchange, (const uint8_t *)auth->proof.at,
                            ret_proof)) {
                memcpy(connection->token, exchange->name, sizeof(connection->token));
                snprintf(connection->peer + n, sizeof(connection->peer) - n, " token=%s",
                         connection->token);
                admission_forget_exchange(connection);
                return true;
        }
        ++server->counters.denied;
        if (server->n_denied >= ADMISSION_DENIED_MAX) {
                nd_admission_deny(connection);
                return false;
        }
        ++server->n_denied;
        connection->is_denied = true;
        connection->state = ND_CONNECTION_DENIED;
        connection->deadline_ns = server->now_ns + ADMISSION_DENIED_MS * UINT64_C(1000000);
        nd_connection_update_events(connection);
        return false;
}

void nd_admission_deny(struct nd_connection *connection)
{
        const char *claimed = connection->exchange->name;
        char name[ND_TOKEN_NAME_BYTES_MAX + 1];
        struct nd_fault fault;

        nd_admission_copy_name((struct nd_string){claimed, strlen(claimed)}, name, sizeof(name));
        nd_fault_set(&fault, NDBUS_EDENIED, "token", "'%s' was not proved", name);
        admission_forget_exchange(connection);
        nd_connection_fail(connection, &fault, ND_KIND_AUTH, 1);
}

/* ------------------------------------------------------------------------------------- limits */

static bool admission_count(struct nd_connection *connection)
{
        struct nd_server *server = connection->server;
        struct nd_quota *quota = &connection->quota;
        nd_autofree uint32_t *gids = NULL;
        struct nd_identity identity;

        admission_identify(connection, &identity, &gids);
        nd_limits_resolve(server->options.limits, &identity, quota->most);
        if (!quota->account) {
                quota->account = nd_account_find(&server->accounts, &identity);
                if (quota->account)
                        nd_quota_charge(quota, ND_LIMIT_CONNECTIONS, 1);
        }
        return quota->account;
}

static void admission_uncount(struct nd_connection *connection)
{
        if (!connection->quota.account)
                return;
        nd_quota_discharge(&connection->quota, ND_LIMIT_CONNECTIONS, 1);
        connection->quota.account = nd_account_unref(connection->quota.account);
}

/* More than a few that are to be told so would be a way around the limit. */
void nd_admission_arrive(struct nd_connection *connection)
{
        struct nd_server *server = connection->server;
        const struct nd_quota *quota = &connection->quota;
        struct nd_fault fault;
        uint64_t n;

        if (connection->is_tcp || connection->refuse_reason)
                return;
        if (!admission_count(connection)) {
                nd_connection_mark_closing(connection);
                return;
        }
        n = quota->account->used[ND_LIMIT_CONNECTIONS];
        if (n - nd_min_u64(n, ADMISSION_OVER_MAX) > quota->most[ND_LIMIT_CONNECTIONS]) {
                nd_quota_fault(quota, NDBUS_ELIMIT, ND_LIMIT_CONNECTIONS, n, &fault);
                nd_log_limited(&server->limit_log, server->now_ns, ND_LOG_WARNING,
                               "closing connection peer=\"%s\" field=\"%s\": %s", connection->peer,
                               fault.field, fault.text);
                nd_connection_mark_closing(connection);
        }
}

/* Only from here on it has anything that is counted beside itself. */
static int admission_check_count(struct nd_connection *connection, struct nd_fault *fault)
{
        const struct nd_quota *quota = &connection->quota;
        int r;

        if (!quota->account && !admission_count(connection))
                return nd_fault_set(fault, NDBUS_ENOMEM, "identity", "no memory");
        if (!nd_quota_is_over(quota, ND_LIMIT_CONNECTIONS, 0))
                return 0;
        r = nd_quota_fault(quota, NDBUS_ELIMIT, ND_LIMIT_CONNECTIONS,
                           quota->account->used[ND_LIMIT_CONNECTIONS], fault);
        admission_uncount(connection);
        return r;
}

/* --------------------------------------------------------------------------------- beginning */

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
        if (!nd_rights_are_any(rights))
                return admission_refuse(connection, fault);
        return admission_check_count(connection, fault);
}

void nd_admission_end(struct nd_connection *connection)
{
        connection->server->n_denied -= connection->is_denied;
        admission_forget_exchange(connection);
        admission_set(connection, NULL, 0);
        admission_uncount(connection);
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

/* Is what it came with still good? */
static bool admission_is_good(const struct nd_connection *connection, const struct nd_tokens *old)
{
        if (connection->token[0])
                return nd_tokens_agree(old, connection->server->options.tokens, connection->token);
        return !admission_needs_token(connection);
}

void nd_admission_renew(struct nd_connection *connection, const struct nd_tokens *old)
{
        struct nd_server *server = connection->server;
        uint64_t cost = nd_rights_cost(server->options.rules);
        struct nd_rights *rights = NULL;
        struct nd_fault fault;

        if (connection->quota.account)
                (void)admission_count(connection);
        if (connection->state == ND_CONNECTION_OPEN && admission_resolve(connection, &rights))
                nd_connection_mark_closing(connection);
        if (connection->state != ND_CONNECTION_OPEN) {
                nd_holder_leave(&connection->holder);
                return;
        }
        /* bounded, and no reason to lose the client */
        nd_memory_charge_anyway(&server->store.memory, cost);
        admission_set(connection, rights, cost);
        nd_publisher_forget_headers(&connection->publisher);
        if (!connection->sees_all)
                nd_holder_retire(&connection->holder);
        admission_renew_subscriptions(connection);
        if (!nd_rights_are_any(rights)) {
                admission_refuse(connection, &fault);
                nd_connection_fail(connection, &fault, 0, 0);
        } else if (!admission_is_good(connection, old)) {
                ++server->counters.denied;
                nd_fault_set(&fault, NDBUS_EDENIED, "token", "has changed or gone");
                nd_connection_fail(connection, &fault, 0, 0);
        }
}
