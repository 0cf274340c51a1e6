/* SPDX-License-Identifier: MIT */

/*
 * ndbus reply: a shell command as a service
 *
 * The question's arrays are put into memory as .npy files one behind another, which is the command's
 * stdin: one that reads nothing, or writes before it has read all, cannot hang us or be hung. What it
 * writes to stdout is read from a pipe as it comes, and looked at, because a command that writes
 * something else may write it for ever. It has a process group of its own, so that all of it can be
 * killed: when it writes what is no answer, or too much, or takes too long, or we are to end. What
 * it writes to stderr goes to ours.
 *
 * Whoever asks hears of a failure: an answer without arrays whose meta says {"error": ...}. While a
 * command runs nothing else is done; to the daemon we live as long as the connection does. With
 * --group several of us share the questions, one each at a time.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <msgpack.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/meta.h"
#include "client/command/npy.h"
#include "client/command/report.h"

#define REPLY_OPTIONS(XX, S)                                                                       \
        XX(S, exec, "exec", TEXT, 0, 0, 0, "COMMAND",                                              \
           "Run by /bin/sh for each question: .npy files on stdin, one behind another, and .npy "  \
           "files on stdout as the answer. Required.")                                             \
        XX(S, group, "group", NAME, 0, 0, 0, "NAME",                                               \
           "Share the questions with the others of this group.")                                   \
        XX(S, count, "count", COUNT, 0, 1, INT64_MAX, "N", "Stop when N questions were answered.") \
        XX(S, timeout_ms, "timeout", TIME, 60000, 1, INT32_MAX, "S",                               \
           "Seconds that the command may take for one question; then it is killed, and the "       \
           "answer says so. Default 60.")                                                          \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(reply, REPLY_OPTIONS);

#define REPLY_ARRAYS_MAX  4096u
#define REPLY_ERROR_BYTES 512u
#define REPLY_READ_BYTES  (256u * 1024u)
#define REPLY_HEADS_BYTES                                                                          \
        (1u << 20) /* of .npy files, beside the elements that the limit is about */
#define REPLY_FLUSH_MS 5000

struct reply {
        const struct nd_reply_options *options;
        struct ndbus *bus;
        struct nd_losses losses;
};

/* What a command made. */
struct reply_result {
        char error[REPLY_ERROR_BYTES]; /* "" if it went well */
        uint8_t *bytes;                /* [n_bytes] of n_allocated */
        size_t n_bytes;
        size_t n_allocated;
        struct nd_npy **files;      /* [n_arrays] */
        struct ndbus_array *arrays; /* [n_arrays] */
        size_t n_arrays;
};

static int reply_write_question(int fd,
                                const struct ndbus_message *question,
                                uint64_t bytes_max,
                                char error[REPLY_ERROR_BYTES])
{
        const struct ndbus_array *arrays = NULL;
        size_t n_arrays = ndbus_message_arrays(question, &arrays);
        struct nd_npy_plan plan;
        struct nd_fault fault;
        int r = 0;

        for (size_t i = 0; i < n_arrays && !r; ++i) {
                r = nd_npy_plan(&arrays[i], &plan, &fault);
                if (r)
                        break;
                r = nd_npy_check_repeats(&arrays[i], &plan, bytes_max, "message-max", &fault);
                if (!r)
                        r = nd_npy_write(fd, &arrays[i], &plan, &fault);
                nd_npy_plan_deinit(&plan);
        }
        if (r)
                snprintf(error, REPLY_ERROR_BYTES, "question: %s: %s", fault.field, fault.text);
        else if (lseek(fd, 0, SEEK_SET) < 0)
                r = -1;
        return r;
}

static void reply_set_number(const char *name, uint64_t value)
{
        char text[24];

        snprintf(text, sizeof(text), "%" PRIu64, value);
        setenv(name, text, 1);
}

