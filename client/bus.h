/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Bus: everything behind a struct ndbus
 *
 * Each part has a file of its own that alone changes it; the parts are put together here because
 * they have one lifetime and one thread.
 */

#include <ndbus/ndbus.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "client/body.h"
#include "client/clock.h"
#include "client/encode.h"
#include "client/finish.h"
#include "client/fork.h"
#include "client/hold.h"
#include "client/message.h"
#include "client/outlet.h"
#include "client/output.h"
#include "client/token.h"
#include "protocol/control.h"
#include "protocol/reader.h"
#include "protocol/url.h"

struct nd_outgoing;
struct nd_supply;

/* ---------------------------------------------------------------- connection.c: the socket */

enum nd_state {
        ND_STATE_DOWN,       /* no socket; the next attempt is at retry_ns */
        ND_STATE_CONNECTING, /* connect() is under way */
        ND_STATE_HELLO,      /* our hello is sent */
        ND_STATE_WELCOME,    /* CONNECT is sent */
        ND_STATE_READY,
};

enum nd_fd_slot {
        ND_FD_SOCKET,
        ND_FD_EPOLL,
        ND_FD_EVENT,
        ND_FD_TIMER,
        ND_FD_RING,     /* a ring, until the daemon has answered about it */
        ND_FD_BELL,     /* that of the ring */
        ND_FD_WAKE,     /* eventfd, written by who frees messages */
        ND_FD_SEGMENTS, /* memfds that are published from: ND_SEGMENTS_MAX of them */
};

_Static_assert(ND_FD_SEGMENTS + ND_SEGMENTS_MAX == ND_FORK_FDS, "a child closes all");

union nd_address {
        struct sockaddr any;
        struct sockaddr_un local;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
};

#define ND_ADDRESSES_MAX 8

struct nd_connection {
        enum nd_state state;
        uint64_t generation; /* counts sockets */
        uint64_t n_failures; /* attempts that failed since the last success */
        struct nd_url url;
        char url_text[300];
        union nd_address addresses[ND_ADDRESSES_MAX];
        socklen_t address_bytes[ND_ADDRESSES_MAX];
        size_t n_addresses;
        size_t i_address;
        uint64_t retry_ns; /* DOWN: when to try again */
        uint64_t backoff_ms;
        uint64_t attempt_ns;   /* when the attempt under way is given up; ND_NEVER in READY */
        struct nd_fault why;   /* why the last attempt failed or the connection was lost */
        int lost;              /* code that a receiving call has yet to say; 0: none */
        bool is_over;          /* the other end has closed it */
        bool is_stopping;      /* the daemon said GOODBYE */
        bool is_closing;       /* we do: no new connection is made */
        struct nd_token token; /* to be proved; none on Unix sockets */
        bool has_proved;       /* on this socket */
        uint8_t their_proof[ND_TOKEN_PROOF_BYTES]; /* what the daemon has to send then */
        uint8_t hello[ND_HELLO_BYTES];
        size_t n_hello;
        uint64_t source;
        uint32_t features;        /* of both ends; 0 until READY */
        struct nd_welcome limits; /* strings not kept */
        uint64_t heard_ns;        /* when the last bytes came */
        uint64_t ping_ns;         /* when the unanswered ping was sent; 0: none */
        uint64_t ping_sequence;
        uint64_t n_requests; /* number of the last one */
};

/* -------------------------------------------------------------- input.c: what comes from it */

/* A body under way. */
struct nd_stream {
        struct nd_list node;
        uint32_t number;
        struct ndbus_message *message;    /* NULL: its bytes are thrown away */
        struct ndbus_subscription *owner; /* NULL: it has gone */
        uint64_t body_bytes;
        uint64_t received_bytes;
        uint64_t delivery; /* n-th MESSAGE of its subscription */
        bool is_refused;   /* there was no memory: counts as dropped */
};

