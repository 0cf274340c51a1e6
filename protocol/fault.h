/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Fault: an error as it is told to somebody
 *
 * A function of this folder that can refuse what a peer, a file or a user gave returns a negative
 * enum ndbus_err and fills a fault: which field, which value, which limit. The daemon sends it as
 * an ERROR packet, the client library shows it through ndbus_detail().
 */

#include <ndbus/error.h>
#include "protocol/base.h"

struct nd_fault {
        int code;         /* negative enum ndbus_err; 0: none */
        char field[48];   /* "frames[2].shape", "topic", "--depth"; "" if it is about no field */
        char text[208];   /* a sentence without full stop: field, value, limit */
        bool has_numbers; /* value and limit mean something */
        uint64_t value;
        uint64_t limit;
};

/**
 * nd_fault_set() - fill a fault and return its code
 * @fault:  where it goes; may be NULL, then only the code is returned
 * @code:   negative enum ndbus_err
 * @field:  which field; borrowed for the call; cut to fit
 * @format: printf format of the sentence; it is put behind "FIELD: " by whoever shows it, so it
 *          does not repeat the field; bytes that are not printable ASCII are shown as '?'
 *
 * Return: @code
 */
int nd_fault_set(struct nd_fault *fault, int code, const char *field, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* The same, with numbers kept: @value, and the @limit that it broke. */
int nd_fault_set_numbers(struct nd_fault *fault,
                         int code,
                         const char *field,
                         uint64_t value,
                         uint64_t limit,
                         const char *format,
                         ...) __attribute__((format(printf, 6, 7)));

/* The same for "is VALUE, must be WANTED", where only one value is right. @unit: "bytes" or "". */
int nd_fault_set_exact(struct nd_fault *fault,
                       int code,
                       const char *field,
                       uint64_t value,
                       uint64_t wanted,
                       const char *unit);

/* The same for "is VALUE, the limit is LIMIT", with both numbers kept. @unit: "bytes" or "". */
int nd_fault_set_limit(struct nd_fault *fault,
                       int code,
                       const char *field,
                       uint64_t value,
                       uint64_t limit,
                       const char *unit);
