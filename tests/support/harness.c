/* SPDX-License-Identifier: MIT */

/*
 * A daemon under test
 *
 * Nothing here waits for time to pass. Readiness is the daemon's own word on NOTIFY_SOCKET, a
 * datagram socket in the test's folder; with it comes STATUS=listening on URL..., which is how the
 * TCP port is known although the system chose it. The end of the daemon is seen on a pidfd. Where
 * the kernel offers no event at all (how many descriptors another process has) a condition is asked
 * again every few milliseconds, while the pidfd is watched.
 *
 * Two things keep a broken test from leaving anything behind: the kernel kills the daemon when the
 * thread that started it ends, and an exit handler removes the folders that were not freed. Both
 * are needed because a failed Criterion assertion leaves a test by longjmp().
 */

#include "tests/support/harness.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "protocol/base.h"
#include "protocol/list.h"

#define HARNESS_READY_MS       10000
#define HARNESS_STOP_MS        10000
#define HARNESS_POLL_MS        2
#define HARNESS_LOG_TAIL_BYTES 8192u
#define HARNESS_NOBODY         65534
#define HARNESS_FDS_MAX        16u

struct harness {
        struct nd_harness seen;
        struct nd_list live;
        struct nd_harness_options options;
        char *folder;
        char *unix_url;
        char *tcp_listen; /* port 0 until the daemon has said which */
        char *status;
        char *notify_path;
        int notify_fd;
        int log_fd;
        int pidfd;       /* of a daemon that was not yet reaped, else -1 */
        int exit_status; /* of one that was */
        size_t n_own_fds;
};

/* argv and environment of a daemon; made before fork(), when malloc() is still allowed */
struct command {
        char **argv;
        char **env;
        int program_fd;   /* for a user who may not go where the program lies; else -1 */
        char *listen_pid; /* "LISTEN_PID=", filled in by the child */
};

static struct nd_list live_harnesses = ND_LIST_INIT(live_harnesses);
static pid_t live_owner; /* the exit of a forked child removes nothing of its parent's */

static struct harness *harness_of(struct nd_harness *seen)
{
        return nd_container_of(seen, struct harness, seen);
}

bool nd_harness_memory_is_exact(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        return false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
        return false;
#endif
#endif
        return getenv("NDBUS_UNDER_VALGRIND") == NULL;
}

int nd_harness_deadline_ms(int release_ms)
{
        if (getenv("NDBUS_UNDER_VALGRIND"))
                return release_ms * 20;
        return nd_harness_memory_is_exact() ? release_ms : release_ms * 4;
}

static int64_t now_ms(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static int left_ms(int64_t deadline_ms)
{
        int64_t left = deadline_ms - now_ms();

        return left > 0 ? (int)left : 0;
}

/* ---------------------------------------------------------------------- failing and cleaning up */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
        (void)st;
        (void)kind;
        (void)ftw;
        return remove(path);
}

/* Takes the exit status. timeout_ms 0: only looks. */
static bool harness_reap(struct harness *h, int timeout_ms)
{
        struct pollfd ended = {.fd = h->pidfd, .events = POLLIN};
        int64_t deadline = now_ms() + timeout_ms;
        int n;

        if (h->pidfd < 0)
                return true;
        do
                n = poll(&ended, 1, left_ms(deadline));
        while (n < 0 && errno == EINTR);
        if (n <= 0)
                return false;

        while (waitpid(h->seen.pid, &h->exit_status, 0) < 0 && errno == EINTR)
                ;
        close(h->pidfd);
        h->pidfd = -1;
        h->seen.pid = 0;
        return true;
}

static void harness_end_daemon(struct harness *h)
{
        if (h->pidfd < 0)
                return;
        kill(h->seen.pid, SIGKILL);
        harness_reap(h, HARNESS_STOP_MS);
}

