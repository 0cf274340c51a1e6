/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Stat: reading the daemon's numbers, and showing them
 */

#include <msgpack.h>
#include <ndbus/ndbus.h>
#include "protocol/base.h"

#define ND_STAT_CELL_BYTES 300

enum nd_stat_format {
        ND_STAT_TEXT,   /* to the left */
        ND_STAT_NUMBER, /* to the right */
        ND_STAT_BYTES,  /* 1.5M */
        ND_STAT_TIME,   /* nanoseconds, as "1.5 s" */
        ND_STAT_HEX,
        ND_STAT_BOOL,
};

/* @value may be NULL: "-". @out: [ND_STAT_CELL_BYTES] */
void nd_stat_format_cell(const msgpack_object *value, enum nd_stat_format format, char *out);

/* Columns of characters, not bytes. */
int nd_stat_width(const char *text);
void nd_stat_write_cell(const char *text, int width, bool is_left, bool is_last);

/**
 * nd_stat_watch() - the topics again and again, with rates
 * @n_tables:  0: until interrupted
 *
 * Return: an exit status
 */
int nd_stat_watch(struct ndbus *bus, int period_ms, uint64_t n_tables, int timeout_ms);
