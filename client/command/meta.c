/* SPDX-License-Identifier: MIT */

/*
 * meta as text
 *
 * Bytes from outside go through nd_scan() first, which bounds depth and counts, so that msgpack-c
 * allocates no more than they are worth and the recursion here is shallow. JSON is written by hand
 * because what must be guaranteed, that a peer's strings never move a cursor or break the line, is
 * the larger part of it.
 */

#include "client/command/meta.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>
#include "protocol/scan.h"
#include "protocol/utf8.h"

static void meta_write_object(FILE *out, const msgpack_object *object);

static bool meta_is_integer(const char *s)
{
        s += *s == '-';
        if (!*s)
                return false;
        return s[strspn(s, "0123456789")] == '\0';
}

/* "1.5", "-.5", "2e9": decimal, with a point or an exponent. */
static bool meta_is_float(const char *s)
{
        size_t n_digits;

        s += *s == '-';
        n_digits = strspn(s, "0123456789");
        s += n_digits;
        if (*s == '.') {
                size_t n = strspn(s + 1, "0123456789");

                n_digits += n;
                s += 1 + n;
        }
        if (n_digits && (*s == 'e' || *s == 'E')) {
                ++s;
                s += *s == '-' || *s == '+';
                if (!*s)
                        return false;
                s += strspn(s, "0123456789");
        }
        return n_digits && !*s;
}

static void meta_pack_string(msgpack_packer *packer, const char *text, size_t n)
{
        msgpack_pack_str(packer, n);
        msgpack_pack_str_body(packer, text, n);
}

static void meta_pack_value(msgpack_packer *packer, const char *value)
{
        size_t n = strlen(value);

        if (meta_is_integer(value)) {
                char *end;

                errno = 0;
                if (*value == '-') {
                        long long number = strtoll(value, &end, 10);

                        if (!errno) {
                                msgpack_pack_int64(packer, number);
                                return;
                        }
                } else {
                        unsigned long long number = strtoull(value, &end, 10);

                        if (!errno) {
                                msgpack_pack_uint64(packer, number);
                                return;
                        }
                }
        }
        if (meta_is_float(value))
                msgpack_pack_double(packer, strtod(value, NULL));
        else if (strcmp(value, "true") == 0)
                msgpack_pack_true(packer);
        else if (strcmp(value, "false") == 0)
                msgpack_pack_false(packer);
        else if (n >= 2 && value[0] == '"' && value[n - 1] == '"')
                meta_pack_string(packer, value + 1, n - 2);
        else
                meta_pack_string(packer, value, n);
}

static int meta_check(const struct nd_option_list *list, size_t i, struct nd_fault *fault)
{
        const char *item = list->items[i], *equals = strchr(item, '=');

        if (!equals || equals == item)
                return nd_fault_set(fault, NDBUS_EINVAL, "--meta",
                                    "'%.60s' is no KEY=VALUE; exposure=0.5 would be one", item);
        if (!nd_utf8_is_valid(item, strlen(item)))
                return nd_fault_set(fault, NDBUS_EINVAL, "--meta", "'%.60s' is not UTF-8", item);
        for (size_t k = 0; k < i; ++k)
                if (strncmp(list->items[k], item, (size_t)(equals - item) + 1) == 0)
                        return nd_fault_set(fault, NDBUS_EINVAL, "--meta",
                                            "the key '%.*s' is there twice",
                                            (int)(equals - item < 60 ? equals - item : 60), item);
        return 0;
}

int nd_meta_pack(const struct nd_option_list *list,
                 void **ret_data,
                 size_t *ret_n_data,
                 struct nd_fault *fault)
{
        msgpack_sbuffer buffer;
        msgpack_packer packer;

        for (size_t i = 0; i < list->n; ++i) {
                int r = meta_check(list, i, fault);

                if (r)
                        return r;
        }
        if (list->n == 0) {
                *ret_data = NULL;
                *ret_n_data = 0;
                return 0;
        }
        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
        msgpack_pack_map(&packer, list->n);
        for (size_t i = 0; i < list->n; ++i) {
                const char *item = list->items[i], *equals = strchr(item, '=');

                meta_pack_string(&packer, item, equals ? (size_t)(equals - item) : 0);
                meta_pack_value(&packer, equals ? equals + 1 : "");
        }
        if (!buffer.data)
                return nd_fault_set(fault, NDBUS_ENOMEM, "--meta", "out of memory");
        *ret_n_data = buffer.size;
        *ret_data = msgpack_sbuffer_release(&buffer);
        return 0;
}

/* Bytes of the UTF-8 sequence at s, 0 if it is none. */
static size_t meta_utf8_bytes(const uint8_t *s, size_t n)
{
        size_t want = *s < 0x80 ? 1 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : 4;

        return want <= n && nd_utf8_is_valid((const char *)s, want) ? want : 0;
}

