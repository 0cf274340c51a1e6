/* SPDX-License-Identifier: MIT */

/*
 * How the daemon starts: readiness, addresses that are taken, what it opens by default
 */

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/harness.h"

/* A TCP port of the system's choosing, bound and, if so wished, listened on. */
static int take_port(uint16_t *ret_port, bool listening)
{
        struct sockaddr_in address = {
                .sin_family = AF_INET,
                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        };
        socklen_t n_address = sizeof(address);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        cr_assert_geq(fd, 0);
        cr_assert_eq(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
        cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &n_address), 0);
        cr_assert(!listening || listen(fd, 1) == 0);
        *ret_port = ntohs(address.sin_port);
        return fd;
}

/* The daemon does not become ready, exits by a status other than 0, and says text. */
static void expect_refusal(struct nd_harness *h, const char *text)
{
        int status = 0;
        char *log;

        cr_expect_not(nd_harness_wait_ready(h, nd_harness_deadline_ms(10000)), "ready");
        cr_assert(nd_harness_wait_exit(h, nd_harness_deadline_ms(10000), &status), "still runs");
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) != 0, "wait status %d", status);
        log = nd_harness_log(h);
        cr_expect(strstr(log, text), "'%s' is not in: %s", text, log);
        free(log);
}

/* T48 */
Test(start, is_not_ready_when_the_second_address_is_taken)
{
        uint16_t port;
        int fd = take_port(&port, true);
        char url[64];
        const char *const args[] = {"--listen", url, NULL};
        struct nd_harness *h;

        snprintf(url, sizeof(url), "tcp://127.0.0.1:%" PRIu16, port);
        h = nd_harness_spawn(&(struct nd_harness_options){.args = args, .no_tcp = true});
        expect_refusal(h, url + strlen("tcp://"));
        cr_expect_neq(access(h->unix_path, F_OK), 0, "a socket is left behind");
        nd_harness_free(h);
        close(fd);
}

/* T48 */
Test(start, is_ready_when_all_addresses_accept)
{
        struct nd_harness *h = nd_harness_start(NULL);

        close(nd_harness_connect_unix(h));
        close(nd_harness_connect_tcp(h));
        nd_harness_wait_fds(h, h->n_fds_ready, nd_harness_deadline_ms(20000));
        nd_harness_stop(h);
}

/* T49 */
Test(start, starts_where_a_killed_one_left_its_socket)
{
        struct nd_harness *h = nd_harness_start(NULL);

        nd_harness_signal(h, SIGKILL);
        cr_expect_eq(access(h->unix_path, F_OK), 0, "no socket was left behind: nothing is tested");
        nd_harness_start_again(h);
        close(nd_harness_connect_unix(h));
        nd_harness_stop(h);
}

/* T49 */
Test(start, leaves_a_living_ones_socket_alone)
{
        struct nd_harness *first = nd_harness_start(NULL);
        const char *const args[] = {"--listen", first->unix_url, NULL};
        struct nd_harness *second = nd_harness_spawn(
                &(struct nd_harness_options){.args = args, .no_unix = true, .no_tcp = true});

        expect_refusal(second, first->unix_path);
        nd_harness_free(second);
        close(nd_harness_connect_unix(first));
        nd_harness_stop(first);
}

/* T49 */
Test(start, does_not_touch_a_file_at_the_path)
{
        char path[] = "/tmp/ndbus-file-XXXXXX", lock[64], url[64], text[16] = "";
        const char *const args[] = {"--listen", url, NULL};
        struct nd_harness *h;
        int fd = mkostemp(path, O_CLOEXEC);

        cr_assert_eq(write(fd, "mine", 4), 4);
        snprintf(url, sizeof(url), "unix:%s", path);
        h = nd_harness_spawn(
                &(struct nd_harness_options){.args = args, .no_unix = true, .no_tcp = true});
        expect_refusal(h, path);
        nd_harness_free(h);

        cr_expect_eq(pread(fd, text, sizeof(text), 0), 4);
        cr_expect_str_eq(text, "mine");
        cr_expect_eq(unlink(path), 0);
        snprintf(lock, sizeof(lock), "%s.lock", path);
        cr_expect_eq(unlink(lock), 0);
        close(fd);
}

