#include "kernels/cpu/attention_avx512.h"

namespace cairn::avx512 {
namespace {

constexpr int kTileQueries = 12;  // 12 x 32 sums fill 24 of the 32 registers
constexpr uint32_t kPanelTokens = 64;
constexpr int kTileVectors = 2;
constexpr uint32_t kPanelWidth = kTileVectors * kLanes;  // tokens of a row of keys, dims of values

// One KV head of a strip.
struct Head {
  const AttentionShape& shape;
  const AttentionStrip& strip;
  const AttentionScratch& scratch;
  uint32_t query_count;
  size_t key_offset;    // bytes in a block
  size_t value_offset;  // bytes in a block
};

// A span as a head sees it.
struct Span {
  uint32_t first_token;  // position of the span's first
  uint32_t token_count;  // that the last row sees

  // The first row that sees more than `tokens` of the span's positions.
  uint32_t FirstRow(const AttentionStrip& strip, uint32_t tokens) const {
    const uint32_t position = first_token + tokens;
    return position > strip.first_position ? position - strip.first_position : 0;
  }
};

// Calls f(constant R, i) for tiles of R queries from i that cover [begin, end), which is not empty,
// as even as can be.
template <class F>
inline void ForQueryTiles(uint32_t begin, uint32_t end, F&& f) {
  const uint32_t tiles = (end - begin + kTileQueries - 1) / kTileQueries;
  const uint32_t smaller = (end - begin) / tiles;
  const uint32_t larger_count = (end - begin) % tiles;
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    const uint32_t size = smaller + (tile < larger_count);
    WithConstant<kTileQueries>(size, [&](auto queries) { f(queries, begin); });
    begin += size;
  }
}

// sums[r][.] = sum over k, in order, of x[r][k] * panel[k][.]; rows of x are kQueryStride apart.
template <int kRows, int kVectors>
AVX512_INLINE void MultiplyTile(const float* x, const float* panel, uint32_t depth,
                                __m512 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (uint32_t k = 0; k < depth; ++k, panel += kPanelWidth) {
    __m512 columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) columns[v] = Pinned(_mm512_load_ps(panel + kLanes * v));
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 factor = _mm512_set1_ps(x[r * kQueryStride + k]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_fmadd_ps(factor, columns[v], sums[r][v]);
      }
    }
  }
}

template <int kRows, int kVectors>
[[gnu::noinline]] void ScoreTile(const float* queries, const float* panel, uint32_t head_dim,
                                 float* scores) {
  __m512 sums[kRows][kVectors];
  MultiplyTile<kRows, kVectors>(queries, panel, head_dim, sums);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      _mm512_store_ps(scores + r * kQueryStride + kLanes * v, sums[r][v]);
    }
  }
}

// values[r][.] <- values * keep + add * (weights * panel), for kVectors vectors of dimensions, of
// which the last has only the lanes `last`.
template <int kRows, int kVectors>
[[gnu::noinline]] void WeighTile(const float* weights, const float* panel, uint32_t tokens,
                                 const float* keep, const float* add, float* values,
                                 size_t values_stride, __mmask16 last) {
  __m512 sums[kRows][kVectors];
  MultiplyTile<kRows, kVectors>(weights, panel, tokens, sums);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    const __m512 keep_row = _mm512_set1_ps(keep[r]);
    const __m512 add_row = _mm512_set1_ps(add[r]);
    float* row = values + r * values_stride;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      MergeValues(row + kLanes * v, sums[r][v], keep_row, add_row,
                  v == kVectors - 1 ? last : Lanes(kLanes));
    }
  }
}

// Brings up to `tokens` positions of one part of the blocks into the second-level cache, as far as
// the strip sees them.
AVX512_INLINE void Prefetch(const Head& head, uint32_t position, uint32_t tokens, size_t offset) {
  const AttentionShape& shape = head.shape;
  const size_t tile_bytes = size_t{shape.head_dim} * kTileTokens * 2;
  const uint32_t end = Smaller(position + tokens, head.strip.first_position + head.strip.row_count);
  for (; position < end; position += kTileTokens) {
    const uint32_t tile_in_block = shape.PlaceInBlock(position) / kTileTokens;
    const std::byte* from = head.strip.Block(shape, position, offset) + tile_in_block * tile_bytes;
    PrefetchBytes<_MM_HINT_T1>(from, tile_bytes);
  }
}

