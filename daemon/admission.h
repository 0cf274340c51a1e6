/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Admission: who a client is, and what follows from it for its connection
 */

#include "protocol/control.h"
#include "protocol/fault.h"

struct nd_connection;
struct nd_sink;

/**
 * nd_admission_begin() - find out who it is and what it may do
 *
 * Return: 0; NDBUS_EDENIED if it may do nothing; NDBUS_ENO_SPACE, NDBUS_ENOMEM
 */
int nd_admission_begin(struct nd_connection *connection, struct nd_fault *fault);

/* The rules have changed: what it may no longer do ends, with the reason. */
void nd_admission_renew(struct nd_connection *connection);

void nd_admission_end(struct nd_connection *connection);

/* May it subscribe so? 0; NDBUS_EDENIED */
int nd_admission_check_subscribe(const struct nd_connection *connection,
                                 const struct nd_subscribe *ask,
                                 struct nd_fault *fault);

/* Of a sink that is not a group's: what its member may not see is kept from it. */
void nd_admission_filter(const struct nd_connection *connection, struct nd_sink *sink);
