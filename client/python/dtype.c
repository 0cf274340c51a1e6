/* SPDX-License-Identifier: MIT */

/*
 * DType: what the elements of an array are
 *
 * Three languages say it: the library (a name, a width, fields), NumPy (a numpy.dtype object) and the
 * buffer protocol (a format). The library's is the one that is kept; the others are made of it, or
 * it of them, here. NumPy is read by the attributes of its objects, so neither its headers nor its
 * version matter, and dtypes of other packages (ml_dtypes) are found by their names.
 */

#include "protocol/dtype.h"
#include "client/python/ndpy.h"
#include "protocol/limit.h"

PyTypeObject *ndpy_dtype_type;

/* numpy.dtype -> DType: what a program uses is few, and reading a record takes long */
static PyObject *numpy_known;
#define NUMPY_KNOWN_MAX 256

/* The dtype that was last received: that of the next message too, most often. */
static struct ndpy_dtype *last_received;

/* ------------------------------------------------------------------------------------ fields */

static void fields_free(struct ndbus_field *fields, uint32_t n)
{
        for (uint32_t i = 0; fields && i < n; ++i) {
                PyMem_Free((char *)(uintptr_t)fields[i].name);
                PyMem_Free((char *)(uintptr_t)fields[i].dtype);
                PyMem_Free((char *)(uintptr_t)fields[i].unit);
                PyMem_Free((int64_t *)(uintptr_t)fields[i].shape);
                fields_free((struct ndbus_field *)(uintptr_t)fields[i].fields, fields[i].n_fields);
        }
        PyMem_Free(fields);
}

static char *copy_string(const char *string)
{
        char *copy = PyMem_Malloc(strlen(string) + 1);

        return copy ? strcpy(copy, string) : (char *)PyErr_NoMemory();
}

static struct ndbus_field *fields_copy(const struct ndbus_field *from, uint32_t n);

static int field_copy(struct ndbus_field *to, const struct ndbus_field *from)
{
        int64_t *shape = NULL;

        *to = *from;
        to->name = to->dtype = to->unit = NULL;
        to->shape = NULL;
        to->fields = NULL;
        to->n_fields = 0;
        if (!(to->name = copy_string(from->name)) || !(to->dtype = copy_string(from->dtype)) ||
            (from->unit && !(to->unit = copy_string(from->unit))))
                return -1;
        if (from->ndim > 0) {
                shape = PyMem_New(int64_t, (size_t)from->ndim);
                if (!shape) {
                        PyErr_NoMemory();
                        return -1;
                }
                memcpy(shape, from->shape, (size_t)from->ndim * sizeof(*shape));
                to->shape = shape;
        }
        if (from->n_fields > 0 && !(to->fields = fields_copy(from->fields, from->n_fields)))
                return -1;
        to->n_fields = from->n_fields;
        return 0;
}

/* NULL also if there are none to copy. */
static struct ndbus_field *fields_copy(const struct ndbus_field *from, uint32_t n)
{
        struct ndbus_field *fields = n ? PyMem_Calloc(n, sizeof(*fields)) : NULL;

        if (n && !fields)
                PyErr_NoMemory();
        for (uint32_t i = 0; fields && i < n; ++i) {
                if (field_copy(&fields[i], &from[i])) {
                        fields_free(fields, n);
                        return NULL;
                }
        }
        return fields;
}

static bool same_string(const char *a, const char *b)
{
        return a == b || (a && b && strcmp(a, b) == 0);
}

static bool fields_equal(const struct ndbus_field *a, const struct ndbus_field *b, uint32_t n)
{
        for (uint32_t i = 0; i < n; ++i) {
                if (a[i].offset != b[i].offset || a[i].bits != b[i].bits ||
                    a[i].flags != b[i].flags || a[i].ndim != b[i].ndim ||
                    a[i].n_fields != b[i].n_fields || a[i].unit_count != b[i].unit_count ||
                    !same_string(a[i].name, b[i].name) || !same_string(a[i].dtype, b[i].dtype) ||
                    !same_string(a[i].unit, b[i].unit) ||
                    (a[i].ndim > 0 && memcmp(a[i].shape, b[i].shape,
                                             (size_t)a[i].ndim * sizeof(*a[i].shape)) != 0) ||
                    !fields_equal(a[i].fields, b[i].fields, a[i].n_fields))
                        return false;
        }
        return true;
}

/* ---------------------------------------------------------------------------------- the object */

static struct ndpy_dtype *dtype_alloc(const char *name, uint32_t bits, uint32_t flags)
{
        struct ndpy_dtype *self = PyObject_New(struct ndpy_dtype, ndpy_dtype_type);

