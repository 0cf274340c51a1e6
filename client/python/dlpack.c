/* SPDX-License-Identifier: MIT */

/*
 * DLPack: tensors of other libraries, and ours for them
 *
 * Capsules in both directions. A versioned one is asked for first, because the older kind cannot say
 * that memory is read-only; libraries that know only the older kind are asked again. What is handed
 * out refers to an Array, whose memory it keeps, and may be given back on any thread.
 */

#include "client/dlpack.h"
#include "client/python/ndpy.h"
#include "protocol/dtype.h"

#define DLPACK_FLAG_IS_COPIED UINT64_C(2)

#define CAPSULE           "dltensor"
#define CAPSULE_VERSIONED "dltensor_versioned"

/* ------------------------------------------------------------------------------------ import */

void ndpy_dlpack_delete(struct ndpy_view *view)
{
        DLManagedTensor *legacy = view->tensor;
        DLManagedTensorVersioned *versioned = view->tensor;
        PyObject *type, *value, *trace;

        /* a deleter that runs Python must not find, nor lose, an exception of ours */
        PyErr_Fetch(&type, &value, &trace);
        if (view->keeper == NDPY_KEEPER_TENSOR_VERSIONED) {
                if (versioned->deleter)
                        versioned->deleter(versioned);
        } else if (legacy->deleter) {
                legacy->deleter(legacy);
        }
        PyErr_Restore(type, value, trace);
}

/* any.__dlpack__(), of the newest kind that it gives */
static PyObject *import_capsule(PyObject *any)
{
        PyObject *method = PyObject_GetAttrString(any, "__dlpack__");
        PyObject *empty = PyTuple_New(0), *keywords = NULL, *capsule = NULL;

        if (method && empty)
                keywords =
                        Py_BuildValue("{s:(ii)}", "max_version", ND_DLPACK_MAJOR, ND_DLPACK_MINOR);
        if (keywords)
                capsule = PyObject_Call(method, empty, keywords);
        if (!capsule && keywords && PyErr_ExceptionMatches(PyExc_TypeError)) {
                PyErr_Clear(); /* it is older than this argument */
                capsule = PyObject_CallNoArgs(method);
        }
        Py_XDECREF(method);
        Py_XDECREF(empty);
        Py_XDECREF(keywords);
        return capsule;
}

/* Takes the tensor out of the capsule. */
static const DLTensor *import_tensor(struct ndpy_view *view, PyObject *capsule)
{
        DLManagedTensorVersioned *versioned;
        DLManagedTensor *legacy;

        if (PyCapsule_IsValid(capsule, CAPSULE_VERSIONED)) {
                versioned = PyCapsule_GetPointer(capsule, CAPSULE_VERSIONED);
                if (versioned->version.major > ND_DLPACK_MAJOR) {
                        ndpy_raise_text(NDBUS_EUNSUPPORTED,
                                        "a tensor of DLPack %u, the newest "
                                        "known is %u",
                                        versioned->version.major, ND_DLPACK_MAJOR);
                        return NULL;
                }
                if (PyCapsule_SetName(capsule, "used_" CAPSULE_VERSIONED))
                        return NULL;
                view->tensor = versioned;
                view->keeper = NDPY_KEEPER_TENSOR_VERSIONED;
                if (versioned->flags & ND_DLPACK_FLAG_READ_ONLY)
                        view->array.flags |= NDBUS_READ_ONLY;
                if (versioned->flags & ND_DLPACK_FLAG_SUBBYTE_PADDED)
                        view->array.flags |= NDBUS_SUBBYTE_PADDED;
                return &versioned->dl_tensor;
        }
        legacy = PyCapsule_GetPointer(capsule, CAPSULE);
        if (!legacy || PyCapsule_SetName(capsule, "used_" CAPSULE))
                return NULL;
        view->tensor = legacy;
        view->keeper = NDPY_KEEPER_TENSOR;
        return &legacy->dl_tensor;
}

/* What does not give a capsule may give a NumPy array: PyTorch 1 knows no bool in DLPack. Is it such, and
 * is the exception one that says so? Then it is cleared. */
