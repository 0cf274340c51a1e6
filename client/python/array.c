/* SPDX-License-Identifier: MIT */

/*
 * Array: memory with a shape, for whoever wants to look at it
 *
 * What is received is handed out as such, and what anybody else's array is looks the same: it has the
 * buffer protocol, __array_interface__, __dlpack__ and __array__, and copies nothing. It refers to its
 * memory and to nothing else, so one array of a message may outlive the message and the others.
 */

#include "client/python/ndpy.h"

PyTypeObject *ndpy_array_type;

struct ndpy_array *ndpy_array_new(void)
{
        struct ndpy_array *self = PyObject_GC_New(struct ndpy_array, ndpy_array_type);

        if (self) {
                memset(&self->view, 0, sizeof(self->view));
                self->view.dims = self->view.dims_small;
                PyObject_GC_Track(self);
        }
        return self;
}

PyObject *ndpy_array_from_malloc(void *memory, size_t n_bytes)
{
        struct ndpy_array *self = ndpy_array_new();
        struct ndpy_dtype *dtype = self ? ndpy_dtype_plain(NULL, 8, 0) : NULL;

        if (!dtype) {
                Py_XDECREF(self);
                free(memory);
                return NULL;
        }
        ndpy_view_set_dtype(&self->view, dtype);
        self->view.keeper = NDPY_KEEPER_MALLOC;
        self->view.memory = memory;
        self->view.array.data = memory;
        ndpy_view_set_ndim(&self->view, 1); /* cannot fail: one dimension needs no memory */
        self->view.dims[0] = (int64_t)n_bytes;
        self->view.dims[1] = 1;
        return (PyObject *)self;
}

static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"array", NULL};
        struct ndpy_array *self;
        PyObject *any;

        (void)type;
        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Array", names, &any))
                return NULL;
        self = ndpy_array_new();
        if (self && ndpy_view_from(&self->view, any))
                Py_CLEAR(self);
        return (PyObject *)self;
}

static int array_traverse(PyObject *object, visitproc visit, void *arg)
{
        struct ndpy_array *self = (struct ndpy_array *)object;

        Py_VISIT(Py_TYPE(object));
        Py_VISIT(self->view.owner);
        if (self->view.keeper == NDPY_KEEPER_BUFFER)
                Py_VISIT(self->view.buffer.obj);
        return 0;
}

static void array_dealloc(PyObject *object)
{
        PyTypeObject *type = Py_TYPE(object);

        PyObject_GC_UnTrack(object);
        ndpy_view_deinit(&((struct ndpy_array *)object)->view);
        PyObject_GC_Del(object);
        Py_DECREF(type);
}

/* ---------------------------------------------------------------------------------- what it is */

static PyObject *dims_tuple(const int64_t *dims, int32_t n)
{
        PyObject *tuple = PyTuple_New(n);

        for (int32_t i = 0; tuple && i < n; ++i) {
                PyObject *number = PyLong_FromLongLong(dims[i]);

                if (number)
                        PyTuple_SET_ITEM(tuple, i, number);
                else
                        Py_CLEAR(tuple);
        }
        return tuple;
}

/* Elements; saturated. */
static Py_ssize_t array_size(const struct ndpy_array *self)
{
        const struct ndbus_array *array = &self->view.array;
        Py_ssize_t n = 1;

        for (int32_t i = 0; i < array->ndim; ++i)
                if (array->shape[i] == 0)
                        return 0;
        for (int32_t i = 0; i < array->ndim; ++i)
                if (__builtin_mul_overflow(n, array->shape[i], &n))
                        return PY_SSIZE_T_MAX;
        return n;
}

/* Bytes of all elements, without the gaps that strides leave; saturated. */
static Py_ssize_t array_nbytes(const struct ndpy_array *self)
{
        Py_ssize_t n = array_size(self), itemsize = ndpy_dtype_itemsize(self->view.dtype);

        if (itemsize == 0)
                return n / 8 * self->view.dtype->bits + (n % 8 * self->view.dtype->bits + 7) / 8;
        return n > PY_SSIZE_T_MAX / itemsize ? PY_SSIZE_T_MAX : n * itemsize;
}

