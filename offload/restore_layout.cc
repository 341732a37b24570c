#include "offload/restore_layout.h"

#include <algorithm>
#include <bit>

namespace cairn {

void RestoreLayout::Build(std::span<const BlockSource> blocks, uint32_t channel_count) {
  CHECK(channel_count <= kRestoreChannelsMax);
  all_ = blocks;
  source_count_ = channel_count + 1;
  const uint32_t total = block_count();
  row_shift_ =
      total <= kRowsMax ? 0 : static_cast<uint32_t>(std::bit_width((total - 1) / kRowsMax));
  row_count_ = (total + row_blocks() - 1) >> row_shift_;

  std::array<uint32_t, 256> histogram{};
  for (const BlockSource source : blocks) ++histogram[static_cast<uint8_t>(source)];
  histogram[channel_count] = histogram[static_cast<uint8_t>(BlockSource::kAbsent)];
  begin_[0] = 0;
  for (uint32_t s = 0; s < source_count_; ++s) begin_[s + 1] = begin_[s] + histogram[s];
  // No block names a channel that there is not.
  CHECK(begin_[source_count_] + histogram[static_cast<uint8_t>(BlockSource::kDevice)] == total);

  // Only ever larger: what is beyond the counts is left over from other layouts. Blocks on the
  // device go to a list that nobody reads, so that the loop has no branch.
  indices_.resize(std::max<size_t>(indices_.size(), total));
  sums_.resize(std::max<size_t>(sums_.size(), total + 1));
  row_counts_.resize(std::max<size_t>(row_counts_.size(), (row_count_ + 1) * kRestoreSourcesMax));
  std::array<uint32_t, 256> next{};
  for (uint32_t s = 0; s < channel_count; ++s) next[s] = begin_[s];
  next[static_cast<uint8_t>(BlockSource::kAbsent)] = begin_[absent()];
  next[static_cast<uint8_t>(BlockSource::kDevice)] = begin_[source_count_];
  const auto note_row = [&](uint32_t row) {
    uint32_t* counts = &row_counts_[row * kRestoreSourcesMax];
    for (uint32_t s = 0; s < channel_count; ++s) counts[s] = next[s] - begin_[s];
    counts[absent()] = next[static_cast<uint8_t>(BlockSource::kAbsent)] - begin_[absent()];
  };
  for (uint32_t row = 0; row < row_count_; ++row) {
    note_row(row);
    const uint32_t end = std::min(total, (row + 1) << row_shift_);
    for (uint32_t i = row << row_shift_; i < end; ++i) {
      indices_[next[static_cast<uint8_t>(blocks[i])]++] = i;
    }
  }
  note_row(row_count_);
  uint64_t sum = 0;
  for (uint32_t n = 0; n < begin_[source_count_]; ++n) {
    sums_[n] = sum;
    sum += indices_[n];
  }
  sums_[begin_[source_count_]] = sum;
}

uint32_t RestoreLayout::CountBefore(uint32_t block, uint32_t source) const {
  const uint32_t row = block >> row_shift_;
  if (row >= row_count_) return count(source);
  const auto first = indices_.begin() + begin_[source];
  return static_cast<uint32_t>(std::lower_bound(first + CountBeforeRow(row, source),
                                                first + CountBeforeRow(row + 1, source), block) -
                               first);
}

}  // namespace cairn
