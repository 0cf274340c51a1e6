/* SPDX-License-Identifier: MIT */

/*
 * Router
 *
 * Patterns are a trie of segments; a topic is matched by walking it with the set of all nodes that
 * its first segments can lead to, so the cost is bounded by segments times nodes, whatever the
 * patterns are. The result is kept with the topic until a subscription comes or goes anywhere
 * (one generation number), so a steady stream pays for matching once.
 *
 * Topics and segments are in red-black trees rather than hash tables: peers choose the names, and a
 * tree needs neither a keyed hash nor a pause to grow.
 */

#include "daemon/router.h"
#include <errno.h>
#include <string.h>
#include "daemon/message.h"
#include "daemon/rights.h"
#include "protocol/topic.h"

#define ROUTER_ROUTES_MAX ((size_t)1 << 20) /* places in all routes that are kept: 8 MiB */

static int router_compare(const char *a, size_t n_a, const char *b, size_t n_b)
{
        size_t n = n_a < n_b ? n_a : n_b;
        int r = n > 0 ? memcmp(a, b, n) : 0;

        return r != 0 ? r : (n_a > n_b) - (n_a < n_b);
}

/* What a tree is asked for: a name that need not be NUL-terminated. */
static struct nd_topic *router_find_topic(struct nd_router *router, const char *name, size_t n)
{
        struct nd_topic *topic = RB_ROOT(&router->topics);

        while (topic) {
                int r = router_compare(name, n, topic->name, topic->n_name);

                if (r == 0)
                        return topic;
                topic = r < 0 ? RB_LEFT(topic, in_router) : RB_RIGHT(topic, in_router);
        }
        return NULL;
}

static struct nd_pattern *
router_find_child(const struct nd_pattern *parent, const char *segment, size_t n)
{
        struct nd_pattern *child = RB_ROOT(&parent->children);

        while (child) {
                int r = router_compare(segment, n, child->segment, child->n_segment);

                if (r == 0)
                        return child;
                child = r < 0 ? RB_LEFT(child, in_parent) : RB_RIGHT(child, in_parent);
        }
        return NULL;
}

static int nd_topic_compare(struct nd_topic *a, struct nd_topic *b)
{
        return router_compare(a->name, a->n_name, b->name, b->n_name);
}

static int nd_pattern_compare(struct nd_pattern *a, struct nd_pattern *b)
{
        return router_compare(a->segment, a->n_segment, b->segment, b->n_segment);
}

RB_GENERATE(nd_topic_tree, nd_topic, in_router, nd_topic_compare)
RB_GENERATE_INTERNAL(
        nd_pattern_tree, nd_pattern, in_parent, nd_pattern_compare, __attribute__((unused)) static)

/* ------------------------------------------------------------------------------------ patterns */

static struct nd_pattern *router_node_new(struct nd_pattern *parent, const char *segment, size_t n)
{
        struct nd_pattern *node = calloc(1, sizeof(*node) + n);

        if (!node)
                return NULL;
        node->parent = parent;
        RB_INIT(&node->children);
        nd_list_init(&node->targets);
        node->n_segment = n;
        if (n > 0)
                memcpy(node->segment, segment, n);
        return node;
}

static bool router_is_star(const char *segment, size_t n)
{
        return n == 1 && segment[0] == '*';
}

static bool router_is_globstar(const char *segment, size_t n)
{
        return n == 2 && segment[0] == '*' && segment[1] == '*';
}

static struct nd_pattern *
router_child(struct nd_router *router, struct nd_pattern *parent, const char *segment, size_t n)
{
        bool is_star = router_is_star(segment, n);
        bool is_globstar = router_is_globstar(segment, n);
        struct nd_pattern *child = is_star       ? parent->star
                                   : is_globstar ? parent->globstar
                                                 : router_find_child(parent, segment, n);

        if (child)
                return child;
        child = router_node_new(parent, segment, n);
        if (!child)
                return NULL;
        child->is_globstar = is_globstar;
        if (is_star)
                parent->star = child;
        else if (is_globstar)
                parent->globstar = child;
        else
                RB_INSERT(nd_pattern_tree, &parent->children, child);
        ++router->n_patterns;
        return child;
}

