// Products of float32, float16 and bfloat16 weights with float32 activations, in AVX-512: one fused
// multiply-add a weight, in increasing order of k. The bits are those of AVX2.
#include <immintrin.h>

#include <array>
#include <utility>

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/panel_product.h"

namespace cairn {
namespace {

// The weights of a unit (one k of the panel), as float32.
template <PanelFormat kFormat>
AVX512_INLINE __m512 Weights(const std::byte* unit) {
  if constexpr (kFormat == PanelFormat::kF32) return LoadFloats512(unit);
  if constexpr (kFormat == PanelFormat::kF16) return LoadHalves512(unit);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LoadInt(unit)), 16));
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
  RowAddresses<kRows, float> x(rows.values, rows.stride);
  __m512 lanes[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) lanes[row] = _mm512_load_ps(sums + row * kPanelOutputs);
  for (uint32_t k = 0; k < k_count; ++k, weights += kUnitBytes, x.Advance(1)) {
    const __m512 unit = Pinned(Weights<kFormat>(weights));
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      lanes[row] = _mm512_fmadd_ps(_mm512_set1_ps(*x[row]), unit, lanes[row]);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) _mm512_store_ps(sums + row * kPanelOutputs, lanes[row]);
}

template <PanelFormat kFormat, int... kIndex>
constexpr auto FloatTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<PanelTile<FloatRows>, sizeof...(kIndex)>{FloatTile<kIndex + 1, kFormat>...};
}

template <PanelFormat kPanelFormat>
struct FloatKernel {
  using Rows = FloatRows;
  // Enough sums to hide the latency of the multiply-adds.
  using Heights = std::make_integer_sequence<int, 12>;
  static constexpr PanelFormat kFormat = kPanelFormat;
  static constexpr uint32_t kChunkUnits = 128;
  static constexpr size_t kChunkBytes = kChunkUnits * kPanelOutputs * sizeof(float);
  static constexpr uint32_t kDirectRowsMax = 12;

  static const std::byte* Unpack(const std::byte* packed, uint32_t units, std::byte* chunk) {
    if constexpr (kFormat == PanelFormat::kF32) return packed;
    for (uint32_t k = 0; k < units; ++k, packed += UnitOf(kFormat).bytes) {
      StoreFloats512(chunk + k * 64, Weights<kFormat>(packed));
    }
    return chunk;
  }

  static constexpr auto kDirectTiles = FloatTiles<kFormat>(Heights());
  static constexpr auto kTiles = FloatTiles<PanelFormat::kF32>(Heights());
};

}  // namespace

void FloatProductAvx512(const PanelProductArgs& args) {
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
