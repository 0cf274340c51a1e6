/* SPDX-License-Identifier: MIT */

/*
 * Layout: sizes, orders and places of arrays
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/layout.h"

Test(layout, t01_a_plain_array_travels_as_it_lies)
{
        static const float data[3] = {1.5f, -2.25f, 3.0f};
        struct ndbus_array a = {
                .data = data,
                .dtype = "float32",
                .ndim = 1,
                .shape = (int64_t[]){3},
        };
        struct nd_plan plan;

        cr_assert_eq(nd_layout_plan(&a, "arrays[0]", &plan, NULL), 0);
        cr_expect_eq(plan.order, ND_ORDER_C);
        cr_expect_eq(plan.bytes, 12u);
        cr_expect_eq(plan.elements, 3u);
        cr_expect_eq(plan.itemsize, 4u);
}
