// Which blocks to drop when slots are needed: a pure function from a snapshot to a list. A block is
// worth the seconds that its slot saves in a second:
//
//   worth = cost_s                            from its next copy, or computed (block_prices.h)
//           * 2 ^ ((priority - 50) / 10)      the user's wish
//           * return_rate                     how soon it is asked for again (return_rates.h)
//
// So what has a copy nearby goes before what has to be computed, the early blocks of a chain go
// before its later ones, which attend to more, and a parked tail of few tokens goes soon. The rate
// keeps a scan from flushing the working set, as the small queue of S3-FIFO does (Yang and others,
// SOSP 2023): where blocks that were used once seldom come back, they make room for each other.
// What was hot and is no longer so ages out by itself.
#pragma once

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
  double cost_s = 0;         // what it takes to bring it back when it is gone
  uint32_t priority = 0;     // 0 .. kPriorityMax
  uint32_t reuse_count = 0;  // how often it was found again after it was sealed
  double return_rate = 0;    // how often a second it is expected to be asked for
  uint64_t use_order = 0;    // grows from use to use: orders equal worths
  uint64_t seal_order = 0;   // grows from block to block
};

double Worth(const EvictionCandidate& candidate);

// The min(need, view.size()) blocks of least worth, least first; among equals the least recently
// used. Equal inputs give equal lists. O(n + need log need).
std::vector<BlockId> PickVictims(std::span<const EvictionCandidate> view, uint32_t need,
                                 EvictionPolicy policy = EvictionPolicy::kPrices);

}  // namespace cairn
