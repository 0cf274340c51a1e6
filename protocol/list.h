/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Intrusive circular list
 *
 * A node that is on no list points at itself, so unlinking is idempotent: a destructor may unlink
 * without asking. sys/queue.h was considered; its TAILQ_REMOVE is not idempotent.
 */

#include "protocol/base.h"

struct nd_list {
        struct nd_list *next;
        struct nd_list *prev;
};

#define ND_LIST_INIT(_var)                                                                         \
        {                                                                                          \
                &(_var), &(_var)                                                                   \
        }

#define nd_list_entry(_node, _type, _member) nd_container_of(_node, _type, _member)

/* The body must not unlink @_i; the _safe one may. */
#define nd_list_for_each(_i, _list)                                                                \
        for (struct nd_list *_i = (_list)->next; _i != (_list); _i = _i->next)
#define nd_list_for_each_safe(_i, _list)                                                           \
        for (struct nd_list *_i = (_list)->next, *_i##_next = _i->next; _i != (_list);             \
             _i = _i##_next, _i##_next = _i->next)

static inline void nd_list_init(struct nd_list *node)
{
        node->next = node;
        node->prev = node;
}

/* For the list: is it empty? For a node: is it on no list? */
static inline bool nd_list_is_empty(const struct nd_list *node)
{
        return node->next == node;
}

static inline void nd_list_unlink(struct nd_list *node)
{
        node->prev->next = node->next;
        node->next->prev = node->prev;
        nd_list_init(node);
}

/* Puts @node, which must be on no list, before @where; before the head is at the tail. */
static inline void nd_list_insert_before(struct nd_list *where, struct nd_list *node)
{
        node->next = where;
        node->prev = where->prev;
        where->prev->next = node;
        where->prev = node;
}

static inline void nd_list_push_tail(struct nd_list *list, struct nd_list *node)
{
        nd_list_insert_before(list, node);
}

static inline void nd_list_push_head(struct nd_list *list, struct nd_list *node)
{
        nd_list_insert_before(list->next, node);
}

static inline struct nd_list *nd_list_first(const struct nd_list *list)
{
        return nd_list_is_empty(list) ? NULL : list->next;
}

/* Moves all nodes of one list to the tail of another. */
static inline void nd_list_move(struct nd_list *from, struct nd_list *to)
{
        if (nd_list_is_empty(from))
                return;
        from->next->prev = to->prev;
        to->prev->next = from->next;
        from->prev->next = to;
        to->prev = from->prev;
        nd_list_init(from);
}
