/* SPDX-License-Identifier: MIT */

/*
 * memfd
 */

#include "protocol/shm/memfd.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* Linux 6.3 */
#endif

/* Allocated in pieces: in older kernels a signal undoes the whole call that it interrupts, and one that
 * comes at intervals would do so forever */
#define MEMFD_PIECE_BYTES (UINT64_C(1) << 20)

int nd_memfd_open(const char *name)
{
        static const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
        int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

        if (fd < 0 && errno == EINVAL)
                fd = memfd_create(name, flags);
        return fd;
}

int nd_memfd_allocate(int fd, uint64_t from, uint64_t to, struct nd_fault *fault)
{
        uint64_t n;

        while (from < to) {
                n = nd_min_u64(to - from, MEMFD_PIECE_BYTES);
                if (fallocate(fd, 0, (off_t)from, (off_t)n) == 0)
                        from += n;
                else if (errno != EINTR)
                        return nd_memfd_fail("fallocate", fault);
        }
        return 0;
}

int nd_memfd_fail(const char *call, struct nd_fault *fault)
{
        int error = errno;

        if (error == EMFILE || error == ENFILE)
                return nd_fault_set(fault, NDBUS_ENO_FD, call, "fails: %s", strerror(error));
        if (error == ENOSPC || error == ENOMEM)
                return nd_fault_set(fault, NDBUS_ENO_SPACE, call, "fails: %s", strerror(error));
        return nd_fault_set(fault, NDBUS_ESYSTEM, call, "fails: %s", strerror(error));
}
