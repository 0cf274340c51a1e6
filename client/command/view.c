/* SPDX-License-Identifier: MIT */

/*
 * Which picture an array gets, and what the terminal can show
 *
 * The array is never copied or converted as a whole: a grid says where each number lies, and the
 * drawers read what they need of it. So a view costs the same on strided, foreign and huge arrays,
 * and a broadcast axis of 2^50 elements is only sampled.
 */

#include "client/command/view.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "client/command/spelling.h"

/* An array this narrow is a table of signals rather than a picture. */
#define VIEW_LINES_MAX     8
#define VIEW_LINE_ROWS_MIN 16

#define VIEW_COLUMNS_MAX 512u
#define VIEW_ROWS_MAX    512u

static unsigned view_from_environment(const char *name, unsigned fallback)
{
        const char *text = getenv(name);
        unsigned long value;
        char *end;

        if (!text || *text < '1' || *text > '9')
                return fallback;
        value = strtoul(text, &end, 10);
        return *end || value > 100000 ? fallback : (unsigned)value;
}

static bool view_is_utf8(void)
{
        static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

        for (size_t i = 0; i < nd_array_size(names); ++i) {
                const char *value = getenv(names[i]);

                if (value && *value)
                        return strcasestr(value, "UTF-8") || strcasestr(value, "UTF8");
        }
        return false;
}

static enum nd_view_colour view_colour(int fd)
{
        const char *term = getenv("TERM"), *colour = getenv("COLORTERM");
        const char *none = getenv("NO_COLOR"), *force = getenv("CLICOLOR_FORCE");

        if (none && *none)
                return ND_VIEW_PLAIN;
        if (!(force && *force && strcmp(force, "0") != 0) &&
            (!isatty(fd) || !term || !*term || strcmp(term, "dumb") == 0))
                return ND_VIEW_PLAIN;
        if (colour && (strcmp(colour, "truecolor") == 0 || strcmp(colour, "24bit") == 0))
                return ND_VIEW_TRUE;
        return ND_VIEW_256;
}

void nd_view_terminal_detect(int fd, struct nd_view_terminal *ret)
{
        struct winsize size = {.ws_row = 0};
        unsigned columns, rows;

        if (ioctl(fd, TIOCGWINSZ, &size) < 0 || size.ws_col == 0 || size.ws_row == 0) {
                columns = view_from_environment("COLUMNS", 80);
                rows = view_from_environment("LINES", 24);
        } else {
                columns = size.ws_col;
                rows = size.ws_row;
        }
        *ret = (struct nd_view_terminal){
                .columns = columns,
                .rows = rows,
                .colour = view_colour(fd),
                .is_utf8 = view_is_utf8(),
        };
}

void nd_view_range_add(struct nd_view_range *range, double value)
{
        if (!isfinite(value)) {
                ++range->n_other;
                return;
        }
        if (range->n_finite == 0 || value < range->min)
                range->min = value;
        if (range->n_finite == 0 || value > range->max)
                range->max = value;
        ++range->n_finite;
}

void nd_view_write_range(FILE *out, const struct nd_view_range *range)
{
        if (range->n_finite)
                fprintf(out, "min %.6g  max %.6g", range->min, range->max);
        else
                fputs("no finite value", out);
        if (range->n_finite && range->n_other)
                fprintf(out, "  %" PRIu64 " not finite", range->n_other);
        fputc('\n', out);
}

static bool view_is_empty(const struct ndbus_array *array)
{
        for (int32_t i = 0; i < array->ndim; ++i)
                if (array->shape[i] == 0)
                        return true;
        return false;
}

static bool view_is_rgb(const struct ndbus_array *array)
{
        return array->ndim == 3 && array->dtype && strcmp(array->dtype, "uint8") == 0 &&
               (array->shape[2] == 3 || array->shape[2] == 4);
}

static bool view_is_lines(const struct nd_view_grid *grid)
{
        return grid->columns == 1 ||
               (grid->columns <= VIEW_LINES_MAX && grid->rows >= VIEW_LINE_ROWS_MIN &&
                grid->rows / 2 > grid->columns);
}

/* The first line: what it is, and which part of it is drawn. */
static void view_write_title(const struct ndbus_array *array, int32_t n_leading, FILE *out)
{
        char dtype[ND_SPELLING_BYTES], shape[ND_SPELLING_BYTES];

        fprintf(out, "%s %s", nd_spelling_dtype(array, dtype, sizeof(dtype)),
                nd_spelling_shape(array, shape, sizeof(shape)));
        if (n_leading > 0) {
                fputs(" at [", out);
                for (int32_t i = 0; i < n_leading; ++i)
                        fputs("0,", out);
                fputs(":,:]", out);
        }
        fputs("  ", out);
}

int nd_view_draw(const struct ndbus_array *array,
                 const struct nd_view_terminal *terminal,
                 FILE *out,
                 struct nd_fault *fault)
{
        struct nd_view_terminal t = *terminal;
        struct nd_view_grid grid = {.data = array->data, .rows = 1, .columns = 1};
        int64_t steps[NDBUS_DIMS_MAX];
        bool is_rgb = view_is_rgb(array);
        int32_t n_leading, i_row;
        int r;

        r = nd_number_describe(array, &grid.number, fault);
        if (r)
                return r;
        t.columns = t.columns < 20                 ? 20
                    : t.columns > VIEW_COLUMNS_MAX ? VIEW_COLUMNS_MAX
                                                   : t.columns;
        t.rows = t.rows < 8 ? 8 : t.rows > VIEW_ROWS_MAX ? VIEW_ROWS_MAX : t.rows;
        nd_number_steps(&grid.number, array, steps);

        n_leading = is_rgb || array->ndim <= 2 ? 0 : array->ndim - 2;
        view_write_title(array, n_leading, out);
        if (view_is_empty(array)) {
                fputs("no elements\n", out);
                return 0;
        }
        if (array->ndim == 0) {
                fprintf(out, "%.17g\n", nd_number_load(&grid.number, array->data, 0));
                return 0;
        }
        i_row = is_rgb ? 0 : array->ndim >= 2 ? array->ndim - 2 : 0;
        grid.rows = array->shape[i_row];
        grid.row_step = steps[i_row];
        if (array->ndim >= 2) {
                grid.columns = array->shape[i_row + 1];
                grid.column_step = steps[i_row + 1];
        }
        if (!is_rgb && view_is_lines(&grid))
                return nd_view_plot(&grid, &t, out, fault);
        return nd_view_image(&grid, is_rgb ? (int)array->shape[2] : 1, is_rgb ? steps[2] : 0, &t,
                             out, fault);
}