        if (!self)
                return NULL;
        self->name = NULL;
        self->bits = bits;
        self->flags = flags;
        self->n_fields = 0;
        self->unit_count = 0;
        self->unit = NULL;
        self->fields = NULL;
        self->numpy = NULL;
        self->format = NULL;
        if (name && !(self->name = copy_string(name)))
                Py_CLEAR(self);
        return self;
}

static void dtype_dealloc(PyObject *object)
{
        struct ndpy_dtype *self = (struct ndpy_dtype *)object;
        PyTypeObject *type = Py_TYPE(object);

        fields_free(self->fields, self->n_fields);
        PyMem_Free(self->name);
        PyMem_Free(self->unit);
        Py_XDECREF(self->numpy);
        Py_XDECREF(self->format);
        PyObject_Free(self);
        Py_DECREF(type);
}

static const struct nd_dtype *dtype_known(const char *name)
{
        return name ? nd_dtype_find(name, strlen(name)) : NULL;
}

struct ndpy_dtype *ndpy_dtype_plain(const char *name, uint32_t bits, uint32_t flags)
{
        const struct nd_dtype *known = dtype_known(name);

        if (bits == 0)
                bits = known ? known->bits : name ? 0 : 8;
        return dtype_alloc(name, bits, flags);
}

Py_ssize_t ndpy_dtype_itemsize(const struct ndpy_dtype *dtype)
{
        if (dtype->flags & NDBUS_SUBBYTE_PADDED)
                return 1;
        return dtype->bits % 8 ? 0 : (Py_ssize_t)dtype->bits / 8;
}

static bool dtype_is(const struct ndpy_dtype *self, const struct ndbus_array *array, uint32_t bits)
{
        const uint32_t flags = array->flags & (NDBUS_BIG_ENDIAN | NDBUS_SUBBYTE_PADDED);

        return self->bits == bits && self->flags == flags && self->n_fields == array->n_fields &&
               self->unit_count == array->unit_count && same_string(self->name, array->dtype) &&
               same_string(self->unit, array->unit) &&
               fields_equal(self->fields, array->fields, array->n_fields);
}

struct ndpy_dtype *ndpy_dtype_from_array(const struct ndbus_array *array)
{
        const struct nd_dtype *known = dtype_known(array->dtype);
        uint32_t bits = array->bits ? array->bits : known ? known->bits : 8;
        struct ndpy_dtype *self;

        if (last_received && dtype_is(last_received, array, bits)) {
                Py_INCREF(last_received);
                return last_received;
        }
        self = dtype_alloc(array->dtype, bits,
                           array->flags & (NDBUS_BIG_ENDIAN | NDBUS_SUBBYTE_PADDED));
        if (!self)
                return NULL;
        if ((array->unit && !(self->unit = copy_string(array->unit))) ||
            (array->n_fields && !(self->fields = fields_copy(array->fields, array->n_fields)))) {
                Py_DECREF(self);
                return NULL;
        }
        self->unit_count = array->unit_count;
        self->n_fields = array->n_fields;
        Py_INCREF(self);
        Py_XSETREF(last_received, self);
        return self;
}

/* ---------------------------------------------------------------------------- the buffer protocol */

static const struct {
        const char *name;
        char format[3];
} formats[] = {
        {"bool", "?"},       {"int8", "b"},        {"int16", "h"},   {"int32", "i"},
        {"int64", "q"},      {"uint8", "B"},       {"uint16", "H"},  {"uint32", "I"},
        {"uint64", "Q"},     {"float16", "e"},     {"float32", "f"}, {"float64", "d"},
        {"complex64", "Zf"}, {"complex128", "Zd"},
};

#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

const char *ndpy_dtype_format(struct ndpy_dtype *dtype)
{
        const char *order = dtype->flags & NDBUS_BIG_ENDIAN ? ">" : "";

        if (!dtype->format) {
                for (size_t i = 0; !dtype->format && dtype->name && i < N_FORMATS; ++i)
                        if (strcmp(formats[i].name, dtype->name) == 0)
                                dtype->format =
                                        PyBytes_FromFormat("%s%s", order, formats[i].format);
                if (!dtype->name)
                        dtype->format = PyBytes_FromString("B");
                else if (strcmp(dtype->name, "bytes") == 0)
                        dtype->format = PyBytes_FromFormat("%us", dtype->bits / 8);
                else if (strcmp(dtype->name, "ucs4") == 0)
                        dtype->format = PyBytes_FromFormat("%s%uw", order, dtype->bits / 32);
                else if (!dtype->format && !PyErr_Occurred())
                        dtype->format = Py_NewRef(Py_None);
                if (!dtype->format)
                        return NULL;
        }
        if (dtype->format != Py_None)
                return PyBytes_AS_STRING(dtype->format);
        PyErr_Format(PyExc_BufferError, "the buffer protocol cannot say the dtype %s", dtype->name);
        return NULL;
}

