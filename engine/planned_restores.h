// The strategy of the server: plans restores (offload/restore_planner.h) with what passes and loads
// were seen to take. While nothing is known of passes, whatever can be loaded is.
// Threads: the engine thread only.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "engine/restore_strategy.h"
#include "offload/block_store.h"
#include "offload/cost_model.h"
#include "offload/restore_planner.h"

namespace cairn {

struct RestoreSettings {
  RestorePolicy policy = RestorePolicy::kCairn;
  bool allows_wave = true;            // where it can be carried out
  double cut_share = 0.5;             // RestoreProblem has the meaning
  uint32_t chunk_tokens = 256;        // rows of a restore in one step
  double share = 0.2;                 // of the time, that restores may take from running streams
  std::optional<PassFit> calibrated;  // of passes; none: learned from the first ones
};

class PlannedRestores final : public RestoreStrategy {
 public:
  // `store` and `clock` outlive it.
  PlannedRestores(const RestoreSettings& settings, const BlockStore& store, const Clock& clock);

  RestorePlan Plan(const RestoreView& view) override;
  std::vector<RestorePlan> PlanTogether(std::span<const RestoreView> views) override;
  std::optional<std::chrono::nanoseconds> revision_interval() const override;
  void Learn(const PassSample& sample) override;
  std::optional<PassCosts> pass_costs() const override;

 private:
  RestorePolicy PolicyNow() const;
  NoWave NoWaveFor(const RestoreView& view) const;
  void NoteNoWave(const RestoreView& view, RestorePlan& plan) const;
  void LookAtChannels(std::span<const RestoreView> views);
  RestoreProblem ProblemOf(const RestoreView& view, std::vector<BlockSource>& sources) const;
  std::optional<uint32_t> BlockToProbe(const RestoreView& view, const RestorePlan& plan) const;

  const RestoreSettings settings_;
  const BlockStore& store_;
  const Clock& clock_;
  std::vector<PassSample> first_passes_;  // until a fit can be made of them
  std::optional<PassCostModel> passes_;
  std::vector<BlockSource> sources_;
  std::array<RestoreChannel, kRestoreChannels> channels_;
  RestoreScratch scratch_;
};

}  // namespace cairn
