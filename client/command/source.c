/* SPDX-License-Identifier: MIT */

/*
 * Reading messages from files and pipes
 *
 * The kind is told from the first bytes, not from the name: \x93NUMPY, \x89NDBUS, "PK" (an .npz,
 * which is refused with a hint), anything else is raw and needs --dtype.
 *
 * Parsers here want bytes that are contiguous. A mapped file is that from the start; of a pipe one
 * buffer is kept, read into until the parser stops saying TRUNCATED, and moved down behind each
 * message.
 *
 * Pages of a mapped file that somebody shortens are gone: to touch one is SIGBUS, and a system call
 * that is given it fails with EFAULT. Nothing can be handed out instead, so for the first there is a
 * handler that says what happened and ends the process, in whose temporary files and half-sent
 * messages nobody then believes; for the second nd_source_check() finds the reason.
 */

#include "client/command/source.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <ndbus/ndbus.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/command/npy.h"
#include "client/command/report.h"
#include "client/command/spelling.h"
#include "client/command/stream.h"
#include "protocol/limit.h"
#include "protocol/record.h"
#include "protocol/utf8.h"

#define SOURCE_READ_BYTES (256u * 1024u)

/* What may stand around the elements, which the limit is about: a record's header, its meta, what fills
 * it up; or an index at the end. */
#define SOURCE_HEAD_BYTES (4u << 20)

/* Of a mapped file that was read, in what steps it is let go. */
#define SOURCE_LET_GO_BYTES ((size_t)16 << 20)

struct nd_source {
        int fd; /* of a pipe -1 once nothing more is to be read */
        bool is_mapped;
        char *bytes; /* [n_bytes] mapping, or buffer of n_allocated bytes */
        size_t n_bytes;
        size_t n_allocated;
        size_t at;       /* where the next message begins in bytes */
        size_t n_taken;  /* bytes of the message that was handed out last */
        size_t n_let_go; /* of a mapping: that are behind us */
        uint64_t moved;  /* bytes of the pipe that are no longer in the buffer */
        uint64_t n_messages;

        uint64_t message_max;
        struct nd_progress *progress;
        bool has_dtype;
        bool is_raw; /* the dtype is none: bytes */
        struct nd_spelling dtype;
        bool has_shape;
        int64_t shape[NDBUS_DIMS_MAX];
        int32_t ndim;

        /* the last record's header; that of the next one is mostly the same */
        struct nd_header *header;
        void *header_bytes; /* [n_header_bytes] */
        size_t n_header_bytes;

        /* what the last message borrows */
        struct nd_npy *npy;
        struct ndbus_message *record;
        struct ndbus_array *arrays; /* of the record */
        struct ndbus_array array;
        int64_t raw_shape[1];
};

static void source_on_sigbus(int number)
{
        static const char text[] =
                "ndbus: a file was cut short, or could not be read, while it was "
                "read\n";
        ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);

        (void)number;
        (void)ignored;
        _exit(1);
}

static void source_catch_sigbus(void)
{
        struct sigaction action = {.sa_handler = source_on_sigbus};

        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, NULL);
}

static int source_map(struct nd_source *source, struct nd_fault *fault)
{
        struct stat st;
        void *bytes;

        if (fstat(source->fd, &st) < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, "", "%s", strerror(errno));
        if (S_ISDIR(st.st_mode))
                return nd_fault_set(fault, NDBUS_ESYSTEM, "", "is a directory; give a file");
        if (!S_ISREG(st.st_mode) || st.st_size == 0)
                return 0;
        if (lseek(source->fd, 0, SEEK_CUR) != 0) /* stdin that somebody has read from */
                return 0;
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, source->fd, 0);
        if (bytes == MAP_FAILED)
                return 0;
        source->bytes = bytes;
        source->n_bytes = (size_t)st.st_size;
        source->is_mapped = true;
        return 0;
}

static int source_open_file(const char *path, int *ret_fd, struct nd_fault *fault)
{
        int fd;

        if (strcmp(path, "-") == 0)
                return nd_stream_duplicate(STDIN_FILENO, ret_fd, fault);
        /* a FIFO that nobody has opened for writing is waited for where signals are heard */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, "", "%s", strerror(errno));
        *ret_fd = fd;
        return 0;
}

int nd_source_open(struct nd_source **ret_source,
                   const char *path,
                   const struct nd_source_options *options,
                   struct nd_fault *fault)
{
        nd_cleanup(nd_source_freep) struct nd_source *source = calloc(1, sizeof(*source));
        int r;