/* Integers and floats by what they are and how wide: widths of "l" and others differ. */
static const char *format_name(const char *code, Py_ssize_t itemsize)
{
        static const char *const integers[2][9] = {
                {NULL, "int8", "int16", NULL, "int32", NULL, NULL, NULL, "int64"},
                {NULL, "uint8", "uint16", NULL, "uint32", NULL, NULL, NULL, "uint64"},
        };

        if (itemsize < 1 || itemsize > 16)
                return NULL;
        if (strlen(code) == 1 && strchr("bhilqn", *code) && itemsize <= 8)
                return integers[0][itemsize];
        if (strlen(code) == 1 && strchr("BHILQN", *code) && itemsize <= 8)
                return integers[1][itemsize];
        for (size_t i = 0; i < N_FORMATS; ++i) {
                const struct nd_dtype *known = dtype_known(formats[i].name);

                if (known && strcmp(code, formats[i].format) == 0 &&
                    (Py_ssize_t)known->bits == 8 * itemsize)
                        return formats[i].name;
        }
        return NULL;
}

struct ndpy_dtype *ndpy_dtype_from_format(const char *format, Py_ssize_t itemsize)
{
        uint32_t flags = 0;
        const char *name;

        if (!format)
                format = "B";
        if (*format == '>' || *format == '!')
                flags = NDBUS_BIG_ENDIAN;
        if (strchr("@=<>!", *format) && *format)
                ++format;
        /* a character of array.array */
        if ((strcmp(format, "w") == 0 || strcmp(format, "u") == 0) && itemsize == 4)
                return ndpy_dtype_plain("ucs4", 32, flags);
        name = format_name(format, itemsize);
        return name ? ndpy_dtype_plain(name, 0, itemsize > 1 ? flags : 0) : NULL;
}

/* ----------------------------------------------------------------------------------------- NumPy */

/* An attribute that is an int in a range; -1 with an exception. */
static long long get_int(PyObject *object, const char *attribute, long long max)
{
        PyObject *value = PyObject_GetAttrString(object, attribute);
        long long number = value ? PyLong_AsLongLong(value) : -1;

        Py_XDECREF(value);
        if (!PyErr_Occurred() && (number < 0 || number > max)) {
                ndpy_raise_text(NDBUS_EDTYPE, "dtype.%s: %lld is not in 0 to %lld", attribute,
                                number, max);
                return -1;
        }
        return number;
}

/* An attribute that is one character, as NumPy's kind and byteorder; 0 with an exception. */
static char get_char(PyObject *object, const char *attribute)
{
        PyObject *value = PyObject_GetAttrString(object, attribute);
        const char *text = value ? PyUnicode_AsUTF8(value) : NULL;
        char c = text ? *text : '\0';

        Py_XDECREF(value);
        if (!c && !PyErr_Occurred())
                ndpy_raise_text(NDBUS_EDTYPE, "dtype.%s: is empty", attribute);
        return c;
}

