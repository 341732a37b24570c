#include "engine/engine_config.h"

#include <string>

namespace cairn {
namespace {

// Token counts and positions fit 31 bits everywhere, in kernels and on the wire.
constexpr uint64_t kTokensMax = (1u << 31) - 1;

Status ValidateWithin(const char* name, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return Status();
  return InvalidField(name, "must be in " + std::to_string(low) + ".." + std::to_string(high) +
                                ", is " + std::to_string(value));
}

Status ValidateWithin(const char* name, std::chrono::milliseconds value,
                      std::chrono::milliseconds high) {
  if (value.count() >= 1 && value <= high) return Status();
  return InvalidField(name, "must be in 1.." + std::to_string(high.count()) + " ms, is " +
                                std::to_string(value.count()) + " ms");
}

}  // namespace

Status EngineConfig::Validate() const {
  RETURN_IF_ERROR(ValidateWithin("context_length", context_length, 1, kTokensMax));
  RETURN_IF_ERROR(ValidateWithin("concurrent_max", concurrent_max, 1, 1024));
  RETURN_IF_ERROR(ValidateWithin("prefill_chunk", prefill_chunk, 16, 8192));
  RETURN_IF_ERROR(ValidateWithin("restore_share", restore_share, 1, 95));
  RETURN_IF_ERROR(ValidateWithin("waiting_max", waiting_max, 1, 1'000'000));
  RETURN_IF_ERROR(ValidateWithin("command_queue_max", command_queue_max, 1, 1'000'000));
  RETURN_IF_ERROR(ValidateWithin("session_count_max", session_count_max, 1, 10'000'000));
  RETURN_IF_ERROR(ValidateWithin("session_tokens_max", session_tokens_max, 1, uint64_t{1} << 40));
  RETURN_IF_ERROR(ValidateWithin("max_tokens_default", max_tokens_default, 1, kTokensMax));
  RETURN_IF_ERROR(ValidateWithin("paused_max", paused_max, std::chrono::hours(1)));
  RETURN_IF_ERROR(ValidateWithin("watchdog_max", watchdog_max, std::chrono::hours(1)));
  // Until a paused sequence gives its blocks up, others may wait for them without a step.
  if (watchdog_max > paused_max) return Status();
  return InvalidField("watchdog_max", "must be more than paused_max, which is " +
                                          std::to_string(paused_max.count()) + " ms, is " +
                                          std::to_string(watchdog_max.count()) + " ms");
}

}  // namespace cairn
