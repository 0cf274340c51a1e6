/* SPDX-License-Identifier: MIT */

/*
 * From and to DLPack, with whatever version of its header is installed: T07, T21, and what cannot
 * be said is refused and never reinterpreted.
 */

#include <criterion/criterion.h>
#include <ndbus/ndbus.h>
#include <stdlib.h>
#include <string.h>
#include "client/dlpack.h"

static DLTensor tensor_of(void *data, int ndim, int64_t *shape, uint8_t code, uint8_t bits)
{
        return (DLTensor){
                .data = data,
                .device = {.device_type = kDLCPU},
                .ndim = ndim,
                .dtype = {.code = code, .bits = bits, .lanes = 1},
                .shape = shape,
        };
}

/* A message of one array, as a receiver has it; *ret_bytes: free() after the message. */
static struct ndbus_message *message_of(const struct ndbus_array *array, void **ret_bytes)
{
        struct ndbus_message *m;
        size_t n;

        cr_assert_eq(ndbus_pack(array, 1, NULL, 0, ret_bytes, &n), 0, "%s", ndbus_detail());
        cr_assert_eq(ndbus_unpack(*ret_bytes, n, &m, NULL), 0, "%s", ndbus_detail());
        return m;
}

Test(dlpack, t21_null_strides_are_c_order)
{
        int32_t data[] = {0, 1, 2, 3, 4, 5};
        int64_t shape[] = {2, 3}, strides[2];
        DLTensor t = tensor_of(data, 2, shape, 0, 32);
        struct ndbus_array a;

        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), 0);
        cr_assert_str_eq(a.dtype, "int32");
        cr_assert_eq(a.bits, 32);
        cr_assert_eq(a.ndim, 2);
        cr_assert_null(a.strides);
        cr_assert_eq(a.data, data);
}

Test(dlpack, t21_byte_offset_and_strides)
{
        int32_t data[] = {0, 1, 2, 3, 4, 5};
        int64_t shape[] = {4}, elements[] = {1}, strides[1];
        DLTensor t = tensor_of(data, 1, shape, 0, 32);
        struct ndbus_array a;

        t.byte_offset = 8;
        t.strides = elements;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), 0);
        cr_assert_eq(a.data, data + 2);
        cr_assert_eq(a.strides[0], 4);
}

Test(dlpack, t21_other_devices_and_no_lanes_are_refused)
{
        int64_t shape[] = {1}, strides[1];
        DLTensor t = tensor_of(shape, 1, shape, 0, 32);
        struct ndbus_array a = {.ndim = 77};

        t.device.device_type = kDLCUDA;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), NDBUS_EDEVICE);
        t.device.device_type = kDLCUDAHost;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), 0);
        a.ndim = 77;
        t.device.device_type = kDLCPU;
        t.dtype.lanes = 0;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), NDBUS_EDTYPE);
        t.dtype = (DLDataType){.code = 99, .bits = 8, .lanes = 1};
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), NDBUS_EDTYPE);
        t.dtype = (DLDataType){.code = 0, .bits = 8, .lanes = 1};
        t.ndim = 65;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), NDBUS_ESHAPE);
        t.ndim = -1;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), NDBUS_ESHAPE);
        t.ndim = 1;
        t.strides = &(int64_t){INT64_MAX};
        t.dtype.bits = 64;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), NDBUS_ESHAPE);
        cr_assert_eq(a.ndim, 77, "nothing is written on failure");
}

Test(dlpack, elements_below_a_byte_must_lie_in_c_order)
{
        int64_t shape[] = {2, 4}, good[] = {4, 1}, bad[] = {1, 2}, strides[2];
        DLTensor t = tensor_of(shape, 2, shape, 17, 4);
        struct ndbus_array a;

        t.strides = good;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), 0, "%s", ndbus_detail());
        cr_assert_str_eq(a.dtype, "float4_e2m1fn");
        cr_assert_null(a.strides);
        t.strides = bad;
        cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), NDBUS_ESHAPE);
}

Test(dlpack, t07_bool_is_not_uint8_in_either_direction)
{
        uint8_t data[] = {1, 0, 1};
        int64_t shape[] = {3}, strides[1];

        static const struct {
                uint8_t code;
                const char *name;
        } types[] = {
                {6, "bool"}, {1, "uint8"}, {0, "int8"}, {10, "float8_e4m3fn"}, {12, "float8_e5m2"}};

        for (size_t i = 0; i < sizeof(types) / sizeof(*types); ++i) {
                DLTensor t = tensor_of(data, 1, shape, types[i].code, 8);
                DLManagedTensorVersioned *exported;
                struct ndbus_message *m;
                struct ndbus_array a;
                void *bytes;

                cr_assert_eq(ndbus_array_from_dlpack(&t, &a, strides), 0);
                cr_assert_str_eq(a.dtype, types[i].name);
                m = message_of(&a, &bytes);
                cr_assert_eq(ndbus_message_export(m, 0, &exported), 0, "%s", ndbus_detail());
                ndbus_message_free(m);
                cr_assert_eq(exported->dl_tensor.dtype.code, types[i].code);
                cr_assert_eq(exported->dl_tensor.dtype.bits, 8);
                cr_assert_arr_eq(exported->dl_tensor.data, data, 3);
                exported->deleter(exported);
                free(bytes);
        }
}

