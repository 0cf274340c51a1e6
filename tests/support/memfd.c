/* SPDX-License-Identifier: MIT */

#include "tests/support/memfd.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include "protocol/base.h"

int nd_memfd_make(uint64_t n_bytes, uint64_t n_allocated, int seals)
{
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        nd_assert(fd >= 0);
        nd_assert(ftruncate(fd, (off_t)n_bytes) == 0);
        if (n_allocated > 0)
                nd_assert(fallocate(fd, 0, 0, (off_t)n_allocated) == 0);
        nd_assert(fcntl(fd, F_ADD_SEALS, seals) == 0);
        return fd;
}

int nd_memfd_reopen(int fd, int flags)
{
        char path[32];
        int again;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        again = open(path, flags | O_CLOEXEC);
        nd_assert(again >= 0);
        close(fd);
        return again;
}
