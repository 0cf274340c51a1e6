/* SPDX-License-Identifier: MIT */

/*
 * Queue: every policy against a plain model
 *
 * The model is an array of what waits, written from the description of the policies and not from
 * the code. Thousands of random operations go to both; after each they must hold the same messages
 * in the same order, with the same gaps at the same places. The seed is printed with a failure.
 *
 * A queue is run alone, with no limit but its own, and with others of one identity, which may have
 * only so much in all of them together.
 */

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "daemon/queue.h"

#define MODEL_MAX  64u
#define TOPICS_N   4u
#define RUNS       20u
#define OPERATIONS 1000u
#define QUEUES_N   5u /* of one identity */

struct world {
        struct nd_router router;
        struct nd_store store;
        struct nd_counters counters;
        struct nd_topic *topics[TOPICS_N];
        struct nd_header_bytes *header;
        uint64_t n_made;
};

static void world_init(struct world *w)
{
        *w = (struct world){0};
        cr_assert_eq(nd_router_init(&w->router), 0);
        cr_assert_eq(nd_store_init(&w->store, 1 << 20), 0);
        w->store.memory.max_bytes = UINT64_C(1) << 40;
        for (size_t i = 0; i < TOPICS_N; ++i) {
                char name[] = {(char)('a' + i), '\0'};

                w->topics[i] = nd_router_topic(&w->router, name, 1);
                cr_assert(w->topics[i]);
        }
        w->header = nd_header_bytes_new("h", 1);
}

static void world_deinit(struct world *w)
{
        nd_header_bytes_unref(w->header);
        for (size_t i = 0; i < TOPICS_N; ++i)
                nd_topic_unref(w->topics[i]);
        cr_expect_eq(w->store.n_messages, 0, "%" PRIu64 " messages are left", w->store.n_messages);
        nd_router_deinit(&w->router);
        nd_store_deinit(&w->store);
}

/* number identifies it; its bytes are never written, so they may be as many as one likes */
static struct nd_entry *make_entry(struct world *w, size_t topic, uint64_t n_bytes)
{
        const struct nd_prelude prelude = {.kind = ND_KIND_PUBLISH, .body_bytes = n_bytes};
        struct nd_message *message =
                nd_message_new(&w->store, &prelude, w->header, w->topics[topic], NULL, NULL);
        struct nd_entry *entry;

        cr_assert(message);
        message->is_complete = true;
        message->number = ++w->n_made;
        entry = nd_entry_new(message, NULL, NULL);
        cr_assert(entry);
        nd_message_unref(message);
        return entry;
}

/* --------------------------------------------------------------------------------------- model */

struct item {
        uint64_t number;
        uint64_t n_bytes;
        uint64_t cost;
        size_t topic;
        uint64_t gap;
        bool is_over;
};

struct model {
        const struct identity *identity; /* NULL: nothing limits it but itself */
        enum nd_policy policy;
        uint64_t depth;
        uint64_t bytes;
        size_t n;
        struct item items[MODEL_MAX];
        size_t n_outside; /* what members of a group have */
        struct item outside[MODEL_MAX];
        uint64_t gap_tail;
        uint64_t n_matched, n_delivered, n_dropped;
        uint64_t n_limit; /* of those dropped, what others of the identity were the reason for */
};

struct identity {
        uint64_t most;
        size_t n;
        const struct model *models[QUEUES_N];
};

/* What is beyond a block queue's limits is the publishers' burden. */
static uint64_t model_cost(const struct model *m)
{
        uint64_t sum = 0;

        for (size_t i = 0; i < m->n; ++i)
                sum += m->items[i].is_over ? 0 : m->items[i].cost;
        for (size_t i = 0; i < m->n_outside; ++i)
                sum += m->outside[i].cost;
        return sum;
}

static uint64_t identity_cost(const struct identity *identity)
{
        uint64_t sum = 0;

        for (size_t i = 0; i < identity->n; ++i)
                sum += model_cost(identity->models[i]);
        return sum;
}

static uint64_t model_bytes(const struct model *m)
{
        uint64_t sum = 0;

        for (size_t i = 0; i < m->n; ++i)
                sum += m->items[i].n_bytes;
        for (size_t i = 0; i < m->n_outside; ++i)
                sum += m->outside[i].n_bytes;
        return sum;
}

static bool model_is_full(const struct model *m, uint64_t n_more)
{
        size_t n = m->n + m->n_outside;
        uint64_t sum = model_bytes(m);

        return n > 0 && (n + 1 > m->depth || sum >= m->bytes || sum + n_more > m->bytes);
}

