// Attention in plain C++. Keys are turned into float32 one tile of 16 positions at a time, and
// values one slice of 16 dimensions at a time, for all queries of a strip; the inner loops run over
// 16 independent sums, which a compiler turns into vectors of any width without changing a bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_strip.h"
#include "kernels/cpu/exp2.h"
#include "kernels/cpu/half.h"

namespace cairn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kSliceDims = 16;

// The rows of a strip that see a span, and how much of it.
struct SpanView {
  uint32_t first_token;  // position of the span's first
  uint32_t first_row;    // the rows before it end before the span
  uint32_t token_count;  // that the last row sees
};

SpanView ViewSpan(const AttentionStrip& strip, uint32_t span) {
  const uint32_t first_token = span * kAttentionSpan;
  const uint32_t behind =
      first_token > strip.first_position ? first_token - strip.first_position : 0;
  const uint32_t seen = strip.first_position + strip.row_count - first_token;
  return {first_token, behind, std::min(kAttentionSpan, seen)};
}

// K or V of a position's block, for the KV head that lies `head_offset` bytes into it.
const uint16_t* BlockHead(const AttentionShape& shape, const AttentionStrip& strip,
                          uint32_t position, size_t head_offset) {
  return reinterpret_cast<const uint16_t*>(strip.Block(shape, position, head_offset));
}

void ScoreTile(const float* query, const float* panel, uint32_t head_dim, float* scores) {
  float sums[kTileTokens] = {};
  for (uint32_t d = 0; d < head_dim; ++d) {
    for (uint32_t t = 0; t < kTileTokens; ++t) sums[t] += query[d] * panel[d * kTileTokens + t];
  }
  std::copy_n(sums, kTileTokens, scores);
}

// Scores of all queries (row, head) of one KV head with the span; those before first_query stay.
void ScoreSpan(const AttentionShape& shape, const AttentionStrip& strip, const SpanView& span,
               uint32_t kv_head, const AttentionScratch& scratch) {
  const size_t head_offset =
      shape.key_offset + size_t{strip.kv_head_begin + kv_head} * shape.head_bytes;
  for (uint32_t tile = 0; tile < span.token_count; tile += kTileTokens) {
    const uint32_t position = span.first_token + tile;
    const uint16_t* keys =
        BlockHead(shape, strip, position, head_offset) + shape.PlaceInBlock(position);
    for (uint32_t d = 0; d < shape.head_dim; ++d) {
      for (uint32_t t = 0; t < kTileTokens; ++t) {
        scratch.panel[d * kTileTokens + t] = HalfToFloat(keys[d * shape.block_tokens() + t]);
      }
    }
    for (uint32_t i = span.first_row * shape.group; i < strip.row_count * shape.group; ++i) {
      ScoreTile(scratch.queries + i * kQueryStride, scratch.panel, shape.head_dim,
                scratch.scores + i * kQueryStride + tile);
    }
  }
}

// scores[0 .. count) become 2^(score - max); those from count to the end of the span become 0.
void SoftmaxRow(float* scores, uint32_t count, float& max, float& sum) {
  max = *std::max_element(scores, scores + count);
  std::fill(scores + count, scores + kAttentionSpan, 0.0f);
  float sums[8] = {};
  for (uint32_t t = 0; t < count; ++t) {
    scores[t] = Exp2NonPositive(scores[t] - max);
    sums[t % 8] += scores[t];
  }
  sum = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void MergeFactors(float& max, float& sum, float later_max, float later_sum, float& keep,
                  float& add) {
  const float both = std::max(max, later_max);
  keep = Exp2NonPositive(max - both);
  add = Exp2NonPositive(later_max - both);
  max = both;
  sum = later_sum * add + sum * keep;
}

void WeighSlice(const float* weights, const float* panel, uint32_t tokens, uint32_t dims,
                float keep, float add, float* out) {
  float sums[kSliceDims] = {};
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t d = 0; d < kSliceDims; ++d) sums[d] += weights[t] * panel[t * kSliceDims + d];
  }
  for (uint32_t d = 0; d < dims; ++d) out[d] = sums[d] * add + out[d] * keep;
}

