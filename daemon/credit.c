/* SPDX-License-Identifier: MIT */

/*
 * Credit
 *
 * Credit is what paces a client. What was refused or discarded, and small messages, return theirs
 * at once. Larger bodies return it as the fastest receiver takes them, so that bytes are sent on
 * while they are in the cache; but receivers slower than a chunk in 10 ms, judged over 100 ms so
 * that a busy machine is not taken for a slow receiver, hold nobody; nor is a client held that asks
 * by a PING, as one does before it gives a message up. Messages beyond the limits of
 * a block queue return it when they fit. So nobody needs a second mechanism to be slowed down, and
 * everything that is read can be kept.
 *
 * Where the identity has a rate, credit for small messages comes no faster than that: each message
 * counts from the moment that was its own, so connections share the rate, and what was sent ahead of it
 * is waited for. Within a message nothing is held back.
 *
 * A window grows when its client has used it up, and only as far as what it sends is worth: small
 * messages need no more than stays in the cache.
 */

#include "daemon/credit.h"
#include <inttypes.h>
#include "daemon/server.h"
#include "protocol/byteorder.h"

#define CREDIT_SMALL_WINDOW_BYTES (512u * 1024u) /* enough for small messages: stays cached */
/* All windows together grow into an eighth of the memory: with a quarter for retained values the
 * largest message, half of it, always finds room in the end. */
#define CREDIT_GROWN_SHARE  8u
#define CREDIT_RATE_AHEAD_N 1024u /* messages, at least what a first window has room for */
#define CREDIT_PACE_NS      (UINT64_C(100) * 1000000) /* over which a receiver's speed is judged */
#define CREDIT_PACE_N       10u /* chunks in that time: slower receivers hold nobody */

/* What a window has been given beyond the first grant. */
static uint64_t credit_grown_bytes(uint64_t window_bytes)
{
        return nd_max_u64(window_bytes, ND_PUBLISH_WINDOW_BYTES_MIN) - ND_PUBLISH_WINDOW_BYTES_MIN;
}

bool nd_credit_charge(struct nd_publisher *publisher, uint64_t window_bytes)
{
        struct nd_server *server = publisher->connection->server;
        struct nd_memory *memory = &server->store.memory;

        if (window_bytes > publisher->charged_bytes) {
                if (!nd_memory_charge(memory, window_bytes - publisher->charged_bytes))
                        return false;
        } else {
                nd_memory_discharge(memory, publisher->charged_bytes - window_bytes);
        }
        server->grown_bytes +=
                credit_grown_bytes(window_bytes) - credit_grown_bytes(publisher->charged_bytes);
        publisher->charged_bytes = window_bytes;
        return true;
}

/* The first window comes out of what is set aside while there is some; else it is like anything else
 * that is charged. */
static bool credit_charge_first(struct nd_publisher *publisher)
{
        struct nd_server *server = publisher->connection->server;
        struct nd_memory *memory = &server->store.memory;
        uint64_t aside_bytes = memory->aside_bytes;

        ++server->n_windows;
        nd_server_set_aside(server);
        if (aside_bytes - memory->aside_bytes == ND_PUBLISH_WINDOW_BYTES_MIN) {
                nd_memory_charge_anyway(memory, ND_PUBLISH_WINDOW_BYTES_MIN);
                publisher->charged_bytes = ND_PUBLISH_WINDOW_BYTES_MIN;
                return true;
        }
        if (nd_server_make_room(server, ND_PUBLISH_WINDOW_BYTES_MIN) &&
            nd_credit_charge(publisher, ND_PUBLISH_WINDOW_BYTES_MIN))
                return true;
        --server->n_windows;
        nd_server_set_aside(server);
        return false;
}

void nd_credit_close(struct nd_publisher *publisher)
{
        struct nd_server *server = publisher->connection->server;

        (void)nd_credit_charge(publisher, 0);
        server->n_windows -= publisher->window_bytes > 0;
        nd_server_set_aside(server);
}

uint64_t nd_credit_open(struct nd_publisher *publisher)
{
        if (!credit_charge_first(publisher))
                return 0;
        publisher->window_bytes = ND_PUBLISH_WINDOW_BYTES_MIN;
        publisher->left_bytes = ND_PUBLISH_WINDOW_BYTES_MIN;
        publisher->left_bytes_low = ND_PUBLISH_WINDOW_BYTES_MIN;
        return publisher->left_bytes;
}

void nd_credit_watch(struct nd_publisher *publisher)
{
        if (nd_list_is_empty(&publisher->in_lead)) {
                nd_list_push_tail(&publisher->connection->server->lead, &publisher->in_lead);
                nd_server_watch_lead(publisher->connection->server);
        }
}

void nd_credit_return(struct nd_publisher *publisher, uint64_t n_bytes)
{
        if (n_bytes == 0)
                return;
        publisher->due_bytes += n_bytes;
        nd_credit_watch(publisher);
        if (publisher->due_bytes >= publisher->window_bytes / 4)
                nd_connection_mark_dirty(publisher->connection);
}

static uint64_t credit_interval_ns(uint64_t rate)
{
        return nd_max_u64(UINT64_C(1000000000) / rate, 1);
}

