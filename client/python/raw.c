/* SPDX-License-Identifier: MIT */

/*
 * Memory without meaning, for pickling
 *
 * Pickling looks at where buffers lie, because those that overlap are to overlap again on arrival, and
 * rebuilds them with just the format, shape and strides that they had, which neither memoryview nor NumPy
 * can do for all of them.
 */

#include "client/python/ndpy.h"

PyObject *ndpy_describe(PyObject *module, PyObject *object)
{
        PyObject *shape, *strides, *result = NULL;
        Py_buffer buffer;

        (void)module;
        if (PyObject_GetBuffer(object, &buffer, PyBUF_FULL_RO))
                return NULL;
        if (buffer.suboffsets || (buffer.ndim > 0 && !buffer.strides)) {
                PyErr_Format(PyExc_BufferError, "a buffer of %.100s is scattered over memory",
                             Py_TYPE(object)->tp_name);
                PyBuffer_Release(&buffer);
                return NULL;
        }
        shape = PyTuple_New(buffer.ndim);
        strides = PyTuple_New(buffer.ndim);
        for (int i = 0; shape && strides && i < buffer.ndim; ++i) {
                PyTuple_SET_ITEM(shape, i, PyLong_FromSsize_t(buffer.shape[i]));
                PyTuple_SET_ITEM(strides, i, PyLong_FromSsize_t(buffer.strides[i]));
        }
        if (shape && strides && !PyErr_Occurred())
                result = Py_BuildValue("NsnOOO", PyLong_FromVoidPtr(buffer.buf),
                                       buffer.format ? buffer.format : "B", buffer.itemsize, shape,
                                       strides, buffer.readonly ? Py_True : Py_False);
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        PyBuffer_Release(&buffer);
        return result;
}

/* An Array of raw bytes that keeps an object. */
static struct ndpy_array *raw_new(const void *address, Py_ssize_t n, PyObject *owner)
{
        struct ndpy_array *self = ndpy_array_new();
        struct ndpy_dtype *dtype = self ? ndpy_dtype_plain(NULL, 8, 0) : NULL;

        if (!dtype) {
                Py_XDECREF(self);
                return NULL;
        }
        ndpy_view_set_dtype(&self->view, dtype);
        ndpy_view_set_ndim(&self->view, 1); /* cannot fail: one dimension needs no memory */
        self->view.dims[0] = n;
        self->view.dims[1] = 1;
        self->view.array.data = address;
        self->view.keeper = NDPY_KEEPER_OBJECT;
        self->view.owner = Py_NewRef(owner);
        return self;
}

PyObject *ndpy_memory(PyObject *module, PyObject *args)
{
        unsigned long long address;
        PyObject *owner;
        Py_ssize_t n;

        (void)module;
        if (!PyArg_ParseTuple(args, "KnO:memory", &address, &n, &owner))
                return NULL;
        return (PyObject *)raw_new((const void *)(uintptr_t)address, n, owner);
}

static int shaped_dims(struct ndpy_view *view, PyObject *shape, PyObject *strides)
{
        Py_ssize_t ndim = PyTuple_GET_SIZE(shape);

        if (PyTuple_GET_SIZE(strides) != ndim) {
                PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
                return -1;
        }
        if (ndpy_view_set_ndim(view, ndim))
                return -1;
        for (Py_ssize_t i = 0; i < ndim; ++i) {
                view->dims[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
                view->dims[ndim + i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(strides, i));
                if (!PyErr_Occurred() && view->dims[i] < 0)
                        PyErr_SetString(PyExc_ValueError, "a shape is negative");
        }
        return PyErr_Occurred() ? -1 : 0;
}

/* Does all of it lie within its buffer, if it begins there? */
static int shaped_check(const struct ndpy_view *view, Py_ssize_t offset)
{
        int64_t low, high;

        if (ndpy_view_extent(view, &low, &high))
                return -1;
        if (!__builtin_add_overflow(low, offset, &low) &&
            !__builtin_add_overflow(high, offset, &high) && low >= 0 && high <= view->buffer.len)
                return 0;
        PyErr_SetString(PyExc_ValueError, "shape and strides reach beyond the memory");
        return -1;
}

PyObject *ndpy_shaped(PyObject *module, PyObject *args)
{
        Py_ssize_t itemsize, offset;
        PyObject *memory, *shape, *strides;
        struct ndpy_array *self;
        struct ndpy_dtype *dtype;
        const char *format;

        (void)module;
        if (!PyArg_ParseTuple(args, "OsnO!O!n:shaped", &memory, &format, &itemsize, &PyTuple_Type,
                              &shape, &PyTuple_Type, &strides, &offset))
                return NULL;
        if (itemsize < 1 || itemsize > INT32_MAX / 8)
                return PyErr_Format(PyExc_ValueError, "itemsize: is %zd", itemsize);
        dtype = ndpy_dtype_from_format(format, itemsize);
        if (!dtype && !PyErr_Occurred())
                dtype = ndpy_dtype_plain("opaque", (uint32_t)itemsize * 8, 0);
        self = dtype ? ndpy_array_new() : NULL;
        if (!self) {
                Py_XDECREF(dtype);
                return NULL;
        }
        ndpy_view_set_dtype(&self->view, dtype);
        Py_XSETREF(dtype->format, PyBytes_FromString(format));
        if (dtype->format && PyObject_GetBuffer(memory, &self->view.buffer, PyBUF_SIMPLE) == 0) {
                self->view.keeper = NDPY_KEEPER_BUFFER;
                if (self->view.buffer.readonly)
                        self->view.array.flags |= NDBUS_READ_ONLY;
                if (shaped_dims(&self->view, shape, strides) == 0 &&
                    shaped_check(&self->view, offset) == 0) {
                        self->view.array.data = (const uint8_t *)self->view.buffer.buf + offset;
                        return (PyObject *)self;
                }
        }
        Py_DECREF(self);
        return NULL;
}

PyObject *ndpy_has_no_large(PyObject *module, PyObject *object)
{
        (void)module;
        if ((PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) >= NDPY_LARGE_BYTES) ||
            (PyByteArray_CheckExact(object) && PyByteArray_GET_SIZE(object) >= NDPY_LARGE_BYTES)) {
                PyErr_SetString(PyExc_LookupError, "a large one");
                return NULL;
        }
        Py_RETURN_NONE;
}
