// What a restore was planned to be and what became of it, as people and statistics are told.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "offload/block.h"
#include "offload/prediction_histogram.h"
#include "offload/restore_plan.h"

namespace cairn {

// What becomes of a block. The last one is not planned: it was to be loaded, the load failed, and
// so it was computed.
enum class BlockFate : uint8_t { kKept, kReloaded, kRecomputed, kReloadFailed, kCount };

struct BlockReport {
  Tier tier = Tier::kAbsent;  // where its fastest copy was
  BlockFate fate = BlockFate::kKept;
  bool is_new = false;             // not computed before as a whole: it does not come back
  std::optional<double> reload_s;  // prices, where the plan has them
  std::optional<double> recompute_s;
  // From the beginning of the restore until the block was in place; of one that was carried out,
  // and of blocks that were not there before.
  std::optional<std::chrono::nanoseconds> actual_time;
};

struct RestoreReport {
  Execution execution = Execution::kNone;
  NoWave no_wave = NoWave::kNone;
  uint32_t block_tokens = 0;
  std::vector<BlockReport> blocks;  // by position; whole ones
  size_t token_count = 0;           // of the context, with the tail that fills no block
  size_t computed_count = 0;        // of these, the first ones, that had been computed before
  double predicted_s = 0;           // as in RestorePlan
  double load_all_s = 0;
  double recompute_all_s = 0;
  std::chrono::nanoseconds planning_time{0};
  std::optional<std::chrono::nanoseconds> actual_time;  // of one that was carried out
  Clock::Wall decided_at;
};

// `origins` is what the plan was made from, `tiers` where the blocks were; the first
// `computed_count` tokens had been computed before. A plan tells lost blocks at the end from new
// ones by nothing, since they cost the same: here they are told apart.
RestoreReport ReportOf(const RestorePlan& plan, std::span<const Origin> origins,
                       std::span<const Tier> tiers, uint32_t block_tokens, size_t computed_count);

// Where computing and loading met.
struct MeetingPoint {
  int64_t position = 0;  // the first one behind which nothing was computed again
  std::chrono::nanoseconds computed_time{0};  // when the last block was computed
  std::chrono::nanoseconds loaded_time{0};    // and when the last one was loaded
};
// Of a restore that was carried out and did both.
std::optional<MeetingPoint> MeetingPointOf(const RestoreReport& report);

// Restores that were carried out since the start.
struct RestoreCounts {
  struct Executed {
    int64_t restores = 0;
    std::chrono::nanoseconds predicted{0};  // of all of them together
    std::chrono::nanoseconds actual{0};
  };
  std::array<Executed, kExecutionCount> by_execution;
  PredictionHistogram restores;  // of a whole restore
  PredictionHistogram passes;    // of a pass that had rows of restores, and waited for nothing
  int64_t waiting_passes = 0;    // during which blocks arrived layer by layer
  std::array<int64_t, static_cast<size_t>(BlockFate::kCount)> blocks{};  // by fate; no new ones
};

}  // namespace cairn
