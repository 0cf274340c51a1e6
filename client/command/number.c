/* SPDX-License-Identifier: MIT */

/*
 * Reading elements of every numeric dtype
 *
 * The small floats differ in how many bits each part has, in the bias, and in what they spend codes
 * on: infinities and NaNs (as IEEE 754 does), one NaN of all ones ("fn"), one NaN where -0 would be
 * ("fnuz"), or nothing. One decoder reads these five numbers from a table; it is fast enough for a
 * picture and has one place in which to be wrong.
 */

#include "client/command/number.h"
#include <math.h>
#include <string.h>
#include "protocol/layout.h"

enum number_special {
        NUMBER_IEEE,   /* top exponent: infinity and NaNs */
        NUMBER_FN,     /* all ones: NaN; no infinity */
        NUMBER_FNUZ,   /* sign bit alone: NaN; no infinity, no -0 */
        NUMBER_FINITE, /* every code is a number */
        NUMBER_SCALE,  /* an exponent alone; all ones: NaN */
};

struct nd_number_mini {
        const char *name;
        uint32_t bits;
        uint8_t exponent_bits;
        uint8_t mantissa_bits;
        int8_t bias;
        enum number_special special;
};

static const struct nd_number_mini number_minis[] = {
        {"float16", 16, 5, 10, 15, NUMBER_IEEE},
        {"bfloat16", 16, 8, 7, 127, NUMBER_IEEE},
        {"float8_e3m4", 8, 3, 4, 3, NUMBER_IEEE},
        {"float8_e4m3", 8, 4, 3, 7, NUMBER_IEEE},
        {"float8_e4m3b11fnuz", 8, 4, 3, 11, NUMBER_FNUZ},
        {"float8_e4m3fn", 8, 4, 3, 7, NUMBER_FN},
        {"float8_e4m3fnuz", 8, 4, 3, 8, NUMBER_FNUZ},
        {"float8_e5m2", 8, 5, 2, 15, NUMBER_IEEE},
        {"float8_e5m2fnuz", 8, 5, 2, 16, NUMBER_FNUZ},
        {"float8_e8m0fnu", 8, 8, 0, 127, NUMBER_SCALE},
        {"float6_e2m3fn", 6, 2, 3, 1, NUMBER_FINITE},
        {"float6_e3m2fn", 6, 3, 2, 3, NUMBER_FINITE},
        {"float4_e2m1fn", 4, 2, 1, 1, NUMBER_FINITE},
};

static const struct {
        const char *name;
        uint32_t bits;
        enum nd_number_kind kind;
} number_kinds[] = {
        {"bool", 8, ND_NUMBER_BOOL},
        {"int4", 4, ND_NUMBER_INT},
        {"int8", 8, ND_NUMBER_INT},
        {"int16", 16, ND_NUMBER_INT},
        {"int32", 32, ND_NUMBER_INT},
        {"int64", 64, ND_NUMBER_INT},
        {"uint4", 4, ND_NUMBER_UINT},
        {"uint8", 8, ND_NUMBER_UINT},
        {"uint16", 16, ND_NUMBER_UINT},
        {"uint32", 32, ND_NUMBER_UINT},
        {"uint64", 64, ND_NUMBER_UINT},
        {"float32", 32, ND_NUMBER_FLOAT32},
        {"float64", 64, ND_NUMBER_FLOAT64},
        {"complex64", 64, ND_NUMBER_COMPLEX64},
        {"complex128", 128, ND_NUMBER_COMPLEX128},
        {"datetime64", 64, ND_NUMBER_TIME},
        {"timedelta64", 64, ND_NUMBER_TIME},
};

static bool number_find(const char *dtype, struct nd_number *ret)
{
        for (size_t i = 0; i < nd_array_size(number_kinds); ++i)
                if (strcmp(number_kinds[i].name, dtype) == 0) {
                        ret->kind = number_kinds[i].kind;
                        ret->bits = number_kinds[i].bits;
                        return true;
                }
        for (size_t i = 0; i < nd_array_size(number_minis); ++i)
                if (strcmp(number_minis[i].name, dtype) == 0) {
                        ret->kind = ND_NUMBER_MINI;
                        ret->bits = number_minis[i].bits;
                        ret->mini = &number_minis[i];
                        return true;
                }
        return false;
}

int nd_number_describe(const struct ndbus_array *array,
                       struct nd_number *ret,
                       struct nd_fault *fault)
{
        struct nd_number number = {.mini = NULL};

        if (!array->dtype) { /* raw bytes */
                *ret = (struct nd_number){.kind = ND_NUMBER_UINT, .bits = 8};
                return 0;
        }
        if (!number_find(array->dtype, &number))
                return nd_fault_set(fault, NDBUS_EDTYPE, "dtype", "%s has no numbers to draw",
                                    array->dtype);
        if (array->lanes > 1)
                return nd_fault_set(fault, NDBUS_EDTYPE, "lanes",
                                    "%u in an element; 1 can be drawn", array->lanes);
        if (nd_layout_bits(array) != number.bits)
                return nd_fault_set(fault, NDBUS_EDTYPE, "bits", "%s of %u bits, not %u",
                                    array->dtype, nd_layout_bits(array), number.bits);
        number.is_big_endian = (array->flags & NDBUS_BIG_ENDIAN) != 0;
        number.is_packed = number.bits < 8 && !(array->flags & NDBUS_SUBBYTE_PADDED);
        *ret = number;
        return 0;
}