struct nd_input {
        uint8_t *data;
        size_t start;
        size_t end;
        size_t n_max;
        size_t n_wanted;        /* bytes that the next packet needs at least */
        bool is_dry;            /* the last read took all that the socket had */
        struct nd_stream *body; /* that the packet at hand brings bytes of; NULL: none */
        uint64_t body_left;     /* of this packet */
        struct nd_stream whole; /* the body of a message that comes in one packet */
        struct nd_list streams; /* struct nd_stream, last used first */
        size_t n_streams;
        size_t n_lead; /* prelude, header and meta of the last large message */
        bool is_large; /* and it came in one packet */
        struct nd_header_cache cache;
        int fds[ND_FDS_MAX]; /* that came and whose packets did not yet; -1: it was lost */
        size_t n_fds;
};

/* ---------------------------------------------------------- outgoing.c, publish.c: publishing */

struct nd_credit {
        uint64_t bytes;        /* that may be sent */
        uint64_t window_bytes; /* what it is when nothing is outstanding: exactly */
        uint64_t read_at;      /* the socket is read when credit falls to this */
        uint64_t lead_bytes;   /* of blocks, that the daemon may not have routed yet */
        uint64_t sent_ns;      /* last PUBLISH or CHUNK, coarse */
        uint64_t ahead_bytes;  /* bodies in blocks, published after asked_number */
        uint64_t asked_bytes;  /* and up to it: not known to be routed; 0: no question is open */
        uint64_t asked_number; /* of the last PUBLISH when the daemon was asked how far it is */
        uint64_t unheard_ns;  /* nd_connection.heard_ns, when a question for credit got no answer */
        uint64_t n_published; /* number of the last PUBLISH */
        uint64_t n_complete;  /* of the last one that was sent whole */
        uint64_t n_routed;    /* of the last one that the daemon has routed or refused */
        uint32_t n_streams;   /* number of the last one */
};

/* What the daemon said about messages since the last flush. */
struct nd_reports {
        struct nd_fault first;
        uint64_t n;
};

struct nd_offline {
        struct nd_list entries; /* struct nd_offline_entry */
        size_t n;
        uint64_t bytes;
        bool needs_socket; /* the first one is begun, and the socket was full */
};

/* --------------------------------------------------------------------- request.c: requests */

struct nd_request {
        struct nd_list node;
        uint8_t kind; /* of the request */
        bool is_done;
        uint64_t sequence;
        int code; /* 0, or what the daemon answered */
        struct nd_fault fault;
        uint8_t *data; /* of STATS_REPLY; free() */
        size_t n_data;
};

/* ------------------------------------------------------------------ subscribe.c, receive.c */

struct ndbus_subscription {
        struct ndbus *bus;
        struct ndbus_subscription *next; /* in its bucket */
        struct nd_list in_order;         /* by id */
        uint32_t id;
        char *pattern;
        char *group;
        struct ndbus_subscribe_options options; /* strings replaced by the two above */
        bool is_internal;     /* for answers, call.c: the application never sees it */
        bool is_latest;       /* window 0: messages come when they are asked for */
        uint32_t n_receiving; /* its messages under way */
        uint32_t n_streams;   /* of these, in chunks */
        bool is_asked;        /* SUBSCRIBE is sent on this connection */
        bool is_active;       /* the daemon acknowledged it and has not ended it */
        bool is_unconfirmed;  /* after a reconnect: asked for again, not yet acknowledged */
        bool is_ended;        /* by the daemon */
        int end_code;
        struct nd_fault end_fault;
        struct nd_request request; /* SUBSCRIBE under way */
        struct nd_list arrivals;   /* struct nd_arrival.in_subscription */
        struct nd_arrival end;
        struct nd_list granting; /* on the bus's list while there is something to grant */
        int64_t window_left; /* messages that the daemon may send; a message that was passed on while
                                  it still arrived takes its place at its end, and can make it -1 */
        uint64_t out_messages; /* that came and were not granted again */
        uint64_t out_bytes;
        uint64_t n_deliveries;   /* MESSAGEs on this connection */
        struct nd_list finished; /* of a group: struct nd_finish, freed and not yet granted */
        uint64_t finished_ns;    /* when the last CREDIT of a group was written, coarse */
        uint64_t taken;          /* of these: handed out; of a group: freed */
        uint64_t taken_bytes;
        uint64_t pending_dropped; /* for the next message */
        struct ndbus_subscription_stats stats;
};

