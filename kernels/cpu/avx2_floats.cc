// Products of float32, float16 and bfloat16 weights with float32 activations, in AVX2: one fused
// multiply-add a weight, in increasing order of k.
#include <immintrin.h>

#include <array>
#include <utility>

#include "kernels/cpu/avx2_product.h"

namespace cairn {
namespace {

// The 8 weights of half `half` of a unit (one k of the panel), as float32.
template <PanelFormat kFormat>
AVX2_INLINE __m256 Weights(const std::byte* unit, int half) {
  if constexpr (kFormat == PanelFormat::kF32) return LoadFloats(unit + half * 32);
  if constexpr (kFormat == PanelFormat::kF16) return LoadHalves(unit + half * 16);
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit + half * 16));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

struct FloatRows {
  FloatRows(const Activations& x, uint32_t row, uint32_t k)
      : values(static_cast<const float*>(x.values) + size_t{row} * x.cols + k), stride(x.cols) {}

  const float* values;
  size_t stride;
};

template <int kRows, PanelFormat kFormat>
[[gnu::noinline]] void FloatTile(const std::byte* weights, uint32_t k_count, const FloatRows& rows,
                                 float* sums) {
  constexpr size_t kUnitBytes = UnitOf(kFormat).bytes;
  const float* const x = rows.values;
  const size_t stride = rows.stride;
  __m256 lanes[kRows][2];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    lanes[row][0] = _mm256_load_ps(sums + row * kPanelOutputs);
    lanes[row][1] = _mm256_load_ps(sums + row * kPanelOutputs + 8);
  }
  for (uint32_t k = 0; k < k_count; ++k, weights += kUnitBytes) {
    const __m256 w0 = Pinned(Weights<kFormat>(weights, 0));
    const __m256 w1 = Pinned(Weights<kFormat>(weights, 1));
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const __m256 value = _mm256_broadcast_ss(x + row * stride + k);
      lanes[row][0] = _mm256_fmadd_ps(value, w0, lanes[row][0]);
      lanes[row][1] = _mm256_fmadd_ps(value, w1, lanes[row][1]);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    _mm256_store_ps(sums + row * kPanelOutputs, lanes[row][0]);
    _mm256_store_ps(sums + row * kPanelOutputs + 8, lanes[row][1]);
  }
}

template <PanelFormat kFormat, int... kIndex>
constexpr auto FloatTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<PanelTile<FloatRows>, sizeof...(kIndex)>{FloatTile<kIndex + 1, kFormat>...};
}

template <PanelFormat kPanelFormat>
struct FloatKernel {
  using Rows = FloatRows;
  // 12 sums, two weights and a broadcast fill the 16 registers.
  using Heights = std::make_integer_sequence<int, 6>;
  static constexpr PanelFormat kFormat = kPanelFormat;
  static constexpr uint32_t kChunkUnits = 64;
  static constexpr size_t kChunkBytes = kChunkUnits * kPanelOutputs * sizeof(float);
  static constexpr uint32_t kDirectRowsMax = 6;

  static const std::byte* Unpack(const std::byte* packed, uint32_t units, std::byte* chunk) {
    if constexpr (kFormat == PanelFormat::kF32) return packed;
    for (uint32_t k = 0; k < units; ++k, packed += UnitOf(kFormat).bytes) {
      StoreFloats(chunk + k * 64, Weights<kFormat>(packed, 0));
      StoreFloats(chunk + k * 64 + 32, Weights<kFormat>(packed, 1));
    }
    return chunk;
  }

  static constexpr auto kDirectTiles = FloatTiles<kFormat>(Heights());
  static constexpr auto kTiles = FloatTiles<PanelFormat::kF32>(Heights());
};

}  // namespace

void FloatProductAvx2(const PanelProductArgs& args) {
  switch (args.weight->format()) {
    case PanelFormat::kF32:
      return ProductByPanels<FloatKernel<PanelFormat::kF32>>(args);
    case PanelFormat::kF16:
      return ProductByPanels<FloatKernel<PanelFormat::kF16>>(args);
    default:
      return ProductByPanels<FloatKernel<PanelFormat::kBF16>>(args);
  }
}

}  // namespace cairn
