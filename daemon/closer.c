/* SPDX-License-Identifier: MIT */

/*
 * Closer
 *
 * Closing a descriptor that a peer sent can take as long as the peer likes: a TCP socket that
 * lingers, a file whose file system is the peer's own process, a socket in which one of these is under
 * way. So the loop closes none; it puts them in line, and threads close them. How many may hang at a
 * time is the peer's choice, how many threads there are is ours: when all hang, the line grows, and at
 * its limit no more descriptors are taken from anybody.
 *
 * A place in line is found by the descriptor's number, of which there is one each; so putting one there
 * needs no memory but what the largest number needed once. The first thread is made at the start,
 * because later there may be none to be had.
 *
 * Segments have a line of their own. Giving back the pages of one takes tens of milliseconds at a
 * gibibyte, as unmapping does, but no peer can make it longer, and none shall make it wait.
 *
 * Nobody waits for the threads: at the end of the process what still hangs ends with it. A line
 * belongs to its threads then, and goes with the last of them.
 *
 * Decided against: libuv's thread pool, of which four such descriptors would stop all threads, and
 * which the process waits for at its end; a thread for each, which are as many as peers like.
 */

#include "daemon/closer.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLOSER_STACK_BYTES (64u * 1024u)
#define CLOSER_PLACES_MIN  64u

struct closer_place {
        int next;     /* -1: the last */
        void *base;   /* to be unmapped first; or NULL */
        size_t bytes; /* of it */
};

struct nd_closer_line {
        atomic_size_t n_pending; /* in line, or being closed */

        pthread_mutex_t mutex; /* of all below */
        pthread_cond_t filled;
        struct closer_place *places; /* [n_places], by descriptor */
        size_t n_places;
        int first; /* -1: none */
        int last;
        size_t n_waiting;
        size_t n_idle;
        size_t n_workers;
        size_t n_workers_max;
        bool is_ended;
};

/* ------------------------------------------------------------------------------------- the threads */

static void line_free(struct nd_closer_line *line)
{
        pthread_cond_destroy(&line->filled);
        pthread_mutex_destroy(&line->mutex);
        free(line->places);
        free(line);
}

static void closer_end(int fd, const struct closer_place *place)
{
        static const struct linger none = {0};

        if (place->base)
                (void)munmap(place->base, place->bytes);
        /* spares the thread where the peer's trick is this one. It waits for who has the socket locked,
         * so it is not the loop's either. Where it is no socket it fails, which is as well. */
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
        (void)close(fd);
}

static void *line_work(void *data)
{
        struct nd_closer_line *line = data;
        struct closer_place place;
        bool is_last;
        int fd;

        pthread_mutex_lock(&line->mutex);
        for (;;) {
                for (++line->n_idle; line->n_waiting == 0 && !line->is_ended;)
                        pthread_cond_wait(&line->filled, &line->mutex);
                --line->n_idle;
                if (line->n_waiting == 0)
                        break;
                fd = line->first;
                place = line->places[fd];
                line->first = place.next;
                --line->n_waiting;
                pthread_mutex_unlock(&line->mutex);
                closer_end(fd, &place);
                atomic_fetch_sub(&line->n_pending, 1);
                pthread_mutex_lock(&line->mutex);
        }
        is_last = --line->n_workers == 0;
        pthread_mutex_unlock(&line->mutex);
        if (is_last)
                line_free(line);
        return NULL;
}

/* A thread that takes no signals: they are the loop's. 0 or a negative errno */
static int line_start(struct nd_closer_line *line)
{
        pthread_attr_t attributes;
        sigset_t all, before;
        pthread_t thread;
        int r;

        r = pthread_attr_init(&attributes);
        if (r != 0)
                return -r;
        sigfillset(&all);
        (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        (void)pthread_attr_setstacksize(&attributes, CLOSER_STACK_BYTES);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&thread, &attributes, line_work, line);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
        return -r;
}

/* --------------------------------------------------------------------------------------- the lines */

