#include "kernels/cpu/attention_avx2.h"

namespace cairn::avx2 {
namespace {

// A piece is the keys or the values of a tile of 16 positions with one KV head. In a span they are
// read in this order: for each run of `run_tiles` tiles, for each head, the keys of the run's
// tiles; then for each tile, for each head, the values.
//
// ReadAhead walks the pieces of all spans of a strip in that order, ahead of the arithmetic, which
// prefetches what it names. The processor's own prefetching does not see that blocks follow one
// another.
class ReadAhead {
 public:
  ReadAhead(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
            uint32_t span_end, uint32_t run_tiles, const void* idle)
      : shape_(shape),
        strip_(strip),
        span_end_(span_end),
        run_tiles_(run_tiles),
        idle_(static_cast<const std::byte*>(idle)),
        span_(span_begin) {
    EnterSpan();
  }

  size_t piece_bytes() const { return size_t{shape_.head_dim} * kTileTokens * 2; }

  // The next piece, unless `count_max` were named already or there is no other: then some memory
  // that is in the cache anyway.
  const std::byte* Next(uint64_t count_max) {
    if (count_ >= count_max || span_ == span_end_) return idle_;
    ++count_;
    const std::byte* const piece = Piece();
    if (++tile_ < run_end_) return piece;
    if (++head_ < strip_.kv_head_count) {
      tile_ = run_begin_;
      return piece;
    }
    head_ = 0;
    if (run_end_ < tile_count_) {
      BeginRun(run_end_);
    } else if (!values_) {
      values_ = true;
      BeginRun(0);
    } else {
      ++span_;
      EnterSpan();
    }
    return piece;
  }

 private:
  void EnterSpan() {
    values_ = false;
    if (span_ == span_end_) return;
    const uint32_t seen = strip_.first_position + 1 - span_ * kAttentionSpan;
    tile_count_ = TileCount(Smaller(kAttentionSpan, seen));
    BeginRun(0);
  }
  void BeginRun(uint32_t tile) {
    run_begin_ = tile_ = tile;
    run_end_ = Smaller(tile_count_, tile + (values_ ? 1 : run_tiles_));
  }
  // With more than one tile in a block the keys of a tile are not together; each tile then stands
  // for its share of the block.
  const std::byte* Piece() const {
    const uint32_t position = span_ * kAttentionSpan + tile_ * kTileTokens;
    const size_t part = values_ ? shape_.value_offset : shape_.key_offset;
    return BlockPart(shape_, strip_, position,
                     part + (strip_.kv_head_begin + head_) * shape_.head_bytes) +
           position % shape_.block_tokens * size_t{2} * shape_.head_dim;
  }

  const AttentionShape& shape_;
  const AttentionStrip& strip_;
  const uint32_t span_end_;
  const uint32_t run_tiles_;
  const std::byte* const idle_;
  uint64_t count_ = 0;  // pieces named
  uint32_t span_;
  bool values_ = false;
  uint32_t tile_count_ = 0;  // of the span
  uint32_t run_begin_ = 0;
  uint32_t run_end_ = 0;
  uint32_t tile_ = 0;
  uint32_t head_ = 0;
};

// How far reading runs ahead, and how much further while the softmax of a span reads nothing.
constexpr uint64_t kLeadBytes = 12 * 1024;
constexpr uint64_t kPauseLeadBytes = 8 * 1024;

constexpr int kRunTilesMax = 4;
constexpr int kTileQueriesMax = 4;
// Tiles of keys that are multiplied at once, so that there are enough sums to keep the multipliers
// busy and no more than there are registers.
constexpr int TilesAtOnce(int queries) { return queries == 1 ? 4 : queries <= 3 ? 2 : 1; }
// The same for values, in vectors of 8 dimensions.
constexpr int VectorsAtOnce(int queries) { return queries == 1 ? 8 : queries <= 3 ? 4 : 2; }

// Scores of kQueries queries with kTiles tiles of keys. Queries are kQueryStride apart, as are
// their scores.
template <int kQueries, int kTiles>
void ScoreTiles(const float* queries, const std::byte* const* keys, size_t key_stride,
                const std::byte* const* ahead, uint32_t head_dim, float* scores) {
  __m256 sums[kQueries][kTiles][2];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      sums[q][tile][0] = sums[q][tile][1] = _mm256_setzero_ps();
    }
  }
  size_t key = 0;
  for (uint32_t d = 0; d < head_dim; ++d, key += key_stride) {
    __m256 factors[kQueries];
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      factors[q] = _mm256_broadcast_ss(queries + q * kQueryStride + d);
    }
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      if (d % 2 == 0) _mm_prefetch(ahead[tile] + d * 32, _MM_HINT_T0);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256 column = LoadHalves(keys[tile] + key + 16 * half);
#pragma GCC unroll 4
        for (int q = 0; q < kQueries; ++q) {
          sums[q][tile][half] = _mm256_fmadd_ps(factors[q], column, sums[q][tile][half]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int tile = 0; tile < kTiles; ++tile) {
      float* const to = scores + q * kQueryStride + tile * kTileTokens;
      _mm256_store_ps(to, sums[q][tile][0]);
      _mm256_store_ps(to + 8, sums[q][tile][1]);
    }
  }
}