/* Frees @node and its parents as far as nothing is left in them. */
static void router_prune(struct nd_router *router, struct nd_pattern *node)
{
        while (node->parent && nd_list_is_empty(&node->targets) && RB_EMPTY(&node->children) &&
               !node->star && !node->globstar) {
                struct nd_pattern *parent = node->parent;

                if (parent->star == node)
                        parent->star = NULL;
                else if (parent->globstar == node)
                        parent->globstar = NULL;
                else
                        RB_REMOVE(nd_pattern_tree, &parent->children, node);
                free(node);
                --router->n_patterns;
                node = parent;
        }
}

/* Matching must not fail for want of scratch: there is room for every node before it is made. */
static int router_reserve(struct nd_router *router, size_t n_nodes)
{
        size_t n = router->n_sets_max ? router->n_sets_max : 64;
        struct nd_pattern **here;
        struct nd_pattern **next;

        if (n_nodes <= router->n_sets_max)
                return 0;
        while (n < n_nodes)
                n *= 2;
        here = realloc(router->here, n * sizeof(struct nd_pattern *));
        if (!here)
                return -ENOMEM;
        router->here = here;
        next = realloc(router->next, n * sizeof(struct nd_pattern *));
        if (!next)
                return -ENOMEM;
        router->next = next;
        router->n_sets_max = n;
        return 0;
}

int nd_router_init(struct nd_router *router)
{
        *router = (struct nd_router){.generation = 1};
        RB_INIT(&router->topics);
        nd_list_init(&router->watched);
        router->root = router_node_new(NULL, NULL, 0);
        if (!router->root)
                return -ENOMEM;
        router->n_patterns = 1;
        return router_reserve(router, 1);
}

void nd_router_deinit(struct nd_router *router)
{
        nd_assert(RB_EMPTY(&router->topics));
        nd_assert(router->n_patterns <= 1);
        free(router->root);
        free(router->here);
        free(router->next);
        *router = (struct nd_router){0};
}

int nd_router_add(struct nd_router *router,
                  const char *pattern,
                  size_t n_pattern,
                  struct nd_target *target)
{
        struct nd_pattern *node = router->root;
        const char *segment;
        size_t n_segment;
        size_t i_at = 0;

        while (nd_topic_next_segment(pattern, n_pattern, &i_at, &segment, &n_segment)) {
                struct nd_pattern *child = NULL;

                if (router_reserve(router, router->n_patterns + 1) == 0)
                        child = router_child(router, node, segment, n_segment);
                if (!child) {
                        router_prune(router, node);
                        return -ENOMEM;
                }
                node = child;
        }
        target->pattern = node;
        nd_list_push_tail(&node->targets, &target->in_pattern);
        ++router->generation;
        return 0;
}

void nd_router_remove(struct nd_router *router, struct nd_target *target)
{
        if (!target->pattern)
                return;
        nd_list_unlink(&target->in_pattern);
        router_prune(router, target->pattern);
        target->pattern = NULL;
        ++router->generation;
}

uint64_t nd_router_pattern_cost(const char *pattern, size_t n_pattern)
{
        /* a node, its places in the two sets of matching, and the allocator's share */
        const uint64_t node = sizeof(struct nd_pattern) + 2 * 2 * sizeof(struct nd_pattern *) + 16;
        const char *segment;
        size_t n_segment;
        size_t i_at = 0;
        uint64_t cost = n_pattern;

        while (nd_topic_next_segment(pattern, n_pattern, &i_at, &segment, &n_segment))
                cost += node;
        return cost;
}

/* -------------------------------------------------------------------------------------- topics */

struct nd_topic *nd_router_topic(struct nd_router *router, const char *name, size_t n_name)
{
        struct nd_topic *topic = router_find_topic(router, name, n_name);

        if (topic)
                return nd_topic_ref(topic);

        topic = calloc(1, sizeof(*topic) + n_name + 1);
        if (!topic)
                return NULL;
        topic->router = router;
        topic->n_refs = 1;
        nd_list_init(&topic->watches);
        nd_list_init(&topic->in_watched);
        topic->n_name = n_name;
        memcpy(topic->name, name, n_name);
        RB_INSERT(nd_topic_tree, &router->topics, topic);
        ++router->n_topics;
        return topic;
}

static void route_forget(struct nd_topic *topic)
{
        topic->router->n_routes -= topic->n_route_max;
        free(nd_steal(topic->route));
        topic->n_route = 0;
        topic->n_route_max = 0;
        topic->generation = 0;
}

