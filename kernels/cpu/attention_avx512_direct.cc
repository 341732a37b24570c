#include "kernels/cpu/attention_avx512.h"
#include "kernels/cpu/attention_read_ahead.h"

namespace cairn::avx512 {
namespace {

struct Avx512 {
  static constexpr uint32_t kRunTiles = 4;
};
constexpr uint32_t kRunTiles = Avx512::kRunTiles;

// How far prefetching runs ahead.
constexpr uint64_t kLeadBytes = 8 * 1024;

// Tiles of keys that are multiplied at once, so that there are enough sums to keep the multipliers
// busy and no more than there are registers.
constexpr int TilesAtOnce(int queries) { return queries <= 4 ? 4 : 2; }
static_assert(kRunTiles == 4);
// The same for values, in vectors of 16 dimensions.
constexpr int VectorsAtOnce(int queries) { return queries == 1 ? 8 : queries <= 5 ? 4 : 2; }

// Scores of kQueries queries with kTiles tiles of keys. Queries are kQueryStride apart, as are
// their scores.
template <int kQueries, int kTiles>
[[gnu::noinline]] void ScoreTiles(const float* queries, const std::byte* const* keys_begin,
                                  size_t key_stride, const std::byte* const* ahead_begin,
                                  uint32_t head_dim, float* scores) {
  const std::byte* keys[kTiles];
  const std::byte* ahead[kTiles];
  __m512 sums[kQueries][kTiles];
#pragma GCC unroll 4
  for (int tile = 0; tile < kTiles; ++tile) {
    keys[tile] = keys_begin[tile];
    ahead[tile] = ahead_begin[tile];
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) sums[q][tile] = _mm512_setzero_ps();
  }
  for (const float* end = queries + head_dim; queries != end; ++queries) {
    __m512 factors[kQueries];
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) factors[q] = _mm512_set1_ps(queries[q * kQueryStride]);
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      // Each line is asked for in two steps: a processor may drop what it cannot queue at once.
      _mm_prefetch(ahead[tile], _MM_HINT_T0);
      const __m512 column = LoadHalves512(keys[tile]);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) {
        sums[q][tile] = _mm512_fmadd_ps(factors[q], column, sums[q][tile]);
      }
      keys[tile] += key_stride;
      ahead[tile] += 32;
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      _mm512_store_ps(scores + q * kQueryStride + tile * kTileTokens, sums[q][tile]);
    }
  }
}

// Some tiles of one head.
struct Run {
  const std::byte* tiles[kRunTiles];
  const std::byte* ahead[kRunTiles];  // the pieces to prefetch meanwhile
};

