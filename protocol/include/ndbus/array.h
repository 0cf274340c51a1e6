/* SPDX-License-Identifier: MIT */
#ifndef NDBUS_ARRAY_H
#define NDBUS_ARRAY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most dimensions of an array. */
#define NDBUS_DIMS_MAX 64

/** Flags of struct ndbus_array. The first and third are DLPack's bits. */
#define NDBUS_READ_ONLY      1u /**< must not be written: shared, or elements overlap */
#define NDBUS_BIG_ENDIAN     2u /**< elements are in big-endian byte order, as they lie in memory */
#define NDBUS_SUBBYTE_PADDED 4u /**< elements narrower than a byte take one byte each */

/** One field of a record dtype. Owns nothing. */
struct ndbus_field {
        const char *name;     /**< UTF-8, 1 to 255 bytes */
        uint64_t offset;      /**< bytes from the start of the record */
        const char *dtype;    /**< as in struct ndbus_array; "record" for a nested one */
        uint32_t bits;        /**< of one element */
        uint32_t flags;       /**< NDBUS_BIG_ENDIAN or 0 */
        int32_t ndim;         /**< of a subarray; 0 for a plain field */
        uint32_t n_fields;    /**< of a nested record; else 0 */
        const int64_t *shape; /**< [ndim] */
        const struct ndbus_field *fields; /**< [n_fields] */
        const char *unit;                 /**< datetime64 and timedelta64, else NULL */
        uint32_t unit_count; /**< how many of unit make one step; 1 if unit is set and this is 0 */
        uint32_t reserved32;
        uint64_t reserved[2];
};

/**
 * A view of an n-dimensional array; owns nothing. The layout is frozen; reserved words are zero.
 *
 * Element (i0, i1, ...) lies at data + i0 * strides[0] + i1 * strides[1] + ..., in bytes.
 */
struct ndbus_array {
        const void *data;  /**< element (0, ..., 0); may be NULL only if the array is empty */
        const char *name;  /**< of this frame, or NULL */
        const char *dtype; /**< "float32", "bfloat16", "datetime64", "record" ...; NULL: raw bytes,
                                ndim 1, shape[0] of them */
        uint32_t
                bits; /**< of one lane of one element; of a record 8 * itemsize; 0: the dtype's own */
        uint16_t lanes; /**< vector width as in DLPack; 0 counts as 1 */
        uint16_t reserved16;
        int32_t ndim;           /**< 0 (one element) to NDBUS_DIMS_MAX */
        uint32_t flags;         /**< NDBUS_READ_ONLY, NDBUS_BIG_ENDIAN, NDBUS_SUBBYTE_PADDED */
        const int64_t *shape;   /**< [ndim] elements along each dimension, outermost first */
        const int64_t *strides; /**< [ndim] bytes between neighbours, any sign when sending, never
                                     negative when received; NULL: C order */
        const struct ndbus_field *fields; /**< [n_fields] of a record, else NULL */
        uint32_t n_fields;
        uint32_t unit_count; /**< see struct ndbus_field */
        const char *unit;    /**< "ns", "D" ...; datetime64 and timedelta64, else NULL */
        const char *codec;   /**< how the bytes are encoded, or NULL; a receiver that does not know
                                   the codec is given raw bytes */
        const char *device;  /**< where it lived: a hint, or NULL */
        uint64_t reserved[4];
};

#ifdef __cplusplus
}
#endif

#endif
