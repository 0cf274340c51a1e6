/* SPDX-License-Identifier: MIT */

/*
 * URLs
 */

#include <criterion/criterion.h>
#include <string.h>
#include "protocol/url.h"

static const struct {
        const char *text;
        const char *canonical; /* NULL: refused */
} cases[] = {
        {"unix:/run/ndbus/ndbus.sock", "unix:/run/ndbus/ndbus.sock"},
        {"unix:/", "unix:/"},
        {"unix:/with space:and/colon", "unix:/with space:and/colon"},
        {"tcp://127.0.0.1:6328", "tcp://127.0.0.1:6328"},
        {"tcp://127.0.0.1", "tcp://127.0.0.1:6328"},
        {"tcp://localhost:0", "tcp://localhost:0"},
        {"tcp://node-17.cluster_a.example:65535", "tcp://node-17.cluster_a.example:65535"},
        {"tcp://[::1]:7", "tcp://[::1]:7"},
        {"tcp://[::]", "tcp://[::]:6328"},
        {"tcp://[fe80::1%eth0.5]:7", "tcp://[fe80::1%eth0.5]:7"},
        {"tcp://[::ffff:10.0.0.1]:00080", "tcp://[::ffff:10.0.0.1]:80"},

        {"", NULL},
        {"unix", NULL},
        {"unix:", NULL},
        {"unix:relative", NULL},
        {"unix:@abstract", NULL},
        {"Unix:/a", NULL},
        {"/run/ndbus.sock", NULL},
        {"localhost:6328", NULL},
        {"tcp:localhost", NULL},
        {"tcp:/localhost", NULL},
        {"tcp://", NULL},
        {"tcp://:6328", NULL},
        {"tcp://[]:6328", NULL},
        {"tcp://[::1", NULL},
        {"tcp://[::1]6328", NULL},
        {"tcp://[::1]]:1", NULL},
        {"tcp://::1", NULL},
        {"tcp://::1:6328", NULL},
        {"tcp://a:", NULL},
        {"tcp://a:65536", NULL},
        {"tcp://a:99999999999999999999", NULL},
        {"tcp://a:-1", NULL},
        {"tcp://a:+1", NULL},
        {"tcp://a: 1", NULL},
        {"tcp://a:1/", NULL},
        {"tcp://a/", NULL},
        {"tcp://a b:1", NULL},
        {"tcp://user@a:1", NULL},
        {"tcp://a%00:1", NULL},
        {"http://a:1", NULL},
};

Test(url, is_parsed_and_written_in_its_canonical_form)
{
        for (size_t i = 0; i < nd_array_size(cases); ++i) {
                struct nd_url url = {.port = 99}, again;
                struct nd_fault fault = {0};
                char out[512];
                int r = nd_url_parse(cases[i].text, "--listen", &url, &fault);

                if (!cases[i].canonical) {
                        cr_expect_eq(r, NDBUS_EINVAL, "%s", cases[i].text);
                        cr_expect_str_eq(fault.field, "--listen");
                        cr_expect_neq(fault.text[0], '\0');
                        cr_expect_eq(url.port, 99, "%s: result was written", cases[i].text);
                        continue;
                }
                cr_assert_eq(r, 0, "%s: %s", cases[i].text, fault.text);
                cr_expect_eq(nd_url_format(&url, out, sizeof(out)), out);
                cr_expect_str_eq(out, cases[i].canonical);
                cr_assert_eq(nd_url_parse(out, "url", &again, NULL), 0, "%s", out);
                cr_expect_eq(again.type, url.type, "%s", out);
                cr_expect_eq(again.port, url.port, "%s", out);
                cr_expect_str_eq(again.path, url.path);
                cr_expect_str_eq(again.host, url.host);
        }
}

Test(url, has_a_path_that_fits_a_socket_address)
{
        char text[256] = "unix:/", out[256];
        struct nd_url url;
        struct nd_fault fault = {0};

        memset(text + 6, 'p', 106);
        cr_expect_eq(nd_url_parse(text, "url", &url, &fault), 0);
        cr_expect_eq(strlen(url.path), 107);
        cr_expect_str_eq(nd_url_format(&url, out, sizeof(out)), text);

        text[6 + 106] = 'p';
        cr_expect_eq(nd_url_parse(text, "url", &url, &fault), NDBUS_EINVAL);
        cr_expect_eq(fault.value, 108);
        cr_expect_eq(fault.limit, 107);
}

Test(url, has_a_host_of_at_most_255_bytes)
{
        char text[512] = "tcp://";
        struct nd_url url;

        memset(text + 6, 'h', 255);
        cr_expect_eq(nd_url_parse(text, "url", &url, NULL), 0);
        text[6 + 255] = 'h';
        cr_expect_eq(nd_url_parse(text, "url", &url, NULL), NDBUS_EINVAL);
}

Test(url, is_cut_to_the_buffer)
{
        struct nd_url url = {.type = ND_URL_TCP, .host = "host", .port = 1};
        char out[8];

        cr_expect_str_eq(nd_url_format(&url, out, sizeof(out)), "tcp://h");
}