/* The child's part. */
_Noreturn static void
reply_become(const char *command, const struct ndbus_message *question, int in_fd, int out_fd)
{
        const struct ndbus_array *arrays;
        const void *meta = NULL;
        size_t n_meta = ndbus_message_meta(question, &meta), n_json = 0;
        char *json = NULL;
        FILE *out;

        setpgid(0, 0);
        signal(SIGXFSZ, SIG_DFL); /* ours is ignored, which it would inherit */
        setenv("NDBUS_TOPIC", ndbus_message_topic(question), 1);
        setenv("NDBUS_REPLY", ndbus_message_reply(question), 1);
        reply_set_number("NDBUS_SOURCE", ndbus_message_source(question));
        reply_set_number("NDBUS_ARRAYS", ndbus_message_arrays(question, &arrays));
        unsetenv("NDBUS_META");
        out = n_meta > 0 ? open_memstream(&json, &n_json) : NULL;
        if (out && nd_meta_write_json(out, meta, n_meta, NULL) == 0 && fclose(out) == 0)
                setenv("NDBUS_META", json, 1);
        if (dup2(in_fd, STDIN_FILENO) >= 0 && dup2(out_fd, STDOUT_FILENO) >= 0)
                execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
}

static void reply_refuse(struct reply_result *result, size_t at, const struct nd_fault *fault)
{
        snprintf(result->error, sizeof(result->error), "what the command wrote: byte %zu: %s%s%s",
                 at, fault->field, fault->field[0] ? ": " : "", fault->text);
}

/* Looks at what has come: *@ret_at is behind the last whole array. False: it is no answer. */
static bool reply_check(struct reply_result *result, uint64_t bytes_max, size_t *ret_at)
{
        struct nd_fault fault;
        int r = 0;

        while (r == 0 && *ret_at < result->n_bytes) {
                struct nd_npy *npy = NULL;

                r = nd_npy_read(result->bytes + *ret_at, result->n_bytes - *ret_at, &npy, &fault);
                if (r == 0)
                        *ret_at += (size_t)npy->file_bytes;
                nd_npy_free(npy);
        }
        if (r != 0 && r != NDBUS_ETRUNCATED) {
                reply_refuse(result, *ret_at, &fault);
                return false;
        }
        if (result->n_bytes > REPLY_HEADS_BYTES &&
            result->n_bytes - REPLY_HEADS_BYTES > bytes_max) {
                snprintf(result->error, sizeof(result->error),
                         "the command wrote more than %" PRIu64 " bytes, the most of a message",
                         bytes_max);
                return false;
        }
        return true;
}

/* One read: true if something came. What fails is in the error. */
static bool reply_read(int fd, struct reply_result *result)
{
        ssize_t n;

        if (result->n_bytes == result->n_allocated) {
                size_t want = result->n_allocated ? result->n_allocated * 2 : REPLY_READ_BYTES;
                uint8_t *bytes = realloc(result->bytes, want);

                if (!bytes) {
                        snprintf(result->error, sizeof(result->error),
                                 "no memory for more than %zu bytes", result->n_bytes);
                        return false;
                }
                result->bytes = bytes;
                result->n_allocated = want;
        }
        n = read(fd, result->bytes + result->n_bytes, result->n_allocated - result->n_bytes);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
                snprintf(result->error, sizeof(result->error), "read: %s", strerror(errno));
        if (n > 0)
                result->n_bytes += (size_t)n;
        return n > 0;
}

/* Reads until the command has ended, or must be: then the error is set. What others still write when
 * it has ended, into the stdout that they have of it, is not waited for. */
static void
reply_watch(const struct reply *reply, int out_fd, int child_fd, struct reply_result *result)
{
        struct pollfd fds[] = {{.fd = out_fd, .events = POLLIN},
                               {.fd = child_fd, .events = POLLIN}};
        uint64_t end_ns = nd_now_ns() + (uint64_t)reply->options->timeout_ms * 1000000;
        uint64_t bytes_max = ndbus_message_max(reply->bus);
        bool has_ended = false;
        size_t at = 0;

        while (!result->error[0]) {
                uint64_t now = nd_now_ns();
                bool came = false;
                int n;

                if (now >= end_ns) {
                        snprintf(result->error, sizeof(result->error),
                                 "the command did not end in %g s (--timeout) and was killed",
                                 (double)reply->options->timeout_ms / 1000);
                        break;
                }
                n = nd_signals_poll(fds, 2, has_ended ? 0 : (int)((end_ns - now) / 1000000) + 1);
                if (nd_signals_interrupted(NULL)) {
                        snprintf(result->error, sizeof(result->error),
                                 "interrupted: who answers was told to end");
                        break;
                }
                if (n > 0 && fds[0].revents)
                        came = reply_read(out_fd, result);
                if (came && !reply_check(result, bytes_max, &at))
                        break;
                if (has_ended && !came)
                        break;
                has_ended = n > 0 && fds[1].revents;
        }
}

