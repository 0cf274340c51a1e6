/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Names for mkstemp() and mkdtemp()
 */

#include <stdio.h>
#include <stdlib.h>

/** A name in $TMPDIR, else in /tmp, that says @what it is of, into [@n] bytes. */
static inline void nd_temporary_name(char *ret, size_t n, const char *what)
{
        const char *folder = getenv("TMPDIR");

        snprintf(ret, n, "%s/ndbus-%s-XXXXXX", folder ? folder : "/tmp", what);
}
