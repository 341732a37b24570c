// Decides at random what becomes of blocks that come back, and keeps changing its mind: every plan
// has to give the same tokens.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "engine/restore_strategy.h"

namespace cairn {

class RandomRestores final : public RestoreStrategy {
 public:
  explicit RandomRestores(uint64_t seed, double wave_chance = 0.4)
      : rng_(seed), wave_chance_(wave_chance) {}

  RestorePlan Plan(const RestoreView& view) override {
    RestorePlan plan{.execution = rng_.Chance(wave_chance_) ? Execution::kWave : Execution::kFront,
                     .turn = rng_.Chance(0.1) ? kTurnAhead : static_cast<uint32_t>(rng_.Below(4))};
    plan.load_order.resize(kRestoreChannels);
    const double load_share = rng_.Chance(0.2) ? 0.0 : rng_.Chance(0.3) ? 1.0 : rng_.Uniform();
    for (uint32_t block = 0; block < view.blocks.size(); ++block) {
      const Origin origin = view.blocks[block];
      if (origin == Origin::kResident || origin == Origin::kAbsent) {
        plan.verdicts.push_back(origin == Origin::kResident ? Verdict::kKeep : Verdict::kRecompute);
        continue;
      }
      const bool loads = rng_.Chance(load_share);
      plan.verdicts.push_back(loads ? Verdict::kReload : Verdict::kRecompute);
      const uint32_t channel = origin == Origin::kHost ? kHostChannel : kDiskChannel;
      if (loads) plan.load_order[channel].push_back(block);
    }
    for (std::vector<uint32_t>& order : plan.load_order) {
      const uint64_t kind = rng_.Below(3);
      if (kind == 0) std::ranges::reverse(order);
      for (size_t i = order.size(); kind == 1 && i > 1; --i) {
        std::swap(order[i - 1], order[rng_.Below(i)]);
      }
    }
    return plan;
  }

  // At some looks at a restore, and not at others.
  std::optional<std::chrono::nanoseconds> revision_interval() const override {
    if (!rng_.Chance(0.5)) return std::nullopt;
    return std::chrono::nanoseconds(0);
  }

 private:
  mutable Rng rng_;
  const double wave_chance_;
};

}  // namespace cairn