// panel[pair][d][32] <- the keys of tiles of 16 positions, two side by side, as float32.
void LoadKeys(const Head& head, uint32_t position, uint32_t tile_count) {
  const AttentionShape& shape = head.shape;
  const size_t pair_floats = size_t{shape.head_dim} * kPanelWidth;
  const size_t stride = size_t{shape.block_tokens()} * 2;
  for (uint32_t tile = 0; tile < tile_count; ++tile, position += kTileTokens) {
    const std::byte* from = head.strip.Block(shape, position, head.key_offset) +
                            size_t{shape.PlaceInBlock(position)} * 2;
    float* to =
        head.scratch.panel + tile / kTileVectors * pair_floats + tile % kTileVectors * kLanes;
    for (uint32_t d = 0; d < shape.head_dim; ++d, from += stride, to += kPanelWidth) {
      _mm512_store_ps(to, LoadHalves512(from));
    }
  }
}

// Up to 32 dimensions of the values.
struct Slice {
  uint32_t first;
  uint32_t dims;

  bool two_vectors() const { return dims > kLanes; }
  __mmask16 last() const { return Lanes(two_vectors() ? dims - kLanes : dims); }
};

// panel[t][32] <- a slice of the values of a span, as float32.
void LoadValues(const Head& head, const Span& span, const Slice& slice) {
  const AttentionShape& shape = head.shape;
  float* to = head.scratch.panel;
  const size_t stride = size_t{shape.head_dim} * 2;
  const __mmask16 last = slice.last();
  for (uint32_t tile = 0; tile < span.token_count; tile += kTileTokens) {
    const uint32_t position = span.first_token + tile;
    const std::byte* from = head.strip.Block(shape, position, head.value_offset) +
                            shape.PlaceInBlock(position) * stride + size_t{slice.first} * 2;
    const uint32_t tokens = Smaller(kTileTokens, span.token_count - tile);
    for (uint32_t t = 0; t < tokens; ++t, from += stride, to += kPanelWidth) {
      if (slice.two_vectors()) {
        _mm512_store_ps(to, LoadHalves512(from));
        _mm512_store_ps(to + kLanes, LoadHalves512(from + 2 * kLanes, last));
      } else {
        _mm512_store_ps(to, LoadHalves512(from, last));
      }
    }
  }
}

void ScoreSpan(const Head& head, const Span& span) {
  const AttentionShape& shape = head.shape;
  const AttentionScratch& scratch = head.scratch;
  for (uint32_t begin = 0; begin < span.token_count; begin += kPanelTokens) {
    const uint32_t tokens = Smaller(kPanelTokens, span.token_count - begin);
    const uint32_t position = span.first_token + begin;
    LoadKeys(head, position, TileCount(tokens));
    Prefetch(head, position + tokens, kPanelTokens, head.key_offset);
    Prefetch(head, position, tokens, head.value_offset);
    const uint32_t first_query = span.FirstRow(head.strip, begin) * shape.group;
    ForQueryTiles(first_query, head.query_count, [&](auto queries, uint32_t query) {
      const uint32_t seen = scratch.seen[query + queries - 1];  // by the last
      const uint32_t tiles = TileCount(Smaller(tokens, seen - begin));
      const float* from = scratch.queries + query * kQueryStride;
      const float* panel = scratch.panel;
      float* to = scratch.scores + query * kQueryStride + begin;
      for (uint32_t pair = 0; pair < tiles / 2; ++pair) {
        ScoreTile<queries, 2>(from, panel, shape.head_dim, to);
        panel += size_t{shape.head_dim} * kPanelWidth;
        to += kPanelWidth;
      }
      if (tiles % 2 != 0) ScoreTile<queries, 1>(from, panel, shape.head_dim, to);
    });
  }
}