        if (!source)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        source->fd = -1;
        source->message_max = options->message_max;
        source->progress = options->progress;
        if (options->dtype) {
                r = nd_spelling_parse_dtype(options->dtype, "--dtype", &source->dtype, fault);
                if (r)
                        return r;
                source->has_dtype = true;
                source->is_raw = source->dtype.dtype[0] == '\0';
        }
        if (options->shape) {
                r = nd_spelling_parse_shape(options->shape, "--shape", source->shape, &source->ndim,
                                            fault);
                if (r)
                        return r;
                source->has_shape = true;
        }
        r = source_open_file(path, &source->fd, fault);
        if (r)
                return r;
        r = source_map(source, fault);
        if (r)
                return r;
        if (source->is_mapped)
                source_catch_sigbus();
        *ret_source = nd_steal(source);
        return 0;
}

int nd_source_index(const struct nd_source *source,
                    struct nd_index *ret_index,
                    struct nd_fault *fault)
{
        const uint8_t *bytes = (const uint8_t *)source->bytes;
        struct nd_index index;
        uint64_t at = UINT64_MAX;
        int r;

        if (source->is_mapped && source->n_bytes >= 8)
                at = nd_index_locate(bytes + source->n_bytes - 8, source->n_bytes);
        /* what ends in such a number need not be an index */
        if (at == UINT64_MAX || !nd_index_is_there(bytes + at, source->n_bytes - at))
                return 1;
        r = nd_index_unpack(bytes + at, source->n_bytes - at, at, &index, fault);
        if (r)
                return r;
        if (index.bytes != at) {
                nd_index_deinit(&index);
                return 1;
        }
        *ret_index = index;
        return 0;
}

void nd_source_seek(struct nd_source *source, uint64_t offset)
{
        nd_assert(source->is_mapped && source->n_messages == 0 && offset <= source->n_bytes);
        source->at = (size_t)offset;
}

int nd_source_check(const struct nd_source *source, struct nd_fault *fault)
{
        struct stat st;

        if (!source->is_mapped || fstat(source->fd, &st) < 0 ||
            (uint64_t)st.st_size >= source->n_bytes)
                return 0;
        return nd_fault_set(fault, NDBUS_ETRUNCATED, "",
                            "was cut short from %zu to %" PRIu64
                            " bytes by somebody else while it was read",
                            source->n_bytes, (uint64_t)st.st_size);
}

struct nd_source *nd_source_free(struct nd_source *source)
{
        if (!source)
                return NULL;
        nd_npy_free(source->npy);
        ndbus_message_free(source->record);
        free(source->arrays);
        nd_header_free(source->header);
        free(source->header_bytes);
        if (source->is_mapped)
                munmap(source->bytes, source->n_bytes);
        else
                free(source->bytes);
        if (source->fd >= 0)
                close(source->fd);
        free(source);
        return NULL;
}

static int source_too_big(const struct nd_source *source, struct nd_fault *fault)
{
        return nd_fault_set(fault, NDBUS_ETOO_BIG, "",
                            "message %" PRIu64 " has more than %" PRIu64
                            " bytes, the limit of what "
                            "is not read from a file (message-max)",
                            source->n_messages + 1, source->message_max);
}

/* Until there is something to read, or the end. */
static int source_wait(const struct nd_source *source, struct nd_fault *fault)
{
        struct pollfd readable = {.fd = source->fd, .events = POLLIN};

        while (nd_signals_poll(&readable, 1, -1) < 0 && errno == EINTR)
                if (nd_signals_interrupted(NULL))
                        return nd_fault_set(fault, NDBUS_EINTERRUPTED, "",
                                            "interrupted while it waited for the rest of message "
                                            "%" PRIu64,
                                            source->n_messages + 1);
        return 0;
}

/* One read. *ret_more is false at the end. Bytes may move: only between messages, and while none of
 * them is parsed. */
