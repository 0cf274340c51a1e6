/* SPDX-License-Identifier: MIT */

/*
 * meta: a dict, and the msgpack map that it travels as
 *
 * None, bool, int, float, str, bytes-like, list and tuple, dict; NumPy's scalars as what they are.
 * Nothing is guessed: what msgpack cannot say is refused by the name of its place. Types of msgpack's
 * that Python does not have come as Extension(code, data) and go the same way. Packing is bounded by
 * the limits that the receiver's scan has, so that what was packed can be read.
 */

#include <msgpack.h>
#include "client/python/ndpy.h"
#include "protocol/limit.h"

static PyObject *extension_type;

int ndpy_meta_init(PyObject *module)
{
        PyObject *namedtuple = ndpy_import("collections", "namedtuple");

        extension_type =
                namedtuple ? PyObject_CallFunction(namedtuple, "s(ss)", "Extension", "code", "data")
                           : NULL;
        Py_XDECREF(namedtuple);
        if (!extension_type)
                return -1;
        PyObject *name = PyUnicode_FromString("ndbus");
        int r = name ? PyObject_SetAttrString(extension_type, "__module__", name) : -1;

        Py_XDECREF(name);
        return r ? r : PyModule_AddObjectRef(module, "Extension", extension_type);
}

static int pack_any(msgpack_packer *packer, PyObject *any, unsigned depth);

/* What an msgpack function returned: it fails for want of memory alone. */
static int packed(int r)
{
        if (r)
                PyErr_NoMemory();
        return r ? -1 : 0;
}

static int pack_int(msgpack_packer *packer, PyObject *number)
{
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
        unsigned long long big;

        if (overflow == 0)
                return value == -1 && PyErr_Occurred() ? -1
                                                       : packed(msgpack_pack_int64(packer, value));
        big = overflow > 0 ? PyLong_AsUnsignedLongLong(number) : 0;
        if (overflow < 0 || PyErr_Occurred()) {
                PyErr_Clear();
                PyErr_Format(PyExc_OverflowError, "meta: %R does not fit 64 bits", number);
                return -1;
        }
        return packed(msgpack_pack_uint64(packer, big));
}

static int pack_string(msgpack_packer *packer, PyObject *string)
{
        Py_ssize_t n;
        const char *text = PyUnicode_AsUTF8AndSize(string, &n);

        if (!text)
                return -1;
        return packed(msgpack_pack_str(packer, (size_t)n) ||
                      msgpack_pack_str_body(packer, text, (size_t)n));
}

static int pack_sequence(msgpack_packer *packer, PyObject *sequence, unsigned depth)
{
        PyObject *fast = PySequence_Fast(sequence, "meta: not a sequence");
        Py_ssize_t n;
        int r;

        if (!fast)
                return -1;
        n = PySequence_Fast_GET_SIZE(fast);
        r = packed(msgpack_pack_array(packer, (size_t)n));
        for (Py_ssize_t i = 0; i < n && !r; ++i) {
                /* held: packing an item may run code of its type */
                PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(fast, i));

                r = pack_any(packer, item, depth + 1);
                Py_DECREF(item);
                if (!r && PySequence_Fast_GET_SIZE(fast) != n) {
                        PyErr_SetString(PyExc_RuntimeError, "meta: a list changed while packed");
                        r = -1;
                }
        }
        Py_DECREF(fast);
        return r;
}

static int pack_dict(msgpack_packer *packer, PyObject *dict, unsigned depth)
{
        PyObject *items = PyDict_Items(dict); /* a copy: packing an item may run code of its type */
        Py_ssize_t n;
        int r;

        if (!items)
                return -1;
        n = PyList_GET_SIZE(items);
        r = packed(msgpack_pack_map(packer, (size_t)n));
        for (Py_ssize_t i = 0; i < n && !r; ++i) {
                PyObject *item = PyList_GET_ITEM(items, i);

                r = pack_any(packer, PyTuple_GET_ITEM(item, 0), depth + 1);
                r = r ? r : pack_any(packer, PyTuple_GET_ITEM(item, 1), depth + 1);
        }
        Py_DECREF(items);
        return r;
}