// out[q][.] += weights[q][t] * values[t][.] for each t in order, for `vectors` vectors of 8
// dimensions. Weights are kQueryStride apart, rows of out head_dim.
template <int kQueries, int kVectors>
void WeighTile(const float* weights, uint32_t tokens, const std::byte* values,
               const std::byte* ahead, uint32_t head_dim, uint32_t vectors, float* out) {
  const size_t stride = size_t{head_dim} * 2;
  for (; vectors >= kVectors; vectors -= kVectors) {
    __m256 sums[kQueries][kVectors];
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[q][v] = _mm256_loadu_ps(out + size_t{head_dim} * q + 8 * v);
      }
    }
    for (uint32_t t = 0; t < tokens; ++t) {
      __m256 factors[kQueries];
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        factors[q] = _mm256_broadcast_ss(weights + q * kQueryStride + t);
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if (v % 4 == 0) _mm_prefetch(ahead + t * stride + 16 * v, _MM_HINT_T0);
        const __m256 row = LoadHalves(values + t * stride + 16 * v);
#pragma GCC unroll 4
        for (int q = 0; q < kQueries; ++q) {
          sums[q][v] = _mm256_fmadd_ps(factors[q], row, sums[q][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        _mm256_storeu_ps(out + size_t{head_dim} * q + 8 * v, sums[q][v]);
      }
    }
    values += 16 * kVectors;
    ahead += 16 * kVectors;
    out += 8 * kVectors;
  }
  if constexpr (kVectors > 1) {
    if (vectors > 0) {
      WeighTile<kQueries, kVectors / 2>(weights, tokens, values, ahead, head_dim, vectors, out);
    }
  }
}

// One row of a strip.
class DirectRow {
 public:
  DirectRow(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
            uint32_t span_end, const AttentionScratch& scratch)
      : shape_(shape),
        strip_(strip),
        scratch_(scratch),
        query_count_(strip.kv_head_count * shape.group),
        run_tiles_(shape.group == 1 ? kRunTilesMax : 2),
        ahead_(shape, strip, span_begin, span_end, run_tiles_, scratch.scores),
        lead_(kLeadBytes / ahead_.piece_bytes() + 1),
        pause_lead_(lead_ + kPauseLeadBytes / ahead_.piece_bytes() + 1) {
    for (uint32_t i = 0; i < query_count_; ++i) {
      ScaleQuery(strip.q + QueryOffset(shape, strip, i), shape.head_dim,
                 scratch.queries + i * kQueryStride);
    }
    for (uint64_t i = 0; i < lead_; ++i) PrefetchPiece(lead_);
  }

  void AttendSpan(uint32_t first_token, uint32_t token_count, const AttentionSums& sums) {
    ScoreSpan(first_token, token_count);
    for (uint32_t i = 0; i < query_count_; ++i) {
      PrefetchPiece(done_ + pause_lead_);
      SoftmaxRow(scratch_.scores + i * kQueryStride, token_count, scratch_.max + i,
                 scratch_.sum + i);
    }
    WeighSpan(first_token, token_count);
    MergeInto(sums);
  }

 private:
  void PrefetchPiece(uint64_t count_max) {
    const std::byte* const piece = ahead_.Next(count_max);
    for (size_t i = 0; i < ahead_.piece_bytes(); i += 64) _mm_prefetch(piece + i, _MM_HINT_T0);
  }

