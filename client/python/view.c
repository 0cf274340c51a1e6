/* SPDX-License-Identifier: MIT */

/*
 * Views of other people's arrays
 *
 * An array is taken by the first of these that it has: the buffer protocol, which NumPy and nearly
 * everything in the standard library speaks; __array_interface__, for dtypes that the buffer protocol
 * has no format for; __dlpack__, for the tensors of other libraries; __array__, for what can be made
 * a NumPy array. Nothing is copied but by the last. What a dtype attribute says goes before a format,
 * which cannot tell a date from eight bytes.
 */

#include "client/python/ndpy.h"

int ndpy_view_set_ndim(struct ndpy_view *view, Py_ssize_t ndim)
{
        if (ndim < 0 || ndim > NDBUS_DIMS_MAX) {
                ndpy_raise_text(NDBUS_ESHAPE, "an array has %zd dimensions, the limit is %d", ndim,
                                NDBUS_DIMS_MAX);
                return -1;
        }
        view->dims = view->dims_small;
        if (ndim > NDPY_DIMS_SMALL) {
                view->dims = PyMem_New(int64_t, 2 * (size_t)ndim);
                if (!view->dims) {
                        PyErr_NoMemory();
                        return -1;
                }
        }
        view->array.ndim = (int32_t)ndim;
        view->array.shape = view->dims;
        view->array.strides = view->dims + ndim;
        return 0;
}

void ndpy_view_set_dtype(struct ndpy_view *view, struct ndpy_dtype *dtype)
{
        struct ndbus_array *array = &view->array;

        view->dtype = dtype;
        array->dtype = dtype->name;
        array->bits = dtype->bits;
        array->flags |= dtype->flags;
        array->fields = dtype->fields;
        array->n_fields = dtype->n_fields;
        array->unit = dtype->unit;
        array->unit_count = dtype->unit_count;
}

void ndpy_view_fill_strides(struct ndpy_view *view)
{
        int32_t ndim = view->array.ndim;
        int64_t step = ndpy_dtype_itemsize(view->dtype);

        if (step == 0) {
                view->array.strides = NULL; /* packed bits have none */
                return;
        }
        for (int32_t i = ndim - 1; i >= 0; --i) {
                view->dims[ndim + i] = step;
                /* too big a shape is refused later, by the library at the latest */
                if (view->dims[i] > 0 && __builtin_mul_overflow(step, view->dims[i], &step))
                        step = INT64_MAX;
        }
}

int ndpy_view_extent(const struct ndpy_view *view, int64_t *ret_low, int64_t *ret_high)
{
        const struct ndbus_array *array = &view->array;
        int64_t itemsize = ndpy_dtype_itemsize(view->dtype), size = itemsize ? itemsize : 1, reach;
        bool is_empty = false;

        for (int32_t i = 0; i < array->ndim; ++i) {
                if (array->shape[i] < 0) {
                        ndpy_raise_text(NDBUS_ESHAPE, "shape[%d]: is %lld", i,
                                        (long long)array->shape[i]);
                        return -1;
                }
                is_empty |= array->shape[i] == 0;
        }
        *ret_low = 0;
        *ret_high = is_empty ? 0 : itemsize;
        for (int32_t i = 0; i < array->ndim && !is_empty; ++i) {
                int64_t stride = array->strides ? array->strides[i] : 0;

                if (__builtin_mul_overflow(size, array->shape[i], &size) ||
                    __builtin_mul_overflow(array->shape[i] - 1, stride, &reach) ||
                    __builtin_add_overflow(reach < 0 ? *ret_low : *ret_high, reach,
                                           reach < 0 ? ret_low : ret_high)) {
                        ndpy_raise_text(NDBUS_ESHAPE,
                                        "shape[%d]: is %lld, which makes the array larger than "
                                        "%lld bytes, the limit",
                                        i, (long long)array->shape[i], (long long)INT64_MAX);
                        return -1;
                }
        }
        return 0;
}

static void view_reset(struct ndpy_view *view)
{
        view->array = (struct ndbus_array){0};
        view->dtype = NULL;
        view->keeper = NDPY_KEEPER_NONE;
        view->owner = NULL;
        view->hold = NULL;
        view->dims = view->dims_small;
}

