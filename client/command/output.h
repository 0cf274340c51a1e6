/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Output: files that are there whole or not at all
 */

#include <ndbus/array.h>
#include "protocol/fault.h"

/* Longest path that this module makes below its folder. */
#define ND_OUTPUT_PATH_BYTES 1024u

/* A file under way. */
struct nd_output {
        int fd;
        int folder_fd;      /* where it will stand */
        char temporary[64]; /* its name until then; "": it has none */
        char name[256];
};

/**
 * nd_output_begin() - open a temporary file beside where the file will stand
 * @folder_fd:  folder, or AT_FDCWD
 * @path:       below it; folders on the way are made. Must not leave it: see nd_output_path()
 *
 * Return: 0, NDBUS_ESYSTEM
 */
int nd_output_begin(int folder_fd,
                    const char *path,
                    struct nd_output *ret_output,
                    struct nd_fault *fault);

/**
 * nd_output_commit() - give the file its name
 * @replace:  false: NDBUS_EINVAL if something has that name already, and the file stays under way
 */
int nd_output_commit(struct nd_output *output, bool replace, struct nd_fault *fault);

/* Ends a file that was not committed; nothing is left. After a commit it does nothing. */
void nd_output_abandon(struct nd_output *output);

/**
 * nd_output_path() - a path that a peer's name makes
 * @text:  a topic or the name of a frame
 *
 * Each segment becomes one file name: a leading '.', '%', control characters and, with @is_flat, '/'
 * are written as %XX, empty segments as "%"; segments too long for a file name are cut and end in a
 * hash. So no name leaves the folder, and different names stay different.
 */
void nd_output_path(const char *text, bool is_flat, char out[static ND_OUTPUT_PATH_BYTES]);

/**
 * nd_output_array() - write one array as .npy
 * @path:      without ".npy"
 * @other:     path to use if there is a file at @path already; NULL: replace it
 * @repeats_max:  bytes of a file whose array repeats elements; --broadcast-max
 * @ret_path:  the path that was used, with ".npy"
 * @ret_note:  what the file does not say, "" if nothing; see nd_npy_plan()
 */
int nd_output_array(int folder_fd,
                    const char *path,
                    const char *other,
                    const struct ndbus_array *array,
                    uint64_t repeats_max,
                    char ret_path[static ND_OUTPUT_PATH_BYTES],
                    char ret_note[static 160],
                    struct nd_fault *fault);
