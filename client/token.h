/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Token: the secret by which this end proves who it is, and the daemon that it is no stranger
 */

#include <limits.h>
#include "protocol/token.h"

struct nd_token {
        char name[ND_TOKEN_NAME_BYTES_MAX + 1]; /* "": none */
        char path[PATH_MAX];
};

/**
 * nd_token_parse() - from "NAME:FILE"
 * @field:  what to call it in @fault
 *
 * Return: 0; NDBUS_EINVAL
 */
int nd_token_parse(const char *text,
                   const char *field,
                   struct nd_token *ret,
                   struct nd_fault *fault);

/**
 * nd_token_prove() - both proofs of an exchange
 * @exchange:    all but the name is set
 * @ret_own:     what is sent
 * @ret_theirs:  what the daemon has to send
 *
 * Return: 0; NDBUS_EDENIED with the reason
 */
int nd_token_prove(const struct nd_token *token,
                   struct nd_token_exchange *exchange,
                   uint8_t ret_own[static ND_TOKEN_PROOF_BYTES],
                   uint8_t ret_theirs[static ND_TOKEN_PROOF_BYTES],
                   struct nd_fault *fault);
