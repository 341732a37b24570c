// The AVX2 kernels of attention as the driver takes them.
#include "kernels/cpu/attention_avx2.h"

#include "kernels/cpu/attention.h"

namespace cairn {
namespace avx2 {
namespace {

void Attend(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
            uint32_t span_end, AttentionSums sums, size_t sums_stride,
            const AttentionScratch& scratch) {
  const bool direct = strip.row_count == 1 && shape.group <= kDirectGroupMax;
  (direct ? AttendDirect : AttendPanels)(shape, strip, span_begin, span_end, sums, sums_stride,
                                         scratch);
}

}  // namespace

void Merge(const AttentionShape& shape, const AttentionSums& into, const AttentionSums& from,
           uint32_t query_begin, uint32_t query_end) {
  for (uint32_t i = query_begin; i < query_end; i += kQueryPad) {
    const uint32_t count = Smaller(kQueryPad, query_end - i);
    float keep[kQueryPad];
    float add[kQueryPad];
    MergeFactors(count, into.max + i, into.sum + i, from.max + i, from.sum + i, keep, add);
    for (uint32_t q = 0; q < count; ++q) {
      const __m256 keep_row = _mm256_broadcast_ss(keep + q);
      const __m256 add_row = _mm256_broadcast_ss(add + q);
      const size_t row = size_t{i + q} * shape.head_dim;
      for (uint32_t d = 0; d < shape.head_dim; d += 8) {
        MergeValues(into.values + row + d, _mm256_loadu_ps(from.values + row + d), keep_row,
                    add_row);
      }
    }
  }
}

void Finish(const AttentionShape& shape, const AttentionStrip& strip, const AttentionSums& sums,
            uint32_t query_begin, uint32_t query_end) {
  for (uint32_t i = query_begin; i < query_end; ++i) {
    const __m256 scale = _mm256_set1_ps(1.0f / sums.sum[i]);
    const float* values = sums.values + size_t{i} * shape.head_dim;
    float* out = strip.out + QueryOffset(shape, strip, i);
    // Adding +0 makes a negative zero positive: which of them a sum of nothing but masked or
    // vanishing terms gives would otherwise depend on the path.
    for (uint32_t d = 0; d < shape.head_dim; d += 8) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(values + d), scale);
      _mm256_storeu_ps(out + d, _mm256_add_ps(scaled, _mm256_setzero_ps()));
    }
  }
}

}  // namespace avx2

void PagedAttentionAvx2(const PagedAttentionArgs& args, ThreadPool& pool) {
  RunAttention(args, {avx2::Attend, avx2::Merge, avx2::Finish}, pool);
}

}  // namespace cairn
