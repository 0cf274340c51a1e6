/* SPDX-License-Identifier: MIT */

/*
 * Tokens, the client's side
 *
 * The secret is read from its file when it is needed and forgotten at once, so that it can be changed
 * under a program that runs, and no core dump holds it.
 *
 * HMAC-SHA-256 is Nettle's. Most programs never need it, so the library does not depend on it: it is
 * opened when a token is to be proved, and if it is not there that is said.
 */

#include "client/token.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/hmac.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* of Nettle 3.6 to 3.x, whose headers were compiled in */
#define TOKEN_LIBRARY "libnettle.so.8"

struct token_nettle {
        void *library;
        void (*set_key)(struct hmac_sha256_ctx *context, size_t n, const uint8_t *key);
        void (*update)(struct hmac_sha256_ctx *context, size_t n, const uint8_t *data);
        void (*digest)(struct hmac_sha256_ctx *context, size_t n, uint8_t *digest);
};

int nd_token_parse(const char *text,
                   const char *field,
                   struct nd_token *ret,
                   struct nd_fault *fault)
{
        size_t n = strcspn(text, ":");

        if (text[n] != ':' || !nd_token_name_is_valid(text, n) || text[n + 1] == '\0' ||
            strlen(text + n + 1) >= sizeof(ret->path))
                return nd_fault_set(
                        fault, NDBUS_EINVAL, field,
                        "'%.100s' is not NAME:FILE; a name has letters, digits and ._-, "
                        "at most 64",
                        text);
        *ret = (struct nd_token){.name = ""};
        memcpy(ret->name, text, n);
        strcpy(ret->path, text + n + 1);
        return 0;
}

static int token_refuse(const struct nd_token *token, const char *why, struct nd_fault *fault)
{
        return nd_fault_set(fault, NDBUS_EDENIED, "token", "%.150s: %s", token->path, why);
}

static int
token_read(const struct nd_token *token, struct nd_token_key *ret, struct nd_fault *fault)
{
        int fd = open(token->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        uint8_t data[ND_TOKEN_KEY_BYTES_MAX + 64];
        struct nd_fault why;
        struct stat status;
        ssize_t n = -1;
        int r = 0;

        if (fd < 0)
                return token_refuse(token, strerror(errno), fault);
        if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
                r = token_refuse(token, "is not a file", fault);
        else if (status.st_mode & S_IRWXO)
                r = token_refuse(token, "others may read it or write it; mode 0600 is wanted",
                                 fault);
        else if ((n = read(fd, data, sizeof(data))) < 0)
                r = token_refuse(token, strerror(errno), fault);
        close(fd);
        if (!r && nd_token_key_take(data, (size_t)n, ret, &why))
                r = token_refuse(token, why.text, fault);
        explicit_bzero(data, sizeof(data));
        return r;
}

/* ISO C knows no way from void * to a function. */
static bool token_find(void *library, const char *name, void *ret_function)
{
        void *found = dlsym(library, name);

        memcpy(ret_function, &found, sizeof(found));
        return found;
}

static int token_open_nettle(struct token_nettle *ret, struct nd_fault *fault)
{
        struct token_nettle nettle = {.library = dlopen(TOKEN_LIBRARY, RTLD_NOW | RTLD_LOCAL)};

        if (nettle.library &&
            token_find(nettle.library, "nettle_hmac_sha256_set_key", &nettle.set_key) &&
            token_find(nettle.library, "nettle_hmac_sha256_update", &nettle.update) &&
            token_find(nettle.library, "nettle_hmac_sha256_digest", &nettle.digest)) {
                *ret = nettle;
                return 0;
        }
        if (nettle.library)
                dlclose(nettle.library);
        return nd_fault_set(fault, NDBUS_EDENIED, "token",
                            TOKEN_LIBRARY " is needed to prove it, and is not there");
}

static void token_hmac(const struct token_nettle *nettle,
                       const struct nd_token_key *key,
                       const struct nd_token_exchange *exchange,
                       enum nd_token_side side,
                       uint8_t out[static ND_TOKEN_PROOF_BYTES])
{
        uint8_t text[ND_TOKEN_TEXT_BYTES_MAX];
        size_t n = nd_token_text(exchange, side, text);
        struct hmac_sha256_ctx context;

        nettle->set_key(&context, key->n, key->bytes);
        nettle->update(&context, n, text);
        nettle->digest(&context, ND_TOKEN_PROOF_BYTES, out);
        explicit_bzero(&context, sizeof(context));
}

int nd_token_prove(const struct nd_token *token,
                   struct nd_token_exchange *exchange,
                   uint8_t ret_own[static ND_TOKEN_PROOF_BYTES],
                   uint8_t ret_theirs[static ND_TOKEN_PROOF_BYTES],
                   struct nd_fault *fault)
{
        struct token_nettle nettle = {0};
        struct nd_token_key key;
        int r;

        r = token_open_nettle(&nettle, fault);
        if (r)
                return r;
        memcpy(exchange->name, token->name, sizeof(exchange->name));
        r = token_read(token, &key, fault);
        if (!r) {
                token_hmac(&nettle, &key, exchange, ND_TOKEN_CLIENT, ret_own);
                token_hmac(&nettle, &key, exchange, ND_TOKEN_DAEMON, ret_theirs);
                explicit_bzero(&key, sizeof(key));
        }
        dlclose(nettle.library);
        return r;
}