// values <- values * keep + add * (weights * V), slice by slice.
void WeighSpan(const AttentionShape& shape, const AttentionStrip& strip, const SpanView& span,
               uint32_t kv_head, float* values, const AttentionScratch& scratch) {
  const size_t head_offset =
      shape.value_offset + size_t{strip.kv_head_begin + kv_head} * shape.head_bytes;
  for (uint32_t slice = 0; slice < shape.head_dim; slice += kSliceDims) {
    const uint32_t dims = std::min(kSliceDims, shape.head_dim - slice);
    std::fill_n(scratch.panel, size_t{span.token_count} * kSliceDims, 0.0f);
    for (uint32_t t = 0; t < span.token_count; ++t) {
      const uint32_t position = span.first_token + t;
      const uint16_t* from = BlockHead(shape, strip, position, head_offset) +
                             size_t{shape.PlaceInBlock(position)} * shape.head_dim + slice;
      for (uint32_t d = 0; d < dims; ++d) {
        scratch.panel[t * kSliceDims + d] = HalfToFloat(from[d]);
      }
    }
    for (uint32_t i = span.first_row * shape.group; i < strip.row_count * shape.group; ++i) {
      const uint32_t seen = strip.first_position + i / shape.group + 1 - span.first_token;
      WeighSlice(scratch.scores + i * kQueryStride, scratch.panel, std::min(seen, span.token_count),
                 dims, scratch.keep[i], scratch.add[i], values + i * shape.head_dim + slice);
    }
  }
}

void AttendHead(const AttentionShape& shape, const AttentionStrip& strip, uint32_t kv_head,
                uint32_t span_begin, uint32_t span_end, AttentionSums sums, size_t sums_stride,
                const AttentionScratch& scratch) {
  const uint32_t query_count = strip.row_count * shape.group;
  const uint32_t first = kv_head * query_count;  // index of the head's first query
  for (uint32_t i = 0; i < query_count; ++i) {
    const float* query = strip.q + QueryOffset(shape, strip, first + i);
    for (uint32_t d = 0; d < shape.head_dim; ++d) {
      scratch.queries[i * kQueryStride + d] = query[d] * kLog2E;
    }
  }
  for (uint32_t s = span_begin; s < span_end; ++s) {
    const SpanView span = ViewSpan(strip, s);
    ScoreSpan(shape, strip, span, kv_head, scratch);
    for (uint32_t i = span.first_row * shape.group; i < query_count; ++i) {
      const uint32_t seen = strip.first_position + i / shape.group + 1 - span.first_token;
      float max, sum;
      SoftmaxRow(scratch.scores + i * kQueryStride, std::min(seen, span.token_count), max, sum);
      MergeFactors(sums.max[first + i], sums.sum[first + i], max, sum, scratch.keep[i],
                   scratch.add[i]);
    }
    WeighSpan(shape, strip, span, kv_head, sums.values + size_t{first} * shape.head_dim, scratch);
    sums = sums.Shifted(sums_stride);
  }
}

void Attend(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
            uint32_t span_end, AttentionSums sums, size_t sums_stride,
            const AttentionScratch& scratch) {
  for (uint32_t head = 0; head < strip.kv_head_count; ++head) {
    AttendHead(shape, strip, head, span_begin, span_end, sums, sums_stride, scratch);
  }
}

void Merge(const AttentionShape& shape, const AttentionSums& into, const AttentionSums& from,
           uint32_t query_begin, uint32_t query_end) {
  for (uint32_t i = query_begin; i < query_end; ++i) {
    if (from.max[i] == -kInfinity) continue;  // the row ends before the span
    float keep, add;
    MergeFactors(into.max[i], into.sum[i], from.max[i], from.sum[i], keep, add);
    for (size_t d = size_t{i} * shape.head_dim; d < size_t{i + 1} * shape.head_dim; ++d) {
      into.values[d] = from.values[d] * add + into.values[d] * keep;
    }
  }
}

void Finish(const AttentionShape& shape, const AttentionStrip& strip, const AttentionSums& sums,
            uint32_t query_begin, uint32_t query_end) {
  for (uint32_t i = query_begin; i < query_end; ++i) {
    const float scale = 1.0f / sums.sum[i];
    const float* values = sums.values + size_t{i} * shape.head_dim;
    float* out = strip.out + QueryOffset(shape, strip, i);
    // Adding +0 makes a negative zero positive: which of them a sum of nothing but masked or
    // vanishing terms gives would otherwise depend on the path.
    for (uint32_t d = 0; d < shape.head_dim; ++d) out[d] = values[d] * scale + 0.0f;
  }
}

}  // namespace

void PagedAttentionPortable(const PagedAttentionArgs& args, ThreadPool& pool) {
  RunAttention(args, {Attend, Merge, Finish}, pool);
}

}  // namespace cairn
