#include "engine/restore_share.h"

#include <algorithm>

#include "base/check.h"

namespace cairn {
namespace {

constexpr double kPaceWindow = 16;  // steps
constexpr double kPaceJumpMax = 2;  // what a step counts at most, over those before it

}  // namespace

RestoreShare::RestoreShare(double share, uint32_t block_tokens)
    : earned_(share / (1 - share)), block_tokens_(block_tokens) {
  CHECK(share > 0 && share < 1 && block_tokens > 0);
}

uint32_t RestoreShare::RowsMax(uint32_t decode_rows, uint32_t position, uint32_t row_max) const {
  if (decode_rows == 0) return row_max;
  if (saved_s_ < 0) return 0;
  const double alone_s = costs_.Seconds(decode_rows, 0);
  uint32_t rows = std::min(block_tokens_, row_max);
  while (rows < row_max) {
    const uint32_t more = std::min(rows + block_tokens_, row_max);
    const double with_s = costs_.Seconds(decode_rows + more, PositionSum(position, more));
    if (with_s - alone_s > saved_s_) break;
    rows = more;
  }
  return rows;
}

void RestoreShare::SetCosts(const PassCosts& costs) {
  if (pace_ > 0) {  // what the streams take alone has not changed
    pace_ *= costs_.Seconds(undisturbed_.rows, undisturbed_.position_sum) /
             costs.Seconds(undisturbed_.rows, undisturbed_.position_sum);
  }
  costs_ = costs;
}

void RestoreShare::LearnPace(const PassSample& step) {
  const double predicted_s = costs_.Seconds(step.rows, step.position_sum);
  if (predicted_s <= 0) return;
  const double pace = step.seconds / predicted_s;
  undisturbed_ = step;
  // A step that was held up once says little.
  pace_ = pace_ > 0 ? pace_ + (std::min(pace, kPaceJumpMax * pace_) - pace_) / kPaceWindow : pace;
}

void RestoreShare::Note(const PassSample& step, const PassSample& restored, uint32_t decode_rows,
                        bool is_restoring) {
  if (decode_rows == 0) {
    saved_s_ = 0;
    return;
  }
  if (!is_restoring && step.rows == decode_rows) LearnPace(step);
  const double without_s =
      costs_.Seconds(step.rows - restored.rows, step.position_sum - restored.position_sum);
  double pace = pace_;
  if (pace == 0) {  // nothing was ever alone: all of the step is as slow
    const double with_s = costs_.Seconds(step.rows, step.position_sum);
    pace = with_s > 0 ? step.seconds / with_s : 1;
  }
  const double own_s = std::min(pace * without_s, step.seconds);
  const double earned_s = earned_ * own_s;
  double cost_s = is_restoring ? step.seconds - own_s : 0;
  if (restored.rows == 0) cost_s = std::min(cost_s, kIdleCostMax * earned_s);
  saved_s_ = std::clamp(saved_s_ + earned_s - cost_s, -kDebtMax, earned_s);
}

}  // namespace cairn
