/* SPDX-License-Identifier: MIT */

/*
 * Bounded scan of msgpack
 *
 * One number makes the scan safe: how many objects are still owed. It begins at one; an object that
 * arrives takes one off, an array of n puts n on, a map of n puts 2n on. As every object takes at
 * least one byte, more objects owed than bytes left means that the bytes cannot be whole, and that
 * is known before anything has been believed. So the scan takes as many steps as there are bytes
 * at most, whatever the counts say, and msgpack-c afterwards makes no more objects than there were
 * bytes.
 *
 * Maps whose keys the protocol defines (the header, its frames, their fields) are strict: keys are
 * short strings, few, and none twice, because two readers of {"a": 1, "a": 2} need not agree. They
 * nest in lists only, so that a strict map stands at an odd depth and there are few of them at once.
 */

#include "protocol/scan.h"
#include <string.h>

#define SCAN_STRICT_N ((ND_SCAN_DEPTH_MAX + 1) / 2)

enum scan_type {
        SCAN_OTHER,
        SCAN_STRING,
        SCAN_ARRAY,
        SCAN_MAP,
        SCAN_NEVER, /* 0xc1 */
};

/* What an array or map, or the value behind a key, is to the protocol. */
enum scan_role {
        SCAN_FREE,
        SCAN_HEADER,
        SCAN_FRAME_LIST,
        SCAN_FRAME,
        SCAN_FIELD_LIST,
        SCAN_FIELD,
};

/* One object: @n_payload bytes follow its head, then @n_children objects. */
struct scan_object {
        enum scan_type type;
        uint64_t n_payload;
        uint64_t n_children;
};

struct scan_level {
        uint64_t owed; /* objects still to come on this level */
        bool is_map;
        enum scan_role role;
        enum scan_role value_role; /* of the value behind the key that was read last */
        uint32_t n_keys;
};

struct scan_key {
        const uint8_t *at;
        size_t n;
};

struct scan {
        const uint8_t *data;
        size_t n_data;
        size_t at;
        const char *field;
        int code;
        struct nd_fault *fault;
        size_t depth; /* levels in use */
        struct scan_level levels[ND_SCAN_DEPTH_MAX];
        struct scan_key keys[SCAN_STRICT_N][ND_MAP_KEYS_MAX];
};

static uint64_t scan_load_be(const uint8_t *p, size_t n)
{
        uint64_t v = 0;

        for (size_t i = 0; i < n; ++i)
                v = v << 8 | p[i];
        return v;
}

/* Objects 0xc0 to 0xdf: bytes of the length that follows, or of a fixed payload. */
struct scan_head {
        enum scan_type type;
        uint8_t n_length; /* bytes of a big-endian length or count */
        uint8_t n_fixed;  /* payload bytes besides */
};

static const struct scan_head scan_heads[32] = {
        {SCAN_OTHER, 0, 0},  /* c0 nil */
        {SCAN_NEVER, 0, 0},  /* c1 */
        {SCAN_OTHER, 0, 0},  /* c2 false */
        {SCAN_OTHER, 0, 0},  /* c3 true */
        {SCAN_OTHER, 1, 0},  /* c4 bin */
        {SCAN_OTHER, 2, 0},  /* c5 */
        {SCAN_OTHER, 4, 0},  /* c6 */
        {SCAN_OTHER, 1, 1},  /* c7 ext, a type byte besides */
        {SCAN_OTHER, 2, 1},  /* c8 */
        {SCAN_OTHER, 4, 1},  /* c9 */
        {SCAN_OTHER, 0, 4},  /* ca float */
        {SCAN_OTHER, 0, 8},  /* cb */
        {SCAN_OTHER, 0, 1},  /* cc unsigned */
        {SCAN_OTHER, 0, 2},  /* cd */
        {SCAN_OTHER, 0, 4},  /* ce */
        {SCAN_OTHER, 0, 8},  /* cf */
        {SCAN_OTHER, 0, 1},  /* d0 signed */
        {SCAN_OTHER, 0, 2},  /* d1 */
        {SCAN_OTHER, 0, 4},  /* d2 */
        {SCAN_OTHER, 0, 8},  /* d3 */
        {SCAN_OTHER, 0, 2},  /* d4 ext of a fixed length, and its type byte */
        {SCAN_OTHER, 0, 3},  /* d5 */
        {SCAN_OTHER, 0, 5},  /* d6 */
        {SCAN_OTHER, 0, 9},  /* d7 */
        {SCAN_OTHER, 0, 17}, /* d8 */
        {SCAN_STRING, 1, 0}, /* d9 */
        {SCAN_STRING, 2, 0}, /* da */
        {SCAN_STRING, 4, 0}, /* db */
        {SCAN_ARRAY, 2, 0},  /* dc */
        {SCAN_ARRAY, 4, 0},  /* dd */
        {SCAN_MAP, 2, 0},    /* de */
        {SCAN_MAP, 4, 0},    /* df */
};

