/* SPDX-License-Identifier: MIT */

/*
 * Pictures
 *
 * A character cell is about twice as high as wide, so a half block (U+2580), whose upper half takes
 * the foreground and whose lower half the background colour, makes two square pixels of it. Each
 * pixel is the mean of the finite elements in its share of the array; of a share wider or higher
 * than IMAGE_SAMPLES_MAX only that many rows and columns of it are looked at, evenly spread, so
 * that the work is bounded. Values are scaled from the least to the greatest finite one seen.
 * Pixels without a finite element are shown apart.
 *
 * The colours run from dark blue over green to yellow, in steps of even lightness, so that they
 * order values also in print and for colour-blind eyes.
 */

#include <math.h>
#include <string.h>
#include "client/command/view.h"

#define IMAGE_SAMPLES_MAX 128
#define IMAGE_ENLARGE_MAX 4
#define IMAGE_RAMP        " .:-=+*#%@"

struct image_rgb {
        uint8_t r, g, b;
};

struct image {
        int64_t width;  /* pixels */
        int64_t height; /* pixels; even where two share a cell */
        int n_channels;
        double *pixels; /* [height][width][n_channels] means; NaN: nothing finite */
        struct nd_view_range range;
};

static int64_t image_min(int64_t a, int64_t b)
{
        return a < b ? a : b;
}

/* The mean over a share of the grid. */
static double image_mean(struct image *image,
                         const struct nd_view_grid *grid,
                         int64_t offset,
                         const int64_t rows[static 2],
                         const int64_t columns[static 2])
{
        int64_t n_rows = image_min(rows[1] - rows[0], IMAGE_SAMPLES_MAX);
        int64_t n_columns = image_min(columns[1] - columns[0], IMAGE_SAMPLES_MAX);
        const char *data = (const char *)grid->data + offset;
        uint64_t n = 0;
        double sum = 0;

        for (int64_t i = 0; i < n_rows; ++i) {
                int64_t row = rows[0] + nd_view_cut(rows[1] - rows[0], i, n_rows);

                for (int64_t k = 0; k < n_columns; ++k) {
                        int64_t column =
                                columns[0] + nd_view_cut(columns[1] - columns[0], k, n_columns);
                        double v =
                                nd_number_load(&grid->number, data,
                                               row * grid->row_step + column * grid->column_step);

                        nd_view_range_add(&image->range, v);
                        if (isfinite(v)) {
                                ++n;
                                sum += v / (double)(n_rows * n_columns);
                        }
                }
        }
        return n ? sum * ((double)(n_rows * n_columns) / (double)n) : (double)NAN;
}

static void image_fill(struct image *image, const struct nd_view_grid *grid, int64_t channel_step)
{
        double *pixel = image->pixels;

        for (int64_t y = 0; y < image->height; ++y) {
                int64_t rows[2] = {nd_view_cut(grid->rows, y, image->height),
                                   nd_view_cut(grid->rows, y + 1, image->height)};

                rows[1] += rows[1] == rows[0]; /* enlarged */
                for (int64_t x = 0; x < image->width; ++x) {
                        int64_t columns[2] = {nd_view_cut(grid->columns, x, image->width),
                                              nd_view_cut(grid->columns, x + 1, image->width)};

                        columns[1] += columns[1] == columns[0];
                        for (int c = 0; c < image->n_channels; ++c)
                                *pixel++ = image_mean(image, grid, c * channel_step, rows, columns);
                }
        }
}

/* Pixels that fit the terminal and keep the array's proportions; small arrays are enlarged. */
static void image_choose_size(struct image *image,
                              const struct nd_view_grid *grid,
                              int64_t width_max,
                              int64_t height_max)
{
        double shrink = fmax((double)grid->columns / (double)width_max,
                             (double)grid->rows / (double)height_max);

        if (shrink > 1) {
                image->width =
                        image_min(width_max, (int64_t)((double)grid->columns / shrink + 0.5));
                image->height = image_min(height_max, (int64_t)((double)grid->rows / shrink + 0.5));
        } else {
                int64_t factor = image_min(width_max / grid->columns, height_max / grid->rows);

                factor = image_min(factor, IMAGE_ENLARGE_MAX);
                image->width = grid->columns * factor;
                image->height = grid->rows * factor;
        }
        image->width += image->width == 0;
        image->height += image->height == 0;
}

/* 0 to 1; values seen are between min and max, and so are their means. */
static double image_scale(const struct image *image, double value)
{
        double span = image->range.max / 2 - image->range.min / 2; /* halves: no overflow */

        if (!(span > 0))
                return 0.5;
        return fmin(1, fmax(0, (value / 2 - image->range.min / 2) / span));
}

static struct image_rgb image_colour(double level)
{
        static const struct image_rgb stops[] = {
                {18, 14, 60},   {44, 62, 132},  {34, 116, 142},
                {46, 166, 116}, {146, 206, 62}, {252, 232, 70},
        };
        double at = level * (nd_array_size(stops) - 1);
        size_t i = at >= nd_array_size(stops) - 1 ? nd_array_size(stops) - 2 : (size_t)at;
        double part = at - (double)i;
        const struct image_rgb *a = &stops[i], *b = &stops[i + 1];

