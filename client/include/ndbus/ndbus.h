/* SPDX-License-Identifier: MIT */
#ifndef NDBUS_NDBUS_H
#define NDBUS_NDBUS_H

/*
 * ndbus client library
 *
 * Messages are n-dimensional arrays on topics. A daemon, ndbusd, routes them. This library sends
 * arrays from the caller's memory and receives each into aligned memory of its own.
 *
 * Threads: a bus belongs to one thread at a time; it takes no locks for the caller. Two buses share
 * nothing. Messages, and what was exported from them, may be freed by any thread at any time, also
 * after ndbus_close().
 *
 * Ownership: what a function takes is borrowed until it returns. What it returns through ret_x
 * belongs to the caller until the named function frees it.
 *
 * Errors: int results are 0 on success and a negative enum ndbus_err on failure. On failure no out
 * parameter was written, unless the comment says otherwise; ndbus_detail() says which field, which
 * value, which limit. Any function but those that free may return NDBUS_EFORKED in a child of the
 * process that opened the bus, NDBUS_ENOMEM, and NDBUS_EINVAL for an argument that breaks a rule
 * below; functions that take a bus may return NDBUS_ENOTCONN while it has no connection.
 *
 * Time: timeouts are milliseconds; 0 does not wait, negative waits without limit. A wait in any
 * function serves both directions: it sends what is queued and takes in what arrives.
 *
 * The library never logs, never exits, installs no signal handler, starts no thread, never raises
 * SIGPIPE.
 *
 * Things that bite:
 * - One call progresses a bus only while it runs. A process that subscribes and then never calls
 *   the library receives nothing; its window fills, and the daemon queues and drops by the
 *   subscription's policy.
 * - ndbus_publish() returning 0 means the message is on its way, not that it was routed. A daemon
 *   may still refuse it; ndbus_flush() and ndbus_close() tell.
 * - A subscription exists when ndbus_subscribe() has returned, and not before: what was published
 *   earlier is not delivered, except the retained value.
 * - After fork() the child has no bus. It may still read and free messages it inherited; those in
 *   shared memory stay its parent's, so it reads them only until the parent has freed them:
 *   ndbus_message_own() first.
 */

#include <ndbus/array.h>
#include <ndbus/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ndbus;
struct ndbus_loan;
struct ndbus_message;
struct ndbus_subscription;
struct ndbus_hold;

/* DLPack, by name only: include your own dlpack.h for the definitions. */
struct DLManagedTensorVersioned;

/** Where a count is not known, as after a reconnect. */
#define NDBUS_UNKNOWN UINT64_MAX

/** Version of the library linked at run time, as 0xMMmmpp. Any thread. */
unsigned int ndbus_version(void);

/**
 * What the calling thread's last failed call has to say: field, value and limit, in one line without
 * full stop. "" if nothing failed yet. Valid until the thread's next failing call.
 */
const char *ndbus_detail(void);

/* ------------------------------------------------------------------------------------ the bus */

struct ndbus_options {
        size_t size;            /**< sizeof(struct ndbus_options); set by the initializer */
        const char *client;     /**< name shown to the operator; NULL: the program's */
        int connect_timeout_ms; /**< for ndbus_open() in all; default 5000 */
        int stall_ms;           /**< a message under way that moves no byte for this long is given
                                        up; default 3000 */
        int ping_ms;            /**< a wait asks the daemon whether it lives after this long
                                        without a byte from it; default 5000; 0: never */
        int ping_timeout_ms;    /**< and takes it for dead when it has not answered for this
                                        long; default 10000 */
        uint32_t
                offline_messages; /**< publishes kept while there is no connection, the one that finds
                                        it lost too; default 0: they fail with NDBUS_ENOTCONN */
        uint64_t offline_bytes;   /**< of which at most so many bytes; default 64 MiB */
        int (*interrupted)(void *userdata); /**< asked when a wait gets EINTR, and every
                                                 half second of it: nonzero ends it with
                                                 NDBUS_EINTERRUPTED; NULL: waits go on.
                                                 Calls of the bus from here fail, NDBUS_EINVAL */
        void *userdata;                     /**< for interrupted and notice */
        uint64_t shm_max;                   /**< bytes of shared memory to publish in; default 0: as
                                                 many as the daemon allows */
        uint8_t no_shm;       /**< nonzero: everything goes by the socket, both ways */
        uint8_t reserved8[7]; /**< zero */
        const char *token; /**< "NAME:FILE": to daemons on TCP it proves to know the secret in FILE,
                                   which others must not be able to read, and so must they; needs
                                   libnettle.so.8. NULL: $NDBUS_TOKEN, if it is set */
        void (*notice)(void *userdata, int error, const char *text);
        /**< hears what the daemon says and no call returns: that it stops (NDBUS_ESHUTDOWN, while
             messages still come), an error or an answer that belongs to nothing that was asked; called
             within calls, and calls of the bus from there fail; NULL: nobody hears it */
};

