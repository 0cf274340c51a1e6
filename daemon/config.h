/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Configuration file: options, one a line
 */

#include "daemon/option.h"

/**
 * nd_config_read() - set the options that a file names
 * @fault:  filled on failure: field is FILE:LINE, or FILE
 *
 * Return: 0; NDBUS_EINVAL; NDBUS_ESYSTEM if the file cannot be read
 */
int nd_config_read(const char *path, struct nd_options *options, struct nd_fault *fault);

/* In @fault, whose field is an option: says the place in the file instead, and the option in the text.
 * Return: what the fault's code is */
int nd_config_locate(const char *path, unsigned line, struct nd_fault *fault);
