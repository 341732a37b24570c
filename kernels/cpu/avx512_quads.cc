// Products of 4-bit weights with int8 activations (fast) or int16 activations as two planes of int8
// (exact), in AVX-512 with VNNI.
//
// For one group of 32 k and one output, with weights w = d * q + m and activations x = s * p:
//   sum over k of w * x  =  d * s * (sum of q * p)  +  m * (s * sum of p)
// vpdpbusd adds four products of unsigned and signed bytes to an int32 lane without saturation, so
// that the integer sum is exact: 32 * 15 * 32,639 < 2^24. For int16 activations p = 256 * high +
// low, the sum over the high plane is shifted by 8 bits and the low plane's products are added to
// it. Two floating-point additions a group, in increasing order of k, the offset's first: the bits
// are those of AVX2.
#include <immintrin.h>

#include <array>
#include <utility>

#include "kernels/cpu/avx512_product.h"

namespace cairn {
namespace {

constexpr size_t kQuadVectorBytes = 64;

// A group in the packed panel.
template <PanelFormat kFormat>
struct PackedGroup {
  static constexpr bool kHasOffset = kFormat == PanelFormat::kQ4QuadsMin;
  static constexpr size_t kBytes = UnitOf(kFormat).bytes;
  static constexpr size_t kScaleBytes = (kHasOffset ? 4 : 2) * kPanelOutputs;

  // Quants of all outputs at k = 16 * part + 4 * quad ...
  AVX512_INLINE static __m512i Quants(const std::byte* group, int quad, int part) {
    const __m512i both = LoadInt512(group + kScaleBytes + quad * kQuadVectorBytes);
    const __m512i wanted = part == 0 ? both : _mm512_srli_epi16(both, 4);
    return _mm512_and_si512(wanted, _mm512_set1_epi8(15));
  }
  AVX512_INLINE static __m512 Scale(const std::byte* group) { return LoadHalves512(group); }
  AVX512_INLINE static __m512 Offset(const std::byte* group) {
    if constexpr (kHasOffset) return LoadHalves512(group + kPanelOutputs * 2);
    return _mm512_mul_ps(Scale(group), _mm512_set1_ps(-8.0f));
  }
};

// Activations from one row on; kPlanes bytes a value.
template <int kPlanes>
struct QuadRows {
  QuadRows(const Activations& x, uint32_t row)
      : values(static_cast<const int8_t*>(x.values) + size_t{row} * x.cols * kPlanes),
        scales(x.scales + size_t{row} * (x.cols / kQuantGroup)),
        value_stride(size_t{x.cols} * kPlanes),
        scale_stride(x.cols / kQuantGroup) {}

  const int8_t* values;
  const GroupScale* scales;
  size_t value_stride;
  size_t scale_stride;
};

template <int kRows, int kPanels, int kPlanes, class Group>
[[gnu::noinline]] void QuadTile(const Avx512TileArgs<QuadRows<kPlanes>>& args) {
  RowAddresses<kRows, int8_t> x(args.rows.values, args.rows.value_stride);
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
#pragma GCC unroll 2
    for (int plane = 0; plane < kPlanes; ++plane) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
        for (int panel = 0; panel < kPanels; ++panel) {
          lanes[row][panel] =
              plane == 0 ? _mm512_setzero_si512() : _mm512_slli_epi32(lanes[row][panel], 8);
        }
      }
#pragma GCC unroll 8
      for (int step = 0; step < 8; ++step) {
        const int quad = step / 2, part = step % 2;
        const int at = plane * kQuantGroup + part * 16 + quad * 4;
        __m512i quants[kPanels];
#pragma GCC unroll 2
        for (int panel = 0; panel < kPanels; ++panel) {
          quants[panel] = Pinned(Group::Quants(weights + panel * panel_bytes, quad, part));
        }
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          __m512i four = Broadcast32Wide(x[row] + at);
          if constexpr (kPanels > 1) four = Pinned(four);
#pragma GCC unroll 2
          for (int panel = 0; panel < kPanels; ++panel) {
            lanes[row][panel] = Pinned(_mm512_dpbusd_epi32(lanes[row][panel], quants[panel], four));
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      LoadNothingEarlier();
      const std::byte* const group_weights = weights + panel * panel_bytes;
      const __m512 scale = Group::Scale(group_weights), offset = Group::Offset(group_weights);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const GroupScale& group = *scales[row];
        __m512& total = totals[row][panel];
        const __m512 with_offset = _mm512_fmadd_ps(offset, _mm512_set1_ps(group.sum), total);
        const __m512 both_scales = _mm512_mul_ps(scale, _mm512_set1_ps(group.scale));
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(lanes[row][panel]), both_scales, with_offset);
      }
    }
    weights += Group::kBytes;
    x.Advance(kQuantGroup * kPlanes);
    scales.Advance(1);
  }
  StoreTile(args, totals);
}

template <int kPanels, int kPlanes, class Group, int... kIndex>
constexpr auto QuadTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<Avx512Tile<QuadRows<kPlanes>>, sizeof...(kIndex)>{
      QuadTile<kIndex + 1, kPanels, kPlanes, Group>...};
}

template <PanelFormat kPanelFormat, int kPlanes>
struct QuadKernel {
  using Rows = QuadRows<kPlanes>;
  using Packed = PackedGroup<kPanelFormat>;
  static constexpr PanelFormat kFormat = kPanelFormat;

  // 12 integer and 12 float sums, a weight, its scale and offset and what an addition needs fill
  // the 32 registers.
  static constexpr auto kOnePanelTiles =
      QuadTiles<1, kPlanes, Packed>(std::make_integer_sequence<int, 12>());
  static constexpr auto kTwoPanelTiles =
      QuadTiles<2, kPlanes, Packed>(std::make_integer_sequence<int, 6>());
};

template <PanelFormat kFormat>
void ProductOfFormat(const PanelProductArgs& args) {
  if (args.x.form == ActivationForm::kInt8) {
    return ProductByAvx512Tiles<QuadKernel<kFormat, 1>>(args);
  }
  ProductByAvx512Tiles<QuadKernel<kFormat, 2>>(args);
}

}  // namespace

void QuadProductAvx512(const PanelProductArgs& args) {
  if (args.weight->format() == PanelFormat::kQ4Quads) {
    return ProductOfFormat<PanelFormat::kQ4Quads>(args);
  }
  ProductOfFormat<PanelFormat::kQ4QuadsMin>(args);
}

}  // namespace cairn