static int pack_bytes(msgpack_packer *packer, PyObject *bytes)
{
        Py_buffer view;
        int r;

        if (PyObject_GetBuffer(bytes, &view, PyBUF_SIMPLE))
                return -1;
        r = packed((uint64_t)view.len > UINT32_MAX || msgpack_pack_bin(packer, (size_t)view.len) ||
                   msgpack_pack_bin_body(packer, view.buf, (size_t)view.len));
        PyBuffer_Release(&view);
        return r;
}

static int pack_extension(msgpack_packer *packer, PyObject *extension)
{
        Py_buffer view;
        int code, r;

        if (!PyArg_ParseTuple(extension, "iy*;meta: an Extension is (code, data)", &code, &view))
                return -1;
        if (code < -128 || code > 127) {
                PyErr_Format(PyExc_ValueError, "meta: Extension code %d is not in -128 to 127",
                             code);
                r = -1;
        } else {
                r = packed(msgpack_pack_ext(packer, (size_t)view.len, (int8_t)code) ||
                           msgpack_pack_ext_body(packer, view.buf, (size_t)view.len));
        }
        PyBuffer_Release(&view);
        return r;
}

/* NumPy's scalars have item(), which gives the Python object that they are. */
static int pack_scalar(msgpack_packer *packer, PyObject *scalar, unsigned depth)
{
        PyObject *item = NULL;
        int r;

        if (PyObject_HasAttrString(scalar, "dtype") && PyObject_HasAttrString(scalar, "ndim"))
                item = PyObject_CallMethod(scalar, "item", NULL);
        else
                PyErr_Clear();
        if (!item || Py_TYPE(item) == Py_TYPE(scalar)) {
                Py_XDECREF(item);
                PyErr_Format(PyExc_TypeError,
                             "meta: %.100s cannot be said in msgpack; None, bool, int, float, str, "
                             "bytes, list and dict can",
                             Py_TYPE(scalar)->tp_name);
                return -1;
        }
        r = pack_any(packer, item, depth + 1);
        Py_DECREF(item);
        return r;
}

static int pack_any(msgpack_packer *packer, PyObject *any, unsigned depth)
{
        if (depth > ND_SCAN_DEPTH_MAX) {
                PyErr_Format(PyExc_ValueError, "meta: is nested deeper than %u levels",
                             ND_SCAN_DEPTH_MAX);
                return -1;
        }
        if (any == Py_None)
                return packed(msgpack_pack_nil(packer));
        if (any == Py_True)
                return packed(msgpack_pack_true(packer));
        if (any == Py_False)
                return packed(msgpack_pack_false(packer));
        if (PyLong_Check(any))
                return pack_int(packer, any);
        if (PyFloat_Check(any))
                return packed(msgpack_pack_double(packer, PyFloat_AS_DOUBLE(any)));
        if (PyUnicode_Check(any))
                return pack_string(packer, any);
        if (PyDict_Check(any))
                return pack_dict(packer, any, depth);
        if (Py_IS_TYPE(any, (PyTypeObject *)extension_type))
                return pack_extension(packer, any);
        if (PyList_Check(any) || PyTuple_Check(any))
                return pack_sequence(packer, any, depth);
        if (PyBytes_Check(any) || PyByteArray_Check(any) || PyMemoryView_Check(any))
                return pack_bytes(packer, any);
        return pack_scalar(packer, any, depth);
}

PyObject *ndpy_meta_pack(PyObject *dict)
{
        msgpack_sbuffer buffer;
        msgpack_packer packer;
        PyObject *bytes = NULL;

        if (!PyDict_Check(dict))
                return PyErr_Format(PyExc_TypeError, "meta: must be a dict, not %.100s",
                                    Py_TYPE(dict)->tp_name);
        msgpack_sbuffer_init(&buffer);
        msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
        if (pack_any(&packer, dict, 1) == 0)
                bytes = PyBytes_FromStringAndSize(buffer.data, (Py_ssize_t)buffer.size);
        msgpack_sbuffer_destroy(&buffer);
        return bytes;
}