struct nd_topic *nd_topic_ref(struct nd_topic *topic)
{
        ++topic->n_refs;
        return topic;
}

struct nd_topic *nd_topic_unref(struct nd_topic *topic)
{
        if (!topic || --topic->n_refs > 0)
                return NULL;

        nd_assert(!topic->retained);
        nd_assert(nd_list_is_empty(&topic->watches));
        RB_REMOVE(nd_topic_tree, &topic->router->topics, topic);
        --topic->router->n_topics;
        nd_header_bytes_unref(topic->header);
        route_forget(topic);
        free(topic);
        return NULL;
}

/* ------------------------------------------------------------------------------------ matching */

/* Adds @node, and what it reaches by letting "**" stand for nothing, to a set; each node once. */
static size_t
route_reach(struct nd_router *router, struct nd_pattern **set, size_t n, struct nd_pattern *node)
{
        for (; node && node->stamp != router->stamp; node = node->globstar) {
                node->stamp = router->stamp;
                set[n++] = node;
        }
        return n;
}

/* The nodes that one more segment leads to. */
static size_t
route_step(struct nd_router *router, size_t n_here, const char *segment, size_t n, bool is_system)
{
        size_t n_next = 0;

        ++router->stamp;
        for (size_t i = 0; i < n_here; ++i) {
                struct nd_pattern *node = router->here[i];

                n_next = route_reach(router, router->next, n_next,
                                     router_find_child(node, segment, n));
                if (is_system)
                        continue;
                n_next = route_reach(router, router->next, n_next, node->star);
                if (node->is_globstar)
                        n_next = route_reach(router, router->next, n_next, node);
        }
        return n_next;
}

static int route_append(struct nd_topic *topic, struct nd_pattern *node)
{
        nd_list_for_each (i, &node->targets) {
                const struct nd_target *target = nd_list_entry(i, struct nd_target, in_pattern);

                if (!nd_rights_allow(target->rights, ND_RIGHT_SUBSCRIBE, topic->name,
                                     topic->n_name))
                        continue;
                if (topic->n_route == topic->n_route_max) {
                        size_t n = topic->n_route_max ? 2 * topic->n_route_max : 4;
                        struct nd_target **route =
                                realloc(topic->route, n * sizeof(struct nd_target *));

                        if (!route)
                                return -ENOMEM;
                        topic->router->n_routes += n - topic->n_route_max;
                        topic->route = route;
                        topic->n_route_max = n;
                }
                topic->route[topic->n_route++] = nd_list_entry(i, struct nd_target, in_pattern);
        }
        return 0;
}

static int route(struct nd_topic *topic)
{
        struct nd_router *router = topic->router;
        const char *segment;
        size_t n_segment;
        size_t i_at = 0;
        size_t n_here;
        int r;

        ++router->stamp;
        n_here = route_reach(router, router->here, 0, router->root);
        if (topic->name[0] == '$')
                n_here = 1; /* the root alone: not even a "**" that stands for nothing leads on */
        for (bool is_first = true;
             nd_topic_next_segment(topic->name, topic->n_name, &i_at, &segment, &n_segment);
             is_first = false) {
                struct nd_pattern **swap = router->here;

                n_here = route_step(router, n_here, segment, n_segment,
                                    is_first && segment[0] == '$');
                router->here = router->next;
                router->next = swap;
        }

        topic->n_route = 0;
        for (size_t i = 0; i < n_here; ++i) {
                r = route_append(topic, router->here[i]);
                if (r < 0)
                        return r;
        }
        topic->generation = router->generation;
        return 0;
}

/* Many topics that each lead to many targets: what is known of the others is found again when it is
 * needed. */
static void router_forget_routes(struct nd_router *router, const struct nd_topic *but)
{
        struct nd_topic *topic;

        RB_FOREACH (topic, nd_topic_tree, &router->topics) {
                if (topic != but)
                        route_forget(topic);
        }
}

int nd_topic_route(struct nd_topic *topic, struct nd_target ***ret_targets, size_t *ret_n)
{
        if (topic->generation != topic->router->generation) {
                int r = route(topic);

                if (r < 0)
                        return r;
                if (topic->router->n_routes > ROUTER_ROUTES_MAX)
                        router_forget_routes(topic->router, topic);
        }
        *ret_targets = topic->route;
        *ret_n = topic->n_route;
        return 0;
}
