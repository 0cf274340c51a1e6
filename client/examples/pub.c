/* SPDX-License-Identifier: MIT */

/*
 * Publishes a 2-D array of float32 again and again: pub [TOPIC [COUNT]]
 *
 * The array is a wave that moves a little with every message. The daemon is found by NDBUS_URL, or
 * at the user's socket.
 */

#include <math.h>
#include <ndbus/ndbus.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
        N_ROWS = 480,
        N_COLUMNS = 640
};

static float image[N_ROWS][N_COLUMNS];

static void draw(unsigned long i_image)
{
        for (int y = 0; y < N_ROWS; ++y)
                for (int x = 0; x < N_COLUMNS; ++x)
                        image[y][x] = sinf((float)(x + y) * 0.05f + (float)i_image * 0.1f);
}

static int fail(const char *what, int error)
{
        fprintf(stderr, "pub: %s: %s (%s)\n", what, ndbus_detail(), ndbus_strerror(error));
        return 1;
}

int main(int argc, char **argv)
{
        const char *topic = argc > 1 ? argv[1] : "example/wave";
        unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
        const int64_t shape[] = {N_ROWS, N_COLUMNS};
        const struct ndbus_array array = {
                .data = image,
                .dtype = "float32",
                .ndim = 2,
                .shape = shape,
        };
        const struct timespec pause = {.tv_nsec = 20000000};
        struct ndbus *bus;
        int r;

        r = ndbus_open(&bus, NULL, NULL);
        if (r)
                return fail("open", r);
        for (unsigned long i = 0; count == 0 || i < count; ++i) {
                draw(i);
                r = ndbus_publish(bus, topic, &array, 1, NULL);
                if (r)
                        fail("publish", r);
                nanosleep(&pause, NULL);
        }
        r = ndbus_close(bus, 5000, NULL);
        return r ? fail("close", r) : 0;
}