void nd_number_steps(const struct nd_number *number,
                     const struct ndbus_array *array,
                     int64_t ret_steps[static NDBUS_DIMS_MAX])
{
        int64_t step = number->is_packed ? number->bits : (number->bits + 7) / 8;

        for (int32_t i = array->ndim; i-- > 0;) {
                if (array->strides && !number->is_packed) {
                        ret_steps[i] = array->strides[i];
                        continue;
                }
                ret_steps[i] = step;
                if (nd_mul_overflow(step, array->shape[i], &step))
                        step = 0; /* only with a dimension of 0: nothing is ever read */
        }
}

static uint64_t number_load_bytes(const uint8_t *p, unsigned n, bool is_big_endian)
{
        uint64_t v = 0;

        for (unsigned i = 0; i < n; ++i)
                v |= (uint64_t)p[is_big_endian ? n - 1 - i : i] << (8 * i);
        return v;
}

static uint64_t number_load_bits(const struct nd_number *number, const uint8_t *data, int64_t at)
{
        uint64_t v = 0;

        for (uint32_t i = 0; i < number->bits; ++i, ++at)
                v |= (uint64_t)(data[at / 8] >> (at % 8) & 1) << i;
        return v;
}

static double number_float32(uint64_t v)
{
        uint32_t bits = (uint32_t)v;
        float f;

        memcpy(&f, &bits, sizeof(f));
        return (double)f;
}

static double number_float64(uint64_t v)
{
        double f;

        memcpy(&f, &v, sizeof(f));
        return f;
}

static double number_mini(const struct nd_number_mini *mini, uint64_t v)
{
        uint32_t mantissa = (uint32_t)v & ((1u << mini->mantissa_bits) - 1);
        uint32_t exponent_max = (1u << mini->exponent_bits) - 1;
        uint32_t exponent = (uint32_t)(v >> mini->mantissa_bits) & exponent_max;
        bool is_negative = v >> (mini->bits - 1) & 1;
        double value;

        if (mini->special == NUMBER_SCALE)
                return v == 0xff ? (double)NAN : ldexp(1, (int)v - mini->bias);
        if (mini->special == NUMBER_FNUZ && is_negative && exponent == 0 && mantissa == 0)
                return (double)NAN;
        if (mini->special == NUMBER_FN && exponent == exponent_max &&
            mantissa == (1u << mini->mantissa_bits) - 1)
                return (double)NAN;
        if (mini->special == NUMBER_IEEE && exponent == exponent_max)
                value = mantissa ? (double)NAN : (double)INFINITY;
        else if (exponent == 0)
                value = ldexp(mantissa, 1 - mini->bias - mini->mantissa_bits);
        else
                value = ldexp((1u << mini->mantissa_bits) + mantissa,
                              (int)exponent - mini->bias - mini->mantissa_bits);
        return is_negative ? -value : value;
}

/* Sign-extends the low bits. */
static int64_t number_signed(uint64_t v, uint32_t bits)
{
        unsigned unused = 64 - bits;

        return (int64_t)(v << unused) >> unused;
}

double nd_number_load(const struct nd_number *number, const void *data, int64_t offset)
{
        bool big = number->is_big_endian;
        const uint8_t *p = data;
        uint64_t v;

        if (number->is_packed) {
                v = number_load_bits(number, p, offset);
        } else {
                unsigned n = (number->bits + 7) / 8;

                p += offset;
                v = number_load_bytes(p, n < 8 ? n : 8, big);
        }
        switch (number->kind) {
        case ND_NUMBER_BOOL:
                return v ? 1 : 0;
        case ND_NUMBER_UINT:
                return (double)(number->bits == 64 ? v : v & ((UINT64_C(1) << number->bits) - 1));
        case ND_NUMBER_INT:
                return (double)number_signed(v, number->bits);
        case ND_NUMBER_TIME:
                return (int64_t)v == INT64_MIN ? (double)NAN : (double)(int64_t)v;
        case ND_NUMBER_FLOAT32:
                return number_float32(v);
        case ND_NUMBER_FLOAT64:
                return number_float64(v);
        case ND_NUMBER_MINI:
                return number_mini(number->mini, v);
        case ND_NUMBER_COMPLEX64:
                return hypot(number_float32(number_load_bytes(p, 4, big)),
                             number_float32(number_load_bytes(p + 4, 4, big)));
        case ND_NUMBER_COMPLEX128:
                return hypot(number_float64(v), number_float64(number_load_bytes(p + 8, 8, big)));
        }
        return (double)NAN;
}
