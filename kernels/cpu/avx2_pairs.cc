// Products of int8 weights (Q8_0) with int16 activations, in AVX2.
//
// For one group of 32 k and one output, with weights w = d * q and activations x = s * p:
//   sum over k of w * x  =  d * s * (sum of q * p)
// |q| <= 128 and |p| <= 32,639, so the sum stays below 2^27 and is exact in int32; one
// floating-point addition a group, in increasing order of k.
#include <immintrin.h>

#include <array>
#include <utility>

#include "kernels/cpu/avx2_product.h"

namespace cairn {
namespace {

constexpr PanelFormat kPairs = PanelFormat::kQ8Pairs;
constexpr size_t kPackedScaleBytes = kPanelOutputs * 2;
constexpr size_t kUnpackedQuantBytes = kPanelOutputs * kQuantGroup * 2;
constexpr size_t kUnpackedGroupBytes = kUnpackedQuantBytes + kPanelOutputs * sizeof(float);

struct PackedGroup {
  static constexpr size_t kBytes = UnitOf(kPairs).bytes;

  // Quants of 8 outputs (of half `half`) at k = 2 * pair and 2 * pair + 1, widened.
  AVX2_INLINE static __m256i Quants(const std::byte* group, int pair, int half) {
    const std::byte* const bytes = group + kPackedScaleBytes + (pair * 2 + half) * 16;
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  AVX2_INLINE static __m256 Scale(const std::byte* group, int half) {
    return LoadHalves(group + half * 16);
  }
  AVX2_INLINE static void Prefetch(const std::byte* group) { PrefetchAhead(group, kBytes); }
};

struct UnpackedGroup {
  static constexpr size_t kBytes = kUnpackedGroupBytes;

  AVX2_INLINE static __m256i Quants(const std::byte* group, int pair, int half) {
    return LoadInt(group + (pair * 2 + half) * 32);
  }
  AVX2_INLINE static __m256 Scale(const std::byte* group, int half) {
    return LoadFloats(group + kUnpackedQuantBytes + half * 32);
  }
  AVX2_INLINE static void Prefetch(const std::byte*) {}
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
  const auto* x = reinterpret_cast<const std::byte*>(rows.values);
  const GroupScale* scales = rows.scales;
  const size_t x_stride = rows.value_stride * sizeof(int16_t), scale_stride = rows.scale_stride;
  for (uint32_t i = 0; i < group_count; ++i) {
    Group::Prefetch(weights);
    const std::byte* x3 = x + 3 * x_stride;  // an address can hold 1 or 2 strides, not 5
    asm("" : "+r"(x3));
    __m256i lanes[kRows][2];
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) {
      const __m256i w0 = Pinned(Group::Quants(weights, pair, 0));
      const __m256i w1 = Pinned(Group::Quants(weights, pair, 1));
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const __m256i two = Broadcast32((row < 3 ? x : x3) + row % 3 * x_stride + pair * 4);
        const __m256i t0 = _mm256_madd_epi16(w0, two), t1 = _mm256_madd_epi16(w1, two);
        lanes[row][0] = pair == 0 ? t0 : Pinned(_mm256_add_epi32(lanes[row][0], t0));
        lanes[row][1] = pair == 0 ? t1 : Pinned(_mm256_add_epi32(lanes[row][1], t1));
      }
    }
    LoadNothingEarlier();
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256 scale = Group::Scale(weights, half);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        float* const sum = sums + row * kPanelOutputs + half * 8;
        const __m256 both_scales =
            _mm256_mul_ps(scale, _mm256_broadcast_ss(&scales[row * scale_stride].scale));
        _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_cvtepi32_ps(lanes[row][half]), both_scales,
                                             _mm256_load_ps(sum)));
      }
    }
    weights += Group::kBytes;
    x += kQuantGroup * sizeof(int16_t);
    ++scales;
  }
}

template <class Group, int... kIndex>
constexpr auto PairTiles(std::integer_sequence<int, kIndex...>) {
  return std::array<PanelTile<PairRows>, sizeof...(kIndex)>{PairTile<kIndex + 1, Group>...};
}

struct PairKernel {
  using Rows = PairRows;
  static constexpr PanelFormat kFormat = kPairs;
  static constexpr uint32_t kChunkUnits = 6;
  static constexpr size_t kChunkBytes = kChunkUnits * kUnpackedGroupBytes;
  static constexpr uint32_t kDirectRowsMax = 8;

  static const std::byte* Unpack(const std::byte* packed, uint32_t units, std::byte* chunk) {
    std::byte* to = chunk;
    for (uint32_t i = 0; i < units; ++i, packed += PackedGroup::kBytes) {
      for (int pair = 0; pair < 16; ++pair) {
        for (int half = 0; half < 2; ++half, to += 32) {
          StoreInt(to, PackedGroup::Quants(packed, pair, half));
        }
      }
      for (int half = 0; half < 2; ++half, to += 32) {
        StoreFloats(to, PackedGroup::Scale(packed, half));
      }
    }
    return chunk;
  }

  // Heights that fill the 16 registers: two weights, a broadcast, a product and two sums a row.
  static constexpr auto kDirectTiles = PairTiles<PackedGroup>(std::make_integer_sequence<int, 5>());
  static constexpr auto kTiles = PairTiles<UnpackedGroup>(std::make_integer_sequence<int, 6>());
};

}  // namespace

void PairProductAvx2(const PanelProductArgs& args) { ProductByPanels<PairKernel>(args); }

}  // namespace cairn