/* What one numpy.dtype without fields and subarray is; a field in which only that is set. */
static int element_from_numpy(PyObject *numpy_dtype, struct ndbus_field *ret)
{
        char kind = get_char(numpy_dtype, "kind");
        char order = kind ? get_char(numpy_dtype, "byteorder") : '\0';
        long long itemsize = order ? get_int(numpy_dtype, "itemsize", UINT32_MAX / 8) : -1;
        PyObject *name = itemsize >= 0 ? PyObject_GetAttrString(numpy_dtype, "name") : NULL;
        const char *text = name ? PyUnicode_AsUTF8(name) : NULL;
        const char *found = NULL;
        const struct nd_dtype *known;

        *ret = (struct ndbus_field){.bits = (uint32_t)itemsize * 8};
        if (!text)
                goto failed;
        if (kind == 'O') {
                ndpy_raise_text(
                        NDBUS_EDTYPE,
                        "an object array holds references to Python objects, which mean "
                        "nothing elsewhere: convert it (astype), send its arrays as a list, "
                        "or pickle it by name (publish_object)");
                goto failed;
        }
        if (kind == 'S')
                found = "bytes";
        else if (kind == 'U')
                found = "ucs4";
        else if (kind == 'M' || kind == 'm')
                found = kind == 'M' ? "datetime64" : "timedelta64";
        else if (kind == 'V' && strncmp(text, "void", 4) == 0)
                found = "opaque";
        else if ((known = dtype_known(text)) && known->trait == ND_DTYPE_PLAIN)
                found = known->name;
        if (!found) {
                ndpy_raise_text(NDBUS_EDTYPE,
                                "dtype %s (%lld bytes) has no name on the wire: "
                                "convert it (astype)",
                                text, itemsize);
                goto failed;
        }
        known = dtype_known(found);
        if (known->trait == ND_DTYPE_PLAIN && known->bits < 8 && itemsize == 1) {
                ret->bits = known->bits;
                ret->flags = NDBUS_SUBBYTE_PADDED;
        } else if (itemsize == 0) {
                ndpy_raise_text(NDBUS_EDTYPE, "dtype %s: has elements of no bytes", text);
                goto failed;
        }
        if (order == '>' && known->has_byte_order)
                ret->flags |= NDBUS_BIG_ENDIAN;
        Py_DECREF(name);
        ret->dtype = copy_string(found);
        return ret->dtype ? 0 : -1;
failed:
        Py_XDECREF(name);
        return -1;
}

/* The unit of datetime64 and timedelta64: numpy.datetime_data() */
static int unit_from_numpy(PyObject *numpy_dtype, struct ndbus_field *field)
{
        PyObject *function = ndpy_numpy("datetime_data");
        PyObject *data = function ? PyObject_CallOneArg(function, numpy_dtype) : NULL;
        const char *unit;
        int count, r = -1;

        if (!function && !PyErr_Occurred())
                ndpy_raise_text(NDBUS_EDTYPE, "dtype: a unit needs NumPy to read it");
        if (data && PyTuple_Check(data) && PyArg_ParseTuple(data, "si", &unit, &count)) {
                field->unit_count = (uint32_t)count;
                field->unit = copy_string(unit);
                r = field->unit ? 0 : -1;
        }
        Py_XDECREF(function);
        Py_XDECREF(data);
        return r;
}

static struct ndbus_field *
fields_from_numpy(PyObject *numpy_dtype, unsigned depth, uint32_t *ret_n_fields);

/* A subarray: (base, shape); of subarrays of subarrays NumPy makes one. */
static int subarray_from_numpy(PyObject *subdtype, struct ndbus_field *field, PyObject **ret_base)
{
        PyObject *base, *shape;
        int64_t *dims;

        if (!PyTuple_Check(subdtype) ||
            !PyArg_ParseTuple(subdtype, "OO!", &base, &PyTuple_Type, &shape)) {
                PyErr_SetString(PyExc_TypeError, "dtype.subdtype is no (dtype, shape)");
                return -1;
        }
        if (PyTuple_GET_SIZE(shape) > NDBUS_DIMS_MAX) {
                ndpy_raise_text(NDBUS_ESHAPE, "a field has %zd dimensions, the limit is %d",
                                PyTuple_GET_SIZE(shape), NDBUS_DIMS_MAX);
                return -1;
        }
        dims = PyMem_New(int64_t, (size_t)PyTuple_GET_SIZE(shape) + 1);
        if (!dims) {
                PyErr_NoMemory();
                return -1;
        }
        field->shape = dims;
        field->ndim = (int32_t)PyTuple_GET_SIZE(shape);
        for (int32_t i = 0; i < field->ndim; ++i)
                dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
        *ret_base = Py_NewRef(base);
        return PyErr_Occurred() ? -1 : 0;
}

/* Fills what a numpy.dtype says of a field, or of a whole array; what was filled is freed by others. */
static int field_from_numpy(PyObject *numpy_dtype, unsigned depth, struct ndbus_field *field)
{
        struct ndbus_field element;
        PyObject *subdtype = PyObject_GetAttrString(numpy_dtype, "subdtype");
        PyObject *base = NULL, *names = NULL;
        long long itemsize;
        int r = -1;

        if (!subdtype)
                return -1;
        if (subdtype != Py_None && subarray_from_numpy(subdtype, field, &base))
                goto out;
        if (!base)
                base = Py_NewRef(numpy_dtype);
        names = PyObject_GetAttrString(base, "names");
        if (!names)
                goto out;
        if (names == Py_None) {
                r = element_from_numpy(base, &element);
                if (r)
                        goto out;
                field->dtype = element.dtype;
                field->bits = element.bits;
                field->flags = element.flags;
                if (strstr(field->dtype, "time"))
                        r = unit_from_numpy(base, field);
                goto out;
        }
        itemsize = get_int(base, "itemsize", UINT32_MAX / 8);
        if (itemsize < 0 || !(field->dtype = copy_string("record")))
                goto out;
        field->bits = (uint32_t)itemsize * 8;
        field->fields = fields_from_numpy(base, depth + 1, &field->n_fields);
        r = field->fields ? 0 : -1;
out:
        Py_XDECREF(names);
        Py_XDECREF(base);
        Py_DECREF(subdtype);
        return r;
}

