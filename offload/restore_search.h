// The counts of least predicted time, for Wave and for Front.
//
// Whether a plan can end by a time T is asked of the counts that recompute least: each deadline
// ("what crosses this channel before that pass") is met by recomputing the earliest blocks that
// cross it, later deadlines follow from what is computed by then, and so on until nothing changes.
// T is found by bisection. Where there are few plans, all of them are tried; what bisection leaves
// to gain because passes and blocks are whole is found among the neighbours.
#pragma once

#include <array>
#include <cstdint>

#include "offload/restore_layout.h"
#include "offload/restore_problem.h"
#include "offload/restore_times.h"

namespace cairn {

class RestoreSearch {
 public:
  // All must outlive it.
  RestoreSearch(const RestoreProblem& problem, const RestoreLayout& layout,
                const RestoreTimes& times);

  struct Found {
    RecomputeCounts counts{};
    double seconds = 0;
  };
  // The best plan that takes less than `useless_s`; if there is none, one that "takes" useless_s.
  Found BestWave(double useless_s) const { return Best(Kind::kWave, useless_s); }
  Found BestFront(double useless_s) const { return Best(Kind::kFront, useless_s); }

 private:
  enum class Kind : uint8_t { kWave, kFront };

  Found Best(Kind kind, double useless_s) const;
  double Seconds(Kind kind, const RecomputeCounts& counts) const;
  // Whether these are better than the best.
  bool Try(Kind kind, const RecomputeCounts& counts, Found& best) const;
  bool Meets(Kind kind, double deadline_s, RecomputeCounts& counts) const;
  bool MeetWave(double deadline_s, RecomputeCounts& counts) const;
  bool MeetFront(double deadline_s, RecomputeCounts& counts) const;
  bool MeetPasses(double deadline_s, RecomputeCounts& counts, int64_t& effort) const;
  // At most `loads_max` loads on a channel of the first `before` blocks of each source. True:
  // counts changed.
  bool Relieve(uint32_t channel, const RecomputeCounts& before, uint32_t loads_max,
               RecomputeCounts& counts) const;
  // What it takes for everything loaded of them to be there in time.
  bool RelieveAll(const RecomputeCounts& before, double ready_by_s, RecomputeCounts& counts) const;
  void TryAll(Kind kind, Found& best) const;
  // Leaves in `met` the counts that meet the earliest deadline, if one before met.seconds is met,
  // and that deadline. Of Front this is a bound: passes may wait between two checkpoints. At least
  // `least` is recomputed. Returns a time by which nothing of this kind ends.
  double Bisect(Kind kind, RecomputeCounts least, Found& met) const;
  void TryWholeSources(Kind kind, Found& best) const;
  // Ends before best.seconds, as long as that takes little effort; nothing ends by `too_short`.
  void MeetPassesEarlier(double too_short, Found& best) const;
  int64_t WalkEffort(const RecomputeCounts& counts) const;
  void TryNeighbours(Kind kind, RecomputeCounts centre, Found& best, int64_t& effort) const;

  const RestoreProblem& problem_;
  const RestoreLayout& layout_;
  const RestoreTimes& times_;
  const RecomputeCounts all_;
  const int64_t effort_max_;  // steps to find a plan
  // Channels in an order in which none comes before one whose blocks cross it.
  std::array<uint32_t, kRestoreChannelsMax> inner_first_{};
};

}  // namespace cairn
