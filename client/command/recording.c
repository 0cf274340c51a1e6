/* SPDX-License-Identifier: MIT */

/*
 * Writing received messages as records
 *
 * A record is written from where the message lies: its header as it came, its meta, its frames, with
 * zeros between them. Only small ones are copied together first, up to a quarter of a mebibyte, and
 * no longer than until nothing more waits to be received. So memory does not grow with the file.
 *
 * The file stands under its own name from the first byte and is readable at every moment: records
 * are complete in themselves, and the index at the end is a convenience. When a write fails, as on a
 * full disk, the file is cut behind the last whole record that fits, and has no index.
 */

#include "client/command/recording.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "client/command/stream.h"

#define RECORDING_PIECES 64

static const uint8_t recording_zeros[ND_ALIGN_BYTES];

/* ----------------------------------------------------------------------------------- opening */

static int
recording_open_file(const char *path, bool is_replace, int *ret_fd, struct nd_fault *fault)
{
        struct stat st;
        int fd;

        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 || fstat(fd, &st) < 0) {
                nd_fault_set(fault, NDBUS_ESYSTEM, "", "%s", strerror(errno));
        } else if (S_ISREG(st.st_mode) && st.st_size > 0 && !is_replace) {
                nd_fault_set(fault, NDBUS_EINVAL, "",
                             "exists and has %" PRIu64 " bytes; another name, or --replace",
                             (uint64_t)st.st_size);
        } else if (S_ISREG(st.st_mode) && ftruncate(fd, 0) < 0) {
                nd_fault_set(fault, NDBUS_ESYSTEM, "", "%s", strerror(errno));
        } else {
                *ret_fd = fd;
                return 0;
        }
        if (fd >= 0)
                close(fd);
        return fault->code;
}

int nd_recording_open(struct nd_recording *recording,
                      const char *path,
                      bool is_replace,
                      struct nd_fault *fault)
{
        bool is_stdout = strcmp(path, "-") == 0;
        struct stat st;
        int r = 0;

        *recording = (struct nd_recording){.fd = -1};
        recording->gathered = malloc(ND_RECORDING_GATHER_BYTES);
        if (!recording->gathered)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        if (!is_stdout)
                r = recording_open_file(path, is_replace, &recording->fd, fault);
        else
                r = nd_stream_duplicate(STDOUT_FILENO, &recording->fd, fault);
        if (r)
                nd_recording_deinit(recording);
        else /* of stdout others may have written something in front */
                recording->is_regular =
                        !is_stdout && fstat(recording->fd, &st) == 0 && S_ISREG(st.st_mode);
        return r;
}

/* ----------------------------------------------------------------------------------- writing */

/* What is to be written, as pieces, and how much of it was. */
struct recording_pieces {
        int fd;
        struct iovec pieces[RECORDING_PIECES];
        int n_pieces;
        uint64_t n_written;
};

/* All of it, or an errno. */
static int pieces_write(struct recording_pieces *out)
{
        struct iovec *at = out->pieces;
        ssize_t n;

        while (out->n_pieces > 0) {
                n = writev(out->fd, at, out->n_pieces);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return errno;
                out->n_written += (uint64_t)n;
                for (; out->n_pieces > 0 && (size_t)n >= at->iov_len; ++at, --out->n_pieces)
                        n -= (ssize_t)at->iov_len;
                if (out->n_pieces > 0) {
                        at->iov_base = (char *)at->iov_base + n;
                        at->iov_len -= (size_t)n;
                }
        }
        return 0;
}

static int pieces_add(struct recording_pieces *out, const void *data, uint64_t n)
{
        int r;

        if (n == 0)
                return 0;
        out->pieces[out->n_pieces++] = (struct iovec){(void *)(uintptr_t)data, (size_t)n};
        if (out->n_pieces < RECORDING_PIECES)
                return 0;
        r = pieces_write(out);
        out->n_pieces = 0;
        return r;
}

/* Whole records at the start of what was gathered, within so many bytes. */
static uint64_t recording_whole(const struct nd_recording *recording, uint64_t n, uint64_t *ret_n)
{
        struct nd_record record;
        uint64_t at = 0;

        for (*ret_n = 0; nd_record_unpack(recording->gathered + at, n - at, 0, &record, NULL) == 0;
             ++*ret_n)
                at += record.record_bytes;
        return at;
}