#define NDBUS_OPTIONS_INIT                                                                         \
        {                                                                                          \
                sizeof(struct ndbus_options), NULL, 5000, 3000, 5000, 10000, 0, 67108864u, NULL,   \
                        NULL, 0, 0, {0, 0, 0, 0, 0, 0, 0}, NULL, NULL                              \
        }

/**
 * ndbus_open() - connect to a daemon
 * @ret_bus:  the bus; ndbus_close()
 * @url:      "unix:/path" or "tcp://host:port"; NULL: $NDBUS_URL, else the user's socket
 *            $XDG_RUNTIME_DIR/ndbus/ndbus.sock if it exists, else unix:/run/ndbus/ndbus.sock
 * @options:  NULL: the defaults
 *
 * With offline_messages > 0 it succeeds without a daemon too, and connects later.
 *
 * A connection that is lost is made again inside later calls, with all subscriptions; see
 * ndbus_receive().
 *
 * Return: 0; NDBUS_EINVAL for a URL or an option; NDBUS_ENOTCONN with the address and the reason;
 *         NDBUS_ETIMEDOUT; NDBUS_EVERSION; NDBUS_ESERVER_FULL; NDBUS_EDENIED also if a token was not
 *         accepted, could not be used, or was not proved by the daemon
 */
int ndbus_open(struct ndbus **ret_bus, const char *url, const struct ndbus_options *options);

/**
 * ndbus_close() - send what is under way, hear of errors, and free the bus
 * @timeout_ms:       how long to wait for the daemon to confirm
 * @ret_unconfirmed:  written always: messages published that the daemon has not confirmed to have
 *                    routed; or NULL
 *
 * Counted is what calls returned 0 for, over all connections; and, when a connection was lost, perhaps a large
 * message just before that was given up or refused while it was being sent. The others were routed, or
 * refused and reported. Of the unconfirmed nothing is known, unless the daemon stopped and said how far it
 * came, as it does to those whose sockets take it: then none of them was routed.
 *
 * The bus and its subscriptions are gone whatever is returned, unless that is NDBUS_EINVAL: it is NULL, or
 * this is called by options.interrupted. Messages stay valid.
 *
 * Return: as ndbus_flush(), about all that no flush has told before: 0 if everything was routed, and also if
 *         what was not was told, which @ret_unconfirmed still counts. In a forked child 0.
 */
int ndbus_close(struct ndbus *bus, int timeout_ms, size_t *ret_unconfirmed);

/**
 * ndbus_fd() - a descriptor for poll(), epoll or libuv
 *
 * One descriptor for the life of the bus; it survives reconnects. Level-triggered: readable exactly
 * when a call would progress, so when it is: call ndbus_receive() with timeout 0 until it returns
 * NDBUS_ETIMEDOUT. The bus owns it: never read or close it.
 *
 * Return: the descriptor, or a negative enum ndbus_err
 */
int ndbus_fd(struct ndbus *bus);

/**
 * ndbus_flush() - wait until the daemon has routed all that was published before
 *
 * Return: 0; NDBUS_ETIMEDOUT; NDBUS_ENOTCONN; or, before these, the code of the first error that the
 *         daemon reported about a message since the last flush: ndbus_detail() has its text and how many
 *         there were. Reported errors are forgotten then.
 */
int ndbus_flush(struct ndbus *bus, int timeout_ms);

/** ndbus_ping() - one round trip; @ret_ns: how long it took, nanoseconds; NULL: not wanted */
int ndbus_ping(struct ndbus *bus, uint64_t *ret_ns, int timeout_ms);

/** Most bytes of a message's arrays together that the daemon takes; 0 before the first connection. */
uint64_t ndbus_message_max(const struct ndbus *bus);

