/* SPDX-License-Identifier: MIT */

/*
 * ndbus reply: a shell command as a service
 *
 * The question's arrays are put into memory as .npy files one behind another, which is the command's
 * stdin; what it writes to stdout is memory too, and is read the same way when it has ended. No
 * pipes: a command that reads nothing, or writes before it has read all, cannot hang us or be hung.
 * What it writes to stderr goes to ours.
 *
 * Whoever asks hears of a failure: an answer without arrays whose meta says {"error": ...}. While a
 * command runs nothing else is done; to the daemon we live as long as the connection does. With
 * --group several of us share the questions, one each at a time.
 */

#include <errno.h>
#include <inttypes.h>
#include <msgpack.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
        XX(S, group, "group", TEXT, 0, 0, 0, "NAME",                                               \
           "Share the questions with the others of this group.")                                   \
        XX(S, count, "count", COUNT, 0, 1, INT64_MAX, "N", "Stop after N questions.")              \
        ND_COMMAND_URL_OPTION(XX, S)

ND_OPTION_DEFINE(reply, REPLY_OPTIONS);

#define REPLY_ARRAYS_MAX  4096u
#define REPLY_ERROR_BYTES 512u

/* What a command made. */
struct reply_result {
        char error[REPLY_ERROR_BYTES]; /* "" if it went well */
        uint8_t *bytes;                /* [n_bytes] mapped */
        size_t n_bytes;
        struct nd_npy **files;      /* [n_arrays] */
        struct ndbus_array *arrays; /* [n_arrays] */
        size_t n_arrays;
};

static int
reply_write_question(int fd, const struct ndbus_message *question, char error[REPLY_ERROR_BYTES])
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

/* Runs it to its end: true if it ended by status 0. */
static bool reply_execute(const char *command,
                          const struct ndbus_message *question,
                          int in_fd,
                          int out_fd,
                          char error[REPLY_ERROR_BYTES])
{
        int status = 0;
        pid_t child;

        fflush(NULL);
        child = fork();
        if (child == 0)
                reply_become(command, question, in_fd, out_fd);
        if (child < 0) {
                snprintf(error, REPLY_ERROR_BYTES, "fork: %s", strerror(errno));
                return false;
        }
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
                ;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                return true;
        if (WIFSIGNALED(status))
                snprintf(error, REPLY_ERROR_BYTES, "the command was killed by signal %d",
                         WTERMSIG(status));
        else
                snprintf(error, REPLY_ERROR_BYTES, "the command's exit status is %d",
                         WEXITSTATUS(status));
        return false;
}

