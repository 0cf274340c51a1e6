/* SPDX-License-Identifier: MIT */

/*
 * The module ndbus._ndbus, and what its parts need everywhere
 *
 * Nothing but the standard library is imported before it is needed: NumPy is asked for when the first
 * array is to be a NumPy array, and is never built with.
 */

#include <limits.h>
#include <math.h>
#include "client/python/ndpy.h"

PyObject *ndpy_import(const char *module, const char *name)
{
        PyObject *m = PyImport_ImportModule(module), *result;

        if (!m)
                return NULL;
        result = PyObject_GetAttrString(m, name);
        Py_DECREF(m);
        return result;
}

PyObject *ndpy_numpy(const char *name)
{
        PyObject *result = ndpy_import("numpy", name);

        if (!result && PyErr_ExceptionMatches(PyExc_ImportError))
                PyErr_Clear();
        return result;
}

/* Too large an int is as good as infinite. False with an exception. */
static bool read_seconds(PyObject *seconds, double *ret)
{
        PyObject *zero;
        int is_negative;

        *ret = PyFloat_AsDouble(seconds);
        if (*ret != -1.0 || !PyErr_Occurred())
                return true;
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
                return false;
        PyErr_Clear();
        zero = PyLong_FromLong(0);
        is_negative = zero ? PyObject_RichCompareBool(seconds, zero, Py_LT) : -1;
        Py_XDECREF(zero);
        *ret = is_negative ? -(double)INFINITY : (double)INFINITY;
        return is_negative >= 0;
}

int ndpy_convert_time(PyObject *seconds, void *time)
{
        struct ndpy_time *to = time;
        double s = (double)INFINITY;

        if (seconds != Py_None && !read_seconds(seconds, &s))
                return 0;
        if (to->is_limited && !(s > 0 && s * 1000 <= INT_MAX)) { /* nor NaN */
                ndpy_raise_value(NDBUS_EINVAL, to->name, seconds,
                                 "must be more than 0 and at most %d.%03d seconds", INT_MAX / 1000,
                                 INT_MAX % 1000);
                return 0;
        }
        if (!(s >= 0)) {
                ndpy_raise_value(NDBUS_EINVAL, to->name, seconds,
                                 "must be at least 0 seconds, or None for no limit");
                return 0;
        }
        to->ms = s * 1000 <= INT_MAX ? (int)ceil(s * 1000) : -1;
        return 1;
}

int ndpy_convert_timeout(PyObject *seconds, void *ret_ms)
{
        struct ndpy_time time = {.name = "timeout"};

        if (!ndpy_convert_time(seconds, &time))
                return 0;
        *(int *)ret_ms = time.ms;
        return 1;
}

int ndpy_convert_count(PyObject *number, void *count)
{
        struct ndpy_count *to = count;
        PyObject *index = PyNumber_Index(number);
        unsigned long long value = 0;
        bool is_beyond = false;

        if (index)
                value = PyLong_AsUnsignedLongLong(index);
        if (index && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError)) {
                PyErr_Clear();
                is_beyond = true; /* negative, or more than 64 bits */
        }
        if (!PyErr_Occurred() && (is_beyond || value < to->min || value > to->max))
                ndpy_raise_value(NDBUS_EINVAL, to->name, index, "must be %llu to %llu",
                                 (unsigned long long)to->min, (unsigned long long)to->max);
        Py_XDECREF(index);
        if (PyErr_Occurred())
                return 0;
        to->value = value;
        return 1;
}

PyObject *ndpy_call_python(
        const char *module, const char *name, PyObject *self, PyObject *args, PyObject *keywords)
{
        PyObject *function = ndpy_import(module, name);
        PyObject *first = function ? PyTuple_Pack(1, self) : NULL;
        PyObject *all = first ? PySequence_Concat(first, args) : NULL;
        PyObject *result = all ? PyObject_Call(function, all, keywords) : NULL;

        Py_XDECREF(function);
        Py_XDECREF(first);
        Py_XDECREF(all);
        return result;
}

PyTypeObject *ndpy_add_type(PyObject *module, PyType_Spec *spec)
{
        PyObject *type = PyType_FromSpec(spec);
        const char *name = strrchr(spec->name, '.') + 1;

        if (type && PyModule_AddObjectRef(module, name, type))
                Py_CLEAR(type);
        return (PyTypeObject *)type;
}

PyTypeObject *ndpy_add_counts_type(PyObject *module, PyStructSequence_Desc *description)
{
        PyTypeObject *type = PyStructSequence_NewType(description);
        const char *name = strrchr(description->name, '.') + 1;

        if (type && PyModule_AddObjectRef(module, name, (PyObject *)type))
                Py_CLEAR(type);
        return type;
}

