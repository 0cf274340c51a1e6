/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * UTF-8
 *
 * Strings of the protocol are UTF-8, so that whoever receives one can hand it to a language whose
 * strings are Unicode. Checked once, where they come in.
 */

#include "protocol/base.h"

/* Well-formed by RFC 3629: shortest forms only, no surrogates, nothing above U+10FFFF. */
static inline bool nd_utf8_is_valid(const char *text, size_t n_text)
{
        const uint8_t *p = (const uint8_t *)text;
        size_t i = 0;

        while (i < n_text) {
                uint8_t low = 0x80, high = 0xbf; /* of the first continuation byte */
                size_t n_more;

                if (p[i] < 0x80) {
                        ++i;
                        continue;
                }
                if (p[i] < 0xc2 || p[i] > 0xf4)
                        return false;
                n_more = p[i] < 0xe0 ? 1 : p[i] < 0xf0 ? 2 : 3;
                if (n_more > n_text - i - 1)
                        return false;

                if (p[i] == 0xe0)
                        low = 0xa0;
                else if (p[i] == 0xed)
                        high = 0x9f;
                else if (p[i] == 0xf0)
                        low = 0x90;
                else if (p[i] == 0xf4)
                        high = 0x8f;
                if (p[i + 1] < low || p[i + 1] > high)
                        return false;
                for (size_t k = 2; k <= n_more; ++k) {
                        if (p[i + k] < 0x80 || p[i + k] > 0xbf)
                                return false;
                }
                i += n_more + 1;
        }
        return true;
}
