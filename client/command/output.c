/* SPDX-License-Identifier: MIT */

/*
 * Writing files
 *
 * A file is written without a name in the folder where it belongs and named when it is whole, so that
 * who watches the folder never reads half an array, and nothing stays when the program is killed. Where
 * the file system has no files without names, or /proc is not there, a temporary name is used. Space is reserved first: what
 * does not fit is known before anything is written, also when a broadcast axis makes a small
 * message an enormous file.
 *
 * Names come from peers. They are taken apart at '/' and each segment is made a harmless file name;
 * "..", "." and hidden names cannot arise. What would collide is not overwritten but gets the other
 * path that the caller offers.
 */

#include "client/command/output.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/command/npy.h"

/* Of a segment, so that "-SEQUENCE.SOURCE-i.npy" still fits the 255 of a file name. */
#define OUTPUT_SEGMENT_BYTES 180u

static uint64_t output_hash(const char *text, size_t n)
{
        uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

        for (size_t i = 0; i < n; ++i)
                hash = (hash ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
        return hash;
}

static bool output_is_harmless(const char *segment, size_t i)
{
        unsigned char c = (unsigned char)segment[i];

        if (c < 0x20 || c == 0x7f || c == '%' || c == '/')
                return false;
        return c != '.' || i > 0;
}

static size_t output_write_segment(const char *segment, size_t n, char *out, size_t n_out)
{
        size_t k = 0, i = 0;

        for (; i < n; ++i) {
                bool harmless = output_is_harmless(segment, i);

                if (k + (harmless ? 1 : 3) > OUTPUT_SEGMENT_BYTES)
                        break;
                if (harmless)
                        out[k++] = segment[i];
                else
                        k += (size_t)snprintf(out + k, n_out - k, "%%%02X",
                                              (unsigned char)segment[i]);
        }
        if (i < n)
                k += (size_t)snprintf(out + k, n_out - k, "%%~%016" PRIx64,
                                      output_hash(segment, n));
        if (n == 0)
                out[k++] = '%';
        return k;
}

void nd_output_path(const char *text, bool is_flat, char out[static ND_OUTPUT_PATH_BYTES])
{
        size_t k = 0;

        for (;;) {
                size_t n = is_flat ? strlen(text) : strcspn(text, "/");

                if (ND_OUTPUT_PATH_BYTES - k < OUTPUT_SEGMENT_BYTES + 144) {
                        /* more segments than a topic can have: the rest as a hash */
                        k += (size_t)snprintf(out + k, ND_OUTPUT_PATH_BYTES - k, "%%~%016" PRIx64,
                                              output_hash(text, strlen(text)));
                        break;
                }
                k += output_write_segment(text, n, out + k, ND_OUTPUT_PATH_BYTES - k);
                text += n;
                if (!*text)
                        break;
                out[k++] = '/';
                ++text;
        }
        out[k] = '\0';
}

/* Opens, and makes, the folders in front of the last '/'. */
static int output_open_folder(
        int folder_fd, const char *path, const char *base, int *ret_fd, struct nd_fault *fault)
{
        char folder[ND_OUTPUT_PATH_BYTES] = ".";
        int fd;

        if (base > path) {
                size_t n = (size_t)(base - path);

                if (n >= sizeof(folder))
                        return nd_fault_set(fault, NDBUS_ESYSTEM, path, "%s",
                                            strerror(ENAMETOOLONG));
                memcpy(folder, path, n);
                folder[n] = '\0';
                for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
                        *slash = '\0';
                        if (mkdirat(folder_fd, folder, 0777) < 0 && errno != EEXIST)
                                return nd_fault_set(fault, NDBUS_ESYSTEM, folder, "%s",
                                                    strerror(errno));
                        *slash = '/';
                }
        }
        fd = openat(folder_fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, folder, "%s", strerror(errno));
        *ret_fd = fd;
        return 0;
}

int nd_output_begin(int folder_fd,
                    const char *path,
                    struct nd_output *ret_output,
                    struct nd_fault *fault)
{
        const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
        struct nd_output output = {.fd = -1, .folder_fd = -1};
        int r;