static bool import_clear_refusal(PyObject *any)
{
        if ((!PyErr_ExceptionMatches(PyExc_RuntimeError) &&
             !PyErr_ExceptionMatches(PyExc_BufferError)) ||
            !PyObject_HasAttrString(any, "__array__"))
                return false;
        PyErr_Clear();
        return true;
}

int ndpy_dlpack_import(struct ndpy_view *view, PyObject *any)
{
        PyObject *capsule = import_capsule(any);
        const DLTensor *tensor = capsule ? import_tensor(view, capsule) : NULL;
        struct ndbus_array array;
        struct ndpy_dtype *dtype;
        int64_t low, high;
        int r;

        if (!capsule && import_clear_refusal(any))
                return 1;
        Py_XDECREF(capsule);
        if (!tensor || ndpy_view_set_ndim(view, tensor->ndim))
                return -1;
        r = ndbus_array_from_dlpack(tensor, &array, view->dims + tensor->ndim);
        if (r) {
                ndpy_raise(r);
                return -1;
        }
        if (array.lanes > 1) {
                ndpy_raise_text(NDBUS_EUNSUPPORTED, "a tensor of vectors (%u lanes)", array.lanes);
                return -1;
        }
        if (array.ndim)
                memcpy(view->dims, array.shape, (size_t)array.ndim * sizeof(*view->dims));
        dtype = ndpy_dtype_plain(array.dtype, array.bits, view->array.flags & NDBUS_SUBBYTE_PADDED);
        if (!dtype)
                return -1;
        view->array.data = array.data;
        ndpy_view_set_dtype(view, dtype);
        if (!array.strides)
                ndpy_view_fill_strides(view);
        return ndpy_view_extent(view, &low, &high);
}

/* ------------------------------------------------------------------------------------ export */

/* What a capsule refers to: one of the tensors, and the Array or the copy that it lies in. */
struct export
{
        DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
        PyObject *array;
        void *copy;
        int64_t numbers[]; /* shape, strides */
};

/* Any thread, with or without the GIL. */
static void export_free(struct export *export)
{
        if (export->array && Py_IsInitialized()) {
                PyGILState_STATE state = PyGILState_Ensure();

                Py_DECREF(export->array);
                PyGILState_Release(state);
        }
        free(export->copy);
        free(export);
}

static void delete_versioned(struct DLManagedTensorVersioned *self)
{
        export_free(self->manager_ctx);
}

static void delete_legacy(struct DLManagedTensor *self)
{
        export_free(self->manager_ctx);
}

/* Capsules that nobody took the tensor out of. */
static void capsule_free(PyObject *capsule)
{
        if (PyCapsule_IsValid(capsule, CAPSULE_VERSIONED))
                delete_versioned(PyCapsule_GetPointer(capsule, CAPSULE_VERSIONED));
        else if (PyCapsule_IsValid(capsule, CAPSULE))
                delete_legacy(PyCapsule_GetPointer(capsule, CAPSULE));
}

static int export_type(const struct ndpy_dtype *dtype, DLDataType *ret)
{
        const struct nd_dtype *known =
                dtype->name ? nd_dtype_find(dtype->name, strlen(dtype->name)) : NULL;
        int code = known ? known->dlpack_code : dtype->name ? -1 : 1; /* raw bytes: uint8 */

        if (code < 0 || dtype->bits > UINT8_MAX) {
                PyErr_Format(PyExc_BufferError, "DLPack cannot say the dtype %s", dtype->name);
                return -1;
        }
        *ret = (DLDataType){.code = (uint8_t)code, .bits = (uint8_t)dtype->bits, .lanes = 1};
        return 0;
}

/* Shape and strides in elements. 1: they cannot be said without a copy. */
static int export_numbers(const struct ndbus_array *array, Py_ssize_t itemsize, int64_t *numbers)
{
        int64_t *shape = numbers, *strides = numbers + array->ndim, step = 1;

        for (int32_t i = array->ndim - 1; i >= 0; --i) {
                shape[i] = array->shape[i];
                strides[i] = step;
                if (shape[i] > 0 && __builtin_mul_overflow(step, shape[i], &step))
                        step = INT64_MAX; /* another dimension is 0 */
                if (array->strides) {
                        if (array->strides[i] % itemsize)
                                return 1;
                        strides[i] = array->strides[i] / itemsize;
                }
        }
        return 0;
}

