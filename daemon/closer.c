/* SPDX-License-Identifier: MIT */

/*
 * Closer
 *
 * Closing a descriptor that a peer sent can take as long as the peer likes: a TCP socket that
 * lingers, a file whose file system is the peer's own process. And closing the last descriptor of a
 * segment gives back its pages, which at a gibibyte is tens of milliseconds, as is unmapping it. So
 * each batch is closed by a thread of its own, which nobody waits for; at the end of the process what
 * still hangs ends with it.
 *
 * Decided against: libuv's thread pool, of which four such descriptors would stop all threads, and
 * which the process waits for at its end.
 */

#include "daemon/closer.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CLOSER_STACK_BYTES (64u * 1024u)

struct closer_batch {
        struct nd_closer *closer;
        struct nd_segment segment; /* to be unmapped */
        size_t n;
        int fds[];
};

static void closer_close_all(const int *fds, size_t n)
{
        for (size_t i = 0; i < n; ++i)
                close(fds[i]);
}

static void *closer_run(void *data)
{
        struct closer_batch *batch = data;

        nd_segment_close(&batch->segment);
        closer_close_all(batch->fds, batch->n);
        atomic_fetch_sub(&batch->closer->n_pending, batch->n);
        free(batch);
        return NULL;
}

/* A thread that takes no signals: they are the loop's. */
static bool closer_start(struct closer_batch *batch)
{
        pthread_attr_t attributes;
        sigset_t all, before;
        pthread_t thread;
        int r;

        if (pthread_attr_init(&attributes) != 0)
                return false;
        sigfillset(&all);
        (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        (void)pthread_attr_setstacksize(&attributes, CLOSER_STACK_BYTES);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&thread, &attributes, closer_run, batch);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
        return r == 0;
}

/* Takes over @segment, of which only the mapping is left. */
static void
closer_close(struct nd_closer *closer, const int *fds, size_t n, struct nd_segment segment)
{
        struct closer_batch *batch = NULL;

        if (nd_closer_pending(closer) + n <= closer->n_pending_max)
                batch = malloc(sizeof(*batch) + n * sizeof(int));
        if (batch) {
                batch->closer = closer;
                batch->segment = segment;
                batch->n = n;
                memcpy(batch->fds, fds, n * sizeof(int));
                atomic_fetch_add(&closer->n_pending, n);
                if (closer_start(batch))
                        return;
                atomic_fetch_sub(&closer->n_pending, n);
                free(batch);
        }
        nd_segment_close(&segment);
        closer_close_all(fds, n);
}

void nd_closer_close(struct nd_closer *closer, const int *fds, size_t n)
{
        if (n > 0)
                closer_close(closer, fds, n, (struct nd_segment)ND_SEGMENT_NULL);
}

void nd_closer_close_segment(struct nd_closer *closer, struct nd_segment *segment)
{
        struct nd_segment mapping = {.fd = -1, .base = segment->base, .bytes = segment->bytes};

        closer_close(closer, &segment->fd, 1, mapping);
        segment->fd = -1;
        segment->base = NULL;
}

void nd_closer_close_socket(struct nd_closer *closer, int fd)
{
        int n_unread = 0;

        if (ioctl(fd, FIONREAD, &n_unread) < 0 || n_unread > 0)
                nd_closer_close(closer, &fd, 1);
        else
                close(fd);
}

size_t nd_closer_pending(const struct nd_closer *closer)
{
        return atomic_load(&closer->n_pending);
}