static void harness_remove_all(void)
{
        if (getpid() != live_owner)
                return;
        nd_list_for_each (i, &live_harnesses) {
                struct harness *h = nd_list_entry(i, struct harness, live);

                harness_end_daemon(h);
                nftw(h->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        }
}

char *nd_harness_log(struct nd_harness *seen)
{
        struct harness *h = harness_of(seen);
        struct stat st;
        ssize_t n = -1;
        char *text = NULL;

        if (fstat(h->log_fd, &st) == 0)
                text = malloc((size_t)st.st_size + 1);
        if (text)
                n = pread(h->log_fd, text, (size_t)st.st_size, 0);
        if (n < 0) {
                perror("harness: the daemon's log");
                abort();
        }
        text[n] = '\0';
        return text;
}

_Noreturn void nd_harness_fail(struct nd_harness *seen, const char *format, ...)
{
        va_list args;

        fputs("harness: ", stderr);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);

        if (seen) {
                nd_autofree char *log = nd_harness_log(seen);
                size_t n = strlen(log);
                const char *tail =
                        n > HARNESS_LOG_TAIL_BYTES ? log + n - HARNESS_LOG_TAIL_BYTES : log;

                fprintf(stderr, "--- the daemon's log%s\n%s---\n", tail == log ? "" : ", its end",
                        tail);
        }
        harness_remove_all();
        abort();
}

__attribute__((format(printf, 1, 2))) static char *format_string(const char *format, ...)
{
        char *text;
        va_list args;
        int n;

        va_start(args, format);
        n = vasprintf(&text, format, args);
        va_end(args);
        if (n < 0)
                nd_harness_fail(NULL, "out of memory");
        return text;
}

/* ------------------------------------------------------------------------------------- starting */

static size_t count_strings(const char *const *strings)
{
        size_t n = 0;

        while (strings && strings[n])
                ++n;
        return n;
}

/* Ours come last but are found first: an environment is searched from its beginning. */
static bool is_replaced(const char *variable)
{
        static const char *const ours[] = {
                "NOTIFY_SOCKET=", "LISTEN_PID=",   "LISTEN_FDS=",        "LISTEN_FDNAMES=",
                "WATCHDOG_USEC=", "WATCHDOG_PID=", "RUNTIME_DIRECTORY=", "XDG_RUNTIME_DIR=",
        };

        for (size_t i = 0; i < nd_array_size(ours); ++i) {
                if (strncmp(variable, ours[i], strlen(ours[i])) == 0)
                        return true;
        }
        return false;
}

static void command_init(struct command *c, struct harness *h)
{
        const struct nd_harness_options *o = &h->options;
        size_t n_args = count_strings(o->args), n_env = count_strings(o->env);
        size_t n_inherited = count_strings((const char *const *)environ), n = 0;
        const char *program = getenv("NDBUSD");

        if (!program)
                nd_harness_fail(NULL, "NDBUSD does not say which ndbusd to test");
        c->argv = calloc(n_args + 6, sizeof(char *));
        c->env = calloc(n_env + n_inherited + 4, sizeof(char *));
        if (!c->argv || !c->env)
                nd_harness_fail(NULL, "out of memory");

        c->argv[n++] = format_string("%s", program);
        c->program_fd = -1;
        if (o->unprivileged) {
                c->program_fd = open(program, O_PATH | O_CLOEXEC);
                if (c->program_fd < 0)
                        nd_harness_fail(NULL, "%s: %s", program, strerror(errno));
        }
        if (!o->no_unix) {
                c->argv[n++] = format_string("--listen");
                c->argv[n++] = format_string("%s", h->unix_url);
        }
        if (!o->no_tcp) {
                c->argv[n++] = format_string("--listen");
                c->argv[n++] = format_string("%s", h->tcp_listen);
        }
        for (size_t i = 0; i < n_args; ++i)
                c->argv[n++] = format_string("%s", o->args[i]);

        n = 0;
        for (size_t i = 0; i < n_env; ++i)
                c->env[n++] = format_string("%s", o->env[i]);
        for (size_t i = 0; i < n_inherited; ++i) {
                if (!is_replaced(environ[i]))
                        c->env[n++] = format_string("%s", environ[i]);
        }
        c->env[n++] = format_string("NOTIFY_SOCKET=%s", h->notify_path);
        if (o->n_listen_fds > 0) {
                c->env[n++] = format_string("LISTEN_FDS=%zu", o->n_listen_fds);
                c->env[n++] = c->listen_pid = format_string("LISTEN_PID=%010d", 0);
        }
}