static bool array_is_order(const struct ndpy_array *self, bool fortran)
{
        const struct ndbus_array *array = &self->view.array;
        int64_t step = ndpy_dtype_itemsize(self->view.dtype);

        if (!array->strides)
                return !fortran || array->ndim < 2;
        if (array_size(self) == 0)
                return true;
        for (int32_t j = 0; j < array->ndim; ++j) {
                int32_t i = fortran ? j : array->ndim - 1 - j;

                if (array->shape[i] == 1)
                        continue;
                if (array->strides[i] != step)
                        return false;
                step *= array->shape[i];
        }
        return true;
}

static PyObject *array_get_dtype(PyObject *object, void *unused)
{
        (void)unused;
        return Py_NewRef((PyObject *)((struct ndpy_array *)object)->view.dtype);
}

static PyObject *array_get_shape(PyObject *object, void *unused)
{
        const struct ndbus_array *array = &((struct ndpy_array *)object)->view.array;

        (void)unused;
        return dims_tuple(array->shape, array->ndim);
}

static PyObject *array_get_strides(PyObject *object, void *unused)
{
        const struct ndbus_array *array = &((struct ndpy_array *)object)->view.array;

        (void)unused;
        return array->strides ? dims_tuple(array->strides, array->ndim) : Py_NewRef(Py_None);
}

static PyObject *array_get_ndim(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromLong(((struct ndpy_array *)object)->view.array.ndim);
}

static PyObject *array_get_size(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromSsize_t(array_size((struct ndpy_array *)object));
}

static PyObject *array_get_nbytes(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromSsize_t(array_nbytes((struct ndpy_array *)object));
}

static PyObject *array_get_readonly(PyObject *object, void *unused)
{
        (void)unused;
        return PyBool_FromLong(((struct ndpy_array *)object)->view.array.flags & NDBUS_READ_ONLY);
}

static PyObject *array_get_address(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromVoidPtr(
                (void *)(uintptr_t)((struct ndpy_array *)object)->view.array.data);
}

static PyObject *array_repr(PyObject *object)
{
        struct ndpy_array *self = (struct ndpy_array *)object;
        PyObject *shape = array_get_shape(object, NULL), *result = NULL;

        if (shape)
                result = PyUnicode_FromFormat(
                        "<ndbus.Array %S %R%s>", self->view.dtype, shape,
                        self->view.array.flags & NDBUS_READ_ONLY ? " read-only" : "");
        Py_XDECREF(shape);
        return result;
}

/* --------------------------------------------------------------------------- the buffer protocol */

static int refuse_buffer(Py_buffer *buffer, const char *why)
{
        buffer->obj = NULL;
        PyErr_SetString(PyExc_BufferError, why);
        return -1;
}

static int array_getbuffer(PyObject *object, Py_buffer *buffer, int flags)
{
        struct ndpy_array *self = (struct ndpy_array *)object;
        const struct ndbus_array *array = &self->view.array;
        const bool is_c = array_is_order(self, false), is_f = array_is_order(self, true);
        const bool wants_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
        const char *format = "B";

        buffer->obj = NULL;
        if (flags & PyBUF_WRITABLE && array->flags & NDBUS_READ_ONLY)
                return refuse_buffer(buffer, "the array is read-only: own() of its message gives "
                                             "writable copies");
        if ((!is_c && !wants_strides) ||
            ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !is_c) ||
            ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !is_f) ||
            ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !is_c && !is_f))
                return refuse_buffer(buffer, "the array is not contiguous as was asked for");
        if (flags & PyBUF_FORMAT && !(format = ndpy_dtype_format(self->view.dtype)))
                return -1;
        if (!array->strides && flags & PyBUF_ND)
                return refuse_buffer(buffer, "elements narrower than a byte have no buffer with a "
                                             "shape");
        *buffer = (Py_buffer){
                .buf = (void *)(uintptr_t)array->data,
                .obj = Py_NewRef(object),
                .len = array_nbytes(self),
                .itemsize = array->strides ? ndpy_dtype_itemsize(self->view.dtype) : 1,
                .readonly = (array->flags & NDBUS_READ_ONLY) != 0,
                .ndim = flags & PyBUF_ND ? array->ndim : 1,
                .format = flags & PyBUF_FORMAT ? (char *)(uintptr_t)format : NULL,
                .shape = flags & PyBUF_ND ? self->view.dims : NULL,
                .strides = wants_strides ? self->view.dims + array->ndim : NULL,
        };
        return 0;
}

