/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * .npy files: NumPy's format for one array, versions 1.0, 2.0 and 3.0
 */

#include <ndbus/array.h>
#include "protocol/fault.h"

/* A header longer than this is refused; NumPy itself asks for leave above 10,000 bytes. */
#define ND_NPY_HEADER_BYTES_MAX (1u << 20)

/* One array of an .npy file. */
struct nd_npy {
        struct ndbus_array array; /* data points into the bytes that were read */
        uint64_t data_offset;     /* where the elements begin */
        uint64_t data_bytes;
        uint64_t file_bytes; /* where they end: of header and elements together */
        bool has_titles;     /* fields have titles, which ndbus does not carry */
};

/* Do the bytes begin like an .npy file? */
bool nd_npy_is(const void *bytes, size_t n_bytes);

/**
 * nd_npy_read() - the array at the start of bytes
 * @bytes:    [@n_bytes], borrowed: the array's data points into them
 * @ret_npy:  nd_npy_free()
 *
 * Nothing is copied but the header. Object arrays are refused: they hold pickled Python objects,
 * which are never decoded.
 *
 * Return: 0; NDBUS_ECORRUPT; NDBUS_ETRUNCATED with the byte at which it ends; NDBUS_EDTYPE;
 *         NDBUS_ESHAPE; NDBUS_ELIMIT; NDBUS_EUNSUPPORTED a version that is not 1, 2 or 3;
 *         NDBUS_ENOMEM
 */
int nd_npy_read(const void *bytes, size_t n_bytes, struct nd_npy **ret_npy, struct nd_fault *fault);

/* Accepts NULL; returns NULL. */
struct nd_npy *nd_npy_free(struct nd_npy *npy);

ND_DEFINE_CLEANUP(struct nd_npy *, nd_npy_free);

/* How an array is written. */
struct nd_npy_plan {
        char *header; /* [n_header] magic, version, length and dict */
        size_t n_header;
        uint64_t data_bytes;
        uint32_t itemsize;
        bool as_it_lies; /* data_bytes from array->data on; else gathered to C order */
        int32_t ndim;    /* as written: lanes are one more dimension */
        int64_t shape[NDBUS_DIMS_MAX + 1];
        int64_t strides[NDBUS_DIMS_MAX + 1];
        char note[160]; /* what the file does not say: "bfloat16 written as |V2"; "" if nothing */
};

/**
 * nd_npy_plan() - decide how an array is written, and make its header
 * @array:     a valid array, strides of any sign
 * @ret_plan:  nd_npy_plan_deinit()
 *
 * What .npy has no name for is written as opaque bytes of the same width, and the note says so.
 *
 * Return: 0; NDBUS_ESHAPE if the elements' bytes do not fit 2^63; NDBUS_ENOMEM
 */
int nd_npy_plan(const struct ndbus_array *array,
                struct nd_npy_plan *ret_plan,
                struct nd_fault *fault);

void nd_npy_plan_deinit(struct nd_npy_plan *plan);

/**
 * nd_npy_check_repeats() - may an array whose elements share bytes be written out?
 * @bytes_max:  of the elements in the file: a few bytes with a broadcast axis can make any number
 * @name:       of the limit, for @fault
 *
 * Return: 0; NDBUS_ETOO_BIG
 */
int nd_npy_check_repeats(const struct ndbus_array *array,
                         const struct nd_npy_plan *plan,
                         uint64_t bytes_max,
                         const char *name,
                         struct nd_fault *fault);

/**
 * nd_npy_write() - write header and elements
 * @fd:     a file at the place where it begins
 *
 * Return: 0; NDBUS_ESYSTEM with errno's text
 */
int nd_npy_write(int fd,
                 const struct ndbus_array *array,
                 const struct nd_npy_plan *plan,
                 struct nd_fault *fault);

/* NumPy's letter for a dtype, in both directions. */
struct nd_npy_code {
        const char *name; /* NULL ends the list */
        char letter;
        uint32_t bytes; /* of one element */
};

extern const struct nd_npy_code nd_npy_codes[];

/* The unit of datetime64 as NumPy and ndbus spell it, or NULL if there is no such unit. */
const char *nd_npy_unit_find(const char *unit, size_t n_unit);
