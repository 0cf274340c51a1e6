/* SPDX-License-Identifier: MIT */

/*
 * A bounded parser of Python literals
 *
 * The header of an .npy file is the repr() of a dict. NumPy reads it with ast.literal_eval(), which
 * is bounded by nothing but the length; here nodes and depth are bounded, and whatever repr() does
 * not write (floats, None, bytes, names, concatenated strings, comments) is refused with the byte
 * at which it stands.
 *
 * Nodes live in one array and name each other by index, so that it can grow while it is filled.
 * Decoded strings live in one block: a string in the source has two quotes, room for the NUL, and
 * no escape or Latin-1 byte decodes to more than twice its own length.
 */

#include "client/command/literal.h"
#include <string.h>

struct literal_parser {
        const uint8_t *text;
        size_t n_text;
        size_t at;
        bool latin1;
        const char *field;
        struct nd_literal_tree *tree;
        uint32_t n_allocated;
        size_t n_strings;
        struct nd_fault *fault;
};

static int literal_parse_value(struct literal_parser *p, unsigned depth, uint32_t *ret_index);

const char *nd_literal_type_name(enum nd_literal_type type)
{
        switch (type) {
        case ND_LITERAL_STRING:
                return "a string";
        case ND_LITERAL_INTEGER:
                return "an integer";
        case ND_LITERAL_BOOL:
                return "a boolean";
        case ND_LITERAL_TUPLE:
                return "a tuple";
        case ND_LITERAL_LIST:
                return "a list";
        case ND_LITERAL_DICT:
                return "a dict";
        }
        return "?";
}

static int literal_refuse(struct literal_parser *p, const char *what)
{
        if (p->at >= p->n_text)
                return nd_fault_set(p->fault, NDBUS_ECORRUPT, p->field, "ends where %s is expected",
                                    what);
        return nd_fault_set(p->fault, NDBUS_ECORRUPT, p->field,
                            "byte %zu is 0x%02x where %s is expected", p->at, p->text[p->at], what);
}

static void literal_skip_space(struct literal_parser *p)
{
        while (p->at < p->n_text && p->text[p->at] && strchr(" \t\r\n\f", p->text[p->at]))
                ++p->at;
}

static bool literal_take(struct literal_parser *p, char c)
{
        literal_skip_space(p);
        if (p->at >= p->n_text || p->text[p->at] != (uint8_t)c)
                return false;
        ++p->at;
        return true;
}