void WeighSpan(const Head& head, const Span& span, uint32_t first_query, float* values) {
  const AttentionShape& shape = head.shape;
  const AttentionScratch& scratch = head.scratch;
  for (uint32_t first = 0; first < shape.head_dim; first += kPanelWidth) {
    const Slice slice{first, Smaller(kPanelWidth, shape.head_dim - first)};
    LoadValues(head, span, slice);
    ForQueryTiles(first_query, head.query_count, [&](auto queries, uint32_t query) {
      const auto weigh = slice.two_vectors() ? WeighTile<queries, 2> : WeighTile<queries, 1>;
      weigh(scratch.scores + query * kQueryStride, scratch.panel, scratch.seen[query + queries - 1],
            scratch.keep + query, scratch.add + query,
            values + size_t{query} * shape.head_dim + first, shape.head_dim, slice.last());
    });
  }
}

// `first` is the index in the strip of the head's first query.
void AttendSpan(const Head& head, const Span& span, uint32_t first, const AttentionSums& sums) {
  const AttentionShape& shape = head.shape;
  const AttentionScratch& scratch = head.scratch;
  const uint32_t first_row = span.FirstRow(head.strip, 0);
  const uint32_t first_query = first_row * shape.group;
  uint32_t* seen = scratch.seen + first_query;
  for (uint32_t row = first_row; row < head.strip.row_count; ++row, seen += shape.group) {
    const uint32_t end = head.strip.first_position + row + 1;
    const uint32_t count = Smaller(span.token_count, end - span.first_token);
    for (uint32_t i = 0; i < shape.group; ++i) seen[i] = count;
  }
  ScoreSpan(head, span);
  for (uint32_t i = 0; i < first_query; ++i) {
    scratch.max[i] = -std::numeric_limits<float>::infinity();
    scratch.sum[i] = 0.0f;
  }
  // A few rows at a time: their maxima overlap in the processor, and their scores stay in the
  // cache.
  for (uint32_t begin = first_query; begin < head.query_count; begin += kQueryPad) {
    const uint32_t end = Smaller(begin + kQueryPad, head.query_count);
    for (uint32_t i = begin; i < end; ++i) {
      scratch.max[i] = MaskRow(scratch.scores + i * kQueryStride, scratch.seen[i]);
    }
    for (uint32_t i = begin; i < end; ++i) {
      scratch.sum[i] =
          ExponentiateRow(scratch.scores + i * kQueryStride, scratch.seen[i], scratch.max[i]);
    }
  }
  for (uint32_t i = 0; i < head.query_count; i += kQueryPad) {
    MergeFactors(Smaller(kQueryPad, head.query_count - i), sums.max + first + i,
                 sums.sum + first + i, scratch.max + i, scratch.sum + i, scratch.keep + i,
                 scratch.add + i);
  }
  WeighSpan(head, span, first_query, sums.values + size_t{first} * shape.head_dim);
}

}  // namespace

void AttendPanels(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, AttentionSums sums, size_t sums_stride,
                  const AttentionScratch& scratch) {
  for (uint32_t h = 0; h < strip.kv_head_count; ++h) {
    const size_t head_offset = size_t{strip.kv_head_begin + h} * shape.head_bytes;
    const Head head{shape,
                    strip,
                    scratch,
                    strip.row_count * shape.group,
                    shape.key_offset + head_offset,
                    shape.value_offset + head_offset};
    const uint32_t first = h * head.query_count;
    for (uint32_t i = 0; i < head.query_count; ++i) {
      ScaleQuery(strip.q + QueryOffset(shape, strip, first + i), shape.head_dim,
                 scratch.queries + i * kQueryStride);
    }
    for (uint32_t s = span_begin; s < span_end; ++s) {
      const uint32_t first_token = s * kAttentionSpan;
      const uint32_t seen = strip.first_position + strip.row_count - first_token;
      AttendSpan(head, {first_token, Smaller(kAttentionSpan, seen)}, first,
                 sums.Shifted((s - span_begin) * sums_stride));
    }
  }
}

}  // namespace cairn::avx512
