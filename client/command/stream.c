/* SPDX-License-Identifier: MIT */

/*
 * The three descriptors that everybody takes for granted
 *
 * A closed one is replaced by /dev/null, opened the wrong way round: to read what is to be written,
 * to write what is to be read. So whoever uses it is told, as if it were still closed.
 */

#include "client/command/stream.h"
#include <errno.h>
#include <fcntl.h>
#include <ndbus/error.h>
#include <string.h>
#include <unistd.h>

static const char *const stream_names[] = {"stdin", "stdout", "stderr"};
static bool stream_closed[nd_array_size(stream_names)];

bool nd_streams_open(void)
{
        for (int number = 0; number < (int)nd_array_size(stream_names); ++number) {
                if (fcntl(number, F_GETFD) >= 0 || errno != EBADF)
                        continue;
                stream_closed[number] = true;
                if (open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY) != number)
                        return false;
        }
        return true;
}

bool nd_stream_is_closed(int number)
{
        return stream_closed[number];
}

int nd_stream_duplicate(int number, int *ret_fd, struct nd_fault *fault)
{
        int fd;

        if (stream_closed[number])
                return nd_fault_set(fault, NDBUS_ESYSTEM, stream_names[number], "is closed");
        fd = fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (fd < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, stream_names[number], "%s",
                                    strerror(errno));
        *ret_fd = fd;
        return 0;
}
