/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Map: looking up what msgpack-c has unpacked
 */

#include <msgpack.h>
#include <string.h>
#include "protocol/base.h"

/* The value of a key; NULL if there is none, or @map is NULL or no map. */
static inline const msgpack_object *nd_map_find(const msgpack_object *map, const char *key)
{
        size_t n = strlen(key);

        if (!map || map->type != MSGPACK_OBJECT_MAP)
                return NULL;
        for (uint32_t i = 0; i < map->via.map.size; ++i) {
                const msgpack_object_kv *kv = &map->via.map.ptr[i];

                if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == n &&
                    memcmp(kv->key.via.str.ptr, key, n) == 0)
                        return &kv->val;
        }
        return NULL;
}

static inline bool nd_map_number(const msgpack_object *map, const char *key, uint64_t *ret)
{
        const msgpack_object *value = nd_map_find(map, key);

        if (!value || value->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
                return false;
        *ret = value->via.u64;
        return true;
}
