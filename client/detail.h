/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Detail: what ndbus_detail() says about the calling thread's last failure
 *
 * All of these return the code they are given, so that a failure is one return statement.
 */

#include "protocol/fault.h"

/* A text made for the occasion. */
int nd_detail_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A text that is always there: costs a store, for failures that are a loop's daily business. */
int nd_detail_say(int code, const char *text);

/* "FIELD: text" of a fault; the code is the fault's. */
int nd_detail_fault(const struct nd_fault *fault);

/* The same text with another code: what was lost by it. */
int nd_detail_fault_as(int code, const struct nd_fault *fault);

/* The name of the function and errno, as NDBUS_ESYSTEM. */
int nd_detail_errno(const char *function, int error);
