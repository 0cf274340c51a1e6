/* SPDX-License-Identifier: MIT */

/*
 * Lines
 *
 * Each column of the grid is drawn over its rows. The drawing surface is made of dots: braille has
 * two by four in a character (U+2800 and a bit for each dot), ASCII one. Where a dot's width holds
 * several samples the line covers all from the least to the greatest of them, so that a single
 * spike among a million samples is still seen; where samples are fewer than dots they are joined.
 * At most PLOT_SAMPLES_MAX samples a dot are looked at.
 */

#include <math.h>
#include <string.h>
#include "client/command/view.h"

#define PLOT_SAMPLES_MAX   65536
#define PLOT_HEIGHT_MAX    16
#define PLOT_LABEL_COLUMNS 11

struct plot {
        const struct nd_view_grid *grid;
        bool is_braille;
        int64_t width; /* cells */
        int64_t height;
        int64_t n_x; /* dots */
        int64_t n_y;
        struct nd_view_range range;
        double *low; /* [grid->columns][n_x] least value at this dot; NaN: none */
        double *high;
        uint8_t *cells; /* [height][width] braille: dots; ASCII: column + 1 */
        uint8_t *owner; /* [height][width] column that drew here last, + 1 */
};

/* Fewer samples than dots: the line between its neighbours. */
static double plot_between(const struct plot *plot, int64_t column, int64_t x)
{
        int64_t rows = plot->grid->rows;
        double at = plot->n_x > 1 ? (double)x * (double)(rows - 1) / (double)(plot->n_x - 1) : 0;
        int64_t row = (int64_t)at;
        double a = nd_view_at(plot->grid, row, column);
        double part = at - (double)row;

        if (part > 0 && row + 1 < rows)
                return a * (1 - part) + nd_view_at(plot->grid, row + 1, column) * part;
        return a;
}

static void plot_measure_column(struct plot *plot, int64_t column)
{
        double *low = plot->low + column * plot->n_x;
        double *high = plot->high + column * plot->n_x;
        int64_t rows = plot->grid->rows;

        for (int64_t x = 0; x < plot->n_x; ++x) {
                int64_t start = nd_view_cut(rows, x, plot->n_x);
                int64_t n = nd_view_cut(rows, x + 1, plot->n_x) - start;
                int64_t n_looked = n < PLOT_SAMPLES_MAX ? n : PLOT_SAMPLES_MAX;
                struct nd_view_range here = {.n_finite = 0};

                if (rows <= plot->n_x)
                        nd_view_range_add(&here, plot_between(plot, column, x));
                for (int64_t i = 0; rows > plot->n_x && i < n_looked; ++i) {
                        double v =
                                nd_view_at(plot->grid, start + nd_view_cut(n, i, n_looked), column);

                        nd_view_range_add(&here, v);
                }
                low[x] = here.n_finite ? here.min : (double)NAN;
                high[x] = here.n_finite ? here.max : (double)NAN;
                if (rows > plot->n_x && here.n_finite) {
                        nd_view_range_add(&plot->range, here.min);
                        nd_view_range_add(&plot->range, here.max);
                }
                if (rows > plot->n_x)
                        plot->range.n_other += here.n_other;
        }
        for (int64_t i = 0; rows <= plot->n_x && i < rows; ++i)
                nd_view_range_add(&plot->range, nd_view_at(plot->grid, i, column));
}

/* Dot row of a value; 0 is the top. */
static int64_t plot_row(const struct plot *plot, double value)
{
        double span = plot->range.max / 2 - plot->range.min / 2; /* halves: no overflow */
        double level = span > 0 ? (value / 2 - plot->range.min / 2) / span : 0.5;

        return (int64_t)((1 - fmin(1, fmax(0, level))) * (double)(plot->n_y - 1) + 0.5);
}

static void plot_dot(struct plot *plot, int64_t column, int64_t x, int64_t y)
{
        static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
        int64_t cell = plot->is_braille ? y / 4 * plot->width + x / 2 : y * plot->width + x;

        plot->cells[cell] |= plot->is_braille ? bits[y % 4][x % 2] : 1;
        plot->owner[cell] = (uint8_t)(column + 1);
}

