/* SPDX-License-Identifier: MIT */

/*
 * File
 *
 * One call writes at most 0x7ffff000 bytes, and less if a signal comes.
 */

#include "client/command/file.h"
#include <errno.h>
#include <unistd.h>
#include "protocol/base.h"

#define FILE_WRITE_BYTES_MAX (UINT64_C(1) << 30)

int nd_file_write(int fd, const void *data, uint64_t n_data)
{
        const char *p = data;

        while (n_data > 0) {
                ssize_t n = write(fd, p, (size_t)nd_min_u64(n_data, FILE_WRITE_BYTES_MAX));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return errno;
                p += n;
                n_data -= (uint64_t)n;
        }
        return 0;
}