/* Copies the elements of dimension @i on in C order, and says where the next one goes. */
static uint8_t *copy_elements(const struct ndbus_array *array,
                              int32_t i,
                              const uint8_t *from,
                              uint8_t *to,
                              size_t itemsize)
{
        size_t run = itemsize;

        if (i + 1 == array->ndim && array->strides[i] == (int64_t)itemsize) {
                run *= (size_t)array->shape[i++];
        }
        if (i == array->ndim) {
                memcpy(to, from, run);
                return to + run;
        }
        for (int64_t j = 0; j < array->shape[i]; ++j)
                to = copy_elements(array, i + 1, from + j * array->strides[i], to, itemsize);
        return to;
}

/* Each number of @size bytes the other way round; a complex one is two. */
static void swap_bytes(uint8_t *data, size_t n, size_t size)
{
        for (uint8_t *end = data + n; data < end; data += size) {
                for (size_t i = 0; i < size / 2; ++i) {
                        uint8_t byte = data[i];

                        data[i] = data[size - 1 - i];
                        data[size - 1 - i] = byte;
                }
        }
}

/* A copy in C order and in the machine's byte order. */
static int export_copy(struct export *export, const struct ndpy_view *view)
{
        const struct ndbus_array *array = &view->array;
        size_t itemsize = (size_t)ndpy_dtype_itemsize(view->dtype);
        size_t swap = array->flags & NDBUS_BIG_ENDIAN ? itemsize : 0;
        size_t bits = itemsize ? itemsize * 8 : view->dtype->bits, n_bytes;

        for (int32_t i = 0; i < array->ndim; ++i) {
                if (__builtin_mul_overflow(bits, (size_t)array->shape[i], &bits)) {
                        PyErr_NoMemory();
                        return -1;
                }
        }
        n_bytes = bits / 8 + (bits % 8 != 0);
        export->copy = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
        if (!export->copy) {
                PyErr_NoMemory();
                return -1;
        }
        if (swap && strncmp(view->dtype->name, "complex", 7) == 0)
                swap /= 2;
        Py_BEGIN_ALLOW_THREADS if (n_bytes > 0)
        {
                if (itemsize && array->strides)
                        copy_elements(array, 0, array->data, export->copy, itemsize);
                else
                        memcpy(export->copy, array->data, n_bytes);
                if (swap)
                        swap_bytes(export->copy, n_bytes, swap);
        }
        Py_END_ALLOW_THREADS return 0;
}

/* @must_copy, @may_copy: what the consumer asked for. */
static struct export *
export_new(struct ndpy_array *self, bool must_copy, bool may_copy, DLTensor *ret)
{
        const struct ndbus_array *array = &self->view.array;
        Py_ssize_t itemsize = ndpy_dtype_itemsize(self->view.dtype);
        const size_t ndim = (size_t)array->ndim;
        struct export *export;
        DLDataType type;

        if (export_type(self->view.dtype, &type))
                return NULL;
        export = calloc(1, sizeof(*export) + 2 * ndim * sizeof(int64_t));
        if (!export)
                return (struct export *)PyErr_NoMemory();
        if (array->flags & NDBUS_BIG_ENDIAN || export_numbers(array, itemsize, export->numbers))
                must_copy = true;
        if (must_copy && !may_copy) {
                PyErr_SetString(
                        PyExc_BufferError,
                        array->flags & NDBUS_BIG_ENDIAN
                                ? "the elements are big-endian, which DLPack cannot say, and "
                                  "a copy is not wanted"
                                : "the strides are no multiples of the itemsize, which "
                                  "DLPack cannot say, and a copy is not wanted");
                free(export);
                return NULL;
        }
        if (must_copy) {
                struct ndbus_array packed = *array;

                packed.strides = NULL;
                if (export_copy(export, &self->view)) {
                        free(export);
                        return NULL;
                }
                export_numbers(&packed, itemsize, export->numbers);
        } else {
                export->array = Py_NewRef((PyObject *)self);
        }
        *ret = (DLTensor){
                .data = must_copy ? export->copy : (void *)(uintptr_t)array->data,
                .device = {.device_type = kDLCPU},
                .ndim = array->ndim,
                .dtype = type,
                .shape = export->numbers,
                .strides = export->numbers + ndim,
        };
        for (size_t i = 0; i < ndim; ++i)
                if (export->numbers[i] == 0)
                        ret->data = NULL;
        return export;
}