/* Would it be too much for the identity? One fits where nothing waits. */
static bool model_is_limited(const struct model *m, uint64_t cost)
{
        uint64_t used = m->identity ? identity_cost(m->identity) : 0;

        return used > 0 && used + cost > m->identity->most;
}

static void model_drop(struct model *m, size_t i)
{
        uint64_t gap = m->items[i].gap + 1;

        memmove(m->items + i, m->items + i + 1, (m->n - i - 1) * sizeof(*m->items));
        --m->n;
        *(i < m->n ? &m->items[i].gap : &m->gap_tail) += gap;
        ++m->n_dropped;
}

static void model_append(struct model *m, struct item item)
{
        item.gap = m->gap_tail;
        m->gap_tail = 0;
        m->items[m->n++] = item;
}

/* The newest of its topic stands at place @i: others make room, oldest first. It fits alone, unless
 * other queues of the identity have what it may have. */
static int model_replaced(struct model *m, size_t i)
{
        const struct identity *identity = m->identity;

        while (m->n > 1) {
                bool is_full = model_bytes(m) > m->bytes;

                if (!is_full && (!identity || identity_cost(identity) <= identity->most))
                        return 0;
                m->n_limit += !is_full;
                model_drop(m, i == 0 ? 1 : 0);
                i -= i > 0;
        }
        if (!identity || identity_cost(identity) <= identity->most ||
            identity_cost(identity) == model_cost(m))
                return 0;
        ++m->n_limit;
        model_drop(m, 0);
        return ND_QUEUE_E_DROPPED;
}

static int model_push(struct model *m, struct item item)
{
        ++m->n_matched;
        for (size_t i = 0; m->policy == ND_POLICY_LATEST && i < m->n; ++i) {
                if (m->items[i].topic != item.topic)
                        continue;
                item.gap = m->items[i].gap + 1;
                ++m->n_dropped;
                m->items[i] = item;
                return model_replaced(m, i);
        }
        item.is_over = m->n > 0 && m->items[m->n - 1].is_over; /* behind those that wait to fit */
        while (!item.is_over &&
               (model_is_full(m, item.n_bytes) || model_is_limited(m, item.cost))) {
                bool is_full = model_is_full(m, item.n_bytes);
                bool is_oldest =
                        m->policy == ND_POLICY_DROP_OLDEST || m->policy == ND_POLICY_LATEST;

                if (m->policy == ND_POLICY_BLOCK) {
                        item.is_over = true;
                        break;
                }
                m->n_limit += !is_full && m->policy != ND_POLICY_DISCONNECT;
                if (is_oldest && m->n > 0) {
                        model_drop(m, 0);
                        continue;
                }
                ++m->gap_tail;
                ++m->n_dropped;
                return m->policy == ND_POLICY_DISCONNECT ? ND_QUEUE_E_OVERFLOW : ND_QUEUE_E_DROPPED;
        }
        model_append(m, item);
        return item.is_over ? ND_QUEUE_E_OVER : 0;
}

/* The first that is beyond the limits, if it fits behind those that are not; number or 0. */
static uint64_t model_settle(struct model *m)
{
        struct model settled = *m;
        size_t i = 0;

        while (i < m->n && !m->items[i].is_over)
                ++i;
        settled.n = i;
        if (i == m->n || model_is_full(&settled, m->items[i].n_bytes) ||
            model_is_limited(m, m->items[i].cost))
                return 0;
        m->items[i].is_over = false;
        return m->items[i].number;
}

