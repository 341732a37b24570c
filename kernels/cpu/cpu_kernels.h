// What an instruction set brings to the CPU backend: one table of functions. The backend chooses a
// table once, shares rows and panels out among the threads and calls the table for each share.
// A new instruction set is a new set of files and one more table.
//
// Every function obeys the row-local law of kernels/ops.h: how rows and panels are shared out never
// changes a bit. Tables may differ from one another in the last bits.
// Threads: all functions may be called from several threads at once for disjoint shares.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace cairn {

// How a product sees its activations.
//   kFloat     float32 [row][k]
//   kInt16     int16   [row][k],                 |q| <= 32639, scale and sum a group
//   kInt8Pair  int8    [row][group][2][32],      the same q as 256 * high + low, high first
//   kInt8      int8    [row][k],                 |q| <= 127
// Activations are x = scale * q, rounded to nearest even; scale is max |x| / limit over the group.
enum class ActivationForm : uint8_t { kFloat, kInt16, kInt8Pair, kInt8 };
inline constexpr size_t kActivationFormCount = 4;

// 127 * 256 + 127: the largest q whose two bytes are both signed.
inline constexpr float kInt16Limit = 32639.0f;
inline constexpr float kInt8Limit = 127.0f;
// A group that is smaller than this throughout is taken as zero; its scale would not be normal.
inline constexpr float kQuantizedMin = 1e-30f;

constexpr size_t BytesPerActivation(ActivationForm form) {
  return form == ActivationForm::kFloat ? 4 : form == ActivationForm::kInt8 ? 1 : 2;
}

constexpr ActivationForm FormFor(PanelFormat format, bool fine) {
  switch (format) {
    case PanelFormat::kF32:
    case PanelFormat::kF16:
    case PanelFormat::kBF16:
      return ActivationForm::kFloat;
    case PanelFormat::kQ8Pairs:
      return ActivationForm::kInt16;
    case PanelFormat::kQ4Quads:
    case PanelFormat::kQ4QuadsMin:
      return fine ? ActivationForm::kInt8Pair : ActivationForm::kInt8;
  }
  return ActivationForm::kFloat;
}

struct GroupScale {
  float scale;
  float sum;  // scale * (sum of q), for weights with an offset
};

struct Activations {
  ActivationForm form;
  uint32_t cols;
  const void* values;        // [row][cols] in the form's order
  const GroupScale* scales;  // [row][cols / kQuantGroup]; null for kFloat
};

// Puts rows [row_begin, row_end) of x into a form.
struct QuantizeArgs {
  const float* x;  // [row][cols]
  uint32_t cols;
  ActivationForm form;  // not kFloat
  void* values;
  GroupScale* scales;
};

// y[row][output] for rows [row_begin, row_end) and the outputs of panels [panel_begin, panel_end).
struct PanelProductArgs {
  const PackedWeight* weight;
  Activations x;
  float* y;  // [row][weight->rows()]
  uint32_t row_begin;
  uint32_t row_end;
  uint32_t panel_begin;
  uint32_t panel_end;
};

struct CpuKernels {
  const char* instruction_set;  // as in CpuBackendOptions and in the backend's arithmetic

  void (*quantize)(const QuantizeArgs& args, uint32_t row_begin, uint32_t row_end);
  void (*panel_product)(const PanelProductArgs& args);
  void (*rms_norm)(const RmsNormArgs& args, uint32_t row_begin, uint32_t row_end);
  void (*rope_write_kv)(const RopeWriteKvArgs& args, uint32_t row_begin, uint32_t row_end);
  void (*swiglu)(const SwiGluArgs& args, uint32_t row_begin, uint32_t row_end);
  void (*paged_attention)(const PagedAttentionArgs& args, ThreadPool& pool);
};

extern const CpuKernels kPortableKernels;
#if defined(__x86_64__)
extern const CpuKernels kAvx2Kernels;    // needs AVX2, FMA and F16C
extern const CpuKernels kAvx512Kernels;  // needs AVX-512 F, BW, DQ, VL and VNNI besides
#endif

}  // namespace cairn
