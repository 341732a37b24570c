// Which blocks to drop when slots are needed: a pure function from a snapshot to a list. A block is
// worth what it costs to bring back, over how long nobody has asked for it:
//
//   worth = cost_s                            from its next copy, or computed (block_prices.h)
//           * 2 ^ ((priority - 50) / 10)      the user's wish
//           * odds                            proof of reuse (reuse_odds.h)
//           / idle                            nearness of reuse
//
// So what has a copy nearby goes before what has to be computed, the early blocks of a chain go
// before its later ones, which attend to more, and a parked tail of few tokens goes soon. Dividing
// by the idle time is the rule of hyperbolic caching (Blankstein, Sen, Freedman: USENIX ATC 2017).
// The odds keep a scan from flushing the working set, as the small queue of S3-FIFO does (Yang and
// others, SOSP 2023): where blocks that were used once seldom come back, they make room for each
// other, until a reused block has been idle so many times as long as they. What was hot and is no
// longer so ages out by itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace cairn {

// Who goes first. All but kPrices are rivals, to be measured beside it.
enum class EvictionPolicy : uint8_t {
  kPrices,  // the least worth, at measured prices
  kFixed,   // the least worth, at prices that are the same everywhere
  kLru,     // the least recently used
  kFifo,    // the oldest
  kLfu,     // the least often asked for; among equals the least recently used
};

struct EvictionCandidate {
  BlockId block;
  double cost_s = 0;                 // what it takes to bring it back when it is gone
  uint32_t priority = 0;             // 0 .. kPriorityMax
  uint32_t reuse_count = 0;          // how often it was found again after it was sealed
  double odds = 1;                   // of that happening again, over one that never was
  std::chrono::nanoseconds idle{0};  // since its last use
  uint64_t use_order = 0;            // grows from use to use: orders equal worths
  uint64_t seal_order = 0;           // grows from block to block
};

// Below this, idle times count as equal: it is about one step, and order within a step is chance.
inline constexpr std::chrono::milliseconds kIdleMin{10};

double Worth(const EvictionCandidate& candidate);

// The min(need, view.size()) blocks of least worth, least first; among equals the least recently
// used. Equal inputs give equal lists. O(n + need log need).
std::vector<BlockId> PickVictims(std::span<const EvictionCandidate> view, uint32_t need,
                                 EvictionPolicy policy = EvictionPolicy::kPrices);

}  // namespace cairn