static void command_deinit(struct command *c)
{
        for (size_t i = 0; c->argv[i]; ++i)
                free(c->argv[i]);
        for (size_t i = 0; c->env[i]; ++i)
                free(c->env[i]);
        free(c->argv);
        free(c->env);
        if (c->program_fd >= 0)
                close(c->program_fd);
}

/* Moves the descriptors to 3, 4 ... by way of numbers that are surely free of them. */
static bool child_place_listen_fds(const struct nd_harness_options *o)
{
        int high[HARNESS_FDS_MAX];

        for (size_t i = 0; i < o->n_listen_fds; ++i) {
                high[i] = fcntl(o->listen_fds[i], F_DUPFD_CLOEXEC, 256);
                if (high[i] < 0)
                        return false;
        }
        for (size_t i = 0; i < o->n_listen_fds; ++i) {
                if (dup2(high[i], 3 + (int)i) < 0)
                        return false;
        }
        return true;
}

/* The daemon gets what the test means it to have, and no descriptor of the test's besides. */
_Noreturn static void
child_exec(const struct harness *h, const struct command *c, pid_t parent, int null_fd)
{
        const struct nd_harness_options *o = &h->options;
        sigset_t none;

        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        if (o->unprivileged && getuid() == 0 &&
            (setgroups(0, NULL) != 0 || setgid(HARNESS_NOBODY) != 0 || setuid(HARNESS_NOBODY) != 0))
                _exit(99);
        /* after setuid(), which undoes it */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
                _exit(99);
        if (dup2(null_fd, 0) < 0 || dup2(h->log_fd, 1) < 0 || dup2(h->log_fd, 2) < 0)
                _exit(99);
        if (!child_place_listen_fds(o))
                _exit(99);
        if (close_range(3 + (unsigned)o->n_listen_fds, ~0u, CLOSE_RANGE_CLOEXEC) != 0)
                _exit(99);
        if (c->listen_pid)
                snprintf(c->listen_pid, strlen(c->listen_pid) + 1, "LISTEN_PID=%d", (int)getpid());
        for (size_t i = 0; i < o->n_rlimits; ++i) {
                if (setrlimit((__rlimit_resource_t)o->rlimits[i].resource, &o->rlimits[i].limit) !=
                    0) {
                        perror("harness: setrlimit");
                        _exit(99);
                }
        }
        if (c->program_fd >= 0)
                fexecve(c->program_fd, c->argv, c->env);
        else
                execve(c->argv[0], c->argv, c->env);
        perror(c->argv[0]);
        _exit(99);
}

static void harness_spawn(struct harness *h)
{
        int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        pid_t parent = getpid();
        struct command c = {0};

        command_init(&c, h);
        h->seen.pid = fork();
        if (h->seen.pid == 0)
                child_exec(h, &c, parent, null_fd);
        if (h->seen.pid < 0)
                nd_harness_fail(NULL, "fork: %s", strerror(errno));
        command_deinit(&c);
        close(null_fd);

        h->pidfd = pidfd_open(h->seen.pid, 0);
        if (h->pidfd < 0)
                nd_harness_fail(NULL, "pidfd_open: %s", strerror(errno));
        h->seen.ready = false;
        h->seen.stopping = false;
        h->seen.n_watchdog = 0;
}

static int notify_socket(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0)
                nd_harness_fail(NULL, "socket: %s", strerror(errno));
        /* also true for ndbus.sock, whose name is shorter */
        if (strlen(path) >= sizeof(address.sun_path))
                nd_harness_fail(NULL, "%s: too long for a socket", path);
        memcpy(address.sun_path, path, strlen(path));
        /* the folder is private; the daemon may be another user */
        if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
            chmod(path, 0777) != 0)
                nd_harness_fail(NULL, "%s: %s", path, strerror(errno));
        return fd;
}

