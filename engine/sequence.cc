#include "engine/sequence.h"

namespace cairn {

std::string Describe(const SequenceState& state) {
  std::string text = "stream " + std::to_string(state.id.value());
  if (!state.session_id.empty()) text += " of session " + state.session_id;
  switch (state.phase) {
    case Phase::kReplaying:
      text += ": replaying";
      break;
    case Phase::kWaiting:
      text += ": waiting for blocks";
      break;
    case Phase::kRestoring:
      text += ": waiting for blocks to be loaded";
      break;
    case Phase::kRunning:
      text += ": running, " + std::to_string(state.rows_left) + " rows to go";
      break;
  }
  if (state.paused) text += ", its reader is slow";
  return text + "; " + std::to_string(state.token_count) + " tokens";
}

}  // namespace cairn
