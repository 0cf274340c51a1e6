/* SPDX-License-Identifier: MIT */

/*
 * Tokens
 *
 * Secrets are read at the start and at a reload, never while a client waits. HMAC-SHA-256 is Nettle's:
 * pure functions without state of their own, kept by people whose trade it is, and in Debian.
 * OpenSSL's was considered: it comes with an exit handler, locks, and five megabytes.
 */

#include "daemon/token.h"
#include <errno.h>
#include <fcntl.h>
#include <nettle/hmac.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct token {
        char name[ND_TOKEN_NAME_BYTES_MAX + 1];
        struct nd_token_key key;
};

struct nd_tokens {
        size_t n;
        struct token *tokens;
};

static const struct token *tokens_find(const struct nd_tokens *tokens, const char *name)
{
        for (size_t i = 0; tokens && i < tokens->n; ++i)
                if (strcmp(tokens->tokens[i].name, name) == 0)
                        return &tokens->tokens[i];
        return NULL;
}

static int token_check_file(int fd, const char *path, const char *field, struct nd_fault *fault)
{
        struct stat status;

        if (fstat(fd, &status) < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, field, "%s: %s", path, strerror(errno));
        if (!S_ISREG(status.st_mode))
                return nd_fault_set(fault, NDBUS_EINVAL, field, "%s: is not a file", path);
        if (status.st_uid != 0 && status.st_uid != geteuid())
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "%s: belongs to uid %u, neither to root nor to the daemon",
                                    path, status.st_uid);
        if (status.st_mode & (S_IRWXO | S_IWGRP))
                return nd_fault_set(
                        fault, NDBUS_EINVAL, field,
                        "%s: has mode %04o; others may read it or may write it, 0600 or "
                        "0640 is wanted",
                        path, status.st_mode & 07777u);
        return 0;
}

static int
token_read(const char *path, const char *field, struct nd_token_key *ret, struct nd_fault *fault)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
        uint8_t data[ND_TOKEN_KEY_BYTES_MAX + 64];
        struct nd_fault why;
        ssize_t n = 0;
        int r;

        if (fd < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, field, "%s: %s", path,
                                    errno == ELOOP ? "is a symbolic link" : strerror(errno));
        r = token_check_file(fd, path, field, fault);
        if (r == 0) {
                n = read(fd, data, sizeof(data));
                if (n < 0)
                        r = nd_fault_set(fault, NDBUS_ESYSTEM, field, "%s: %s", path,
                                         strerror(errno));
        }
        close(fd);
        if (r == 0 && nd_token_key_take(data, (size_t)n, ret, &why))
                r = nd_fault_set(fault, NDBUS_EINVAL, field, "%s: %s", path, why.text);
        explicit_bzero(data, sizeof(data));
        return r;
}

int nd_tokens_add(struct nd_tokens **tokens,
                  const char *text,
                  const char *field,
                  struct nd_fault *fault)
{
        size_t n_name = strcspn(text, " \t");
        const char *path = text + n_name + strspn(text + n_name, " \t");
        struct token token = {.name = ""};
        struct token *more = NULL;
        int r = 0;

        if (!nd_token_name_is_valid(text, n_name) || *path == '\0')
                return nd_fault_set(fault, NDBUS_EINVAL, field,
                                    "'%s' is not NAME FILE; a name has letters, digits and ._-, at "
                                    "most 64",
                                    text);
        memcpy(token.name, text, n_name);
        if (tokens_find(*tokens, token.name))
                r = nd_fault_set(fault, NDBUS_EINVAL, field, "'%s' is there twice", token.name);
        else if (*tokens && (*tokens)->n == ND_TOKENS_MAX)
                r = nd_fault_set_limit(fault, NDBUS_EINVAL, field, ND_TOKENS_MAX + 1, ND_TOKENS_MAX,
                                       "tokens");
        r = r ? r : token_read(path, field, &token.key, fault);
        if (r)
                return r;
        if (!*tokens)
                *tokens = calloc(1, sizeof(**tokens));
        if (*tokens)
                more = calloc((*tokens)->n + 1, sizeof(token));
        if (!more) {
                explicit_bzero(&token, sizeof(token));
                return nd_fault_set(fault, NDBUS_ENOMEM, field, "no memory");
        }
        if ((*tokens)->n > 0) {
                memcpy(more, (*tokens)->tokens, (*tokens)->n * sizeof(token));
                explicit_bzero((*tokens)->tokens, (*tokens)->n * sizeof(token));
        }
        free((*tokens)->tokens);
        more[(*tokens)->n++] = token;
        (*tokens)->tokens = more;
        explicit_bzero(&token, sizeof(token));
        return 0;
}

void nd_tokens_free(struct nd_tokens *tokens)
{
        if (!tokens)
                return;
        if (tokens->tokens)
                explicit_bzero(tokens->tokens, tokens->n * sizeof(*tokens->tokens));
        free(tokens->tokens);
        free(tokens);
}

bool nd_tokens_have(const struct nd_tokens *tokens, const char *name)
{
        return tokens_find(tokens, name);
}

bool nd_tokens_agree(const struct nd_tokens *a, const struct nd_tokens *b, const char *name)
{
        const struct token *of_a = tokens_find(a, name), *of_b = tokens_find(b, name);

        return of_a && of_b && of_a->key.n == of_b->key.n &&
               memcmp(of_a->key.bytes, of_b->key.bytes, of_a->key.n) == 0;
}

static void token_prove(const struct token *token,
                        const struct nd_token_exchange *exchange,
                        enum nd_token_side side,
                        uint8_t out[static ND_TOKEN_PROOF_BYTES])
{
        uint8_t text[ND_TOKEN_TEXT_BYTES_MAX];
        size_t n = nd_token_text(exchange, side, text);
        struct hmac_sha256_ctx context;

        _Static_assert(SHA256_DIGEST_SIZE == ND_TOKEN_PROOF_BYTES, "a proof is one digest");
        hmac_sha256_set_key(&context, token->key.n, token->key.bytes);
        hmac_sha256_update(&context, n, text);
        hmac_sha256_digest(&context, ND_TOKEN_PROOF_BYTES, out);
        explicit_bzero(&context, sizeof(context));
}

bool nd_tokens_check(const struct nd_tokens *tokens,
                     const struct nd_token_exchange *exchange,
                     const uint8_t proof[static ND_TOKEN_PROOF_BYTES],
                     uint8_t ret_answer[static ND_TOKEN_PROOF_BYTES])
{
        static const struct token nobody = {.key = {.n = 32}};
        const struct token *token = tokens_find(tokens, exchange->name);
        uint8_t right[ND_TOKEN_PROOF_BYTES];
        bool is_right;

        token_prove(token ? token : &nobody, exchange, ND_TOKEN_CLIENT, right);
        is_right = nd_token_proofs_are_equal(right, proof) && token;
        if (is_right)
                token_prove(token, exchange, ND_TOKEN_DAEMON, ret_answer);
        explicit_bzero(right, sizeof(right));
        return is_right;
}
