/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Tokens that the daemon knows: a name and a file that holds its secret
 */

#include "protocol/token.h"

#define ND_TOKENS_MAX 256u

struct nd_tokens;

/**
 * nd_tokens_add() - one more, read from its file
 * @tokens:  NULL at first: made
 * @text:    "NAME FILE"
 * @field:   what to call it in @fault
 *
 * The file must be a regular one, no symbolic link, of root or of the daemon's user, that others
 * cannot read and neither they nor the group can write.
 *
 * Return: 0; NDBUS_EINVAL, NDBUS_ESYSTEM, NDBUS_ENOMEM
 */
int nd_tokens_add(struct nd_tokens **tokens,
                  const char *text,
                  const char *field,
                  struct nd_fault *fault);

/* Forgets the secrets too. Accepts NULL. */
void nd_tokens_free(struct nd_tokens *tokens);

bool nd_tokens_have(const struct nd_tokens *tokens, const char *name);

/* Is the token of this name, and its secret, the same in both? */
bool nd_tokens_agree(const struct nd_tokens *a, const struct nd_tokens *b, const char *name);

/**
 * nd_tokens_check() - does the proof show that the client knows the secret of the exchange's name?
 * @ret_answer:  the daemon's own proof, if it does
 *
 * A name that is not known takes as long as one that is.
 */
bool nd_tokens_check(const struct nd_tokens *tokens,
                     const struct nd_token_exchange *exchange,
                     const uint8_t proof[static ND_TOKEN_PROOF_BYTES],
                     uint8_t ret_answer[static ND_TOKEN_PROOF_BYTES]);
