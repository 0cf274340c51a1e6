/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Histograms of the daemon: one table, read by its struct, by STATS, by the OpenMetrics text that
 * daemon and command print, and by the manual page's test
 *
 *   XX(name, bounds, "what is counted")
 *
 * Bounds are XX(most, "most as OpenMetrics writes it"), in ascending order; what is above the last
 * has a bucket of its own. A name ends in its unit; _seconds are counted in nanoseconds.
 */

#include <stddef.h>
#include <stdint.h>

#define ND_BOUNDS_BYTES(XX)                                                                        \
        XX(64, "64.0")                                                                             \
        XX(256, "256.0")                                                                           \
        XX(1024, "1024.0")                                                                         \
        XX(4096, "4096.0")                                                                         \
        XX(16384, "16384.0")                                                                       \
        XX(65536, "65536.0")                                                                       \
        XX(262144, "262144.0")                                                                     \
        XX(1048576, "1.048576e+06")                                                                \
        XX(4194304, "4.194304e+06")                                                                \
        XX(16777216, "1.6777216e+07")                                                              \
        XX(67108864, "6.7108864e+07")                                                              \
        XX(268435456, "2.68435456e+08")                                                            \
        XX(1073741824, "1.073741824e+09")

#define ND_BOUNDS_WAIT(XX)                                                                         \
        XX(100000, "0.0001")                                                                       \
        XX(500000, "0.0005")                                                                       \
        XX(1000000, "0.001")                                                                       \
        XX(5000000, "0.005")                                                                       \
        XX(10000000, "0.01")                                                                       \
        XX(50000000, "0.05")                                                                       \
        XX(100000000, "0.1")                                                                       \
        XX(500000000, "0.5")                                                                       \
        XX(1000000000, "1.0")                                                                      \
        XX(5000000000, "5.0")                                                                      \
        XX(10000000000, "10.0")                                                                    \
        XX(60000000000, "60.0")

#define ND_BOUNDS_BATCH(XX)                                                                        \
        XX(0, "0.0")                                                                               \
        XX(1, "1.0")                                                                               \
        XX(2, "2.0")                                                                               \
        XX(4, "4.0")                                                                               \
        XX(8, "8.0")                                                                               \
        XX(16, "16.0")                                                                             \
        XX(32, "32.0")                                                                             \
        XX(64, "64.0")                                                                             \
        XX(128, "128.0")

#define ND_HISTOGRAMS(XX)                                                                          \
        XX(message_size_bytes, BYTES, "body bytes of a message published")                         \
        XX(queue_wait_seconds, WAIT,                                                               \
           "from when a message stood in a queue to its first byte sent")                          \
        XX(write_batch_packets, BATCH,                                                             \
           "packets of messages of which a system call sent a first byte")

#define ND_BOUND_VALUE(_most, _text) UINT64_C(_most),
#define ND_HISTOGRAM_DEFINE(_name, _bounds, _text)                                                 \
        static const uint64_t nd_bounds_##_name[] = {ND_BOUNDS_##_bounds(ND_BOUND_VALUE)           \
                                                             UINT64_MAX};                          \
                                                                                                   \
        struct nd_histogram_##_name {                                                              \
                uint64_t sum;                                                                      \
                uint64_t counts[sizeof(nd_bounds_##_name) / sizeof(uint64_t)];                     \
        };                                                                                         \
                                                                                                   \
        /* Most values are small, so the first bounds are looked at first. */                      \
        static inline void nd_observe_##_name(struct nd_histogram_##_name *histogram,              \
                                              uint64_t value)                                      \
        {                                                                                          \
                size_t i = 1;                                                                      \
                                                                                                   \
                histogram->sum += value;                                                           \
                if (value <= nd_bounds_##_name[0]) {                                               \
                        ++histogram->counts[0];                                                    \
                        return;                                                                    \
                }                                                                                  \
                while (value > nd_bounds_##_name[i])                                               \
                        ++i;                                                                       \
                ++histogram->counts[i];                                                            \
        }
ND_HISTOGRAMS(ND_HISTOGRAM_DEFINE)
#undef ND_HISTOGRAM_DEFINE

struct nd_histograms {
#define ND_HISTOGRAM_FIELD(_name, _bounds, _text) struct nd_histogram_##_name _name;
        ND_HISTOGRAMS(ND_HISTOGRAM_FIELD)
#undef ND_HISTOGRAM_FIELD
};