/* By how much the messages of its identity are before their time. */
static uint64_t credit_ahead_ns(const struct nd_publisher *publisher)
{
        uint64_t rate_ns = publisher->connection->quota.account->rate_ns;

        return rate_ns - nd_min_u64(rate_ns, publisher->connection->server->now_ns);
}

int nd_credit_count(struct nd_publisher *publisher, struct nd_fault *fault)
{
        const struct nd_quota *quota = &publisher->connection->quota;
        struct nd_account *account = quota->account;
        uint64_t rate = quota->most[ND_LIMIT_RATE];
        uint64_t n_ahead, n_most;

        if (rate == ND_LIMIT_NONE)
                return 0;
        n_ahead = credit_ahead_ns(publisher) / credit_interval_ns(rate);
        n_most = CREDIT_RATE_AHEAD_N * account->used[ND_LIMIT_CONNECTIONS];
        if (n_ahead > n_most) {
                ++account->accounts->counters->limited;
                return nd_fault_set_numbers(
                        fault, NDBUS_ELIMIT, nd_limit_name(ND_LIMIT_RATE), n_ahead, n_most,
                        "%" PRIu64 " messages came before their time, %" PRIu64
                        " may; the limit is %" PRIu64 " %s for %s",
                        n_ahead, n_most, rate, nd_limit_unit(ND_LIMIT_RATE), account->name);
        }
        account->rate_ns = nd_max_u64(account->rate_ns, publisher->connection->server->now_ns) +
                           credit_interval_ns(rate);
        return 0;
}

static bool credit_has_rate(const struct nd_publisher *publisher)
{
        return publisher->connection->quota.most[ND_LIMIT_RATE] != ND_LIMIT_NONE &&
               !publisher->is_bulk;
}

/* How much of what is due may be granted now. */
static uint64_t credit_allowed(const struct nd_publisher *publisher)
{
        uint64_t ahead_ns, interval_ns, most_ns;

        if (!credit_has_rate(publisher) || publisher->in.is_open)
                return publisher->due_bytes;
        interval_ns = credit_interval_ns(publisher->connection->quota.most[ND_LIMIT_RATE]);
        ahead_ns = credit_ahead_ns(publisher);
        most_ns = nd_max_u64(interval_ns, CREDIT_PACE_NS);
        return nd_min_u64(publisher->due_bytes, (most_ns - nd_min_u64(ahead_ns, most_ns)) /
                                                        interval_ns * publisher->packet_bytes);
}

/* The client may be stopped by the size of its window, because what was left was less than another
 * packet like the last: double it, if memory allows. */
static uint64_t credit_grow(struct nd_publisher *publisher)
{
        const struct nd_server *server = publisher->connection->server;
        uint64_t most =
                publisher->is_bulk ? ND_PUBLISH_WINDOW_BYTES_MAX : CREDIT_SMALL_WINDOW_BYTES;
        uint64_t window = nd_min_u64(2 * publisher->window_bytes, most);
        uint64_t more = window - nd_min_u64(window, publisher->window_bytes);
        uint64_t low = nd_max_u64(ND_CREDIT_LOW_BYTES, publisher->packet_bytes);

        if (publisher->left_bytes_low >= low || more == 0 || credit_has_rate(publisher) ||
            server->grown_bytes + more > server->store.memory.max_bytes / CREDIT_GROWN_SHARE ||
            !nd_list_is_empty(&publisher->backlog) || !nd_credit_charge(publisher, window))
                return 0;
        publisher->window_bytes = window;
        return more;
}

void nd_credit_grant(struct nd_publisher *publisher, bool is_all)
{
        struct nd_prelude prelude = {
                .kind = ND_KIND_CREDIT,
                .place = nd_publisher_routed(publisher),
        };
        uint8_t body[16] = {0};
        uint64_t n_bytes = publisher->due_bytes > 0 ? credit_allowed(publisher) : 0;

        if (n_bytes == 0 || (!is_all && n_bytes < publisher->window_bytes / 4))
                return;
        publisher->due_bytes -= n_bytes;
        n_bytes += credit_grow(publisher);
        publisher->left_bytes += n_bytes;
        publisher->left_bytes_low = publisher->left_bytes;
        nd_store_le64(body + 8, n_bytes);
        nd_outbox_control(&publisher->connection->outbox, &prelude, NULL, body, sizeof(body));
}

int nd_credit_use(struct nd_publisher *publisher,
                  uint64_t *n_bytes,
                  bool is_bare,
                  struct nd_fault *fault)
{
        bool is_idle = publisher->left_bytes + publisher->due_bytes == publisher->window_bytes;

        if (*n_bytes > publisher->left_bytes) {
                if (!is_bare || !is_idle)
                        return nd_fault_set_limit(fault, NDBUS_ECREDIT, "packet", *n_bytes,
                                                  publisher->left_bytes, "bytes");
                *n_bytes = publisher->left_bytes; /* one PUBLISH's header and meta always pass */
        }
        publisher->left_bytes -= *n_bytes;
        publisher->left_bytes_low = nd_min_u64(publisher->left_bytes_low, publisher->left_bytes);
        publisher->last_ns = publisher->connection->server->now_ns;
        if (publisher->charged_bytes < publisher->window_bytes)
                (void)nd_credit_charge(publisher, publisher->window_bytes);
        return 0;
}

