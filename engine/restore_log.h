// Remembers how sessions came back: the last restore of each, of the latest kReportsMax sessions
// that had one, and counts of all restores. Threads: the engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "engine/restore_report.h"

namespace cairn {

class RestoreLog {
 public:
  static constexpr size_t kReportsMax = 256;

  // A restore was carried out; `session_id` is empty when it was no session's.
  void Add(const std::string& session_id, RestoreReport report);
  // A pass that had rows of restores.
  void AddPass(double predicted_s, double actual_s) { counts_.passes.Note(predicted_s, actual_s); }
  // One during which blocks arrived layer by layer.
  void AddWaitingPass() { ++counts_.waiting_passes; }
  // Null: none that is remembered.
  const RestoreReport* Find(const std::string& session_id) const;
  // The session is gone; another may come by that name.
  void Forget(const std::string& session_id);
  const RestoreCounts& counts() const { return counts_; }

 private:
  struct Entry {
    uint64_t order = 0;
    RestoreReport report;
  };
  std::map<std::string, Entry> reports_;
  std::map<uint64_t, std::string> by_order_;
  uint64_t order_ = 0;
  RestoreCounts counts_;
};

}  // namespace cairn
