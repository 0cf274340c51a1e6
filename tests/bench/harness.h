/* SPDX-License-Identifier: MIT */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** The first bytes of every message; systems that match on a prefix subscribe to it. */
#define BENCH_MAGIC       UINT64_C(0x0068636e6562646e)
#define BENCH_SUBJECT     "bench/stream"
#define BENCH_LATENCY_MAX 20000u

enum bench_kind {
        BENCH_HELLO = 1, /* sent until every subscriber has seen one; not counted */
        BENCH_WARM = 2,  /* of full size, before the clock starts */
        BENCH_DATA = 3,
        BENCH_END = 4,
};

/** Head of a message, in host byte order; the smallest message is this long. */
struct bench_head {
        uint64_t magic;
        uint32_t kind;
        uint32_t reserved;
        uint64_t sequence; /* from 1, of warm and data messages apart */
        uint64_t time_ns;  /* CLOCK_MONOTONIC when it was handed to the system; latency runs only */
};

/** How a message gets into shared memory, where the system has any. */
enum bench_way {
        BENCH_STREAM, /* not at all: through sockets */
        BENCH_COPIED, /* the system copies it in */
        BENCH_LOANED, /* it is written there: only the head is, by us */
};

/** Writes the head of @message into memory that the system has loaned. It is now that it is handed over. */
void bench_write_loan(void *at, const void *message);

enum bench_result {
        BENCH_OK = 0,
        BENCH_ENDED = 1,   /* the stream has ended: only where bench_system.is_stream */
        BENCH_TIMEOUT = 2, /* nothing came for a second */
        BENCH_FAILED = -1, /* the reason is on stderr */
};

struct bench_options {
        const char *role;
        const char *url;     /* unix:/path or tcp://host:port */
        const char *backend; /* where subscribers connect, if that is another address */
        size_t size;
        uint64_t count_max;
        unsigned n_subscribers;
        enum bench_way way;
        unsigned batch; /* messages that may share a system call or a round trip; 1: none */
        double seconds;
        double rate_hz;
        bool latency;
        pid_t daemon;
};

/**
 * One system under test. A publisher or a subscriber is opened in the process that uses it.
 *
 * A stream carries no message boundaries: all its messages have the run's size, it needs no
 * greeting, and its end is the end of file. Systems that keep what subscribers have not read
 * without limit, or drop it, name a window: the publisher is held to so many messages ahead of the
 * slowest subscriber, and to 64 MiB or two messages, so that neither memory nor luck is measured.
 */
struct bench_system {
        const char *name;
        bool is_stream;
        uint64_t window_messages; /* 0: the system itself holds its publisher back */
        void (*version)(char *out, size_t n_out);
        int (*pub_open)(const struct bench_options *options, void **ret_pub);
        int (*pub_send)(void *pub, const void *message, size_t n_message, bool more);
        int (*pub_end)(void *pub); /* all that was sent is on its way; streams end here */
        void (*pub_close)(void *pub);
        int (*sub_open)(const struct bench_options *options, void **ret_sub);
        /* ret_head borrows from the subscriber until the next call */
        int (*sub_receive)(void *sub, const void **ret_head, size_t *ret_bytes);
        void (*sub_close)(void *sub);
        int (*relay)(const struct bench_options *options); /* runs until killed; or NULL */
};

extern const struct bench_system bench_system;

/** What one subscriber tells; in shared memory, a cache line or more of its own. */
struct bench_lane {
        _Alignas(128) _Atomic uint64_t seen; /* highest sequence */
        _Atomic uint64_t warm;
        _Atomic int ready;
        int done; /* 1 saw the end, -1 gave up */
        uint64_t received;
        uint64_t disorder; /* sequences that came twice or late */
        uint64_t bad;      /* wrong length or magic */
        uint64_t end_ns;
        uint64_t n_latencies;
        uint64_t *latencies; /* [BENCH_LATENCY_MAX] shared */
};

struct bench_board {
        _Atomic uint64_t total; /* messages published; 0 while it goes on */
        _Atomic int failed;
        uint64_t start_ns;
        uint64_t cpu_start_ns;
        struct bench_lane *lanes; /* [n_subscribers] */
};

/* loop.c */
int bench_publish_all(const struct bench_options *options, struct bench_board *board);
int bench_subscribe_all(const struct bench_options *options,
                        struct bench_board *board,
                        struct bench_lane *lane);

/** How long nothing may move before a run is given up: 5 s, and what 32 MiB/s would take. */
uint64_t bench_patience_ns(const struct bench_options *options);

/* process.c */
uint64_t bench_now_ns(void);
void bench_nap_us(unsigned us);
uint64_t bench_cpu_ns(pid_t pid);                      /* 0 if it cannot be told */
uint64_t bench_status_kib(pid_t pid, const char *key); /* "VmHWM", "VmRSS"; 0 likewise */
unsigned bench_n_fds(pid_t pid);
uint64_t bench_percentile(uint64_t *values, size_t n_values, double percent); /* sorts */

void bench_say_ready(void); /* a relay listens: a line on stdout */

/* socket.c */
int bench_listen(const char *url, int *ret_fd);
int bench_connect(const char *url, const char *source, int *ret_fd);
int bench_accept(int listener, int *ret_fd);
int bench_send_all(int fd, const void *data, size_t n_data);
/** Connects to a relay, and says by the first byte what it is: 'P' the publisher, 'S' a subscriber. */
int bench_join(const char *url, char role, int *ret_fd);
/** The relay's side: accepts until the publisher and all subscribers are there. */
int bench_gather(int listener, unsigned n_subs, int *ret_pub, int *ret_subs);
void bench_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** A line on stderr; a macro so that compilers see that it never is BENCH_OK. */
#define bench_say(...) (bench_print(__VA_ARGS__), BENCH_FAILED)
