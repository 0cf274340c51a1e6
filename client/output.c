/* SPDX-License-Identifier: MIT */

/*
 * Bytes that wait for the socket
 *
 * Control packets and small messages that may wait for others, in one line: a large message begins
 * behind what is here. Its bytes never come here, except for the rest of a packet whose sender gave
 * up, which goes first; as long as a packet is sent in part, nothing here is sent, so packets are
 * never torn.
 */

#include "client/output.h"
#include <ndbus/error.h>
#include <string.h>

#define OUTPUT_BYTES_MIN ((size_t)72 << 10)

uint8_t *nd_output_reserve(struct nd_output *output, size_t n)
{
        size_t n_used = nd_output_bytes(output), n_max;
        uint8_t *data;

        if (n <= output->n_max - output->end)
                return output->data + output->end;
        if (n_used + n <= output->n_max) {
                memmove(output->data, output->data + output->start, n_used);
        } else {
                n_max = output->n_max ? output->n_max : OUTPUT_BYTES_MIN;
                while (n_max < n_used + n)
                        n_max *= 2;
                data = malloc(n_max);
                if (!data)
                        return NULL;
                if (n_used)
                        memcpy(data, output->data + output->start, n_used);
                free(output->data);
                output->data = data;
                output->n_max = n_max;
        }
        output->start = 0;
        output->end = n_used;
        return output->data + output->end;
}

uint8_t *nd_output_insert(struct nd_output *output, size_t n)
{
        size_t n_used = nd_output_bytes(output);

        if (!nd_output_reserve(output, n))
                return NULL;
        memmove(output->data + output->start + n, output->data + output->start, n_used);
        output->end += n;
        return output->data + output->start;
}

int nd_output_packet(struct nd_output *output,
                     const struct nd_prelude *prelude,
                     const void *header,
                     size_t n_header,
                     const void *body,
                     size_t n_body)
{
        struct nd_prelude p = *prelude;
        uint8_t *at = nd_output_reserve(output, ND_PRELUDE_BYTES + n_header + n_body);

        if (!at)
                return NDBUS_ENOMEM;
        p.header_bytes = (uint32_t)n_header;
        p.body_bytes = n_body;
        nd_prelude_pack(&p, at);
        if (n_header)
                memcpy(at + ND_PRELUDE_BYTES, header, n_header);
        if (n_body)
                memcpy(at + ND_PRELUDE_BYTES + n_header, body, n_body);
        nd_output_commit(output, ND_PRELUDE_BYTES + n_header + n_body);
        return 0;
}

void nd_output_reset(struct nd_output *output)
{
        output->start = output->end = 0;
        if (output->n_max > OUTPUT_BYTES_MIN)
                nd_output_deinit(output);
}

void nd_output_deinit(struct nd_output *output)
{
        free(output->data);
        *output = (struct nd_output){0};
}
