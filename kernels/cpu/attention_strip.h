// The seam between sharing out attention over threads (attention_driver.cc) and computing it
// (attention_portable.cc, attention_avx2.cc, attention_avx512.cc): plain pointers, so that the
// kernels, which are compiled for a newer processor, instantiate nothing that other code might link
// to.
//
// A query is one row with one head. A strip is the unit of work: all queries of some consecutive
// rows of one segment with some consecutive KV heads. Query (kv_head, row, head in the group) of a
// strip has the index (kv_head * row_count + row) * group + head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace cairn {

class ThreadPool;

// Queries are merged 8 at a time, so the arrays over queries are padded to a multiple of this.
inline constexpr uint32_t kQueryPad = 8;
// Floats from one query to the next in the scratch memory. It holds a span of scores, or the
// largest head, and 16 more that a kernel may overwrite; it is an odd number of cache lines, lest
// the same positions of all queries meet in the same cache sets.
inline constexpr size_t kQueryStride = kAttentionSpan + 16;
inline constexpr uint32_t kTileTokens = 16;  // positions that are multiplied at once

struct AttentionShape {
  uint32_t head_dim;
  uint32_t group;        // query heads that share a KV head
  uint32_t block_shift;  // log2 of the positions in a block
  size_t row_stride;     // floats between rows of q and of out
  size_t key_offset;     // bytes in a block to K of KV head 0 of the layer
  size_t value_offset;   // the same for V
  size_t head_bytes;     // from one KV head to the next

  [[gnu::always_inline]] uint32_t block_tokens() const { return 1u << block_shift; }
  [[gnu::always_inline]] uint32_t PlaceInBlock(uint32_t position) const {
    return position & (block_tokens() - 1);
  }
};

struct AttentionStrip {
  const float* q;  // first row, first head of KV head kv_head_begin
  float* out;      // the same place
  const std::byte* const* blocks;
  uint32_t first_position;  // of the first row
  uint32_t row_count;
  uint32_t kv_head_begin;
  uint32_t kv_head_count;

  // The position's block, `offset` bytes in.
  [[gnu::always_inline]] const std::byte* Block(const AttentionShape& shape, uint32_t position,
                                                size_t offset) const {
    return blocks[position >> shape.block_shift] + offset;
  }
};

// M, L and O (attention.h) of the queries of a strip, over the spans so far.
struct AttentionSums {
  float* max;     // [query], minus infinity before the first span
  float* sum;     // [query]
  float* values;  // [query][head_dim]

  [[gnu::always_inline]] AttentionSums Shifted(size_t floats) const {
    return {max + floats, sum + floats, values + floats};
  }
};

// One thread's memory, for a strip of at most `query_count` queries.
struct AttentionScratch {
  float* queries;  // [query][kQueryStride]
  float* scores;   // [query][kQueryStride]
  float* values;   // [query][head_dim]
  float* keep;     // [query], factor of the spans so far
  float* add;      // [query], factor of the span
  float* max;      // [query], of the span
  float* sum;      // [query]
  uint32_t* seen;  // [query], positions of the span that its row may see
  float* panel;    // [kAttentionPanelFloats]
};
// Room for a panel of 64 keys of the largest head, or of a whole span's values of 16 dimensions.
inline constexpr size_t kAttentionPanelFloats = size_t{64} * 256;

struct AttentionKernels {
  // For each span of [span_begin, span_end), in order: sums <- sums merged with the span, and then
  // the sums shift by sums_stride floats; 0 keeps them in one place. Rows before a span skip it.
  void (*attend)(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                 uint32_t span_end, AttentionSums sums, size_t sums_stride,
                 const AttentionScratch& scratch);
  // into <- into merged with the later `from`, for queries [query_begin, query_end);
  // query_begin is a multiple of kQueryPad.
  void (*merge)(const AttentionShape& shape, const AttentionSums& into, const AttentionSums& from,
                uint32_t query_begin, uint32_t query_end);
  // The strip's out <- O / L, for queries [query_begin, query_end).
  void (*finish)(const AttentionShape& shape, const AttentionStrip& strip,
                 const AttentionSums& sums, uint32_t query_begin, uint32_t query_end);
};

// Computes args with the kernels, all threads of the pool taking part.
void RunAttention(const PagedAttentionArgs& args, const AttentionKernels& kernels,
                  ThreadPool& pool);

[[gnu::always_inline]] constexpr uint32_t Smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
[[gnu::always_inline]] constexpr uint32_t TileCount(uint32_t tokens) {
  return (tokens + kTileTokens - 1) / kTileTokens;
}

// Where query `index` of a strip stands in q and in out, in floats from the strip's first.
[[gnu::always_inline]] inline size_t QueryOffset(const AttentionShape& shape,
                                                 const AttentionStrip& strip, uint32_t index) {
  const uint32_t head = index % shape.group;
  const uint32_t row = index / shape.group % strip.row_count;
  const uint32_t kv_head = index / shape.group / strip.row_count;
  return row * shape.row_stride + (size_t{kv_head} * shape.group + head) * shape.head_dim;
}

}  // namespace cairn