/* Nor anything behind a symbolic link there, or where its lock file would be. */
Test(start, follows_no_symbolic_links)
{
        static const char *const names[] = {"s", "s.lock"};
        struct nd_harness *alive = nd_harness_start(NULL);
        const char *const targets[] = {alive->unix_path, "file", "nowhere"};
        char folder[] = "/tmp/ndbus-link-XXXXXX", url[64], path[64], file[64], text[16] = "";
        const char *const args[] = {"--listen", url, NULL};
        int fd;

        cr_assert(mkdtemp(folder));
        snprintf(url, sizeof(url), "unix:%s/s", folder);
        snprintf(file, sizeof(file), "%s/file", folder);
        fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        cr_assert_eq(write(fd, "mine", 4), 4);
        for (size_t i = 0; i < 6; ++i) {
                struct nd_harness *h;
                struct stat st;

                snprintf(path, sizeof(path), "%s/%s", folder, names[i / 3]);
                unlink(path); /* a lock file stays */
                cr_assert_eq(symlink(targets[i % 3], path), 0);
                h = nd_harness_spawn(&(struct nd_harness_options){
                        .args = args, .no_unix = true, .no_tcp = true});
                expect_refusal(h, url);
                nd_harness_free(h);
                cr_expect_eq(lstat(path, &st), 0);
                cr_expect(S_ISLNK(st.st_mode), "%s is another", path);
                cr_assert_eq(unlink(path), 0);
        }
        cr_expect_eq(pread(fd, text, sizeof(text), 0), 4);
        cr_expect_str_eq(text, "mine");
        close(fd);
        close(nd_harness_connect_unix(alive));
        nd_harness_stop(alive);
        unlink(file);
        snprintf(path, sizeof(path), "%s/s.lock", folder);
        unlink(path);
        cr_expect_eq(rmdir(folder), 0, "something else is in %s", folder);
}

/* Does any descriptor of the daemon listen on TCP? By inode, in what its network namespace has. */
static bool listens_on_tcp(pid_t pid)
{
        static const char *const tables[] = {"tcp", "tcp6"};
        bool found = false;

        for (size_t i = 0; i < 2; ++i) {
                char path[64], line[512];
                FILE *f;

                snprintf(path, sizeof(path), "/proc/%d/net/%s", (int)pid, tables[i]);
                f = fopen(path, "re");
                while (f && fgets(line, sizeof(line), f)) {
                        unsigned state;
                        unsigned long inode;
                        char target[64];

                        if (sscanf(line, " %*d: %*s %*s %x %*s %*s %*s %*d %*d %lu", &state,
                                   &inode) != 2 ||
                            state != 0x0a)
                                continue;
                        snprintf(target, sizeof(target), "socket:[%lu]", inode);
                        found |= nd_proc_has_fd(pid, target);
                }
                if (f)
                        fclose(f);
        }
        return found;
}

/* T62 */
Test(start, opens_one_private_unix_socket_by_default)
{
        char folder[] = "/tmp/ndbus-run-XXXXXX", runtime[64], path[128];
        const char *const env[] = {runtime, NULL};
        struct stat st;
        struct nd_harness *h;

        cr_assert(mkdtemp(folder));
        cr_assert_eq(chmod(folder, 0777), 0);
        snprintf(runtime, sizeof(runtime), "XDG_RUNTIME_DIR=%s", folder);
        snprintf(path, sizeof(path), "%s/ndbus/ndbus.sock", folder);

        h = nd_harness_start(&(struct nd_harness_options){
                .env = env, .no_unix = true, .no_tcp = true, .unprivileged = true});
        cr_expect(strstr(h->status, path), "%s", h->status);
        cr_expect_eq(stat(path, &st), 0, "%s is not there", path);
        cr_expect(S_ISSOCK(st.st_mode) && (st.st_mode & 0117) == 0, "mode %o", st.st_mode);
        cr_expect_not(listens_on_tcp(h->pid));
        nd_harness_stop(h);
        cr_expect_neq(access(path, F_OK), 0, "the socket is left behind");

        /* a lock beside the socket may stay */
        snprintf(path, sizeof(path), "rm -r %s", folder);
        cr_expect_eq(system(path), 0);
}