static struct ndbus_field *
fields_from_numpy(PyObject *numpy_dtype, unsigned depth, uint32_t *ret_n_fields)
{
        PyObject *names = PyObject_GetAttrString(numpy_dtype, "names");
        PyObject *dict = names ? PyObject_GetAttrString(numpy_dtype, "fields") : NULL;
        struct ndbus_field *fields = NULL;
        Py_ssize_t n = dict && PyTuple_Check(names) ? PyTuple_GET_SIZE(names) : 0;

        if (!dict)
                goto out;
        if (n == 0 || n > (Py_ssize_t)ND_FIELDS_MAX || depth > ND_FIELD_DEPTH_MAX) {
                ndpy_raise_text(
                        NDBUS_EDTYPE,
                        "a record has %zd fields at depth %u, the limits are 1 to %u, and %u", n,
                        depth, ND_FIELDS_MAX, ND_FIELD_DEPTH_MAX);
                goto out;
        }
        fields = PyMem_Calloc((size_t)n, sizeof(*fields));
        if (!fields)
                PyErr_NoMemory();
        *ret_n_fields = (uint32_t)n;
        for (Py_ssize_t i = 0; fields && i < n; ++i) {
                PyObject *name = PyTuple_GET_ITEM(names, i);
                PyObject *entry = PyObject_GetItem(dict, name); /* (dtype, offset[, title]) */
                const char *text = entry ? PyUnicode_AsUTF8(name) : NULL;
                PyObject *dtype;
                unsigned long long offset;
                bool is_done = false;

                if (text && PyTuple_Check(entry) && PyTuple_GET_SIZE(entry) >= 2) {
                        dtype = PyTuple_GET_ITEM(entry, 0);
                        offset = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(entry, 1));
                        fields[i].offset = offset;
                        fields[i].name = copy_string(text);
                        is_done = !PyErr_Occurred() &&
                                  field_from_numpy(dtype, depth, &fields[i]) == 0;
                }
                Py_XDECREF(entry);
                if (!is_done) {
                        if (!PyErr_Occurred())
                                ndpy_raise_text(NDBUS_EDTYPE, "dtype.fields: is malformed");
                        fields_free(fields, (uint32_t)n);
                        fields = NULL;
                }
        }
out:
        Py_XDECREF(dict);
        Py_XDECREF(names);
        return fields;
}

struct ndpy_dtype *ndpy_dtype_from_numpy(PyObject *numpy_dtype)
{
        struct ndbus_field *whole;
        struct ndpy_dtype *self =
                (struct ndpy_dtype *)PyDict_GetItemWithError(numpy_known, numpy_dtype);

        if (self) {
                Py_INCREF(self);
                return self;
        }
        if (PyErr_Occurred() || !(whole = PyMem_Calloc(1, sizeof(*whole))))
                return PyErr_Occurred() ? NULL : (struct ndpy_dtype *)PyErr_NoMemory();
        if (field_from_numpy(numpy_dtype, 0, whole) == 0) {
                if (whole->shape)
                        ndpy_raise_text(NDBUS_EDTYPE, "a subarray dtype is no dtype of elements");
                else
                        self = dtype_alloc(whole->dtype, whole->bits, whole->flags);
        }
        if (self) {
                self->unit = (char *)(uintptr_t)whole->unit;
                self->unit_count = whole->unit_count;
                self->fields = (struct ndbus_field *)(uintptr_t)whole->fields;
                self->n_fields = whole->n_fields;
                whole->unit = NULL;
                whole->fields = NULL;
                whole->n_fields = 0;
                self->numpy = Py_NewRef(numpy_dtype);
                if (PyDict_GET_SIZE(numpy_known) >= NUMPY_KNOWN_MAX)
                        PyDict_Clear(numpy_known);
                if (PyDict_SetItem(numpy_known, numpy_dtype, (PyObject *)self))
                        Py_CLEAR(self);
        }
        fields_free(whole, 1);
        return self;
}

