/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * The extension module behind the Python package: what its parts share
 *
 * All of it runs with the GIL, unless a comment says otherwise. Functions that return PyObject * give
 * a new reference, or NULL with an exception set; int results are 0 or -1 with an exception set.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <ndbus/ndbus.h>
#include <stdbool.h>

/* what the buffer protocol calls a size is what the library calls one */
_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "64-bit systems only");

#if PY_VERSION_HEX < 0x030a0000 /* 3.9 */
static inline PyObject *Py_NewRef(PyObject *object)
{
        Py_INCREF(object);
        return object;
}

static inline PyObject *Py_XNewRef(PyObject *object)
{
        Py_XINCREF(object);
        return object;
}

static inline int PyModule_AddObjectRef(PyObject *module, const char *name, PyObject *value)
{
        if (PyModule_AddObject(module, name, Py_NewRef(value)) == 0)
                return 0;
        Py_DECREF(value);
        return -1;
}
#endif

/* ------------------------------------------------------------------------------------- module.c */

/* An attribute of a module that is imported when it is first needed. NULL with ImportError. */
PyObject *ndpy_import(const char *module, const char *name);

/* NumPy's, or NULL without an exception where there is no NumPy. */
PyObject *ndpy_numpy(const char *name);

/* "O&" converter to an int, of the argument "timeout": seconds to milliseconds, rounded up; None, and what
 * is too long for an int: -1, without limit. */
int ndpy_convert_timeout(PyObject *seconds, void *ret_ms);

/* The same to a struct ndpy_time, of any name. */
struct ndpy_time {
        const char *name;
        int ms;
        bool is_limited; /* it must be more than 0, and cannot be without limit */
};

int ndpy_convert_time(PyObject *seconds, void *time);

/* "O&" converter to a struct ndpy_count. */
struct ndpy_count {
        const char *name;
        uint64_t value;
        uint64_t min;
        uint64_t max;
};

int ndpy_convert_count(PyObject *number, void *count);

/* module.name(self, *args, **keywords): methods that are written in Python. */
PyObject *ndpy_call_python(
        const char *module, const char *name, PyObject *self, PyObject *args, PyObject *keywords);

/* Makes a type and puts it into the module. */
PyTypeObject *ndpy_add_type(PyObject *module, PyType_Spec *spec);

/* The same with a named tuple of counts, and one of these. */
PyTypeObject *ndpy_add_counts_type(PyObject *module, PyStructSequence_Desc *description);
PyObject *ndpy_counts(PyTypeObject *type, const uint64_t *counts, size_t n);

/* -------------------------------------------------------------------------------------- error.c */

int ndpy_error_init(PyObject *module);

/* Raises the class of a library's error with ndbus_detail(), unless an exception is set already, as
 * it is after a signal handler raised one. Returns NULL. */
PyObject *ndpy_raise(int error);