static int source_read(struct nd_source *source, bool *ret_more, struct nd_fault *fault)
{
        ssize_t n;
        int r;

        *ret_more = false;
        if (source->fd < 0 || source->is_mapped)
                return 0;
        if (source->at > 0) {
                memmove(source->bytes, source->bytes + source->at, source->n_bytes - source->at);
                source->moved += source->at;
                source->n_bytes -= source->at;
                source->at = 0;
        }
        if (source->n_bytes >= SOURCE_HEAD_BYTES &&
            source->n_bytes - SOURCE_HEAD_BYTES >= source->message_max)
                return source_too_big(source, fault);
        if (source->n_bytes == source->n_allocated) {
                size_t want = source->n_allocated ? source->n_allocated * 2 : SOURCE_READ_BYTES;
                char *bytes = realloc(source->bytes, want);

                if (!bytes)
                        return nd_fault_set(fault, NDBUS_ENOMEM, "",
                                            "out of memory at %zu bytes of one message",
                                            source->n_bytes);
                source->bytes = bytes;
                source->n_allocated = want;
        }
        r = source_wait(source, fault);
        if (r)
                return r;
        n = read(source->fd, source->bytes + source->n_bytes,
                 source->n_allocated - source->n_bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
                *ret_more = true;
                return 0;
        }
        if (n < 0)
                return nd_fault_set(fault, NDBUS_ESYSTEM, "read", "%s", strerror(errno));
        if (n == 0) {
                close(source->fd);
                source->fd = -1;
                return 0;
        }
        source->n_bytes += (size_t)n;
        if (source->progress)
                nd_progress_show(source->progress, "%" PRIu64 " MB read",
                                 (source->moved + source->n_bytes) / 1000000);
        *ret_more = true;
        return 0;
}

/* At least so many bytes from source->at on; fewer only at the end. */
static int source_need(struct nd_source *source, size_t n, struct nd_fault *fault)
{
        bool more = true;
        int r = 0;

        while (!r && more && source->n_bytes - source->at < n)
                r = source_read(source, &more, fault);
        return r;
}

static uint64_t source_element_bits(const struct nd_source *source)
{
        return (uint64_t)source->dtype.bits * (source->dtype.lanes ? source->dtype.lanes : 1);
}

/* An .npy of opaque elements is what NumPy makes of bfloat16 and the like: --dtype says which. */
static int source_rename(struct nd_source *source, struct nd_fault *fault)
{
        struct ndbus_array *array = &source->array;

        if (source->has_shape)
                return nd_fault_set(fault, NDBUS_EINVAL, "--shape",
                                    "is for raw bytes; an .npy file has its own shape");
        if (!source->has_dtype)
                return 0;
        if (source->is_raw || strcmp(array->dtype, "opaque") != 0 ||
            array->bits != (source_element_bits(source) + 7) / 8 * 8)
                return nd_fault_set(fault, NDBUS_EINVAL, "--dtype",
                                    "cannot rename %s of %" PRIu32 " bytes; an .npy of opaque "
                                    "elements ('|V%" PRIu64 "') could be",
                                    array->dtype, array->bits / 8,
                                    (source_element_bits(source) + 7) / 8);
        if (source->dtype.bits < 8)
                array->flags |= NDBUS_SUBBYTE_PADDED;
        array->dtype = source->dtype.dtype;
        array->bits = source->dtype.bits;
        array->lanes = source->dtype.lanes;
        array->flags |= source->dtype.flags;
        array->unit = source->dtype.unit[0] ? source->dtype.unit : NULL;
        array->unit_count = source->dtype.unit_count;
        return 0;
}

static int
source_next_npy(struct nd_source *source, struct nd_source_message *ret, struct nd_fault *fault)
{
        bool more = true;
        int r;

        do {
                r = nd_npy_read(source->bytes + source->at, source->n_bytes - source->at,
                                &source->npy, fault);
                if (r == NDBUS_ETRUNCATED) {
                        int failed = source_read(source, &more, fault);

                        if (failed)
                                return failed;
                        if (!more) /* its text again: read() has not touched it */
                                return r;
                }
        } while (r == NDBUS_ETRUNCATED);
        if (r)
                return r;

        source->array = source->npy->array;
        source->n_taken = (size_t)source->npy->file_bytes;
        ret->note = source->npy->has_titles ? "titles of fields are not carried" : NULL;
        return source_rename(source, fault);
}

/* A whole record at source->at; where it is cut is told by its place in the file. 1: the end. */
static int
source_need_record(struct nd_source *source, struct nd_record *ret_record, struct nd_fault *fault)
{
        bool more = true;
        int r;

        do {
                r = nd_record_unpack(source->bytes + source->at, source->n_bytes - source->at,
                                     source->moved + source->at, ret_record, fault);
                if (r == NDBUS_ETRUNCATED || r == 1) {
                        int failed = source_read(source, &more, fault);

                        if (failed)
                                return failed;
                }
        } while ((r == NDBUS_ETRUNCATED || r == 1) && more);
        return r;
}

/* The header of the record at hand, as the file has it. */
static int source_parse_header(struct nd_source *source, struct nd_fault *fault)
{
        const void *bytes = NULL;
        size_t n = ndbus_message_header(source->record, &bytes);
        void *copy;

        if (source->header && source->n_header_bytes == n &&
            memcmp(source->header_bytes, bytes, n) == 0)
                return 0;
        source->header = nd_header_free(source->header);
        copy = realloc(source->header_bytes, n);
        if (!copy)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        memcpy(copy, bytes, n);
        source->header_bytes = copy;
        source->n_header_bytes = n;
        return nd_header_unpack(bytes, n, NULL, &source->header, fault);
}