/*
 * Reads the head of the object at scan->at and moves behind it. False if the bytes end within the
 * head; the payload may still be missing.
 */
static bool scan_read_head(struct scan *scan, struct scan_object *ret)
{
        uint8_t byte = scan->data[scan->at++];
        const struct scan_head *head;
        uint64_t n = 0;

        *ret = (struct scan_object){.type = SCAN_OTHER};

        if (byte < 0x80 || byte >= 0xe0)
                return true;
        if (byte < 0x90) {
                *ret = (struct scan_object){.type = SCAN_MAP, .n_children = 2 * (byte & 0x0fu)};
                return true;
        }
        if (byte < 0xa0) {
                *ret = (struct scan_object){.type = SCAN_ARRAY, .n_children = byte & 0x0fu};
                return true;
        }
        if (byte < 0xc0) {
                *ret = (struct scan_object){.type = SCAN_STRING, .n_payload = byte & 0x1fu};
                return true;
        }

        head = &scan_heads[byte - 0xc0];
        if (head->n_length > scan->n_data - scan->at)
                return false;
        n = scan_load_be(scan->data + scan->at, head->n_length);
        scan->at += head->n_length;

        ret->type = head->type;
        if (head->type == SCAN_ARRAY)
                ret->n_children = n;
        else if (head->type == SCAN_MAP)
                ret->n_children = 2 * n;
        else
                ret->n_payload = n + head->n_fixed;
        return true;
}

static bool scan_key_is(const struct scan_key *key, const char *name)
{
        return key->n == strlen(name) && memcmp(key->at, name, key->n) == 0;
}

static enum scan_role scan_value_role(enum scan_role map_role, const struct scan_key *key)
{
        if (map_role == SCAN_HEADER)
                return scan_key_is(key, "frames") ? SCAN_FRAME_LIST : SCAN_FREE;
        return scan_key_is(key, "fields") ? SCAN_FIELD_LIST : SCAN_FREE;
}

/* The string at scan->at is a key of the strict map on the innermost level. */
static int scan_check_key(struct scan *scan, size_t at, const struct scan_object *object)
{
        struct scan_level *level = &scan->levels[scan->depth - 1];
        struct scan_key *keys = scan->keys[(scan->depth - 1) / 2];
        struct scan_key key = {scan->data + scan->at, (size_t)object->n_payload};

        if (object->type != SCAN_STRING)
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: a key is not a string", at);
        if (key.n > ND_KEY_BYTES_MAX)
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: a key has %zu bytes, the limit is %u", at, key.n,
                                    ND_KEY_BYTES_MAX);
        for (uint32_t i = 0; i < level->n_keys; ++i) {
                if (keys[i].n == key.n && memcmp(keys[i].at, key.at, key.n) == 0)
                        return nd_fault_set(scan->fault, scan->code, scan->field,
                                            "byte %zu: key \"%.*s\" stands twice in a map", at,
                                            (int)key.n, (const char *)key.at);
        }

        keys[level->n_keys++] = key;
        level->value_role = scan_value_role(level->role, &key);
        return 0;
}

/* What the object that comes next is to the protocol; keys are of no interest here. */
static enum scan_role scan_next_role(const struct scan *scan)
{
        const struct scan_level *level = &scan->levels[scan->depth - 1];

        if (level->is_map)
                return level->value_role;
        if (level->role == SCAN_FRAME_LIST)
                return SCAN_FRAME;
        if (level->role == SCAN_FIELD_LIST)
                return SCAN_FIELD;
        return SCAN_FREE;
}