static void compare(const struct nd_queue *queue, const struct model *m, const char *what)
{
        uint64_t n_over = 0, n_bytes = 0;
        size_t i = 0;

        cr_assert_eq(queue->n_messages, m->n, "%s: %" PRIu64 " wait, expected %zu", what,
                     queue->n_messages, m->n);
        nd_list_for_each (node, &queue->entries) {
                const struct nd_entry *entry = nd_list_entry(node, struct nd_entry, in_queue);
                const struct item *item = &m->items[i];

                cr_assert_eq(entry->message->number, item->number, "%s: place %zu", what, i);
                cr_assert_eq(entry->gap_before, item->gap, "%s: gap before place %zu", what, i);
                cr_assert_eq(entry->is_over, item->is_over, "%s: place %zu", what, i);
                cr_assert_eq(entry->state, ND_ENTRY_QUEUED);
                cr_assert_eq(entry->message->n_pins, m->policy == ND_POLICY_BLOCK);
                cr_assert_eq(entry->message->n_over, item->is_over);
                n_over += item->is_over;
                n_bytes += item->n_bytes;
                ++i;
        }
        cr_assert_eq(i, m->n);
        cr_assert_eq(queue->n_bytes, n_bytes);
        cr_assert_eq(queue->n_over, n_over, "%s", what);
        cr_assert_eq(queue->gap_tail, m->gap_tail, "%s: gap behind all", what);
        cr_assert_eq(queue->n_matched, m->n_matched);
        cr_assert_eq(queue->n_delivered, m->n_delivered);
        cr_assert_eq(nd_queue_dropped(queue), m->n_dropped, "%s", what);
        cr_assert_eq(queue->n_dropped[ND_DROP_LIMIT], m->n_limit, "%s", what);
        cr_assert_eq(queue->n_outside, m->n_outside, "%s", what);
        cr_assert_eq(queue->charged_bytes, model_cost(m), "%s", what);
        if (m->identity)
                cr_assert_eq(queue->quota->account->used[ND_LIMIT_QUEUED],
                             identity_cost(m->identity), "%s", what);
        cr_assert_eq(queue->n_matched, queue->n_delivered + m->n_dropped + m->n, "%s", what);
}

/* ------------------------------------------------------------------------------------ operations */

struct part {
        struct nd_queue queue;
        struct model model;
        struct nd_entry *outside[MODEL_MAX];
};

struct run {
        struct world world;
        struct part parts[QUEUES_N];
        struct part *part; /* whose turn it is */
        unsigned random;
};

static unsigned run_random(struct run *r, unsigned n)
{
        r->random = r->random * 1664525u + 1013904223u;
        return (r->random >> 8) % n;
}

static void run_push(struct run *r)
{
        struct item item = {
                .topic = run_random(r, TOPICS_N),
                .n_bytes = run_random(r, 8) == 0 ? 300 : run_random(r, 60),
        };
        struct nd_entry *entry;

        if (r->part->model.n + r->part->model.n_outside + 1 == MODEL_MAX)
                return;
        entry = make_entry(&r->world, item.topic, item.n_bytes);
        item.number = entry->message->number;
        item.cost = entry->message->own_bytes + ND_ENTRY_COST_BYTES;
        cr_assert_eq(nd_queue_push(&r->part->queue, entry), model_push(&r->part->model, item));
        compare(&r->part->queue, &r->part->model, "push");
}

static void run_settle(struct run *r)
{
        for (;;) {
                struct nd_message *message = nd_queue_settle(&r->part->queue);
                uint64_t number = model_settle(&r->part->model);

                cr_assert_eq(message ? message->number : 0, number);
                compare(&r->part->queue, &r->part->model, "settle");
                if (!message)
                        return;
        }
}

/* Takes some out; those of which nothing could be sent are put back, last first. */
static void run_pop(struct run *r)
{
        struct nd_entry *taken[4];
        struct item items[4];
        size_t n = 0, n_back;

        for (size_t want = 1 + run_random(r, 4); n < want && r->part->model.n > 0; ++n) {
                struct model *m = &r->part->model;

                items[n] = m->items[0];
                taken[n] = nd_queue_pop(&r->part->queue);
                cr_assert(taken[n]);
                cr_assert_eq(taken[n]->message->number, items[n].number);
                cr_assert_eq(taken[n]->message->n_pins, 0);
                memmove(m->items, m->items + 1, --m->n * sizeof(*m->items));
                ++m->n_delivered;
                compare(&r->part->queue, m, "pop");
        }
        if (n == 0)
                cr_assert_null(nd_queue_pop(&r->part->queue));
        n_back = run_random(r, (unsigned)n + 1);
        for (; n_back > 0; --n_back) {
                struct model *m = &r->part->model;

                nd_queue_unpop(&r->part->queue, taken[--n]);
                items[n].is_over = false; /* it had its turn */
                memmove(m->items + 1, m->items, m->n++ * sizeof(*m->items));
                m->items[0] = items[n];
                --m->n_delivered;
                compare(&r->part->queue, m, "unpop");
        }
        while (n > 0)
                nd_entry_free(taken[--n]);
        run_settle(r); /* as whoever shortens a block queue does */
}

