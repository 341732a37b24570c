// Which blocks to drop when slots are needed: a pure function from a snapshot to a list. A block is
// worth what it costs to bring back, over how long nobody has asked for it:
//
//   worth = token_count * (1 + first_position / kCostDoublingTokens)     cost of computing it again
//           * cost_share                                                 less, if there is a copy
//           * 2 ^ ((priority - 50) / 10)                                 the user's wish
//           * (reused ? kReusedFactor : 1)                               proof of reuse
//           / idle                                                       nearness of reuse
//
// So the early blocks of a chain go before its later ones, which attend to more, and a parked tail
// of few tokens goes soon. Dividing by the idle time is the rule of hyperbolic caching (Blankstein,
// Sen, Freedman: USENIX ATC 2017). The factor for reuse keeps a scan from flushing the working set,
// as the small queue of S3-FIFO does (Yang and others, SOSP 2023): blocks that were used once make
// room for each other, until a reused block has been idle kReusedFactor times as long as they. What
// was hot and is no longer so ages out by itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace cairn {

struct EvictionCandidate {
  BlockId block;
  uint32_t first_position = 0;       // of its first token
  uint32_t token_count = 0;          // >= 1
  double cost_share = 1;             // of computing it: what it costs to bring it back
  uint32_t priority = 0;             // 0 .. kPriorityMax
  bool reused = false;               // it was found again after it was sealed
  std::chrono::nanoseconds idle{0};  // since its last use
  uint64_t use_order = 0;            // grows from use to use: orders equal worths
};

inline constexpr double kCostDoublingTokens = 4096;
// In the traces of tests/eviction_test.cc 16 loses a ninth of the hot set to a scan of five times
// the pool, and 64 keeps a former hot set for too long.
inline constexpr double kReusedFactor = 32;
// Below this, idle times count as equal: it is about one step, and order within a step is chance.
inline constexpr std::chrono::milliseconds kIdleMin{10};

double Worth(const EvictionCandidate& candidate);

// The min(need, view.size()) blocks of least worth, least first; among equals the least recently
// used. Equal inputs give equal lists. O(n + need log need).
std::vector<BlockId> PickVictims(std::span<const EvictionCandidate> view, uint32_t need);

}  // namespace cairn