struct nd_subscriptions {
        struct ndbus_subscription **buckets; /* by id; a power of two of them */
        size_t n_buckets;
        size_t n;
        struct nd_list in_order; /* by id: that is how they must be asked for */
        uint32_t last_id;
        struct ndbus_subscription *last; /* found last */
        struct nd_list granting;
        uint64_t grant_ns;    /* when to grant what was taken; ND_NEVER: nothing to */
        size_t n_unconfirmed; /* that a new connection has not acknowledged yet */
        size_t n_latest;
};

/* ------------------------------------------------------------------------ watch.c: topics */

struct nd_watch {
        struct nd_watch *next; /* in its bucket */
        bool is_watched;       /* asked for; else it is here because it is paused */
        bool is_known;
        bool is_paused;
        uint64_t n_subscribers;
        size_t n_topic;
        char topic[];
};

struct nd_watches {
        struct nd_watch **buckets;
        size_t n_buckets;
        size_t n;
        size_t n_paused;
};

/* ---------------------------------------------------------------- call.c: asking and answering */

/* One that waits. */
struct nd_call {
        uint64_t n;              /* in the topic of the answer */
        uint64_t number;         /* of its PUBLISH; 0: it has not begun */
        struct nd_fault refusal; /* the daemon's; code 0: none */
        struct ndbus_message *answer;
};

struct nd_calls {
        struct ndbus_subscription *sub; /* to the answers; NULL: none is made yet */
        uint64_t generation;            /* of the connection that it is for */
        uint64_t n;                     /* of the last one */
        struct nd_call *now;            /* NULL: none waits */
};

/* -------------------------------------------------------------------------------- the bus */

struct ndbus {
        struct nd_fork_guard guard;
        struct ndbus_options options;
        char client_name[ND_NAME_BYTES_MAX + 1];
        struct nd_pool *pool;
        struct nd_connection connection;
        struct nd_output output;
        struct nd_outlet outlet;
        struct nd_input input;
        struct nd_credit credit;
        struct nd_reports reports;
        uint64_t n_lost;              /* messages of earlier connections that were not confirmed */
        uint64_t n_lost_unflushed;    /* of which no flush has spoken */
        struct nd_outgoing *outgoing; /* a PUBLISH is open */
        struct nd_fault refusal;      /* the daemon's, while it is being sent; code 0: none */
        struct nd_encoder encoder;
        struct nd_body_store body_store;
        struct nd_offline offline;
        struct nd_list requests;
        struct nd_subscriptions subscriptions;
        struct nd_list arrivals; /* struct nd_arrival.in_bus */
        struct nd_watches watches;
        struct nd_calls calls;
        struct nd_finisher *finisher; /* made with the first group; or NULL */
        struct nd_holder *holder;     /* of this connection, made with its first segment; or NULL */
        struct nd_supply *supply;
        unsigned int n_calls; /* public calls under way, one within another */
        bool is_asking;       /* the application, whether to go on; or telling it a notice */
        bool is_event_set;    /* fd.c */
        uint64_t timer_ns;
        uint64_t epoll_generation;
        uint32_t epoll_events;
};

/* A bus without any connection yet; options must have been checked. Sets the detail. */
int nd_bus_new(const struct ndbus_options *options, struct ndbus **ret);

/* Closes what is open, says nothing to anybody. */
void nd_bus_free(struct ndbus *bus);

/* Begins a public call: NDBUS_EINVAL, NDBUS_EFORKED or 0. After 0 it must be ended. */
int nd_bus_enter(struct ndbus *bus);

/* Ends one: keeps ndbus_fd() true. Returns @r. */
int nd_bus_leave(struct ndbus *bus, int r);

/* fd.c: does nothing unless ndbus_fd() was called. */
void nd_fd_update(struct ndbus *bus);
void nd_fd_deinit(struct ndbus *bus);
/* Makes the eventfd that ends a sleep. Sets the detail. */
int nd_fd_add_wake(struct ndbus *bus);
/* False: there is none, or it cannot be written. */
bool nd_fd_wake(struct ndbus *bus);
void nd_fd_drain_wake(struct ndbus *bus);
/* The socket stays open and is no longer the bus's. */
void nd_fd_forget_socket(struct ndbus *bus);

