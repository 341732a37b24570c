// Products of int8 weights (Q8_0) with int16 activations, in AVX-512 with VNNI.
//
// For one group of 32 k and one output, with weights w = d * q and activations x = s * p:
//   sum over k of w * x  =  d * s * (sum of q * p)
// |q| <= 128 and |p| <= 32,639, so the sum stays below 2^27 and vpdpwssd, which adds two products
// to an int32 lane, is exact; one floating-point addition a group, in increasing order of k: the
// bits are those of AVX2.
#include <immintrin.h>

#include <array>
#include <utility>

#include "kernels/cpu/avx512_product.h"

namespace cairn {
namespace {

constexpr PanelFormat kPairs = PanelFormat::kQ8Pairs;
constexpr size_t kPackedScaleBytes = kPanelOutputs * 2;
struct PackedGroup {
  static constexpr size_t kBytes = UnitOf(kPairs).bytes;

  // Quants of all outputs at k = 2 * pair and 2 * pair + 1, widened.
  AVX512_INLINE static __m512i Quants(const std::byte* group, int pair) {
    return _mm512_cvtepi8_epi16(LoadInt(group + kPackedScaleBytes + pair * 32));
  }
  AVX512_INLINE static __m512 Scale(const std::byte* group) { return LoadHalves512(group); }
};

struct PairRows {
  PairRows(const Activations& x, uint32_t row)
      : values(static_cast<const int16_t*>(x.values) + size_t{row} * x.cols),
        scales(x.scales + size_t{row} * (x.cols / kQuantGroup)),
        value_stride(x.cols),
        scale_stride(x.cols / kQuantGroup) {}

  const int16_t* values;
  const GroupScale* scales;
  size_t value_stride;
  size_t scale_stride;
};

template <int kRows, int kPanels>
[[gnu::noinline]] void PairTile(const Avx512TileArgs<PairRows>& args) {
  using Group = PackedGroup;
  RowAddresses<kRows, int16_t> x(args.rows.values, args.rows.value_stride);
  RowAddresses<kRows, GroupScale> scales(args.rows.scales, args.rows.scale_stride);
  const std::byte* weights = args.weights;
  const size_t panel_bytes = args.panel_bytes;
  PacedPrefetch coming = args.coming;
  __m512 totals[kRows][kPanels];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) totals[row][panel] = _mm512_setzero_ps();
  }
  for (uint32_t i = 0; i < args.units; ++i) {
    coming.Step();
    __m512i lanes[kRows][kPanels];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
      for (int panel = 0; panel < kPanels; ++panel) lanes[row][panel] = _mm512_setzero_si512();
    }
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) {
      __m512i quants[kPanels];
#pragma GCC unroll 2
      for (int panel = 0; panel < kPanels; ++panel) {
        quants[panel] = Pinned(Group::Quants(weights + panel * panel_bytes, pair));
      }
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        __m512i two = Broadcast32Wide(x[row] + pair * 2);
        if constexpr (kPanels > 1) two = Pinned(two);
#pragma GCC unroll 2
        for (int panel = 0; panel < kPanels; ++panel) {
          lanes[row][panel] = Pinned(_mm512_dpwssd_epi32(lanes[row][panel], quants[panel], two));
        }
      }
    }
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      LoadNothingEarlier();
      const __m512 scale = Group::Scale(weights + panel * panel_bytes);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const __m512 both_scales = _mm512_mul_ps(scale, _mm512_set1_ps(scales[row]->scale));
        totals[row][panel] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(lanes[row][panel]), both_scales, totals[row][panel]);
      }
    }
    weights += Group::kBytes;
    x.Advance(kQuantGroup);
    scales.Advance(1);
  }
  StoreTile(args, totals);
}

template <int kPanels, int... kIndex>
constexpr auto PairTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<Avx512Tile<PairRows>, sizeof...(kIndex)>{PairTile<kIndex + 1, kPanels>...};
}

struct PairKernel {
  using Rows = PairRows;
  static constexpr PanelFormat kFormat = kPairs;
  // 12 integer and 12 float sums beside what an addition needs: the 32 registers hold no more.
  static constexpr auto kOnePanelTiles = PairTiles<1>(std::make_integer_sequence<int, 12>());
  static constexpr auto kTwoPanelTiles = PairTiles<2>(std::make_integer_sequence<int, 6>());
};

}  // namespace

void PairProductAvx512(const PanelProductArgs& args) { ProductByAvx512Tiles<PairKernel>(args); }

}  // namespace cairn
