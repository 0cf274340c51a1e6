/* SPDX-License-Identifier: MIT */

/*
 * Tokens
 *
 * A proof is made over everything that the two ends have said so far that could have been chosen by
 * somebody in between: both hellos, both nonces, the name. All parts but the last have fixed lengths,
 * so no two exchanges give the same bytes. The side stands in front: a proof that was reflected is
 * the wrong one.
 */

#include "protocol/token.h"
#include <string.h>

static const char token_label[16] = "ndbus token 1";

size_t nd_token_text(const struct nd_token_exchange *exchange,
                     enum nd_token_side side,
                     uint8_t out[static ND_TOKEN_TEXT_BYTES_MAX])
{
        const struct {
                const void *at;
                size_t n;
        } parts[] = {
                {token_label, sizeof(token_label)},
                {&(const uint8_t){(uint8_t)side}, 1},
                {exchange->client_hello, sizeof(exchange->client_hello)},
                {exchange->daemon_hello, sizeof(exchange->daemon_hello)},
                {exchange->daemon_nonce, sizeof(exchange->daemon_nonce)},
                {exchange->client_nonce, sizeof(exchange->client_nonce)},
                {exchange->name, strnlen(exchange->name, ND_TOKEN_NAME_BYTES_MAX)},
        };

        size_t n = 0;

        for (size_t i = 0; i < nd_array_size(parts); ++i) {
                memcpy(out + n, parts[i].at, parts[i].n);
                n += parts[i].n;
        }
        return n;
}

bool nd_token_name_is_valid(const char *name, size_t n_name)
{
        if (n_name == 0 || n_name > ND_TOKEN_NAME_BYTES_MAX)
                return false;
        for (size_t i = 0; i < n_name; ++i) {
                char c = name[i];

                if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
                    c != '.' && c != '_' && c != '-')
                        return false;
        }
        return true;
}

int nd_token_key_take(const void *data,
                      size_t n_data,
                      struct nd_token_key *ret,
                      struct nd_fault *fault)
{
        const uint8_t *bytes = data;

        while (n_data > 0 && (bytes[n_data - 1] == '\n' || bytes[n_data - 1] == '\r' ||
                              bytes[n_data - 1] == ' ' || bytes[n_data - 1] == '\t'))
                --n_data;
        if (n_data < ND_TOKEN_KEY_BYTES_MIN || n_data > ND_TOKEN_KEY_BYTES_MAX)
                return nd_fault_set(fault, NDBUS_EINVAL, "token",
                                    "holds a secret of %zu bytes, %u to %u are wanted", n_data,
                                    ND_TOKEN_KEY_BYTES_MIN, ND_TOKEN_KEY_BYTES_MAX);
        memcpy(ret->bytes, bytes, n_data);
        ret->n = n_data;
        return 0;
}

bool nd_token_proofs_are_equal(const uint8_t a[static ND_TOKEN_PROOF_BYTES],
                               const uint8_t b[static ND_TOKEN_PROOF_BYTES])
{
        volatile uint8_t difference = 0;

        for (size_t i = 0; i < ND_TOKEN_PROOF_BYTES; ++i)
                difference = (uint8_t)(difference | (a[i] ^ b[i]));
        return difference == 0;
}
