// Who asks for which context when: the loads that eviction is measured with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {

// One request. What a conversation holds is what it began with and all that came in and went out.
struct TraceTurn {
  double at_s = 0;
  uint32_t conversation = 0;
  uint32_t prefix = 0;         // what it began with, in common with all that began with it ...
  uint32_t prefix_tokens = 0;  // ... of so many tokens
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
};

struct Trace {
  std::string name;
  std::vector<TraceTurn> turns;  // in order of time
};

// Agents at work: short gaps between calls of tools, now and then a long one; a task that is done
// never comes back.
Trace AgentTrace(uint64_t seed);
// People who think between their turns, from seconds to minutes, and leave in the end.
Trace ChatTrace(uint64_t seed);
// A few sessions that come back, among documents that are read once.
Trace ScanTrace(uint64_t seed);
// The same, but all sessions rest for longer than they ever have.
Trace PausedScanTrace(uint64_t seed);
// Questions about documents, some of which are asked about far more often than others, and not
// always the same ones.
Trace DocumentTrace(uint64_t seed);

}  // namespace cairn