static PyObject *unpack_any(const msgpack_object *o, bool is_key);

/* A list, or as a key of a dict a tuple. */
static PyObject *unpack_array(const msgpack_object_array *array, bool is_key)
{
        PyObject *result = is_key ? PyTuple_New(array->size) : PyList_New(array->size);

        for (uint32_t i = 0; result && i < array->size; ++i) {
                PyObject *item = unpack_any(&array->ptr[i], is_key);

                if (!item)
                        Py_CLEAR(result);
                else if (is_key)
                        PyTuple_SET_ITEM(result, i, item);
                else
                        PyList_SET_ITEM(result, i, item);
        }
        return result;
}

static PyObject *unpack_map(const msgpack_object_map *map)
{
        PyObject *result = PyDict_New();

        for (uint32_t i = 0; result && i < map->size; ++i) {
                PyObject *key = unpack_any(&map->ptr[i].key, true);
                PyObject *value = key ? unpack_any(&map->ptr[i].val, false) : NULL;

                if (!value || PyDict_SetItem(result, key, value))
                        Py_CLEAR(result);
                Py_XDECREF(key);
                Py_XDECREF(value);
        }
        return result;
}

static PyObject *unpack_any(const msgpack_object *o, bool is_key)
{
        switch (o->type) {
        case MSGPACK_OBJECT_NIL:
                return Py_NewRef(Py_None);
        case MSGPACK_OBJECT_BOOLEAN:
                return PyBool_FromLong(o->via.boolean);
        case MSGPACK_OBJECT_POSITIVE_INTEGER:
                return PyLong_FromUnsignedLongLong(o->via.u64);
        case MSGPACK_OBJECT_NEGATIVE_INTEGER:
                return PyLong_FromLongLong(o->via.i64);
        case MSGPACK_OBJECT_FLOAT32:
        case MSGPACK_OBJECT_FLOAT64:
                return PyFloat_FromDouble(o->via.f64);
        case MSGPACK_OBJECT_STR:
                return PyUnicode_DecodeUTF8(o->via.str.ptr, o->via.str.size, "strict");
        case MSGPACK_OBJECT_BIN:
                return PyBytes_FromStringAndSize(o->via.bin.ptr, o->via.bin.size);
        case MSGPACK_OBJECT_ARRAY:
                return unpack_array(&o->via.array, is_key);
        case MSGPACK_OBJECT_MAP:
                if (is_key)
                        return ndpy_raise_text(NDBUS_EMETA, "meta: a key is a map, which a dict "
                                                            "cannot have for one");
                return unpack_map(&o->via.map);
        case MSGPACK_OBJECT_EXT:
                return PyObject_CallFunction(extension_type, "iy#", (int)o->via.ext.type,
                                             o->via.ext.ptr, (Py_ssize_t)o->via.ext.size);
        }
        return ndpy_raise_text(NDBUS_EMETA, "meta: msgpack type %d is not known", (int)o->type);
}

PyObject *ndpy_meta_unpack(const void *bytes, size_t n_bytes)
{
        msgpack_unpacked unpacked;
        msgpack_unpack_return r;
        PyObject *result = NULL;
        size_t at = 0;

        if (n_bytes == 0)
                return PyDict_New();
        msgpack_unpacked_init(&unpacked);
        r = msgpack_unpack_next(&unpacked, bytes, n_bytes, &at);
        if (r == MSGPACK_UNPACK_NOMEM_ERROR)
                PyErr_NoMemory();
        else if (r != MSGPACK_UNPACK_SUCCESS)
                ndpy_raise_text(NDBUS_EMETA, "meta: is not msgpack");
        else
                result = unpack_any(&unpacked.data, false);
        msgpack_unpacked_destroy(&unpacked);
        return result;
}