static void run_drop(struct run *r)
{
        struct nd_list *node = r->part->queue.entries.next;
        size_t i;

        if (r->part->model.n == 0)
                return;
        i = run_random(r, (unsigned)r->part->model.n);
        for (size_t k = 0; k < i; ++k)
                node = node->next;
        nd_queue_drop(&r->part->queue, nd_list_entry(node, struct nd_entry, in_queue),
                      ND_DROP_MEMORY);
        model_drop(&r->part->model, i);
        compare(&r->part->queue, &r->part->model, "drop");
        run_settle(r);
}

/* What the subscriber does with gaps: takes the one before the first, or the last when alone. */
static void run_take_gap(struct run *r)
{
        struct nd_entry *first = nd_queue_peek(&r->part->queue);

        if (first) {
                first->gap_before = 0;
                r->part->model.items[0].gap = 0;
        } else {
                r->part->queue.gap_tail = 0;
                r->part->model.gap_tail = 0;
        }
}

/* As if it were a group's: the oldest goes to a member, if a member may have it. */
static void run_hand_out(struct run *r)
{
        struct model *m = &r->part->model;
        struct nd_entry *entry = nd_queue_peek(&r->part->queue);

        cr_assert_eq(entry ? entry->message->number : 0, m->n > 0 ? m->items[0].number : 0);
        if (!entry || (m->items[0].is_over && m->n_outside > 0))
                return;
        cr_assert_eq(nd_queue_pop(&r->part->queue), entry);
        nd_queue_put_outside(&r->part->queue, entry);
        r->part->outside[m->n_outside] = entry;
        m->outside[m->n_outside] = m->items[0];
        m->outside[m->n_outside++].is_over = false;
        memmove(m->items, m->items + 1, --m->n * sizeof(*m->items));
        ++m->n_delivered;
        compare(&r->part->queue, m, "hand out");
        run_settle(r);
}

/* A member finishes one of what it has, or leaves and gives one back. */
static void run_take_back(struct run *r)
{
        struct model *m = &r->part->model;
        struct nd_entry *entry;
        struct item item;
        size_t i;

        if (m->n_outside == 0)
                return;
        i = run_random(r, (unsigned)m->n_outside);
        entry = r->part->outside[i];
        item = m->outside[i];
        r->part->outside[i] = r->part->outside[--m->n_outside];
        m->outside[i] = m->outside[m->n_outside];
        nd_queue_take_back(&r->part->queue, entry);
        if (run_random(r, 4) > 0) {
                nd_entry_free(entry);
        } else {
                nd_queue_unpop(&r->part->queue, entry);
                memmove(m->items + 1, m->items, m->n++ * sizeof(*m->items));
                m->items[0] = item;
                --m->n_delivered;
        }
        compare(&r->part->queue, m, "take back");
        run_settle(r);
}

static void run_count_begun(struct run *r)
{
        nd_queue_count_begun(&r->part->queue);
        ++r->part->model.n_matched;
        ++r->part->model.n_delivered;
        if (run_random(r, 2)) {
                nd_queue_count_taken_back(&r->part->queue, NULL, ND_DROP_ENDED);
                --r->part->model.n_delivered;
                ++r->part->model.n_dropped;
        }
}

static void run_any(struct run *r)
{
        bool is_group = r->part->model.policy != ND_POLICY_LATEST; /* is not for groups */

        switch (run_random(r, is_group ? 14 : 10)) {
        case 10:
        case 11:
                run_hand_out(r);
                break;
        case 12:
        case 13:
                run_take_back(r);
                break;
        case 0:
        case 1:
                run_pop(r);
                break;
        case 2:
        case 3:
                run_drop(r);
                break;
        case 4:
                run_take_gap(r);
                break;
        case 5:
                run_count_begun(r);
                break;
        default:
                run_push(r);
        }
}

static void run_begin(struct run *r, struct part *part, enum nd_policy policy)
{
        part->model = (struct model){
                .policy = policy,
                .depth = 1 + run_random(r, 8),
                .bytes = 1 + run_random(r, 400),
        };
        nd_queue_init(&part->queue, &r->world.counters, policy, part->model.depth,
                      part->model.bytes);
}

static void run_end(struct part *part)
{
        while (part->model.n_outside > 0) {
                struct nd_entry *entry = part->outside[--part->model.n_outside];

                nd_queue_take_back(&part->queue, entry);
                nd_entry_free(entry);
        }
        while (nd_queue_peek(&part->queue))
                nd_queue_drop(&part->queue, nd_queue_peek(&part->queue), ND_DROP_ENDED);
        nd_queue_forget_losses(&part->queue);
}