/* Takes the arrays out of what the command wrote. */
static void reply_read_result(int fd, struct reply_result *result)
{
        struct nd_fault fault;
        struct stat st;
        size_t at = 0;
        void *bytes;

        if (fstat(fd, &st) < 0 || st.st_size == 0)
                return;
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
                snprintf(result->error, sizeof(result->error), "mmap: %s", strerror(errno));
                return;
        }
        result->bytes = bytes;
        result->n_bytes = (size_t)st.st_size;
        result->files = calloc(REPLY_ARRAYS_MAX, sizeof(struct nd_npy *));
        result->arrays = calloc(REPLY_ARRAYS_MAX, sizeof(*result->arrays));
        while (at < result->n_bytes) {
                struct nd_npy **file;

                if (!result->files || !result->arrays || result->n_arrays == REPLY_ARRAYS_MAX) {
                        snprintf(result->error, sizeof(result->error),
                                 "the command wrote more than %u arrays", REPLY_ARRAYS_MAX);
                        return;
                }
                file = &result->files[result->n_arrays];
                if (nd_npy_read(result->bytes + at, result->n_bytes - at, file, &fault)) {
                        snprintf(result->error, sizeof(result->error),
                                 "what the command wrote: byte %zu: %s: %s", at, fault.field,
                                 fault.text);
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
        if (result->bytes)
                munmap(result->bytes, result->n_bytes);
}

static void reply_compute(const char *command,
                          const struct ndbus_message *question,
                          struct reply_result *result)
{
        int in_fd = memfd_create("ndbus-question", MFD_CLOEXEC);
        int out_fd = memfd_create("ndbus-answer", MFD_CLOEXEC);

        if (in_fd < 0 || out_fd < 0)
                snprintf(result->error, sizeof(result->error), "memfd_create: %s", strerror(errno));
        else if (reply_write_question(in_fd, question, result->error) == 0 &&
                 reply_execute(command, question, in_fd, out_fd, result->error))
                reply_read_result(out_fd, result);
        if (in_fd >= 0)
                close(in_fd);
        if (out_fd >= 0)
                close(out_fd);
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

static int
reply_answer(struct ndbus *bus, const char *command, const struct ndbus_message *question)
{
        struct reply_result result = {.n_arrays = 0};
        int r = 0;

        reply_compute(command, question, &result);
        if (!result.error[0]) {
                r = ndbus_reply(bus, question, result.arrays, result.n_arrays, NULL);
                if (r) /* it cannot be sent, but whoever waits is told */
                        snprintf(result.error, sizeof(result.error), "%s: %.200s",
                                 ndbus_strerror(r), ndbus_detail());
        }
        if (result.error[0]) {
                nd_report("%s: %s", ndbus_message_topic(question), result.error);
                r = reply_send_error(bus, question, result.error);
        }
        reply_result_deinit(&result);
        return r;
}

static int reply_serve(struct ndbus *bus, const struct nd_reply_options *options)
{
        uint64_t n_answered = 0;

        while (options->count == 0 || n_answered < options->count) {
                struct ndbus_message *question = NULL;
                int r = NDBUS_EINTERRUPTED;

                if (!nd_signals_interrupted(NULL))
                        r = ndbus_receive(bus, &question, -1);
                if (r == NDBUS_EINTERRUPTED)
                        return options->count > 0 ? ND_EXIT_FAILED : ND_EXIT_OK;
                if (r == NDBUS_ENOTCONN || r == NDBUS_EDEAD || r == NDBUS_ESHUTDOWN) {
                        nd_report_bus("connection lost, connecting again", r);
                        poll(NULL, 0, 100);
                        continue;
                }
                if (r)
                        return nd_report_bus("", r);
                if (ndbus_message_reply(question)) {
                        r = reply_answer(bus, options->exec, question);
                        if (r)
                                nd_report_bus(ndbus_message_topic(question), r);
                        ++n_answered;
                }
                ndbus_message_free(question);
        }
        return ND_EXIT_OK;
}

static int reply_run(const void *values, char *const *arguments, size_t n_arguments)
{
        const struct nd_reply_options *options = values;
        struct ndbus_subscribe_options subscribe = NDBUS_SUBSCRIBE_OPTIONS_INIT;
        struct ndbus *bus;
        int r, status;

        (void)n_arguments;
        if (!options->exec) {
                nd_report("--exec: is missing; say what computes the answers, as in "
                          "--exec 'python3 answer.py'");
                return ND_EXIT_USAGE;
        }
        nd_signals_catch();
        bus = nd_command_open(options->url);
        if (!bus)
                return ND_EXIT_FAILED;
        subscribe.group = options->group;
        subscribe.retained = 0;
        if (options->group)
                subscribe.window = 1; /* what one computes, others need not wait for */
        r = ndbus_subscribe(bus, arguments[0], &subscribe, NULL);
        if (r) {
                status = nd_report_bus(arguments[0], r);
        } else {
                fputs("subscribed to ", stderr);
                nd_command_write_text(stderr, arguments[0]);
                fputc('\n', stderr);
                status = reply_serve(bus, options);
        }
        r = nd_command_close(bus, 5000);
        return status == ND_EXIT_OK ? r : status;
}

const struct nd_command nd_command_reply = {
        .name = "reply",
        .arguments = "PATTERN --exec COMMAND",
        .summary = "Answer questions by running a command.",
        .details =
                "The command finds NDBUS_TOPIC, NDBUS_SOURCE, NDBUS_ARRAYS (how many) and "
                "NDBUS_META (JSON) in its environment. If it fails, the answer has no arrays and "
                "its metadata says {\"error\": ...}. Prints \"subscribed to PATTERN\" on stderr "
                "when it is ready.",
        .n_arguments_min = 1,
        .n_arguments_max = 1,
        .options = reply_options,
        .n_options = nd_array_size(reply_options),
        .values_bytes = sizeof(struct nd_reply_options),
        .run = reply_run,
};
