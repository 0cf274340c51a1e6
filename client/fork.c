/* SPDX-License-Identifier: MIT */

/*
 * Forking
 *
 * A forked child keeps its parent's sockets alive: the daemon would not notice the parent's death,
 * and two processes that write to one stream tear its packets. So a child handler closes the
 * descriptors of every bus, which is allowed in a child of a threaded process, and marks the bus.
 * close() and nothing more: an epoll instance is shared with the parent, and taking a descriptor
 * out of it in the child would take it out for the parent too.
 *
 * Messages are different: a child may read and free what it inherited. Their memory goes back to
 * pools that have mutexes, and a mutex that another thread of the parent held at the fork would stay
 * locked for ever. Hence the handler before the fork takes them all; order: the registry first,
 * then the locks, and nobody who holds such a lock asks for the registry.
 *
 * The handlers are installed once in a process, with the first bus, and stay: there is no call
 * to take them back. The library can therefore not be unloaded with dlclose().
 */

#include "client/fork.h"
#include <unistd.h>

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct nd_list registry_guards = ND_LIST_INIT(registry_guards);
static struct nd_list registry_locks = ND_LIST_INIT(registry_locks);
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;
static int registry_error;

static void fork_prepare(void)
{
        pthread_mutex_lock(&registry_mutex);
        nd_list_for_each (i, &registry_locks)
                nd_fork_lock_take(nd_list_entry(i, struct nd_fork_lock, node));
}

static void fork_release(void)
{
        nd_list_for_each (i, &registry_locks)
                nd_fork_lock_drop(nd_list_entry(i, struct nd_fork_lock, node));
        pthread_mutex_unlock(&registry_mutex);
}

static void fork_in_child(void)
{
        nd_list_for_each (i, &registry_guards) {
                struct nd_fork_guard *guard = nd_list_entry(i, struct nd_fork_guard, node);

                guard->is_child = true;
                for (size_t j = 0; j < ND_FORK_FDS; ++j) {
                        if (guard->fds[j] >= 0)
                                close(guard->fds[j]);
                        guard->fds[j] = -1;
                }
        }
        fork_release();
}

static void registry_install(void)
{
        registry_error = pthread_atfork(fork_prepare, fork_release, fork_in_child);
}

int nd_fork_guard_init(struct nd_fork_guard *guard)
{
        nd_list_init(&guard->node);
        guard->is_child = false;
        for (size_t i = 0; i < ND_FORK_FDS; ++i)
                guard->fds[i] = -1;

        pthread_once(&registry_once, registry_install);
        if (registry_error)
                return registry_error;
        pthread_mutex_lock(&registry_mutex);
        nd_list_push_tail(&registry_guards, &guard->node);
        pthread_mutex_unlock(&registry_mutex);
        return 0;
}

void nd_fork_guard_deinit(struct nd_fork_guard *guard)
{
        pthread_mutex_lock(&registry_mutex);
        nd_list_unlink(&guard->node);
        pthread_mutex_unlock(&registry_mutex);
}

void nd_fork_lock_init(struct nd_fork_lock *lock)
{
        int r;

        nd_list_init(&lock->node);
        r = pthread_mutex_init(&lock->mutex, NULL);
        nd_assert(r == 0);
        pthread_mutex_lock(&registry_mutex);
        nd_list_push_tail(&registry_locks, &lock->node);
        pthread_mutex_unlock(&registry_mutex);
}

void nd_fork_lock_deinit(struct nd_fork_lock *lock)
{
        pthread_mutex_lock(&registry_mutex);
        nd_list_unlink(&lock->node);
        pthread_mutex_unlock(&registry_mutex);
        pthread_mutex_destroy(&lock->mutex);
}
