// What the two AVX2 paths of attention share, and the paths. Both do the same operations for a
// query, in the order that attention.h gives: sums of products by fma.
//
//   AttendDirect  one row with few heads a KV head (decode): K and V are read as they lie, turned
//                 into float32 in registers; limited by memory
//   AttendPanels  many queries: K and V go through panels of float32 in the first-level cache,
//                 which tiles of six queries then multiply; limited by arithmetic
//
// Only sources that are compiled with AVX2, FMA and F16C may include this.
#pragma once

#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "kernels/cpu/attention_strip.h"
#include "kernels/cpu/simd_avx2.h"

namespace cairn::avx2 {

inline constexpr uint32_t kDirectGroupMax = 8;

// Both: sums <- sums merged with the spans, as AttentionKernels::attend.
// AttendDirect: strip.row_count is 1 and shape.group at most kDirectGroupMax.
void AttendDirect(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, AttentionSums sums, size_t sums_stride,
                  const AttentionScratch& scratch);
void AttendPanels(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, AttentionSums sums, size_t sums_stride,
                  const AttentionScratch& scratch);

// As AttentionKernels has them.
void Merge(const AttentionShape& shape, const AttentionSums& into, const AttentionSums& from,
           uint32_t query_begin, uint32_t query_end);
void Finish(const AttentionShape& shape, const AttentionStrip& strip, const AttentionSums& sums,
            uint32_t query_begin, uint32_t query_end);

// f(integral_constant of value) for a value in 1 .. kMax, so that it becomes a template argument.
template <int kMax, class F>
AVX2_INLINE void WithConstant(uint32_t value, F&& f) {
  if constexpr (kMax > 1) {
    if (value != kMax) return WithConstant<kMax - 1>(value, f);
  }
  f(std::integral_constant<int, kMax>{});
}

// Always inlined: GCC takes a function that does nothing but this for one without effect, and drops
// the calls.
template <int kHint>
AVX2_INLINE void PrefetchBytes(const std::byte* from, size_t size_bytes) {
  for (size_t i = 0; i < size_bytes; i += 64)
    _mm_prefetch(from + i, static_cast<decltype(_MM_HINT_T0)>(kHint));
}

// to[d] = q[d] * log2(e).
AVX2_INLINE void ScaleQuery(const float* q, uint32_t head_dim, float* to) {
  for (uint32_t d = 0; d < head_dim; d += 8) {
    _mm256_store_ps(to + d, _mm256_mul_ps(_mm256_loadu_ps(q + d), _mm256_set1_ps(kLog2E)));
  }
}

// The largest of scores[0 .. count), 1 <= count; those from count to the next multiple of 8 become
// minus infinity.
AVX2_INLINE float MaskRow(float* scores, uint32_t count) {
  const uint32_t full = count & ~7u;
  __m256 even = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  __m256 odd = even;  // two maxima, since one would wait for itself
  if (full != count) {
    even = _mm256_blendv_ps(even, _mm256_load_ps(scores + full), FirstLanes(count - full));
    _mm256_store_ps(scores + full, even);
  }
  uint32_t t = 0;
  for (; t + 16 <= full; t += 16) {
    even = _mm256_max_ps(even, _mm256_load_ps(scores + t));
    odd = _mm256_max_ps(odd, _mm256_load_ps(scores + t + 8));
  }
  if (t < full) odd = _mm256_max_ps(odd, _mm256_load_ps(scores + t));
  return HorizontalMax(_mm256_max_ps(even, odd));
}

// scores[0 .. count) become 2^(score - max), and at least the next 8 become 0. Returns their sum.
AVX2_INLINE float ExponentiateRow(float* scores, uint32_t count, float max) {
  const __m256 row_max = _mm256_set1_ps(max);
  __m256 sum = _mm256_setzero_ps();
  uint32_t t = 0;
  for (; t < count; t += 8) {
    const __m256 weight = Exp2NonPositive(_mm256_sub_ps(_mm256_load_ps(scores + t), row_max));
    _mm256_store_ps(scores + t, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  _mm256_store_ps(scores + t, _mm256_setzero_ps());
  return HorizontalSum(sum);
}

// Merges the maxima and sums of a later span into those of `count` <= 8 queries, and gives the
// factors that do the same for their values: values * keep + later values * add. A query that ends
// before the later span has the maximum minus infinity there, and stays as it is. Reads eight of
// each and writes eight factors.
AVX2_INLINE void MergeFactors(uint32_t count, float* max, float* sum, const float* later_max,
                              const float* later_sum, float* keep_out, float* add_out) {
  const __m256 before = _mm256_loadu_ps(max);
  const __m256 later = _mm256_loadu_ps(later_max);
  const __m256 both = _mm256_max_ps(before, later);
  const __m256 keep = Exp2NonPositive(_mm256_sub_ps(before, both));
  const __m256 add = Exp2NonPositive(_mm256_sub_ps(later, both));
  const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(sum), keep);
  const __m256 both_sum = _mm256_fmadd_ps(_mm256_loadu_ps(later_sum), add, kept);
  const __m256i lanes = _mm256_castps_si256(FirstLanes(count));
  _mm256_maskstore_ps(max, lanes, both);
  _mm256_maskstore_ps(sum, lanes, both_sum);
  _mm256_storeu_ps(keep_out, keep);
  _mm256_storeu_ps(add_out, add);
}

// values <- values * keep + later * add, 8 dimensions.
AVX2_INLINE void MergeValues(float* values, __m256 later, __m256 keep, __m256 add) {
  const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(values), keep);
  _mm256_storeu_ps(values, _mm256_fmadd_ps(later, add, kept));
}

}  // namespace cairn::avx2