/* Runs it to its end: result->bytes, or result->error. */
static void reply_execute(const struct reply *reply,
                          const struct ndbus_message *question,
                          int in_fd,
                          const int pipe_fds[static 2],
                          struct reply_result *result)
{
        int status = 0, child_fd;
        pid_t child;

        fflush(NULL);
        child = fork();
        if (child == 0)
                reply_become(reply->options->exec, question, in_fd, pipe_fds[1]);
        if (child < 0) {
                snprintf(result->error, sizeof(result->error), "fork: %s", strerror(errno));
                return;
        }
        setpgid(child, child); /* who comes first, it or we */
        child_fd = pidfd_open(child, 0);
        if (child_fd < 0) {
                snprintf(result->error, sizeof(result->error), "pidfd_open: %s", strerror(errno));
        } else {
                reply_watch(reply, pipe_fds[0], child_fd, result);
                close(child_fd);
        }
        if (result->error[0])
                kill(-child, SIGKILL);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
                ;
        if (result->error[0] || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
                return;
        if (WIFSIGNALED(status))
                snprintf(result->error, sizeof(result->error),
                         "the command was killed by signal %d", WTERMSIG(status));
        else
                snprintf(result->error, sizeof(result->error), "the command's exit status is %d",
                         WEXITSTATUS(status));
}

/* Takes the arrays out of what the command wrote. */
static void reply_take_arrays(struct reply_result *result)
{
        struct nd_fault fault;
        size_t at = 0;

        result->files = calloc(REPLY_ARRAYS_MAX, sizeof(struct nd_npy *));
        result->arrays = calloc(REPLY_ARRAYS_MAX, sizeof(*result->arrays));
        if (!result->files || !result->arrays) {
                snprintf(result->error, sizeof(result->error), "out of memory");
                return;
        }
        while (at < result->n_bytes) {
                struct nd_npy **file = &result->files[result->n_arrays];

                if (result->n_arrays == REPLY_ARRAYS_MAX) {
                        snprintf(result->error, sizeof(result->error),
                                 "the command wrote more than %u arrays", REPLY_ARRAYS_MAX);
                        return;
                }
                if (nd_npy_read(result->bytes + at, result->n_bytes - at, file, &fault)) {
                        reply_refuse(result, at, &fault);
                        return;
                }
                result->arrays[result->n_arrays++] = (*file)->array;
                at += (size_t)(*file)->file_bytes;
        }
}

static void reply_result_deinit(struct reply_result *result)
{
        for (size_t i = 0; i < result->n_arrays; ++i)
                nd_npy_free(result->files[i]);
        free(result->files);
        free(result->arrays);
        free(result->bytes);
}

static void reply_compute(const struct reply *reply,
                          const struct ndbus_message *question,
                          struct reply_result *result)
{
        int in_fd = memfd_create("ndbus-question", MFD_CLOEXEC), pipe_fds[2] = {-1, -1};

        if (in_fd < 0)
                snprintf(result->error, sizeof(result->error), "memfd_create: %s", strerror(errno));
        else if (pipe2(pipe_fds, O_CLOEXEC) < 0 || fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK) < 0)
                snprintf(result->error, sizeof(result->error), "pipe2: %s", strerror(errno));
        else if (ndbus_message_check_meta(question))
                snprintf(result->error, sizeof(result->error), "question: %.200s", ndbus_detail());
        else if (reply_write_question(in_fd, question, ndbus_message_max(reply->bus),
                                      result->error) == 0)
                reply_execute(reply, question, in_fd, pipe_fds, result);
        if (!result->error[0])
                reply_take_arrays(result);
        if (in_fd >= 0)
                close(in_fd);
        for (int i = 0; i < 2; ++i)
                if (pipe_fds[i] >= 0)
                        close(pipe_fds[i]);
}

static int
reply_send_error(struct ndbus *bus, const struct ndbus_message *question, const char *text)
{
        struct ndbus_publish_options options = NDBUS_PUBLISH_OPTIONS_INIT;
        msgpack_sbuffer meta;
        msgpack_packer packer;
        int r;

        msgpack_sbuffer_init(&meta);
        msgpack_packer_init(&packer, &meta, msgpack_sbuffer_write);
        msgpack_pack_map(&packer, 1);
        msgpack_pack_str(&packer, strlen("error"));
        msgpack_pack_str_body(&packer, "error", strlen("error"));
        msgpack_pack_str(&packer, strlen(text));
        msgpack_pack_str_body(&packer, text, strlen(text));
        options.meta = meta.data;
        options.n_meta = meta.size;
        r = ndbus_reply(bus, question, NULL, 0, &options);
        msgpack_sbuffer_destroy(&meta);
        return r;
}