void ndpy_view_deinit(struct ndpy_view *view)
{
        switch (view->keeper) {
        case NDPY_KEEPER_BUFFER:
                PyBuffer_Release(&view->buffer);
                break;
        case NDPY_KEEPER_HOLD:
                ndbus_hold_free(view->hold);
                break;
        case NDPY_KEEPER_TENSOR:
        case NDPY_KEEPER_TENSOR_VERSIONED:
                ndpy_dlpack_delete(view);
                break;
        case NDPY_KEEPER_MALLOC:
                free(view->memory);
                break;
        case NDPY_KEEPER_OBJECT:
        case NDPY_KEEPER_NONE:
                break;
        }
        if (view->dims != view->dims_small)
                PyMem_Free(view->dims);
        Py_XDECREF(view->dtype);
        Py_XDECREF(view->owner);
        view_reset(view);
}

/* An attribute, or NULL without an exception if there is none. */
static PyObject *get_optional(PyObject *object, const char *name)
{
        PyObject *value = PyObject_GetAttrString(object, name);

        if (!value && PyErr_ExceptionMatches(PyExc_AttributeError))
                PyErr_Clear();
        return value;
}

/* The dtype of NumPy's that an object has as an attribute; NULL without an exception if it has none. */
static struct ndpy_dtype *get_numpy_dtype(PyObject *any)
{
        PyObject *attribute = get_optional(any, "dtype");
        struct ndpy_dtype *dtype = NULL;

        if (attribute && PyObject_HasAttrString(attribute, "byteorder"))
                dtype = ndpy_dtype_from_numpy(attribute);
        Py_XDECREF(attribute);
        return dtype;
}

/* ------------------------------------------------------------------------------- another Array */

static int view_from_array(struct ndpy_view *view, struct ndpy_array *array)
{
        const struct ndbus_array *from = &array->view.array;

        if (ndpy_view_set_ndim(view, from->ndim))
                return -1;
        memcpy(view->dims, array->view.dims, 2 * (size_t)from->ndim * sizeof(*view->dims));
        view->array.data = from->data;
        view->array.flags = from->flags;
        if (!from->strides)
                view->array.strides = NULL;
        Py_INCREF(array->view.dtype);
        ndpy_view_set_dtype(view, array->view.dtype);
        view->keeper = NDPY_KEEPER_OBJECT;
        view->owner = Py_NewRef((PyObject *)array);
        return 0;
}

/* --------------------------------------------------------------------------- the buffer protocol */

/* Is the exception one that says "not by this way"? Then it is cleared. */
static bool clear_refusal(void)
{
        if (!PyErr_ExceptionMatches(PyExc_BufferError) &&
            !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_TypeError) &&
            !PyErr_ExceptionMatches(PyExc_NotImplementedError))
                return false;
        PyErr_Clear();
        return true;
}

/* 1: the buffer says less than the dtype, another way is needed. */
static int view_set_buffer_dtype(struct ndpy_view *view, PyObject *any)
{
        const Py_buffer *buffer = &view->buffer;
        struct ndpy_dtype *dtype = NULL;

        if (PyBytes_Check(any) || PyByteArray_Check(any)) {
                dtype = ndpy_dtype_plain(NULL, 8, 0);
        } else {
                if (buffer->format && strcmp(buffer->format, "B") != 0)
                        dtype = ndpy_dtype_from_format(buffer->format, buffer->itemsize);
                if (!dtype && !PyErr_Occurred())
                        dtype = get_numpy_dtype(any);
                if (!dtype && !PyErr_Occurred())
                        dtype = ndpy_dtype_from_format(buffer->format, buffer->itemsize);
        }
        if (!dtype) {
                if (!PyErr_Occurred())
                        ndpy_raise_text(NDBUS_EDTYPE,
                                        "a buffer of %.100s has the format '%.100s', which has no "
                                        "name on the wire",
                                        Py_TYPE(any)->tp_name, buffer->format);
                return -1;
        }
        if (ndpy_dtype_itemsize(dtype) != buffer->itemsize) {
                Py_DECREF(dtype);
                return 1;
        }
        ndpy_view_set_dtype(view, dtype);
        return 0;
}