  // Calls f(constant R, i) for tiles of R queries from i that cover the head's, as even as can be.
  template <class F>
  void ForQueryTiles(uint32_t head, F&& f) {
    const uint32_t tiles = (shape_.group + kTileQueriesMax - 1) / kTileQueriesMax;
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      const uint32_t begin = shape_.group * tile / tiles;
      const uint32_t end = shape_.group * (tile + 1) / tiles;
      WithConstant(end - begin, [&](auto queries) {
        if constexpr (queries() <= kTileQueriesMax) f(queries, head * shape_.group + begin);
      });
    }
  }

  void ScoreSpan(uint32_t first_token, uint32_t token_count) {
    const uint32_t tile_count = TileCount(token_count);
    for (uint32_t begin = 0; begin < tile_count; begin += run_tiles_) {
      const uint32_t run = Smaller(run_tiles_, tile_count - begin);
      for (uint32_t head = 0; head < strip_.kv_head_count; ++head) {
        ScoreRun(first_token, begin, run, head);
      }
    }
  }

  void ScoreRun(uint32_t first_token, uint32_t first_tile, uint32_t run, uint32_t head) {
    const std::byte* keys[kRunTilesMax];
    const std::byte* ahead[kRunTilesMax];
    done_ += run;
    for (uint32_t i = 0; i < run; ++i) {
      const uint32_t position = first_token + (first_tile + i) * kTileTokens;
      keys[i] = BlockPart(shape_, strip_, position,
                          shape_.key_offset + (strip_.kv_head_begin + head) * shape_.head_bytes) +
                position % shape_.block_tokens * size_t{2};
      ahead[i] = ahead_.Next(done_ + lead_);
    }
    const size_t stride = size_t{shape_.block_tokens} * 2;
    ForQueryTiles(head, [&](auto queries, uint32_t query) {
      constexpr int kTiles = TilesAtOnce(queries);
      const float* from = scratch_.queries + query * kQueryStride;
      float* to = scratch_.scores + query * kQueryStride + first_tile * kTileTokens;
      uint32_t i = 0;
      for (; i + kTiles <= run; i += kTiles) {
        ScoreTiles<queries, kTiles>(from, keys + i, stride, ahead + i, shape_.head_dim,
                                    to + i * kTileTokens);
      }
      for (; i < run; ++i) {
        ScoreTiles<queries, 1>(from, keys + i, stride, ahead + i, shape_.head_dim,
                               to + i * kTileTokens);
      }
    });
  }

  void WeighSpan(uint32_t first_token, uint32_t token_count) {
    const size_t out_floats = size_t{query_count_} * shape_.head_dim;
    for (size_t i = 0; i < out_floats; i += 8) {
      _mm256_store_ps(scratch_.values + i, _mm256_setzero_ps());
    }
    for (uint32_t first = 0; first < token_count; first += kTileTokens) {
      const uint32_t position = first_token + first;
      const size_t in_block = position % shape_.block_tokens * size_t{2} * shape_.head_dim;
      const std::byte* values =
          BlockPart(shape_, strip_, position, shape_.value_offset + in_block) +
          strip_.kv_head_begin * shape_.head_bytes;
      for (uint32_t head = 0; head < strip_.kv_head_count; ++head, values += shape_.head_bytes) {
        ++done_;
        const std::byte* const ahead = ahead_.Next(done_ + pause_lead_);
        ForQueryTiles(head, [&](auto queries, uint32_t query) {
          WeighTile<queries, VectorsAtOnce(queries)>(
              scratch_.scores + query * kQueryStride + first,
              Smaller(kTileTokens, token_count - first), values, ahead, shape_.head_dim,
              shape_.head_dim / 8, scratch_.values + size_t{query} * shape_.head_dim);
        });
      }
    }
  }

  void MergeInto(const AttentionSums& sums) {
    const uint32_t vectors = shape_.head_dim / 8;
    for (uint32_t i = 0; i < query_count_; i += kQueryPad) {
      const uint32_t count = Smaller(kQueryPad, query_count_ - i);
      MergeFactors(count, sums.max + i, sums.sum + i, scratch_.max + i, scratch_.sum + i,
                   scratch_.keep + i, scratch_.add + i);
    }
    for (uint32_t i = 0; i < query_count_; ++i) {
      const __m256 keep = _mm256_broadcast_ss(scratch_.keep + i);
      const __m256 add = _mm256_broadcast_ss(scratch_.add + i);
      const size_t row = size_t{i} * shape_.head_dim;
      for (uint32_t v = 0; v < vectors; ++v) {
        MergeValues(sums.values + row + 8 * v, _mm256_load_ps(scratch_.values + row + 8 * v), keep,
                    add);
      }
    }
  }

  const AttentionShape& shape_;
  const AttentionStrip& strip_;
  const AttentionScratch& scratch_;
  const uint32_t query_count_;
  const uint32_t run_tiles_;
  ReadAhead ahead_;
  const uint64_t lead_;        // pieces
  const uint64_t pause_lead_;  // from the softmax to the end of the span
  uint64_t done_ = 0;          // pieces read
};

}  // namespace

void AttendDirect(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
                  uint32_t span_end, const AttentionSums& sums, const AttentionScratch& scratch) {
  DirectRow row(shape, strip, span_begin, span_end, scratch);
  for (uint32_t s = span_begin; s < span_end; ++s) {
    const uint32_t first_token = s * kAttentionSpan;
    const uint32_t seen = strip.first_position + 1 - first_token;
    row.AttendSpan(first_token, Smaller(kAttentionSpan, seen), sums);
  }
}

}  // namespace cairn::avx2