struct nd_harness *nd_harness_spawn(const struct nd_harness_options *options)
{
        const char *tmp = getenv("TMPDIR");
        nd_autofree char *log_path = NULL;
        struct harness *h;
        size_t n_own_fds;

        if (!nd_proc_fds(getpid(), &n_own_fds))
                nd_harness_fail(NULL, "/proc is not there");
        h = calloc(1, sizeof(*h));
        if (!h)
                nd_harness_fail(NULL, "out of memory");
        h->n_own_fds = n_own_fds;
        h->pidfd = -1;
        if (options)
                h->options = *options;
        if (h->options.n_listen_fds > HARNESS_FDS_MAX)
                nd_harness_fail(NULL, "more than %u descriptors to pass", HARNESS_FDS_MAX);

        /* TMPDIR may be a folder where nobody but the test's user may go */
        if (!tmp || !tmp[0] || h->options.unprivileged)
                tmp = "/tmp";
        h->folder = format_string("%s/ndbus-test-XXXXXX", tmp);
        if (!mkdtemp(h->folder))
                nd_harness_fail(NULL, "%s: %s", h->folder, strerror(errno));
        if (h->options.unprivileged && getuid() == 0 &&
            chown(h->folder, HARNESS_NOBODY, HARNESS_NOBODY) != 0)
                nd_harness_fail(NULL, "%s: %s", h->folder, strerror(errno));
        if (live_owner != getpid()) {
                live_owner = getpid();
                nd_list_init(&live_harnesses);
                atexit(harness_remove_all);
        }
        nd_list_push_tail(&live_harnesses, &h->live);

        h->unix_url = format_string("unix:%s/ndbus.sock", h->folder);
        h->tcp_listen = format_string("tcp://127.0.0.1:0");
        h->notify_path = format_string("%s/notify.sock", h->folder);
        h->notify_fd = notify_socket(h->notify_path);
        log_path = format_string("%s/log", h->folder);
        h->log_fd = open(log_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (h->log_fd < 0)
                nd_harness_fail(NULL, "%s: %s", log_path, strerror(errno));

        h->seen.folder = h->folder;
        h->seen.unix_url = h->unix_url;
        h->seen.unix_path = h->unix_url + strlen("unix:");
        harness_spawn(h);
        return &h->seen;
}

/* ------------------------------------------------------------------------------- notifications */

/* "listening on unix:/a tcp://127.0.0.1:43210 ...": the first TCP one is ours. */
static void harness_learn_urls(struct harness *h, const char *status)
{
        static const char before[] = "listening on ";
        const char *url;

        if (h->options.no_tcp || strncmp(status, before, strlen(before)) != 0)
                return;
        url = strstr(status, "tcp://");
        if (!url)
                return;
        free(h->tcp_listen);
        h->tcp_listen = format_string("%.*s", (int)strcspn(url, " "), url);
        h->seen.tcp_url = h->tcp_listen;
}

static void harness_take_line(struct harness *h, const char *line)
{
        if (strcmp(line, "READY=1") == 0) {
                h->seen.ready = true;
        } else if (strcmp(line, "STOPPING=1") == 0) {
                h->seen.stopping = true;
        } else if (strcmp(line, "WATCHDOG=1") == 0) {
                ++h->seen.n_watchdog;
        } else if (strncmp(line, "STATUS=", 7) == 0) {
                free(h->status);
                h->status = format_string("%s", line + 7);
                h->seen.status = h->status;
                harness_learn_urls(h, h->status);
        }
}

void nd_harness_read_notify(struct nd_harness *seen)
{
        struct harness *h = harness_of(seen);
        char text[4096];
        ssize_t n;

        while ((n = recv(h->notify_fd, text, sizeof(text) - 1, 0)) >= 0) {
                char *rest = text, *line;

                text[n] = '\0';
                while ((line = strsep(&rest, "\n")))
                        harness_take_line(h, line);
        }
}

void nd_harness_wait_until(struct nd_harness *seen,
                           const char *what,
                           bool (*is_true)(void *userdata),
                           void *userdata,
                           int timeout_ms)
{
        struct harness *h = harness_of(seen);
        int64_t deadline = now_ms() + timeout_ms;

        while (!is_true(userdata)) {
                if (harness_reap(h, HARNESS_POLL_MS))
                        nd_harness_fail(seen, "the daemon ended while the test waited for %s",
                                        what);
                if (now_ms() >= deadline)
                        nd_harness_fail(seen, "waited %d ms for %s", timeout_ms, what);
        }
}

static bool is_asleep(void *userdata)
{
        const struct nd_harness *seen = userdata;

        return nd_proc_is_asleep(seen->pid);
}

bool nd_harness_wait_ready(struct nd_harness *seen, int timeout_ms)
{
        struct harness *h = harness_of(seen);
        int64_t deadline = now_ms() + timeout_ms;
        bool ended = false;

        for (;;) {
                struct pollfd fds[] = {
                        {.fd = h->notify_fd, .events = POLLIN},
                        {.fd = h->pidfd, .events = POLLIN},
                };

                nd_harness_read_notify(seen);
                if (seen->ready || ended || now_ms() >= deadline)
                        break;
                poll(fds, nd_array_size(fds), left_ms(deadline));
                /* what it said before it ended is still in the socket: look once more */
                ended = fds[1].revents != 0;
        }
        if (!seen->ready)
                return false;
        if (!h->options.no_tcp && !seen->tcp_url)
                nd_harness_fail(seen, "ready, but STATUS=listening on ... tcp://... never came");
        /* it may be about to close the socket by which it told us */
        nd_harness_wait_until(seen, "the daemon to be idle", is_asleep, seen, timeout_ms);
        seen->n_fds_ready = nd_harness_fds(seen);
        return true;
}

static void harness_require_ready(struct nd_harness *seen)
{
        if (!nd_harness_wait_ready(seen, nd_harness_deadline_ms(HARNESS_READY_MS)))
                nd_harness_fail(seen, "the daemon %s before it was ready",
                                harness_reap(harness_of(seen), 0) ? "ended" : "used up its time");
}

struct nd_harness *nd_harness_start(const struct nd_harness_options *options)
{
        struct nd_harness *seen = nd_harness_spawn(options);

