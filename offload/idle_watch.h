// Watches how long blocks are idle before they are asked for again, wherever their copies are by
// then, or if there are none: what is not seen because it had to go would never be kept. A sample
// of them, chosen by their keys, so that its size has a bound.
// Threads: one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "offload/block_key.h"
#include "offload/return_rates.h"

namespace cairn {

class IdleWatch {
 public:
  // The block of this key was computed, or is asked for: it is in use from now on.
  void NoteUse(const BlockKey& key, Clock::Monotonic now);
  // It is in use no more; it has been asked for so many times.
  void NoteIdle(const BlockKey& key, uint32_t reuse_count, Clock::Monotonic now);
  // Looks at some of those that are idle, and makes the rates anew. To be called often.
  void Look(Clock::Monotonic now, const ReuseOdds& odds);

  const ReturnRates& rates() const { return rates_; }
  size_t watched_count() const { return watched_.size(); }

  static constexpr size_t kWatchedMax = 16384;

 private:
  static constexpr std::chrono::hours kWatchTime{1};  // of what is not asked for, if room is short
  static constexpr size_t kLooks = 256;               // in 20 ms: all of them in a second or two

  struct Watched {
    uint64_t name = 0;
    Clock::Monotonic idle_since;
    uint32_t reuse_count = 0;
    uint8_t counted = 0;  // half octaves
    bool in_use = true;
  };

  bool IsWatched(uint64_t name) const { return (name & unwatched_bits_) == 0; }
  Watched* Find(uint64_t name);
  void MakeRoom(Clock::Monotonic now);

  std::vector<Watched> watched_;
  std::unordered_map<uint64_t, uint32_t> places_;  // in watched_, by name
  uint64_t unwatched_bits_ = 0;                    // names that have one of these are not watched
  size_t next_ = 0;                                // to be looked at
  ReturnRates rates_;
};

}  // namespace cairn