/* 1: there is no buffer that says what the array is. */
static int view_from_buffer(struct ndpy_view *view, PyObject *any)
{
        const Py_buffer *buffer = &view->buffer;
        int r;

        if (!PyObject_CheckBuffer(any))
                return 1;
        if (PyObject_GetBuffer(any, &view->buffer, PyBUF_FULL_RO))
                return clear_refusal() ? 1 : -1;
        view->keeper = NDPY_KEEPER_BUFFER;
        if (buffer->suboffsets) {
                ndpy_raise_text(NDBUS_ESHAPE,
                                "a buffer of %.100s is scattered over memory "
                                "(suboffsets): send a copy of it",
                                Py_TYPE(any)->tp_name);
                return -1;
        }
        if (ndpy_view_set_ndim(view, buffer->ndim))
                return -1;
        view->array.data = buffer->buf;
        view->array.flags = buffer->readonly ? NDBUS_READ_ONLY : 0;
        r = view_set_buffer_dtype(view, any);
        for (int i = 0; r == 0 && i < buffer->ndim; ++i) {
                view->dims[i] = buffer->shape[i];
                if (buffer->strides) /* some exporters leave them out though they were asked for */
                        view->dims[buffer->ndim + i] = buffer->strides[i];
        }
        if (r == 0 && !buffer->strides)
                ndpy_view_fill_strides(view);
        if (r == 1) {
                PyBuffer_Release(&view->buffer);
                if (view->dims != view->dims_small)
                        PyMem_Free(view->dims);
                view_reset(view);
        }
        return r;
}

/* --------------------------------------------------------------------------- __array_interface__ */

static int interface_data(struct ndpy_view *view, PyObject *interface, PyObject *any)
{
        PyObject *data = PyDict_GetItemString(interface, "data");
        PyObject *offset = PyDict_GetItemString(interface, "offset");
        unsigned long long address;
        int is_read_only;

        if (data && PyTuple_Check(data)) {
                if (!PyArg_ParseTuple(data,
                                      "Kp;__array_interface__['data'] is (address, read-only)",
                                      &address, &is_read_only))
                        return -1;
                view->array.data = (const void *)(uintptr_t)address;
                view->array.flags |= is_read_only ? NDBUS_READ_ONLY : 0;
                view->keeper = NDPY_KEEPER_OBJECT;
                view->owner = Py_NewRef(any);
                return 0;
        }
        if (PyObject_GetBuffer(data && data != Py_None ? data : any, &view->buffer, PyBUF_SIMPLE))
                return -1;
        view->keeper = NDPY_KEEPER_BUFFER;
        view->array.flags |= view->buffer.readonly ? NDBUS_READ_ONLY : 0;
        view->array.data = view->buffer.buf;
        if (offset && PyLong_Check(offset)) {
                Py_ssize_t n = PyLong_AsSsize_t(offset);

                if (n < 0 || n > view->buffer.len) {
                        if (!PyErr_Occurred())
                                ndpy_raise_text(NDBUS_ESHAPE,
                                                "__array_interface__['offset'] is "
                                                "%zd, the data has %zd bytes",
                                                n, view->buffer.len);
                        return -1;
                }
                view->array.data = (const uint8_t *)view->buffer.buf + n;
        }
        return 0;
}

int ndpy_convert_dim(PyObject *number, const char *name, int64_t *ret)
{
        PyObject *index = PyNumber_Index(number);

        *ret = index ? PyLong_AsLongLong(index) : -1;
        if (PyErr_Occurred() && index && PyErr_ExceptionMatches(PyExc_OverflowError)) {
                PyErr_Clear();
                ndpy_raise_value(NDBUS_ESHAPE, name, index, "the limit is %lld",
                                 (long long)INT64_MAX);
        }
        Py_XDECREF(index);
        return PyErr_Occurred() ? -1 : 0;
}

/* A tuple of ints of the length ndim. */
static int interface_dims(PyObject *tuple, int32_t ndim, int64_t *dims, const char *key)
{
        if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != ndim) {
                ndpy_raise_text(NDBUS_ESHAPE, "__array_interface__['%s'] is no tuple of %d", key,
                                ndim);
                return -1;
        }
        for (int32_t i = 0; i < ndim; ++i)
                if (ndpy_convert_dim(PyTuple_GET_ITEM(tuple, i), key, &dims[i]))
                        return -1;
        return 0;
}

static struct ndpy_dtype *interface_dtype(PyObject *interface, PyObject *any)
{
        struct ndpy_dtype *dtype = get_numpy_dtype(any);
        PyObject *typestr = PyDict_GetItemString(interface, "typestr");
        PyObject *descr = PyDict_GetItemString(interface, "descr");
        const char *text;

