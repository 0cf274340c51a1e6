/* SPDX-License-Identifier: MIT */

/*
 * Finishing
 *
 * A message of a group is finished when the application frees it, and that may be on any thread, at
 * any time, also when its bus has gone. A bus takes no locks, so freeing cannot send anything: it
 * leaves a note in a place that bus and messages share, that has a mutex and lives as long as the
 * last of them; the bus's next call takes the notes and sends them. The note is allocated with its
 * message, because freeing must not fail.
 *
 * A bus that sleeps in poll(), its own or the application's on ndbus_fd(), is woken by an eventfd; one
 * that does not sleep is not, so that a plain loop of receiving and freeing costs no system call
 * for it.
 *
 * In a forked child nothing is finished: the message is its parent's to handle.
 */

#include "client/finish.h"
#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

struct nd_finisher {
        struct nd_fork_lock lock;
        atomic_size_t n_refs;
        const struct nd_fork_guard *guard; /* NULL: the bus has gone */
        const int *wake_fd;
        struct nd_list freed; /* struct nd_finish.node */
        bool is_waiting;
        bool is_awake; /* the eventfd is written and not yet read */
};

static void finisher_unref(struct nd_finisher *finisher)
{
        if (atomic_fetch_sub_explicit(&finisher->n_refs, 1, memory_order_acq_rel) > 1)
                return;
        nd_assert(nd_list_is_empty(&finisher->freed));
        nd_fork_lock_deinit(&finisher->lock);
        free(finisher);
}

struct nd_finisher *nd_finisher_new(const struct nd_fork_guard *guard, const int *wake_fd)
{
        struct nd_finisher *finisher = calloc(1, sizeof(*finisher));

        if (!finisher)
                return NULL;
        nd_fork_lock_init(&finisher->lock);
        atomic_init(&finisher->n_refs, 1);
        finisher->guard = guard;
        finisher->wake_fd = wake_fd;
        nd_list_init(&finisher->freed);
        return finisher;
}

void nd_finisher_close(struct nd_finisher *finisher)
{
        struct nd_list rest = ND_LIST_INIT(rest);

        if (!finisher)
                return;
        nd_fork_lock_take(&finisher->lock);
        finisher->guard = NULL;
        nd_list_move(&finisher->freed, &rest);
        nd_fork_lock_drop(&finisher->lock);
        nd_list_for_each_safe (i, &rest)
                nd_finish_free(nd_list_entry(i, struct nd_finish, node));
        finisher_unref(finisher);
}

struct nd_finish *nd_finish_new(struct nd_finisher *finisher)
{
        struct nd_finish *finish = calloc(1, sizeof(*finish));

        if (!finish)
                return NULL;
        nd_list_init(&finish->node);
        finish->finisher = finisher;
        atomic_fetch_add_explicit(&finisher->n_refs, 1, memory_order_relaxed);
        return finish;
}

void nd_finish_free(struct nd_finish *finish)
{
        struct nd_finisher *finisher = finish->finisher;

        nd_list_unlink(&finish->node);
        free(finish);
        finisher_unref(finisher);
}

/* With the lock held. */
static void finisher_wake(struct nd_finisher *finisher)
{
        uint64_t count = 1;

        if (!finisher->is_waiting || finisher->is_awake)
                return;
        if (write(*finisher->wake_fd, &count, sizeof(count)) == (ssize_t)sizeof(count))
                finisher->is_awake = true;
}

void nd_finish_done(struct nd_finish *finish)
{
        struct nd_finisher *finisher = finish->finisher;
        bool is_taken = false;

        nd_fork_lock_take(&finisher->lock);
        if (finish->is_whole && finisher->guard && !finisher->guard->is_child) {
                nd_list_push_tail(&finisher->freed, &finish->node);
                finisher_wake(finisher);
                is_taken = true;
        }
        nd_fork_lock_drop(&finisher->lock);
        if (!is_taken)
                nd_finish_free(finish);
}

void nd_finisher_take(struct nd_finisher *finisher, struct nd_list *list)
{
        uint64_t count;

        nd_fork_lock_take(&finisher->lock);
        nd_list_move(&finisher->freed, list);
        if (finisher->is_awake)
                while (read(*finisher->wake_fd, &count, sizeof(count)) < 0 && errno == EINTR)
                        ;
        finisher->is_awake = false; /* also if it was read for another reason */
        nd_fork_lock_drop(&finisher->lock);
}

bool nd_finisher_set_waiting(struct nd_finisher *finisher, bool is_waiting)
{
        bool has_freed;

        nd_fork_lock_take(&finisher->lock);
        finisher->is_waiting = is_waiting;
        has_freed = !nd_list_is_empty(&finisher->freed);
        if (has_freed)
                finisher_wake(finisher);
        nd_fork_lock_drop(&finisher->lock);
        return has_freed;
}