static int line_new(size_t n_workers_max, struct nd_closer_line **ret)
{
        struct nd_closer_line *line = calloc(1, sizeof(*line));
        int r;

        if (!line)
                return -ENOMEM;
        pthread_mutex_init(&line->mutex, NULL);
        pthread_cond_init(&line->filled, NULL);
        line->first = -1;
        line->n_workers = 1;
        line->n_workers_max = n_workers_max;
        r = line_start(line);
        if (r < 0) {
                line_free(line);
                return r;
        }
        *ret = line;
        return 0;
}

static void line_end(struct nd_closer_line *line)
{
        if (!line)
                return;
        pthread_mutex_lock(&line->mutex);
        line->is_ended = true;
        pthread_cond_broadcast(&line->filled);
        pthread_mutex_unlock(&line->mutex);
}

static bool line_reserve(struct nd_closer_line *line, size_t fd)
{
        size_t n = line->n_places > 0 ? line->n_places : CLOSER_PLACES_MIN;
        struct closer_place *places;

        if (fd < line->n_places)
                return true;
        while (n <= fd)
                n *= 2;
        places = reallocarray(line->places, n, sizeof(*places));
        if (!places)
                return false;
        line->places = places;
        line->n_places = n;
        return true;
}

/* Locked. Without memory it stays open, and counted: that costs less than a loop that stands. */
static void line_append(struct nd_closer_line *line, int fd, struct closer_place place)
{
        atomic_fetch_add(&line->n_pending, 1);
        if (!line_reserve(line, (size_t)fd))
                return;
        line->places[fd] = place;
        if (line->n_waiting++ == 0)
                line->first = fd;
        else
                line->places[line->last].next = fd;
        line->last = fd;
        /* who is woken is idle until it has the lock, and by then some may have gone to others */
        if (line->n_waiting > line->n_idle && line->n_workers < line->n_workers_max &&
            line_start(line) == 0)
                ++line->n_workers;
        pthread_cond_signal(&line->filled);
}

int nd_closer_init(struct nd_closer *closer, size_t n_received_max, size_t n_workers_max)
{
        int r;

        *closer = (struct nd_closer){.n_received_max = n_received_max};
        r = line_new(n_workers_max, &closer->received);
        if (r == 0)
                r = line_new(1, &closer->segments);
        if (r < 0)
                nd_closer_deinit(closer);
        return r;
}

void nd_closer_deinit(struct nd_closer *closer)
{
        line_end(nd_steal(closer->received));
        line_end(nd_steal(closer->segments));
}

void nd_closer_close(struct nd_closer *closer, const int *fds, size_t n)
{
        struct nd_closer_line *line = closer->received;

        if (n == 0)
                return;
        pthread_mutex_lock(&line->mutex);
        for (size_t i = 0; i < n; ++i)
                line_append(line, fds[i], (struct closer_place){.next = -1});
        pthread_mutex_unlock(&line->mutex);
}

void nd_closer_close_socket(struct nd_closer *closer, int fd)
{
        int n_unread = 0;

        (void)shutdown(fd, SHUT_RD); /* now nothing more comes */
        if (ioctl(fd, FIONREAD, &n_unread) < 0 || n_unread > 0)
                nd_closer_close(closer, &fd, 1);
        else
                (void)close(fd);
}

void nd_closer_close_segment(struct nd_closer *closer, struct nd_segment *segment)
{
        struct nd_closer_line *line = closer->segments;
        const struct closer_place place = {
                .next = -1,
                .base = segment->base,
                .bytes = segment->bytes,
        };

        pthread_mutex_lock(&line->mutex);
        line_append(line, segment->fd, place);
        pthread_mutex_unlock(&line->mutex);
        segment->fd = -1;
        segment->base = NULL;
}

size_t nd_closer_pending(const struct nd_closer *closer)
{
        return nd_closer_pending_received(closer) + atomic_load(&closer->segments->n_pending);
}

size_t nd_closer_pending_received(const struct nd_closer *closer)
{
        return atomic_load(&closer->received->n_pending);
}

bool nd_closer_is_full(const struct nd_closer *closer)
{
        return nd_closer_pending_received(closer) >= closer->n_received_max;
}