        if (dtype || PyErr_Occurred())
                return dtype;
        text = typestr && PyUnicode_Check(typestr) ? PyUnicode_AsUTF8(typestr) : NULL;
        if (!text || strlen(text) < 2) {
                ndpy_raise_text(NDBUS_EDTYPE, "__array_interface__['typestr'] is missing");
                return NULL;
        }
        return ndpy_dtype_from_any(text[1] == 'V' && descr ? descr : typestr);
}

/* If the data is a buffer, the array lies in it: that is checked, an address is believed. */
static int interface_check_extent(const struct ndpy_view *view)
{
        int64_t low, high, start;

        if (ndpy_view_extent(view, &low, &high))
                return -1;
        if (view->keeper != NDPY_KEEPER_BUFFER)
                return 0;
        start = (const uint8_t *)view->array.data - (const uint8_t *)view->buffer.buf;
        if (start + low < 0 || high > view->buffer.len - start) {
                ndpy_raise_text(NDBUS_ESHAPE,
                                "__array_interface__: the array reaches beyond its data of %zd "
                                "bytes",
                                view->buffer.len);
                return -1;
        }
        return 0;
}

/* 1: there is none. */
static int view_from_interface(struct ndpy_view *view, PyObject *any)
{
        PyObject *interface = get_optional(any, "__array_interface__");
        PyObject *shape, *strides, *mask;
        struct ndpy_dtype *dtype;
        int r = -1;

        if (!interface)
                return PyErr_Occurred() ? -1 : 1;
        shape = PyDict_Check(interface) ? PyDict_GetItemString(interface, "shape") : NULL;
        if (!shape || !PyTuple_Check(shape)) {
                ndpy_raise_text(NDBUS_ESHAPE, "__array_interface__['shape'] is no tuple");
                goto out;
        }
        strides = PyDict_GetItemString(interface, "strides");
        mask = PyDict_GetItemString(interface, "mask");
        if (mask && mask != Py_None) {
                ndpy_raise_text(NDBUS_EDTYPE, "a masked array is two: send its data and its mask");
                goto out;
        }
        if (ndpy_view_set_ndim(view, PyTuple_GET_SIZE(shape)) ||
            interface_dims(shape, view->array.ndim, view->dims, "shape") ||
            !(dtype = interface_dtype(interface, any)))
                goto out;
        ndpy_view_set_dtype(view, dtype);
        ndpy_view_fill_strides(view);
        if (strides && strides != Py_None &&
            interface_dims(strides, view->array.ndim, view->dims + view->array.ndim, "strides"))
                goto out;
        r = interface_data(view, interface, any);
        r = r ? r : interface_check_extent(view);
out:
        Py_DECREF(interface);
        return r;
}

/* ---------------------------------------------------------------------------------------- anything */

/* By way of numpy.asarray(), for what has __array__ and for NumPy's own scalars. */
static int view_from_asarray(struct ndpy_view *view, PyObject *any)
{
        PyObject *asarray, *array;
        int r;

        if (!PyObject_HasAttrString(any, "__array__") || !(asarray = ndpy_numpy("asarray"))) {
                if (!PyErr_Occurred())
                        PyErr_Format(
                                PyExc_TypeError,
                                "%.100s is no array: it has neither a buffer nor __dlpack__ nor "
                                "__array_interface__",
                                Py_TYPE(any)->tp_name);
                return -1;
        }
        array = PyObject_CallOneArg(asarray, any);
        Py_DECREF(asarray);
        if (!array)
                return -1;
        r = view_from_buffer(view, array);
        if (r == 1)
                r = view_from_interface(view, array);
        Py_DECREF(array);
        return r;
}

/* A scalar of NumPy's: its __array_interface__ names memory that is gone already. -1: failed. */
static int is_numpy_scalar(PyObject *any)
{
        PyObject *name = PyUnicode_InternFromString("numpy");
        PyObject *numpy =
                name ? PyImport_GetModule(name) : NULL; /* NULL: not imported, no scalars */
        PyObject *generic =
                numpy && numpy != Py_None ? PyObject_GetAttrString(numpy, "generic") : NULL;
        int r = generic ? PyObject_IsInstance(any, generic) : PyErr_Occurred() ? -1 : 0;

        Py_XDECREF(name);
        Py_XDECREF(numpy);
        Py_XDECREF(generic);
        return r;
}

/* One of NumPy's masked arrays: its buffer is its data alone. */
static bool is_masked(PyObject *any)
{
        return strcmp(Py_TYPE(any)->tp_name, "numpy.ndarray") != 0 &&
               PyObject_HasAttrString(any, "mask") && PyObject_HasAttrString(any, "filled");
}

