/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Tokens: a secret that two ends share, by name; PROTOCOL.md 4.6
 *
 * Here is what they agree on: which names there are, what a file of one holds, and which bytes each
 * end proves the secret with. The arithmetic is a library's, chosen by each end.
 */

#include "protocol/fault.h"
#include "protocol/limit.h"

/* Who proves it: the other's proof must not serve as one's own. */
enum nd_token_side {
        ND_TOKEN_CLIENT = 'C',
        ND_TOKEN_DAEMON = 'D',
};

struct nd_token_exchange {
        uint8_t client_hello[ND_HELLO_BYTES];
        uint8_t daemon_hello[ND_HELLO_BYTES];
        uint8_t daemon_nonce[ND_TOKEN_NONCE_BYTES];
        uint8_t client_nonce[ND_TOKEN_NONCE_BYTES];
        char name[ND_TOKEN_NAME_BYTES_MAX + 1];
};

#define ND_TOKEN_TEXT_BYTES_MAX                                                                    \
        (16u + 1u + 2u * ND_HELLO_BYTES + 2u * ND_TOKEN_NONCE_BYTES + ND_TOKEN_NAME_BYTES_MAX)

/* The bytes of which a proof is the HMAC-SHA-256 under the secret. Return: how many */
size_t nd_token_text(const struct nd_token_exchange *exchange,
                     enum nd_token_side side,
                     uint8_t out[static ND_TOKEN_TEXT_BYTES_MAX]);

/* 1 to 64 of A-Z a-z 0-9 . _ - */
bool nd_token_name_is_valid(const char *name, size_t n_name);

struct nd_token_key {
        uint8_t bytes[ND_TOKEN_KEY_BYTES_MAX];
        size_t n;
};

/**
 * nd_token_key_take() - the secret in what a file holds
 * @data:  [@n_data] all of the file; white space at its end does not belong to the secret
 *
 * Return: 0; NDBUS_EINVAL for one that is shorter than 16 bytes or longer than 1024
 */
int nd_token_key_take(const void *data,
                      size_t n_data,
                      struct nd_token_key *ret,
                      struct nd_fault *fault);

/* Are they the same? Takes as long whatever they hold. */
bool nd_token_proofs_are_equal(const uint8_t a[static ND_TOKEN_PROOF_BYTES],
                               const uint8_t b[static ND_TOKEN_PROOF_BYTES]);
