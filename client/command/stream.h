/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Streams: standard input, output and error, also where somebody has closed them
 */

#include "protocol/fault.h"

/**
 * nd_streams_open() - put something in the place of each that is closed
 *
 * To be called before anything is opened: the number of a closed one is what the next open() or
 * socket() returns, and what is printed would go there.
 *
 * Return: false: it cannot be done
 */
bool nd_streams_open(void);

/* Was it closed when nd_streams_open() came? @number: STDIN_FILENO to STDERR_FILENO */
bool nd_stream_is_closed(int number);

/* A duplicate above the three, to be closed. NDBUS_ESYSTEM if the stream was closed. */
int nd_stream_duplicate(int number, int *ret_fd, struct nd_fault *fault);
