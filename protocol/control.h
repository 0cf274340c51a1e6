/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Headers of control packets; PROTOCOL.md 4 and 7
 *
 * Each is a small msgpack map. The structs borrow their strings: from the caller when packing, from
 * the packet's bytes when unpacking, where strings are not NUL-terminated and hence come with a
 * length. Unknown keys are passed over; a missing required key, a wrong type or a value outside
 * its range is NDBUS_EHEADER with the key named.
 */

#include "protocol/fault.h"
#include "protocol/limit.h"

struct nd_string {
        const char *at; /* NULL: the key is absent */
        size_t n;
};

#define ND_STRING(_literal) ((struct nd_string){(_literal), sizeof(_literal) - 1})

/* Bytes of a packed control header. Packers write at most this much and never fail: what does not
 * fit (a text from outside) is cut. */
struct nd_control_bytes {
        uint8_t data[ND_CONTROL_HEADER_BYTES_MAX];
        size_t n;
};

/* Features are strings; the ones we know, as bits. Unknown ones are passed over. */
enum nd_feature {
        ND_FEATURE_SHM = 1u << 0,  /* "shm": SEGMENT, SEGMENT_GONE, RELEASE, BODY_IN_BLOCK, FD */
        ND_FEATURE_LINK = 1u << 1, /* "link" */
        ND_FEATURE_RING = 1u << 2, /* "ring": RING, WAKE; with "shm" */
        ND_FEATURE_BELL = 1u << 3, /* "bell": FD with the daemon's RING; with "ring" */
};

struct nd_connect {              /* client -> daemon */
        uint32_t features;       /* "features": list of str; required, may be empty */
        struct nd_string client; /* "client": name of the program, for the operator; optional */
        uint64_t pid;            /* "pid": optional, 0 if absent; a hint, never trusted */
        struct nd_string token;  /* "token": the name of one that it can prove to know; optional */
};

struct nd_auth {                /* both ways, between CONNECT and WELCOME; bytes */
        struct nd_string nonce; /* "nonce": required, ND_TOKEN_NONCE_BYTES */
        struct nd_string proof; /* "proof": from the client, ND_TOKEN_PROOF_BYTES */
};

struct nd_welcome {                 /* daemon -> client; all required */
        uint32_t features;          /* "features" */
        uint64_t source;            /* "source": this connection's, never 0 */
        uint64_t grant_bytes;       /* "grant": first publishing window */
        uint64_t message_bytes_max; /* "message_max" */
        uint64_t header_bytes_max;  /* "header_max" */
        uint64_t meta_bytes_max;    /* "meta_max" */
        uint64_t dims_max;          /* "dims_max" */
        uint64_t subscriptions_max; /* "subscriptions_max" */
        uint64_t shm_bytes_max;     /* "shm_max": 0 without feature shm */
        struct nd_string server;    /* "server": "ndbusd 0.1.0"; optional */
        struct nd_string proof;     /* "proof": that the daemon knows the token too; bytes */
};

struct nd_error_header {        /* daemon -> client. sequence: number of the PUBLISH or request it
                                   answers, 0 for the connection */
        uint32_t code;          /* "code": positive enum ndbus_err; required */
        uint8_t of;             /* "of": kind of the packet it is about; required, 0 for none */
        bool closes;            /* "closes": the connection is closed after this; default false */
        struct nd_string field; /* "field": optional */
        struct nd_string text;  /* "text": required */
        bool has_numbers;
        uint64_t value; /* "value", "limit": both or none */
        uint64_t limit;
};

/* X-macro: XX(NAME, number, "text"); the text is the wire's */
#define ND_POLICY_MAP(XX)                                                                          \
        XX(DROP_OLDEST, 0, "drop-oldest")                                                          \
        XX(DROP_NEWEST, 1, "drop-newest")                                                          \
        XX(LATEST, 2, "latest")                                                                    \
        XX(BLOCK, 3, "block")                                                                      \
        XX(DISCONNECT, 4, "disconnect")

enum nd_policy {
#define ND_POLICY_ENUM(_name, _num, _text) ND_POLICY_##_name = (_num),
        ND_POLICY_MAP(ND_POLICY_ENUM)
#undef ND_POLICY_ENUM
};

const char *nd_policy_name(enum nd_policy policy);
/* 0 or NDBUS_EINVAL */
int nd_policy_parse(const char *text, size_t n_text, enum nd_policy *ret);

