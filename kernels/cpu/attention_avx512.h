// What the two AVX-512 paths of attention share, and the paths. They are built like the AVX2 ones
// (attention_avx2.h), sixteen float32 in a register instead of eight, and larger tiles in the 32
// registers; merging and finishing are the AVX2 functions themselves. The operations for a query
// and their order are the same, hence so are the bits.
//
// Only sources that are compiled for AVX-512 may include this.
#pragma once

#include <immintrin.h>

#include <limits>

#include "kernels/cpu/attention_avx2.h"
#include "kernels/cpu/attention_strip.h"
#include "kernels/cpu/avx512.h"

namespace cairn::avx512 {

using avx2::MergeFactors;
using avx2::PrefetchBytes;
using avx2::ScaleQuery;
using avx2::WithConstant;

inline constexpr uint32_t kDirectGroupMax = 8;
inline constexpr uint32_t kLanes = 16;  // float32 in a register
static_assert(kLanes == kTileTokens);

// Both: sums <- sums merged with the spans, as AttentionKernels::attend.
// AttendDirect: strip.row_count is 1 and shape.group at most kDirectGroupMax.
void AttendDirect(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, AttentionSums sums, size_t sums_stride,
                  const AttentionScratch& scratch);
void AttendPanels(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, AttentionSums sums, size_t sums_stride,
                  const AttentionScratch& scratch);

// The first `count` <= 16 lanes.
AVX512_INLINE __mmask16 Lanes(uint32_t count) { return static_cast<__mmask16>((1u << count) - 1); }

using cairn::LoadHalves512;
// Zero, and nothing read, in the other lanes.
AVX512_INLINE __m512 LoadHalves512(const std::byte* from, __mmask16 lanes) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, from));
}

AVX512_INLINE __m256 UpperHalf(__m512 vector) { return _mm512_extractf32x8_ps(vector, 1); }

// As the one for eight lanes in simd_avx2.h, operation by operation.
AVX512_INLINE __m512 Exp2NonPositive(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(kExp2Min));  // the second operand where x is a NaN
  const __m512 shift = _mm512_set1_ps(kRoundingShift);
  const __m512 shifted = _mm512_add_ps(x, shift);
  const __m512 r = _mm512_sub_ps(x, _mm512_sub_ps(shifted, shift));
  __m512 sum = _mm512_set1_ps(kExp2Coefficients[5]);
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(kExp2Coefficients[4]));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(kExp2Coefficients[3]));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(kExp2Coefficients[2]));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(kExp2Coefficients[1]));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(kExp2Coefficients[0]));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), exponent));
}

// The largest of scores[0 .. count), 1 <= count; those from count to the next multiple of 16 become
// minus infinity.
AVX512_INLINE float MaskRow(float* scores, uint32_t count) {
  const uint32_t full = count / kLanes * kLanes;
  __m512 even = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 odd = even;  // two maxima, since one would wait for itself
  if (full != count) {
    even = _mm512_mask_load_ps(even, Lanes(count - full), scores + full);
    _mm512_store_ps(scores + full, even);
  }
  uint32_t t = 0;
  for (; t + 2 * kLanes <= full; t += 2 * kLanes) {
    even = _mm512_max_ps(even, _mm512_load_ps(scores + t));
    odd = _mm512_max_ps(odd, _mm512_load_ps(scores + t + kLanes));
  }
  if (t < full) odd = _mm512_max_ps(odd, _mm512_load_ps(scores + t));
  const __m512 both = _mm512_max_ps(even, odd);
  return HorizontalMax(_mm256_max_ps(_mm512_castps512_ps256(both), UpperHalf(both)));
}

// scores[0 .. count) become 2^(score - max), and at least the next 16 become 0. Returns their sum.
AVX512_INLINE float ExponentiateRow(float* scores, uint32_t count, float max) {
  const __m512 row_max = _mm512_set1_ps(max);
  __m256 sum = _mm256_setzero_ps();  // eight sums, as attention.h has it
  uint32_t t = 0;
  for (; t < count; t += kLanes) {
    const __m512 weight = Exp2NonPositive(_mm512_sub_ps(_mm512_load_ps(scores + t), row_max));
    _mm512_store_ps(scores + t, weight);
    sum = _mm256_add_ps(sum, _mm512_castps512_ps256(weight));
    sum = _mm256_add_ps(sum, UpperHalf(weight));
  }
  _mm512_store_ps(scores + t, _mm512_setzero_ps());
  return HorizontalSum(sum);
}

// values <- values * keep + later * add, for the lanes.
AVX512_INLINE void MergeValues(float* values, __m512 later, __m512 keep, __m512 add,
                               __mmask16 lanes) {
  const __m512 kept = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, values), keep);
  _mm512_mask_storeu_ps(values, lanes, _mm512_fmadd_ps(later, add, kept));
}

}  // namespace cairn::avx512