/* wait.c */

/* Moves what can be moved without waiting. 1: something came in; 0: nothing did. */
int nd_bus_move(struct ndbus *bus);

/**
 * nd_bus_turn() - one round of waiting, in both directions
 * @deadline_ns:  0 does not wait
 * @want_send:    there is more to send than what waits in the output
 *
 * Return: 1 something may have changed; 0 the deadline has passed; NDBUS_EINTERRUPTED
 */
int nd_bus_turn(struct ndbus *bus, uint64_t deadline_ns, bool want_send);

/* POLLIN and POLLOUT, as the socket is waited for. */
short nd_bus_events(const struct ndbus *bus, bool want_send);

/* When a call should come even if nothing arrives: pings, grants, attempts to connect. ND_NEVER. */
uint64_t nd_bus_next_ns(const struct ndbus *bus);

/* Waits for a connection: 0, NDBUS_ENOTCONN (also when @deadline_ns passes), NDBUS_EINTERRUPTED.
 * Sets the detail. */
int nd_bus_wait_ready(struct ndbus *bus, uint64_t deadline_ns);

static inline bool nd_bus_is_ready(const struct ndbus *bus)
{
        return bus->connection.state == ND_STATE_READY && !bus->connection.is_stopping;
}

static inline int nd_bus_socket(const struct ndbus *bus)
{
        return bus->guard.fds[ND_FD_SOCKET];
}

