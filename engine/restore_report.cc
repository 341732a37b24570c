#include "engine/restore_report.h"

#include <algorithm>

#include "base/check.h"
#include "engine/restore_strategy.h"

namespace cairn {
namespace {

BlockFate PlannedFate(Origin origin, Verdict verdict) {
  if (origin == Origin::kResident) return BlockFate::kKept;
  const bool loads = origin != Origin::kAbsent && verdict == Verdict::kReload;
  return loads ? BlockFate::kReloaded : BlockFate::kRecomputed;
}

std::optional<double> ReloadPrice(const RestorePrices& prices, Origin origin) {
  if (origin != Origin::kHost && origin != Origin::kDisk) return std::nullopt;
  const size_t channel = origin == Origin::kHost ? kHostChannel : kDiskChannel;
  if (channel >= prices.reload_s.size()) return std::nullopt;
  return prices.reload_s[channel];
}

}  // namespace

RestoreReport ReportOf(const RestorePlan& plan, std::span<const Origin> origins,
                       std::span<const Tier> tiers, uint32_t block_tokens, size_t computed_count) {
  CHECK(plan.verdicts.size() == origins.size() && tiers.size() == origins.size());
  RestoreReport report{.block_tokens = block_tokens,
                       .computed_count = computed_count,
                       .predicted_s = plan.predicted_s,
                       .load_all_s = plan.load_all_s,
                       .recompute_all_s = plan.recompute_all_s};
  report.blocks.reserve(origins.size());
  const bool has_prices = !plan.prices.reload_s.empty();
  bool misses_some = false;
  for (uint32_t i = 0; i < origins.size(); ++i) {
    BlockReport block{.tier = tiers[i], .fate = PlannedFate(origins[i], plan.verdicts[i])};
    if (block.fate != BlockFate::kKept) {
      block.is_new =
          origins[i] == Origin::kAbsent && (size_t{i} + 1) * block_tokens > computed_count;
      misses_some |= !block.is_new;
      block.reload_s = ReloadPrice(plan.prices, origins[i]);
      if (has_prices) block.recompute_s = plan.prices.RecomputeSeconds(i);
    }
    report.blocks.push_back(block);
  }
  if (!misses_some) return report;
  const bool has_choice = plan.execution != Execution::kNone;
  report.execution = has_choice ? plan.execution : Execution::kRecomputeAll;
  report.no_wave = plan.no_wave;
  return report;
}

std::optional<MeetingPoint> MeetingPointOf(const RestoreReport& report) {
  MeetingPoint meeting;
  bool computed = false, loaded = false;
  for (size_t i = 0; i < report.blocks.size(); ++i) {
    const BlockReport& block = report.blocks[i];
    if (!block.actual_time || block.is_new) continue;
    if (block.fate == BlockFate::kReloaded) {
      loaded = true;
      meeting.loaded_time = std::max(meeting.loaded_time, *block.actual_time);
    } else {
      computed = true;
      meeting.computed_time = std::max(meeting.computed_time, *block.actual_time);
      meeting.position = static_cast<int64_t>(i + 1) * report.block_tokens;
    }
  }
  if (!computed || !loaded) return std::nullopt;
  return meeting;
}

}  // namespace cairn
