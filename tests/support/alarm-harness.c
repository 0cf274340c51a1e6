/* SPDX-License-Identifier: MIT */

/*
 * Harness runs that must fail: alarm-harness WHAT
 *
 * "fd": the test leaves a descriptor open. Anything else: what the fake daemon does.
 */

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/harness.h"

int main(int argc, char **argv)
{
        struct nd_harness *h;

        if (argc != 2 || setenv("FAKE_NDBUSD", argv[1], 1) != 0)
                return 2;
        h = nd_harness_start(NULL);
        if (strcmp(argv[1], "fd") == 0 && open("/dev/null", O_RDONLY) < 0)
                return 2;
        nd_harness_stop(h);
        return 0;
}
