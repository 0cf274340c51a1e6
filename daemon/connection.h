/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Connection: one client from accept to close
 */

#include <uv.h>
#include "daemon/descriptors.h"
#include "daemon/intake.h"
#include "daemon/ledger.h"
#include "daemon/outbox.h"
#include "daemon/publisher.h"
#include "daemon/quota.h"
#include "daemon/rights.h"
#include "protocol/token.h"
#include "protocol/url.h"

struct nd_server;

RB_HEAD(nd_subscription_tree, nd_subscription);
RB_PROTOTYPE(nd_subscription_tree, nd_subscription, in_connection, nd_subscription_compare)

/* A client that wants to hear how many subscribe to a topic. */
struct nd_watch {
        struct nd_list in_topic;      /* nd_topic.watches */
        struct nd_list in_connection; /* nd_connection.watches */
        struct nd_list in_dirty;      /* nd_connection.dirty_watches, while news waits */
        struct nd_connection *connection;
        struct nd_topic *topic; /* reference */
        uint64_t n_told;        /* subscriptions, when it last heard */
};

enum nd_connection_state {
        ND_CONNECTION_HELLO,   /* nothing but hello is accepted */
        ND_CONNECTION_REFUSED, /* its hello will be answered by a reason, then it is closed */
        ND_CONNECTION_CONNECT, /* nothing but CONNECT */
        ND_CONNECTION_AUTH,    /* nothing but AUTH: it has named a token and is to prove it */
        ND_CONNECTION_DENIED,  /* it proved nothing; it is told so after a while */
        ND_CONNECTION_OPEN,
        ND_CONNECTION_GOODBYE, /* it said GOODBYE and was answered: only its close is awaited */
        ND_CONNECTION_CLOSING, /* marked; closed when the loop comes back from what it is doing */
        ND_CONNECTION_CLOSED,  /* uv_close() was called */
};

struct nd_connection {
        struct nd_server *server;
        struct nd_list in_server;  /* nd_server.connections */
        struct nd_list in_dirty;   /* nd_server.dirty: has output to try */
        struct nd_list in_closing; /* nd_server.broken, then closing */
        uv_poll_t poll;
        int fd;
        int events; /* that the loop watches for */
        enum nd_connection_state state;
        bool is_tcp;
        bool closes_after_output; /* an ERROR or a reason is its last word */
        bool is_shut;             /* and that has been sent */
        bool is_broken; /* it takes nothing any more, but may have said something before */
        bool is_held;   /* whole packets wait in the stash until its answers are read */
        uint8_t refuse_reason;
        uint64_t deadline_ns; /* of hello and CONNECT, or of the last words; 0: none */
        uint64_t source;
        uint64_t pid;                            /* as it says */
        char client[64];                         /* as it says; printable */
        char peer[128];                          /* address or pid and uid, for the operator */
        pid_t peer_pid;                          /* as the kernel says; 0: not known */
        uint8_t hello[ND_HELLO_BYTES];           /* as it came */
        bool is_denied;                          /* counted in nd_server.n_denied */
        struct nd_token_exchange *exchange;      /* while it is to prove a token */
        char token[ND_TOKEN_NAME_BYTES_MAX + 1]; /* that it has proved; "": none */
        struct nd_rights *rights;                /* NULL: there are no rules */
        uint64_t rights_bytes;                   /* charged */
        bool sees_all;                           /* it may subscribe to every topic */
        struct nd_quota quota;                   /* what it and others of its identity may have */
        uint32_t features;                       /* enum nd_feature, of both ends */

        /* bytes of a packet that is not whole yet; more than it can hold is charged */
        uint8_t *stash;
        size_t n_stash;
        size_t n_stash_max;
        uint32_t
                last_lead_bytes; /* header and meta of the last large PUBLISH; 0: small ones come */

        struct nd_publisher publisher;
        struct nd_intake intake;
        struct nd_outbox outbox;
        struct nd_descriptors descriptors; /* that came and wait for their packet */
        struct nd_lender lender;
        struct nd_holder holder;
        struct nd_subscription_tree subscriptions;
        size_t n_subscriptions;
        uint32_t last_subscription; /* highest number used: they are never used again */
        struct nd_list watches;
        struct nd_list dirty_watches;
        size_t n_watches;
};

/* Takes over @fd, which is accepted and non-blocking. @refuse_reason: 0, or why it is refused.
 * Return: 0, or a negative errno; the fd is closed then */
int nd_connection_new(struct nd_server *server, int fd, bool is_tcp, uint8_t refuse_reason);

/* There may be something to write: it is tried before the loop waits again. */
void nd_connection_mark_dirty(struct nd_connection *connection);

/* Marks it for closing; the loop closes it. Without a word, and without a count. */
void nd_connection_mark_closing(struct nd_connection *connection);

/* It takes nothing any more. Once nobody is in the middle of anything the loop reads its last. */
void nd_connection_mark_broken(struct nd_connection *connection);

/* The peer is gone, perhaps without having read all that it was sent, which the kernel reports as an
 * error to whoever writes or waits; what it has sent before is there all the same. Reads that, and marks it
 * for closing. */
void nd_connection_read_last(struct nd_connection *connection);

/* It broke the protocol: ERROR, then close. @of: kind of the packet it is about. */
void nd_connection_fail(struct nd_connection *connection,
                        const struct nd_fault *fault,
                        uint8_t of,
                        uint64_t sequence);

/* What is queued now is the last that it is sent; then it is closed. */
void nd_connection_end_after_output(struct nd_connection *connection);

/* An ERROR that does not close. */
void nd_connection_error(struct nd_connection *connection,
                         const struct nd_fault *fault,
                         uint8_t of,
                         uint64_t sequence);

/* What is closing lets go of everything and is given to uv_close(). For the server's loop. */
void nd_connection_close(struct nd_connection *connection);

/* Deadlines; once a second. */
void nd_connection_tick(struct nd_connection *connection, uint64_t now_ns);

/* Reading is on unless the connection owes too many answers; writing when the socket was full. */
void nd_connection_update_events(struct nd_connection *connection);

struct nd_subscription *nd_connection_subscription(struct nd_connection *connection, uint32_t id);

/* Bytes of it are there that were not read. */
bool nd_connection_has_input(const struct nd_connection *connection);

/* It reads its answers again: what was held back is taken. */
void nd_connection_resume(struct nd_connection *connection);

/* Forgets what was kept of a packet that is not whole. */
void nd_connection_unstash(struct nd_connection *connection);
