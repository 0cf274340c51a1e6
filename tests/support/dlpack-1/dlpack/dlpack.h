/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * Stands in for the header of DLPack 1.x where an older one is installed (T64)
 *
 * Names and layout are those of the published ABI; only what the library and its tests use.
 */

#include <stddef.h>
#include <stdint.h>

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1

#define DLPACK_FLAG_BITMASK_READ_ONLY              (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED              (1UL << 1UL)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL)

typedef struct {
        uint32_t major;
        uint32_t minor;
} DLPackVersion;

typedef enum {
        kDLCPU = 1,
        kDLCUDA = 2,
        kDLCUDAHost = 3,
        kDLROCMHost = 11,
        kDLOneAPI = 14,
} DLDeviceType;

typedef struct {
        DLDeviceType device_type;
        int32_t device_id;
} DLDevice;

typedef enum {
        kDLInt = 0U,
        kDLUInt = 1U,
        kDLFloat = 2U,
        kDLBfloat = 4U,
        kDLComplex = 5U,
        kDLBool = 6U,
} DLDataTypeCode;

typedef struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
} DLDataType;

typedef struct {
        void *data;
        DLDevice device;
        int32_t ndim;
        DLDataType dtype;
        int64_t *shape;
        int64_t *strides;
        uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
        DLTensor dl_tensor;
        void *manager_ctx;
        void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
        DLPackVersion version;
        void *manager_ctx;
        void (*deleter)(struct DLManagedTensorVersioned *self);
        uint64_t flags;
        DLTensor dl_tensor;
} DLManagedTensorVersioned;
