// The AVX-512 kernels of attention as the driver takes them.
#include "kernels/cpu/attention_avx512.h"

#include "kernels/cpu/attention.h"

namespace cairn {
namespace {

void Attend(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
            uint32_t span_end, AttentionSums sums, size_t sums_stride,
            const AttentionScratch& scratch) {
  const bool direct = strip.row_count == 1 && shape.group <= avx512::kDirectGroupMax;
  (direct ? avx512::AttendDirect : avx512::AttendPanels)(shape, strip, span_begin, span_end, sums,
                                                         sums_stride, scratch);
}

}  // namespace

void PagedAttentionAvx512(const PagedAttentionArgs& args, ThreadPool& pool) {
  RunAttention(args, {Attend, avx2::Merge, avx2::Finish}, pool);
}

}  // namespace cairn
