// Brings the logits of a pass to where the host reads them. Rows that the host can read where they
// are stay there. Of others only what is wanted crosses: whole rows, and of rows whose highest are
// enough, one list of these for all of them, as long as the longest that is wanted.
// Threads: the engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/row_logits.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace cairn {

class LogitsReader {
 public:
  // For up to `rows_max` rows of `width`.
  static Result<std::unique_ptr<LogitsReader>> Create(Device& device, uint32_t rows_max,
                                                      uint32_t width);

  // `logits`: [one a count][width]. A count says how many of the row's highest are enough; 0, or
  // more than kTopLogitsMax: all of them are wanted.
  void Fetch(const float* logits, std::span<const uint32_t> highest_counts, Ops& ops,
             Stream& stream);
  // When the stream has been synchronized: what was fetched last.
  std::span<const RowLogits> rows() const { return rows_; }

 private:
  explicit LogitsReader(uint32_t width) : width_(width) {}

  const uint32_t width_;
  // Null where the host reads the device's memory.
  std::unique_ptr<Buffer> host_logits_;           // [rows_max, width]
  std::unique_ptr<Buffer> ranked_, host_ranked_;  // [rows_max, kTopLogitsMax]
  std::vector<RowLogits> rows_;
  std::vector<CopyPart> parts_;
};

}  // namespace cairn
