/* SPDX-License-Identifier: MIT */

/*
 * Views, and the numbers they are made of
 *
 * Golden pictures are small enough to be checked by eye; the rest is properties: whatever lies in
 * memory in whatever order, the same numbers give the same picture.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "client/command/view.h"

static const struct nd_view_terminal plain = {40, 12, ND_VIEW_PLAIN, false};
static const struct nd_view_terminal greys = {40, 12, ND_VIEW_256, true};
static const struct nd_view_terminal colours = {40, 12, ND_VIEW_TRUE, true};

static char *draw(const struct ndbus_array *array, const struct nd_view_terminal *terminal)
{
        struct nd_fault fault = {.code = 0};
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        cr_assert_not_null(out);
        cr_assert_eq(nd_view_draw(array, terminal, out, &fault), 0, "%s", fault.text);
        fclose(out);
        return text;
}

static double load(const char *dtype, uint32_t bits, uint32_t flags, const void *bytes)
{
        struct ndbus_array array = {.data = bytes, .dtype = dtype, .bits = bits, .flags = flags};
        struct nd_fault fault = {.code = 0};
        struct nd_number number;

        cr_assert_eq(nd_number_describe(&array, &number, &fault), 0, "%s", fault.text);
        return nd_number_load(&number, bytes, 0);
}

Test(number, reads_every_dtype)
{
        static const struct {
                const char *dtype;
                uint32_t bits, flags;
                const char *bytes;
                double want;
        } cases[] = {
                {"bool", 8, 0, "\x01", 1},
                {"bool", 8, 0, "\x07", 1},
                {"int8", 8, 0, "\xfe", -2},
                {"int16", 16, 0, "\x00\x80", -32768},
                {"int16", 16, NDBUS_BIG_ENDIAN, "\x80\x01", -32767},
                {"int32", 32, 0, "\xff\xff\xff\xff", -1},
                {"int64", 64, 0, "\xfe\xff\xff\xff\xff\xff\xff\xff", -2},
                {"uint8", 8, 0, "\xff", 255},
                {"uint16", 16, NDBUS_BIG_ENDIAN, "\x01\x02", 258},
                {"uint32", 32, 0, "\x00\x00\x00\x80", 2147483648.},
                {"uint64", 64, 0, "\x00\x00\x00\x00\x00\x00\x00\x80", 9223372036854775808.},
                {"int4", 4, NDBUS_SUBBYTE_PADDED, "\x0f", -1},
                {"uint4", 4, NDBUS_SUBBYTE_PADDED, "\x0f", 15},
                {"float16", 16, 0, "\x00\x3e", 1.5},
                {"float16", 16, NDBUS_BIG_ENDIAN, "\x00\x01", 5.9604644775390625e-8},
                {"float16", 16, 0, "\x00\xfc", -INFINITY},
                {"bfloat16", 16, 0, "\xc0\xbf", -1.5}, /* T04 */
                {"bfloat16", 16, 0, "\x20\x3e", 0.15625},
                {"float32", 32, 0, "\x00\x00\x10\xc0", -2.25}, /* T01 */
                {"float64", 64, NDBUS_BIG_ENDIAN, "\x40\x16\xcc\xcc\xcc\xcc\xcc\xcd",
                 5.7}, /* T03 */
                {"complex64", 64, 0, "\x00\x00\x40\x40\x00\x00\x80\xc0", 5},
                {"complex128", 128, NDBUS_BIG_ENDIAN,
                 "\x40\x08\x00\x00\x00\x00\x00\x00\x40\x10\x00\x00\x00\x00\x00\x00", 5},
                {"datetime64", 64, 0, "\x02\x00\x00\x00\x00\x00\x00\x00", 2},
                {"timedelta64", 64, 0, "\x00\x00\x00\x00\x00\x00\x00\x80", NAN},
                {"float8_e4m3fn", 8, 0, "\x3c", 1.5}, /* T05 */
                {"float8_e4m3fn", 8, 0, "\x7e", 448},
                {"float8_e4m3fn", 8, 0, "\x7f", NAN},
                {"float8_e5m2", 8, 0, "\x3e", 1.5},
                {"float8_e5m2", 8, 0, "\x7b", 57344},
                {"float8_e5m2", 8, 0, "\x7c", INFINITY},
                {"float8_e5m2", 8, 0, "\x7d", NAN},
                {"float8_e4m3", 8, 0, "\x77", 240},
                {"float8_e4m3", 8, 0, "\x78", INFINITY},
                {"float8_e3m4", 8, 0, "\x6f", 15.5},
                {"float8_e4m3fnuz", 8, 0, "\x7f", 240},
                {"float8_e4m3fnuz", 8, 0, "\x80", NAN},
                {"float8_e5m2fnuz", 8, 0, "\x7f", 57344},
                {"float8_e4m3b11fnuz", 8, 0, "\x7f", 30},
                {"float8_e8m0fnu", 8, 0, "\x80", 2},
                {"float8_e8m0fnu", 8, 0, "\xff", NAN},
                {"float6_e2m3fn", 6, NDBUS_SUBBYTE_PADDED, "\x1f", 7.5},
                {"float6_e3m2fn", 6, NDBUS_SUBBYTE_PADDED, "\x1f", 28},
                {"float4_e2m1fn", 4, NDBUS_SUBBYTE_PADDED, "\x0f", -6},
        };

        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                double got = load(cases[i].dtype, cases[i].bits, cases[i].flags, cases[i].bytes);

                if (isnan(cases[i].want))
                        cr_expect(isnan(got), "%s: %g", cases[i].dtype, got);
                else
                        cr_expect(got == cases[i].want, "%s: %g, not %g", cases[i].dtype, got,
                                  cases[i].want);
        }
}

