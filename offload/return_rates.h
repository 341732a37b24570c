// How soon blocks are asked for again, learned from how long those that were had been idle.
//
// Idle time is cut into half octaves. For each, and for blocks that were never asked for again,
// once, or more often, this counts how many were idle for all of it and how many were asked for
// within it, of the last kWindow or so. Before anything is known of a half octave, the chance is
// the same as in any other, and that counts as much as kPrior blocks: dividing by the idle time,
// which is the rule of hyperbolic caching (Blankstein, Sen, Freedman: USENIX ATC 2017). So that
// rule also holds in a pause that is longer than all before.
//
// What keeping a block is good for is not the chance of the next moment, but the best that a while
// can give: the largest, over all times to give it up, of the chance that it is asked for before
// then over the time that it is expected to stay until one or the other. This is the index of
// Gittins (Journal of the Royal Statistical Society B 41, 1979). Where the chance falls with idle
// time it is that of the next moment, as of what was used most recently; where contexts come back
// after a minute, it keeps them for the minute. (LHD, Beckmann, Chen, Cidon: NSDI 2018, ranks by
// hits over time too, with the whole remaining time in place of the best while.)
// Threads: one.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "offload/reuse_odds.h"

namespace cairn {

// Below this, idle times count as equal: it is about one step, and order within a step is chance.
inline constexpr std::chrono::milliseconds kIdleMin{10};

class ReturnRates {
 public:
  static constexpr uint8_t kHalfOctaves = 64;  // from kIdleMin on; the last has no end

  ReturnRates() { Learn(ReuseOdds()); }

  // A block has been asked for so many times and been idle since for so long; `counted` of the half
  // octaves had been noted before. Returns how many are now.
  uint8_t NoteIdle(uint32_t reuse_count, std::chrono::nanoseconds idle, uint8_t counted);
  // And now it is asked for.
  void NoteReturn(uint32_t reuse_count, std::chrono::nanoseconds idle, uint8_t counted);

  // Makes the rates anew: O(kHalfOctaves).
  void Learn(const ReuseOdds& odds);
  // Of a block: returns a second, as of the last Learn.
  double PerSecond(uint32_t reuse_count, std::chrono::nanoseconds idle) const;

 private:
  static constexpr uint32_t kKinds = 3;  // never asked for again, once, more often
  // Of a half octave, over that of ever: what is asked for again is so in any of eight alike.
  static constexpr double kUnseenShare = 1.0 / 8;
  static constexpr double kPrior = 128;
  static constexpr double kWindow = 2048;

  struct Seen {
    double blocks = 0;
    double returns = 0;

    void Add(bool returned);
  };

  static uint32_t KindOf(uint32_t reuse_count);

  std::array<std::array<Seen, kHalfOctaves>, kKinds> seen_{};
  std::array<std::array<double, kHalfOctaves>, kKinds> rates_{};
};

// Of spans of time that follow each other, each so many seconds long and with a chance that what
// was not asked for before is asked for in it, evenly: the largest rate of returns a second that
// keeping it from the beginning of a span on can give, to the end of that span or of a later one.
// Writes one for each span. O(spans). There are at most ReturnRates::kHalfOctaves.
void BestRates(std::span<const double> chances, std::span<const double> seconds,
               std::span<double> rates);

}  // namespace cairn