/* A word that no letter, digit or underscore continues. */
static bool literal_take_word(struct literal_parser *p, const char *word)
{
        size_t n = strlen(word);

        if (p->n_text - p->at < n || memcmp(p->text + p->at, word, n) != 0)
                return false;
        if (p->at + n < p->n_text) {
                uint8_t c = p->text[p->at + n];

                if (c == '_' || c >= 0x80 || (c >= '0' && c <= '9') ||
                    ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
                        return false;
        }
        p->at += n;
        return true;
}

static int literal_add(struct literal_parser *p, enum nd_literal_type type, uint32_t *ret_index)
{
        struct nd_literal_tree *tree = p->tree;

        if (tree->n_nodes >= ND_LITERAL_NODES_MAX)
                return nd_fault_set_limit(p->fault, NDBUS_ELIMIT, p->field, tree->n_nodes + 1u,
                                          ND_LITERAL_NODES_MAX, "values");
        if (tree->n_nodes == p->n_allocated) {
                uint32_t n = p->n_allocated ? p->n_allocated * 2 : 64;
                struct nd_literal *nodes = reallocarray(tree->nodes, n, sizeof(*nodes));

                if (!nodes)
                        return nd_fault_set(p->fault, NDBUS_ENOMEM, p->field, "out of memory");
                tree->nodes = nodes;
                p->n_allocated = n;
        }
        tree->nodes[tree->n_nodes] = (struct nd_literal){.type = type, .at = p->at};
        *ret_index = tree->n_nodes++;
        return 0;
}

static void literal_put(struct literal_parser *p, uint32_t code)
{
        char *out = p->tree->strings + p->n_strings;

        if (code < 0x80) {
                out[0] = (char)code;
                p->n_strings += 1;
        } else if (code < 0x800) {
                out[0] = (char)(0xc0 | code >> 6);
                out[1] = (char)(0x80 | (code & 0x3f));
                p->n_strings += 2;
        } else if (code < 0x10000) {
                out[0] = (char)(0xe0 | code >> 12);
                out[1] = (char)(0x80 | (code >> 6 & 0x3f));
                out[2] = (char)(0x80 | (code & 0x3f));
                p->n_strings += 3;
        } else {
                out[0] = (char)(0xf0 | code >> 18);
                out[1] = (char)(0x80 | (code >> 12 & 0x3f));
                out[2] = (char)(0x80 | (code >> 6 & 0x3f));
                out[3] = (char)(0x80 | (code & 0x3f));
                p->n_strings += 4;
        }
}

static int literal_take_hex(struct literal_parser *p, unsigned n_digits, uint32_t *ret_code)
{
        uint32_t code = 0;

        for (unsigned i = 0; i < n_digits; ++i, ++p->at) {
                uint8_t c = p->at < p->n_text ? p->text[p->at] : 0;
                uint8_t lower = c | 0x20;

                if (c >= '0' && c <= '9')
                        code = code << 4 | (uint32_t)(c - '0');
                else if (lower >= 'a' && lower <= 'f')
                        code = code << 4 | (uint32_t)(lower - 'a' + 10);
                else
                        return literal_refuse(p, "a hexadecimal digit");
        }
        *ret_code = code;
        return 0;
}

/* Behind the backslash. */
static int literal_take_escape(struct literal_parser *p, uint32_t *ret_code)
{
        static const char letters[] = "\\'\"nrtabfv";
        static const char codes[] = "\\'\"\n\r\t\a\b\f\v";
        uint8_t c = p->at < p->n_text ? p->text[p->at] : 0;
        const char *letter = c ? strchr(letters, c) : NULL;

        if (letter) {
                ++p->at;
                *ret_code = (uint8_t)codes[letter - letters];
                return 0;
        }
        if (c == 'x' || c == 'u' || c == 'U') {
                ++p->at;
                return literal_take_hex(p, c == 'x' ? 2 : c == 'u' ? 4 : 8, ret_code);
        }
        return literal_refuse(p, "an escape that repr() writes");
}

/* One UTF-8 sequence, neither overlong nor a surrogate. */
static int literal_take_utf8(struct literal_parser *p, uint32_t *ret_code)
{
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        const uint8_t *s = p->text + p->at;
        unsigned n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
        uint32_t code;

        if (s[0] < 0xc2 || s[0] > 0xf4 || p->n_text - p->at < n)
                return literal_refuse(p, "UTF-8");
        code = s[0] & (0x7fu >> n);
        for (unsigned i = 1; i < n; ++i) {
                if ((s[i] & 0xc0) != 0x80)
                        return literal_refuse(p, "UTF-8");
                code = code << 6 | (s[i] & 0x3f);
        }
        if (code < least[n])
                return literal_refuse(p, "UTF-8");
        p->at += n;
        *ret_code = code;
        return 0;
}

static int literal_take_char(struct literal_parser *p, uint32_t *ret_code)
{
        uint8_t c = p->text[p->at];

        if (c == '\\') {
                ++p->at;
                return literal_take_escape(p, ret_code);
        }
        if (c >= 0x80 && !p->latin1)
                return literal_take_utf8(p, ret_code);
        if (c == '\n' || c == '\r')
                return literal_refuse(p, "the end of the string");
        ++p->at;
        *ret_code = c;
        return 0;
}

static int literal_parse_string(struct literal_parser *p, uint32_t *ret_index)
{
        struct nd_literal *node;
        uint8_t quote = p->text[p->at];
        size_t start = p->n_strings;
        int r;

        r = literal_add(p, ND_LITERAL_STRING, ret_index);
        if (r)
                return r;
        ++p->at;

        while (p->at < p->n_text && p->text[p->at] != quote) {
                size_t at = p->at;
                uint32_t code = 0;

                r = literal_take_char(p, &code);
                if (r)
                        return r;
                if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
                        p->at = at;
                        return literal_refuse(p, "a character other than NUL and surrogates");
                }
                literal_put(p, code);
        }
        if (p->at >= p->n_text)
                return literal_refuse(p, "a closing quote");
        ++p->at;

        node = &p->tree->nodes[*ret_index];
        node->string = p->tree->strings + start;
        node->n_string = p->n_strings - start;
        p->tree->strings[p->n_strings++] = '\0';
        return 0;
}

static int literal_parse_integer(struct literal_parser *p, uint32_t *ret_index)
{
        bool negative = p->text[p->at] == '-';
        int64_t value = 0;
        size_t start;
        int r;

        r = literal_add(p, ND_LITERAL_INTEGER, ret_index);
        if (r)
                return r;
        p->at += negative;
        start = p->at;

        for (; p->at < p->n_text && p->text[p->at] >= '0' && p->text[p->at] <= '9'; ++p->at) {
                int digit = p->text[p->at] - '0';

                if (nd_mul_overflow(value, 10, &value) ||
                    nd_add_overflow(value, negative ? -digit : digit, &value))
                        return literal_refuse(p, "a number that fits 64 bits");
        }
        if (p->at == start)
                return literal_refuse(p, "a digit");
        if (p->at < p->n_text && p->text[p->at] == 'L') /* Python 2 wrote (3L,) */
                ++p->at;
        p->tree->nodes[*ret_index].integer = value;
        return 0;
}

