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
                  uint32_t span_end, const AttentionSums& sums, const AttentionScratch& scratch);
void AttendPanels(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, const AttentionSums& sums, const AttentionScratch& scratch);

// f(integral_constant of value) for a value in 1..6, so that it becomes a template argument.
template <class F>
AVX2_INLINE void WithConstant(uint32_t value, F&& f) {
  switch (value) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    case 6:
      return f(std::integral_constant<int, 6>{});
  }
}

constexpr uint32_t Smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
constexpr uint32_t TileCount(uint32_t tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }

// The first of 16 consecutive positions, in the part of its block that begins `offset` bytes in.
AVX2_INLINE const std::byte* BlockPart(const AttentionShape& shape, const AttentionStrip& strip,
                                       uint32_t position, size_t offset) {
  return strip.blocks[position / shape.block_tokens] + offset;
}

// to[d] = q[d] * log2(e).
AVX2_INLINE void ScaleQuery(const float* q, uint32_t head_dim, float* to) {
  for (uint32_t d = 0; d < head_dim; d += 8) {
    _mm256_store_ps(to + d, _mm256_mul_ps(_mm256_loadu_ps(q + d), _mm256_set1_ps(kLog2E)));
  }
}

// scores[0 .. count) become 2^(score - max), and at least the next 8 become 0. 1 <= count.
AVX2_INLINE void SoftmaxRow(float* scores, uint32_t count, float* max_out, float* sum_out) {
  const uint32_t full = count & ~7u;
  const __m256 nothing = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  __m256 max = nothing;
  for (uint32_t t = 0; t < full; t += 8) max = _mm256_max_ps(max, _mm256_load_ps(scores + t));
  const __m256 rest =
      _mm256_blendv_ps(nothing, _mm256_load_ps(scores + full), FirstLanes(count - full));
  *max_out = HorizontalMax(_mm256_max_ps(max, rest));

  const __m256 row_max = _mm256_set1_ps(*max_out);
  __m256 sum = _mm256_setzero_ps();
  for (uint32_t t = 0; t < full; t += 8) {
    const __m256 weight = Exp2NonPositive(_mm256_sub_ps(_mm256_load_ps(scores + t), row_max));
    _mm256_store_ps(scores + t, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  const __m256 weight = Exp2NonPositive(_mm256_sub_ps(rest, row_max));  // 0 where masked
  _mm256_store_ps(scores + full, weight);
  _mm256_store_ps(scores + full + 8, _mm256_setzero_ps());
  *sum_out = HorizontalSum(_mm256_add_ps(sum, weight));
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
