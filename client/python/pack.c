/* SPDX-License-Identifier: MIT */

/*
 * Arrays and meta as bytes, and back
 *
 * Without a daemon. What is packed is one Array of bytes, which may be written to a file as it is, or a copy
 * of it in bytes; what is unpacked is a message whose arrays lie in the bytes that were given.
 */

#include "client/python/ndpy.h"

/* What tells a list of one array from that array. */
#define LIST_ENCODING "list"

/* arrays, meta=None: malloc'd bytes. */
static int pack(PyObject *args, PyObject *keywords, void **ret_bytes, size_t *ret_n_bytes)
{
        static char *names[] = {"arrays", "meta", NULL};
        struct ndpy_publish publish = {.options = NDBUS_PUBLISH_OPTIONS_INIT};
        PyObject *arrays, *meta = Py_None;
        const char *encoding = NULL;
        int r;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O", names, &arrays, &meta) ||
            ndpy_publish_init(&publish, arrays, meta))
                return -1;
        if (publish.views.n == 1 && (PyList_Check(arrays) || PyTuple_Check(arrays)))
                encoding = LIST_ENCODING;
        Py_BEGIN_ALLOW_THREADS r =
                ndbus_pack_encoded(publish.views.arrays, publish.views.n, publish.options.meta,
                                   publish.options.n_meta, encoding, ret_bytes, ret_n_bytes);
        Py_END_ALLOW_THREADS ndpy_publish_deinit(&publish);
        if (r)
                ndpy_raise(r);
        return r ? -1 : 0;
}

PyObject *ndpy_pack(PyObject *module, PyObject *args, PyObject *keywords)
{
        size_t n_bytes;
        void *bytes;

        (void)module;
        return pack(args, keywords, &bytes, &n_bytes) ? NULL
                                                      : ndpy_array_from_malloc(bytes, n_bytes);
}

PyObject *ndpy_dumps(PyObject *module, PyObject *args, PyObject *keywords)
{
        PyObject *result;
        size_t n_bytes;
        void *bytes;

        (void)module;
        if (pack(args, keywords, &bytes, &n_bytes))
                return NULL;
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n_bytes);
        if (result) {
                char *to = PyBytes_AS_STRING(result); /* nobody else has it yet */

                Py_BEGIN_ALLOW_THREADS memcpy(to, bytes, n_bytes);
                Py_END_ALLOW_THREADS
        }
        free(bytes);
        return result;
}

PyObject *ndpy_unpack(PyObject *module, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"data", "offset", NULL};
        PyObject *data, *owner, *message;
        struct ndbus_message *m;
        const Py_buffer *buffer;
        Py_ssize_t offset = 0;
        size_t n_bytes;
        int r;

        (void)module;
        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|n:unpack", names, &data, &offset))
                return NULL;
        owner = PyMemoryView_FromObject(data); /* the bytes stay as long as it does */
        if (!owner)
                return NULL;
        buffer = PyMemoryView_GET_BUFFER(owner);
        if (!PyBuffer_IsContiguous(buffer, 'C') || offset < 0 || offset > buffer->len) {
                PyErr_Format(PyExc_ValueError,
                             "data: must be contiguous, and the offset (%zd) within its %zd bytes",
                             offset, buffer->len);
                Py_DECREF(owner);
                return NULL;
        }
        r = ndbus_unpack((const uint8_t *)buffer->buf + offset, (size_t)(buffer->len - offset), &m,
                         &n_bytes);
        if (r) {
                Py_DECREF(owner);
                return ndpy_raise(r);
        }
        message = ndpy_message_new(m, NULL, owner, false);
        Py_DECREF(owner);
        return message ? Py_BuildValue("Nn", message, offset + (Py_ssize_t)n_bytes) : NULL;
}
