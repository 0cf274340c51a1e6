/* SPDX-License-Identifier: MIT */

/*
 * Publishing, against a scripted daemon: bodies of every size arrive as they were, by whatever way
 * they take; credit is kept; what the daemon or the user does wrong is told and harms nothing else.
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/byteorder.h"
#include "tests/support/fake-peer.h"
#include "tests/support/pattern.h"

static struct ndbus *open_bus(struct fake_peer *peer)
{
        struct ndbus *bus = NULL;
        int r = ndbus_open(&bus, fake_peer_url(peer), NULL);

        cr_assert_eq(r, 0, "open: %s", ndbus_detail());
        return bus;
}

static void close_bus(struct ndbus *bus)
{
        size_t n = 99;
        int r = ndbus_close(bus, 5000, &n);

        cr_assert_eq(r, 0, "close: %s", ndbus_detail());
        cr_assert_eq(n, 0);
}

Test(client_publish, bodies_of_every_size_come_back_as_they_were)
{
        static const size_t sizes[] = {
                0,       1,     63,    64,    65,     4096,    4097,    8000,
                8192,    60000, 65536, 65537, 200000, 1048576, 1048577, 3 * 1048576 + 5,
                17000000};
        struct fake_peer *peer = fake_peer_start(fake_peer_serve_script, NULL);
        struct ndbus *bus = open_bus(peer);
        uint8_t *bytes = malloc(17000000);
        int r;

        nd_pattern_fill(bytes, 0, 17000000);
        cr_assert_eq(ndbus_subscribe(bus, "a/*", NULL, NULL), 0, "%s", ndbus_detail());
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
                int64_t shape = (int64_t)sizes[i];
                struct ndbus_array array = {.data = bytes, .ndim = 1, .shape = &shape};
                const struct ndbus_array *arrays;
                struct ndbus_message *m;

                r = ndbus_publish(bus, "a/b", &array, 1, NULL);
                cr_assert_eq(r, 0, "%zu bytes: %s", sizes[i], ndbus_detail());
                r = ndbus_receive(bus, &m, 5000);
                cr_assert_eq(r, 0, "%zu bytes: %s", sizes[i], ndbus_detail());
                cr_assert_eq(ndbus_message_arrays(m, &arrays), 1);
                cr_assert_eq(arrays[0].shape[0], shape);
                cr_assert_eq((uintptr_t)arrays[0].data % 64, 0);
                cr_assert_eq(nd_pattern_compare(arrays[0].data, 0, sizes[i]), sizes[i]);
                cr_assert_eq(ndbus_message_sequence(m), i + 1);
                cr_assert_str_eq(ndbus_message_topic(m), "a/b");
                ndbus_message_free(m);
        }
        close_bus(bus);
        fake_peer_end(peer);
        free(bytes);
}
