// How long a restore takes, by the costs of restore_problem.h, when the first blocks of each source
// are recomputed and its later ones are loaded. Every plan has this form (docs/DECISION.md says
// why), so that a plan is one count a source.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "offload/early_passes.h"
#include "offload/restore_layout.h"
#include "offload/restore_problem.h"

namespace cairn {

// By source: so many of its first blocks are recomputed. Of absent ones all are.
using RecomputeCounts = std::array<uint32_t, kRestoreSourcesMax>;

enum class LoadOrder : uint8_t { kForward, kBackward };

class RestoreTimes {
 public:
  // Both must outlive it.
  RestoreTimes(const RestoreProblem& problem, const RestoreLayout& layout);

  uint32_t channel_count() const { return layout_.absent(); }
  RecomputeCounts RecomputeNothing() const;  // but what is absent
  RecomputeCounts RecomputeEverything() const;

  // Blocks to compute, and the sum of their indices.
  struct Work {
    uint32_t block_count = 0;
    double index_sum = 0;
  };
  Work WorkOf(const RecomputeCounts& counts) const;
  // Of it what lies in rows of the layout from `row` on.
  Work WorkFromRow(const RecomputeCounts& counts, uint32_t row) const;

  // Passes of Front over recomputed blocks, without waiting.
  double FrontComputeSeconds(const Work& work) const;
  // The last pass of Front.
  double NewSeconds() const { return new_s_; }
  // The passes of Wave, without waiting.
  struct WavePasses {
    double first_s = 0;  // which waits for what comes
    double others_s = 0;
  };
  WavePasses WavePassesOf(const RecomputeCounts& counts) const;
  // One more block to compute: its tokens and their positions.
  double MarginalSeconds(uint32_t block) const {
    return problem_.block_tokens * problem_.pass.token_s + PositionSeconds({1, double(block)});
  }

  // Whether what comes from `source` crosses `channel`.
  bool Crosses(uint32_t source, uint32_t channel) const { return crossing_[channel] >> source & 1; }
  uint32_t CrossingCount(const RecomputeCounts& counts, uint32_t channel) const;
  // From the end of the channel's backlog; 0 for no blocks.
  double LoadSeconds(uint32_t channel, uint32_t block_count) const {
    const RestoreChannel& c = problem_.channels[channel];
    return block_count == 0 ? 0 : c.latency_s + block_count * c.block_s;
  }
  // When all loads are there.
  double LoadedAt(const RecomputeCounts& counts) const;

  double WaveSeconds(const RecomputeCounts& counts) const;
  double FrontSeconds(const RecomputeCounts& counts, LoadOrder order = LoadOrder::kForward) const;
  // If passes start early: the end of the blocks that the first one computes, or of all when new
  // tokens are among it. 0: there is none.
  uint32_t FirstPassEnd(const RecomputeCounts& counts, LoadOrder order) const;
  // The passes of Front in their order: `visit(before, work)` gets how many blocks of each source
  // lie before the pass's end, and what it computes; it returns false to see no more.
  template <class Visit>
  void VisitPasses(const RecomputeCounts& counts, const Visit& visit) const;
  // Of a channel, the blocks that have to be loaded before such a pass.
  uint32_t NeededCount(const RecomputeCounts& counts, const RecomputeCounts& before,
                       uint32_t channel) const {
    uint32_t needed = 0;
    for (uint32_t s = 0; s < channel_count(); ++s) {
      if (Crosses(s, channel) && before[s] > counts[s]) needed += before[s] - counts[s];
    }
    return needed;
  }
  // FrontSeconds if no pass waited for a load in its midst: quick to tell, and no more, but for
  // what a last short pass costs by the position.
  double FrontBound(const RecomputeCounts& counts) const;

 private:
  double PositionSeconds(const Work& work) const;
  double PositionSum(const Work& work) const;
  double PositionSumOfFirst(const RecomputeCounts& counts, uint64_t token_count) const;
  uint32_t EndOfFirst(const RecomputeCounts& counts, uint32_t block_count) const;
  void CutEarlyPasses(const RecomputeCounts& counts, LoadOrder order) const;
  double FinishFront(double passes_end, bool has_passes, double loaded_at) const;

  const RestoreProblem& problem_;
  const RestoreLayout& layout_;
  uint32_t pass_blocks_ = 0;  // of Front, at most
  double full_pass_s_ = 0;    // without positions
  double new_s_ = 0;
  double new_position_s_ = 0;
  double new_position_sum_ = 0;
  std::array<uint32_t, kRestoreChannelsMax> crossing_{};  // sources, as bits
  mutable EarlyPasses early_;                             // scratch of CutEarlyPasses
};

template <class Visit>
void RestoreTimes::VisitPasses(const RecomputeCounts& counts, const Visit& visit) const {
  uint32_t total = 0;
  for (uint32_t s = 0; s < layout_.source_count(); ++s) total += counts[s];
  RecomputeCounts before{};   // of each source, blocks up to where the walk is
  uint32_t done = 0;          // blocks in passes
  double done_index_sum = 0;  // of them
  const auto end_pass = [&](uint32_t end) {
    double index_sum = 0;
    for (uint32_t s = 0; s < layout_.source_count(); ++s) {
      index_sum += layout_.IndexSum(s, std::min(counts[s], before[s]));
    }
    const Work work = {end - done, index_sum - done_index_sum};
    done = end;
    done_index_sum = index_sum;
    return visit(std::as_const(before), work);
  };
  for (uint32_t row = 0; row < layout_.row_count() && done < total; ++row) {
    uint32_t row_end = 0;  // recomputed blocks before the next row
    for (uint32_t s = 0; s < layout_.source_count(); ++s) {
      row_end += std::min(counts[s], layout_.CountBeforeRow(row + 1, s));
    }
    if (row_end < std::min(done + pass_blocks_, total)) continue;  // no pass ends in this row
    uint32_t seen = 0;
    for (uint32_t s = 0; s < layout_.source_count(); ++s) {
      before[s] = layout_.CountBeforeRow(row, s);
      seen += std::min(counts[s], before[s]);
    }
    const uint32_t first = row * layout_.row_blocks();
    const uint32_t last = std::min(layout_.block_count(), first + layout_.row_blocks());
    for (uint32_t i = first; i < last && done < total; ++i) {
      const std::optional<uint32_t> s = layout_.SourceOf(i);
      if (!s || before[*s]++ >= counts[*s]) continue;
      ++seen;
      if ((seen - done == pass_blocks_ || seen == total) && !end_pass(seen)) return;
    }
  }
}

}  // namespace cairn
