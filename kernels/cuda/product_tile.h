// What both product kernels do with one block of a panel: load it, turn its codes into the
// fragments that mma takes, and add a group's sums to the partial sums of a tile.
#pragma once

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product.h"

namespace cairn::cuda {

// Whose block of the grid this is. (No indexing: parameters that are indexed move to memory.)
__device__ inline ProductOutput OutputOf(const ProductParams& params, uint32_t block) {
  ProductOutput output = params.outputs[0];
#pragma unroll
  for (uint32_t i = 1; i < kProductsMax; ++i) {
    if (block >= params.outputs[i].first_block) output = params.outputs[i];
  }
  return output;
}

__device__ inline float LowHalf(uint32_t pair) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair & 0xffffu)));
}
__device__ inline float HighHalf(uint32_t pair) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
}
__device__ inline uint32_t SubtractHalves(uint32_t a, uint32_t b) {
  const __half2 difference =
      __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&difference);
}

// A lane's part of one 64-k block of a panel, in registers.
template <TensorType kType>
class PanelBlock {
 public:
  __device__ void Load(const std::byte* block, uint32_t lane) {
    const uint4* const codes = reinterpret_cast<const uint4*>(block) + lane;
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) codes_[i] = __ldg(codes + i * 32);
    const std::byte* const scales = block + CodeBytes(kType);
    const uint32_t g = lane / 4;
    if constexpr (kType == TensorType::kQ4_1) {
      const uint4 pairs = __ldg(reinterpret_cast<const uint4*>(scales) + g);
      scales_[0] = pairs.x, scales_[1] = pairs.y, scales_[2] = pairs.z, scales_[3] = pairs.w;
    } else if constexpr (kType != TensorType::kF16) {
      const uint2 pairs = __ldg(reinterpret_cast<const uint2*>(scales) + g);
      scales_[0] = pairs.x, scales_[1] = pairs.y;
    }
  }

  // a[s] is the 16 x 16 fragment of step s of a group.
  __device__ void Fragments(uint32_t group, uint32_t (&a)[2][4]) const {
    if constexpr (kType == TensorType::kQ8_0) {
      const uint4 codes = codes_[group];
      BytesToHalves(codes.x, a[0][0], a[0][2]);
      BytesToHalves(codes.y, a[1][0], a[1][2]);
      BytesToHalves(codes.z, a[0][1], a[0][3]);
      BytesToHalves(codes.w, a[1][1], a[1][3]);
    } else if constexpr (kType == TensorType::kF16) {
      const uint4 upper = codes_[2 * group], lower = codes_[2 * group + 1];
      a[0][0] = upper.x, a[0][2] = upper.y, a[1][0] = upper.z, a[1][2] = upper.w;
      a[0][1] = lower.x, a[0][3] = lower.y, a[1][1] = lower.z, a[1][3] = lower.w;
    } else {
      const uint4 codes = codes_[0];
      const uint32_t upper = group == 0 ? codes.x : codes.z;
      const uint32_t lower = group == 0 ? codes.y : codes.w;
#pragma unroll
      for (uint32_t step = 0; step < 2; ++step) {
        a[step][0] = NibblesToHalves(upper >> (8 * step));
        a[step][1] = NibblesToHalves(lower >> (8 * step));
        a[step][2] = NibblesToHalves(upper >> (8 * step + 4));
        a[step][3] = NibblesToHalves(lower >> (8 * step + 4));
      }
    }
  }

  // Of output g (half 0) or g + 8 (half 1). Not for F16.
  __device__ float Scale(uint32_t group, uint32_t half) const {
    if constexpr (kType == TensorType::kQ4_1) {
      return LowHalf(scales_[2 * group + half]);
    } else {
      return half == 0 ? LowHalf(scales_[group]) : HighHalf(scales_[group]);
    }
  }
  __device__ float Offset(uint32_t group, uint32_t half) const {
    static_assert(kType == TensorType::kQ4_1);
    return HighHalf(scales_[2 * group + half]);
  }

 private:
  static constexpr uint32_t kVectors = CodeBytes(kType) / 512;
  static constexpr uint32_t kScaleWords = kType == TensorType::kQ4_1  ? 4
                                          : kType == TensorType::kF16 ? 1
                                                                      : 2;

  // A nibble under the exponent of 1024 is the float16 1024 + nibble.
  __device__ static uint32_t NibblesToHalves(uint32_t word) {
    constexpr uint32_t kBias = kType == TensorType::kQ4_0 ? 0x64086408u : 0x64006400u;
    return SubtractHalves((word & 0x000f000fu) | 0x64006400u, kBias);
  }
  // Bytes are kept with 128 added; 0x6480 is the float16 1152.
  __device__ static void BytesToHalves(uint32_t word, uint32_t& first, uint32_t& second) {
    first = SubtractHalves(__byte_perm(word, 0x64646464u, 0x4140), 0x64806480u);
    second = SubtractHalves(__byte_perm(word, 0x64646464u, 0x4342), 0x64806480u);
  }

  uint4 codes_[kVectors];
  uint32_t scales_[kScaleWords];
};

// The hi and lo halves of a group that a lane multiplies: elements 8 t .. 8 t + 7 of row g.
struct ActivationFragment {
  uint4 hi;
  uint4 lo;
};

__device__ inline void MultiplyGroup(const uint32_t (&a)[2][4], const uint4& b, float (&sums)[4]) {
  gpu::Mma(sums, a[0], {b.x, b.y}, sums);
  gpu::Mma(sums, a[1], {b.z, b.w}, sums);
}

// Adds group `group` of a panel to the partial sums of a 16 x 8 tile. Element i of a tile is output
// g + 8 (i / 2) and row 2 t + i % 2; scales are those of the rows 2 t and 2 t + 1.
template <TensorType kType>
__device__ void AddGroup(const PanelBlock<kType>& block, uint32_t group, const uint32_t (&a)[2][4],
                         const float (&output_scales)[2], const ActivationFragment& b,
                         const ActivationScale (&scales)[2], float (&partial)[4]) {
  float hi[4] = {}, lo[4] = {};
  MultiplyGroup(a, b.hi, hi);
  MultiplyGroup(a, b.lo, lo);
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t half = i / 2;
    const ActivationScale& row = scales[i % 2];
    float scale;
    if constexpr (kType == TensorType::kF16) {
      scale = output_scales[half];
    } else {
      scale = block.Scale(group, half);
    }
    if constexpr (kType == TensorType::kQ4_1) {
      partial[i] = fmaf(block.Offset(group, half), row.sum, partial[i]);
    }
    partial[i] = fmaf(scale * row.scale, fmaf(2048.0f, hi[i], lo[i]), partial[i]);
  }
}

}  // namespace cairn::cuda