/* ----------------------------------------------------------------------------------------- NumPy */

/* The bytes that the elements lie in, from the lowest to the highest, as an Array; and where in it
 * the first element begins. */
static PyObject *array_extent(struct ndpy_array *self, Py_ssize_t *ret_offset)
{
        const struct ndbus_array *array = &self->view.array;
        struct ndpy_array *extent = ndpy_array_new();
        struct ndpy_dtype *dtype = extent ? ndpy_dtype_plain(NULL, 8, 0) : NULL;
        int64_t low, high;

        if (!dtype || ndpy_view_extent(&self->view, &low, &high)) {
                Py_XDECREF(dtype);
                Py_XDECREF(extent);
                return NULL;
        }
        ndpy_view_set_dtype(&extent->view, dtype);
        extent->view.array.flags |= array->flags & NDBUS_READ_ONLY;
        extent->view.array.data = (const uint8_t *)array->data + low;
        extent->view.keeper = NDPY_KEEPER_OBJECT;
        extent->view.owner = Py_NewRef((PyObject *)self);
        ndpy_view_set_ndim(&extent->view, 1);
        extent->view.dims[0] = high - low;
        extent->view.dims[1] = 1;
        *ret_offset = (Py_ssize_t)-low;
        return (PyObject *)extent;
}

PyObject *ndpy_array_numpy(struct ndpy_array *self)
{
        const struct ndbus_array *array = &self->view.array;
        PyObject *dtype = ndpy_dtype_numpy(self->view.dtype); /* borrowed */
        PyObject *function = dtype ? ndpy_numpy("ndarray") : NULL;
        PyObject *shape = function ? dims_tuple(array->shape, array->ndim) : NULL;
        PyObject *strides = NULL, *memory = NULL, *result = NULL;
        Py_ssize_t offset = 0;

        if (shape && array_is_order(self, false)) {
                memory = Py_NewRef((PyObject *)self);
                strides = Py_NewRef(Py_None);
        } else if (shape) {
                memory = array_extent(self, &offset);
                strides = memory ? dims_tuple(array->strides, array->ndim) : NULL;
        }
        if (strides)
                result = PyObject_CallFunction(function, "OOOnO", shape, dtype, memory, offset,
                                               strides);
        Py_XDECREF(function);
        Py_XDECREF(shape);
        Py_XDECREF(memory);
        Py_XDECREF(strides);
        return result;
}

PyObject *ndpy_array_best(struct ndpy_array *self)
{
        PyObject *result = ndpy_array_numpy(self);

        if (!result &&
            (ndpy_error_is_set(NDBUS_EUNSUPPORTED) || PyErr_ExceptionMatches(PyExc_ImportError))) {
                PyErr_Clear();
                result = Py_NewRef((PyObject *)self);
        }
        return result;
}

static PyObject *array_numpy(PyObject *object, PyObject *unused)
{
        (void)unused;
        return ndpy_array_numpy((struct ndpy_array *)object);
}

static PyObject *array_array(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"dtype", "copy", NULL};
        PyObject *dtype = Py_None, *copy = Py_None, *view, *result;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$O:__array__", names, &dtype, &copy))
                return NULL;
        view = ndpy_array_numpy((struct ndpy_array *)object);
        if (view && dtype != Py_None) {
                result = PyObject_CallMethod(view, "astype", "OssOO", dtype, "K", "unsafe", Py_True,
                                             Py_False);
                Py_CLEAR(view);
                view = result;
        }
        if (view && copy == Py_True) {
                result = PyObject_CallMethod(view, "copy", NULL);
                Py_CLEAR(view);
                view = result;
        }
        return view;
}

