// How likely a block is to be asked for again, one that never was and one that was, as seen lately:
// where documents are read once, these are far apart; where every context comes back, they are not.
//
// Of the blocks that were computed, and of the reuses of blocks, the shares that were followed by
// another reuse, each over about the last kWindow of them.
// Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cairn {

class ReuseOdds {
 public:
  void NoteComputed() { Add(computed_, first_reuses_); }
  // Somebody asked for a block again, after so many others had.
  void NoteReuse(uint32_t reuses_before) {
    if (reuses_before == 0) {
      first_reuses_ += 1;
    } else {
      later_reuses_ += 1;
    }
    Add(reuses_, later_reuses_);
  }

  // That a block is asked for again, after so many others had asked for it.
  double Chance(uint32_t reuses_before) const {
    const double share = reuses_before == 0 ? first_reuses_ / computed_ : later_reuses_ / reuses_;
    return std::clamp(share, kChanceMin, 1.0);
  }

 private:
  static constexpr double kWindow = 1024;
  static constexpr double kChanceMin = 1e-3;

  static void Add(double& count, double& followed) {
    constexpr double kKept = 1 - 1 / kWindow;
    count = count * kKept + 1;
    followed *= kKept;
  }

  // Before anything was seen, a block that was reused counts as four times as likely.
  double computed_ = 100;
  double first_reuses_ = 20;
  double reuses_ = 100;
  double later_reuses_ = 80;
};

}  // namespace cairn