/* numpy.dtype(argument), or that of ml_dtypes */
static PyObject *numpy_dtype(PyObject *argument)
{
        PyObject *function = ndpy_numpy("dtype"), *result;

        if (!function) {
                if (!PyErr_Occurred())
                        PyErr_SetString(PyExc_ImportError, "NumPy is not installed");
                return NULL;
        }
        result = PyObject_CallOneArg(function, argument);
        Py_DECREF(function);
        return result;
}

static PyObject *numpy_from_ml_dtypes(const char *name)
{
        PyObject *type = ndpy_import("ml_dtypes", name), *result;

        if (!type) {
                if (PyErr_ExceptionMatches(PyExc_ImportError) ||
                    PyErr_ExceptionMatches(PyExc_AttributeError))
                        ndpy_raise_text(NDBUS_EUNSUPPORTED,
                                        "NumPy has no dtype for %s: install ml_dtypes, or use "
                                        "msg.frames, which other libraries take by DLPack",
                                        name);
                return NULL;
        }
        result = numpy_dtype(type);
        Py_DECREF(type);
        return result;
}

/* The typestr that NumPy knows; NULL without an exception if there is none. */
static PyObject *
typestr(const char *name, uint32_t bits, uint32_t flags, const char *unit, uint32_t count)
{
        const struct nd_dtype *known = dtype_known(name);
        const char order = flags & NDBUS_BIG_ENDIAN ? '>' : '<';
        const uint32_t bytes = bits / 8;

        if (!name)
                return PyUnicode_FromString("|u1");
        if (!known || bits % 8)
                return NULL;
        if (known->trait == ND_DTYPE_UNIT && (!unit || strcmp(unit, "generic") == 0))
                return PyUnicode_FromFormat("%c%c8", order, *name == 'd' ? 'M' : 'm');
        if (known->trait == ND_DTYPE_UNIT)
                return PyUnicode_FromFormat("%c%c8[%u%s]", order, *name == 'd' ? 'M' : 'm',
                                            count ? count : 1, unit);
        if (known->trait == ND_DTYPE_UCS4)
                return PyUnicode_FromFormat("%cU%u", order, bits / 32);
        if (known->trait == ND_DTYPE_BYTES)
                return PyUnicode_FromFormat("|%c%u", strcmp(name, "bytes") == 0 ? 'S' : 'V', bytes);
        if (known->trait != ND_DTYPE_PLAIN)
                return NULL;
        if (strcmp(name, "bool") == 0)
                return PyUnicode_FromString("|b1");
        for (size_t i = 0; i < N_FORMATS; ++i)
                if (strcmp(formats[i].name, name) == 0)
                        return PyUnicode_FromFormat("%c%c%u", bytes > 1 ? order : '|',
                                                    strncmp(name, "complex", 7) == 0 ? 'c' : *name,
                                                    bytes);
        return NULL;
}

static PyObject *numpy_from_fields(const struct ndbus_field *fields, uint32_t n, uint32_t bits);

static PyObject *numpy_from_field(const struct ndbus_field *field)
{
        PyObject *string, *dtype = NULL, *shape, *pair;

        if (strcmp(field->dtype, "record") == 0) {
                dtype = numpy_from_fields(field->fields, field->n_fields, field->bits);
        } else {
                string = typestr(field->dtype, field->bits, field->flags, field->unit,
                                 field->unit_count);
                if (string)
                        dtype = numpy_dtype(string);
                else if (!PyErr_Occurred())
                        dtype = numpy_from_ml_dtypes(field->dtype);
                Py_XDECREF(string);
        }
        if (!dtype || field->ndim == 0)
                return dtype;
        shape = PyTuple_New(field->ndim);
        for (int32_t i = 0; shape && i < field->ndim; ++i) {
                PyObject *dim = PyLong_FromLongLong(field->shape[i]);

                if (dim)
                        PyTuple_SET_ITEM(shape, i, dim);
                else
                        Py_CLEAR(shape);
        }
        pair = shape ? PyTuple_Pack(2, dtype, shape) : NULL;
        Py_XDECREF(shape);
        Py_DECREF(dtype);
        dtype = pair ? numpy_dtype(pair) : NULL;
        Py_XDECREF(pair);
        return dtype;
}