/* Unpacked arrays are read-only, because the file's bytes are: that is no part of the message. */
static int
source_take_arrays(struct nd_source *source, struct nd_source_message *ret, struct nd_fault *fault)
{
        const struct ndbus_array *arrays = NULL;
        size_t n = ndbus_message_arrays(source->record, &arrays);
        struct ndbus_array *copy;
        int r;

        r = source_parse_header(source, fault);
        if (r)
                return r;
        copy = reallocarray(source->arrays, n + 1, sizeof(*copy));
        if (!copy)
                return nd_fault_set(fault, NDBUS_ENOMEM, "", "out of memory");
        source->arrays = copy;
        for (size_t i = 0; i < n; ++i) {
                copy[i] = arrays[i];
                copy[i].flags &= ~(uint32_t)NDBUS_READ_ONLY;
                copy[i].flags |= source->header->frames[i].array.flags & NDBUS_READ_ONLY;
        }
        ret->arrays = copy;
        ret->n_arrays = n;
        return 0;
}

static int
source_next_record(struct nd_source *source, struct nd_source_message *ret, struct nd_fault *fault)
{
        struct nd_record record = {.record_bytes = 0};
        int r;

        if (source->has_dtype || source->has_shape)
                return nd_fault_set(fault, NDBUS_EINVAL, source->has_dtype ? "--dtype" : "--shape",
                                    "is for raw bytes; an ndbus record has its own");
        for (;;) {
                r = source_need_record(source, &record, fault);
                if (r)
                        return r;
                if (record.prelude.kind != ND_KIND_FILE_INDEX)
                        break;
                source->at += (size_t)record.record_bytes;
        }
        r = ndbus_unpack(source->bytes + source->at, source->n_bytes - source->at, &source->record,
                         &source->n_taken);
        if (r)
                return nd_fault_set(fault, r, "",
                                    "record %" PRIu64 ", which begins at byte %" PRIu64 ": %s: %s",
                                    source->n_messages + 1, source->moved + source->at,
                                    ndbus_strerror(r), ndbus_detail());

        ret->record = source->record;
        ret->n_meta = ndbus_message_meta(source->record, &ret->meta);
        ret->encoding = ndbus_message_encoding(source->record);
        return source_take_arrays(source, ret, fault);
}

/* Bytes that the shape wants; false if they are no whole number below 2^63. */
static bool source_raw_bytes(const struct nd_source *source, uint64_t *ret)
{
        uint64_t bits = source_element_bits(source);

        for (int32_t i = 0; i < source->ndim; ++i)
                if (nd_mul_overflow(bits, (uint64_t)source->shape[i], &bits))
                        return false;
        if (bits > INT64_MAX)
                return false;
        *ret = (bits + 7) / 8;
        return true;
}

/* Without --shape: all there is, in one dimension. */
static int source_shape_raw(struct nd_source *source, struct nd_fault *fault)
{
        uint64_t itemsize = source_element_bits(source) / 8;
        size_t n;
        int r;

        r = source_need(source, SIZE_MAX, fault);
        if (r)
                return r;
        n = source->n_bytes - source->at;
        if (source_element_bits(source) % 8 || n % itemsize)
                return nd_fault_set(fault, NDBUS_ELENGTH, "--dtype",
                                    "%zu bytes are no whole number of %s; say --shape too", n,
                                    source->dtype.dtype);
        source->raw_shape[0] = (int64_t)(n / itemsize);
        source->array.ndim = 1;
        source->array.shape = source->raw_shape;
        source->n_taken = n;
        return 0;
}

