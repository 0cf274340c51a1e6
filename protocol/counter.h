/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Counters of the daemon: one table, read by its struct, by STATS, by the OpenMetrics text that
 * daemon and command print, and by the manual page's test
 *
 *   XX(name, "what an operator makes of it")
 */

#include <stdint.h>

#define ND_COUNTERS(XX)                                                                            \
        XX(clients_accepted, "connections accepted")                                               \
        XX(clients_refused, "connections answered SERVER_FULL: raise --clients-max")               \
        XX(accept_errors, "accept failed: look for the file descriptor limit")                     \
        XX(fds_refused,                                                                            \
           "connections closed because descriptors of others do not close: see the log")           \
        XX(hello_errors, "connections closed because they did not speak ndbus")                    \
        XX(handshake_timeouts, "connections closed because the handshake took too long")           \
        XX(protocol_errors, "connections closed for breaking the protocol")                        \
        XX(dead_peers, "connections closed because the peer's machine no longer answered")         \
        XX(messages_in, "messages published that somebody subscribed to, or to be retained")       \
        XX(messages_in_bytes, "body bytes of these")                                               \
        XX(messages_out, "messages begun to be sent to subscriptions")                             \
        XX(messages_out_bytes, "body bytes sent to subscriptions")                                 \
        XX(messages_unmatched, "messages published that nobody subscribed to")                     \
        XX(messages_aborted, "messages that ended before their last byte: never delivered")        \
        XX(messages_cut_through, "messages passed on before their last byte had come")             \
        XX(refused_too_big, "messages refused: a size exceeds its limit")                          \
        XX(refused_no_space, "messages refused: no memory; raise --memory-max")                    \
        XX(refused_other, "messages refused for any other fault of their own")                     \
        XX(denied, "connections, requests and messages refused for want of a right")               \
        XX(limited, "refused by a limit of their identity: connections, requests, messages")       \
        XX(dropped_oldest, "deliveries dropped by policy drop-oldest")                             \
        XX(dropped_newest, "deliveries dropped by policy drop-newest")                             \
        XX(dropped_latest, "deliveries replaced by a newer value, policy latest")                  \
        XX(dropped_memory, "deliveries dropped because memory was short; raise --memory-max")      \
        XX(dropped_limit, "deliveries dropped by their identity's limit of bytes queued")          \
        XX(dropped_ended, "deliveries dropped because their subscription ended")                   \
        XX(retain_full, "messages delivered but not retained for want of room")                    \
        XX(body_bytes_copied, "body bytes of messages over 64 KiB that were copied in memory")     \
        XX(shm_segments, "segments of shared memory announced by publishers")                      \
        XX(shm_refused, "segments and rings refused: look for shm-max and the fd limit")           \
        XX(shm_messages, "messages published in shared memory")                                    \
        XX(ring_messages, "of these, published through a ring rather than the socket")             \
        XX(ring_calls, "times that the daemon was called to a ring, by its bell or by WAKE")       \
        XX(shm_own_messages,                                                                       \
           "messages received by a socket into shared memory of the daemon's own")                 \
        XX(shm_own_exhausted, "the same, but there was none: raise --shm-own-max or --memory-max") \
        XX(shm_deliveries, "deliveries of which no body byte was sent: they lie in shared memory") \
        XX(shm_fallback,                                                                           \
           "deliveries by the socket to clients that hold too much or may not see all")            \
        XX(metrics_answered, "requests for metrics answered with them")                            \
        XX(metrics_refused, "requests for anything else, or that had no room, refused")            \
        XX(metrics_timeouts, "connections to the metrics listener closed unanswered after 5 s")    \
        XX(reads, "system calls that read")                                                        \
        XX(writes, "system calls that wrote")

struct nd_counters {
#define ND_COUNTER_FIELD(_name, _text) uint64_t _name;
        ND_COUNTERS(ND_COUNTER_FIELD)
#undef ND_COUNTER_FIELD
};