static PyObject *numpy_from_fields(const struct ndbus_field *fields, uint32_t n, uint32_t bits)
{
        PyObject *names = PyList_New(0), *types = PyList_New(0), *offsets = PyList_New(0);
        PyObject *dict = NULL, *result = NULL;
        bool is_good = names && types && offsets;

        for (uint32_t i = 0; is_good && i < n; ++i) {
                PyObject *name = PyUnicode_FromString(fields[i].name);
                PyObject *type = name ? numpy_from_field(&fields[i]) : NULL;
                PyObject *offset = type ? PyLong_FromUnsignedLongLong(fields[i].offset) : NULL;

                is_good = offset && PyList_Append(names, name) == 0 &&
                          PyList_Append(types, type) == 0 && PyList_Append(offsets, offset) == 0;
                Py_XDECREF(name);
                Py_XDECREF(type);
                Py_XDECREF(offset);
        }
        if (is_good)
                dict = Py_BuildValue("{s:O,s:O,s:O,s:I}", "names", names, "formats", types,
                                     "offsets", offsets, "itemsize", (unsigned int)(bits / 8));
        if (dict)
                result = numpy_dtype(dict);
        Py_XDECREF(dict);
        Py_XDECREF(names);
        Py_XDECREF(types);
        Py_XDECREF(offsets);
        return result;
}

PyObject *ndpy_dtype_numpy(struct ndpy_dtype *dtype)
{
        const struct ndbus_field whole = {
                .dtype = dtype->name ? dtype->name : "uint8",
                .bits = dtype->bits,
                .flags = dtype->flags,
                .n_fields = dtype->n_fields,
                .fields = dtype->fields,
                .unit = dtype->unit,
                .unit_count = dtype->unit_count,
        };

        if (!dtype->numpy) {
                if (dtype->bits % 8 && !(dtype->flags & NDBUS_SUBBYTE_PADDED)) {
                        ndpy_raise_text(NDBUS_EUNSUPPORTED,
                                        "NumPy has no elements of %u bits packed into bytes",
                                        dtype->bits);
                        return NULL;
                }
                dtype->numpy = numpy_from_field(&whole);
        }
        return dtype->numpy;
}

/* --------------------------------------------------------------------------------- by name */

/* "float32", ">float32"; NULL without an exception if the text is no such name. */
static struct ndpy_dtype *dtype_from_text(const char *text)
{
        uint32_t flags = *text == '>' ? NDBUS_BIG_ENDIAN : 0;
        const struct nd_dtype *known;

        if (flags)
                ++text;
        known = dtype_known(text);
        if (!known || known->trait != ND_DTYPE_PLAIN || (flags && !known->has_byte_order))
                return NULL;
        return ndpy_dtype_plain(known->name, known->bits, flags);
}

struct ndpy_dtype *ndpy_dtype_from_any(PyObject *any)
{
        struct ndpy_dtype *self = NULL;
        PyObject *numpy;

        if (Py_IS_TYPE(any, ndpy_dtype_type))
                return (struct ndpy_dtype *)Py_NewRef(any);
        if (PyUnicode_Check(any)) {
                const char *text = PyUnicode_AsUTF8(any);

                self = text ? dtype_from_text(text) : NULL;
                if (self || PyErr_Occurred())
                        return self;
        }
        numpy = numpy_dtype(any);
        if (!numpy)
                return NULL;
        self = ndpy_dtype_from_numpy(numpy);
        Py_DECREF(numpy);
        return self;
}

/* ---------------------------------------------------------------------------------------- the type */

static PyObject *dtype_str(PyObject *object)
{
        const struct ndpy_dtype *self = (const struct ndpy_dtype *)object;
        const struct nd_dtype *known = dtype_known(self->name);
        const char *order = self->flags & NDBUS_BIG_ENDIAN ? ">" : "";

        if (!self->name)
                return PyUnicode_FromString("raw");
        if (!known)
                return PyUnicode_FromFormat("%s%s:%u", order, self->name, self->bits);
        switch (known->trait) {
        case ND_DTYPE_PLAIN:
                return PyUnicode_FromFormat("%s%s", order, self->name);
        case ND_DTYPE_UNIT:
                if (self->unit_count > 1)
                        return PyUnicode_FromFormat("%s%s[%u%s]", order, self->name,
                                                    self->unit_count, self->unit);
                return PyUnicode_FromFormat("%s%s[%s]", order, self->name, self->unit);
        default:
                return PyUnicode_FromFormat("%s%s[%u]", order, self->name,
                                            self->bits / (known->trait == ND_DTYPE_UCS4 ? 32 : 8));
        }
}

static PyObject *dtype_repr(PyObject *object)
{
        PyObject *text = dtype_str(object), *result;

        result = text ? PyUnicode_FromFormat("ndbus.DType(%R)", text) : NULL;
        Py_XDECREF(text);
        return result;
}