/** This connection's source, as in messages; changes with every reconnect; 0 without connection. */
uint64_t ndbus_source(const struct ndbus *bus);

/**
 * ndbus_stats() - what the daemon counts
 * @ret_data:  malloc'd msgpack map, described in PROTOCOL.md 8; free()
 */
int ndbus_stats(struct ndbus *bus, void **ret_data, size_t *ret_n_data, int timeout_ms);

/* --------------------------------------------------------------------------------- publishing */

struct ndbus_publish_options {
        size_t size;      /**< sizeof(struct ndbus_publish_options) */
        const void *meta; /**< [n_meta] the user's msgpack map, or NULL; at most 1 MiB */
        size_t n_meta;
        int timeout_ms;    /**< wait for leave to begin; default 5000 */
        const char *reply; /**< where an answer is awaited: $reply/SOURCE/N of ndbus_source(), any
                                   other is DENIED; or NULL */
        const char *encoding; /**< how to read the frames when they are not plain arrays, or NULL */
        uint8_t retain;       /**< keep as the topic's value for later subscribers */
        uint8_t more;         /**< more messages follow at once: this one may wait in a buffer for
                                   them, unless 256 KiB and more were copied for it; the next call
                                   that publishes without it, receives, asks or flushes sends it,
                                   ndbus_loan() does not */
        uint8_t if_wanted;    /**< without subscribers do nothing and return 0 */
        uint8_t reserved8[5];
        uint64_t reserved[4];
};

#define NDBUS_PUBLISH_OPTIONS_INIT                                                                 \
        {                                                                                          \
                sizeof(struct ndbus_publish_options), NULL, 0, 5000, NULL, NULL, 0, 0, 0,          \
                        {0, 0, 0, 0, 0},                                                           \
                {                                                                                  \
                        0, 0, 0, 0                                                                 \
                }                                                                                  \
        }

/**
 * ndbus_publish() - send one message
 * @topic:     NUL-terminated, 1 to 255 bytes of UTF-8, '/'-separated
 * @arrays:    [@n_arrays] views of the caller's memory; may be NULL if @n_arrays is 0
 * @options:   NULL: the defaults
 *
 * Bodies of 8 KiB and more are copied into shared memory where subscribers can read it. Else
 * arrays that are dense in any axis order are sent from where they lie; broadcast axes once; other
 * views are packed to C order on the way. When this returns the memory is the caller's again.
 *
 * Leave to begin is missing while a full subscription of policy block has paused the topic, and while
 * the daemon has not granted the bytes. Before it is refused for the latter a message of more than 8
 * KiB asks the daemon for what there is, and waits for the answer, at most stall_ms, also with
 * timeout_ms 0. So such a message is not refused because its receivers are slow, only when it would
 * have to wait for one that blocks, or for memory.
 *
 * A message that has begun is sent to its end as long as bytes move. After stall_ms without any it
 * is given up: NDBUS_ETIMEDOUT, not published; unless its last packet is already begun: then 0,
 * and a later call sends the rest.
 *
 * Return: 0 the message is in the kernel or in the bus's buffer, in full; NDBUS_EWOULDBLOCK no
 *         leave to begin within timeout_ms, nothing was sent; NDBUS_ENOTCONN no connection, or lost
 *         before all of the message had left: not published; NDBUS_ETIMEDOUT; NDBUS_ETOO_BIG;
 *         NDBUS_EDTYPE, NDBUS_ESHAPE, NDBUS_ETOPIC, NDBUS_EMETA, NDBUS_EUNSUPPORTED;
 *         NDBUS_EINTERRUPTED
 */
int ndbus_publish(struct ndbus *bus,
                  const char *topic,
                  const struct ndbus_array *arrays,
                  size_t n_arrays,
                  const struct ndbus_publish_options *options);

/**
 * ndbus_loan() - memory in which a message's arrays are written before it is published
 * @arrays:    [@n_arrays] what they will be; data is set by the call, to memory that may be written
 *             (cast it), at multiples of 64 bytes, of any content. They must be dense, as
 *             ndbus_publish() would send them. On failure data is NULL
 * @ret_loan:  ndbus_publish_loan() or ndbus_loan_cancel()
 *
 * Where daemon and subscribers share memory with this process, that is where they read the arrays:
 * nobody copies them. Elsewhere, and when shared memory is exhausted, it is ordinary memory, and
 * the message is sent by the socket. Never waits.
 *
 * A loan is valid after ndbus_close() too, until it is cancelled. Not in a forked child: the memory
 * is not there; the child may only cancel it.
 *
 * Return: 0; NDBUS_ESHAPE for an array that is not dense; what ndbus_publish() says about arrays
 */