static bool scan_is_strict(const struct scan_level *level)
{
        return level->is_map && (level->role == SCAN_HEADER || level->role == SCAN_FRAME ||
                                 level->role == SCAN_FIELD);
}

/* Goes into an array or map whose head stood at @at. */
static int
scan_enter(struct scan *scan, size_t at, const struct scan_object *object, enum scan_role role)
{
        bool is_map = object->type == SCAN_MAP;
        bool is_list_role = role == SCAN_FRAME_LIST || role == SCAN_FIELD_LIST;
        struct scan_level *level;

        if (scan->depth == ND_SCAN_DEPTH_MAX)
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: deeper than %u levels", at, ND_SCAN_DEPTH_MAX);

        level = &scan->levels[scan->depth++];
        *level = (struct scan_level){
                .owed = object->n_children,
                .is_map = is_map,
                .role = is_map == is_list_role ? SCAN_FREE : role,
        };
        if (scan_is_strict(level) && object->n_children / 2 > ND_MAP_KEYS_MAX)
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: a map has %llu keys, the limit is %u", at,
                                    (unsigned long long)object->n_children / 2, ND_MAP_KEYS_MAX);
        return 0;
}

/* Takes the next object, which is the @top one or one of the innermost level. */
static int scan_object(struct scan *scan, uint64_t *owed, enum scan_role top_role)
{
        struct scan_level *level = scan->depth ? &scan->levels[scan->depth - 1] : NULL;
        enum scan_role role = level ? scan_next_role(scan) : top_role;
        struct scan_object object;
        size_t at = scan->at;
        uint64_t left;
        bool is_key;
        int r;

        if (!scan_read_head(scan, &object))
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: the bytes end within an object", at);
        if (object.type == SCAN_NEVER)
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: 0xc1 is not msgpack", at);
        if (!level && object.type != SCAN_MAP)
                return nd_fault_set(scan->fault, scan->code, scan->field, "is not a map");

        left = scan->n_data - scan->at;
        if (object.n_payload > left)
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: %llu bytes are announced, %llu are left", at,
                                    (unsigned long long)object.n_payload, (unsigned long long)left);
        *owed = *owed - 1 + object.n_children;
        if (*owed > left - object.n_payload)
                return nd_fault_set(scan->fault, scan->code, scan->field,
                                    "byte %zu: %llu objects are announced, %llu bytes are left", at,
                                    (unsigned long long)*owed,
                                    (unsigned long long)(left - object.n_payload));

        is_key = level && level->is_map && level->owed % 2 == 0;
        if (level)
                --level->owed;
        if (is_key && scan_is_strict(level)) {
                r = scan_check_key(scan, at, &object);
                if (r)
                        return r;
        }
        scan->at += (size_t)object.n_payload;

        if (object.type == SCAN_ARRAY || object.type == SCAN_MAP)
                return scan_enter(scan, at, &object, is_key ? SCAN_FREE : role);
        return 0;
}

int nd_scan(const void *data,
            size_t n_data,
            enum nd_scan_mode mode,
            const char *field,
            struct nd_fault *fault)
{
        bool is_header = mode == ND_SCAN_HEADER;
        uint64_t owed = 1;
        struct scan scan;
        int r;

        /* the levels and keys are written before they are read: not worth clearing */
        scan.data = data;
        scan.n_data = n_data;
        scan.at = 0;
        scan.field = field;
        scan.code = is_header ? NDBUS_EHEADER : NDBUS_EMETA;
        scan.fault = fault;
        scan.depth = 0;

        if (n_data == 0)
                return nd_fault_set(fault, scan.code, field, "is empty, a map is needed");

        do {
                r = scan_object(&scan, &owed, is_header ? SCAN_HEADER : SCAN_FREE);
                if (r)
                        return r;
                while (scan.depth && scan.levels[scan.depth - 1].owed == 0)
                        --scan.depth;
        } while (scan.depth);

        if (scan.at != n_data)
                return nd_fault_set(fault, scan.code, field, "byte %zu: %zu bytes follow the map",
                                    scan.at, n_data - scan.at);
        return 0;
}
