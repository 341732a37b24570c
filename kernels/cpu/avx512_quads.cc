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

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/panel_product.h"

namespace cairn {
namespace {

constexpr size_t kQuadVectorBytes = 64;
constexpr size_t kUnpackedNibbleBytes = kPanelOutputs * kQuantGroup;
constexpr size_t kUnpackedGroupBytes = kUnpackedNibbleBytes + 2 * kPanelOutputs * sizeof(float);

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
  AVX512_INLINE static void Prefetch(const std::byte* group) { PrefetchAhead(group, kBytes); }
};

// A group unpacked to bytes, in the order of use, with its scales and offsets as float32 behind it.
struct UnpackedGroup {
  static constexpr size_t kBytes = kUnpackedGroupBytes;

  AVX512_INLINE static __m512i Quants(const std::byte* group, int quad, int part) {
    return LoadInt512(group + (quad * 2 + part) * kQuadVectorBytes);
  }
  AVX512_INLINE static __m512 Scale(const std::byte* group) {
    return LoadFloats512(group + kUnpackedNibbleBytes);
  }
  AVX512_INLINE static __m512 Offset(const std::byte* group) {
    return LoadFloats512(group + kUnpackedNibbleBytes + kPanelOutputs * 4);
  }
  AVX512_INLINE static void Prefetch(const std::byte*) {}
};

// Activations from one row and one group on; kPlanes bytes a value.
template <int kPlanes>
struct QuadRows {
  QuadRows(const Activations& x, uint32_t row, uint32_t group)
      : values(static_cast<const int8_t*>(x.values) +
               (size_t{row} * x.cols + size_t{group} * kQuantGroup) * kPlanes),
        scales(x.scales + size_t{row} * (x.cols / kQuantGroup) + group),
        value_stride(size_t{x.cols} * kPlanes),
        scale_stride(x.cols / kQuantGroup) {}

  const int8_t* values;
  const GroupScale* scales;
  size_t value_stride;
  size_t scale_stride;
};

template <int kRows, int kPlanes, class Group>
[[gnu::noinline]] void QuadTile(const std::byte* weights, uint32_t group_count,
                                const QuadRows<kPlanes>& rows, float* sums) {
  RowAddresses<kRows, int8_t> x(rows.values, rows.value_stride);
  RowAddresses<kRows, GroupScale> scales(rows.scales, rows.scale_stride);
  __m512 totals[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) totals[row] = _mm512_load_ps(sums + row * kPanelOutputs);
  for (uint32_t i = 0; i < group_count; ++i) {
    Group::Prefetch(weights);
    __m512i lanes[kRows];
#pragma GCC unroll 2
    for (int plane = 0; plane < kPlanes; ++plane) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        lanes[row] = plane == 0 ? _mm512_setzero_si512() : _mm512_slli_epi32(lanes[row], 8);
      }
#pragma GCC unroll 8
      for (int step = 0; step < 8; ++step) {
        const int quad = step / 2, part = step % 2;
        const __m512i quants = Pinned(Group::Quants(weights, quad, part));
        const int at = plane * kQuantGroup + part * 16 + quad * 4;
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          lanes[row] =
              Pinned(_mm512_dpbusd_epi32(lanes[row], quants, Broadcast32Wide(x[row] + at)));
        }
      }
    }
    LoadNothingEarlier();
    const __m512 scale = Group::Scale(weights), offset = Group::Offset(weights);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const GroupScale& group = *scales[row];
      const __m512 with_offset = _mm512_fmadd_ps(offset, _mm512_set1_ps(group.sum), totals[row]);
      const __m512 both_scales = _mm512_mul_ps(scale, _mm512_set1_ps(group.scale));
      totals[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(lanes[row]), both_scales, with_offset);
    }
    weights += Group::kBytes;
    x.Advance(kQuantGroup * kPlanes);
    scales.Advance(1);
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) _mm512_store_ps(sums + row * kPanelOutputs, totals[row]);
}

template <int kPlanes, class Group, int... kIndex>
constexpr auto QuadTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<PanelTile<QuadRows<kPlanes>>, sizeof...(kIndex)>{
      QuadTile<kIndex + 1, kPlanes, Group>...};
}

template <PanelFormat kPanelFormat, int kPlanes>
struct QuadKernel {
  using Rows = QuadRows<kPlanes>;
  using Packed = PackedGroup<kPanelFormat>;
  // 12 integer and 12 float sums, a weight, its scale and offset and what an addition needs fill
  // the 32 registers.
  using Heights = std::make_integer_sequence<int, 12>;
  static constexpr PanelFormat kFormat = kPanelFormat;
  static constexpr uint32_t kChunkUnits = 18;
  static constexpr size_t kChunkBytes = kChunkUnits * kUnpackedGroupBytes;
  static constexpr uint32_t kDirectRowsMax = 24;

  static const std::byte* Unpack(const std::byte* packed, uint32_t units, std::byte* chunk) {
    std::byte* to = chunk;
    for (uint32_t i = 0; i < units; ++i, packed += Packed::kBytes) {
      for (int step = 0; step < 8; ++step, to += kQuadVectorBytes) {
        StoreInt512(to, Packed::Quants(packed, step / 2, step % 2));
      }
      StoreFloats512(to, Packed::Scale(packed));
      StoreFloats512(to + 64, Packed::Offset(packed));
      to += 128;
    }
    return chunk;
  }

  static constexpr auto kDirectTiles = QuadTiles<kPlanes, Packed>(Heights());
  static constexpr auto kTiles = QuadTiles<kPlanes, UnpackedGroup>(Heights());
};

template <PanelFormat kFormat>
void ProductOfFormat(const PanelProductArgs& args) {
  if (args.x.form == ActivationForm::kInt8) return ProductByPanels<QuadKernel<kFormat, 1>>(args);
  ProductByPanels<QuadKernel<kFormat, 2>>(args);
}

}  // namespace

void QuadProductAvx512(const PanelProductArgs& args) {
  if (args.weight->format() == PanelFormat::kQ4Quads) {
    return ProductOfFormat<PanelFormat::kQ4Quads>(args);
  }
  ProductOfFormat<PanelFormat::kQ4QuadsMin>(args);
}

}  // namespace cairn
