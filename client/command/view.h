/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Views: an array as characters on a terminal
 */

#include <ndbus/array.h>
#include "client/command/number.h"

enum nd_view_colour {
        ND_VIEW_PLAIN, /* no escape sequences: a ramp of ASCII characters */
        ND_VIEW_256,   /* the 256 colours of xterm: greys */
        ND_VIEW_TRUE,  /* 24 bits */
};

struct nd_view_terminal {
        unsigned columns;
        unsigned rows;
        enum nd_view_colour colour;
        bool is_utf8; /* half blocks and braille; else ASCII */
};

/**
 * nd_view_terminal_detect() - what the terminal behind a descriptor can show
 *
 * Size: the terminal's, else COLUMNS and LINES, else 80x24. Colour: none if the descriptor is no
 * terminal (and CLICOLOR_FORCE is not set), if NO_COLOR is set or TERM is dumb; 24 bits if
 * COLORTERM says truecolor or 24bit; else 256. UTF-8: what LC_ALL, LC_CTYPE or LANG says, the
 * first that is set.
 */
void nd_view_terminal_detect(int fd, struct nd_view_terminal *ret);

/**
 * nd_view_draw() - draw an array
 *
 * Two dimensions, and uint8 with a third of 3 or 4 (RGB): a picture. One dimension, or at most 8
 * columns under many rows: a line for each column. No dimension: the value. More dimensions: the
 * last two at index 0 of the others, said so.
 *
 * Return: 0; NDBUS_EDTYPE if there are no numbers to draw (nothing is written then); NDBUS_ENOMEM
 */
int nd_view_draw(const struct ndbus_array *array,
                 const struct nd_view_terminal *terminal,
                 FILE *out,
                 struct nd_fault *fault);

/* A matrix of numbers, wherever they lie. */
struct nd_view_grid {
        struct nd_number number;
        const void *data;
        int64_t rows;
        int64_t columns;
        int64_t row_step; /* as nd_number_steps() */
        int64_t column_step;
};

static inline double nd_view_at(const struct nd_view_grid *grid, int64_t row, int64_t column)
{
        return nd_number_load(&grid->number, grid->data,
                              row * grid->row_step + column * grid->column_step);
}

/* Where item @i of @n begins when @total are divided among them; no overflow for any total. */
static inline int64_t nd_view_cut(int64_t total, int64_t i, int64_t n)
{
        return total / n * i + total % n * i / n;
}

/* Least and greatest finite value, and how many values were looked at and not finite. */
struct nd_view_range {
        double min;
        double max;
        uint64_t n_finite;
        uint64_t n_other;
};

void nd_view_range_add(struct nd_view_range *range, double value);

/* Each column of the grid as a line over its rows; view-plot.c. */
int nd_view_plot(const struct nd_view_grid *grid,
                 const struct nd_view_terminal *terminal,
                 FILE *out,
                 struct nd_fault *fault);

/* The grid as a picture; with @n_channels 3 or 4 and their step as RGB; view-image.c. */
int nd_view_image(const struct nd_view_grid *grid,
                  int n_channels,
                  int64_t channel_step,
                  const struct nd_view_terminal *terminal,
                  FILE *out,
                  struct nd_fault *fault);

/* "min 0  max 65535  3 not finite" */
void nd_view_write_range(FILE *out, const struct nd_view_range *range);