        harness_require_ready(seen);
        return seen;
}

void nd_harness_start_again(struct nd_harness *seen)
{
        struct harness *h = harness_of(seen);

        if (!harness_reap(h, 0))
                nd_harness_fail(seen, "the daemon still runs: it cannot be started again");
        nd_harness_read_notify(seen);
        harness_spawn(h);
        harness_require_ready(seen);
}

/* ------------------------------------------------------------------------- signals and stopping */

void nd_harness_signal(struct nd_harness *seen, int signal_number)
{
        struct harness *h = harness_of(seen);
        siginfo_t info;

        if (seen->pid == 0 || kill(seen->pid, signal_number) != 0)
                nd_harness_fail(seen, "signal %d: the daemon is gone", signal_number);
        if (signal_number == SIGSTOP &&
            waitid(P_PIDFD, (id_t)h->pidfd, &info, WSTOPPED | WNOWAIT) != 0)
                nd_harness_fail(seen, "waitid: %s", strerror(errno));
        if (signal_number == SIGKILL)
                nd_harness_wait_exit(seen, nd_harness_deadline_ms(HARNESS_STOP_MS), NULL);
}

bool nd_harness_wait_exit(struct nd_harness *seen, int timeout_ms, int *ret_status)
{
        struct harness *h = harness_of(seen);

        if (!harness_reap(h, timeout_ms))
                return false;
        nd_harness_read_notify(seen);
        if (ret_status)
                *ret_status = h->exit_status;
        return true;
}

void nd_harness_free(struct nd_harness *seen)
{
        struct harness *h;

        if (!seen)
                return;
        h = harness_of(seen);
        harness_end_daemon(h);
        nftw(h->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        nd_list_unlink(&h->live);
        close(h->notify_fd);
        close(h->log_fd);
        free(h->folder);
        free(h->unix_url);
        free(h->tcp_listen);
        free(h->status);
        free(h->notify_path);
        free(h);
}

void nd_harness_stop(struct nd_harness *seen)
{
        struct harness *h = harness_of(seen);
        size_t n_own_fds = h->n_own_fds, n_now;
        int status;

        if (seen->pid > 0)
                kill(seen->pid, SIGTERM);
        if (!nd_harness_wait_exit(seen, nd_harness_deadline_ms(HARNESS_STOP_MS), &status))
                nd_harness_fail(seen, "SIGTERM, and the daemon still runs after %d ms",
                                nd_harness_deadline_ms(HARNESS_STOP_MS));
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                nd_harness_fail(seen, "the daemon ended by %s %d, not by status 0",
                                WIFEXITED(status) ? "status" : "signal",
                                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        if (!h->options.no_unix && access(seen->unix_path, F_OK) == 0)
                nd_harness_fail(seen, "the daemon left %s behind", seen->unix_path);
        nd_harness_free(seen);

        if (nd_proc_fds(getpid(), &n_now) && n_now != n_own_fds) {
                nd_proc_print_fds(getpid(), stderr);
                nd_harness_fail(NULL, "the test has %zu descriptors and began with %zu", n_now,
                                n_own_fds);
        }
}

/* -------------------------------------------------------------------------------- looking at it */

struct nd_proc_memory nd_harness_memory(struct nd_harness *seen)
{
        struct nd_proc_memory memory;

        if (!nd_proc_memory(seen->pid, &memory))
                nd_harness_fail(seen, "no memory figures: the daemon is gone");
        return memory;
}

void nd_harness_reset_peak(struct nd_harness *seen)
{
        if (!nd_proc_reset_peak(seen->pid))
                nd_harness_fail(seen, "cannot reset the peak: %s", strerror(errno));
}

uint64_t nd_harness_cpu_ns(struct nd_harness *seen)
{
        uint64_t ns;

        if (!nd_proc_cpu_ns(seen->pid, &ns))
                nd_harness_fail(seen, "no processor time: the daemon is gone");
        return ns;
}

size_t nd_harness_fds(struct nd_harness *seen)
{
        size_t n;

        if (!nd_proc_fds(seen->pid, &n))
                nd_harness_fail(seen, "no descriptor count: the daemon is gone");
        return n;
}

struct fds_awaited {
        struct nd_harness *harness;
        size_t n;
};

static bool has_fds_awaited(void *userdata)
{
        const struct fds_awaited *awaited = userdata;

        return nd_harness_fds(awaited->harness) == awaited->n;
}

void nd_harness_wait_fds(struct nd_harness *seen, size_t n, int timeout_ms)
{
        struct fds_awaited awaited = {seen, n};
        nd_autofree char *what = format_string("the daemon to have %zu descriptors", n);

        nd_harness_wait_until(seen, what, has_fds_awaited, &awaited, timeout_ms);
}

/* ------------------------------------------------------------------------------------ connecting */

static int connect_to(struct nd_harness *seen, const void *address, socklen_t n_address)
{
        int family = ((const struct sockaddr *)address)->sa_family;
        int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0 || connect(fd, address, n_address) != 0)
                nd_harness_fail(seen, "connect: %s", strerror(errno));
        return fd;
}

int nd_harness_connect_unix(struct nd_harness *seen)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};

        memcpy(address.sun_path, seen->unix_path, strlen(seen->unix_path));
        return connect_to(seen, &address, sizeof(address));
}

int nd_harness_connect_tcp(struct nd_harness *seen)
{
        struct sockaddr_in address = {.sin_family = AF_INET};
        const char *port = seen->tcp_url ? strrchr(seen->tcp_url, ':') : NULL;

        if (!port)
                nd_harness_fail(seen, "the daemon has no TCP listener");
        address.sin_port = htons((uint16_t)strtoul(port + 1, NULL, 10));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return connect_to(seen, &address, sizeof(address));
}