static PyObject *array_get_interface(PyObject *object, void *unused)
{
        struct ndpy_array *self = (struct ndpy_array *)object;
        const struct ndbus_array *array = &self->view.array;
        PyObject *dtype = ndpy_dtype_numpy(self->view.dtype);
        PyObject *typestr = dtype ? PyObject_GetAttrString(dtype, "str") : NULL;
        PyObject *shape = NULL, *strides = NULL, *result = NULL;

        (void)unused;
        /* a typestr of bytes without meaning would be a lie: 'V2' for a bfloat16 */
        if (typestr && PyUnicode_ReadChar(typestr, 1) == 'V' && self->view.dtype->name &&
            strcmp(self->view.dtype->name, "opaque") != 0)
                Py_CLEAR(typestr);
        if (!typestr) {
                PyErr_Clear();
                return PyErr_Format(PyExc_AttributeError,
                                    "__array_interface__ cannot say the dtype %S",
                                    self->view.dtype);
        }
        shape = dims_tuple(array->shape, array->ndim);
        strides = shape ? dims_tuple(array->strides, array->ndim) : NULL;
        if (strides)
                result = Py_BuildValue("{s:i,s:O,s:O,s:O,s:(NO)}", "version", 3, "typestr", typestr,
                                       "shape", shape, "strides", strides, "data",
                                       PyLong_FromVoidPtr((void *)(uintptr_t)array->data),
                                       array->flags & NDBUS_READ_ONLY ? Py_True : Py_False);
        Py_DECREF(typestr);
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        return result;
}

/* ---------------------------------------------------------------------------------------- the type */

PyDoc_STRVAR(
        array_doc,
        "Array(array)\n--\n\n"
        "An n-dimensional array in somebody's memory: any dtype, with or without NumPy.\n\n"
        "Wraps anything that publish() takes, without a copy, and is what a message's frames\n"
        "are. It exports the buffer protocol, __array_interface__, __array__ and __dlpack__, so\n"
        "numpy.asarray(a), torch.from_dlpack(a), memoryview(a) share its memory, and each of\n"
        "them keeps the memory alive.");

static PyMethodDef array_methods[] = {
        {"numpy", array_numpy, METH_NOARGS,
         "numpy()\n--\n\nThe NumPy array on the same memory.\n\n"
         "Raises ImportError without NumPy, UnsupportedError if NumPy has no such dtype."},
        {"__array__", (PyCFunction)(void (*)(void))array_array, METH_VARARGS | METH_KEYWORDS,
         "__array__(dtype=None, *, copy=None)\n--\n\nFor numpy.asarray()."},
        {"__dlpack__", (PyCFunction)(void (*)(void))ndpy_dlpack_export,
         METH_VARARGS | METH_KEYWORDS,
         "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
         "A DLPack capsule, of version 1.0 if max_version allows it.\n\n"
         "BufferError if DLPack cannot say the dtype, if the array is read-only and the consumer\n"
         "cannot be told, or if a copy is needed and copy is False. Big-endian elements are copied\n"
         "into the machine's order."},
        {"__dlpack_device__", ndpy_dlpack_device, METH_NOARGS,
         "__dlpack_device__()\n--\n\n(1, 0): host memory."},
        {NULL, NULL, 0, NULL},
};

static PyGetSetDef array_attributes[] = {
        {"dtype", array_get_dtype, NULL, "DType of the elements", NULL},
        {"shape", array_get_shape, NULL, "elements along each dimension", NULL},
        {"strides", array_get_strides, NULL,
         "bytes between neighbours; None if elements are packed into bytes", NULL},
        {"ndim", array_get_ndim, NULL, "number of dimensions", NULL},
        {"size", array_get_size, NULL, "number of elements", NULL},
        {"nbytes", array_get_nbytes, NULL, "bytes of all elements", NULL},
        {"readonly", array_get_readonly, NULL, "whether the memory must not be written", NULL},
        {"address", array_get_address, NULL, "of the first element, as an int", NULL},
        {"__array_interface__", array_get_interface, NULL, "NumPy's array interface, version 3",
         NULL},
        {NULL, NULL, NULL, NULL, NULL},
};

int ndpy_array_init(PyObject *module)
{
        static PyType_Slot slots[] = {
                {Py_tp_doc, (void *)(uintptr_t)array_doc},
                {Py_tp_new, array_new},
                {Py_tp_dealloc, array_dealloc},
                {Py_tp_traverse, array_traverse},
                {Py_tp_repr, array_repr},
                {Py_tp_methods, array_methods},
                {Py_tp_getset, array_attributes},
                {Py_bf_getbuffer, array_getbuffer},
                {0, NULL},
        };
        static PyType_Spec spec = {.name = "ndbus.Array",
                                   .basicsize = sizeof(struct ndpy_array),
                                   .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   .slots = slots};

        ndpy_array_type = ndpy_add_type(module, &spec);
        return ndpy_array_type ? 0 : -1;
}
