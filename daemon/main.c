/* SPDX-License-Identifier: MIT */

/*
 * ndbusd
 *
 * Exit status: 0 stopped as asked; 1 it could not serve; 2 bad usage.
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "daemon/log.h"
#include "daemon/server.h"

/* The number of a closed stream is what the next socket would get, and the log would go there. */
static int main_open_streams(void)
{
        for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number)
                if (fcntl(number, F_GETFD) < 0 && errno == EBADF &&
                    open("/dev/null", O_RDWR) != number)
                        return -1;
        return 0;
}

int main(int argc, char **argv)
{
        static struct nd_server server;
        struct nd_options options;
        struct nd_fault fault;
        int r;

        if (main_open_streams() < 0) {
                perror("ndbusd: /dev/null");
                return EXIT_FAILURE;
        }
        nd_log_init();
        r = nd_options_parse(argc, argv, &options, &fault);
        if (r == ND_OPTION_E_DONE)
                return EXIT_SUCCESS;
        if (r < 0) {
                fprintf(stderr, "ndbusd: %s: %s\n", fault.field, fault.text);
                return ND_EXIT_USAGE;
        }
        nd_log_set_level(options.log_level);

        /* libuv does not suppress it; our own sends do */
        (void)signal(SIGPIPE, SIG_IGN);

        if (nd_server_init(&server, &options) < 0)
                return EXIT_FAILURE;
        r = nd_server_run(&server);
        nd_server_deinit(&server);
        return r;
}