int ndbus_loan(struct ndbus *bus,
               struct ndbus_array *arrays,
               size_t n_arrays,
               struct ndbus_loan **ret_loan);

/**
 * ndbus_publish_loan() - publish what was written
 * @loan:  of this bus. After 0 it is gone, and its memory must not be touched: others read it
 *
 * On failure nothing was published, and the loan stays the caller's: to be published again, or
 * cancelled. After a reconnect too.
 *
 * Return: as ndbus_publish()
 */
int ndbus_publish_loan(struct ndbus *bus,
                       const char *topic,
                       struct ndbus_loan *loan,
                       const struct ndbus_publish_options *options);

/** ndbus_loan_cancel() - give it back unpublished; accepts NULL. The bus's thread. */
void ndbus_loan_cancel(struct ndbus_loan *loan);

struct ndbus_shm_stats {
        size_t size;            /**< sizeof(struct ndbus_shm_stats); set by the caller */
        uint64_t published;     /**< messages published in shared memory */
        uint64_t fallback;      /**< messages large enough for it that went by the socket */
        uint64_t segments;      /**< pieces of shared memory to publish in */
        uint64_t segment_bytes; /**< and their bytes */
        uint64_t blocks;        /**< in them: loans, and messages that somebody still needs */
        uint64_t held;          /**< received messages in shared memory that are not freed, or of
                                     which the daemon has not been told yet */
};

/** ndbus_shm_stats() - shared memory of this bus; never waits */
int ndbus_shm_stats(const struct ndbus *bus, struct ndbus_shm_stats *ret_stats);

/**
 * ndbus_subscribers() - how many subscriptions match a topic now, a group as one
 *
 * The first call about a topic asks the daemon and watches it from then on; later ones answer from
 * what was heard.
 */
int ndbus_subscribers(struct ndbus *bus, const char *topic, uint64_t *ret_n, int timeout_ms);

/** ndbus_wait_subscribers() - wait until at least n subscriptions match; NDBUS_ETIMEDOUT */
int ndbus_wait_subscribers(struct ndbus *bus, const char *topic, unsigned n, int timeout_ms);

/* -------------------------------------------------------------------------------- subscribing */

enum ndbus_policy {
        NDBUS_DROP_OLDEST = 0, /**< a full queue loses its oldest message */
        NDBUS_DROP_NEWEST = 1, /**< a full queue refuses the new one */
        NDBUS_LATEST = 2,      /**< only the newest whole message of each topic waits */
        NDBUS_BLOCK = 3,       /**< nothing is lost: publishers wait */
        NDBUS_DISCONNECT = 4,  /**< a full queue ends the subscription */
};

struct ndbus_subscribe_options {
        size_t size;              /**< sizeof(struct ndbus_subscribe_options) */
        enum ndbus_policy policy; /**< default NDBUS_DROP_OLDEST */
        int timeout_ms;           /**< for the daemon's answer; default 5000 */
        uint64_t depth;        /**< messages that may wait in the daemon, 1 or more; default 1000 */
        uint64_t bytes;        /**< and their bytes, 1 or more; default 64 MiB; one message always
                                       fits */
        uint64_t window;       /**< messages on the way to the application, 1 or more and below
                                       2^62; default 256; with NDBUS_LATEST it is not looked at */
        uint64_t window_bytes; /**< below 2^62; 0: 4 MiB on TCP, 64 MiB on Unix; one message always
                                       fits, but a window below two costs a call for each */
        const char *group;     /**< share the messages with the group's other members, or NULL;
                                       see ndbus_message_free() */
        void *userdata;        /**< ndbus_message_userdata() of its messages */
        uint8_t retained;      /**< default 1: begin with the retained values */
        uint8_t reserved8[7];
        uint64_t reserved[4];
};

#define NDBUS_SUBSCRIBE_OPTIONS_INIT                                                               \
        {                                                                                          \
                sizeof(struct ndbus_subscribe_options), NDBUS_DROP_OLDEST, 5000, 1000, 67108864u,  \
                        256, 0, NULL, NULL, 1, {0, 0, 0, 0, 0, 0, 0},                              \
                {                                                                                  \
                        0, 0, 0, 0                                                                 \
                }                                                                                  \
        }

