/* SPDX-License-Identifier: MIT */

/*
 * The bytes of tests about bytes
 *
 * 31 is odd, so P repeats every 256 bytes and no sooner: filling and checking go by memcpy() and
 * memcmp() of that period, fast enough for gigabytes. That P is the P of others is shown by its
 * SHA-256 once (test-pattern.c); after that a comparison with P says what a digest would say, and
 * where. The digest comes from a program, so that no library is needed for it.
 */

#include "tests/support/pattern.h"
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "protocol/base.h"

#define PATTERN_PERIOD      256u
#define PATTERN_BLOCK_BYTES (64u * 1024u)

/* P repeats, so an array of gigabytes can be one piece of memory that is mapped again and again. */
#define PATTERN_STRIPE_BYTES (UINT64_C(8) << 20)

extern char **environ;

static uint8_t pattern_block[PATTERN_BLOCK_BYTES + PATTERN_PERIOD];

__attribute__((constructor)) static void pattern_init(void)
{
        for (size_t i = 0; i < sizeof(pattern_block); ++i)
                pattern_block[i] = (uint8_t)(31 * i + 7);
}

void nd_pattern_fill(void *bytes, uint64_t offset, size_t n)
{
        uint8_t *to = bytes;

        while (n > 0) {
                size_t n_now = n < PATTERN_BLOCK_BYTES ? n : PATTERN_BLOCK_BYTES;

                memcpy(to, pattern_block + offset % PATTERN_PERIOD, n_now);
                to += n_now;
                offset += n_now;
                n -= n_now;
        }
}

size_t nd_pattern_compare(const void *bytes, uint64_t offset, size_t n)
{
        const uint8_t *from = bytes;

        for (size_t done = 0; done < n;) {
                size_t n_now = n - done < PATTERN_BLOCK_BYTES ? n - done : PATTERN_BLOCK_BYTES;
                const uint8_t *expected = pattern_block + (offset + done) % PATTERN_PERIOD;

                if (memcmp(from + done, expected, n_now) != 0) {
                        while (*expected == from[done]) {
                                ++expected;
                                ++done;
                        }
                        return done;
                }
                done += n_now;
        }
        return n;
}

static bool write_all(int fd, const uint8_t *bytes, size_t n)
{
        while (n > 0) {
                ssize_t written = write(fd, bytes, n);

                if (written <= 0)
                        return false;
                bytes += written;
                n -= (size_t)written;
        }
        return true;
}

static uint64_t pattern_mapped_bytes(uint64_t n)
{
        return (n + PATTERN_STRIPE_BYTES - 1) / PATTERN_STRIPE_BYTES * PATTERN_STRIPE_BYTES;
}

void *nd_pattern_map(uint64_t n)
{
        uint64_t n_mapped = pattern_mapped_bytes(n);
        int fd = memfd_create("pattern", MFD_CLOEXEC);
        uint8_t *all;

        if (fd < 0)
                return NULL;
        all = mmap(NULL, n_mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED || ftruncate(fd, PATTERN_STRIPE_BYTES) != 0) {
                close(fd);
                return NULL;
        }
        for (uint64_t at = 0; at < n_mapped; at += PATTERN_STRIPE_BYTES) {
                if (mmap(all + at, PATTERN_STRIPE_BYTES, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
                        close(fd);
                        return NULL;
                }
        }
        close(fd);
        nd_pattern_fill(all, 0, PATTERN_STRIPE_BYTES);
        return all;
}

void nd_pattern_unmap(void *bytes, uint64_t n)
{
        munmap(bytes, pattern_mapped_bytes(n));
}

void nd_sha256(const void *bytes, size_t n, char ret_hex[65])
{
        char *argv[] = {(char[]){"sha256sum"}, NULL};
        posix_spawn_file_actions_t actions;
        int in[2], out[2], status = -1;
        char hex[65] = "";
        bool ok;
        pid_t pid;

        if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
                abort();
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, in[0], 0);
        posix_spawn_file_actions_adddup2(&actions, out[1], 1);
        ok = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ) == 0;
        posix_spawn_file_actions_destroy(&actions);
        close(in[0]);
        close(out[1]);

        if (ok) {
                ok = write_all(in[1], bytes, n);
                close(in[1]);
                ok = ok && read(out[0], hex, 64) == 64;
                ok = waitpid(pid, &status, 0) == pid && status == 0 && ok;
        } else {
                close(in[1]);
        }
        close(out[0]);
        memcpy(ret_hex, ok ? hex : "", ok ? sizeof(hex) : 1);
}