Test(number, has_none_for_text_and_records)
{
        static const char *const dtypes[] = {"record", "bytes", "ucs4", "opaque", "unheard_of"};

        for (size_t i = 0; i < nd_array_size(dtypes); ++i) {
                struct ndbus_array array = {.dtype = dtypes[i], .bits = 64};
                char *text = NULL;
                size_t n;
                FILE *out = open_memstream(&text, &n);

                cr_expect_eq(nd_view_draw(&array, &plain, out, NULL), NDBUS_EDTYPE);
                fclose(out);
                cr_expect_str_eq(text, "");
                free(text);
        }
}

Test(view, draws_a_ramp_in_ascii)
{
        static const uint8_t values[10] = {0, 28, 57, 85, 113, 142, 170, 198, 227, 255};
        static const int64_t shape[] = {1, 10};
        struct ndbus_array array = {
                .data = values, .dtype = "uint8", .bits = 8, .ndim = 2, .shape = shape};
        char *text = draw(&array, &plain);

        /* enlarged by four, a cell has the height of two pixels */
        cr_expect_str_eq(text, "uint8 [1,10]  min 0  max 255\n"
                               "    ....::::----====++++****####%%%%@@@@\n"
                               "    ....::::----====++++****####%%%%@@@@\n");
        free(text);
}

Test(view, draws_half_blocks_in_two_kinds_of_colour)
{
        static const float values[4] = {0, 1, 1, NAN};
        static const int64_t shape[] = {2, 2};
        struct ndbus_array array = {
                .data = values, .dtype = "float32", .bits = 32, .ndim = 2, .shape = shape};
        struct nd_view_terminal small = greys;
        char *text;

        small.columns = 20;
        text = draw(&array, &small);
        cr_expect_not_null(strstr(text, "min 0  max 1  16 not finite\n"), "%s", text);
        cr_expect_not_null(strstr(text, "\033[38;5;16m\033[48;5;16m\xe2\x96\x80"), "%s", text);
        cr_expect_not_null(strstr(text, "\033[38;5;231m"), "%s", text);
        cr_expect_not_null(strstr(text, "\033[0m\n"), "%s", text);
        free(text);

        text = draw(&array, &colours);
        cr_expect_not_null(strstr(text, "\033[38;2;18;14;60m"), "%s", text);
        cr_expect_not_null(strstr(text, "\033[48;2;96;0;64m"), "%s", text);
        free(text);
}