/**
 * ndbus_subscribe() - receive what is published on matching topics
 * @pattern:  a topic in which "*" stands for one whole segment and "**" for any number
 * @ret_sub:  belongs to the bus; valid until ndbus_unsubscribe() or ndbus_close(). NULL: not wanted
 *
 * Returns when the daemon has acknowledged: every message it reads after that is delivered or
 * announced as dropped.
 *
 * Return: 0; NDBUS_ETOPIC; NDBUS_EDENIED; NDBUS_ELIMIT; NDBUS_EGROUP; NDBUS_ETIMEDOUT; NDBUS_ENOTCONN
 */
int ndbus_subscribe(struct ndbus *bus,
                    const char *pattern,
                    const struct ndbus_subscribe_options *options,
                    struct ndbus_subscription **ret_sub);

/** ndbus_unsubscribe() - end and free it; its messages that were not yet received are dropped */
int ndbus_unsubscribe(struct ndbus_subscription *sub);

/** Number of the subscription, as in messages; never reused on a bus. */
uint32_t ndbus_subscription_id(const struct ndbus_subscription *sub);

struct ndbus_subscription_stats {
        size_t size;             /**< sizeof(struct ndbus_subscription_stats); set by the caller */
        uint64_t received;       /**< messages handed to the application */
        uint64_t received_bytes; /**< and their body bytes */
        uint64_t dropped;        /**< messages announced as dropped, known counts only */
        uint64_t gaps_unknown;   /**< gaps of unknown size: one for each reconnect */
        uint64_t waiting;        /**< messages taken in and not yet handed out */
};

/** ndbus_subscription_stats() - totals since it was made; never waits */
int ndbus_subscription_stats(const struct ndbus_subscription *sub,
                             struct ndbus_subscription_stats *ret_stats);

/* ---------------------------------------------------------------------------------- receiving */

/**
 * ndbus_receive() - the next message of any subscription
 * @ret_message:  ndbus_message_free()
 *
 * A connection that is lost is said once, by NDBUS_ENOTCONN (NDBUS_EDEAD if the daemon did not
 * answer pings, NDBUS_ESHUTDOWN if it said that it stops); the next calls connect again,
 * subscribe again, and go on; the first message of each subscription then has
 * ndbus_message_dropped() NDBUS_UNKNOWN. What a daemon that was stopped had for a subscription and did
 * not deliver is in ndbus_subscription_stats(), in `dropped`; unknown is only what others published
 * until all were connected again, against which ndbus_wait_subscribers() helps.
 *
 * A subscription that the daemon ended is said once, by its reason (NDBUS_EOVERFLOW, NDBUS_ESLOW,
 * NDBUS_EDENIED ...), with the numbers in ndbus_detail().
 *
 * Return: 0; NDBUS_ETIMEDOUT; NDBUS_EINTERRUPTED; the above
 */
int ndbus_receive(struct ndbus *bus, struct ndbus_message **ret_message, int timeout_ms);

/** ndbus_receive_from() - the next message of one subscription; NDBUS_EENDED after its end */
int ndbus_receive_from(struct ndbus_subscription *sub,
                       struct ndbus_message **ret_message,
                       int timeout_ms);

/* Of a message; all borrowed from it, valid until ndbus_message_free(). */
const char *ndbus_message_topic(const struct ndbus_message *m);
const char *ndbus_message_reply(const struct ndbus_message *m);    /**< or NULL */
const char *ndbus_message_encoding(const struct ndbus_message *m); /**< or NULL */
uint64_t ndbus_message_source(const struct ndbus_message *m);      /**< the publishing connection */
uint64_t ndbus_message_sequence(const struct ndbus_message *m); /**< of source and topic, from 1 */
uint64_t ndbus_message_time_ns(const struct ndbus_message *m);  /**< CLOCK_REALTIME, published */
uint64_t ndbus_message_dropped(const struct ndbus_message *m);  /**< just before this one */
int ndbus_message_retained(const struct ndbus_message *m);

/** Nonzero: another member of the group was sent it before and did not finish it. It may have
 *  handled it all the same. */
int ndbus_message_redelivered(const struct ndbus_message *m);
uint32_t ndbus_message_subscription(const struct ndbus_message *m);
void *ndbus_message_userdata(const struct ndbus_message *m); /**< of the subscription */