        return (struct image_rgb){
                (uint8_t)(a->r + part * (b->r - a->r) + 0.5),
                (uint8_t)(a->g + part * (b->g - a->g) + 0.5),
                (uint8_t)(a->b + part * (b->b - a->b) + 0.5),
        };
}

/* A code that tells colours apart: 0xrrggbb, or a number of the 256; -1: the terminal's own. */
static int32_t image_pixel(const struct image *image,
                           const struct nd_view_terminal *terminal,
                           int64_t x,
                           int64_t y)
{
        const double *p;
        struct image_rgb c;

        if (y >= image->height)
                return -1;
        p = image->pixels + (y * image->width + x) * image->n_channels;
        if (image->n_channels >= 3) {
                c = (struct image_rgb){(uint8_t)(p[0] + 0.5), (uint8_t)(p[1] + 0.5),
                                       (uint8_t)(p[2] + 0.5)};
                if (terminal->colour == ND_VIEW_256)
                        return 16 + (c.r + 25) / 51 * 36 + (c.g + 25) / 51 * 6 + (c.b + 25) / 51;
        } else if (!isfinite(*p)) {
                if (terminal->colour == ND_VIEW_256)
                        return 53;
                c = (struct image_rgb){96, 0, 64};
        } else {
                double level = image_scale(image, *p);

                if (terminal->colour == ND_VIEW_256) { /* black, 24 greys, white */
                        int32_t grey = (int32_t)(level * 25 + 0.5);

                        return grey == 0 ? 16 : grey == 25 ? 231 : 231 + grey;
                }
                c = image_colour(level);
        }
        return c.r << 16 | c.g << 8 | c.b;
}

static void image_set_colour(FILE *out,
                             const struct nd_view_terminal *terminal,
                             bool is_background,
                             int32_t code)
{
        int what = is_background ? 48 : 38;

        if (code < 0)
                fprintf(out, "\033[%dm", what + 1);
        else if (terminal->colour == ND_VIEW_256)
                fprintf(out, "\033[%d;5;%dm", what, code);
        else
                fprintf(out, "\033[%d;2;%d;%d;%dm", what, code >> 16, code >> 8 & 255, code & 255);
}

static void
image_write_blocks(const struct image *image, const struct nd_view_terminal *terminal, FILE *out)
{
        for (int64_t y = 0; y < image->height; y += 2) {
                int32_t upper = -2, lower = -2;

                for (int64_t x = 0; x < image->width; ++x) {
                        int32_t u = image_pixel(image, terminal, x, y);
                        int32_t l = image_pixel(image, terminal, x, y + 1);

                        if (u != upper)
                                image_set_colour(out, terminal, /* is_background= */ false, u);
                        if (l != lower)
                                image_set_colour(out, terminal, /* is_background= */ true, l);
                        upper = u;
                        lower = l;
                        fputs("\xe2\x96\x80", out);
                }
                fputs("\033[0m\n", out);
        }
}

static void image_write_ascii(const struct image *image, FILE *out)
{
        static const char ramp[] = IMAGE_RAMP;

        for (int64_t y = 0; y < image->height; ++y) {
                for (int64_t x = 0; x < image->width; ++x) {
                        const double *p =
                                image->pixels + (y * image->width + x) * image->n_channels;
                        double v = image->n_channels >= 3 ? 0.3 * p[0] + 0.59 * p[1] + 0.11 * p[2]
                                                          : *p;
                        double level = image_scale(image, v);

                        fputc(isfinite(v) ? ramp[(size_t)(level * (sizeof(ramp) - 2) + 0.5)] : '?',
                              out);
                }
                fputc('\n', out);
        }
}

int nd_view_image(const struct nd_view_grid *grid,
                  int n_channels,
                  int64_t channel_step,
                  const struct nd_view_terminal *terminal,
                  FILE *out,
                  struct nd_fault *fault)
{
        bool is_ascii = terminal->colour == ND_VIEW_PLAIN || !terminal->is_utf8;
        struct image image = {.n_channels = n_channels};
        struct nd_view_terminal t = *terminal;
        int64_t lines = t.rows - 3;

        /* a cell has two pixels, or is one of twice the height */
        image_choose_size(&image, grid, t.columns, 2 * lines);
        if (is_ascii)
                image.height = (image.height + 1) / 2;

        image.pixels =
                calloc((size_t)(image.width * image.height * n_channels), sizeof(*image.pixels));
        if (!image.pixels) {
                fputc('\n', out);
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        }
        image_fill(&image, grid, channel_step);
        nd_view_write_range(out, &image.range);
        if (is_ascii)
                image_write_ascii(&image, out);
        else
                image_write_blocks(&image, &t, out);
        free(image.pixels);
        return 0;
}