/* connection.c */
int nd_connection_init(struct ndbus *bus, const char *url);
void nd_connection_advance(struct ndbus *bus);
void nd_connection_heard(struct ndbus *bus);
/* Closes the socket; fault: why. Everything that depends on it is told. */
void nd_connection_lose(struct ndbus *bus, const struct nd_fault *fault);
void nd_connection_lose_text(struct ndbus *bus, int code, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* The same for what read and write calls say. */
void nd_connection_lose_errno(struct ndbus *bus, int error);
/* The same after a write failed: first hears what the daemon may have said before it closed. */
void nd_connection_fail_write(struct ndbus *bus, int error);
/* The daemon wants the token proved. */
void nd_connection_take_auth(struct ndbus *bus, const struct nd_packet *packet);

int nd_connection_take_welcome(struct ndbus *bus, const struct nd_packet *packet);
/* NDBUS_ENOTCONN with a detail that says why. */
int nd_connection_fail_down(const struct ndbus *bus);
/* Sends what waits in the output. 1: nothing waits any more; 0: the socket is full, or lost. */
int nd_connection_send(struct ndbus *bus);

/* input.c: reads once. 1: bytes came, or the connection was lost; 0: nothing was there. */
int nd_input_read(struct ndbus *bus);
/* The next descriptor, which is the caller's; -1 if it was lost on the way. False: none came. */
bool nd_input_take_fd(struct nd_input *input, int *ret_fd);
int nd_input_init(struct nd_input *input);
void nd_input_reset(struct ndbus *bus);
void nd_input_deinit(struct ndbus *bus);

/* stream.c: bodies. The first three take a packet: 0, or a fault that ends the connection. */
int nd_stream_message(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault);
int nd_stream_chunk(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault);
int nd_stream_reset(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault);
/* @n bytes of the body at hand came and lie where they belong. */
void nd_stream_received(struct ndbus *bus, uint64_t n);
/* What is under way for @sub is thrown away as it comes; NULL: all streams are forgotten. */
void nd_stream_disown(struct ndbus *bus, struct ndbus_subscription *sub);

/* dispatch.c: control packets. 0, or a fault that ends the connection. */
int nd_dispatch(struct ndbus *bus, const struct nd_packet *packet, struct nd_fault *fault);

/* request.c */
int nd_request_start(struct ndbus *bus,
                     struct nd_request *request,
                     uint8_t kind,
                     uint32_t subscription,
                     const void *header,
                     size_t n_header);
/* A PING for whose answer nobody waits; its sequence is connection.n_requests. 0 or NDBUS_ENOMEM */
int nd_request_ping(struct ndbus *bus);
/* Waits until it is answered; @timeout_code if not in time. Sets the detail. */
int nd_request_wait(struct ndbus *bus, struct nd_request *request, uint64_t deadline_ns);
void nd_request_answer(struct ndbus *bus, uint8_t kind, uint64_t sequence);
struct nd_request *nd_request_find(struct ndbus *bus, uint8_t kind, uint64_t sequence);
void nd_request_fail_all(struct ndbus *bus, const struct nd_fault *fault);

/* subscribe.c */
struct ndbus_subscription *nd_subscription_find(struct ndbus *bus, uint32_t id);
void nd_subscription_ended(struct ndbus_subscription *sub,
                           int code,
                           const struct nd_fault *fault,
                           uint64_t n_dropped);
/* The daemon answered SUBSCRIBE with an error. */
void nd_subscription_refused(struct ndbus_subscription *sub);
void nd_subscriptions_lost(struct ndbus *bus);
/* Makes one and waits until it is acknowledged: 0, or an error. Sets the detail. */
int nd_subscription_open(struct ndbus *bus,
                         const char *pattern,
                         const struct ndbus_subscribe_options *options,
                         bool is_internal,
                         uint64_t deadline_ns,
                         struct ndbus_subscription **ret);
void nd_subscription_close(struct ndbus_subscription *sub);
int nd_subscriptions_renew(struct ndbus *bus);
void nd_subscription_confirm(struct ndbus *bus, struct ndbus_subscription *sub);
/* Frees them all. The daemon is told nothing. */
void nd_subscriptions_end(struct ndbus *bus);
void nd_subscriptions_deinit(struct ndbus *bus);
/* @n messages, or NDBUS_UNKNOWN, are to be announced with the next one; the first also counts them. */
void nd_subscription_add_dropped(struct ndbus_subscription *sub, uint64_t n);
void nd_subscription_add_pending(struct ndbus_subscription *sub, uint64_t n);

/* receive.c: would a receiving call return something without waiting? */
bool nd_receive_is_ready(const struct ndbus *bus);

/* grant.c */
void nd_grant_taken(struct ndbus_subscription *sub, uint64_t body_bytes);
/* Writes CREDIT for everything that was taken, or for that of one. */
void nd_grant_write_all(struct ndbus *bus);
void nd_grant_write(struct ndbus_subscription *sub);
/* Takes what the application has freed of groups, on any thread. */
void nd_grant_collect(struct ndbus *bus);
/* Message @number of a group never becomes one that could be freed: it is finished as it is. */
void nd_grant_refused(struct ndbus_subscription *sub, uint64_t number, uint64_t body_bytes);
/* Forgets what is not granted yet. */
void nd_grant_forget(struct ndbus_subscription *sub);
/* Asks for a message of every subscription that sends only when asked, or of @sub alone. */
void nd_grant_ask(struct ndbus *bus, struct ndbus_subscription *sub);
bool nd_grant_is_to_ask(const struct ndbus *bus);

/* watch.c */
int nd_watch_get(struct ndbus *bus, const char *topic, size_t n_topic, struct nd_watch **ret);
struct nd_watch *nd_watch_find(struct ndbus *bus, const char *topic, size_t n_topic);
/* Asks about a topic unless it is watched already. Sets the detail. */
int nd_watch_wait(struct ndbus *bus,
                  const char *topic,
                  uint64_t deadline_ns,
                  struct nd_watch **ret);
int nd_watch_heard(struct ndbus *bus, const struct nd_topic_header *header);
void nd_watches_lost(struct ndbus *bus);
int nd_watches_renew(struct ndbus *bus);
void nd_watches_deinit(struct ndbus *bus);

/* publish.c */
/* False: more than any window. */
bool nd_credit_granted(struct nd_credit *credit, uint64_t bytes, uint64_t place);
void nd_credit_routed(struct nd_credit *credit, uint64_t place);
void nd_credit_start(struct nd_credit *credit, uint64_t grant_bytes);

/* call.c: takes what came for the internal subscription */
void nd_call_answer(struct ndbus *bus, struct ndbus_message *m);

/* offline.c */
void nd_offline_step(struct ndbus *bus);
void nd_offline_lost(struct ndbus *bus);
void nd_offline_deinit(struct ndbus *bus);
