/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Server: the loop and everything it owns
 */

#include <uv.h>
#include "daemon/bell.h"
#include "daemon/closer.h"
#include "daemon/connection.h"
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/message.h"
#include "daemon/metrics.h"
#include "daemon/notify.h"
#include "daemon/option.h"
#include "daemon/own.h"
#include "daemon/quota.h"
#include "daemon/router.h"
#include "protocol/counter.h"
#include "protocol/histogram.h"

#define ND_SCRATCH_BYTES (64u * 1024u)
#define ND_REFUSED_MAX   8u /* connections that are being told SERVER_FULL at a time */

struct nd_server {
        uv_loop_t loop;
        uv_signal_t sigterm;
        uv_signal_t sigint;
        uv_signal_t sighup;
        uv_timer_t tick;
        uv_timer_t lead_timer; /* runs while there is anything in lead */
        uv_timer_t slow_timer; /* set for the first of slow */
        uv_timer_t watchdog;
        uv_idle_t rescue; /* runs while there are any */
        uv_idle_t intake; /* runs while any is awake */
        uv_timer_t drain; /* deadline of stopping */
        struct nd_options options;
        struct nd_counters counters;
        struct nd_histograms histograms;
        struct nd_store store;
        struct nd_router router;
        struct nd_accounts accounts;
        struct nd_list connections;
        size_t n_connections;
        size_t n_refused;
        size_t n_denied; /* connections that are told so only after a while */
        int reserve_fd;  /* kept for the day when there are no more */
        struct nd_list listeners;
        struct nd_metrics metrics;
        struct nd_list dirty;
        struct nd_list broken; /* to be read to their end, and closed */
        struct nd_list closing;
        struct nd_list groups;         /* nd_sink.in_groups */
        struct nd_list slow;           /* nd_sink.in_slow, by when they took something last */
        struct nd_list lead;           /* nd_publisher.in_lead: credit is due or held */
        struct nd_list memory_waiters; /* nd_publisher.in_waiters, in order of arrival */
        struct nd_list shares;         /* nd_share.in_server: segments whose memory is kept */
        size_t n_shares;
        size_t shares_max; /* and descriptors that wait to be closed: a share of all */
        uint64_t shares_bytes;
        struct nd_list rescues; /* nd_rescue.in_server */
        struct nd_list intakes; /* nd_intake.in_awake */
        struct nd_bells bells;
        struct nd_closer closer;
        bool awaits_closer; /* listeners are paused until it has room */
        struct nd_own own;
        uint64_t retained_bytes;
        uint64_t n_windows;   /* publishing windows, one a client that was welcomed */
        uint64_t grown_bytes; /* of publishing windows, beyond what each was granted first */
        uint64_t now_ns;      /* CLOCK_MONOTONIC when the loop last woke */
        uint64_t started_ns;
        uint64_t drain_deadline_ns; /* 0: not stopping */
        struct nd_notifier notifier;
        struct nd_log_limit hello_log;
        struct nd_log_limit protocol_log;
        struct nd_log_limit accept_log;
        struct nd_log_limit metrics_log;
        struct nd_log_limit segment_log;
        struct nd_log_limit fallback_log;
        struct nd_log_limit limit_log;
        struct nd_log_limit trouble_log;
        struct nd_log_limit own_log;
        struct nd_log_limit closer_log;
        uint8_t scratch[ND_SCRATCH_BYTES +
                        ND_PRELUDE_BYTES]; /* what sockets deliver, for one call */
};

/* Return: 0, or a negative errno; what failed has been logged */
int nd_server_init(struct nd_server *server, const struct nd_options *options);
/* Opens every listener, says READY, runs until told to stop. Return: exit status */
int nd_server_run(struct nd_server *server);
void nd_server_deinit(struct nd_server *server);

/* Called by whoever made the loop do something, last: writes what is dirty, admits what waits for
 * memory, closes what is to be closed. */
void nd_server_settle(struct nd_server *server);

/**
 * nd_server_make_room() - drop what may be dropped until @n_bytes can be charged
 *
 * First the daemon's own segments go in which nothing is. Then messages: the victim is the oldest that
 * no block queue and no retained value keeps, in the droppable queue that holds most; it leaves all its
 * queues.
 *
 * Return: true if there is room now
 */
bool nd_server_make_room(struct nd_server *server, uint64_t n_bytes);

/* Charges @n_bytes, making room for them if need be. */
bool nd_server_charge(struct nd_server *server, uint64_t n_bytes);

/* What a reload brings: @changed is taken over, and whoever is connected is held to it. */
void nd_server_apply(struct nd_server *server, const struct nd_options *changed);

/* After n_windows or clients_max has changed. */
void nd_server_set_aside(struct nd_server *server);

/**
 * nd_server_retain() - keep a message as its topic's value
 *
 * A message without frames and meta clears it. @quota: whose value it is.
 *
 * Return: 0; NDBUS_ERETAIN_FULL: nothing is retained for the topic
 */
int nd_server_retain(struct nd_server *server,
                     struct nd_message *message,
                     const struct nd_quota *quota,
                     struct nd_fault *fault);

/* Subscriptions of a topic changed: tell those who watch. @pattern: of the one that came or went */
void nd_server_subscriptions_changed(struct nd_server *server, const char *pattern, size_t n);

/* Accept nobody for now, or again, at the listeners of one purpose. */
void nd_server_pause_listeners(struct nd_server *server,
                               enum nd_listener_purpose purpose,
                               bool is_paused);

/* The closer is full: logs that. */
void nd_server_say_closer_full(struct nd_server *server);

/* Descriptors come, and the closer is full: counts and logs that. Return: NDBUS_EFDS */
int nd_server_refuse_descriptors(struct nd_server *server, struct nd_fault *fault);

/* There are segments to be rescued from: work on it whenever the loop comes round. */
void nd_server_watch_rescues(struct nd_server *server);

/* There are rings to be looked into whenever the loop comes round. */
void nd_server_watch_intakes(struct nd_server *server);

/* Credit is due or held: look again in 10 ms. */
void nd_server_watch_lead(struct nd_server *server);

/* Begins to stop: no new connections, GOODBYE to all, queues are flushed up to the deadline. */
void nd_server_drain(struct nd_server *server);

/* A source number that was not given before: random, never 0. */
uint64_t nd_server_new_source(struct nd_server *server);
