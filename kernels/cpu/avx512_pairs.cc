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

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/panel_product.h"

namespace cairn {
namespace {

constexpr PanelFormat kPairs = PanelFormat::kQ8Pairs;
constexpr size_t kPackedScaleBytes = kPanelOutputs * 2;
constexpr size_t kUnpackedQuantBytes = kPanelOutputs * kQuantGroup * 2;
constexpr size_t kUnpackedGroupBytes = kUnpackedQuantBytes + kPanelOutputs * sizeof(float);

struct PackedGroup {
  static constexpr size_t kBytes = UnitOf(kPairs).bytes;

  // Quants of all outputs at k = 2 * pair and 2 * pair + 1, widened.
  AVX512_INLINE static __m512i Quants(const std::byte* group, int pair) {
    return _mm512_cvtepi8_epi16(LoadInt(group + kPackedScaleBytes + pair * 32));
  }
  AVX512_INLINE static __m512 Scale(const std::byte* group) { return LoadHalves512(group); }
  AVX512_INLINE static void Prefetch(const std::byte* group) { PrefetchAhead(group, kBytes); }
};

struct UnpackedGroup {
  static constexpr size_t kBytes = kUnpackedGroupBytes;

  AVX512_INLINE static __m512i Quants(const std::byte* group, int pair) {
    return LoadInt512(group + pair * 64);
  }
  AVX512_INLINE static __m512 Scale(const std::byte* group) {
    return LoadFloats512(group + kUnpackedQuantBytes);
  }
  AVX512_INLINE static void Prefetch(const std::byte*) {}
};

struct PairRows {
  PairRows(const Activations& x, uint32_t row, uint32_t group)
      : values(static_cast<const int16_t*>(x.values) + size_t{row} * x.cols +
               size_t{group} * kQuantGroup),
        scales(x.scales + size_t{row} * (x.cols / kQuantGroup) + group),
        value_stride(x.cols),
        scale_stride(x.cols / kQuantGroup) {}

  const int16_t* values;
  const GroupScale* scales;
  size_t value_stride;
  size_t scale_stride;
};

template <int kRows, class Group>
[[gnu::noinline]] void PairTile(const std::byte* weights, uint32_t group_count,
                                const PairRows& rows, float* sums) {
  RowAddresses<kRows, int16_t> x(rows.values, rows.value_stride);
  RowAddresses<kRows, GroupScale> scales(rows.scales, rows.scale_stride);
  __m512 totals[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) totals[row] = _mm512_load_ps(sums + row * kPanelOutputs);
  for (uint32_t i = 0; i < group_count; ++i) {
    Group::Prefetch(weights);
    __m512i lanes[kRows];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) lanes[row] = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) {
      const __m512i quants = Pinned(Group::Quants(weights, pair));
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        lanes[row] =
            Pinned(_mm512_dpwssd_epi32(lanes[row], quants, Broadcast32Wide(x[row] + pair * 2)));
      }
    }
    LoadNothingEarlier();
    const __m512 scale = Group::Scale(weights);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const __m512 both_scales = _mm512_mul_ps(scale, _mm512_set1_ps(scales[row]->scale));
      totals[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(lanes[row]), both_scales, totals[row]);
    }
    weights += Group::kBytes;
    x.Advance(kQuantGroup);
    scales.Advance(1);
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) _mm512_store_ps(sums + row * kPanelOutputs, totals[row]);
}

template <class Group, int... kIndex>
constexpr auto PairTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<PanelTile<PairRows>, sizeof...(kIndex)>{PairTile<kIndex + 1, Group>...};
}

struct PairKernel {
  using Rows = PairRows;
  // 12 integer and 12 float sums beside what an addition needs: the 32 registers hold no more.
  using Heights = std::make_integer_sequence<int, 12>;
  static constexpr PanelFormat kFormat = kPairs;
  static constexpr uint32_t kChunkUnits = 18;
  static constexpr size_t kChunkBytes = kChunkUnits * kUnpackedGroupBytes;
  static constexpr uint32_t kDirectRowsMax = 24;

  static const std::byte* Unpack(const std::byte* packed, uint32_t units, std::byte* chunk) {
    std::byte* to = chunk;
    for (uint32_t i = 0; i < units; ++i, packed += PackedGroup::kBytes) {
      for (int pair = 0; pair < 16; ++pair, to += 64) {
        StoreInt512(to, PackedGroup::Quants(packed, pair));
      }
      StoreFloats512(to, PackedGroup::Scale(packed));
      to += 64;
    }
    return chunk;
  }

  static constexpr auto kDirectTiles = PairTiles<PackedGroup>(Heights());
  static constexpr auto kTiles = PairTiles<UnpackedGroup>(Heights());
};

}  // namespace

void PairProductAvx512(const PanelProductArgs& args) { ProductByPanels<PairKernel>(args); }

}  // namespace cairn