static void
literal_append(struct literal_parser *p, uint32_t parent, uint32_t *last, uint32_t child)
{
        if (*last)
                p->tree->nodes[*last].next = child;
        else
                p->tree->nodes[parent].first = child;
        *last = child;
        ++p->tree->nodes[parent].n_children;
}

/* Behind the opening bracket, up to and with the closing one. */
static int literal_parse_items(
        struct literal_parser *p, unsigned depth, uint32_t parent, char close, bool *ret_comma)
{
        bool is_dict = p->tree->nodes[parent].type == ND_LITERAL_DICT;
        uint32_t last = 0, child;
        bool comma = true;
        int r;

        while (!literal_take(p, close)) {
                if (!comma)
                        return literal_refuse(p, "a comma");
                r = literal_parse_value(p, depth + 1, &child);
                if (r)
                        return r;
                literal_append(p, parent, &last, child);

                if (is_dict) {
                        if (!literal_take(p, ':'))
                                return literal_refuse(p, "a colon");
                        r = literal_parse_value(p, depth + 1, &child);
                        if (r)
                                return r;
                        literal_append(p, parent, &last, child);
                }
                comma = literal_take(p, ',');
        }
        *ret_comma = comma;
        return 0;
}

static int literal_parse_brackets(struct literal_parser *p, unsigned depth, uint32_t *ret_index)
{
        char open = (char)p->text[p->at];
        char close = open == '(' ? ')' : open == '[' ? ']' : '}';
        enum nd_literal_type type = open == '('   ? ND_LITERAL_TUPLE
                                    : open == '[' ? ND_LITERAL_LIST
                                                  : ND_LITERAL_DICT;
        bool comma = false;
        int r;

        if (depth >= ND_LITERAL_DEPTH_MAX)
                return nd_fault_set_limit(p->fault, NDBUS_ELIMIT, p->field, depth + 1u,
                                          ND_LITERAL_DEPTH_MAX, "levels");
        r = literal_add(p, type, ret_index);
        if (r)
                return r;
        ++p->at;

        r = literal_parse_items(p, depth, *ret_index, close, &comma);
        if (r)
                return r;
        /* (3) is the number 3, no tuple; the header never has it */
        if (type == ND_LITERAL_TUPLE && p->tree->nodes[*ret_index].n_children == 1 && !comma) {
                --p->at;
                return literal_refuse(p, "the comma of a tuple of one");
        }
        return 0;
}

static int literal_parse_value(struct literal_parser *p, unsigned depth, uint32_t *ret_index)
{
        uint8_t c;
        int r;

        literal_skip_space(p);
        c = p->at < p->n_text ? p->text[p->at] : 0;

        if (c == '\'' || c == '"')
                return literal_parse_string(p, ret_index);
        if (c == '(' || c == '[' || c == '{')
                return literal_parse_brackets(p, depth, ret_index);
        if (c == '-' || (c >= '0' && c <= '9'))
                return literal_parse_integer(p, ret_index);
        if (c == 'T' || c == 'F') {
                bool value = c == 'T';

                if (!literal_take_word(p, value ? "True" : "False"))
                        return literal_refuse(p, "a value");
                r = literal_add(p, ND_LITERAL_BOOL, ret_index);
                if (r)
                        return r;
                p->tree->nodes[*ret_index].integer = value;
                return 0;
        }
        return literal_refuse(p, "a value");
}

int nd_literal_parse(const char *text,
                     size_t n_text,
                     bool latin1,
                     const char *field,
                     struct nd_literal_tree **ret_tree,
                     struct nd_fault *fault)
{
        nd_cleanup(nd_literal_tree_freep) struct nd_literal_tree *tree = NULL;
        struct literal_parser p;
        size_t n_strings;
        uint32_t root;
        int r;

        if (nd_mul_overflow(n_text, 2, &n_strings) || nd_add_overflow(n_strings, 1, &n_strings))
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "out of memory");
        tree = calloc(1, sizeof(*tree));
        if (!tree)
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "out of memory");
        tree->strings = malloc(n_strings);
        if (!tree->strings)
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "out of memory");

        p = (struct literal_parser){
                .text = (const uint8_t *)text,
                .n_text = n_text,
                .latin1 = latin1,
                .field = field,
                .tree = tree,
                .fault = fault,
        };
        r = literal_parse_value(&p, 0, &root);
        if (r)
                return r;
        literal_skip_space(&p);
        if (p.at < p.n_text)
                return literal_refuse(&p, "the end");

        *ret_tree = nd_steal(tree);
        return 0;
}

struct nd_literal_tree *nd_literal_tree_free(struct nd_literal_tree *tree)
{
        if (tree) {
                free(tree->nodes);
                free(tree->strings);
                free(tree);
        }
        return NULL;
}