// out[q][.] += weights[q][t] * values[t][.] for each t in order, for kVectors vectors of 16
// dimensions from `first`, of which the last has only the lanes `last`. Weights are kQueryStride
// apart, rows of out head_dim.
template <int kQueries, int kVectors>
[[gnu::noinline]] void WeighVectors(const float* weights, uint32_t tokens, const Run& run,
                                    uint32_t head_dim, uint32_t first, __mmask16 last, float* out) {
  const size_t stride = size_t{head_dim} * 2;
  const auto lanes = [last](int v) { return v == kVectors - 1 ? last : Lanes(kLanes); };
  out += first;
  __m512 sums[kQueries][kVectors];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[q][v] = _mm512_maskz_loadu_ps(lanes(v), out + size_t{head_dim} * q + kLanes * v);
    }
  }
  const float* weight = weights;
  for (uint32_t tile = 0; tile * kTileTokens < tokens; ++tile) {
    const std::byte* values = run.tiles[tile] + size_t{first} * 2;
    const std::byte* ahead = run.ahead[tile] + size_t{first} * 2;
    const float* const end = weights + Smaller((tile + 1) * kTileTokens, tokens);
    for (; weight != end; ++weight, values += stride, ahead += stride) {
      __m512 factors[kQueries];
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) factors[q] = _mm512_set1_ps(weight[q * kQueryStride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if (v % 2 == 0) _mm_prefetch(ahead + 2 * kLanes * v, _MM_HINT_T0);
        const std::byte* const from = values + 2 * kLanes * v;
        const __m512 row = v == kVectors - 1 ? LoadHalves512(from, last) : LoadHalves512(from);
#pragma GCC unroll 8
        for (int q = 0; q < kQueries; ++q) {
          sums[q][v] = _mm512_fmadd_ps(factors[q], row, sums[q][v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      _mm512_mask_storeu_ps(out + size_t{head_dim} * q + kLanes * v, lanes(v), sums[q][v]);
    }
  }
}

// The same for all dimensions from `first` on.
template <int kQueries, int kVectors>
AVX512_INLINE void WeighRun(const float* weights, uint32_t tokens, const Run& run,
                            uint32_t head_dim, uint32_t first, float* out) {
  constexpr uint32_t kDims = kVectors * kLanes;
  // Whole steps of kVectors, the last of them perhaps with half a vector at its end.
  for (; head_dim - first > kDims - kLanes; first += kDims) {
    const uint32_t last = Smaller(kLanes, head_dim - first - (kDims - kLanes));
    WeighVectors<kQueries, kVectors>(weights, tokens, run, head_dim, first, Lanes(last), out);
    if (head_dim - first <= kDims) return;
  }
  if constexpr (kVectors > 1) {
    WeighRun<kQueries, kVectors / 2>(weights, tokens, run, head_dim, first, out);
  }
}

// The one row of a strip.
class DirectRow {
 public:
  DirectRow(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
            uint32_t span_end, const AttentionScratch& scratch)
      : shape_(shape),
        strip_(strip),
        scratch_(scratch),
        query_count_(strip.kv_head_count * shape.group),
        ahead_(shape, strip, span_begin, span_end, scratch.scores),
        lead_(kLeadBytes / ahead_.piece_bytes() + 1) {
    for (uint32_t i = 0; i < query_count_; ++i) {
      ScaleQuery(strip.q + size_t{i} * shape.head_dim, shape.head_dim,
                 scratch.queries + i * kQueryStride);
    }
    for (uint64_t i = 0; i < lead_; ++i) {
      PrefetchBytes<_MM_HINT_T0>(ahead_.Next(lead_), ahead_.piece_bytes());
    }
  }

  void AttendSpan(uint32_t first_token, uint32_t token_count, const AttentionSums& sums) {
    ScoreSpan(first_token, token_count);
    for (uint32_t i = 0; i < query_count_; ++i) {
      scratch_.max[i] = MaskRow(scratch_.scores + i * kQueryStride, token_count);
    }
    for (uint32_t i = 0; i < query_count_; ++i) {
      scratch_.sum[i] =
          ExponentiateRow(scratch_.scores + i * kQueryStride, token_count, scratch_.max[i]);
    }
    WeighSpan(first_token, token_count);
    MergeInto(sums);
  }

 private:
  // Calls f(first tile of the run, head) in the order in which ReadAhead names pieces.
  template <class F>
  void ForRuns(uint32_t token_count, F&& f) {
    for (uint32_t tile = 0; tile * kTileTokens < token_count; tile += kRunTiles) {
      for (uint32_t head = 0; head < strip_.kv_head_count; ++head) f(tile, head);
    }
  }

  // The tiles of a run from `position`; a tile lies at tile_stride times its place in its block.
  Run FindRun(uint32_t position, uint32_t tile_count, size_t part, uint32_t head,
              size_t tile_stride) {
    Run run;
    done_ += tile_count;
    part += (strip_.kv_head_begin + head) * shape_.head_bytes;
    for (uint32_t i = 0; i < tile_count; ++i, position += kTileTokens) {
      run.tiles[i] = strip_.Block(shape_, position, part) +
                     shape_.PlaceInBlock(position) / kTileTokens * tile_stride;
      run.ahead[i] = ahead_.Next(done_ + lead_);
    }
    return run;
  }

  void ScoreSpan(uint32_t first_token, uint32_t token_count) {
    const size_t stride = size_t{shape_.block_tokens()} * 2;
    ForRuns(token_count, [&](uint32_t first_tile, uint32_t head) {
      const uint32_t first = first_tile * kTileTokens;
      const uint32_t tile_count = Smaller(kRunTiles, TileCount(token_count - first));
      const Run run =
          FindRun(first_token + first, tile_count, shape_.key_offset, head, kTileTokens * 2);
      const uint32_t query = head * shape_.group;
      WithConstant<kDirectGroupMax>(shape_.group, [&](auto queries) {
        constexpr int kTiles = TilesAtOnce(queries);
        const float* from = scratch_.queries + query * kQueryStride;
        float* to = scratch_.scores + query * kQueryStride + first;
        uint32_t i = 0;
        for (; i + kTiles <= tile_count; i += kTiles, to += kTiles * kTileTokens) {
          ScoreTiles<queries, kTiles>(from, run.tiles + i, stride, run.ahead + i, shape_.head_dim,
                                      to);
        }
        for (; i < tile_count; ++i, to += kTileTokens) {
          ScoreTiles<queries, 1>(from, run.tiles + i, stride, run.ahead + i, shape_.head_dim, to);
        }
      });
    });
  }

  void WeighSpan(uint32_t first_token, uint32_t token_count) {
    const size_t out_floats = size_t{query_count_} * shape_.head_dim;
    for (size_t i = 0; i < out_floats; i += 8) {
      _mm256_store_ps(scratch_.values + i, _mm256_setzero_ps());
    }
    ForRuns(token_count, [&](uint32_t first_tile, uint32_t head) {
      const uint32_t first = first_tile * kTileTokens;
      const uint32_t tokens = Smaller(kRunTiles * kTileTokens, token_count - first);
      const Run run = FindRun(first_token + first, TileCount(tokens), shape_.value_offset, head,
                              ahead_.piece_bytes());
      const uint32_t query = head * shape_.group;
      WithConstant<kDirectGroupMax>(shape_.group, [&](auto queries) {
        WeighRun<queries, VectorsAtOnce(queries)>(
            scratch_.scores + query * kQueryStride + first, tokens, run, shape_.head_dim, 0,
            scratch_.values + size_t{query} * shape_.head_dim);
      });
    });
  }

  void MergeInto(const AttentionSums& sums) {
    for (uint32_t i = 0; i < query_count_; i += kQueryPad) {
      const uint32_t count = Smaller(kQueryPad, query_count_ - i);
      MergeFactors(count, sums.max + i, sums.sum + i, scratch_.max + i, scratch_.sum + i,
                   scratch_.keep + i, scratch_.add + i);
    }
    for (uint32_t i = 0; i < query_count_; ++i) {
      const __m512 keep = _mm512_set1_ps(scratch_.keep[i]);
      const __m512 add = _mm512_set1_ps(scratch_.add[i]);
      const size_t row = size_t{i} * shape_.head_dim;
      for (uint32_t d = 0; d < shape_.head_dim; d += kLanes) {
        const __mmask16 lanes = Lanes(Smaller(kLanes, shape_.head_dim - d));
        MergeValues(sums.values + row + d, _mm512_maskz_loadu_ps(lanes, scratch_.values + row + d),
                    keep, add, lanes);
      }
    }
  }

  const AttentionShape& shape_;
  const AttentionStrip& strip_;
  const AttentionScratch& scratch_;
  const uint32_t query_count_;
  ReadAhead<Avx512> ahead_;
  const uint64_t lead_;  // pieces
  uint64_t done_ = 0;    // pieces read
};

}  // namespace

void AttendDirect(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, AttentionSums sums, size_t sums_stride,
                  const AttentionScratch& scratch) {
  DirectRow row(shape, strip, span_begin, span_end, scratch);
  for (uint32_t s = span_begin; s < span_end; ++s) {
    const uint32_t first_token = s * kAttentionSpan;
    const uint32_t seen = strip.first_position + 1 - first_token;
    row.AttendSpan(first_token, Smaller(kAttentionSpan, seen), sums);
    sums = sums.Shifted(sums_stride);
  }
}

}  // namespace cairn::avx512
