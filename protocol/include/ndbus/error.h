/* SPDX-License-Identifier: MIT */
#ifndef NDBUS_ERROR_H
#define NDBUS_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One table, read by this enum, ndbus_strerror(), ndbus_errname(), the wire (an ERROR packet
 * carries the positive number) and the table in protocol/PROTOCOL.md, which a test compares.
 * Numbers are part of the ABI and of the wire format: never renumber, never reuse, append only.
 *
 *   XX(NAME, number, "what it means to the caller")
 *
 * 1 to 19 arise in the library alone; 20 to 39 end the connection; 40 to 59 concern one message;
 * 60 to 79 concern one request or subscription; 80 to 99 concern files.
 */
#define NDBUS_ERROR_MAP(XX)                                                                        \
        XX(NOMEM, 1, "out of memory")                                                              \
        XX(INVAL, 2, "invalid argument")                                                           \
        XX(NOTCONN, 3, "not connected to a daemon")                                                \
        XX(WOULDBLOCK, 4, "it would block: no leave to send within the time allowed")              \
        XX(TIMEDOUT, 5, "timed out")                                                               \
        XX(FORKED, 6, "the bus belongs to the parent process")                                     \
        XX(ENDED, 7, "the subscription has ended")                                                 \
        XX(SYSTEM, 8, "a system call failed")                                                      \
        XX(INTERRUPTED, 9, "interrupted")                                                          \
        XX(DEVICE, 10, "memory of this device cannot be sent")                                     \
        XX(ENDIAN, 11, "foreign byte order cannot be exported without a copy")                     \
        XX(PROTOCOL, 20, "the peer violated the protocol")                                         \
        XX(VERSION, 21, "no protocol version in common")                                           \
        XX(SERVER_FULL, 22, "the daemon has as many clients as it may have")                       \
        XX(HEADER, 23, "a header is malformed")                                                    \
        XX(CREDIT, 24, "more was sent than the window allows")                                     \
        XX(FDS, 25, "file descriptors came where none belong, or not where one belongs")           \
        XX(CHUNK, 26, "a chunk does not continue its stream")                                      \
        XX(HANDSHAKE, 27, "the handshake was not finished in time or in order")                    \
        XX(SHUTDOWN, 28, "the daemon is stopping")                                                 \
        XX(DEAD, 29, "the peer no longer answers")                                                 \
        XX(TOO_BIG, 40, "a size exceeds its limit")                                                \
        XX(LENGTH, 41, "a frame's bytes do not match its shape")                                   \
        XX(SHAPE, 42, "a shape or stride is impossible")                                           \
        XX(DTYPE, 43, "a dtype is unknown, inconsistent, or cannot be sent")                       \
        XX(TOPIC, 44, "a topic or pattern is malformed")                                           \
        XX(DENIED, 45, "not permitted")                                                            \
        XX(NO_SPACE, 46, "there is no memory for it")                                              \
        XX(NO_SUBSCRIBER, 47, "nobody subscribes to it")                                           \
        XX(STALLED, 48, "the message stopped arriving in the middle")                              \
        XX(RETAIN_FULL, 49, "delivered, but there was no room to retain it")                       \
        XX(UNSUPPORTED, 50, "it needs a feature that this end does not have")                      \
        XX(META, 51, "meta is not a msgpack map")                                                  \
        XX(LIMIT, 60, "a count exceeds its limit")                                                 \
        XX(GROUP, 61, "group members disagree about policy or limits")                             \
        XX(SLOW, 62, "ended: a full blocking queue took nothing for block-timeout")                \
        XX(OVERFLOW, 63, "ended: the queue was over its limit and its policy is disconnect")       \
        XX(NO_FD, 64, "no file descriptor could be taken")                                         \
        XX(SUBSCRIPTION, 65, "a subscription number is unknown or already used")                   \
        XX(SHM, 66, "a shared memory segment is not what it must be")                              \
        XX(CORRUPT, 80, "this is not an ndbus record")                                             \
        XX(TRUNCATED, 81, "a record ends in the middle")

enum ndbus_err {
#define NDBUS_ERROR_ENUM(_name, _num, _text) NDBUS_E##_name = -(_num),
        NDBUS_ERROR_MAP(NDBUS_ERROR_ENUM)
#undef NDBUS_ERROR_ENUM
};

/** A static English sentence for err; "unknown error" for anything else. Never NULL. Any thread. */
const char *ndbus_strerror(int err);

/** The symbolic name ("NDBUS_EPROTOCOL"), for logs. Never NULL. Any thread. */
const char *ndbus_errname(int err);

#ifdef __cplusplus
}
#endif

#endif
