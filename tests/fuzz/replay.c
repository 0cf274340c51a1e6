/* SPDX-License-Identifier: MIT */

/*
 * Replay: a fuzz target over files, without a fuzzer
 *
 * Links in place of libFuzzer, so that every corpus and every past crash is an ordinary regression
 * test with any compiler and any sanitizer. A folder stands for the files in it. A folder without
 * files is a failure: a corpus that got lost must not look like one that passes.
 */

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "protocol/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_data);

static int replay_file(const char *path)
{
        nd_autofree uint8_t *data = NULL;
        struct stat st;
        size_t n = 0;
        FILE *f = fopen(path, "rbe");

        if (!f || fstat(fileno(f), &st) != 0) {
                perror(path);
                if (f)
                        fclose(f);
                return -1;
        }
        /* exactly as large as the input, so that a sanitizer sees a read past its end */
        data = malloc(st.st_size ? (size_t)st.st_size : 1);
        if (data)
                n = fread(data, 1, (size_t)st.st_size, f);
        fclose(f);
        if (!data || n != (size_t)st.st_size) {
                fprintf(stderr, "%s: cannot be read whole\n", path);
                return -1;
        }

        LLVMFuzzerTestOneInput(data, n);
        return 0;
}

static int replay_folder(const char *path)
{
        struct dirent **entries;
        int n_files = 0, r = 0;
        int n_entries = scandir(path, &entries, NULL, alphasort);

        if (n_entries < 0) {
                perror(path);
                return -1;
        }
        for (int i = 0; i < n_entries; ++i) {
                char file[PATH_MAX];

                snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
                if (entries[i]->d_name[0] != '.') {
                        ++n_files;
                        if (replay_file(file) != 0)
                                r = -1;
                }
                free(entries[i]);
        }
        free(entries);

        if (n_files == 0)
                fprintf(stderr, "%s: no inputs\n", path);
        return r != 0 || n_files == 0 ? -1 : n_files;
}

int main(int argc, char **argv)
{
        int n_files = 0;

        for (int i = 1; i < argc; ++i) {
                struct stat st;
                int n = 1;

                if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode))
                        n = replay_folder(argv[i]);
                else if (replay_file(argv[i]) != 0)
                        n = -1;
                if (n < 0)
                        return EXIT_FAILURE;
                n_files += n;
        }
        printf("%d inputs\n", n_files);
        return n_files > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