/** @ret_meta: msgpack map that passed a bounds check (depth, counts), NULL if there is none, or
 *             ndbus_message_check_meta() fails */
size_t ndbus_message_meta(const struct ndbus_message *m, const void **ret_meta);

/** 0; NDBUS_EMETA: meta came that is no msgpack map within bounds; the arrays are as they were sent */
int ndbus_message_check_meta(const struct ndbus_message *m);

/**
 * ndbus_message_header() - the message's header as it came
 * @ret_header:  [return value], borrowed: a msgpack map, PROTOCOL.md 5.1, with keys that this library
 *               does not know. For who stores or forwards messages; others need it for nothing
 */
size_t ndbus_message_header(const struct ndbus_message *m, const void **ret_header);

/**
 * ndbus_message_arrays() - the arrays
 * @ret_arrays:  [return value], borrowed. data is at a multiple of 64 bytes. Memory of a message
 *               received from a stream is the message's own and may be written (cast data) unless
 *               flags has NDBUS_READ_ONLY. An array in shared memory always has, and a write to it
 *               is SIGSEGV: others read it too, and its publisher will write there again when all
 *               have freed it. So free such messages, and what was exported from them, when they
 *               are no longer read, or ndbus_message_own() them. Shared memory cannot change while
 *               it is held, unless its publisher breaks the rules of ndbus_publish_loan(): what
 *               parses bytes that must not change under it, should parse a copy.
 */
size_t ndbus_message_arrays(const struct ndbus_message *m, const struct ndbus_array **ret_arrays);

/** Body bytes of the message. */
uint64_t ndbus_message_bytes(const struct ndbus_message *m);

/** ndbus_message_own() - make every array private and writable, by a copy where it is not. Arrays
 *  whose elements overlap become C-contiguous copies. Shared memory is let go, but for exports. */
int ndbus_message_own(struct ndbus_message *m);

/**
 * ndbus_message_export() - one array as a DLPack tensor, without a copy
 * @ret:  the caller calls its deleter, on any thread; it keeps the array's memory, alone, alive
 *
 * Return: 0; NDBUS_EDTYPE if DLPack cannot say it (records, datetime64, strides that are no
 *         multiple of the itemsize); NDBUS_EENDIAN for foreign byte order
 */
int ndbus_message_export(struct ndbus_message *m,
                         size_t i_array,
                         struct DLManagedTensorVersioned **ret);

/** The same for consumers older than DLPack 1.0: a DLManagedTensor, as void *. NDBUS_EINVAL if the
 *  array is read-only, which an old consumer cannot be told. */
int ndbus_message_export_legacy(struct ndbus_message *m, size_t i_array, void **ret);

/**
 * ndbus_message_hold() - keep the memory of one array, alone, after its message is freed
 *
 * What an export to DLPack does, for every dtype: for bindings that describe arrays in a way of their
 * own. The array's data stays, and nothing else: shape, names and fields are the message's.
 *
 * Return: never NULL; ndbus_hold_free()
 */
struct ndbus_hold *ndbus_message_hold(const struct ndbus_message *m, size_t i_array);

/** Accepts NULL; any thread. */
void ndbus_hold_free(struct ndbus_hold *hold);

/**
 * ndbus_message_free() - end a message; accepts NULL; any thread
 *
 * What was exported from it, or is held, stays valid.
 *
 * Of a message in shared memory the daemon is told when the last of message and exports is freed, by
 * that very call if the bus is not just in one; while further messages wait to be received, telling
 * may wait for them, up to 64 at a time. A bus that is closed, or whose connection is made anew,
 * leaves its socket open until then.
 *
 * A message of a group is *finished* by this call, and by nothing else: exports do not delay it. Until
 * then it takes its place in the subscription's window, and if the connection is lost, the bus is
 * closed, or the subscription ends before, it goes to another member, marked as redelivered. The
 * daemon hears of it at the next call that takes the bus; a wait under way in another thread, and
 * ndbus_fd(), are woken for it. Messages of an earlier connection, and of a subscription that has
 * ended, finish nothing: others have got them already. In a forked child nothing is finished.
 */
void ndbus_message_free(struct ndbus_message *m);

/* ----------------------------------------------------------------------- asking and answering */

