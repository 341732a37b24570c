// Products of 4-bit weights with int8 activations (fast) or int16 activations as two planes of int8
// (exact), in AVX2.
//
// For one group of 32 k and one output, with weights w = d * q + m and activations x = s * p:
//   sum over k of w * x  =  d * s * (sum of q * p)  +  m * (s * sum of p)
// The integer sum is exact: q is in 0..15 and a byte p in -128..127, so a 16-bit lane of
// vpmaddubsw, which takes 16 of a group's 32 terms, stays within 16 * 15 * 128 = 30,720. Hence any
// order of the integer additions gives the same bits, and only the two floating-point additions a
// group have an order: increasing k, the offset's first.
#include <immintrin.h>

#include <array>
#include <utility>

#include "kernels/cpu/avx2_product.h"

namespace cairn {
namespace {

constexpr size_t kQuadVectorBytes = 32;
constexpr size_t kUnpackedNibbleBytes = kPanelOutputs * kQuantGroup;
constexpr size_t kUnpackedGroupBytes = kUnpackedNibbleBytes + 2 * kPanelOutputs * sizeof(float);

// A group in the packed panel.
template <PanelFormat kFormat>
struct PackedGroup {
  static constexpr bool kHasOffset = kFormat == PanelFormat::kQ4QuadsMin;
  static constexpr size_t kBytes = UnitOf(kFormat).bytes;
  static constexpr size_t kScaleBytes = (kHasOffset ? 4 : 2) * kPanelOutputs;

  // Quants of 8 outputs (of half `half`) at k = 16 * part + 4 * quad ...
  AVX2_INLINE static __m256i Quants(const std::byte* group, int quad, int part, int half) {
    const __m256i both = LoadInt(group + kScaleBytes + (quad * 2 + half) * kQuadVectorBytes);
    const __m256i wanted = part == 0 ? both : _mm256_srli_epi16(both, 4);
    return _mm256_and_si256(wanted, _mm256_set1_epi8(15));
  }
  AVX2_INLINE static __m256 Scale(const std::byte* group, int half) {
    return LoadHalves(group + half * 16);
  }
  AVX2_INLINE static __m256 Offset(const std::byte* group, int half) {
    if constexpr (kHasOffset) return LoadHalves(group + kPanelOutputs * 2 + half * 16);
    return _mm256_mul_ps(Scale(group, half), _mm256_set1_ps(-8.0f));
  }
  AVX2_INLINE static void Prefetch(const std::byte* group) { PrefetchAhead(group, kBytes); }
};

// A group unpacked to bytes, in the order of use, with its scales and offsets as float32 behind it.
struct UnpackedGroup {
  static constexpr size_t kBytes = kUnpackedGroupBytes;