/* After a write that failed: what is half written is taken back. */
static int recording_fail(struct nd_recording *recording, int error, struct nd_fault *fault)
{
        const char *cut = "";

        if (recording->is_regular && ftruncate(recording->fd, (off_t)recording->n_bytes) < 0)
                cut = ", and its last record is not whole";
        recording->n_gathered = 0;
        recording->has_failed = true;
        return nd_fault_set(fault, NDBUS_ESYSTEM, "write",
                            "%s; the file holds %" PRIu64 " messages in %" PRIu64 " bytes%s",
                            strerror(error), recording->n_records, recording->n_bytes, cut);
}

int nd_recording_flush(struct nd_recording *recording, struct nd_fault *fault)
{
        struct recording_pieces out = {.fd = recording->fd};
        uint64_t n_records = recording->n_gathered_records;
        uint64_t n_bytes = recording->n_gathered;
        int error;

        error = pieces_add(&out, recording->gathered, n_bytes);
        error = error ? error : pieces_write(&out);
        if (error)
                n_bytes = recording_whole(recording, out.n_written, &n_records);
        recording->n_bytes += n_bytes;
        recording->n_records += n_records;
        recording->n_gathered = 0;
        recording->n_gathered_records = 0;
        return error ? recording_fail(recording, error, fault) : 0;
}

/* ---------------------------------------------------------------------------------- messages */

/* The header of a message, parsed; NULL: out of memory. What was received was checked. */
static const struct nd_header *
recording_header(struct nd_recording *recording, const void *bytes, size_t n_bytes)
{
        struct nd_recording_header *entry, made = {.n_bytes = n_bytes};

        for (size_t i = 0; i < ND_RECORDING_HEADERS; ++i) {
                entry = &recording->headers[i];
                if (entry->header && entry->n_bytes == n_bytes &&
                    memcmp(entry->bytes, bytes, n_bytes) == 0)
                        return entry->header;
        }
        made.bytes = malloc(n_bytes);
        if (!made.bytes || nd_header_unpack(bytes, n_bytes, NULL, &made.header, NULL)) {
                free(made.bytes);
                return NULL;
        }
        memcpy(made.bytes, bytes, n_bytes);
        entry = &recording->headers[recording->i_next_header];
        recording->i_next_header = (recording->i_next_header + 1) % ND_RECORDING_HEADERS;
        free(entry->bytes);
        nd_header_free(entry->header);
        *entry = made;
        return made.header;
}

/* The body, frame by frame, and the zeros between and behind. */
static int recording_write_body(struct recording_pieces *out,
                                const struct nd_header *header,
                                const struct ndbus_array *arrays)
{
        int error = 0;

        for (size_t i = 0; i < header->n_frames && !error; ++i) {
                uint64_t n = header->frames[i].bytes;

                error = pieces_add(out, arrays[i].data, n);
                error = error ? error
                              : pieces_add(out, recording_zeros,
                                           (ND_ALIGN_BYTES - n % ND_ALIGN_BYTES) % ND_ALIGN_BYTES);
        }
        return error;
}

static int recording_write(struct nd_recording *recording,
                           const struct ndbus_message *message,
                           const struct nd_record *record,
                           const struct nd_header *header,
                           struct nd_fault *fault)
{
        struct recording_pieces out = {.fd = recording->fd};
        const struct nd_prelude *p = &record->prelude;
        const struct ndbus_array *arrays;
        uint8_t lead[ND_RECORD_LEAD_BYTES];
        const void *header_bytes, *meta;
        int error;

        ndbus_message_header(message, &header_bytes);
        ndbus_message_meta(message, &meta);
        ndbus_message_arrays(message, &arrays);
        nd_record_pack_lead(record, lead);
        error = pieces_add(&out, lead, sizeof(lead));
        error = error ? error : pieces_add(&out, header_bytes, p->header_bytes);
        error = error ? error : pieces_add(&out, meta, p->meta_bytes);
        error = error ? error
                      : pieces_add(&out, recording_zeros,
                                   record->body_offset - record->meta_offset - p->meta_bytes);
        error = error ? error : recording_write_body(&out, header, arrays);
        error = error ? error : pieces_write(&out);
        if (error)
                return recording_fail(recording, error, fault);
        recording->n_bytes += record->record_bytes;
        ++recording->n_records;
        return 0;
}