        if (strlen(base) >= sizeof(output.name) || !*base)
                return nd_fault_set(fault, NDBUS_ESYSTEM, path, "%s",
                                    strerror(*base ? ENAMETOOLONG : EISDIR));
        strcpy(output.name, base);
        r = output_open_folder(folder_fd, path, base, &output.folder_fd, fault);
        if (r)
                return r;
        if (access("/proc/self/fd", X_OK) == 0)
                output.fd = openat(output.folder_fd, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
        for (unsigned i = 0; output.fd < 0 && i < 1000; ++i) {
                snprintf(output.temporary, sizeof(output.temporary), ".ndbus-%d-%u.tmp",
                         (int)getpid(), i);
                output.fd = openat(output.folder_fd, output.temporary,
                                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
                if (output.fd < 0 && errno != EEXIST)
                        break;
        }
        if (output.fd < 0) {
                r = nd_fault_set(fault, NDBUS_ESYSTEM, path, "%s", strerror(errno));
                close(output.folder_fd);
                return r;
        }
        *ret_output = output;
        return 0;
}

/* A name for the file that has none. In the place of another file it comes by way of a temporary one,
 * because a link replaces nothing. */
static int output_link(struct nd_output *output, bool replace)
{
        char path[64];
        int r;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", output->fd);
        r = linkat(AT_FDCWD, path, output->folder_fd, output->name, AT_SYMLINK_FOLLOW);
        if (r == 0 || errno != EEXIST || !replace)
                return r;
        for (unsigned i = 0; r < 0 && errno == EEXIST && i < 1000; ++i) {
                snprintf(output->temporary, sizeof(output->temporary), ".ndbus-%d-%u.tmp",
                         (int)getpid(), i);
                r = linkat(AT_FDCWD, path, output->folder_fd, output->temporary, AT_SYMLINK_FOLLOW);
        }
        if (r < 0)
                output->temporary[0] = '\0';
        else
                r = renameat(output->folder_fd, output->temporary, output->folder_fd, output->name);
        return r;
}

static int output_rename(const struct nd_output *output, bool replace)
{
        int r;

        if (replace)
                return renameat(output->folder_fd, output->temporary, output->folder_fd,
                                output->name);
        r = renameat2(output->folder_fd, output->temporary, output->folder_fd, output->name,
                      RENAME_NOREPLACE);
        if (r < 0 && errno == EINVAL) { /* a file system that does not know the flag */
                r = linkat(output->folder_fd, output->temporary, output->folder_fd, output->name,
                           0);
                if (r == 0)
                        r = unlinkat(output->folder_fd, output->temporary, 0);
        }
        return r;
}

int nd_output_commit(struct nd_output *output, bool replace, struct nd_fault *fault)
{
        int r;

        if (output->fd >= 0 && output->temporary[0]) {
                r = close(output->fd);
                output->fd = -1;
                if (r < 0)
                        return nd_fault_set(fault, NDBUS_ESYSTEM, output->name, "%s",
                                            strerror(errno));
        }
        if ((output->temporary[0] ? output_rename(output, replace) : output_link(output, replace)) <
            0) {
                if (errno == EEXIST && !replace)
                        return nd_fault_set(fault, NDBUS_EINVAL, output->name, "exists");
                return nd_fault_set(fault, NDBUS_ESYSTEM, output->name, "%s", strerror(errno));
        }
        if (output->fd >= 0)
                close(output->fd);
        output->fd = -1;
        close(output->folder_fd);
        output->folder_fd = -1;
        return 0;
}

void nd_output_abandon(struct nd_output *output)
{
        if (output->fd >= 0)
                close(output->fd);
        if (output->folder_fd >= 0) {
                if (output->temporary[0])
                        unlinkat(output->folder_fd, output->temporary, 0);
                close(output->folder_fd);
        }
        output->fd = -1;
        output->folder_fd = -1;
}

/* Reserves the space; a file system that cannot is no error, one that has not enough is. */
static int output_reserve(int fd, const struct nd_npy_plan *plan, struct nd_fault *fault)
{
        uint64_t bytes = plan->n_header + plan->data_bytes;

        if (bytes > INT64_MAX)
                return nd_fault_set(fault, NDBUS_ESYSTEM, "write", "%s", strerror(EFBIG));
        if (fallocate(fd, 0, 0, (off_t)bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
                return 0;
        return nd_fault_set(fault, NDBUS_ESYSTEM, "write", "%" PRIu64 " bytes: %s", bytes,
                            strerror(errno));
}

static int output_write_array(struct nd_output *output,
                              const struct ndbus_array *array,
                              uint64_t repeats_max,
                              char ret_note[static 160],
                              struct nd_fault *fault)
{
        struct nd_npy_plan plan;
        int r;

        r = nd_npy_plan(array, &plan, fault);
        if (r)
                return r;
        r = nd_npy_check_repeats(array, &plan, repeats_max, "--broadcast-max", fault);
        if (!r)
                r = output_reserve(output->fd, &plan, fault);
        if (!r)
                r = nd_npy_write(output->fd, array, &plan, fault);
        if (!r)
                snprintf(ret_note, sizeof(plan.note), "%s", plan.note);
        nd_npy_plan_deinit(&plan);
        return r;
}

int nd_output_array(int folder_fd,
                    const char *path,
                    const char *other,
                    const struct ndbus_array *array,
                    uint64_t repeats_max,
                    char ret_path[static ND_OUTPUT_PATH_BYTES],
                    char ret_note[static 160],
                    struct nd_fault *fault)
{
        const char *used = path;
        char full[ND_OUTPUT_PATH_BYTES];
        struct nd_output output;
        int r;

        snprintf(full, sizeof(full), "%s.npy", path);
        r = nd_output_begin(folder_fd, full, &output, fault);
        if (r)
                return r;
        r = output_write_array(&output, array, repeats_max, ret_note, fault);
        if (!r)
                r = nd_output_commit(&output, /* replace= */ !other, fault);
        if (r == NDBUS_EINVAL && other) {
                const char *slash = strrchr(other, '/');

                used = other;
                snprintf(output.name, sizeof(output.name), "%.250s.npy", slash ? slash + 1 : other);
                r = nd_output_commit(&output, /* replace= */ true, fault);
        }
        nd_output_abandon(&output);
        if (!r)
                snprintf(ret_path, ND_OUTPUT_PATH_BYTES, "%s.npy", used);
        return r;
}
