#include "engine/restore_share.h"

#include <algorithm>

#include "base/check.h"

namespace cairn {

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

void RestoreShare::Note(const PassSample& pass, const PassSample& restored, uint32_t decode_rows) {
  if (decode_rows == 0) {
    saved_s_ = 0;
    return;
  }
  const double predicted_s = costs_.Seconds(pass.rows, pass.position_sum);
  const double without_s =
      costs_.Seconds(pass.rows - restored.rows, pass.position_sum - restored.position_sum);
  const double own_share = predicted_s > 0 ? without_s / predicted_s : 1;
  const double own_s = pass.seconds * own_share;
  const double earned_s = earned_ * own_s;
  saved_s_ = std::clamp(saved_s_ + earned_s - (pass.seconds - own_s), -kDebtMax, earned_s);
}

}  // namespace cairn
