/* SPDX-License-Identifier: MIT */

/*
 * Prints what is published: sub [PATTERN [COUNT]]
 *
 * One line an array: topic, sequence, dtype, shape, and how many messages were dropped before this
 * one. The daemon is found by NDBUS_URL, or at the user's socket.
 */

#include <inttypes.h>
#include <ndbus/ndbus.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what, int error)
{
        fprintf(stderr, "sub: %s: %s (%s)\n", what, ndbus_detail(), ndbus_strerror(error));
        return 1;
}

static void print_array(const struct ndbus_array *array)
{
        printf(" %s(", array->dtype ? array->dtype : "bytes");
        for (int32_t i = 0; i < array->ndim; ++i)
                printf(i ? ",%" PRId64 : "%" PRId64, array->shape[i]);
        printf(")");
}

static void print_message(const struct ndbus_message *m)
{
        const struct ndbus_array *arrays;
        size_t n = ndbus_message_arrays(m, &arrays);

        printf("%s %" PRIu64, ndbus_message_topic(m), ndbus_message_sequence(m));
        for (size_t i = 0; i < n; ++i)
                print_array(&arrays[i]);
        if (ndbus_message_dropped(m) == NDBUS_UNKNOWN)
                printf(" dropped ?");
        else if (ndbus_message_dropped(m))
                printf(" dropped %" PRIu64, ndbus_message_dropped(m));
        printf("\n");
        fflush(stdout);
}

int main(int argc, char **argv)
{
        unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
        struct ndbus_message *m;
        struct ndbus *bus;
        int r;

        r = ndbus_open(&bus, NULL, NULL);
        if (r)
                return fail("open", r);
        r = ndbus_subscribe(bus, argc > 1 ? argv[1] : "**", NULL, NULL);
        if (r)
                return fail("subscribe", r);
        for (unsigned long i = 0; count == 0 || i < count;) {
                r = ndbus_receive(bus, &m, -1);
                if (r) {
                        fail("receive", r); /* a lost connection is made anew by the next call */
                        continue;
                }
                print_message(m);
                ndbus_message_free(m);
                ++i;
        }
        r = ndbus_close(bus, 1000, NULL);
        return r ? fail("close", r) : 0;
}