static void plot_draw_column(struct plot *plot, int64_t column)
{
        const double *low = plot->low + column * plot->n_x;
        const double *high = plot->high + column * plot->n_x;

        for (int64_t x = 0; x < plot->n_x; ++x) {
                int64_t top, bottom;

                if (isnan(low[x]))
                        continue;
                top = plot_row(plot, high[x]);
                bottom = plot_row(plot, low[x]);
                if (x > 0 && !isnan(low[x - 1])) { /* reach for the neighbour */
                        int64_t before_top = plot_row(plot, high[x - 1]);
                        int64_t before_bottom = plot_row(plot, low[x - 1]);

                        if (before_bottom < top)
                                top = before_bottom + 1;
                        if (before_top > bottom)
                                bottom = before_top - 1;
                }
                for (int64_t y = top; y <= bottom; ++y)
                        plot_dot(plot, column, x, y);
        }
}

static void plot_write_cell(const struct plot *plot, int64_t cell, FILE *out)
{
        uint8_t dots = plot->cells[cell];

        if (!dots)
                fputc(' ', out);
        else if (plot->is_braille)
                fprintf(out, "\xe2%c%c", 0xa0 | dots >> 6, 0x80 | (dots & 0x3f));
        else if (plot->grid->columns == 1)
                fputc('*', out);
        else
                fputc('0' + plot->owner[cell] - 1, out);
}

static void plot_write(const struct plot *plot, const struct nd_view_terminal *terminal, FILE *out)
{
        static const uint8_t colours[] = {39, 208, 78, 204, 226, 141, 255, 244};
        bool is_coloured = terminal->colour != ND_VIEW_PLAIN;

        for (int64_t y = 0; y < plot->height; ++y) {
                uint8_t owner = 0;

                if (y == 0)
                        fprintf(out, "%*.4g", PLOT_LABEL_COLUMNS - 1, plot->range.max);
                else if (y == plot->height - 1)
                        fprintf(out, "%*.4g", PLOT_LABEL_COLUMNS - 1, plot->range.min);
                else
                        fprintf(out, "%*s", PLOT_LABEL_COLUMNS - 1, "");
                fputs(plot->is_braille ? "\xe2\x94\x82" : "|", out);

                for (int64_t x = 0; x < plot->width; ++x) {
                        int64_t cell = y * plot->width + x;

                        if (is_coloured && plot->cells[cell] && plot->owner[cell] != owner) {
                                owner = plot->owner[cell];
                                fprintf(out, "\033[38;5;%dm",
                                        colours[(owner - 1u) % nd_array_size(colours)]);
                        }
                        plot_write_cell(plot, cell, out);
                }
                fputs(is_coloured ? "\033[0m\n" : "\n", out);
        }
}

int nd_view_plot(const struct nd_view_grid *grid,
                 const struct nd_view_terminal *terminal,
                 FILE *out,
                 struct nd_fault *fault)
{
        struct plot plot = {
                .grid = grid,
                .is_braille = terminal->is_utf8,
                .width = terminal->columns - PLOT_LABEL_COLUMNS,
                .height =
                        terminal->rows - 4 < PLOT_HEIGHT_MAX ? terminal->rows - 4 : PLOT_HEIGHT_MAX,
        };
        size_t n_values, n_cells;
        int r = 0;

        plot.n_x = plot.width * (plot.is_braille ? 2 : 1);
        plot.n_y = plot.height * (plot.is_braille ? 4 : 1);
        n_values = (size_t)(grid->columns * plot.n_x);
        n_cells = (size_t)(plot.width * plot.height);
        plot.low = calloc(n_values, sizeof(*plot.low));
        plot.high = calloc(n_values, sizeof(*plot.high));
        plot.cells = calloc(n_cells, 1);
        plot.owner = calloc(n_cells, 1);
        if (!plot.low || !plot.high || !plot.cells || !plot.owner) {
                fputc('\n', out);
                r = nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
                goto done;
        }
        for (int64_t i = 0; i < grid->columns; ++i)
                plot_measure_column(&plot, i);
        nd_view_write_range(out, &plot.range);
        if (plot.range.n_finite) {
                for (int64_t i = 0; i < grid->columns; ++i)
                        plot_draw_column(&plot, i);
                plot_write(&plot, terminal, out);
        }
done:
        free(plot.low);
        free(plot.high);
        free(plot.cells);
        free(plot.owner);
        return r;
}
