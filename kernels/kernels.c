/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel table: the list in kernels.inc, filtered by CPU flags. Also the sizes and names of the
 * weight formats. No state.
 */
#include "kernels/kernels.h"

#include <string.h>

void kwk_kernels_init(kwk_kernels *k, unsigned cpu)
{
    memset(k, 0, sizeof *k);
#define KWK_KERNEL(slot, isa, need)                                                                \
    if ((cpu & (unsigned)(need)) == (need))                                                        \
        k->slot = kwk_##slot##__##isa;
#include "kernels/kernels.inc"
#undef KWK_KERNEL
}

kwk_matmul_fn *kwk_kernels_matmul(const kwk_kernels *k, kwk_format format, kwk_form form)
{
    kwk_matmul_fn *const table[KWK_FORMAT_END][KWK_FORM_END] = {
        [KWK_F32] = {k->gemv_f32, k->small_f32, k->gemm_f32},
        [KWK_F16] = {k->gemv_f16, k->small_f16, k->gemm_f16},
        [KWK_BF16] = {k->gemv_bf16, k->small_bf16, k->gemm_bf16},
        [KWK_I8] = {k->gemv_i8, k->small_i8, k->gemm_i8},
        [KWK_I6] = {k->gemv_i6, k->small_i6, k->gemm_i6},
        [KWK_I4] = {k->gemv_i4, k->small_i4, k->gemm_i4},
    };

    if ((unsigned)format >= KWK_FORMAT_END || (unsigned)form >= KWK_FORM_END)
        return NULL;
    return table[format][form];
}

kwk_gather_fn *kwk_kernels_gather(const kwk_kernels *k, kwk_format format)
{
    switch (format) {
    case KWK_F32:
        return k->gather_f32;
    case KWK_F16:
        return k->gather_f16;
    case KWK_BF16:
        return k->gather_bf16;
    case KWK_I8:
        return k->gather_i8;
    case KWK_I6:
        return k->gather_i6;
    case KWK_I4:
        return k->gather_i4;
    case KWK_FORMAT_END:
        break;
    }
    return NULL;
}

size_t kwk_mat_tile_bytes(kwk_format format, int cols_pad)
{
    const size_t cols = (size_t)cols_pad;
    const size_t groups = cols / KWK_GROUP;
    const size_t supers = (cols + KWK_SUPER - 1) / KWK_SUPER;

    switch (format) {
    case KWK_F32:
        return cols * KWK_TILE * 4;
    case KWK_F16:
    case KWK_BF16:
        return cols * KWK_TILE * 2;
    case KWK_I8:
        return 2 * (supers * 32 + groups * 512);
    case KWK_I6:
        return 2 * (supers * 32 + groups * (16 + 384));
    case KWK_I4:
        return 2 * (supers * 32 + groups * (16 + 256));
    case KWK_FORMAT_END:
        break;
    }
    return 0;
}

const char *kwk_format_name(kwk_format format)
{
    switch (format) {
    case KWK_F32:
        return "float32";
    case KWK_F16:
        return "f16";
    case KWK_BF16:
        return "bf16";
    case KWK_I8:
        return "int8";
    case KWK_I6:
        return "int6";
    case KWK_I4:
        return "int4";
    case KWK_FORMAT_END:
        break;
    }
    return NULL;
}
