/* SPDX-License-Identifier: MIT */

/*
 * Notation: msgpack written as JSON
 *
 * How many members a map or list has is not known before it was read, so each is packed twice: once
 * to nowhere, to count.
 */

#include "tests/support/notation.h"
#include <ctype.h>
#include <msgpack.h>
#include <string.h>
#include "protocol/base.h"

struct notation {
        const char *at;
        msgpack_packer packer;
};

static void notation_value(struct notation *n);

static char notation_peek(struct notation *n)
{
        while (isspace((unsigned char)*n->at))
                ++n->at;
        return *n->at;
}

static void notation_expect(struct notation *n, char c)
{
        if (notation_peek(n) != c) {
                fprintf(stderr, "notation: '%c' expected at: %s\n", c, n->at);
                abort();
        }
        ++n->at;
}

static int notation_write_nowhere(void *data, const char *buf, size_t n_buf)
{
        (void)data;
        (void)buf;
        (void)n_buf;
        return 0;
}

/* Members up to @end; keys and values each count. */
static size_t notation_members(struct notation *n, char end)
{
        size_t n_members = 0;

        while (notation_peek(n) != end) {
                if (n_members)
                        notation_expect(n, ',');
                notation_value(n);
                if (end == '}') {
                        notation_expect(n, ':');
                        notation_value(n);
                }
                ++n_members;
        }
        notation_expect(n, end);
        return n_members;
}

static void notation_container(struct notation *n, char begin, char end)
{
        struct notation dry;
        size_t n_members;

        notation_expect(n, begin);
        dry.at = n->at;
        msgpack_packer_init(&dry.packer, NULL, notation_write_nowhere);
        n_members = notation_members(&dry, end);

        if (end == '}')
                msgpack_pack_map(&n->packer, n_members);
        else
                msgpack_pack_array(&n->packer, n_members);
        notation_members(n, end);
}

static void notation_string(struct notation *n)
{
        const char *end;

        notation_expect(n, '"');
        end = strchr(n->at, '"');
        nd_assert(end);
        msgpack_pack_str(&n->packer, (size_t)(end - n->at));
        msgpack_pack_str_body(&n->packer, n->at, (size_t)(end - n->at));
        n->at = end + 1;
}

static void notation_number(struct notation *n)
{
        size_t n_digits = strspn(n->at, "-0123456789.");
        char *end;

        nd_assert(n_digits > 0);
        if (memchr(n->at, '.', n_digits))
                msgpack_pack_double(&n->packer, strtod(n->at, &end));
        else if (*n->at == '-')
                msgpack_pack_int64(&n->packer, strtoll(n->at, &end, 10));
        else
                msgpack_pack_uint64(&n->packer, strtoull(n->at, &end, 10));
        n->at = end;
}

static bool notation_word(struct notation *n, const char *word)
{
        if (strncmp(n->at, word, strlen(word)) != 0)
                return false;
        n->at += strlen(word);
        return true;
}

static void notation_value(struct notation *n)
{
        switch (notation_peek(n)) {
        case '{':
                notation_container(n, '{', '}');
                break;
        case '[':
                notation_container(n, '[', ']');
                break;
        case '"':
                notation_string(n);
                break;
        default:
                if (notation_word(n, "true"))
                        msgpack_pack_true(&n->packer);
                else if (notation_word(n, "false"))
                        msgpack_pack_false(&n->packer);
                else if (notation_word(n, "null"))
                        msgpack_pack_nil(&n->packer);
                else
                        notation_number(n);
                break;
        }
}

void *nd_notation_pack(const char *text, size_t *ret_n_bytes)
{
        struct notation n = {.at = text};
        msgpack_sbuffer buffer;

        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&n.packer, &buffer, msgpack_sbuffer_write);
        notation_value(&n);
        nd_assert(notation_peek(&n) == '\0');
        *ret_n_bytes = buffer.size;
        return msgpack_sbuffer_release(&buffer);
}