Test(view, takes_means_of_areas)
{
        enum {
                N = 400
        };

        static uint16_t values[N][N];
        static const int64_t shape[] = {N, N};
        struct ndbus_array array = {
                .data = values, .dtype = "uint16", .bits = 16, .ndim = 2, .shape = shape};
        char *text, *line;

        /* a checkerboard is grey everywhere */
        for (size_t i = 0; i < N; ++i)
                for (size_t k = 0; k < N; ++k)
                        values[i][k] = (i + k) % 2 ? 1000 : 0;
        text = draw(&array, &plain);
        line = strchr(text, '\n') + 1;
        for (char *c = line; *c; ++c)
                cr_expect(*c == '=' || *c == '+' || *c == '\n', "%s", text);
        free(text);
}

/* The same numbers, wherever they lie. */
Test(view, draws_every_layout_alike)
{
        enum {
                H = 12,
                W = 30
        };

        static double c[H][W], f[W][H], reversed[H][W];
        static uint8_t big[H][W][8];
        static const int64_t shape[] = {H, W};
        const int64_t f_strides[] = {8, 8 * H}, r_strides[] = {-8 * W, -8};
        struct ndbus_array arrays[] = {
                {.data = c, .dtype = "float64", .bits = 64, .ndim = 2, .shape = shape},
                {.data = f,
                 .dtype = "float64",
                 .bits = 64,
                 .ndim = 2,
                 .shape = shape,
                 .strides = f_strides},
                {.data = &reversed[H - 1][W - 1],
                 .dtype = "float64",
                 .bits = 64,
                 .ndim = 2,
                 .shape = shape,
                 .strides = r_strides},
                {.data = big,
                 .dtype = "float64",
                 .bits = 64,
                 .ndim = 2,
                 .shape = shape,
                 .flags = NDBUS_BIG_ENDIAN},
        };
        char *want;

        for (size_t y = 0; y < H; ++y)
                for (size_t x = 0; x < W; ++x) {
                        double v = sin((double)x / 3) * (double)y;
                        uint8_t bytes[8];

                        c[y][x] = f[x][y] = reversed[H - 1 - y][W - 1 - x] = v;
                        memcpy(bytes, &v, 8);
                        for (size_t i = 0; i < 8; ++i)
                                big[y][x][i] = bytes[7 - i];
                }
        want = draw(&arrays[0], &colours);
        for (size_t i = 1; i < nd_array_size(arrays); ++i) {
                char *text = draw(&arrays[i], &colours);

                cr_expect_str_eq(strchr(text, ']'), strchr(want, ']'), "layout %zu", i);
                free(text);
        }
        free(want);
}

Test(view, draws_rgb)
{
        static const uint8_t pixels[2][2][3] = {{{255, 0, 0}, {0, 255, 0}},
                                                {{0, 0, 255}, {9, 8, 7}}};
        static const int64_t shape[] = {2, 2, 3};
        struct ndbus_array array = {
                .data = pixels, .dtype = "uint8", .bits = 8, .ndim = 3, .shape = shape};
        char *text = draw(&array, &colours);

        cr_expect_not_null(strstr(text, "\033[38;2;255;0;0m"), "%s", text);
        cr_expect_not_null(strstr(text, "\033[48;2;0;0;255m"), "%s", text);
        cr_expect_not_null(strstr(text, "\033[48;2;9;8;7m"), "%s", text);
        free(text);
        text = draw(&array, &greys);
        cr_expect_not_null(strstr(text, "\033[38;5;196m"), "%s", text);
        cr_expect_not_null(strstr(text, "\033[48;5;21m"), "%s", text);
        free(text);
}

Test(view, draws_lines)
{
        static double values[1000];
        static const int64_t shape[] = {1000}, table[] = {500, 2};
        struct ndbus_array array = {
                .data = values, .dtype = "float64", .bits = 64, .ndim = 1, .shape = shape};
        char *text;

        for (size_t i = 0; i < 1000; ++i)
                values[i] = i == 777 ? 5 : 0; /* one spike */
        text = draw(&array, &plain);
        cr_expect_not_null(strstr(text, "min 0  max 5\n"), "%s", text);
        cr_expect_not_null(strchr(strchr(text, '\n') + 1, '*'), "%s", text);
        cr_expect_not_null(strstr(text, "         5|                      *"), "%s", text);
        free(text);

        array.ndim = 2;
        array.shape = table;
        text = draw(&array, &plain);
        cr_expect_not_null(strchr(text + 20, '1'), "%s", text);
        free(text);

        text = draw(&array, &colours);
        cr_expect_not_null(strstr(text, "\033[38;5;208m"), "%s", text);
        cr_expect_not_null(strstr(text, "\xe2\xa3\x80"), "%s", text);
        free(text);
}

