/* SPDX-License-Identifier: MIT */

/*
 * Tests that must fail
 *
 * One for each way in which a test can be wrong without saying so itself. Run one at a time by
 * expect-failure, which looks at the reason too.
 */

#include <criterion/criterion.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

Test(alarm, asserts)
{
        cr_assert(false, "the assertion that fails");
}

Test(alarm, crashes)
{
        abort();
}

Test(alarm, hangs, .timeout = 0.5)
{
        for (;;)
                pause();
}

Test(alarm, leaks)
{
        volatile char *lost = malloc(1234);

        lost[0] = 1;
        lost = NULL;
}

Test(alarm, overflows)
{
        char *bytes = malloc(10);
        volatile size_t n = 10;

        ((volatile char *)bytes)[n] = 1;
        free(bytes);
}

Test(alarm, overflows_an_integer)
{
        volatile int n = INT_MAX;

        n = n + 1;
}
