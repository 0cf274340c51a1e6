/* SPDX-License-Identifier: MIT */

/*
 * A daemon that does nothing but behave, or misbehave, towards whoever started it
 *
 * The harness is tested on this one, so that what it must notice can be made to happen:
 * FAKE_NDBUSD says what.
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void bind_unix(const char *url)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", url + strlen("unix:"));
        unlink(address.sun_path);
        if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 8) != 0)
                exit(1);
}

static void notify(const char *text)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

        snprintf(address.sun_path, sizeof(address.sun_path), "%s", getenv("NOTIFY_SOCKET"));
        if (sendto(fd, text, strlen(text), 0, (const struct sockaddr *)&address, sizeof(address)) <
            0)
                exit(1);
        close(fd);
}

int main(int argc, char **argv)
{
        const char *how = getenv("FAKE_NDBUSD");
        const char *unix_url = NULL, *tcp_url = NULL;
        char text[512];
        sigset_t term;
        int received;

        for (int i = 1; i + 1 < argc; ++i) {
                if (strcmp(argv[i], "--listen") == 0 && strncmp(argv[i + 1], "unix:", 5) == 0)
                        unix_url = argv[i + 1];
                if (strcmp(argv[i], "--listen") == 0 && strncmp(argv[i + 1], "tcp:", 4) == 0)
                        tcp_url = argv[i + 1];
        }
        if (!how)
                how = "";
        fprintf(stderr, "fake daemon: %s\n", how);
        if (strcmp(how, "fails") == 0)
                return 1;
        if (strcmp(how, "says nothing") == 0)
                pause();

        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, NULL);
        if (unix_url)
                bind_unix(unix_url);
        snprintf(text, sizeof(text), "READY=1\nSTATUS=listening on %s %s", unix_url ? unix_url : "",
                 tcp_url && strcmp(tcp_url, "tcp://127.0.0.1:0") == 0 ? "tcp://127.0.0.1:43210"
                                                                      : tcp_url);
        notify(text);
        sigwait(&term, &received);

        notify("STOPPING=1");
        if (strcmp(how, "leaves its socket") != 0 && unix_url)
                unlink(unix_url + strlen("unix:"));
        return strcmp(how, "stops with status 3") == 0 ? 3 : 0;
}
