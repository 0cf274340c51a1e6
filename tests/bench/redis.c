/* SPDX-License-Identifier: MIT */

/*
 * Redis: PUBLISH and SUBSCRIBE through hiredis
 *
 * A PUBLISH has a reply, so a batch of 1 waits a round trip for each message. With a larger batch so
 * many commands leave together, and the next ones are sent while replies of the last are under way:
 * never more than two batches without reply.
 */

#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include "tests/bench/harness.h"

#define REDIS_OUTPUT_BYTES (256u << 10)

struct redis {
        redisContext *context;
        redisReply *reply;
        unsigned batch;
        unsigned n_unanswered;
        size_t n_output;
};

static void redis_version(char *out, size_t n_out)
{
        snprintf(out, n_out, "hiredis %d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
}

static int redis_fail(const struct redis *redis, const char *what)
{
        return bench_say("%s: %s", what, redis->context ? redis->context->errstr : "no memory");
}

static int redis_open(const struct bench_options *options, struct redis **ret_redis)
{
        struct redis *redis;
        char host[64];
        int port;

        redis = calloc(1, sizeof(*redis));
        if (!redis)
                return bench_say("no memory");

        redis->batch = options->batch;
        if (!strncmp(options->url, "unix:", 5))
                redis->context = redisConnectUnix(options->url + 5);
        else if (sscanf(options->url, "tcp://%63[0-9.]:%d", host, &port) == 2)
                redis->context = redisConnect(host, port);

        if (!redis->context || redis->context->err)
                return redis_fail(redis, "connect");

        *ret_redis = redis;
        return BENCH_OK;
}

static int redis_pub_open(const struct bench_options *options, void **ret_pub)
{
        struct redis *redis;

        if (redis_open(options, &redis))
                return BENCH_FAILED;

        *ret_pub = redis;
        return BENCH_OK;
}

static int redis_write(struct redis *redis)
{
        int done = 0;

        redis->n_output = 0;
        while (!done)
                if (redisBufferWrite(redis->context, &done) != REDIS_OK)
                        return redis_fail(redis, "write");

        return BENCH_OK;
}

/* Take replies until at most so many commands are unanswered. */
static int redis_settle(struct redis *redis, unsigned n_unanswered)
{
        while (redis->n_unanswered > n_unanswered) {
                redisReply *reply;
                int type;

                if (redisGetReply(redis->context, (void **)&reply) != REDIS_OK)
                        return redis_fail(redis, "reply");

                type = reply->type;
                freeReplyObject(reply);
                if (type != REDIS_REPLY_INTEGER)
                        return bench_say("PUBLISH was refused");

                --redis->n_unanswered;
        }

        return BENCH_OK;
}

static int redis_pub_send(void *userdata, const void *message, size_t n_message, bool more)
{
        static const char *const command[2] = {"PUBLISH", BENCH_SUBJECT};
        struct redis *redis = userdata;
        const char *argv[3] = {command[0], command[1], message};
        const size_t n_argv[3] = {strlen(command[0]), strlen(command[1]), n_message};

        if (redisAppendCommandArgv(redis->context, 3, argv, n_argv) != REDIS_OK)
                return redis_fail(redis, "append");

        ++redis->n_unanswered;
        redis->n_output += n_message;
        if (more && redis->n_output < REDIS_OUTPUT_BYTES)
                return BENCH_OK;

        return redis_write(redis) ? BENCH_FAILED
                                  : redis_settle(redis, redis->batch > 1 ? redis->batch : 0);
}

static int redis_pub_end(void *userdata)
{
        struct redis *redis = userdata;

        return redis_write(redis) ? BENCH_FAILED : redis_settle(redis, 0);
}

static int redis_sub_open(const struct bench_options *options, void **ret_sub)
{
        const struct timeval second = {.tv_sec = 1};
        struct redis *redis;

        if (redis_open(options, &redis))
                return BENCH_FAILED;

        redis->reply = redisCommand(redis->context, "SUBSCRIBE %s", BENCH_SUBJECT);
        if (!redis->reply || redis->reply->type != REDIS_REPLY_ARRAY)
                return redis_fail(redis, "subscribe");
        if (redisSetTimeout(redis->context, second) != REDIS_OK)
                return redis_fail(redis, "timeout");

        *ret_sub = redis;
        return BENCH_OK;
}

/* redisGetReply() takes a timeout for the end of the connection, so this is done by hand. */
static int redis_sub_receive(void *userdata, const void **ret_head, size_t *ret_bytes)
{
        struct redis *redis = userdata;
        redisContext *c = redis->context;
        redisReply *reply = NULL;

        freeReplyObject(redis->reply);
        redis->reply = NULL;

        for (;;) {
                if (redisGetReplyFromReader(c, (void **)&reply) != REDIS_OK)
                        return redis_fail(redis, "reply");
                if (reply)
                        break;

                errno = 0;
                if (redisBufferRead(c) != REDIS_OK) {
                        if (c->err != REDIS_ERR_IO || errno != EAGAIN)
                                return redis_fail(redis, "read");

                        c->err = 0;
                        c->errstr[0] = '\0';
                        return BENCH_TIMEOUT;
                }
        }

        redis->reply = reply;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
            reply->element[2]->type != REDIS_REPLY_STRING ||
            reply->element[2]->len < sizeof(struct bench_head))
                return bench_say("an answer that is no message");

        *ret_head = reply->element[2]->str;
        *ret_bytes = reply->element[2]->len;
        return BENCH_OK;
}

static void redis_close(void *userdata)
{
        struct redis *redis = userdata;

        freeReplyObject(redis->reply);
        redisFree(redis->context);
        free(redis);
}

const struct bench_system bench_system = {
        .name = "redis",
        .window_messages = UINT64_MAX,
        .version = redis_version,
        .pub_open = redis_pub_open,
        .pub_send = redis_pub_send,
        .pub_end = redis_pub_end,
        .pub_close = redis_close,
        .sub_open = redis_sub_open,
        .sub_receive = redis_sub_receive,
        .sub_close = redis_close,
};
