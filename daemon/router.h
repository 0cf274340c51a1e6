/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Router: from a topic to the targets whose patterns match it
 *
 * It knows topics, patterns and targets; what a target is, a subscription or a group, is the
 * business of those who embed struct nd_target.
 */

#include <bsd/sys/tree.h>
#include "protocol/list.h"

struct nd_account;
struct nd_header_bytes;
struct nd_message;
struct nd_rights;
struct nd_router;

struct nd_target {
        struct nd_list in_pattern; /* nd_pattern.targets */
        struct nd_pattern *pattern;
        const struct nd_rights *rights; /* topics that it may not see are kept from it; or NULL */
};

/* A topic that somebody uses: publishes on, watches, or has retained a value for. */
struct nd_topic {
        RB_ENTRY(nd_topic) in_router;
        struct nd_router *router;
        uint32_t n_refs;
        struct nd_target **route; /* [n_route], in no order; valid for @generation */
        size_t n_route;
        size_t n_route_max;
        uint64_t generation;
        struct nd_message *retained;    /* reference, or NULL */
        struct nd_account *retained_by; /* reference: it is counted there; NULL with it */
        struct nd_list watches;         /* nd_watch.in_topic */
        struct nd_list in_watched;      /* nd_router.watched, while there are watches */
        struct nd_header_bytes *header; /* reference; of the last message, for STATS; or NULL */
        uint64_t n_messages;
        uint64_t n_bytes;
        size_t n_name;
        char name[]; /* NUL-terminated */
};

RB_HEAD(nd_topic_tree, nd_topic);
RB_HEAD(nd_pattern_tree, nd_pattern);

/* A node of the trie of patterns: one segment. */
struct nd_pattern {
        RB_ENTRY(nd_pattern) in_parent;
        struct nd_pattern *parent;
        struct nd_pattern_tree children; /* literal segments */
        struct nd_pattern *star;         /* "*" */
        struct nd_pattern *globstar;     /* "**" */
        struct nd_list targets;
        uint64_t stamp; /* last matching step that visited it */
        bool is_globstar;
        size_t n_segment;
        char segment[];
};

struct nd_router {
        struct nd_topic_tree topics;
        size_t n_topics;
        struct nd_list watched; /* topics with watches */
        struct nd_pattern *root;
        size_t n_patterns;
        uint64_t
                generation; /* raised whenever a target comes, goes, or may see other topics: routes
                                are stale then */
        uint64_t stamp;
        struct nd_pattern **here; /* [n_sets_max] scratch of matching, large enough for all nodes */
        struct nd_pattern **next;
        size_t n_sets_max;
        size_t n_routes; /* places in the routes of all topics */
};

/* Return: 0, -ENOMEM */
int nd_router_init(struct nd_router *router);
/* All targets and topic references must be gone. */
void nd_router_deinit(struct nd_router *router);

/**
 * nd_router_add() - a target begins to receive
 * @pattern:  checked by nd_pattern_check()
 *
 * Return: 0, -ENOMEM
 */
int nd_router_add(struct nd_router *router,
                  const char *pattern,
                  size_t n_pattern,
                  struct nd_target *target);
void nd_router_remove(struct nd_router *router, struct nd_target *target);

/* Most bytes that nd_router_add() of this pattern can take. */
uint64_t nd_router_pattern_cost(const char *pattern, size_t n_pattern);

/* The topic of this checked name, made if it is new; a reference. NULL: no memory. */
struct nd_topic *nd_router_topic(struct nd_router *router, const char *name, size_t n_name);
struct nd_topic *nd_topic_ref(struct nd_topic *topic);
struct nd_topic *nd_topic_unref(struct nd_topic *topic);

/**
 * nd_topic_route() - the targets that match now
 * @ret_targets:  [*@ret_n], valid until a target is added or removed
 *
 * Return: 0, -ENOMEM
 */
int nd_topic_route(struct nd_topic *topic, struct nd_target ***ret_targets, size_t *ret_n);

RB_PROTOTYPE(nd_topic_tree, nd_topic, in_router, nd_topic_compare)
