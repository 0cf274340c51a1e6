/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Base: assertions, cleanup attributes, container_of, overflow-checked arithmetic
 *
 * Included by every other header of the tree; includes nothing of the tree.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * nd_assert() checks what only a bug of ours can break. It stays on in release builds. Nothing
 * that a peer, a file or an operator controls may ever reach it: those are errors, not bugs.
 */
#define nd_assert(_cond)                                                                           \
        do {                                                                                       \
                if (__builtin_expect(!(_cond), 0))                                                 \
                        nd_assert_fail(#_cond, __FILE__, __LINE__, __func__);                      \
        } while (0)

_Noreturn static inline void
nd_assert_fail(const char *cond, const char *file, int line, const char *func)
{
        fprintf(stderr, "<0>%s:%d: %s(): assertion failed: %s\n", file, line, func, cond);
        abort();
}

#define nd_container_of(_ptr, _type, _member)                                                      \
        ((_type *)(void *)((char *)(_ptr)-offsetof(_type, _member)))

#define nd_array_size(_a) (sizeof(_a) / sizeof(*(_a)))

#define nd_cleanup(_func) __attribute__((__cleanup__(_func)))

/* ND_DEFINE_CLEANUP(struct nd_message *, nd_message_unref) defines nd_message_unrefp(). */
#define ND_DEFINE_CLEANUP(_type, _func)                                                            \
        static inline void _func##p(_type *p)                                                      \
        {                                                                                          \
                if (*p)                                                                            \
                        _func(*p);                                                                 \
        }                                                                                          \
        struct nd_swallow_semicolon

/* nd_autofree char *text = ...; is freed where its scope ends, unless stolen. */
#define nd_autofree nd_cleanup(nd_autofreep)

static inline void nd_autofreep(void *pointer)
{
        free(*(void **)pointer);
}

/* Hands a pointer over: evaluates to the old value and leaves NULL behind. */
#define nd_steal(_ptr)                                                                             \
        __extension__({                                                                            \
                __typeof__(_ptr) *_pp = &(_ptr);                                                   \
                __typeof__(_ptr) _old = *_pp;                                                      \
                *_pp = NULL;                                                                       \
                _old;                                                                              \
        })

/* Each is true if the result does not fit; *ret is then unspecified. */
#define nd_add_overflow(_a, _b, _ret) __builtin_add_overflow((_a), (_b), (_ret))
#define nd_mul_overflow(_a, _b, _ret) __builtin_mul_overflow((_a), (_b), (_ret))

static inline uint64_t nd_min_u64(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

static inline uint64_t nd_max_u64(uint64_t a, uint64_t b)
{
        return a > b ? a : b;
}
