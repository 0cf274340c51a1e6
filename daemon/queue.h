/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Queue: what waits for a subscription, and the policy that decides when it is full
 *
 * matched = delivered + dropped + n_messages holds after every call.
 */

#include "daemon/message.h"
#include "daemon/quota.h"
#include "daemon/router.h"
#include "protocol/control.h"
#include "protocol/counter.h"

enum nd_drop {
        ND_DROP_OLDEST,
        ND_DROP_NEWEST,
        ND_DROP_LATEST,
        ND_DROP_MEMORY,
        ND_DROP_LIMIT,
        ND_DROP_ENDED,
        _ND_DROP_N,
};

const char *nd_drop_name(enum nd_drop reason);

enum nd_entry_state {
        ND_ENTRY_ARRIVING, /* its message still arrives; not counted anywhere */
        ND_ENTRY_QUEUED,
        ND_ENTRY_BEGUN,      /* its first byte is in the socket, or about to be */
        ND_ENTRY_ASSIGNED,   /* of a group: a member was chosen */
        ND_ENTRY_UNFINISHED, /* of a group: the member has it and has not said that it is done */
};

struct nd_sink;
struct nd_subscription;

/* One message for one subscription, from its header's arrival until its last byte is sent. */
struct nd_entry {
        struct nd_message *message;           /* reference */
        struct nd_sink *sink;                 /* NULL: it ended, and the last packet is half sent */
        struct nd_subscription *subscription; /* NULL: the same, or of a group and not assigned */
        struct nd_list in_message;            /* nd_message.entries */
        struct nd_list in_queue; /* nd_queue.entries, or a list of the subscription's */
        RB_ENTRY(nd_entry) in_latest;
        enum nd_entry_state state;
        bool is_over;         /* in a block queue beyond its limits */
        bool is_old;          /* delivered as the retained value; charged by itself */
        bool is_redelivered;  /* another member of the group had it before */
        uint64_t number;      /* of a group: the member's n-th delivery */
        bool is_completed;    /* told that its message is complete */
        uint32_t stream;      /* once begun in chunks */
        uint64_t taken_bytes; /* of the body, in packets made so far */
        uint64_t sent_bytes;  /* of the body, in packets that the socket took whole */
        uint64_t gap_before;  /* messages dropped just before this one */
        uint64_t since_ns;    /* when it was put into the queue */
};

/* What a place in a queue costs, the allocator's share included. */
#define ND_ENTRY_COST_BYTES (sizeof(struct nd_entry) + 16)

RB_HEAD(nd_latest_tree, nd_entry);

struct nd_queue {
        struct nd_counters *counters;
        const struct nd_quota *quota; /* whose limit of bytes queued it is counted in; or NULL */
        uint64_t charged_bytes;       /* there, what is beyond its own limits not */
        enum nd_policy policy;
        uint64_t depth_messages;
        uint64_t depth_bytes;
        struct nd_list entries;       /* oldest first */
        struct nd_latest_tree latest; /* policy latest: by topic */
        struct nd_list *first_over;   /* policy block: first entry beyond the limits, or NULL */
        uint64_t n_messages;
        uint64_t n_bytes;
        uint64_t n_over;
        uint64_t n_over_bytes;
        uint64_t n_outside; /* of a group: with members, not finished; they count in the limits */
        uint64_t n_outside_bytes;
        uint64_t n_at_work; /* but of them these do not: one of each member */
        uint64_t n_at_work_bytes;
        uint64_t gap_tail; /* messages dropped behind the last entry */
        uint64_t n_matched;
        uint64_t n_delivered;
        uint64_t n_dropped[_ND_DROP_N];

        /* of them, what the operator is to be told of: not what was replaced or had to end */
        uint64_t n_lost;
        uint64_t lost_bytes;
        struct nd_topic *lost_topic; /* reference; of the first */
        enum nd_drop lost_reason;    /* of the last */
};

/* An entry of a message that a subscription will receive; NULL: no memory. */
struct nd_entry *nd_entry_new(struct nd_message *message,
                              struct nd_sink *sink,
                              struct nd_subscription *subscription);
/* Unlinks it from wherever it is; it must not be counted in a queue. Returns NULL. */
struct nd_entry *nd_entry_free(struct nd_entry *entry);

void nd_queue_init(struct nd_queue *queue,
                   struct nd_counters *counters,
                   enum nd_policy policy,
                   uint64_t depth_messages,
                   uint64_t depth_bytes);

enum {
        _ND_QUEUE_E_SUCCESS,

        ND_QUEUE_E_DROPPED,  /* the new message was dropped by the policy; the entry is gone */
        ND_QUEUE_E_OVER,     /* policy block: queued, but beyond the limits: the publisher waits */
        ND_QUEUE_E_OVERFLOW, /* policy disconnect: dropped, and the subscription must end */
};