static int source_next_raw(struct nd_source *source, struct nd_fault *fault)
{
        uint64_t bytes = 0;
        size_t n;
        int r;

        if (!source->has_dtype)
                return nd_fault_set(fault, NDBUS_EINVAL, "",
                                    "is neither .npy nor an ndbus record; for raw bytes give "
                                    "--dtype and --shape");
        source->array = (struct ndbus_array){
                .dtype = source->is_raw ? NULL : source->dtype.dtype,
                .bits = source->dtype.bits,
                .lanes = source->dtype.lanes,
                .flags = source->dtype.flags,
                .ndim = source->ndim,
                .shape = source->shape,
                .unit = source->dtype.unit[0] ? source->dtype.unit : NULL,
                .unit_count = source->dtype.unit_count,
        };
        if (!source->has_shape) {
                r = source_shape_raw(source, fault);
        } else {
                if (!source_raw_bytes(source, &bytes) || bytes > SIZE_MAX)
                        return nd_fault_set(fault, NDBUS_ESHAPE, "--shape",
                                            "more than 2^63 bits in all");
                if (!source->is_mapped && bytes > source->message_max)
                        return source_too_big(source, fault);
                r = source_need(source, (size_t)bytes, fault);
                n = source->n_bytes - source->at;
                if (!r && (n < bytes || (source->is_mapped && n != bytes)))
                        return nd_fault_set(fault, NDBUS_ELENGTH, "--shape",
                                            "wants %" PRIu64 " bytes, there are %zu", bytes, n);
                source->n_taken = (size_t)bytes;
        }
        source->array.data = source->bytes + source->at;
        return r;
}

static int
source_next_kind(struct nd_source *source, struct nd_source_message *ret, struct nd_fault *fault)
{
        const char *p = source->bytes + source->at;
        size_t n = source->n_bytes - source->at;

        if (nd_npy_is(p, n))
                return source_next_npy(source, ret, fault);
        if (n > 0 && memcmp(p, "\x89NDBUS\r\n", n < 8 ? n : 8) == 0)
                return source_next_record(source, ret, fault);
        if (source->n_messages == 0 && !source->has_dtype && n >= 4 &&
            (memcmp(p, "PK\3\4", 4) == 0 || memcmp(p, "PK\5\6", 4) == 0))
                return nd_fault_set(fault, NDBUS_EUNSUPPORTED, "",
                                    "is an .npz archive; unzip it and give the .npy files in it");
        if (source->n_messages > 0 && !source->has_dtype)
                return nd_fault_set(fault, NDBUS_ECORRUPT, "",
                                    "byte %" PRIu64 ": behind message %" PRIu64
                                    " there is something that is no message",
                                    source->moved + source->at, source->n_messages);
        return source_next_raw(source, fault);
}

/* What is behind us stays in the file, and need not look like memory of this process. */
static void source_let_go(struct nd_source *source)
{
        size_t end = source->at - source->at % SOURCE_LET_GO_BYTES;

        if (!source->is_mapped || end <= source->n_let_go)
                return;
        (void)madvise(source->bytes + source->n_let_go, end - source->n_let_go, MADV_DONTNEED);
        source->n_let_go = end;
}

int nd_source_next(struct nd_source *source,
                   struct nd_source_message *ret_message,
                   struct nd_fault *fault)
{
        struct nd_source_message message = {.arrays = &source->array, .n_arrays = 1};
        int r;

        source->npy = nd_npy_free(source->npy);
        ndbus_message_free(nd_steal(source->record));
        source->at += source->n_taken;
        source->n_taken = 0;
        source_let_go(source);

        r = source_need(source, 8, fault);
        if (r == NDBUS_EINTERRUPTED && source->at == source->n_bytes)
                return 1;
        if (r)
                return r;
        if (source->at == source->n_bytes && source->n_messages > 0)
                return 1;
        if (source->at == source->n_bytes && !source->has_dtype)
                return nd_fault_set(fault, NDBUS_ETRUNCATED, "", "is empty");

        r = source_next_kind(source, &message, fault);
        if (r)
                return r;
        ++source->n_messages;
        message.offset = source->moved + source->at;
        message.n_bytes = source->n_taken;
        *ret_message = message;
        return 0;
}

int nd_source_each(const char *path,
                   const struct nd_source_options *options,
                   int (*take)(void *userdata,
                               const char *path,
                               const struct nd_source_message *message),
                   void *userdata,
                   struct nd_fault *fault)
{
        nd_cleanup(nd_source_freep) struct nd_source *source = NULL;
        struct nd_source_message message;
        int r;

        r = nd_source_open(&source, path, options, fault);
        while (!r) {
                r = nd_source_next(source, &message, fault);
                if (r)
                        return r < 0 ? r : 0;
                r = take(userdata, path, &message);
        }
        return r;
}

void nd_source_stem(const char *path, char *out, size_t n_out)
{
        const char *base = strrchr(path, '/');
        size_t n;

        base = base ? base + 1 : path;
        n = strlen(base);
        if (n > 4 && strcmp(base + n - 4, ".npy") == 0)
                n -= 4;
        if (n >= n_out || n > ND_NAME_BYTES_MAX || strcmp(path, "-") == 0 ||
            !nd_utf8_is_valid(base, n))
                n = 0;
        memcpy(out, base, n);
        out[n] = '\0';
}
