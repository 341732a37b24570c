// How much of the time restores may take from running streams. What the streams lose is what the
// rows of restores add to their steps and what loads and plans slow them down; it stays below a
// share of the whole. So over any while the streams run at 1 - share of the rate that they would
// have without restores, but for one block.
//
// A token bucket in seconds: a step with decode rows earns share / (1 - share) of what it takes
// without restores, and what it took beyond that is its cost. What a step earns may be spent on
// the next one, by whole blocks and on one at least; what is overspent is paid back before the next
// rows. The new tokens of a context that comes back are not held up, but what they cost is owed
// too, up to kDebtMax, so that a long prompt does not keep others from coming back. When no stream
// runs there is no limit, and nothing is earned or owed.
//
// What a step takes without restores is learned from steps of streams alone, beside which nothing
// came back: how much longer they took than their passes should have. A machine that has become
// slower since then looks like a restore that costs more, so steps without rows of restores cost
// kIdleCostMax of what they earn at most: restores always go on. Threads: the engine thread only.
#pragma once

#include <cstdint>

#include "offload/pass_fit.h"

namespace cairn {

class RestoreShare {
 public:
  static constexpr double kDebtMax = 0.25;  // seconds
  static constexpr double kIdleCostMax = 0.5;

  // 0 < share < 1.
  RestoreShare(double share, uint32_t block_tokens);

  // What passes cost, by the latest fit. Until then every row of a pass costs the same, and rows
  // are let in block by block.
  void SetCosts(const PassCosts& costs);

  // At most `row_max`: the rows of restores that may join a pass of `decode_rows`, when the first
  // of them is at `position`.
  uint32_t RowsMax(uint32_t decode_rows, uint32_t position, uint32_t row_max) const;

  // A step was made, of so many seconds in all; `restored` are those of its rows that belong to
  // contexts that come back. `is_restoring`: some context loads or has rows to be computed again.
  void Note(const PassSample& step, const PassSample& restored, uint32_t decode_rows,
            bool is_restoring);

 private:
  void LearnPace(const PassSample& step);

  const double earned_;  // a second without restores
  const uint32_t block_tokens_;
  PassCosts costs_{.token_s = 1};  // only ratios count
  double saved_s_ = 0;             // below zero: owed
  // Of streams alone: the latest step, and what steps took over what their passes should have;
  // 0 before the first.
  PassSample undisturbed_;
  double pace_ = 0;
};

}  // namespace cairn
