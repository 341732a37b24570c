// The blocks of a context by where they come from, so that counts and sums of positions over any
// beginning of a source's blocks take no walk over the blocks. Built in one pass; a layout that is
// built again reuses its memory.
//
// Sources are the channels 0 .. channel_count - 1 and then, as the last one, "absent".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "offload/restore_problem.h"

namespace cairn {

inline constexpr uint32_t kRestoreSourcesMax = kRestoreChannelsMax + 1;

class RestoreLayout {
 public:
  void Build(std::span<const BlockSource> blocks, uint32_t channel_count);

  std::span<const BlockSource> all() const { return all_; }
  uint32_t block_count() const { return static_cast<uint32_t>(all_.size()); }
  uint32_t source_count() const { return source_count_; }
  uint32_t absent() const { return source_count_ - 1; }
  // Of a block; one that is on the device has none.
  std::optional<uint32_t> SourceOf(uint32_t block) const {
    const BlockSource source = all_[block];
    if (source == BlockSource::kDevice) return std::nullopt;
    return IsLoadable(source) ? ChannelOf(source) : absent();
  }

  // The blocks of a source in increasing order.
  std::span<const uint32_t> blocks(uint32_t source) const {
    return std::span(indices_).subspan(begin_[source], begin_[source + 1] - begin_[source]);
  }
  uint32_t count(uint32_t source) const { return begin_[source + 1] - begin_[source]; }
  // The sum of the indices of its first `n` blocks.
  double IndexSum(uint32_t source, uint32_t n) const {
    const uint32_t begin = begin_[source];
    return static_cast<double>(sums_[begin + n] - sums_[begin]);
  }

  // Rows of equally many blocks, about kRowsMax of them; the last one may be shorter.
  static constexpr uint32_t kRowsMax = 128;
  uint32_t row_blocks() const { return 1u << row_shift_; }
  uint32_t row_count() const { return row_count_; }
  // Blocks of a source before the first one of a row; row row_count() is the end.
  uint32_t CountBeforeRow(uint32_t row, uint32_t source) const {
    return row_counts_[row * kRestoreSourcesMax + source];
  }
  // Blocks of a source before `block`.
  uint32_t CountBefore(uint32_t block, uint32_t source) const;

 private:
  std::span<const BlockSource> all_;
  uint32_t source_count_ = 0;
  uint32_t row_shift_ = 0;
  uint32_t row_count_ = 0;
  std::array<uint32_t, kRestoreSourcesMax + 1> begin_{};  // of each source in indices_
  std::vector<uint32_t> indices_;
  std::vector<uint64_t> sums_;  // of the indices before each
  std::vector<uint32_t> row_counts_;
};

}  // namespace cairn
