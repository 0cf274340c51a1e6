/* SPDX-License-Identifier: MIT */

/*
 * What several subcommands do
 */

#include "client/command/command.h"
#include <inttypes.h>
#include "client/command/report.h"
#include "client/command/spelling.h"

struct ndbus *nd_command_open(const char *url)
{
        struct ndbus_options options = NDBUS_OPTIONS_INIT;
        struct ndbus *bus = NULL;
        int r;

        options.client = "ndbus";
        options.interrupted = nd_signals_interrupted;
        r = ndbus_open(&bus, url, &options);
        if (r) {
                nd_report_bus("", r);
                return NULL;
        }
        return bus;
}

int nd_command_close(struct ndbus *bus, int timeout_ms)
{
        size_t unconfirmed = 0;
        int r;

        r = ndbus_close(bus, timeout_ms, &unconfirmed);
        if (!r)
                return ND_EXIT_OK;
        if (unconfirmed > 0)
                return nd_report("%s: %s (%zu messages not confirmed)", ndbus_strerror(r),
                                 ndbus_detail(), unconfirmed);
        return nd_report_bus("", r);
}

void nd_command_write_arrays(FILE *out, const struct ndbus_array *arrays, size_t n_arrays)
{
        char text[ND_SPELLING_BYTES];

        if (n_arrays == 0)
                fputc('-', out);
        for (size_t i = 0; i < n_arrays; ++i)
                fprintf(out, "%s%s", i ? ";" : "",
                        nd_spelling_dtype(&arrays[i], text, sizeof(text)));
        fputc('\t', out);
        if (n_arrays == 0)
                fputc('-', out);
        for (size_t i = 0; i < n_arrays; ++i)
                fprintf(out, "%s%s", i ? ";" : "",
                        nd_spelling_shape(&arrays[i], text, sizeof(text)));
}

void nd_command_write_text(FILE *out, const char *text)
{
        for (const unsigned char *c = (const unsigned char *)text; *c; ++c) {
                bool is_c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;

                fputc(*c < 0x20 || *c == 0x7f || is_c1 ? '?' : *c, out);
                c += is_c1;
        }
}
