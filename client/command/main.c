/* SPDX-License-Identifier: MIT */

/*
 * ndbus: the command
 *
 * Finds the subcommand, reads its options by its table, runs it. Exit status: 0; 1 the thing
 * failed; 2 bad usage.
 */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "client/command/command.h"
#include "client/command/report.h"
#include "client/command/stream.h"

static const struct nd_command *const commands[] = {
        &nd_command_pub,   &nd_command_sub,  &nd_command_record, &nd_command_replay,
        &nd_command_info,  &nd_command_pack, &nd_command_unpack, &nd_command_request,
        &nd_command_reply, &nd_command_stat, &nd_command_ping,   &nd_command_bench,
};

static void main_write_help(FILE *out)
{
        fputs("usage: ndbus COMMAND [options] [arguments]\n\n"
              "Publish and receive n-dimensional arrays.\n\ncommands:\n",
              out);
        for (size_t i = 0; i < nd_array_size(commands); ++i)
                fprintf(out, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
        fputs("\n'ndbus COMMAND --help' says more; --version prints the version.\n", out);
}

/* What was printed is there, or it is said that it is not. */
static int main_finish(int status)
{
        errno = 0;
        if (fflush(stdout) == 0 && !ferror(stdout))
                return status;
        if (nd_stream_is_closed(STDOUT_FILENO))
                return nd_report("stdout: is closed");
        return nd_report("stdout: what was printed could not be written%s%s", errno ? ": " : "",
                         errno ? strerror(errno) : "");
}

static int main_run(const struct nd_command *command, int argc, char **argv)
{
        struct nd_option_result result;
        struct nd_fault fault;
        int status;

        nd_report_set_command(command->name);
        if (nd_option_parse(command, argc, argv, &result, &fault)) {
                nd_report_fault("", &fault);
                return fault.code == NDBUS_ENOMEM ? ND_EXIT_FAILED : ND_EXIT_USAGE;
        }
        if (result.wants_help) {
                nd_option_write_help(command, stdout);
                status = ND_EXIT_OK;
        } else if (command->prints && nd_stream_is_closed(STDOUT_FILENO)) {
                status = nd_report("stdout: is closed, and this command prints");
        } else {
                status = command->run(result.values, result.arguments, result.n_arguments);
        }
        nd_option_result_deinit(command, &result);
        return main_finish(status);
}

int main(int argc, char **argv)
{
        const char *name = argc > 1 ? argv[1] : "";
        unsigned int version = ndbus_version();

        signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a write that fails */
        if (!nd_streams_open())
                return nd_report_errno("/dev/null", errno);
        if (strcmp(name, "--help") == 0) {
                main_write_help(stdout);
                return main_finish(ND_EXIT_OK);
        }
        if (strcmp(name, "--version") == 0) {
                printf("ndbus %u.%u.%u\n", version >> 16, version >> 8 & 255, version & 255);
                return main_finish(ND_EXIT_OK);
        }
        for (size_t i = 0; i < nd_array_size(commands); ++i)
                if (strcmp(commands[i]->name, name) == 0)
                        return main_run(commands[i], argc - 2, argv + 2);
        if (!*name)
                nd_report("a command is missing; 'ndbus --help' lists them");
        else
                nd_report("%s: no such command; 'ndbus --help' lists them", name);
        return ND_EXIT_USAGE;
}