/* 0: the answer is with the daemon. */
static int reply_answer(const struct reply *reply, const struct ndbus_message *question)
{
        struct reply_result result = {.n_arrays = 0};
        int r = 0;

        reply_compute(reply, question, &result);
        if (!result.error[0]) {
                r = ndbus_reply(reply->bus, question, result.arrays, result.n_arrays, NULL);
                if (r) /* it cannot be sent, but whoever waits is told */
                        snprintf(result.error, sizeof(result.error), "%s: %.200s",
                                 ndbus_strerror(r), ndbus_detail());
        }
        if (result.error[0]) {
                nd_report("%s: %s", ndbus_message_topic(question), result.error);
                r = reply_send_error(reply->bus, question, result.error);
        }
        reply_result_deinit(&result);
        return r ? r : ndbus_flush(reply->bus, REPLY_FLUSH_MS);
}

static int reply_serve(struct reply *reply, const char *pattern)
{
        uint64_t n_answered = 0, count = reply->options->count, told_ns = 0;

        while (count == 0 || n_answered < count) {
                struct ndbus_message *question = NULL;
                int r = NDBUS_EINTERRUPTED;

                if (!nd_signals_interrupted(NULL))
                        r = ndbus_receive(reply->bus, &question, -1);
                if (r == NDBUS_EINTERRUPTED)
                        return count > 0 ? ND_EXIT_FAILED : ND_EXIT_OK;
                if (r && nd_command_reconnects(r, &told_ns))
                        continue;
                if (r)
                        return nd_report_bus("", r);
                told_ns = 0;
                nd_losses_say(&reply->losses, pattern, "");
                if (ndbus_message_reply(question)) {
                        r = reply_answer(reply, question);
                        if (r) /* who asks for what cannot be done is not answered, others are */
                                nd_report_bus(ndbus_message_topic(question), r);
                        else
                                ++n_answered;
                }
                ndbus_message_free(question);
        }
        return ND_EXIT_OK;
}

static int reply_run(const void *values, char *const *arguments, size_t n_arguments)
{
        const struct nd_reply_options *options = values;
        struct reply reply = {.options = values};
        struct ndbus_subscribe_options subscribe = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus_subscription *subscription = NULL;
        int r, status;

        (void)n_arguments;
        if (!options->exec) {
                nd_report("--exec: is missing; say what computes the answers, as in "
                          "--exec 'python3 answer.py'");
                return ND_EXIT_USAGE;
        }
        nd_signals_catch();
        reply.bus = nd_command_open(options->url);
        if (!reply.bus)
                return ND_EXIT_FAILED;
        subscribe.group = options->group;
        subscribe.retained = 0;
        if (options->group)
                subscribe.window = 1; /* what one computes, others need not wait for */
        r = ndbus_subscribe(reply.bus, arguments[0], &subscribe, &subscription);
        if (r) {
                status = nd_report_bus(arguments[0], r);
        } else {
                nd_command_say_subscribed(arguments[0]);
                reply.losses.subscription = subscription;
                status = reply_serve(&reply, arguments[0]);
                nd_losses_end(&reply.losses, reply.bus, arguments[0], "");
        }
        r = nd_command_close(reply.bus, REPLY_FLUSH_MS);
        return status == ND_EXIT_OK ? r : status;
}

const struct nd_command nd_command_reply = {
        .name = "reply",
        .arguments = "PATTERN --exec COMMAND",
        .summary = "Answer questions by running a command.",
        .details =
                "The command finds NDBUS_TOPIC, NDBUS_REPLY, NDBUS_SOURCE, NDBUS_ARRAYS (how many) and "
                "NDBUS_META (JSON) in its environment. If it fails, the answer has no arrays and "
                "its metadata says {\"error\": ...}. Prints \"subscribed to PATTERN\" on stderr "
                "when it is ready.",
        .n_arguments_min = 1,
        .n_arguments_max = 1,
        .checks = ND_ARGUMENTS_PATTERN,
        .options = reply_options,
        .n_options = nd_array_size(reply_options),
        .values_bytes = sizeof(struct nd_reply_options),
        .run = reply_run,
};
