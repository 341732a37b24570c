#include "engine/restore_strategy.h"

namespace cairn {
namespace {

class LoadAllStrategy final : public RestoreStrategy {
 public:
  RestorePlan Plan(const RestoreView& view) override {
    RestorePlan plan{.execution = Execution::kLoadAll};
    plan.load_order.resize(kRestoreChannels);
    for (uint32_t block = 0; block < view.blocks.size(); ++block) {
      const Origin origin = view.blocks[block];
      plan.verdicts.push_back(origin == Origin::kResident ? Verdict::kKeep
                              : origin == Origin::kAbsent ? Verdict::kRecompute
                                                          : Verdict::kReload);
      if (origin == Origin::kHost) plan.load_order[kHostChannel].push_back(block);
      if (origin == Origin::kDisk) plan.load_order[kDiskChannel].push_back(block);
    }
    return plan;
  }
};

}  // namespace

std::unique_ptr<RestoreStrategy> MakeLoadAllStrategy() {
  return std::make_unique<LoadAllStrategy>();
}

}  // namespace cairn