static void run_once(enum nd_policy policy, unsigned seed)
{
        static struct run r;

        r = (struct run){.random = seed, .part = &r.parts[0]};
        world_init(&r.world);
        run_begin(&r, r.part, policy);
        for (unsigned i = 0; i < OPERATIONS; ++i)
                run_any(&r);
        run_end(r.part);
        world_deinit(&r.world);
}

static void run(enum nd_policy policy)
{
        unsigned seed = (unsigned)time(NULL);

        fprintf(stderr, "policy %s, seed %u and the %u behind it\n", nd_policy_name(policy), seed,
                RUNS - 1);
        for (unsigned i = 0; i < RUNS; ++i)
                run_once(policy, seed + i);
}

Test(queue, drop_oldest)
{
        run(ND_POLICY_DROP_OLDEST);
}

Test(queue, drop_newest)
{
        run(ND_POLICY_DROP_NEWEST);
}

Test(queue, latest)
{
        run(ND_POLICY_LATEST);
}

Test(queue, block)
{
        run(ND_POLICY_BLOCK);
}

Test(queue, disconnect)
{
        run(ND_POLICY_DISCONNECT);
}

/* One message of any size fits an empty queue; what fills it exactly fits. */
Test(queue, limits)
{
        static struct world w;
        struct nd_queue queue;

        world_init(&w);
        nd_queue_init(&queue, &w.counters, ND_POLICY_DROP_NEWEST, 3, 100);
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 5000)), 0);
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 0)), ND_QUEUE_E_DROPPED);
        nd_entry_free(nd_queue_pop(&queue));
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 60)), 0);
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 41)), ND_QUEUE_E_DROPPED);
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 40)), 0);
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 0)), ND_QUEUE_E_DROPPED);
        cr_assert_eq(queue.gap_tail, 1);
        cr_assert_eq(nd_queue_peek(&queue)->gap_before, 1);
        cr_assert_eq(w.counters.dropped_newest, 3);
        nd_entry_free(nd_queue_pop(&queue));
        nd_entry_free(nd_queue_pop(&queue));
        for (int i = 0; i < 3; ++i)
                cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 0)), 0);
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 0)), ND_QUEUE_E_DROPPED);
        while (nd_queue_peek(&queue))
                nd_entry_free(nd_queue_pop(&queue));
        nd_queue_forget_losses(&queue);
        world_deinit(&w);
}

/* What members of a group have counts in its limits, and cannot be dropped. */
Test(queue, outside)
{
        static struct world w;
        struct nd_queue queue;

        world_init(&w);
        nd_queue_init(&queue, &w.counters, ND_POLICY_DROP_OLDEST, 2, 1000);
        queue.n_outside = 1;
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 1)), 0);
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 1)), 0);
        cr_assert_eq(queue.n_messages, 1);
        cr_assert_eq(nd_queue_peek(&queue)->message->number, 2);
        queue.n_outside = 2;
        nd_entry_free(nd_queue_pop(&queue));
        cr_assert_eq(nd_queue_push(&queue, make_entry(&w, 0, 1)), ND_QUEUE_E_DROPPED);
        cr_assert_eq(queue.n_dropped[ND_DROP_OLDEST], 2);
        cr_assert_eq(queue.n_lost, 2);
        cr_assert_eq(queue.lost_bytes, 2);
        cr_assert_eq(queue.lost_topic, w.topics[0]);
        nd_queue_forget_losses(&queue);
        world_deinit(&w);
}

/* ------------------------------------------------------------------------- queues of one identity */

