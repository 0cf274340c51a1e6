/* SPDX-License-Identifier: MIT */
#pragma once

/*
 * DLPack, whichever version is installed
 *
 * Headers older than 1.0 have no versioned tensor; it is declared here, to the published ABI. Type
 * codes are taken from the table of dtypes and never from the header's enum, which in old versions
 * ends with complex.
 */

#include <dlpack/dlpack.h>

#ifndef DLPACK_MAJOR_VERSION
typedef struct {
        uint32_t major;
        uint32_t minor;
} DLPackVersion;

typedef struct DLManagedTensorVersioned {
        DLPackVersion version;
        void *manager_ctx;
        void (*deleter)(struct DLManagedTensorVersioned *self);
        uint64_t flags;
        DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif

#define ND_DLPACK_MAJOR 1u
#define ND_DLPACK_MINOR 0u

#define ND_DLPACK_FLAG_READ_ONLY      UINT64_C(1)
#define ND_DLPACK_FLAG_SUBBYTE_PADDED UINT64_C(4)