/* (major, minor), or (type, id) */
static int parse_pair(PyObject *pair, const char *name, int *ret_a, int *ret_b)
{
        if (PyTuple_Check(pair) && PyArg_ParseTuple(pair, "ii", ret_a, ret_b))
                return 0;
        PyErr_Format(PyExc_TypeError, "%s: must be a tuple of two ints, not %R", name, pair);
        return -1;
}

/* copy=, dl_device=, stream= of the array API */
static int export_check(PyObject *copy, PyObject *device, PyObject *stream)
{
        int type, id;

        if (copy != Py_None && !PyBool_Check(copy)) {
                PyErr_Format(PyExc_TypeError, "copy: must be True, False or None, not %R", copy);
                return -1;
        }
        if (stream != Py_None) {
                PyErr_SetString(PyExc_BufferError, "stream: this is host memory, it must be None");
                return -1;
        }
        if (device == Py_None)
                return 0;
        if (parse_pair(device, "dl_device", &type, &id))
                return -1;
        if (type != kDLCPU || id != 0) {
                PyErr_Format(PyExc_BufferError,
                             "dl_device: (%d, %d), but the array is in host "
                             "memory, (1, 0)",
                             type, id);
                return -1;
        }
        return 0;
}

PyObject *ndpy_dlpack_export(PyObject *object, PyObject *args, PyObject *keywords)
{
        static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
        PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
        struct ndpy_array *self = (struct ndpy_array *)object;
        PyObject *capsule;
        struct export *export;
        bool is_read_only;
        int major = 0, minor = 0;
        DLTensor tensor;

        if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream,
                                         &max_version, &device, &copy) ||
            export_check(copy, device, stream))
                return NULL;
        if (max_version != Py_None && parse_pair(max_version, "max_version", &major, &minor))
                return NULL;
        export = export_new(self, copy == Py_True, copy != Py_False, &tensor);
        if (!export)
                return NULL;
        is_read_only = self->view.array.flags & NDBUS_READ_ONLY && !export->copy;
        if (major < 1 && is_read_only) {
                PyErr_SetString(
                        PyExc_BufferError,
                        "the array is read-only, which a consumer older than DLPack 1.0 "
                        "cannot be told: ask for max_version=(1, 0), for copy=True, or call "
                        "own() of the message");
                export_free(export);
                return NULL;
        }
        if (major >= 1) {
                export->versioned = (DLManagedTensorVersioned){
                        .version = {ND_DLPACK_MAJOR, ND_DLPACK_MINOR},
                        .manager_ctx = export,
                        .deleter = delete_versioned,
                        .flags = (is_read_only ? ND_DLPACK_FLAG_READ_ONLY : 0) |
                                 (export->copy ? DLPACK_FLAG_IS_COPIED : 0) |
                                 (self->view.array.flags & NDBUS_SUBBYTE_PADDED
                                          ? ND_DLPACK_FLAG_SUBBYTE_PADDED
                                          : 0),
                        .dl_tensor = tensor,
                };
                capsule = PyCapsule_New(&export->versioned, CAPSULE_VERSIONED, capsule_free);
        } else {
                export->legacy = (DLManagedTensor){
                        .dl_tensor = tensor,
                        .manager_ctx = export,
                        .deleter = delete_legacy,
                };
                capsule = PyCapsule_New(&export->legacy, CAPSULE, capsule_free);
        }
        if (!capsule)
                export_free(export);
        return capsule;
}

PyObject *ndpy_dlpack_device(PyObject *self, PyObject *unused)
{
        (void)self;
        (void)unused;
        return Py_BuildValue("ii", kDLCPU, 0);
}
