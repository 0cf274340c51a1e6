/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Literals: the piece of Python's syntax that the header of an .npy file is written in
 *
 * Strings, integers, booleans, tuples, lists and dicts of these; no names, no calls, no arithmetic,
 * nothing that is evaluated.
 */

#include "protocol/fault.h"

/* Nodes of one text: a record of ND_FIELDS_MAX fields needs some eight each. */
#define ND_LITERAL_NODES_MAX 65536u
#define ND_LITERAL_DEPTH_MAX 32u

enum nd_literal_type {
        ND_LITERAL_STRING,
        ND_LITERAL_INTEGER,
        ND_LITERAL_BOOL,
        ND_LITERAL_TUPLE,
        ND_LITERAL_LIST,
        ND_LITERAL_DICT, /* children: key, value, key, value ... */
};

struct nd_literal {
        enum nd_literal_type type;
        uint32_t n_children;
        uint32_t first;     /* index of the first child; 0: none, as the root is nobody's child */
        uint32_t next;      /* index of the next sibling; 0: none */
        int64_t integer;    /* INTEGER; BOOL: 0 or 1 */
        const char *string; /* STRING: UTF-8, NUL-terminated, no NUL inside */
        size_t n_string;
        size_t at; /* where in the text, for messages */
};

struct nd_literal_tree {
        struct nd_literal *nodes; /* [n_nodes]; 0 is the root */
        uint32_t n_nodes;
        char *strings;
};

/**
 * nd_literal_parse() - parse one literal
 * @text:    [@n_text] bytes; white space around the literal is passed over
 * @latin1:  bytes above 127 are Latin-1; else UTF-8
 * @field:   what to call it in @fault
 *
 * Return: 0; NDBUS_ECORRUPT with the byte; NDBUS_ELIMIT; NDBUS_ENOMEM
 */
int nd_literal_parse(const char *text,
                     size_t n_text,
                     bool latin1,
                     const char *field,
                     struct nd_literal_tree **ret_tree,
                     struct nd_fault *fault);

/* Accepts NULL; returns NULL. */
struct nd_literal_tree *nd_literal_tree_free(struct nd_literal_tree *tree);

ND_DEFINE_CLEANUP(struct nd_literal_tree *, nd_literal_tree_free);

/* Both accept NULL and return NULL where there is none. */
static inline const struct nd_literal *nd_literal_first(const struct nd_literal_tree *tree,
                                                        const struct nd_literal *node)
{
        return node && node->first ? &tree->nodes[node->first] : NULL;
}

static inline const struct nd_literal *nd_literal_next(const struct nd_literal_tree *tree,
                                                       const struct nd_literal *node)
{
        return node && node->next ? &tree->nodes[node->next] : NULL;
}

/* "a string", for messages */
const char *nd_literal_type_name(enum nd_literal_type type);
