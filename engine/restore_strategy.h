// Who decides, for each block of a context that comes back, whether it is loaded or computed again.
// The runner asks when it admits a sequence, and again while the restore is under way, since what
// was predicted drifts.
// Threads: the engine thread only.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/block.h"
#include "offload/pass_fit.h"
#include "offload/restore_plan.h"

namespace cairn {

// The channels of a plan.
enum RestoreChannelIndex : uint32_t { kHostChannel, kDiskChannel, kRestoreChannels };

// A context that comes back, beside what else is going on.
struct RestoreView {
  std::span<const Origin> blocks;  // by position; what is being computed already counts as absent
  uint32_t new_tokens = 0;         // to compute after them
  uint32_t decode_rows = 0;        // rows of running streams that every step carries along
  std::array<uint32_t, kRestoreChannels>
      loading{};  // of `blocks`, by channel: on their way already
  uint32_t priority = kPriorityDefault;
  bool is_ahead = false;  // nobody waits for it yet
};

class RestoreStrategy {
 public:
  virtual ~RestoreStrategy() = default;

  // `load_order` has kRestoreChannels elements. Blocks that are resident are kept and absent ones
  // computed, whatever the verdict says.
  virtual RestorePlan Plan(const RestoreView& view) = 0;
  // The same for contexts that come back at once, and the turns of their plans. As it is here, each
  // is planned as if it were alone.
  virtual std::vector<RestorePlan> PlanTogether(std::span<const RestoreView> views) {
    std::vector<RestorePlan> plans;
    for (const RestoreView& view : views) plans.push_back(Plan(view));
    return plans;
  }
  // How often a restore that is under way is planned again; never: nullopt.
  virtual std::optional<std::chrono::nanoseconds> revision_interval() const { return std::nullopt; }

  // A forward pass was made.
  virtual void Learn(const PassSample& /*pass*/) {}
  // What passes cost, as far as it has learned.
  virtual std::optional<PassCosts> pass_costs() const { return std::nullopt; }
};

// What the engine's parts know of the time that loads take.
class BlockStore;
using RestoreStrategyMaker = std::function<std::unique_ptr<RestoreStrategy>(const BlockStore&)>;

}  // namespace cairn