static void run_identity(unsigned seed)
{
        static const enum nd_policy policies[QUEUES_N] = {ND_POLICY_DROP_OLDEST,
                                                          ND_POLICY_DROP_NEWEST, ND_POLICY_LATEST,
                                                          ND_POLICY_BLOCK, ND_POLICY_DISCONNECT};
        static struct run r;
        struct nd_accounts accounts;
        struct nd_quota quota = {0};
        struct identity identity = {.n = QUEUES_N};

        r = (struct run){.random = seed};
        world_init(&r.world);
        nd_accounts_init(&accounts, &r.world.counters);
        quota.account = nd_account_find(&accounts, &(struct nd_identity){0});
        cr_assert(quota.account);
        identity.most = run_random(&r, 20000);
        quota.most[ND_LIMIT_QUEUED] = identity.most;
        for (size_t i = 0; i < QUEUES_N; ++i) {
                run_begin(&r, &r.parts[i], policies[i]);
                nd_queue_set_quota(&r.parts[i].queue, &quota);
                r.parts[i].model.identity = &identity;
                identity.models[i] = &r.parts[i].model;
        }
        for (unsigned i = 0; i < QUEUES_N * OPERATIONS; ++i) {
                r.part = &r.parts[run_random(&r, QUEUES_N)];
                run_any(&r);
        }
        for (size_t i = 0; i < QUEUES_N; ++i)
                run_end(&r.parts[i]);
        cr_assert_eq(quota.account->used[ND_LIMIT_QUEUED], 0);
        nd_account_unref(quota.account);
        cr_assert_eq(accounts.n, 0);
        world_deinit(&r.world);
}

Test(queue, of_one_identity)
{
        unsigned seed = (unsigned)time(NULL);

        fprintf(stderr, "seed %u and the %u behind it\n", seed, RUNS - 1);
        for (unsigned i = 0; i < RUNS; ++i)
                run_identity(seed + i);
}

/* Beyond its own limit of bytes the newest of a topic stays, whatever others of its identity hold, as
 * long as that is within what it may have. */
Test(queue, latest_beside_others)
{
        static struct world w;
        struct nd_queue latest, other;
        struct nd_accounts accounts;
        struct nd_quota quota = {.most = {[ND_LIMIT_QUEUED] = 100000}};

        world_init(&w);
        nd_accounts_init(&accounts, &w.counters);
        quota.account = nd_account_find(&accounts, &(struct nd_identity){0});
        nd_queue_init(&latest, &w.counters, ND_POLICY_LATEST, 10, 1000);
        nd_queue_init(&other, &w.counters, ND_POLICY_DROP_OLDEST, 10, 1000);
        nd_queue_set_quota(&latest, &quota);
        nd_queue_set_quota(&other, &quota);
        cr_assert_eq(nd_queue_push(&other, make_entry(&w, 1, 1)), 0);
        for (int i = 0; i < 4; ++i)
                cr_assert_eq(nd_queue_push(&latest, make_entry(&w, 0, 5000)), 0);
        cr_expect_eq(latest.n_messages, 1);
        cr_expect_eq(latest.n_dropped[ND_DROP_LATEST], 3);
        cr_expect_eq(nd_queue_peek(&latest)->message->number, 5);
        nd_entry_free(nd_queue_pop(&latest));
        nd_entry_free(nd_queue_pop(&other));
        nd_account_unref(quota.account);
        world_deinit(&w);
}

/* The reason is told apart, and one queue's loss is no other's. */
Test(queue, reason_of_a_limit)
{
        static struct world w;
        struct nd_queue full, other;
        struct nd_accounts accounts;
        struct nd_quota quota = {.most = {[ND_LIMIT_QUEUED] = 3000}};

        world_init(&w);
        nd_accounts_init(&accounts, &w.counters);
        quota.account = nd_account_find(&accounts, &(struct nd_identity){0});
        nd_queue_init(&full, &w.counters, ND_POLICY_DROP_NEWEST, 10, 100000);
        nd_queue_init(&other, &w.counters, ND_POLICY_DROP_OLDEST, 10, 100000);
        nd_queue_set_quota(&full, &quota);
        nd_queue_set_quota(&other, &quota);
        cr_assert_eq(nd_queue_push(&full, make_entry(&w, 0, 5000)), 0, "one always passes");
        cr_assert_eq(nd_queue_push(&full, make_entry(&w, 0, 1)), ND_QUEUE_E_DROPPED);
        cr_assert_eq(nd_queue_push(&other, make_entry(&w, 0, 1)), ND_QUEUE_E_DROPPED);
        cr_expect_eq(full.n_dropped[ND_DROP_LIMIT], 1);
        cr_expect_eq(other.n_dropped[ND_DROP_LIMIT], 1);
        cr_expect_eq(other.gap_tail, 1);
        cr_expect_eq(w.counters.dropped_limit, 2);
        nd_entry_free(nd_queue_pop(&full));
        cr_assert_eq(nd_queue_push(&other, make_entry(&w, 0, 1)), 0);
        nd_entry_free(nd_queue_pop(&other));
        nd_queue_forget_losses(&full);
        nd_queue_forget_losses(&other);
        nd_account_unref(quota.account);
        world_deinit(&w);
}
