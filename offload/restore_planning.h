// One planning of one restore: the problem, what it looks like, the two plans without a choice, and
// what a policy chooses. restore_planner.h has the policies; this is how they are carried out.
#pragma once

#include <array>

#include "offload/restore_layout.h"
#include "offload/restore_plan.h"
#include "offload/restore_problem.h"
#include "offload/restore_times.h"

namespace cairn {

class RestorePlanning {
 public:
  // Both outlive it; `layout` was built from the problem's blocks.
  RestorePlanning(const RestoreProblem& problem, const RestoreLayout& layout);

  struct Choice {
    Execution execution = Execution::kNone;
    RecomputeCounts counts{};
    double seconds = 0;
    LoadOrder order = LoadOrder::kForward;
    NoWave no_wave = NoWave::kNone;
  };
  Choice Choose(RestorePolicy policy) const;
  void Write(const Choice& choice, RestorePlan& plan) const;

  // How long a plan keeps compute and each channel busy.
  struct Use {
    double compute_s = 0;
    std::array<double, kRestoreChannelsMax> channel_s{};
    friend Use operator+(Use a, const Use& b) {
      a.compute_s += b.compute_s;
      for (uint32_t c = 0; c < kRestoreChannelsMax; ++c) a.channel_s[c] += b.channel_s[c];
      return a;
    }
  };
  Use UseOf(const Choice& choice) const;

 private:
  Choice Best() const;
  Choice Greedy() const;
  Choice Threshold() const;
  Choice Cake() const;
  Choice Cut() const;
  Choice Wave() const;
  Choice AsFront(const RecomputeCounts& counts, double seconds) const;
  RestorePrices PricesOf(const Choice& choice, RestorePrices prices) const;

  const RestoreProblem& problem_;
  const RestoreLayout& layout_;
  const RestoreTimes times_;
  Choice load_all_;
  Choice recompute_all_;
};

}  // namespace cairn
