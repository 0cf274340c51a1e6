/* SPDX-License-Identifier: MIT */

/*
 * Errors, progress, and the wish to end
 *
 * One line an error, on stderr, that names what was refused, because scripts and people both read
 * it. Names and texts come from files and peers: nothing unprintable reaches the terminal. Progress
 * is for people alone: never on a pipe, and not for what takes less than a second.
 */

#include "client/command/report.h"
#include <errno.h>
#include <ndbus/ndbus.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REPORT_BYTES         1024u
#define PROGRESS_FIRST_NS    UINT64_C(1000000000)
#define PROGRESS_INTERVAL_NS UINT64_C(200000000)

static const char *report_command = "";
static volatile sig_atomic_t signals_seen;

void nd_report_set_command(const char *name)
{
        report_command = name;
}

static void report_write(char *text)
{
        for (char *c = text; *c; ++c)
                if ((unsigned char)*c < 0x20 || *c == 0x7f)
                        *c = '?';
        fprintf(stderr, *report_command ? "ndbus %s: %s\n" : "ndbus%s: %s\n", report_command, text);
}

int nd_report(const char *format, ...)
{
        char text[REPORT_BYTES];
        va_list args;

        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        report_write(text);
        return ND_EXIT_FAILED;
}

int nd_report_fault(const char *subject, const struct nd_fault *fault)
{
        return nd_report("%s%s%s%s%s", subject, *subject ? ": " : "", fault->field,
                         fault->field[0] ? ": " : "", fault->text);
}

int nd_report_bus(const char *subject, int err)
{
        const char *detail = ndbus_detail();

        return nd_report("%s%s%s%s%s", subject, *subject ? ": " : "", ndbus_strerror(err),
                         *detail ? ": " : "", detail);
}

int nd_report_errno(const char *subject, int err)
{
        return nd_report("%s: %s", subject, strerror(err));
}

uint64_t nd_now_ns(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void nd_progress_start(struct nd_progress *progress)
{
        *progress = (struct nd_progress){.start_ns = nd_now_ns()};
}

void nd_progress_show(struct nd_progress *progress, const char *format, ...)
{
        uint64_t now = nd_now_ns();
        va_list args;

        if (now - progress->start_ns < PROGRESS_FIRST_NS ||
            now - progress->last_ns < PROGRESS_INTERVAL_NS || !isatty(STDERR_FILENO))
                return;
        progress->last_ns = now;
        progress->is_shown = true;
        fputs("\r\033[K", stderr);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fflush(stderr);
}

void nd_progress_clear(struct nd_progress *progress)
{
        if (progress->is_shown)
                fputs("\r\033[K", stderr);
        progress->is_shown = false;
}

static void signals_on_signal(int number)
{
        (void)number;
        signals_seen = 1;
}

void nd_signals_catch(void)
{
        /* without SA_RESTART, so that waits end; with SA_RESETHAND, so that the second one kills */
        struct sigaction action = {.sa_handler = signals_on_signal, .sa_flags = (int)SA_RESETHAND};

        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
}

int nd_signals_interrupted(void *userdata)
{
        (void)userdata;
        return signals_seen != 0;
}

/* Between the question and the wait no signal is let in. */
int nd_signals_poll(struct pollfd *fds, nfds_t n_fds, int timeout_ms)
{
        const struct timespec timeout = {
                .tv_sec = timeout_ms / 1000,
                .tv_nsec = timeout_ms % 1000 * 1000000L,
        };
        sigset_t ours, before;
        int r = -1;

        sigemptyset(&ours);
        sigaddset(&ours, SIGINT);
        sigaddset(&ours, SIGTERM);
        sigprocmask(SIG_BLOCK, &ours, &before);
        errno = EINTR;
        if (!signals_seen)
                r = ppoll(fds, n_fds, timeout_ms < 0 ? NULL : &timeout, &before);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return r;
}
