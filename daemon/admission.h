/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Admission: who a client is, and what follows from it for its connection
 */

#include "protocol/control.h"
#include "protocol/fault.h"

struct nd_connection;
struct nd_sink;

struct nd_auth;
struct nd_tokens;

/* On a Unix socket it is known who it is as soon as it is accepted: it is counted, and if its identity
 * has far more connections than it may, it is closed at once. */
void nd_admission_arrive(struct nd_connection *connection);

enum {
        ND_ADMISSION_E_ASKED, /* it is to prove a token */

        ND_ADMISSION_E_OPEN, /* no token is needed */
};

/* What a client says of itself goes into logs and tables: printable ASCII, nothing else. */
void nd_admission_copy_name(struct nd_string name, char *out, size_t n_out);

/**
 * nd_admission_ask() - is a token to be proved?
 * @token:    the name that the client gave; or absent
 * @ret_ask:  what to send if so; borrowed from the connection
 *
 * Return: ND_ADMISSION_E_...; NDBUS_EDENIED, NDBUS_ENO_SPACE, NDBUS_ENOMEM
 */
int nd_admission_ask(struct nd_connection *connection,
                     struct nd_string token,
                     struct nd_auth *ret_ask,
                     struct nd_fault *fault);

/* Did it prove it? If not, it is DENIED after a while: nothing is to be done. @ret_proof: the
 * daemon's own, if it did */
bool nd_admission_prove(struct nd_connection *connection,
                        const struct nd_auth *auth,
                        uint8_t *ret_proof);

/* The while is over. */
void nd_admission_deny(struct nd_connection *connection);

/**
 * nd_admission_begin() - find out who it is and what it may do
 *
 * Return: 0; NDBUS_EDENIED if it may do nothing; NDBUS_ELIMIT if its identity has as many connections
 *         as it may; NDBUS_ENO_SPACE, NDBUS_ENOMEM
 */
int nd_admission_begin(struct nd_connection *connection, struct nd_fault *fault);

/* Rules, limits and tokens have changed: what it may no longer do ends, with the reason. @old: the tokens
 * that were in force */
void nd_admission_renew(struct nd_connection *connection, const struct nd_tokens *old);

void nd_admission_end(struct nd_connection *connection);

/* May it subscribe so? 0; NDBUS_EDENIED */
int nd_admission_check_subscribe(const struct nd_connection *connection,
                                 const struct nd_subscribe *ask,
                                 struct nd_fault *fault);

/* Of a sink that is not a group's: what its member may not see is kept from it. */
void nd_admission_filter(const struct nd_connection *connection, struct nd_sink *sink);
