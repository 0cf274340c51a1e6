/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Publisher: the publishing half of a connection: window, header cache, the PUBLISH under way
 */

#include "daemon/message.h"
#include "daemon/router.h"
#include "protocol/header.h"
#include "protocol/reader.h"

struct nd_connection;

/* A topic that a connection publishes on: its count of messages. */
struct nd_pair {
        RB_ENTRY(nd_pair) in_publisher;
        struct nd_publisher *publisher;
        struct nd_topic *topic; /* reference */
        uint64_t sequence;      /* of the last message */
        struct nd_list pauses;  /* nd_pause.in_pair: block queues that are full */
        struct nd_list in_news; /* nd_publisher.news, while the client is to be told */
        bool is_told_paused;    /* what it was told last */
};

RB_HEAD(nd_pair_tree, nd_pair);

/* A header that was parsed before: same bytes, same meaning. */
struct nd_known {
        struct nd_header_bytes *bytes; /* reference; NULL: free slot */
        struct nd_topic *topic;        /* reference */
        struct nd_pair *pair;          /* NULL: an answer, $reply topics are not counted */
        uint64_t body_bytes;
        uint64_t charged_bytes; /* 0: there was no room to keep it, it is forgotten after use */
        bool has_reply;
        bool is_empty;   /* no frames */
        bool may_retain; /* the client has the right to */
};

struct nd_publisher {
        struct nd_connection *connection;

        uint64_t window_bytes;   /* granted in all when nothing is outstanding */
        uint64_t charged_bytes;  /* of it */
        uint64_t left_bytes;     /* what the client may still send */
        uint64_t left_bytes_low; /* lowest since the last grant */
        uint64_t due_bytes;      /* read and done with: to be granted again */
        uint64_t packet_bytes;   /* of the last PUBLISH packet, its body included */
        uint64_t last_ns;        /* when PUBLISH or CHUNK bytes last came */

        uint64_t n_received; /* number of the last PUBLISH read */
        uint64_t n_bytes;    /* body bytes published */

        struct nd_pair_tree pairs;
        size_t n_pairs;
        struct nd_list news; /* nd_pair.in_news */
        struct nd_known known[ND_HEADER_CACHE_N];
        size_t i_known_next; /* the slot that is replaced next */

        /* The PUBLISH whose body is being read. */
        struct nd_incoming {
                bool is_open;    /* in chunks, and not all announced yet */
                bool is_refused; /* an ERROR was sent: everything up to RESET is discarded */
                struct nd_message *message; /* reference; NULL: its bytes are discarded */
                struct nd_pair *pair;
                uint32_t stream;
                uint64_t body_bytes;
                uint64_t place;          /* body bytes announced by packets so far */
                uint64_t packet_left;    /* body bytes of the packet under way still to be read */
                uint64_t arrived_bytes;  /* of the body, kept or discarded */
                uint64_t returned_bytes; /* of the body whose credit was returned */
                uint64_t mark_bytes;     /* arrived, when the deadline was set */
                uint64_t mark_ns;
        } in;

        struct nd_list backlog;    /* messages that wait for memory, oldest first */
        struct nd_list held;       /* routed messages whose credit waits for a receiver */
        size_t n_over;             /* of them, those that a block queue holds beyond its limits */
        uint64_t n_moved;          /* packets that receivers of any of them took since pace_ns */
        uint64_t pace_ns;          /* when the receivers' speed was last judged */
        bool is_slow;              /* too slow to be waited for */
        bool is_bulk;              /* large bodies come: a large window is worth its memory */
        struct nd_list in_lead;    /* nd_server.lead, while anything is due or held */
        struct nd_list in_waiters; /* nd_server.memory_waiters, while there is a backlog */
        uint64_t waiting_since_ns;
};

void nd_publisher_init(struct nd_publisher *publisher, struct nd_connection *connection);
/* The client is gone: what it was sending never existed. */
void nd_publisher_deinit(struct nd_publisher *publisher);

/* A PUBLISH packet's prelude, header and meta; its body follows through the functions below.
 * Return: 0, or a negative enum ndbus_err that closes the connection */
int nd_publisher_publish(struct nd_publisher *publisher,
                         const struct nd_packet *packet,
                         struct nd_fault *fault);
int nd_publisher_chunk(struct nd_publisher *publisher,
                       const struct nd_prelude *prelude,
                       struct nd_fault *fault);
int nd_publisher_reset(struct nd_publisher *publisher,
                       const struct nd_prelude *prelude,
                       struct nd_fault *fault);
/* The PUBLISH under way, if there is one, ends here: it never existed. */
void nd_publisher_abort(struct nd_publisher *publisher);

/* Where the next body bytes belong; *@ret_n is 0 if they are to be discarded. */
void nd_publisher_space(struct nd_publisher *publisher,
                        struct iovec *iov,
                        size_t n_iov,
                        size_t *ret_n);
/* @n_bytes body bytes were read to where they belong, or discarded. */
void nd_publisher_received(struct nd_publisher *publisher, size_t n_bytes);
/* @n_bytes body bytes lie in another buffer. */
void nd_publisher_append(struct nd_publisher *publisher, const uint8_t *data, size_t n_bytes);

/* Rights have changed: headers that were accepted are looked at anew. */
void nd_publisher_forget_headers(struct nd_publisher *publisher);

/* Is a PUBLISH under way, its body not read to the end? */
bool nd_publisher_is_busy(const struct nd_publisher *publisher);

/* Was the client told to stop publishing on this topic? */
bool nd_publisher_is_paused(struct nd_publisher *publisher, const struct nd_topic *topic);

/* Number of the last PUBLISH that was routed or refused, and all before it. */
uint64_t nd_publisher_routed(const struct nd_publisher *publisher);

/* Memory was freed. Return: true if nothing of this connection waits any more */
bool nd_publisher_admit(struct nd_publisher *publisher);
/* Deadlines; once a second. */
void nd_publisher_tick(struct nd_publisher *publisher, uint64_t now_ns);
