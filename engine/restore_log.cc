#include "engine/restore_log.h"

#include <utility>

#include "base/check.h"

namespace cairn {

void RestoreLog::Add(const std::string& session_id, RestoreReport report) {
  CHECK(report.actual_time);
  auto& executed = counts_.by_execution[static_cast<size_t>(report.execution)];
  ++executed.restores;
  executed.predicted += std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(report.predicted_s));
  executed.actual += *report.actual_time;
  counts_.restores.Note(report.predicted_s,
                        std::chrono::duration<double>(*report.actual_time).count());
  for (const BlockReport& block : report.blocks) {
    if (!block.is_new) ++counts_.blocks[static_cast<size_t>(block.fate)];
  }
  if (session_id.empty()) return;
  Forget(session_id);
  if (reports_.size() == kReportsMax) Forget(std::string(by_order_.begin()->second));
  by_order_[++order_] = session_id;
  reports_[session_id] = {order_, std::move(report)};
}

const RestoreReport* RestoreLog::Find(const std::string& session_id) const {
  const auto found = reports_.find(session_id);
  return found == reports_.end() ? nullptr : &found->second.report;
}

void RestoreLog::Forget(const std::string& session_id) {
  const auto found = reports_.find(session_id);
  if (found == reports_.end()) return;
  by_order_.erase(found->second.order);
  reports_.erase(found);
}

}  // namespace cairn