static void meta_write_string(FILE *out, const char *text, size_t n_text)
{
        const uint8_t *s = (const uint8_t *)text;

        fputc('"', out);
        for (size_t i = 0, n; i < n_text; i += n) {
                n = meta_utf8_bytes(s + i, n_text - i);
                if (n == 0) {
                        n = 1;
                        fprintf(out, "\\u00%02x", s[i]);
                } else if (s[i] == '"' || s[i] == '\\') {
                        fprintf(out, "\\%c", s[i]);
                } else if (s[i] < 0x20 || s[i] == 0x7f) {
                        fprintf(out, "\\u%04x", s[i]);
                } else if (n == 2 && s[i] == 0xc2 && s[i + 1] < 0xa0) { /* C1 controls */
                        fprintf(out, "\\u%04x", s[i + 1]);
                } else {
                        fwrite(s + i, 1, n, out);
                }
        }
        fputc('"', out);
}

static void meta_write_hex(FILE *out, const char *bytes, size_t n)
{
        fputs("\"hex:", out);
        for (size_t i = 0; i < n; ++i)
                fprintf(out, "%02x", (unsigned char)bytes[i]);
        fputc('"', out);
}

/* JSON's keys are strings. */
static void meta_write_key(FILE *out, const msgpack_object *key)
{
        char *text = NULL;
        size_t n = 0;
        FILE *stream;

        if (key->type == MSGPACK_OBJECT_STR) {
                meta_write_string(out, key->via.str.ptr, key->via.str.size);
                return;
        }
        stream = open_memstream(&text, &n);
        if (stream) {
                meta_write_object(stream, key);
                fclose(stream);
        }
        meta_write_string(out, text ? text : "?", text ? n : 1);
        free(text);
}

static void meta_write_map(FILE *out, const msgpack_object_map *map)
{
        fputc('{', out);
        for (uint32_t i = 0; i < map->size; ++i) {
                if (i)
                        fputs(", ", out);
                meta_write_key(out, &map->ptr[i].key);
                fputs(": ", out);
                meta_write_object(out, &map->ptr[i].val);
        }
        fputc('}', out);
}

static void meta_write_double(FILE *out, double value)
{
        char text[40];

        if (!isfinite(value)) {
                fputs("null", out);
                return;
        }
        snprintf(text, sizeof(text), "%.15g", value);
        if (strtod(text, NULL) != value)
                snprintf(text, sizeof(text), "%.17g", value);
        fputs(text, out);
        if (!strpbrk(text, ".e"))
                fputs(".0", out);
}

static void meta_write_object(FILE *out, const msgpack_object *object)
{
        switch (object->type) {
        case MSGPACK_OBJECT_BOOLEAN:
                fputs(object->via.boolean ? "true" : "false", out);
                break;
        case MSGPACK_OBJECT_POSITIVE_INTEGER:
                fprintf(out, "%" PRIu64, object->via.u64);
                break;
        case MSGPACK_OBJECT_NEGATIVE_INTEGER:
                fprintf(out, "%" PRId64, object->via.i64);
                break;
        case MSGPACK_OBJECT_FLOAT32:
        case MSGPACK_OBJECT_FLOAT64:
                meta_write_double(out, object->via.f64);
                break;
        case MSGPACK_OBJECT_STR:
                meta_write_string(out, object->via.str.ptr, object->via.str.size);
                break;
        case MSGPACK_OBJECT_BIN:
                meta_write_hex(out, object->via.bin.ptr, object->via.bin.size);
                break;
        case MSGPACK_OBJECT_EXT:
                meta_write_hex(out, object->via.ext.ptr, object->via.ext.size);
                break;
        case MSGPACK_OBJECT_ARRAY:
                fputc('[', out);
                for (uint32_t i = 0; i < object->via.array.size; ++i) {
                        if (i)
                                fputs(", ", out);
                        meta_write_object(out, &object->via.array.ptr[i]);
                }
                fputc(']', out);
                break;
        case MSGPACK_OBJECT_MAP:
                meta_write_map(out, &object->via.map);
                break;
        case MSGPACK_OBJECT_NIL:
        default:
                fputs("null", out);
                break;
        }
}

int nd_meta_write_json(FILE *out, const void *data, size_t n_data, struct nd_fault *fault)
{
        msgpack_unpacked unpacked;
        size_t offset = 0;
        int r;

        r = nd_scan(data, n_data, ND_SCAN_META, "meta", fault);
        if (r)
                return r;
        msgpack_unpacked_init(&unpacked);
        if (msgpack_unpack_next(&unpacked, data, n_data, &offset) != MSGPACK_UNPACK_SUCCESS) {
                msgpack_unpacked_destroy(&unpacked);
                return nd_fault_set(fault, NDBUS_EMETA, "meta", "cannot be read");
        }
        meta_write_object(out, &unpacked.data);
        msgpack_unpacked_destroy(&unpacked);
        return 0;
}
