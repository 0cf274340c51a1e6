/* SPDX-License-Identifier: MIT */

/*
 * Segment
 *
 * A memfd has no name, so nothing is left behind whatever dies, and it goes to others by their socket
 * alone, so no rights need to be arranged. Seals make it safe to read for who does not trust its
 * maker: it cannot shrink (a reader would get SIGBUS), nor grow, nor lose pages by punching holes,
 * and nobody but its maker, who mapped it before, can write to it. What seals do not forbid is that
 * it never had pages: a reader who touches a hole pays for the page, and dies if there is none. So a
 * segment must be allocated whole, which st_blocks shows.
 */

#include "protocol/shm/segment.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/limit.h"
#include "protocol/shm/memfd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define SEGMENT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static int segment_map_write(struct nd_segment *segment, int populate, struct nd_fault *fault)
{
        void *base = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | populate,
                          segment->fd, 0);

        if (base == MAP_FAILED)
                return nd_memfd_fail("mmap", fault);
        segment->base = base;
        if (madvise(base, segment->bytes, MADV_DONTFORK) < 0)
                return nd_memfd_fail("madvise", fault);
        return 0;
}

static int segment_create(uint64_t bytes,
                          const struct nd_room *room,
                          bool is_bare,
                          struct nd_segment *ret,
                          struct nd_fault *fault)
{
        struct nd_segment segment = {.bytes = bytes};
        int r;

        nd_assert(bytes > 0 && bytes % ND_SEGMENT_UNIT_BYTES == 0);
        r = nd_room_check(room, bytes, fault);
        if (r)
                return r;
        segment.fd = nd_memfd_open("ndbus");
        if (segment.fd < 0)
                return nd_memfd_fail("memfd_create", fault);
        if (!is_bare)
                r = nd_memfd_allocate(segment.fd, 0, bytes, fault);
        else if (ftruncate(segment.fd, (off_t)bytes) < 0)
                r = nd_memfd_fail("ftruncate", fault);
        if (r == 0)
                r = segment_map_write(&segment, is_bare ? 0 : MAP_POPULATE, fault);
        if (r == 0 && fcntl(segment.fd, F_ADD_SEALS, SEGMENT_SEALS) < 0)
                r = nd_memfd_fail("F_ADD_SEALS", fault);
        if (r) {
                nd_segment_close(&segment);
                return r;
        }
        *ret = segment;
        return 0;
}

int nd_segment_create(uint64_t bytes,
                      const struct nd_room *room,
                      struct nd_segment *ret,
                      struct nd_fault *fault)
{
        return segment_create(bytes, room, false, ret, fault);
}

int nd_segment_create_bare(uint64_t bytes,
                           const struct nd_room *room,
                           struct nd_segment *ret,
                           struct nd_fault *fault)
{
        return segment_create(bytes, room, true, ret, fault);
}

int nd_segment_fill(const struct nd_segment *segment,
                    uint64_t from,
                    uint64_t to,
                    struct nd_fault *fault)
{
        int r = nd_memfd_allocate(segment->fd, from, to, fault);

        if (r == 0 && from < to) /* what an older kernel does not do here, the first touch does */
                (void)madvise(segment->base + from, to - from, MADV_POPULATE_WRITE);
        return r;
}

/* Is all of it allocated? What lies past its end, where it could make up for holes, goes when the file is
 * given the length that it has. */
static int segment_check_blocks(int fd, uint64_t bytes, struct nd_fault *fault)
{
        struct stat st;

        if (ftruncate(fd, (off_t)bytes) < 0 || fstat(fd, &st) < 0)
                return nd_fault_set(fault, NDBUS_ESHM, "fd", "ftruncate() fails: %s",
                                    strerror(errno));
        if (st.st_blocks < 0 || (uint64_t)st.st_blocks < bytes / 512)
                return nd_fault_set(fault, NDBUS_ESHM, "fd",
                                    "has holes: %lld of %llu blocks are allocated",
                                    (long long)st.st_blocks, (unsigned long long)(bytes / 512));
        return 0;
}

int nd_segment_check(int fd, uint64_t bytes, struct nd_fault *fault)
{
        int seals = fcntl(fd, F_GET_SEALS);
        int mode = fcntl(fd, F_GETFL);
        struct stat st;

        if (seals < 0 || mode < 0 || fstat(fd, &st) < 0)
                return nd_fault_set(fault, NDBUS_ESHM, "fd", "is not a memfd");
        mode &= O_ACCMODE;
        if (mode != O_RDWR)
                return nd_fault_set(fault, NDBUS_ESHM, "fd",
                                    "is open in access mode %d; %d, for reading and writing, is "
                                    "needed",
                                    mode, O_RDWR);
        if ((seals & SEGMENT_SEALS) != SEGMENT_SEALS)
                return nd_fault_set(fault, NDBUS_ESHM, "seals", "are %#x, at least %#x are needed",
                                    (unsigned)seals, (unsigned)SEGMENT_SEALS);
        if (bytes == 0 || bytes % ND_SEGMENT_UNIT_BYTES != 0)
                return nd_fault_set(fault, NDBUS_ESHM, "place",
                                    "is %llu bytes, which is no positive multiple of %u",
                                    (unsigned long long)bytes, ND_SEGMENT_UNIT_BYTES);
        if (st.st_size < 0 || (uint64_t)st.st_size != bytes)
                return nd_fault_set(fault, NDBUS_ESHM, "place",
                                    "is %llu bytes, but the memfd has %lld",
                                    (unsigned long long)bytes, (long long)st.st_size);
        return segment_check_blocks(fd, bytes, fault);
}

int nd_segment_map_read(int fd, uint64_t bytes, struct nd_segment *ret, struct nd_fault *fault)
{
        void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);

        if (base == MAP_FAILED) {
                nd_memfd_fail("mmap", fault);
                if (fault)
                        fault->code = NDBUS_ESYSTEM;
                return NDBUS_ESYSTEM;
        }
        *ret = (struct nd_segment){.fd = fd, .base = base, .bytes = bytes};
        return 0;
}

void nd_segment_close_fd(struct nd_segment *segment)
{
        if (segment->fd >= 0)
                close(segment->fd);
        segment->fd = -1;
}

void nd_segment_close(struct nd_segment *segment)
{
        if (segment->base)
                munmap(segment->base, segment->bytes);
        segment->base = NULL;
        nd_segment_close_fd(segment);
}