  AVX2_INLINE static __m256i Quants(const std::byte* group, int quad, int part, int half) {
    return LoadInt(group + ((quad * 2 + part) * 2 + half) * kQuadVectorBytes);
  }
  AVX2_INLINE static __m256 Scale(const std::byte* group, int half) {
    return LoadFloats(group + kUnpackedNibbleBytes + half * 32);
  }
  AVX2_INLINE static __m256 Offset(const std::byte* group, int half) {
    return LoadFloats(group + kUnpackedNibbleBytes + kPanelOutputs * 4 + half * 32);
  }
  AVX2_INLINE static void Prefetch(const std::byte*) {}
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

// The exact integer sums of one row and 8 outputs over a group, as float32.
template <int kPlanes>
AVX2_INLINE __m256 TotalOfPlanes(const __m256i (&planes)[kPlanes][2], int half) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i total = _mm256_madd_epi16(planes[kPlanes - 1][half], ones);
  if constexpr (kPlanes == 2) {
    const __m256i high = _mm256_madd_epi16(planes[0][half], _mm256_set1_epi16(256));
    total = _mm256_add_epi32(total, high);
  }
  return _mm256_cvtepi32_ps(total);
}

template <int kRows, int kPlanes, class Group>
[[gnu::noinline]] void QuadTile(const std::byte* weights, uint32_t group_count,
                                const QuadRows<kPlanes>& rows, float* sums) {
  const int8_t* x = rows.values;
  const GroupScale* scales = rows.scales;
  const size_t x_stride = rows.value_stride, scale_stride = rows.scale_stride;
  for (uint32_t i = 0; i < group_count; ++i) {
    Group::Prefetch(weights);
    __m256i lanes[kRows][kPlanes][2];
#pragma GCC unroll 8
    for (int step = 0; step < 8; ++step) {
      const int quad = step / 2, part = step % 2;
      const __m256i w0 = Pinned(Group::Quants(weights, quad, part, 0));
      const __m256i w1 = Pinned(Group::Quants(weights, quad, part, 1));
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kPlanes; ++plane) {
          const __m256i four =
              Broadcast32(x + row * x_stride + plane * kQuantGroup + part * 16 + quad * 4);
          const __m256i t0 = _mm256_maddubs_epi16(w0, four);
          const __m256i t1 = _mm256_maddubs_epi16(w1, four);
          __m256i(&lane)[2] = lanes[row][plane];
          lane[0] = step == 0 ? t0 : Pinned(_mm256_add_epi16(lane[0], t0));
          lane[1] = step == 0 ? t1 : Pinned(_mm256_add_epi16(lane[1], t1));
        }
      }
    }
    LoadNothingEarlier();
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256 scale = Group::Scale(weights, half), offset = Group::Offset(weights, half);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const GroupScale& group = scales[row * scale_stride];
        float* const sum = sums + row * kPanelOutputs + half * 8;
        const __m256 with_offset =
            _mm256_fmadd_ps(offset, _mm256_broadcast_ss(&group.sum), _mm256_load_ps(sum));
        const __m256 both_scales = _mm256_mul_ps(scale, _mm256_broadcast_ss(&group.scale));
        _mm256_store_ps(sum, _mm256_fmadd_ps(TotalOfPlanes<kPlanes>(lanes[row], half), both_scales,
                                             with_offset));
      }
    }
    weights += Group::kBytes;
    x += kQuantGroup * kPlanes;
    ++scales;
  }
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
  static constexpr PanelFormat kFormat = kPanelFormat;
  static constexpr uint32_t kChunkUnits = 6;
  static constexpr size_t kChunkBytes = kChunkUnits * kUnpackedGroupBytes;
  static constexpr uint32_t kDirectRowsMax = kPlanes == 1 ? 8 : 6;

  static const std::byte* Unpack(const std::byte* packed, uint32_t units, std::byte* chunk) {
    std::byte* to = chunk;
    for (uint32_t i = 0; i < units; ++i, packed += Packed::kBytes) {
      for (int step = 0; step < 8; ++step) {
        for (int half = 0; half < 2; ++half, to += kQuadVectorBytes) {
          StoreInt(to, Packed::Quants(packed, step / 2, step % 2, half));
        }
      }
      for (int half = 0; half < 2; ++half) {
        StoreFloats(to + half * 32, Packed::Scale(packed, half));
        StoreFloats(to + 64 + half * 32, Packed::Offset(packed, half));
      }
      to += 128;
    }
    return chunk;
  }

  // Heights that fill the 16 registers: two weights, a broadcast, a product, 2 * kPlanes sums a
  // row; straight from the packed panel two vectors of nibbles besides.
  static constexpr auto kDirectTiles =
      QuadTiles<kPlanes, Packed>(std::make_integer_sequence < int, kPlanes == 1 ? 4 : 2 > ());
  static constexpr auto kTiles = QuadTiles<kPlanes, UnpackedGroup>(std::make_integer_sequence < int,
                                                                   kPlanes == 1 ? 5 : 3 > ());
};

template <PanelFormat kFormat>
void ProductOfFormat(const PanelProductArgs& args) {
  if (args.x.form == ActivationForm::kInt8) return ProductByPanels<QuadKernel<kFormat, 1>>(args);
  ProductByPanels<QuadKernel<kFormat, 2>>(args);
}

}  // namespace

void QuadProductAvx2(const PanelProductArgs& args) {
  if (args.weight->format() == PanelFormat::kQ4Quads) {
    return ProductOfFormat<PanelFormat::kQ4Quads>(args);
  }
  ProductOfFormat<PanelFormat::kQ4QuadsMin>(args);
}

}  // namespace cairn
