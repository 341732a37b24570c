// The engine's part of the configuration: every queue, pool and request has a bound.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/status.h"

namespace cairn {

struct EngineConfig {
  uint32_t context_length = 0;   // positions a session may hold; set from the model
  uint32_t concurrent_max = 64;  // sequences that run at once; 1..1024
  uint32_t prefill_chunk = 256;  // rows a step besides the decode rows; 16..8192
  // Of the time, in per cent: what bringing contexts back may take from running streams; 1..95.
  uint32_t restore_share = 20;
  uint32_t waiting_max = 1024;        // streams that wait for a place
  uint32_t command_queue_max = 4096;  // requests on their way to the engine thread
  uint32_t session_count_max = 100'000;
  uint64_t session_tokens_max = 64u << 20;         // tokens of all sessions together
  uint32_t max_tokens_default = 1024;              // where a request says 0
  std::chrono::milliseconds paused_max{10'000};    // a paused sequence keeps its blocks so long
  std::chrono::milliseconds watchdog_max{30'000};  // work without a step for so long: not healthy

  Status Validate() const;
};

}  // namespace cairn