/* The same with a text of our own. */
PyObject *ndpy_raise_text(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* An argument, or a part of one, that is refused: "NAME: is VALUE, RULE". Returns NULL. */
PyObject *ndpy_raise_value(int error, const char *name, PyObject *value, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* Is an exception of this error's class set? */
bool ndpy_error_is_set(int error);

/* --------------------------------------------------------------------------------------- meta.c */

int ndpy_meta_init(PyObject *module);

/* A dict as a msgpack map, as bytes. */
PyObject *ndpy_meta_pack(PyObject *dict);

/* And back. The bytes have passed the library's own check of depths and counts. */
PyObject *ndpy_meta_unpack(const void *bytes, size_t n_bytes);

/* ----------------------------------------------------------------------------------- dtype.c */

/* What the elements of an array are. Immutable; what it points to is its own. */
struct ndpy_dtype {
        PyObject_HEAD char *name; /* NULL: raw bytes */
        uint32_t bits;
        uint32_t flags; /* NDBUS_BIG_ENDIAN, NDBUS_SUBBYTE_PADDED */
        uint32_t n_fields;
        uint32_t unit_count;
        char *unit;
        struct ndbus_field *fields;
        PyObject *numpy;  /* numpy.dtype, once it was asked for */
        PyObject *format; /* of the buffer protocol, as bytes; None if it cannot say it */
};

extern PyTypeObject *ndpy_dtype_type;

int ndpy_dtype_init(PyObject *module);

/* That of an array of the library. */
struct ndpy_dtype *ndpy_dtype_from_array(const struct ndbus_array *array);

/* That of a numpy.dtype, by its attributes. */
struct ndpy_dtype *ndpy_dtype_from_numpy(PyObject *numpy_dtype);

/* That of a format of the buffer protocol. NULL without an exception if it is none of the plain ones,
 * which say all there is to say. */
struct ndpy_dtype *ndpy_dtype_from_format(const char *format, Py_ssize_t itemsize);

/* By its name, as str() gives it, or anything that numpy.dtype() takes. */
struct ndpy_dtype *ndpy_dtype_from_any(PyObject *any);

/* A plain one; bits 0: the name's own. */
struct ndpy_dtype *ndpy_dtype_plain(const char *name, uint32_t bits, uint32_t flags);

/* The numpy.dtype, borrowed. NULL with an exception if NumPy has none. */
PyObject *ndpy_dtype_numpy(struct ndpy_dtype *dtype);

/* The format for the buffer protocol, borrowed; NULL with BufferError if it has none. */
const char *ndpy_dtype_format(struct ndpy_dtype *dtype);

/* Bytes of one element; 0 if elements are packed bits. */
Py_ssize_t ndpy_dtype_itemsize(const struct ndpy_dtype *dtype);

/* ------------------------------------------------------------------------------------ view.c */

#define NDPY_DIMS_SMALL 8

/* What keeps the memory of a view alive. */
enum ndpy_keeper {
        NDPY_KEEPER_NONE,
        NDPY_KEEPER_OBJECT,           /* owner */
        NDPY_KEEPER_BUFFER,           /* buffer, acquired */
        NDPY_KEEPER_HOLD,             /* hold, of a message; and owner, of the bytes it lies in */
        NDPY_KEEPER_TENSOR,           /* tensor, a DLManagedTensor */
        NDPY_KEEPER_TENSOR_VERSIONED, /* tensor, a DLManagedTensorVersioned */
        NDPY_KEEPER_MALLOC,           /* memory */
};

/* An array as the library takes it, and what its memory and its description depend on. */
struct ndpy_view {
        struct ndbus_array array;
        struct ndpy_dtype *dtype;
        enum ndpy_keeper keeper;
        PyObject *owner;
        Py_buffer buffer;

        union {
                struct ndbus_hold *hold;
                void *tensor;
                void *memory;
        };

        int64_t *dims; /* shape, strides: dims_small, or malloc'd */
        int64_t dims_small[2 * NDPY_DIMS_SMALL];
};

/* Room for shape and strides of so many dimensions; array.shape and array.strides point there. */
int ndpy_view_set_ndim(struct ndpy_view *view, Py_ssize_t ndim);

/* An element of a shape or of strides, which has this name; ShapeError if it is beyond 64 bits. */
int ndpy_convert_dim(PyObject *number, const char *name, int64_t *ret);

/* Takes the reference to @dtype. */
void ndpy_view_set_dtype(struct ndpy_view *view, struct ndpy_dtype *dtype);

/* Strides in bytes as they are in C order, where there are none. */
void ndpy_view_fill_strides(struct ndpy_view *view);

/* From where to where the elements lie, in bytes from the first one. ShapeError if a dimension is negative,
 * or if there are more bytes than 63 bits can count: to be asked of whoever just says how large an array
 * is, for the rest of the module multiplies without looking. */
int ndpy_view_extent(const struct ndpy_view *view, int64_t *ret_low, int64_t *ret_high);

/* Views anything with a buffer, a __dlpack__, an __array_interface__ or an __array__. @view need not be
 * initialised, and must not be moved afterwards. */
int ndpy_view_from(struct ndpy_view *view, PyObject *any);

/* Views an array of a message. @owner: what the message's bytes lie in, or NULL. */
int ndpy_view_from_message(struct ndpy_view *view,
                           struct ndbus_message *m,
                           size_t i_array,
                           PyObject *owner);

void ndpy_view_deinit(struct ndpy_view *view);

/* Views of one array or a list of them, for as long as a call takes. */
struct ndpy_views {
        size_t n;
        struct ndpy_view *views;
        struct ndbus_array *arrays;
        struct ndpy_view one;
        struct ndbus_array one_array;
};

int ndpy_views_init(struct ndpy_views *views, PyObject *any);
void ndpy_views_deinit(struct ndpy_views *views);

/* ------------------------------------------------------------------------------------ array.c */

struct ndpy_array {
        PyObject_HEAD struct ndpy_view view;
};

extern PyTypeObject *ndpy_array_type;

int ndpy_array_init(PyObject *module);

/* An Array whose view is to be filled by the caller; it is sound as it is, and empty. */
struct ndpy_array *ndpy_array_new(void);

/* The bytes of malloc'd memory, which it frees. */
PyObject *ndpy_array_from_malloc(void *memory, size_t n_bytes);

/* As a NumPy array on the same memory. */
PyObject *ndpy_array_numpy(struct ndpy_array *self);

/* As numpy(), or itself where NumPy is missing or cannot say the dtype. */
PyObject *ndpy_array_best(struct ndpy_array *self);

/* ----------------------------------------------------------------------------------- dlpack.c */

/* The view of a tensor that is taken out of any's capsule. 1: it gives none, but has __array__. */
int ndpy_dlpack_import(struct ndpy_view *view, PyObject *any);

/* Methods of Array. */
PyObject *ndpy_dlpack_export(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *ndpy_dlpack_device(PyObject *self, PyObject *unused);

/* Calls the deleter of an imported tensor. */
void ndpy_dlpack_delete(struct ndpy_view *view);

/* --------------------------------------------------------------------------------------- bus.c */

struct ndpy_bus {
        PyObject_HEAD struct ndbus *bus; /* NULL: closed */
        PyThreadState *thread; /* of the call that is under way, while the GIL is released */
        bool is_busy;
        bool is_ending; /* it is being freed: nothing may be raised any more */
        PyObject *
                on_moved; /* called after each call, while somebody waits in an event loop; or NULL */
        struct ndpy_memory *ended_loans; /* given back when the call that is under way ends */
};

extern PyTypeObject *ndpy_bus_type;

int ndpy_bus_init(PyObject *module);

/* Before and after every call of the library that takes the bus: one at a time, without the GIL. */
int ndpy_bus_enter(struct ndpy_bus *self);
void ndpy_bus_leave(struct ndpy_bus *self);

/* What is said of a message when it is published. */
struct ndpy_publish {
        struct ndbus_publish_options options;
        struct ndpy_views views;
        PyObject *meta; /* bytes, or NULL */
};

/* Publishes on topic, or answers a message. Returns None. */
PyObject *ndpy_bus_publish(struct ndpy_bus *self,
                           const char *topic,
                           const struct ndbus_message *request,
                           struct ndpy_publish *publish);

int ndpy_publish_init(struct ndpy_publish *publish, PyObject *arrays, PyObject *meta);
void ndpy_publish_deinit(struct ndpy_publish *publish);

/* "O&" converter to an int: may what is received be unpickled? None, or "pickle". */
int ndpy_convert_objects(PyObject *how, void *ret_may_unpickle);

/* ------------------------------------------------------------------------------ subscription.c */

extern PyTypeObject *ndpy_subscription_type;

int ndpy_subscription_init(PyObject *module);

/* Bus.subscribe() */
PyObject *ndpy_subscribe(PyObject *bus, PyObject *args, PyObject *keywords);

/* -------------------------------------------------------------------------------------- loan.c */

int ndpy_loan_init(PyObject *module);

/* Bus.loan() */
PyObject *ndpy_loan(PyObject *bus, PyObject *args, PyObject *keywords);

/* Gives back loans whose last array went while the bus was in a call. */
void ndpy_loan_give_back(struct ndpy_bus *bus);

/* ----------------------------------------------------------------------------------- message.c */

struct ndpy_message {
        PyObject_HEAD struct ndbus_message *m; /* NULL: finished */
        struct ndpy_bus *bus;                  /* that it came from, or NULL */
        PyObject *owner;                       /* what its bytes lie in, or NULL */
        PyObject *frames;                      /* tuple of Array, once they were asked for */
        PyObject *arrays;                      /* list of what the application sees */
        PyObject *meta;
        bool may_unpickle;
        bool is_busy; /* a call that uses m is under way, without the GIL */
};

/* Userdata of the subscriptions that were made with objects="pickle". */
extern char ndpy_may_unpickle;

int ndpy_message_init(PyObject *module);

/* Takes @m, also on failure. */
PyObject *
ndpy_message_new(struct ndbus_message *m, struct ndpy_bus *bus, PyObject *owner, bool may_unpickle);

/* ------------------------------------------------------------------------------------- pack.c */

PyObject *ndpy_pack(PyObject *module, PyObject *args, PyObject *keywords);
PyObject *ndpy_dumps(PyObject *module, PyObject *args, PyObject *keywords);
PyObject *ndpy_unpack(PyObject *module, PyObject *args, PyObject *keywords);

/* ------------------------------------------------------------------------------------- raw.c */

/* Buffers of an object that are shorter stay within its pickle: measured, a frame of its own costs more
 * up to about this. */
#define NDPY_LARGE_BYTES 4096

PyObject *ndpy_describe(PyObject *module, PyObject *buffer);
PyObject *ndpy_memory(PyObject *module, PyObject *args);
PyObject *ndpy_shaped(PyObject *module, PyObject *args);
PyObject *ndpy_has_no_large(PyObject *module, PyObject *object);