PyObject *ndpy_counts(PyTypeObject *type, const uint64_t *counts, size_t n)
{
        PyObject *result = PyStructSequence_New(type);

        for (size_t i = 0; result && i < n; ++i) {
                PyObject *number = PyLong_FromUnsignedLongLong(counts[i]);

                if (number)
                        PyStructSequence_SetItem(result, (Py_ssize_t)i, number);
                else
                        Py_CLEAR(result);
        }
        return result;
}

static PyObject *module_timeout(PyObject *module, PyObject *seconds)
{
        int ms;

        (void)module;
        if (!ndpy_convert_timeout(seconds, &ms))
                return NULL;
        return ms < 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble(ms / 1000.0);
}

static PyObject *module_version(PyObject *module, PyObject *unused)
{
        unsigned int version = ndbus_version();

        (void)module;
        (void)unused;
        return PyUnicode_FromFormat("%u.%u.%u", version >> 16, version >> 8 & 255, version & 255);
}

PyDoc_STRVAR(pack_doc,
             "pack(arrays, meta=None)\n--\n\n"
             "Arrays and meta as one self-describing record: an Array of bytes.\n\n"
             "What dump() writes; use that.");

PyDoc_STRVAR(dumps_doc,
             "dumps(arrays, meta=None)\n--\n\n"
             "An array, or a list of arrays, and meta as self-describing bytes.\n\n"
             "dtype, shape and order of axes are kept; views with gaps become C order. Takes what\n"
             "publish() takes. loads() and unpack() read it, and `ndbus unpack`.");

PyDoc_STRVAR(unpack_doc,
             "unpack(data, offset=0)\n--\n\n"
             "The message at the offset of bytes-like data, and the offset of the next.\n\n"
             "Nothing is copied: the message's arrays lie in data and keep it alive.\n"
             "Raises CorruptError or TruncatedError if there is no whole record.");

PyDoc_STRVAR(describe_doc,
             "describe(buffer)\n--\n\n"
             "(address, format, itemsize, shape, strides, readonly) of a buffer.");

PyDoc_STRVAR(memory_doc,
             "memory(address, n, owner)\n--\n\n"
             "The bytes at an address as an Array that keeps owner alive.");

PyDoc_STRVAR(shaped_doc,
             "shaped(memory, format, itemsize, shape, strides, offset)\n--\n\n"
             "An Array within memory whose buffer has just this format and layout.");

PyDoc_STRVAR(
        has_no_large_doc,
        "has_no_large(object)\n--\n\n"
        "A pickler's persistent_id: None for all, but LookupError for a bytes or bytearray of\n"
        "LARGE or more bytes.");

PyDoc_STRVAR(
        timeout_doc,
        "timeout(seconds)\n--\n\n"
        "As every call takes it: None if there is no limit, else seconds, to the millisecond.");

PyDoc_STRVAR(version_doc, "version()\n--\n\nVersion of the C library, as 'major.minor.patch'.");

static PyMethodDef methods[] = {
        {"pack", (PyCFunction)(void (*)(void))ndpy_pack, METH_VARARGS | METH_KEYWORDS, pack_doc},
        {"dumps", (PyCFunction)(void (*)(void))ndpy_dumps, METH_VARARGS | METH_KEYWORDS, dumps_doc},
        {"unpack", (PyCFunction)(void (*)(void))ndpy_unpack, METH_VARARGS | METH_KEYWORDS,
         unpack_doc},
        {"describe", ndpy_describe, METH_O, describe_doc},
        {"memory", (PyCFunction)(void (*)(void))ndpy_memory, METH_VARARGS, memory_doc},
        {"shaped", (PyCFunction)(void (*)(void))ndpy_shaped, METH_VARARGS, shaped_doc},
        {"has_no_large", ndpy_has_no_large, METH_O, has_no_large_doc},
        {"timeout", module_timeout, METH_O, timeout_doc},
        {"version", module_version, METH_NOARGS, version_doc},
        {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
        .m_base = PyModuleDef_HEAD_INIT,
        .m_name = "ndbus._ndbus",
        .m_doc = "The C half of the package ndbus.",
        .m_size = -1,
        .m_methods = methods,
};

PyMODINIT_FUNC PyInit__ndbus(void); /* found by its name alone */

PyMODINIT_FUNC PyInit__ndbus(void)
{
        PyObject *module = PyModule_Create(&definition);

        if (module &&
            (ndpy_error_init(module) || ndpy_meta_init(module) || ndpy_dtype_init(module) ||
             ndpy_array_init(module) || ndpy_message_init(module) ||
             ndpy_subscription_init(module) || ndpy_loan_init(module) || ndpy_bus_init(module)))
                Py_CLEAR(module);
        if (module && PyModule_AddIntConstant(module, "LARGE", NDPY_LARGE_BYTES))
                Py_CLEAR(module);
        return module;
}