static void recording_gather(struct nd_recording *recording,
                             const struct ndbus_message *message,
                             const struct nd_record *record,
                             const struct nd_header *header)
{
        const struct nd_prelude *p = &record->prelude;
        uint8_t *to = recording->gathered + recording->n_gathered;
        const struct ndbus_array *arrays;
        const void *header_bytes, *meta;

        ndbus_message_header(message, &header_bytes);
        ndbus_message_meta(message, &meta);
        ndbus_message_arrays(message, &arrays);
        memset(to, 0, (size_t)record->record_bytes);
        nd_record_pack_lead(record, to);
        memcpy(to + record->header_offset, header_bytes, p->header_bytes);
        if (p->meta_bytes > 0)
                memcpy(to + record->meta_offset, meta, p->meta_bytes);
        for (size_t i = 0; i < header->n_frames; ++i)
                if (header->frames[i].bytes > 0)
                        memcpy(to + record->body_offset + header->frames[i].offset, arrays[i].data,
                               (size_t)header->frames[i].bytes);
        recording->n_gathered += (size_t)record->record_bytes;
        ++recording->n_gathered_records;
}

int nd_recording_add(struct nd_recording *recording,
                     const struct ndbus_message *message,
                     struct nd_fault *fault)
{
        const void *bytes, *meta;
        size_t n_bytes = ndbus_message_header(message, &bytes);
        const struct nd_prelude prelude = {
                .kind = ND_KIND_PUBLISH,
                .flags = (uint16_t)((ndbus_message_retained(message) ? ND_FLAG_RETAINED : 0) |
                                    (ndbus_message_redelivered(message) ? ND_FLAG_REDELIVERED : 0)),
                .header_bytes = (uint32_t)n_bytes,
                .meta_bytes = (uint32_t)ndbus_message_meta(message, &meta),
                .body_bytes = ndbus_message_bytes(message),
                .source = ndbus_message_source(message),
                .sequence = ndbus_message_sequence(message),
                .time_ns = ndbus_message_time_ns(message),
        };
        const struct nd_header *header;
        struct nd_record record;
        int r;

        header = recording_header(recording, bytes, n_bytes);
        if (!header)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        r = nd_record_place(&prelude, &record, fault);
        if (r)
                return r;
        if (record.record_bytes > ND_RECORDING_GATHER_BYTES - recording->n_gathered)
                r = nd_recording_flush(recording, fault);
        if (r)
                return r;
        if (nd_index_add(&recording->index, header->topic, header->n_topic, &record))
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        if (record.record_bytes > ND_RECORDING_GATHER_BYTES)
                return recording_write(recording, message, &record, header, fault);
        recording_gather(recording, message, &record, header);
        return 0;
}

/* ------------------------------------------------------------------------------------ the end */

int nd_recording_finish(struct nd_recording *recording,
                        uint64_t n_dropped,
                        uint64_t n_gaps,
                        struct nd_fault *fault)
{
        struct recording_pieces out = {.fd = recording->fd};
        nd_autofree void *index = NULL;
        size_t n_index;
        int r, error;

        r = nd_recording_flush(recording, fault);
        if (r)
                return r;
        recording->index.n_dropped = n_dropped;
        recording->index.n_gaps = n_gaps;
        if (nd_index_pack(&recording->index, &index, &n_index))
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        error = pieces_add(&out, index, n_index);
        error = error ? error : pieces_write(&out);
        if (error)
                return recording_fail(recording, error, fault);
        recording->n_bytes += n_index;
        r = close(recording->fd);
        recording->fd = -1;
        return r < 0 ? nd_fault_set(fault, NDBUS_ESYSTEM, "close", "%s", strerror(errno)) : 0;
}

void nd_recording_deinit(struct nd_recording *recording)
{
        if (recording->fd >= 0)
                close(recording->fd);
        for (size_t i = 0; i < ND_RECORDING_HEADERS; ++i) {
                free(recording->headers[i].bytes);
                nd_header_free(recording->headers[i].header);
        }
        free(recording->gathered);
        nd_index_deinit(&recording->index);
        *recording = (struct nd_recording){.fd = -1};
}