int nd_credit_give_back(struct nd_publisher *publisher, uint64_t n_bytes, struct nd_fault *fault)
{
        if (n_bytes > publisher->left_bytes ||
            publisher->window_bytes - n_bytes < ND_PUBLISH_WINDOW_BYTES_MIN)
                return nd_fault_set_limit(
                        fault, NDBUS_ECREDIT, "bytes", n_bytes,
                        nd_min_u64(publisher->left_bytes,
                                   publisher->window_bytes - ND_PUBLISH_WINDOW_BYTES_MIN),
                        "bytes");
        publisher->left_bytes -= n_bytes;
        publisher->left_bytes_low = publisher->left_bytes;
        publisher->window_bytes -= n_bytes;
        (void)nd_credit_charge(publisher,
                               nd_min_u64(publisher->window_bytes, publisher->charged_bytes));
        return 0;
}

/* Returns what @message still holds back, and owes its publisher nothing more. */
void nd_credit_release(struct nd_message *message)
{
        struct nd_publisher *publisher = message->publisher;

        message->publisher = NULL;
        nd_list_unlink(&message->in_publisher);
        publisher->n_over -= message->is_over;
        message->is_over = false;
        nd_credit_return(publisher, message->credit_bytes);
        message->credit_bytes = 0;
}

void nd_credit_settled(struct nd_message *message)
{
        if (message->is_over)
                nd_credit_release(message);
}

void nd_credit_progress(struct nd_message *message, bool is_end)
{
        struct nd_publisher *publisher = message->publisher;
        struct nd_incoming *in = &publisher->in;
        uint64_t fastest = 0;
        uint64_t n_bytes;

        ++publisher->n_moved;
        if (message->is_complete) {
                if (is_end && message->n_over == 0)
                        nd_credit_release(message);
                return;
        }
        nd_list_for_each (i, &message->entries) {
                const struct nd_entry *entry = nd_list_entry(i, struct nd_entry, in_message);

                fastest = nd_max_u64(fastest, entry->sent_bytes);
        }
        if (fastest <= in->returned_bytes)
                return;
        n_bytes = nd_min_u64(fastest - in->returned_bytes, message->credit_bytes);
        in->returned_bytes = fastest;
        message->credit_bytes -= n_bytes;
        nd_credit_return(publisher, n_bytes);
}

static bool credit_is_holding(const struct nd_publisher *publisher)
{
        return (publisher->in.message && publisher->in.message->is_announced) ||
               !nd_list_is_empty(&publisher->held);
}

/* Its receivers are slow: what is held for their sake is returned. */
static void credit_return_held(struct nd_publisher *publisher)
{
        struct nd_message *message = publisher->in.message;

        if (message && message->is_announced) {
                publisher->in.returned_bytes = message->received_bytes;
                nd_credit_return(publisher, message->credit_bytes);
                message->credit_bytes = 0;
        }
        nd_list_for_each_safe (i, &publisher->held) {
                message = nd_list_entry(i, struct nd_message, in_publisher);
                if (message->n_over == 0)
                        nd_credit_release(message);
        }
}

void nd_credit_ask(struct nd_publisher *publisher)
{
        credit_return_held(publisher);
        nd_credit_grant(publisher, true);
}

bool nd_credit_pace(struct nd_publisher *publisher)
{
        uint64_t now_ns = publisher->connection->server->now_ns;

        if (!credit_is_holding(publisher)) {
                publisher->is_slow = false;
                publisher->n_moved = 0;
                publisher->pace_ns = now_ns;
        } else if (now_ns - publisher->pace_ns >= CREDIT_PACE_NS) {
                publisher->is_slow = publisher->n_moved < CREDIT_PACE_N;
                publisher->n_moved = 0;
                publisher->pace_ns = now_ns;
        }
        if (publisher->is_slow)
                credit_return_held(publisher);
        if (publisher->due_bytes > 0) {
                nd_credit_grant(publisher, true);
                nd_connection_mark_dirty(publisher->connection);
        }
        return credit_is_holding(publisher) || publisher->due_bytes > 0;
}

/* Credit that is not owed to anybody else's pace is due at once. */
void nd_credit_hold(struct nd_publisher *publisher, struct nd_message *message)
{
        if (!message->publisher)
                return; /* it is with a receiver already */
        if (message->n_over > 0) {
                message->is_over = true;
                if (publisher->n_over++ == 0) {
                        nd_credit_return(publisher, message->credit_bytes);
                        message->credit_bytes = 0;
                }
        } else if ((message->block && !nd_block_is_own(message->block)) ||
                   message->body_bytes < ND_CREDIT_BULK_BYTES ||
                   nd_list_is_empty(&message->entries)) {
                nd_credit_release(message);
                return;
        }
        nd_list_push_tail(&publisher->held, &message->in_publisher);
        nd_credit_watch(publisher);
}
