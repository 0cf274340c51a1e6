/* SPDX-License-Identifier: MIT */

/*
 * Arrays from and to DLPack
 *
 * An export keeps a reference to the memory of its one array and has its own copy of shape and
 * strides, so it needs neither the message nor the bus. DLPack counts strides in elements; ours are
 * bytes; what is no multiple of the element cannot be said there, nor records, nor dates, nor
 * foreign byte order. An array without bytes is exported with NULL for its data.
 */

#include "client/dlpack.h"
#include <stdatomic.h>
#include <string.h>
#include "client/detail.h"
#include "client/export.h"
#include "client/message.h"
#include "protocol/dtype.h"

_Static_assert(sizeof(void *) != 8 || sizeof(DLTensor) == 48, "DLPack's ABI");
_Static_assert(sizeof(void *) != 8 || sizeof(DLManagedTensor) == 64, "DLPack's ABI");
_Static_assert(sizeof(void *) != 8 || sizeof(DLManagedTensorVersioned) == 80, "DLPack's ABI");

/* One of the two tensors is used; both are freed by way of the same memory. */
struct export
{
        DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
        struct nd_buffer *keeper;
        int64_t numbers[]; /* shape, strides */
};

static void export_free(struct export *export)
{
        nd_buffer_unref(export->keeper);
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

static int export_type(const struct ndbus_array *array, size_t i, DLDataType *ret)
{
        const struct nd_dtype *dtype =
                array->dtype ? nd_dtype_find(array->dtype, strlen(array->dtype)) : NULL;
        uint32_t lanes = array->lanes ? array->lanes : 1;
        uint32_t bits = nd_layout_bits(array) / lanes;
        int code = dtype ? dtype->dlpack_code : -1;

        if (!array->dtype)
                code = 1; /* raw bytes: uint8 */
        if (code < 0 || code > UINT8_MAX || bits == 0 || bits > UINT8_MAX)
                return nd_detail_fail(NDBUS_EDTYPE, "arrays[%zu].dtype: DLPack cannot say \"%s\"",
                                      i, array->dtype);
        if (array->flags & NDBUS_BIG_ENDIAN)
                return nd_detail_fail(NDBUS_EENDIAN,
                                      "arrays[%zu].flags: the elements are big-endian", i);
        *ret = (DLDataType){.code = (uint8_t)code, .bits = (uint8_t)bits, .lanes = (uint16_t)lanes};
        return 0;
}

/* Shape and strides in elements, strides never left out. */
static int
export_numbers(const struct ndbus_array *array, size_t i, int64_t *shape, int64_t *strides)
{
        int64_t itemsize = nd_layout_bits(array) / 8, step = 1;

        for (int32_t d = array->ndim - 1; d >= 0; --d) {
                shape[d] = array->shape[d];
                if (!array->strides) {
                        strides[d] = step;
                        step *= shape[d] ? shape[d] : 1;
                        continue;
                }
                if (itemsize == 0 || array->strides[d] % itemsize)
                        return nd_detail_fail(NDBUS_EDTYPE,
                                              "arrays[%zu].strides[%d]: %lld bytes are no multiple "
                                              "of the element's %lld",
                                              i, d, (long long)array->strides[d],
                                              (long long)itemsize);
                strides[d] = array->strides[d] / itemsize;
        }
        return 0;
}

static int export_new(struct ndbus_message *m, size_t i, struct export **ret, DLTensor *ret_tensor)
{
        const struct ndbus_array *array;
        struct export *export;
        DLDataType type;
        size_t ndim;
        int r;

        if (!m || i >= m->n_arrays)
                return nd_detail_fail(NDBUS_EINVAL, "i_array: is %zu, the message has %zu arrays",
                                      i, m ? m->n_arrays : 0);
        array = &m->arrays[i];
        r = export_type(array, i, &type);
        if (r)
                return r;
        ndim = (size_t)array->ndim;
        export = calloc(1, sizeof(*export) + 2 * ndim * sizeof(int64_t));
        if (!export)
                return nd_detail_say(NDBUS_ENOMEM, "out of memory");
        r = export_numbers(array, i, export->numbers, export->numbers + ndim);
        if (r) {
                free(export);
                return r;
        }
        export->keeper = nd_buffer_ref(nd_message_keeper(m, i));
        *ret_tensor = (DLTensor){
                .data = m->shared->header->frames[i].bytes ? (void *)(uintptr_t)array->data : NULL,
                .device = {.device_type = kDLCPU},
                .ndim = array->ndim,
                .dtype = type,
                .shape = export->numbers,
                .strides = export->numbers + ndim,
        };
        *ret = export;
        return 0;
}

ND_PUBLIC int
ndbus_message_export(struct ndbus_message *m, size_t i_array, struct DLManagedTensorVersioned **ret)
{
        struct export *export;
        DLTensor tensor;
        uint32_t flags;
        int r;

        if (!ret)
                return nd_detail_say(NDBUS_EINVAL, "ret: is NULL");
        r = export_new(m, i_array, &export, &tensor);
        if (r)
                return r;
        flags = m->arrays[i_array].flags;
        export->versioned = (DLManagedTensorVersioned){
                .version = {ND_DLPACK_MAJOR, ND_DLPACK_MINOR},
                .manager_ctx = export,
                .deleter = delete_versioned,
                .flags = (flags & NDBUS_READ_ONLY ? ND_DLPACK_FLAG_READ_ONLY : 0) |
                         (flags & NDBUS_SUBBYTE_PADDED ? ND_DLPACK_FLAG_SUBBYTE_PADDED : 0),
                .dl_tensor = tensor,
        };
        *ret = &export->versioned;
        return 0;
}

ND_PUBLIC int ndbus_message_export_legacy(struct ndbus_message *m, size_t i_array, void **ret)
{
        struct export *export;
        DLTensor tensor;
        int r;

        if (!ret)
                return nd_detail_say(NDBUS_EINVAL, "ret: is NULL");
        if (m && i_array < m->n_arrays && m->arrays[i_array].flags & NDBUS_READ_ONLY)
                return nd_detail_fail(NDBUS_EINVAL,
                                      "arrays[%zu].flags: is read-only, which an old consumer "
                                      "cannot be told",
                                      i_array);
        r = export_new(m, i_array, &export, &tensor);
        if (r)
                return r;
        export->legacy = (DLManagedTensor){
                .dl_tensor = tensor,
                .manager_ctx = export,
                .deleter = delete_legacy,
        };
        *ret = &export->legacy;
        return 0;
}

/* Elements that do not take whole bytes have no strides in bytes: only C order will do. */
static int import_check_c_order(const DLTensor *tensor)
{
        int64_t step = 1;

        for (int d = tensor->ndim - 1; d >= 0; --d) {
                if (tensor->shape[d] != 1 && tensor->strides[d] != step)
                        return nd_detail_fail(NDBUS_ESHAPE,
                                              "strides[%d]: is %lld, elements of %u bits must lie "
                                              "in C order",
                                              d, (long long)tensor->strides[d], tensor->dtype.bits);
                if (nd_mul_overflow(step, tensor->shape[d], &step))
                        return nd_detail_fail(NDBUS_ESHAPE, "shape: is too big");
        }
        return 0;
}

/* Bytes between neighbours, from elements. */
static int import_strides(const DLTensor *tensor, int64_t itemsize, int64_t *strides)
{
        if (itemsize == 0)
                return import_check_c_order(tensor);
        for (int d = 0; d < tensor->ndim; ++d)
                if (nd_mul_overflow(tensor->strides[d], itemsize, &strides[d]))
                        return nd_detail_fail(
                                NDBUS_ESHAPE,
                                "strides[%d]: %lld elements of %lld bytes are too many", d,
                                (long long)tensor->strides[d], (long long)itemsize);
        return 0;
}

static int import_type(const DLTensor *tensor, const struct nd_dtype **ret)
{
        const DLDataType *type = &tensor->dtype;

        if (type->lanes == 0)
                return nd_detail_say(NDBUS_EDTYPE, "dtype.lanes: is 0");
        *ret = nd_dtype_from_dlpack(type->code, type->bits);
        if (!*ret)
                return nd_detail_fail(NDBUS_EDTYPE, "dtype: code %u with %u bits is not known",
                                      type->code, type->bits);
        return 0;
}

ND_PUBLIC int ndbus_array_from_dlpack(const void *tensor_of_any_version,
                                      struct ndbus_array *ret,
                                      int64_t *strides)
{
        const DLTensor *tensor = tensor_of_any_version;
        const struct nd_dtype *dtype;
        int64_t itemsize;
        int r;

        if (!tensor || !ret || !strides)
                return nd_detail_say(NDBUS_EINVAL, "tensor, ret, strides: are NULL");
        if (tensor->device.device_type != kDLCPU && tensor->device.device_type != kDLCUDAHost &&
            tensor->device.device_type != kDLROCMHost)
                return nd_detail_fail(NDBUS_EDEVICE,
                                      "device: type %d cannot be sent, CPU (1) and pinned host "
                                      "memory (3, 11) can",
                                      (int)tensor->device.device_type);
        r = import_type(tensor, &dtype);
        if (r)
                return r;
        if (tensor->ndim < 0 || tensor->ndim > NDBUS_DIMS_MAX)
                return nd_detail_fail(NDBUS_ESHAPE, "ndim: is %d, the limit is %d", tensor->ndim,
                                      NDBUS_DIMS_MAX);
        if (tensor->ndim > 0 && !tensor->shape)
                return nd_detail_fail(NDBUS_ESHAPE, "shape: is NULL, ndim is %d", tensor->ndim);

        itemsize = (int64_t)tensor->dtype.bits * tensor->dtype.lanes;
        itemsize = itemsize % 8 ? 0 : itemsize / 8;
        if (tensor->strides) {
                r = import_strides(tensor, itemsize, strides);
                if (r)
                        return r;
        }
        *ret = (struct ndbus_array){
                .data = tensor->data ? (const uint8_t *)tensor->data + tensor->byte_offset : NULL,
                .dtype = dtype->name,
                .bits = tensor->dtype.bits,
                .lanes = tensor->dtype.lanes,
                .ndim = tensor->ndim,
                .shape = tensor->shape,
                .strides = tensor->strides && itemsize > 0 ? strides : NULL,
        };
        return 0;
}