static PyObject *dtype_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"dtype", NULL};
        PyObject *any;

        (void)type;
        if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:DType", names, &any))
                return NULL;
        return (PyObject *)ndpy_dtype_from_any(any);
}

static PyObject *dtype_compare(PyObject *object, PyObject *other, int op)
{
        const struct ndpy_dtype *self = (const struct ndpy_dtype *)object;
        struct ndbus_array array = {.dtype = self->name,
                                    .flags = self->flags,
                                    .unit = self->unit,
                                    .unit_count = self->unit_count,
                                    .fields = self->fields,
                                    .n_fields = self->n_fields};
        bool is_equal;

        if ((op != Py_EQ && op != Py_NE) || !Py_IS_TYPE(other, ndpy_dtype_type))
                Py_RETURN_NOTIMPLEMENTED;
        is_equal = dtype_is((const struct ndpy_dtype *)other, &array, self->bits);
        return PyBool_FromLong(is_equal == (op == Py_EQ));
}

static Py_hash_t dtype_hash(PyObject *object)
{
        PyObject *text = dtype_str(object);
        Py_hash_t hash = text ? PyObject_Hash(text) : -1;

        Py_XDECREF(text);
        return hash;
}

static PyObject *dtype_numpy(PyObject *object, PyObject *unused)
{
        (void)unused;
        return Py_XNewRef(ndpy_dtype_numpy((struct ndpy_dtype *)object));
}

static PyObject *dtype_get_name(PyObject *object, void *unused)
{
        const struct ndpy_dtype *self = (const struct ndpy_dtype *)object;

        (void)unused;
        return self->name ? PyUnicode_FromString(self->name) : Py_NewRef(Py_None);
}

static PyObject *dtype_get_bits(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromUnsignedLong(((const struct ndpy_dtype *)object)->bits);
}

static PyObject *dtype_get_itemsize(PyObject *object, void *unused)
{
        (void)unused;
        return PyLong_FromSsize_t(ndpy_dtype_itemsize((const struct ndpy_dtype *)object));
}

static PyObject *dtype_get_big_endian(PyObject *object, void *unused)
{
        (void)unused;
        return PyBool_FromLong(((const struct ndpy_dtype *)object)->flags & NDBUS_BIG_ENDIAN);
}

PyDoc_STRVAR(
        dtype_doc,
        "DType(dtype)\n--\n\n"
        "What the elements of an array are: a name and a width.\n\n"
        "Made of a name ('float32', '>float64' in big-endian order, 'bfloat16',\n"
        "'float8_e4m3fn', ...) or of anything that numpy.dtype() takes. str() gives the name as\n"
        "`ndbus sub` prints it. numpy() gives the numpy.dtype.");

static PyMethodDef dtype_methods[] = {
        {"numpy", dtype_numpy, METH_NOARGS,
         "numpy()\n--\n\nThe numpy.dtype; of ml_dtypes where NumPy itself has none.\n\n"
         "Raises UnsupportedError if there is none at all."},
        {NULL, NULL, 0, NULL},
};

static PyGetSetDef dtype_attributes[] = {
        {"name", dtype_get_name, NULL, "name without byte order; None for raw bytes", NULL},
        {"bits", dtype_get_bits, NULL, "width of one element", NULL},
        {"itemsize", dtype_get_itemsize, NULL,
         "bytes of one element; 0 if elements are packed into bytes", NULL},
        {"big_endian", dtype_get_big_endian, NULL, "whether elements are in big-endian order",
         NULL},
        {NULL, NULL, NULL, NULL, NULL},
};

int ndpy_dtype_init(PyObject *module)
{
        static PyType_Slot slots[] = {
                {Py_tp_doc, (void *)(uintptr_t)dtype_doc},
                {Py_tp_new, dtype_new},
                {Py_tp_dealloc, dtype_dealloc},
                {Py_tp_str, dtype_str},
                {Py_tp_repr, dtype_repr},
                {Py_tp_richcompare, dtype_compare},
                {Py_tp_hash, dtype_hash},
                {Py_tp_methods, dtype_methods},
                {Py_tp_getset, dtype_attributes},
                {0, NULL},
        };
        static PyType_Spec spec = {.name = "ndbus.DType",
                                   .basicsize = sizeof(struct ndpy_dtype),
                                   .flags = Py_TPFLAGS_DEFAULT,
                                   .slots = slots};

        numpy_known = PyDict_New();
        ndpy_dtype_type = numpy_known ? ndpy_add_type(module, &spec) : NULL;
        return ndpy_dtype_type ? 0 : -1;
}
