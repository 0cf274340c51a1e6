/* SPDX-License-Identifier: MIT */

/*
 * Blocks: against a model that is a row of letters, one for each 64 bytes
 *
 * The same random operations go to both. The model finds the best place by looking at every one. The
 * seed is printed.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <time.h>
#include "protocol/limit.h"
#include "protocol/shm/blocks.h"

#define BYTES  ((size_t)6 << 20)
#define UNITS  (BYTES / 64)
#define LIVE_N 200

struct model {
        unsigned random;
        char units[UNITS]; /* 0: free */
        size_t n_used;

        struct {
                uint64_t place;
                size_t n_units;
        } live[LIVE_N];

        size_t n_live;
};

static unsigned model_random(struct model *model, unsigned n)
{
        model->random = model->random * 1664525u + 1013904223u;
        return (model->random >> 8) % n;
}

/* Mostly small, now and then so large that few have place. */
static size_t model_size(struct model *model)
{
        static const unsigned most[] = {64, 300, 5000, 5000, 70000, 1100000, 2500000};

        return 1 + model_random(model, most[model_random(model, nd_array_size(most))]);
}

/* The smallest free run that holds it, the first of equal ones; UNITS: there is none. */
static size_t model_find(const struct model *model, size_t n_units, size_t align)
{
        size_t found = UNITS, found_n = SIZE_MAX, n;

        for (size_t i = 0; i < UNITS; i += n) {
                size_t at = (i + align - 1) / align * align;

                for (n = 0; i + n < UNITS && model->units[i + n] == 0; ++n)
                        ;
                if (n >= at - i + n_units && n < found_n) {
                        found = at;
                        found_n = n;
                }
                n += n == 0;
        }
        return found;
}

static void model_take(struct model *model, struct nd_blocks *blocks)
{
        size_t bytes = model_size(model), unit = bytes >= 1 << 20 ? 4096 : 64;
        size_t n_units = (bytes + unit - 1) / unit * unit / 64, at;
        uint64_t place;

        at = model_find(model, n_units, unit / 64);
        if (at == UNITS) {
                cr_assert_not(nd_blocks_take(blocks, bytes, &place));
                return;
        }
        cr_assert(nd_blocks_take(blocks, bytes, &place), "%zu bytes have place", bytes);
        cr_assert_eq(place, at * 64, "%zu bytes at %zu, best is %zu", bytes, (size_t)place,
                     at * 64);
        cr_assert_eq(*nd_blocks_note(blocks, place), 0);
        *nd_blocks_note(blocks, place) = (uint32_t)place;
        memset(model->units + at, 1, n_units);
        model->n_used += n_units;
        model->live[model->n_live].place = place;
        model->live[model->n_live++].n_units = n_units;
}

static void model_give(struct model *model, struct nd_blocks *blocks, size_t i)
{
        uint64_t place = model->live[i].place;

        cr_assert_null(nd_blocks_note(blocks, place + 1));
        cr_assert_eq(*nd_blocks_note(blocks, place), (uint32_t)place, "kept");
        cr_assert_not(nd_blocks_give(blocks, place + 1));
        cr_assert(nd_blocks_give(blocks, place));
        cr_assert_not(nd_blocks_give(blocks, place), "given back twice");
        memset(model->units + place / 64, 0, model->live[i].n_units);
        model->n_used -= model->live[i].n_units;
        model->live[i] = model->live[--model->n_live];
}

static void model_compare(const struct model *model, const struct nd_blocks *blocks)
{
        size_t largest = 0, n = 0;

        cr_assert_eq(blocks->n_used, model->n_live);
        cr_assert_eq(blocks->used_bytes, model->n_used * 64);
        for (size_t i = 0; i < UNITS; ++i) {
                n = model->units[i] == 0 ? n + 1 : 0;
                largest = n > largest ? n : largest;
        }
        cr_assert_eq(nd_blocks_largest_free(blocks), largest * 64);
}

Test(shm_blocks, are_where_a_naive_search_puts_them, .timeout = 60)
{
        static struct model model;
        struct nd_blocks blocks;
        uint64_t place;

        model.random = (unsigned)time(NULL);
        fprintf(stderr, "seed %u\n", model.random);
        cr_assert_eq(nd_blocks_init(&blocks, BYTES), 0);
        for (size_t round = 0; round < 4000; ++round) {
                bool is_filling = round / 150 % 2 == 0;

                if (model.n_live == 0 ||
                    (model.n_live < LIVE_N && model_random(&model, 10) < (is_filling ? 7u : 3u)))
                        model_take(&model, &blocks);
                else
                        model_give(&model, &blocks, model_random(&model, (unsigned)model.n_live));
                if (round % 16 == 0)
                        model_compare(&model, &blocks);
        }
        while (model.n_live > 0)
                model_give(&model, &blocks, model.n_live - 1);
        model_compare(&model, &blocks);
        cr_assert(nd_blocks_take(&blocks, BYTES, &place), "all that was free is one piece again");
        cr_assert_eq(place, 0);
        nd_blocks_deinit(&blocks);
}

Test(shm_blocks, fills_to_the_last_byte_and_refuses_more)
{
        struct nd_blocks blocks;
        uint64_t place;

        cr_assert_eq(nd_blocks_init(&blocks, 8192), 0);
        cr_assert_not(nd_blocks_take(&blocks, 8193, &place));
        cr_assert_not(nd_blocks_take(&blocks, UINT64_MAX, &place));
        for (size_t i = 0; i < 128; ++i) {
                cr_assert(nd_blocks_take(&blocks, 1 + i % 64, &place));
                cr_assert_eq(place, i * 64);
        }
        cr_assert_eq(nd_blocks_largest_free(&blocks), 0);
        cr_assert_not(nd_blocks_take(&blocks, 1, &place));
        cr_assert_not(nd_blocks_give(&blocks, 8192));
        nd_blocks_deinit(&blocks);
        nd_blocks_deinit(&blocks);
}

Test(shm_blocks, begins_at_a_page_from_a_mebibyte_on)
{
        struct nd_blocks blocks;
        uint64_t small, large, next;

        cr_assert_eq(nd_blocks_init(&blocks, 4 << 20), 0);
        cr_assert(nd_blocks_take(&blocks, 100, &small));
        cr_assert(nd_blocks_take(&blocks, 1 << 20, &large));
        cr_assert_eq(large, 4096);
        cr_assert(nd_blocks_take(&blocks, (1 << 20) - 1, &next));
        cr_assert_eq(next % 64, 0);
        cr_assert_eq(next, 4096 + (1 << 20));
        cr_assert(nd_blocks_take(&blocks, 3900, &next));
        cr_assert_eq(next, 128, "what alignment left is used");
        nd_blocks_deinit(&blocks);
}