/* Through the ways in their order; 1: by none. */
static int view_from_any(struct ndpy_view *view, PyObject *any)
{
        int r;

        if (Py_IS_TYPE(any, ndpy_array_type))
                return view_from_array(view, (struct ndpy_array *)any);
        if (is_masked(any)) {
                ndpy_raise_text(NDBUS_EDTYPE, "a masked array is two: send a list of its data and "
                                              "its mask, or publish_object() it");
                return -1;
        }
        r = view_from_buffer(view, any);
        if (r != 1)
                return r;
        r = is_numpy_scalar(any);
        if (r)
                return r;
        r = view_from_interface(view, any);
        if (r == 1 && PyObject_HasAttrString(any, "__dlpack__"))
                r = ndpy_dlpack_import(view, any);
        return r;
}

int ndpy_view_from(struct ndpy_view *view, PyObject *any)
{
        int r;

        view_reset(view);
        r = view_from_any(view, any);
        if (r == 1)
                r = view_from_asarray(view, any);
        if (r)
                ndpy_view_deinit(view);
        return r;
}

int ndpy_view_from_message(struct ndpy_view *view,
                           struct ndbus_message *m,
                           size_t i_array,
                           PyObject *owner)
{
        const struct ndbus_array *array;
        struct ndpy_dtype *dtype;
        int32_t n_lanes_dims;

        ndbus_message_arrays(m, &array);
        array += i_array;
        n_lanes_dims = array->lanes > 1 ? 1 : 0;
        dtype = ndpy_dtype_from_array(array);
        if (!dtype)
                return -1;
        view->array.flags = array->flags;
        ndpy_view_set_dtype(view, dtype);
        if (ndpy_view_set_ndim(view, array->ndim + n_lanes_dims))
                return -1;
        /* the lanes of vectors are one dimension more: nothing in Python has them */
        if (array->ndim)
                memcpy(view->dims, array->shape, (size_t)array->ndim * sizeof(*view->dims));
        if (n_lanes_dims)
                view->dims[array->ndim] = array->lanes;
        ndpy_view_fill_strides(view);
        if (array->strides && array->ndim)
                memcpy(view->dims + array->ndim + n_lanes_dims, array->strides,
                       (size_t)array->ndim * sizeof(*view->dims));
        view->array.data = array->data;
        view->hold = ndbus_message_hold(m, i_array);
        view->keeper = NDPY_KEEPER_HOLD;
        view->owner = Py_XNewRef(owner);
        return 0;
}

/* ---------------------------------------------------------------------------------- many of them */

int ndpy_views_init(struct ndpy_views *views, PyObject *any)
{
        PyObject *list;
        Py_ssize_t n;

        views->n = 0;
        views->views = &views->one;
        views->arrays = &views->one_array;
        if (!PyList_Check(any) && !PyTuple_Check(any)) {
                if (ndpy_view_from(&views->one, any))
                        return -1;
                views->n = 1;
                views->one_array = views->one.array;
                views->one_array.flags &= ~(uint32_t)NDBUS_READ_ONLY;
                return 0;
        }
        /* a tuple of its own: viewing an item may run code that changes a list */
        list = PySequence_Tuple(any);
        if (!list)
                return -1;
        n = PyTuple_GET_SIZE(list);
        views->views = PyMem_New(struct ndpy_view, (size_t)n + 1);
        views->arrays = PyMem_New(struct ndbus_array, (size_t)n + 1);
        if (!views->views || !views->arrays)
                PyErr_NoMemory();
        for (Py_ssize_t i = 0; !PyErr_Occurred() && i < n; ++i) {
                if (ndpy_view_from(&views->views[i], PyTuple_GET_ITEM(list, i)))
                        break;
                views->arrays[i] = views->views[i].array;
                /* what it says of the sender's memory means nothing for the receiver's */
                views->arrays[i].flags &= ~(uint32_t)NDBUS_READ_ONLY;
                ++views->n;
        }
        Py_DECREF(list);
        if (!PyErr_Occurred())
                return 0;
        ndpy_views_deinit(views);
        return -1;
}

void ndpy_views_deinit(struct ndpy_views *views)
{
        for (size_t i = 0; i < views->n; ++i)
                ndpy_view_deinit(&views->views[i]);
        views->n = 0;
        if (views->views != &views->one) {
                PyMem_Free(views->views);
                PyMem_Free(views->arrays);
        }
        views->views = &views->one;
}