struct nd_subscribe {             /* client -> daemon; subscription and sequence in the prelude */
        struct nd_string pattern; /* "pattern": required; checked */
        enum nd_policy policy;    /* "policy": default drop-oldest */
        uint64_t depth_messages;  /* "depth": default 1000, at least 1 */
        uint64_t depth_bytes;     /* "bytes": default 64 MiB, at least 1 */
        uint64_t window_messages; /* "window": required; 0 for latest, and only then: whoever
                                     * unpacks it says so */
        uint64_t window_bytes;    /* "window_bytes": required */
        struct nd_string group;   /* "group": optional, 1 to 255 bytes */
        bool retained;            /* "retained": default true; false with a group */
};

struct nd_subscribed {           /* daemon -> client: what is in force */
        uint64_t depth_messages; /* "depth" */
        uint64_t depth_bytes;    /* "bytes": lowered to the daemon's own limit if above it */
};

struct nd_unsubscribed {       /* daemon -> client; place: messages dropped since the last GAP */
        uint32_t code;         /* "code": 0 asked for; else the number of an error */
        struct nd_string text; /* "text": optional */
        bool has_numbers;
        uint64_t value; /* "value", "limit": queued bytes or ms, and the limit it broke */
        uint64_t limit;
};

struct nd_topic_header {        /* both ways. From a client: ask, and watch from now on */
        struct nd_string topic; /* "topic": required; checked */
        bool watch;             /* "watch": client only; default true; false ends a watch */
        bool allowed;           /* "allowed": daemon only, these three required there */
        uint64_t subscribers;   /* "subscribers": subscriptions that match, a group as one */
        bool paused;            /* "paused" */
};

struct nd_goodbye {            /* both ways; without a header: the defaults */
        uint32_t code;         /* "code": 0, or the number of an error; default 0 */
        struct nd_string text; /* "text": optional */
};

void nd_connect_pack(const struct nd_connect *in, struct nd_control_bytes *out);
void nd_auth_pack(const struct nd_auth *in, struct nd_control_bytes *out);
void nd_welcome_pack(const struct nd_welcome *in, struct nd_control_bytes *out);
void nd_error_header_pack(const struct nd_error_header *in, struct nd_control_bytes *out);
void nd_subscribe_pack(const struct nd_subscribe *in, struct nd_control_bytes *out);
void nd_subscribed_pack(const struct nd_subscribed *in, struct nd_control_bytes *out);
void nd_unsubscribed_pack(const struct nd_unsubscribed *in, struct nd_control_bytes *out);
void nd_topic_header_pack(const struct nd_topic_header *in,
                          bool from_daemon,
                          struct nd_control_bytes *out);
void nd_goodbye_pack(const struct nd_goodbye *in, struct nd_control_bytes *out);

/* All: 0, NDBUS_EHEADER, NDBUS_ENOMEM; subscribe and topic also NDBUS_ETOPIC. @ret on success
 * only. */
int nd_connect_unpack(const void *data, size_t n, struct nd_connect *ret, struct nd_fault *fault);
int nd_auth_unpack(const void *data, size_t n, struct nd_auth *ret, struct nd_fault *fault);
int nd_welcome_unpack(const void *data, size_t n, struct nd_welcome *ret, struct nd_fault *fault);
int nd_error_header_unpack(const void *data,
                           size_t n,
                           struct nd_error_header *ret,
                           struct nd_fault *fault);
int nd_subscribe_unpack(const void *data,
                        size_t n,
                        struct nd_subscribe *ret,
                        struct nd_fault *fault);
int nd_subscribed_unpack(const void *data,
                         size_t n,
                         struct nd_subscribed *ret,
                         struct nd_fault *fault);
int nd_unsubscribed_unpack(const void *data,
                           size_t n,
                           struct nd_unsubscribed *ret,
                           struct nd_fault *fault);
int nd_topic_header_unpack(const void *data,
                           size_t n,
                           bool from_daemon,
                           struct nd_topic_header *ret,
                           struct nd_fault *fault);
int nd_goodbye_unpack(const void *data, size_t n, struct nd_goodbye *ret, struct nd_fault *fault);

/* A fault as the header of an ERROR packet; borrows the fault's strings. */
struct nd_error_header
nd_error_header_from_fault(const struct nd_fault *fault, uint8_t of, bool closes);