Test(dlpack, exports_say_shape_strides_and_read_only)
{
        uint8_t data[4096] = {0};
        int64_t shape[] = {2, 3, 4}, strides[] = {8, 16, 48};
        const struct ndbus_array a = {
                .data = data, .dtype = "float64", .ndim = 3, .shape = shape, .strides = strides};
        DLManagedTensorVersioned *t;
        struct ndbus_message *m;
        void *bytes, *legacy;

        m = message_of(&a, &bytes);
        cr_assert_eq(ndbus_message_export_legacy(m, 0, &legacy), NDBUS_EINVAL);
        cr_assert_eq(ndbus_message_export(m, 0, &t), 0);
        cr_assert_eq(t->version.major, 1);
        cr_assert_eq(t->flags & 1, 1, "bytes of the caller are not to be written");
        cr_assert_eq(t->dl_tensor.device.device_type, kDLCPU);
        cr_assert_eq(t->dl_tensor.ndim, 3);
        cr_assert_arr_eq(t->dl_tensor.shape, shape, sizeof(shape));
        cr_assert_eq(t->dl_tensor.strides[0], 1);
        cr_assert_eq(t->dl_tensor.strides[1], 2);
        cr_assert_eq(t->dl_tensor.strides[2], 6);
        cr_assert_eq(ndbus_message_own(m), 0);
        cr_assert_eq(ndbus_message_export_legacy(m, 0, &legacy), 0, "%s", ndbus_detail());
        ndbus_message_free(m);
        ((DLManagedTensor *)legacy)->deleter(legacy);
        t->deleter(t);
        free(bytes);
}

Test(dlpack, c_order_has_strides_too)
{
        uint16_t data[24] = {0};
        int64_t shape[] = {2, 3, 4};
        const struct ndbus_array a = {.data = data, .dtype = "uint16", .ndim = 3, .shape = shape};
        DLManagedTensorVersioned *t;
        struct ndbus_message *m;
        void *bytes;

        m = message_of(&a, &bytes);
        cr_assert_eq(ndbus_message_export(m, 0, &t), 0);
        cr_assert_eq(t->dl_tensor.strides[0], 12);
        cr_assert_eq(t->dl_tensor.strides[1], 4);
        cr_assert_eq(t->dl_tensor.strides[2], 1);
        t->deleter(t);
        ndbus_message_free(m);
        free(bytes);
}

Test(dlpack, t03_foreign_byte_order_is_not_reinterpreted)
{
        uint8_t data[32] = {0};
        int64_t shape[] = {4};
        const struct ndbus_array a = {.data = data,
                                      .dtype = "float64",
                                      .ndim = 1,
                                      .shape = shape,
                                      .flags = NDBUS_BIG_ENDIAN};
        DLManagedTensorVersioned *t = NULL;
        struct ndbus_message *m;
        void *bytes;

        m = message_of(&a, &bytes);
        cr_assert_eq(ndbus_message_export(m, 0, &t), NDBUS_EENDIAN);
        cr_assert_eq(ndbus_message_export(m, 1, &t), NDBUS_EINVAL);
        cr_assert_null(t);
        ndbus_message_free(m);
        free(bytes);
}

Test(dlpack, what_it_cannot_say_is_refused)
{
        uint8_t data[64] = {0};
        int64_t shape[] = {2}, strides[] = {12};
        const struct ndbus_array arrays[] = {
                {.data = data, .dtype = "datetime64", .ndim = 1, .shape = shape, .unit = "ns"},
                {.data = data, .dtype = "ucs4", .bits = 64, .ndim = 1, .shape = shape},
                {.data = data, .dtype = "opaque", .bits = 8 * 300, .ndim = 0, .shape = shape},
        };
        const struct ndbus_array odd = {
                .data = data, .dtype = "float64", .ndim = 1, .shape = shape, .strides = strides};
        DLManagedTensorVersioned *t = NULL;
        struct ndbus_message *m;
        void *bytes;

        for (size_t i = 0; i < 2; ++i) {
                m = message_of(&arrays[i], &bytes);
                cr_assert_eq(ndbus_message_export(m, 0, &t), NDBUS_EDTYPE, "%zu", i);
                ndbus_message_free(m);
                free(bytes);
        }
        /* such strides are gathered by the sender, so they come as C order */
        m = message_of(&odd, &bytes);
        cr_assert_eq(ndbus_message_export(m, 0, &t), 0);
        t->deleter(t);
        ndbus_message_free(m);
        free(bytes);
}

Test(dlpack, t11_t12_scalars_and_empty_arrays)
{
        const float value = 7.0f;
        static const int64_t shape[] = {3, 0, 5};
        const struct ndbus_array scalar = {.data = &value, .dtype = "float32"};
        const struct ndbus_array empty = {.dtype = "float32", .ndim = 3, .shape = shape};
        DLManagedTensorVersioned *t;
        struct ndbus_message *m;
        void *bytes;

        m = message_of(&scalar, &bytes);
        cr_assert_eq(ndbus_message_export(m, 0, &t), 0);
        cr_assert_eq(t->dl_tensor.ndim, 0);
        cr_assert_eq(*(float *)t->dl_tensor.data, 7.0f);
        t->deleter(t);
        ndbus_message_free(m);
        free(bytes);

        m = message_of(&empty, &bytes);
        cr_assert_eq(ndbus_message_export(m, 0, &t), 0);
        cr_assert_eq(t->dl_tensor.ndim, 3);
        cr_assert_arr_eq(t->dl_tensor.shape, shape, sizeof(shape));
        cr_assert_null(t->dl_tensor.data);
        t->deleter(t);
        ndbus_message_free(m);
        free(bytes);
}
