// The order in which AttendDirect reads K and V, and the walk ahead of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_strip.h"

namespace cairn {

// A piece is the keys or the values of a tile of 16 positions with one KV head. The pieces of a
// span are read in this order: all keys, then all values; of either, for each run of kRunTiles
// tiles, for each head, the tiles of the run.
//
// ReadAhead walks the pieces of all spans of a strip in that order, ahead of the arithmetic, which
// prefetches what it names. The processor's own prefetching does not see that blocks follow one
// another.
//
// InstructionSet gives kRunTiles. It is what makes the class a template, too: each instruction set
// has a copy of its own, which the linker cannot take for another's.
template <class InstructionSet>
class ReadAhead {
 public:
  ReadAhead(const AttentionShape& shape, const AttentionStrip& strip, uint32_t span_begin,
            uint32_t span_end, const void* idle)
      : shape_(shape),
        strip_(strip),
        span_end_(span_end),
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
  static constexpr uint32_t kRunTiles = InstructionSet::kRunTiles;

  void EnterSpan() {
    values_ = false;
    if (span_ == span_end_) return;
    const uint32_t seen = strip_.first_position + 1 - span_ * kAttentionSpan;
    tile_count_ = TileCount(Smaller(kAttentionSpan, seen));
    BeginRun(0);
  }
  void BeginRun(uint32_t tile) {
    run_begin_ = tile_ = tile;
    run_end_ = Smaller(tile_count_, tile + kRunTiles);
  }
  // With more than one tile in a block the keys of a tile are not together; each tile then stands
  // for its share of the block.
  const std::byte* Piece() const {
    const uint32_t position = span_ * kAttentionSpan + tile_ * kTileTokens;
    const size_t part = values_ ? shape_.value_offset : shape_.key_offset;
    return strip_.Block(shape_, position,
                        part + (strip_.kv_head_begin + head_) * shape_.head_bytes) +
           shape_.PlaceInBlock(position) * size_t{2} * shape_.head_dim;
  }

  const AttentionShape& shape_;
  const AttentionStrip& strip_;
  const uint32_t span_end_;
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

}  // namespace cairn
