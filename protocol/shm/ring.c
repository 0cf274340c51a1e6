/* SPDX-License-Identifier: MIT */

/*
 * Ring
 *
 * The client writes bytes, then where they end; the daemon reads where they end, then the bytes. The
 * daemon says that it sleeps and then looks whether something was written; the client writes and then
 * looks whether the daemon sleeps. These four are sequentially consistent, so one of the two finds
 * what the other did.
 *
 * The daemon seals the file, once it has mapped it: it can neither shrink nor lose pages then, so that
 * touching it is safe, and nobody else can map it for writing.
 */

#include "protocol/shm/ring.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "protocol/shm/memfd.h"

#define RING_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

_Static_assert(sizeof(struct nd_ring_head) <= ND_RING_HEAD_BYTES, "it lies before the data");
_Static_assert(ND_RING_FILE_BYTES % ND_SEGMENT_UNIT_BYTES == 0, "pages are mapped");

static void *ring_map(int fd)
{
        return mmap(NULL, ND_RING_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static struct nd_ring ring_at(void *base)
{
        return (struct nd_ring){.head = base, .data = (uint8_t *)base + ND_RING_HEAD_BYTES};
}

int nd_ring_create(struct nd_ring *ret, int *ret_fd, struct nd_fault *fault)
{
        void *base = MAP_FAILED;
        int fd = nd_memfd_open("ndbus-ring"), r;

        if (fd < 0)
                return nd_memfd_fail("memfd_create", fault);
        r = nd_memfd_allocate(fd, 0, ND_RING_FILE_BYTES, fault);
        if (r == 0) {
                base = ring_map(fd);
                if (base == MAP_FAILED)
                        r = nd_memfd_fail("mmap", fault);
                else if (madvise(base, ND_RING_FILE_BYTES, MADV_DONTFORK) < 0)
                        r = nd_memfd_fail("madvise", fault);
        }
        if (r) {
                if (base != MAP_FAILED)
                        munmap(base, ND_RING_FILE_BYTES);
                close(fd);
                return r;
        }
        *ret = ring_at(base);
        *ret_fd = fd;
        return 0;
}

static int ring_check_size(int fd, struct stat *ret_st, struct nd_fault *fault)
{
        if (fstat(fd, ret_st) < 0)
                return nd_fault_set(fault, NDBUS_ESHM, "fd", "fstat() fails: %s", strerror(errno));
        if (ret_st->st_size != ND_RING_FILE_BYTES)
                return nd_fault_set(fault, NDBUS_ESHM, "fd", "has %lld bytes, must have %u",
                                    (long long)ret_st->st_size, ND_RING_FILE_BYTES);
        return 0;
}

/* It is a memfd and mapped; nobody touches it yet. */
static int ring_seal(int fd, struct nd_fault *fault)
{
        struct stat st;
        int r;

        if (fcntl(fd, F_ADD_SEALS, RING_SEALS) < 0)
                return nd_fault_set(fault, NDBUS_ESHM, "seals", "%#x cannot be added: %s",
                                    (unsigned)RING_SEALS, strerror(errno));
        r = ring_check_size(fd, &st, fault);
        if (r < 0)
                return r;
        if (st.st_blocks < ND_RING_FILE_BYTES / 512)
                return nd_fault_set(fault, NDBUS_ESHM, "fd",
                                    "has holes: %lld of %u blocks are allocated",
                                    (long long)st.st_blocks, ND_RING_FILE_BYTES / 512);
        /* blocks past its end were counted too */
        return nd_memfd_allocate(fd, 0, ND_RING_FILE_BYTES, fault);
}

int nd_ring_map(int fd, uint64_t bytes, struct nd_ring *ret, struct nd_fault *fault)
{
        struct stat st;
        void *base;
        int r;

        if (fcntl(fd, F_GET_SEALS) < 0) /* before anything is asked of who made it */
                return nd_fault_set(fault, NDBUS_ESHM, "fd", "is not a memfd");
        if (bytes != ND_RING_FILE_BYTES)
                return nd_fault_set_exact(fault, NDBUS_ESHM, "place", bytes, ND_RING_FILE_BYTES,
                                          "bytes");
        r = ring_check_size(fd, &st, fault); /* so much of a huge page could not be unmapped */
        if (r < 0)
                return r;
        base = ring_map(fd);
        if (base == MAP_FAILED && (errno == EACCES || errno == EPERM || errno == EINVAL))
                return nd_fault_set(fault, NDBUS_ESHM, "fd",
                                    "cannot be mapped for reading and writing: %s",
                                    strerror(errno));
        if (base == MAP_FAILED)
                return nd_memfd_fail("mmap", fault);
        r = ring_seal(fd, fault);
        if (r)
                munmap(base, ND_RING_FILE_BYTES);
        else
                *ret = ring_at(base);
        return r;
}

void nd_ring_close(struct nd_ring *ring)
{
        if (ring->head)
                munmap(ring->head, ND_RING_FILE_BYTES);
        *ring = (struct nd_ring){0};
}

bool nd_ring_put(struct nd_ring *ring, const void *bytes, size_t n)
{
        size_t at = ring->position % ND_RING_BYTES;
        size_t n_first = nd_min_u64(n, ND_RING_BYTES - at);
        uint64_t n_waiting = ring->position - ring->seen;

        if (n > ND_RING_BYTES - n_waiting) {
                uint64_t taken = atomic_load_explicit(&ring->head->taken, memory_order_acquire);

                n_waiting = ring->position - taken;
                if (n_waiting > ND_RING_BYTES || n > ND_RING_BYTES - n_waiting)
                        return false;
                ring->seen = taken;
        }
        memcpy(ring->data + at, bytes, n_first);
        memcpy(ring->data, (const uint8_t *)bytes + n_first, n - n_first);
        ring->position += n;
        atomic_store(&ring->head->written, ring->position);
        return true;
}

bool nd_ring_must_wake(struct nd_ring *ring)
{
        return atomic_load(&ring->head->is_asleep) && atomic_exchange(&ring->head->is_asleep, 0);
}

int nd_ring_look(struct nd_ring *ring,
                 uint8_t out[static ND_RING_BYTES],
                 size_t *ret_n,
                 struct nd_fault *fault)
{
        uint64_t written = atomic_load_explicit(&ring->head->written, memory_order_acquire);
        uint64_t n = written - ring->position;
        size_t at = ring->position % ND_RING_BYTES;
        size_t n_first = nd_min_u64(n, ND_RING_BYTES - at);

        if (n > ND_RING_BYTES)
                return nd_fault_set_numbers(fault, NDBUS_EPROTOCOL, "written", written,
                                            ring->position + ND_RING_BYTES,
                                            "is %llu in the ring: %llu are taken, and %u fit",
                                            (unsigned long long)written,
                                            (unsigned long long)ring->position, ND_RING_BYTES);
        memcpy(out, ring->data + at, n_first);
        memcpy(out + n_first, ring->data, n - n_first);
        ring->seen = written;
        *ret_n = n;
        return 0;
}

void nd_ring_take(struct nd_ring *ring, size_t n)
{
        ring->position += n;
        atomic_store_explicit(&ring->head->taken, ring->position, memory_order_release);
}

bool nd_ring_is_empty(const struct nd_ring *ring)
{
        return atomic_load_explicit(&ring->head->written, memory_order_acquire) == ring->position;
}

bool nd_ring_sleep(struct nd_ring *ring)
{
        atomic_store(&ring->head->is_asleep, 1);
        return atomic_load(&ring->head->written) == ring->seen;
}

void nd_ring_wake(struct nd_ring *ring)
{
        atomic_store_explicit(&ring->head->is_asleep, 0, memory_order_relaxed);
}
