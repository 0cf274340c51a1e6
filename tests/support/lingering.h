/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Lingering: descriptors whose last close does not return
 *
 * Each is one end of a TCP connection whose other end does not read, with all sent that it takes.
 */

/** Both ends: the last close of ret_fds[0] waits for a minute, or until ret_fds[1] is closed. */
void nd_lingering_make(int ret_fds[static 2]);

/**
 * The same within a Unix socket, where setting the option has no way to it: the last close of *ret_fd
 * closes it. Returned is the end that does not read.
 */
int nd_lingering_make_nested(int *ret_fd);
