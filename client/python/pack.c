/* SPDX-License-Identifier: MIT */

/*
 * Arrays and meta as bytes, and back
 *
 * Without a daemon. What is packed is one Array of bytes, which may be written to a file as it is; what is
 * unpacked is a message whose arrays lie in the bytes that were given.
 */

#include "client/python/ndpy.h"

PyObject *ndpy_pack(PyObject *module, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"arrays", "meta", NULL};
        struct ndpy_publish publish = {.options = NDBUS_PUBLISH_OPTIONS_INIT};
        PyObject *arrays, *meta = Py_None;
        size_t n_bytes;
        void *bytes;
        int r;

        (void)module;
        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:pack", names, &arrays, &meta) ||
            ndpy_publish_init(&publish, arrays, meta))
                return NULL;
        Py_BEGIN_ALLOW_THREADS r =
                ndbus_pack(publish.views.arrays, publish.views.n, publish.options.meta,
                           publish.options.n_meta, &bytes, &n_bytes);
        Py_END_ALLOW_THREADS ndpy_publish_deinit(&publish);
        return r ? ndpy_raise(r) : ndpy_array_from_malloc(bytes, n_bytes);
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