/* Would one more of @n_bytes be too much beside these? One message always fits. */
static inline bool nd_queue_would_fill(const struct nd_queue *queue,
                                       uint64_t n_messages,
                                       uint64_t n_held_bytes,
                                       uint64_t n_bytes)
{
        if (n_messages == 0)
                return false;
        return n_messages >= queue->depth_messages || n_held_bytes >= queue->depth_bytes ||
               n_bytes > queue->depth_bytes - n_held_bytes;
}

/* What counts in its limits. */
static inline uint64_t nd_queue_held(const struct nd_queue *queue)
{
        return queue->n_messages + queue->n_outside - queue->n_at_work;
}

static inline uint64_t nd_queue_held_bytes(const struct nd_queue *queue)
{
        return queue->n_bytes + queue->n_outside_bytes - queue->n_at_work_bytes;
}

/* Would another message of these bytes be over the limits? */
static inline bool nd_queue_is_full(const struct nd_queue *queue, uint64_t n_bytes)
{
        return nd_queue_would_fill(queue, nd_queue_held(queue), nd_queue_held_bytes(queue),
                                   n_bytes);
}

/* What a message in it counts for its identity: as if it were kept for this queue alone. */
static inline uint64_t nd_queue_cost(const struct nd_message *message)
{
        return message->own_bytes + ND_ENTRY_COST_BYTES;
}

/* Would this one be over the limit of the queue's identity? One always fits where nothing of it
 * waits. */
static inline bool nd_queue_is_over_quota(const struct nd_queue *queue,
                                          const struct nd_message *message)
{
        const struct nd_quota *quota = queue->quota;

        return quota && quota->account->used[ND_LIMIT_QUEUED] > 0 &&
               nd_quota_is_over(quota, ND_LIMIT_QUEUED, nd_queue_cost(message));
}

/* Counts it in this quota from now on, with all that is in it. */
void nd_queue_set_quota(struct nd_queue *queue, const struct nd_quota *quota);

/* Of a group: an entry that was popped is with a member, or is no more. */
void nd_queue_put_outside(struct nd_queue *queue, const struct nd_entry *entry);
void nd_queue_take_back(struct nd_queue *queue, const struct nd_entry *entry);

/**
 * nd_queue_push() - a complete message arrives
 * @entry:  owned by the queue from now on, or freed
 *
 * Drops what the policy says until it fits.
 */
int nd_queue_push(struct nd_queue *queue, struct nd_entry *entry);

/* Is there room for it, so that no policy need be asked? */
static inline bool nd_queue_has_room(const struct nd_queue *queue, const struct nd_message *message)
{
        return queue->policy != ND_POLICY_LATEST && queue->n_over == 0 &&
               !nd_queue_is_full(queue, message->body_bytes) &&
               !nd_queue_is_over_quota(queue, message);
}

/* The same where there is room. */
void nd_queue_add(struct nd_queue *queue, struct nd_entry *entry);

/* A message that was begun while it arrived has become complete: it counts as delivered. */
void nd_queue_count_begun(struct nd_queue *queue);

/* The oldest entry, or NULL. */
struct nd_entry *nd_queue_peek(const struct nd_queue *queue);

/* Takes the oldest entry out, to be sent: it counts as delivered. NULL if there is none. Entries
 * beyond a block queue's limits move up; see nd_queue_settle(). */
struct nd_entry *nd_queue_pop(struct nd_queue *queue);

/* Undoes nd_queue_pop() of an entry of which nothing was sent. */
void nd_queue_unpop(struct nd_queue *queue, struct nd_entry *entry);

/**
 * nd_queue_settle() - policy block: let the next entry beyond the limits in, if it fits now
 *
 * Return: its message, borrowed, whose n_over has been lowered; NULL if there is none
 */
struct nd_message *nd_queue_settle(struct nd_queue *queue);

/* Drops one entry that is in the queue; the gap stands where it was. */
void nd_queue_drop(struct nd_queue *queue, struct nd_entry *entry, enum nd_drop reason);

/* A message that never was in the queue, and would have gone before what is there, is dropped. */
void nd_queue_drop_before(struct nd_queue *queue,
                          const struct nd_message *message,
                          enum nd_drop reason);

/* A begun message is taken back: delivered becomes dropped. @message: NULL if it is ENDED */
void nd_queue_count_taken_back(struct nd_queue *queue,
                               const struct nd_message *message,
                               enum nd_drop reason);

/* The operator has been told, or need not be. */
void nd_queue_forget_losses(struct nd_queue *queue);

uint64_t nd_queue_dropped(const struct nd_queue *queue);