Test(view, draws_the_odd_ones)
{
        static const int64_t empty[] = {3, 0}, deep[] = {2, 2, 3, 4}, one[] = {1},
                             huge[] = {INT64_C(1) << 40, INT64_C(1) << 20}, zero[] = {0, 0};
        static const float value = 7;
        static const float nothing[2] = {NAN, INFINITY};
        static const int64_t two[] = {1, 2};
        static const uint8_t bytes[48];
        char *text;

        text = draw(&(struct ndbus_array){.data = &value, .dtype = "float32"}, &plain); /* T11 */
        cr_expect_str_eq(text, "float32 []  7\n");
        free(text);
        text = draw(&(struct ndbus_array){.dtype = "int8", .ndim = 2, .shape = empty}, &plain);
        cr_expect_str_eq(text, "int8 [3,0]  no elements\n");
        free(text);
        text = draw(&(struct ndbus_array){.data = bytes, .dtype = "int8", .ndim = 4, .shape = deep},
                    &plain);
        cr_expect_not_null(strstr(text, "int8 [2,2,3,4] at [0,0,:,:]  min 0  max 0\n"), "%s", text);
        free(text);
        text = draw(
                &(struct ndbus_array){.data = &value, .dtype = "float32", .ndim = 1, .shape = one},
                &plain);
        cr_expect_not_null(strstr(text, "min 7  max 7\n"), "%s", text);
        free(text);
        text = draw(
                &(struct ndbus_array){.data = nothing, .dtype = "float32", .ndim = 2, .shape = two},
                &colours);
        cr_expect_not_null(strstr(text, "no finite value"), "%s", text);
        free(text);
        /* a broadcast of one element to 2^60: sampled, not walked */
        text = draw(&(struct ndbus_array){.data = &value,
                                          .dtype = "float32",
                                          .ndim = 2,
                                          .shape = huge,
                                          .strides = zero},
                    &plain);
        cr_expect_not_null(strstr(text, "min 7  max 7\n"), "%s", text);
        free(text);
}

Test(view, reads_packed_elements_bit_by_bit)
{
        static const uint8_t packed[] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
        static const int64_t shape[] = {1, 16};
        struct ndbus_array array = {
                .data = packed, .dtype = "uint4", .bits = 4, .ndim = 2, .shape = shape};
        struct nd_number number;
        int64_t steps[NDBUS_DIMS_MAX];

        cr_assert_eq(nd_number_describe(&array, &number, NULL), 0);
        nd_number_steps(&number, &array, steps);
        for (int64_t i = 0; i < 16; ++i)
                cr_expect(nd_number_load(&number, packed, i * steps[1]) == (double)i);
}

Test(view, asks_the_environment)
{
        struct nd_view_terminal t;

        setenv("COLUMNS", "132", 1);
        setenv("LINES", "43", 1);
        setenv("LC_ALL", "de_DE.UTF-8", 1);
        setenv("TERM", "xterm-256color", 1);
        setenv("COLORTERM", "truecolor", 1);
        setenv("CLICOLOR_FORCE", "1", 1);
        unsetenv("NO_COLOR");
        nd_view_terminal_detect(-1, &t);
        cr_expect_eq(t.columns, 132);
        cr_expect_eq(t.rows, 43);
        cr_expect_eq(t.colour, ND_VIEW_TRUE);
        cr_expect(t.is_utf8);

        setenv("COLORTERM", "", 1);
        setenv("COLUMNS", "many", 1);
        setenv("LC_ALL", "C", 1);
        nd_view_terminal_detect(-1, &t);
        cr_expect_eq(t.columns, 80);
        cr_expect_eq(t.colour, ND_VIEW_256);
        cr_expect_not(t.is_utf8);

        setenv("NO_COLOR", "1", 1);
        nd_view_terminal_detect(-1, &t);
        cr_expect_eq(t.colour, ND_VIEW_PLAIN);

        unsetenv("NO_COLOR");
        unsetenv("CLICOLOR_FORCE");
        nd_view_terminal_detect(-1, &t);
        cr_expect_eq(t.colour, ND_VIEW_PLAIN);
}
