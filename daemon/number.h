/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Number: as an operator writes it
 */

#include "protocol/fault.h"

/**
 * nd_number_parse() - decimal digits, and of a size perhaps K, M, G or T in powers of 1024
 * @field:  what to call it in @fault
 *
 * Return: 0; NDBUS_EINVAL: it is none, or not from @least to @most
 */
int nd_number_parse(const char *text,
                    bool is_size,
                    uint64_t least,
                    uint64_t most,
                    const char *field,
                    uint64_t *ret,
                    struct nd_fault *fault);
