/* SPDX-License-Identifier: MIT */

/*
 * Tokens: the daemon's files, and proofs that were made by another HMAC-SHA-256 than its own
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/token.h"
#include "tests/support/temporary.h"

static char folder[64], path[96];

static void make_folder(void)
{
        nd_temporary_name(folder, sizeof(folder), "token");
        cr_assert(mkdtemp(folder));
        snprintf(path, sizeof(path), "%s/secret", folder);
}

static void remove_folder(void)
{
        unlink(path);
        rmdir(folder);
}

TestSuite(token, .init = make_folder, .fini = remove_folder);

static void write_secret(const char *text)
{
        FILE *file = fopen(path, "we");

        cr_assert(file);
        fputs(text, file);
        fclose(file);
        cr_assert_eq(chmod(path, 0600), 0);
}

static int add(struct nd_tokens **tokens, const char *name, struct nd_fault *fault)
{
        char text[200];

        snprintf(text, sizeof(text), "%s %s", name, path);
        return nd_tokens_add(tokens, text, "token", fault);
}

/* The exchange of PROTOCOL.md's example. */
static void make_exchange(struct nd_token_exchange *ret)
{
        *ret = (struct nd_token_exchange){
                .client_hello = {'N', 'D', 'B', 'U', 'S', 0, 1, 1},
                .daemon_hello = {'N', 'D', 'B', 'U', 'S', 0, 1, 0, 1, 1},
                .name = "lab",
        };
        for (unsigned i = 0; i < 32; ++i) {
                ret->daemon_nonce[i] = (uint8_t)i;
                ret->client_nonce[i] = (uint8_t)(32 + i);
        }
}

static const uint8_t of_client[32] = {0xf0, 0xd6, 0x85, 0x40, 0xee, 0xed, 0xa1, 0x3a,
                                      0x3e, 0x51, 0x86, 0xcb, 0xbd, 0x8e, 0xf6, 0x75,
                                      0x26, 0x76, 0x14, 0xfa, 0x59, 0xec, 0x7c, 0x39,
                                      0x19, 0xbc, 0x1f, 0x4e, 0xec, 0x64, 0x24, 0x01};
static const uint8_t of_daemon[32] = {0x12, 0x5d, 0x26, 0x9e, 0xe1, 0x02, 0x72, 0x4a,
                                      0x3d, 0xf7, 0x04, 0x2c, 0xfd, 0xb8, 0x41, 0xb0,
                                      0xb7, 0x22, 0x9d, 0xa2, 0x2f, 0x3b, 0x1b, 0xd0,
                                      0xe7, 0x12, 0xa0, 0x72, 0x0a, 0xa5, 0x36, 0x97};

Test(token, the_example_is_proved)
{
        struct nd_tokens *tokens = NULL;
        struct nd_token_exchange exchange;
        struct nd_fault fault;
        uint8_t answer[32] = {0};

        write_secret("correct horse battery staple \t\r\n");
        cr_assert_eq(add(&tokens, "lab", &fault), 0, "%s", fault.text);
        make_exchange(&exchange);
        cr_expect(nd_tokens_check(tokens, &exchange, of_client, answer));
        cr_expect_arr_eq(answer, of_daemon, 32);
        cr_expect_not(nd_tokens_check(tokens, &exchange, of_daemon, answer));
        nd_tokens_free(tokens);
}

/* Whatever is changed of it, it is no proof. */
Test(token, every_byte_of_the_exchange_matters)
{
        struct nd_tokens *tokens = NULL;
        struct nd_token_exchange exchange;
        struct nd_fault fault;
        uint8_t answer[32], proof[32];
        uint8_t *bytes = (uint8_t *)&exchange;

        write_secret("correct horse battery staple");
        cr_assert_eq(add(&tokens, "lab", &fault), 0);
        make_exchange(&exchange);
        for (size_t i = 0; i < offsetof(struct nd_token_exchange, name) + 3; ++i) {
                bytes[i] ^= 1;
                cr_expect_not(nd_tokens_check(tokens, &exchange, of_client, answer), "byte %zu", i);
                bytes[i] ^= 1;
        }
        for (size_t i = 0; i < 32; ++i) {
                memcpy(proof, of_client, sizeof(proof));
                proof[i] ^= 0x10;
                cr_expect_not(nd_tokens_check(tokens, &exchange, proof, answer), "proof %zu", i);
        }
        cr_expect(nd_tokens_check(tokens, &exchange, of_client, answer));
        cr_expect_not(nd_tokens_check(NULL, &exchange, of_client, answer));
        nd_tokens_free(tokens);
}

Test(token, several_and_their_secrets)
{
        struct nd_tokens *a = NULL, *b = NULL;
        struct nd_fault fault;
        char name[16];

        write_secret("0123456789abcdef");
        for (unsigned i = 0; i < ND_TOKENS_MAX; ++i) {
                snprintf(name, sizeof(name), "t%u", i);
                cr_assert_eq(add(&a, name, &fault), 0);
        }
        cr_expect_eq(add(&a, "more", &fault), NDBUS_EINVAL);
        cr_expect_eq(fault.limit, ND_TOKENS_MAX);
        cr_expect(nd_tokens_have(a, "t0") && nd_tokens_have(a, "t255"));
        cr_expect_not(nd_tokens_have(a, "t256") || nd_tokens_have(NULL, "t0"));
        cr_expect_eq(add(&b, "t0", &fault), 0);
        write_secret("0123456789abcdeF");
        cr_expect_eq(add(&b, "t1", &fault), 0);
        cr_expect(nd_tokens_agree(a, b, "t0"));
        cr_expect_not(nd_tokens_agree(a, b, "t1") || nd_tokens_agree(a, b, "t2"));
        nd_tokens_free(a);
        nd_tokens_free(b);
}

Test(token, names)
{
        static const char *const good[] = {"a", "A.b_c-9", "-"};
        static const char *const bad[] = {"", "a/b", "a:b", "a b", "\xc3\xa4", "a\n"};
        static const char longest[] =
                "0123456789012345678901234567890123456789012345678901234567890123";

        for (size_t i = 0; i < nd_array_size(good); ++i)
                cr_expect(nd_token_name_is_valid(good[i], strlen(good[i])), "%s", good[i]);
        for (size_t i = 0; i < nd_array_size(bad); ++i)
                cr_expect_not(nd_token_name_is_valid(bad[i], strlen(bad[i])), "%s", bad[i]);
        cr_expect(nd_token_name_is_valid(longest, 64));
        cr_expect_not(nd_token_name_is_valid(longest, 65));
}
