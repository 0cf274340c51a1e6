/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * meta on the command line: KEY=VALUE in, JSON out
 */

#include "client/command/option.h"

/**
 * nd_meta_pack() - KEY=VALUE texts as a msgpack map
 * @ret_data:  malloc'd; free(). NULL if the list is empty
 *
 * Whole numbers become integers, other decimal numbers floats, true and false booleans, all else
 * strings; KEY="5" quotes make a string of anything.
 *
 * Return: 0; NDBUS_EINVAL; NDBUS_ENOMEM
 */
int nd_meta_pack(const struct nd_option_list *list,
                 void **ret_data,
                 size_t *ret_n_data,
                 struct nd_fault *fault);

/**
 * nd_meta_write_json() - a msgpack map as JSON on one line
 * @data:  [@n_data] bytes from a peer or a file
 *
 * bin becomes a string of hexadecimal digits with "hex:" in front; NaN and infinities become null;
 * control characters, and bytes that are no UTF-8, are escaped.
 *
 * Return: 0; NDBUS_EMETA, and nothing is written
 */
int nd_meta_write_json(FILE *out, const void *data, size_t n_data, struct nd_fault *fault);