/**
 * ndbus_request() - publish a question and wait for its answer
 * @topic:       that those who answer subscribe to; in a group, so that one of them does
 * @options:     as in ndbus_publish(), and its timeout_ms too is part of @timeout_ms; reply, retain
 *               and if_wanted must not be set
 * @timeout_ms:  for all of it
 * @ret_answer:  ndbus_message_free()
 *
 * The question's ndbus_message_reply() is a topic that belongs to this connection; the first
 * message on it is the answer. Further ones, and those that come too late, are thrown away. What
 * comes for subscriptions meanwhile waits for ndbus_receive(). One request at a time waits on a bus; who
 * answers must do so on another one.
 *
 * Guaranteed: what is returned was published on the topic of this question's answer. Not
 * guaranteed: that it was published by who was asked; or that a question is handled once. Without a group every subscriber gets it; a member of a group that dies leaves
 * it to another; and after NDBUS_ETIMEDOUT or NDBUS_ENOTCONN it may have been handled, or be yet.
 * Nothing is asked again by the library, nor kept while there is no connection.
 *
 * Return: 0; NDBUS_ENO_SUBSCRIBER at once if nobody subscribes to @topic; NDBUS_ETIMEDOUT;
 *         NDBUS_ENOTCONN also if the connection is lost while it waits, which ndbus_receive() says
 *         as well; NDBUS_EINTERRUPTED; what ndbus_publish() returns
 */
int ndbus_request(struct ndbus *bus,
                  const char *topic,
                  const struct ndbus_array *arrays,
                  size_t n_arrays,
                  const struct ndbus_publish_options *options,
                  int timeout_ms,
                  struct ndbus_message **ret_answer);

/**
 * ndbus_reply() - answer a message
 * @request:  received by any bus; stays the caller's. NDBUS_EINVAL if it asks for no answer
 *
 * The same as ndbus_publish() on ndbus_message_reply(). 0 does not mean that somebody still waits:
 * an answer that comes too late, and a second one, is thrown away without an error.
 */
int ndbus_reply(struct ndbus *bus,
                const struct ndbus_message *request,
                const struct ndbus_array *arrays,
                size_t n_arrays,
                const struct ndbus_publish_options *options);

/* --------------------------------------------------------------------------- arrays and bytes */

/**
 * ndbus_array_from_dlpack() - view a DLTensor
 * @tensor:   a DLTensor, as const void * so that any DLPack version fits; borrowed
 * @ret:      borrows shape and data from @tensor
 * @strides:  [ndim] storage for strides in bytes, kept by the caller as long as @ret
 *
 * Return: 0; NDBUS_EDEVICE unless CPU or pinned host memory; NDBUS_EDTYPE; NDBUS_ESHAPE
 */
int ndbus_array_from_dlpack(const void *tensor, struct ndbus_array *ret, int64_t *strides);

/**
 * ndbus_pack() - arrays and meta as one self-describing byte string; no daemon
 * @ret:  malloc'd, 64-byte aligned; free(). A file of one record: .ndb
 */
int ndbus_pack(const struct ndbus_array *arrays,
               size_t n_arrays,
               const void *meta,
               size_t n_meta,
               void **ret,
               size_t *ret_bytes);

/** ndbus_pack_encoded() - the same with what ndbus_message_encoding() is to say of it, or NULL */
int ndbus_pack_encoded(const struct ndbus_array *arrays,
                       size_t n_arrays,
                       const void *meta,
                       size_t n_meta,
                       const char *encoding,
                       void **ret,
                       size_t *ret_bytes);

/**
 * ndbus_unpack() - the message at the start of bytes
 * @bytes:        [@n_bytes], borrowed by the message: keep them until it and all exports are gone.
 *                Arrays point into them and are flagged NDBUS_READ_ONLY; at multiples of 64 bytes
 *                if @bytes is
 * @ret_message:  ndbus_message_free()
 * @ret_bytes:    how many bytes the record took; the next one begins there; or NULL
 *
 * An index, as ndbus record writes it, is no message and is passed over.
 *
 * Return: 0; NDBUS_EENDED if nothing but an index is left; NDBUS_ECORRUPT; NDBUS_ETRUNCATED with the byte at which it ends; NDBUS_EHEADER ...
 */
int ndbus_unpack(const void *bytes,
                 size_t n_bytes,
                 struct ndbus_message **ret_message,
                 size_t *ret_bytes);

#ifdef __cplusplus
}
#endif

#endif
