// Products of float32, float16 and bfloat16 weights with float32 activations, in AVX-512: one fused
// multiply-add a weight, in increasing order of k. The bits are those of AVX2.
#include <immintrin.h>

#include <array>
#include <utility>

#include "kernels/cpu/avx512_product.h"

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
  FloatRows(const Activations& x, uint32_t row)
      : values(static_cast<const float*>(x.values) + size_t{row} * x.cols), stride(x.cols) {}

  const float* values;
  size_t stride;
};

template <int kRows, int kPanels, PanelFormat kFormat>
[[gnu::noinline]] void FloatTile(const Avx512TileArgs<FloatRows>& args) {
  constexpr size_t kUnitBytes = UnitOf(kFormat).bytes;
  RowAddresses<kRows, float> x(args.rows.values, args.rows.stride);
  const std::byte* weights = args.weights;
  const size_t panel_bytes = args.panel_bytes;
  PacedPrefetch coming = args.coming;
  __m512 sums[kRows][kPanels];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) sums[row][panel] = _mm512_setzero_ps();
  }
  for (uint32_t k = 0; k < args.units; ++k, weights += kUnitBytes, x.Advance(1)) {
    coming.Step();
    __m512 units[kPanels];
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      units[panel] = Pinned(Weights<kFormat>(weights + panel * panel_bytes));
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      __m512 value = _mm512_set1_ps(*x[row]);
      if constexpr (kPanels > 1) value = Pinned(value);
#pragma GCC unroll 2
      for (int panel = 0; panel < kPanels; ++panel) {
        sums[row][panel] = _mm512_fmadd_ps(value, units[panel], sums[row][panel]);
      }
    }
  }
  StoreTile(args, sums);
}

template <int kPanels, PanelFormat kFormat, int... kIndex>
constexpr auto FloatTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<Avx512Tile<FloatRows>, sizeof...(kIndex)>{
      FloatTile<kIndex + 1, kPanels, kFormat>...};
}

template <PanelFormat kPanelFormat>
struct FloatKernel {
  using Rows = FloatRows;
  // Enough sums to hide the latency of the multiply-adds.
  using Heights = std::make_integer_sequence<int, 12>;
  static constexpr PanelFormat kFormat = kPanelFormat;
  static constexpr auto kOnePanelTiles = FloatTiles<1, kFormat>(Heights());
  static constexpr auto kTwoPanelTiles = FloatTiles<2, kFormat>(Heights());
};

}  // namespace

void FloatProductAvx512(const PanelProductArgs& args) {
  switch (args.weight->format()) {
    case PanelFormat::kF32:
      return ProductByAvx512Tiles<FloatKernel<PanelFormat::kF32>>(args);
    case PanelFormat::kF16:
      return ProductByAvx512Tiles<FloatKernel<PanelFormat::kF16>>(args);
    default:
      return ProductByAvx512Tiles<FloatKernel<PanelFormat::kBF16>>(args);
  }
}

}  // namespace cairn
