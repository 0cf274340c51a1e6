/* SPDX-License-Identifier: MIT */

/*
 * The harness against a daemon that only behaves: what it learns, and that it leaves nothing behind
 *
 * What it must complain of is tested by the alarms (tests/support/alarm-harness.c).
 */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/harness.h"

Test(harness, knows_the_urls_when_the_daemon_is_ready)
{
        struct nd_harness *h = nd_harness_start(NULL);

        cr_expect(h->ready);
        cr_expect_str_eq(h->tcp_url, "tcp://127.0.0.1:43210");
        cr_expect_str_eq(h->unix_url + strlen("unix:"), h->unix_path);
        cr_expect_eq(access(h->unix_path, F_OK), 0);
        close(nd_harness_connect_unix(h));
        nd_harness_stop(h);
}

Test(harness, removes_its_folder)
{
        struct nd_harness *h = nd_harness_start(NULL);
        char *folder = strdup(h->folder);

        nd_harness_stop(h);
        cr_expect_neq(access(folder, F_OK), 0);
        free(folder);
}

Test(harness, passes_arguments_environment_and_descriptors)
{
        const char *const args[] = {"--other", "x", NULL};
        const char *const env[] = {"FAKE_NDBUSD=in words", NULL};
        int fds[2];
        struct nd_harness *h;
        char *log;

        cr_assert_eq(pipe(fds), 0);
        h = nd_harness_start(&(struct nd_harness_options){
                .args = args, .env = env, .no_tcp = true, .listen_fds = fds, .n_listen_fds = 2});
        cr_expect_null(h->tcp_url);
        /* 0 1 2, two passed, one listener; nothing of the test's own */
        cr_expect_eq(nd_harness_fds(h), 6);
        nd_harness_wait_fds(h, 6, 1000);
        log = nd_harness_log(h);
        cr_expect_str_eq(log, "fake daemon: in words\n");
        free(log);
        nd_harness_stop(h);
        close(fds[0]);
        close(fds[1]);
}

Test(harness, tells_a_daemon_that_fails_from_one_that_is_ready)
{
        const char *const env[] = {"FAKE_NDBUSD=fails", NULL};
        struct nd_harness *h = nd_harness_spawn(&(struct nd_harness_options){.env = env});
        int status = 0;

        cr_expect_not(nd_harness_wait_ready(h, nd_harness_deadline_ms(5000)));
        cr_expect(nd_harness_wait_exit(h, nd_harness_deadline_ms(5000), &status));
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        nd_harness_free(h);
}

Test(harness, kills_and_starts_again_on_the_same_port)
{
        struct nd_harness *h = nd_harness_start(NULL);
        pid_t before = h->pid;

        nd_harness_signal(h, SIGSTOP);
        nd_harness_signal(h, SIGCONT);
        nd_harness_signal(h, SIGKILL);
        cr_expect_eq(h->pid, 0);
        nd_harness_start_again(h);
        cr_expect_neq(h->pid, before);
        cr_expect_str_eq(h->tcp_url, "tcp://127.0.0.1:43210");
        nd_harness_stop(h);
}

Test(harness, sees_memory_and_processor_time)
{
        struct nd_harness *h = nd_harness_start(NULL);
        struct nd_proc_memory memory = nd_harness_memory(h);

        cr_expect_gt(memory.rss_bytes, 100 * 1024);
        cr_expect_geq(memory.rss_peak_bytes, memory.rss_bytes);
        cr_expect_geq(memory.vm_peak_bytes, memory.vm_bytes);
        nd_harness_reset_peak(h);
        cr_expect_lt(nd_harness_cpu_ns(h), UINT64_C(10000000000));
        nd_harness_stop(h);
}
