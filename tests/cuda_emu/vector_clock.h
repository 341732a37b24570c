// Happens-before between the works of streams, as a vector clock (Lamport 1978; Mattern 1989; as
// race detectors use it: FastTrack, Flanagan and Freund 2009). A stream counts its works; an event
// carries the clock of its stream; whoever waits for it takes the larger counts. Work A is ordered
// before work B when B's clock has reached A's count on A's stream. It is a matter of what was
// asked for, not of what happened to run first.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace cairn::cuemu {

inline constexpr uint32_t kStreamsMax = 32;  // alive at a time

// One work: the `count`th of a stream. Packed, so that memory can remember it in 32 bits.
class Epoch {
 public:
  constexpr Epoch() = default;
  constexpr Epoch(uint32_t stream, uint32_t count) : bits_(count * kStreamsMax + stream) {}
  static constexpr Epoch FromBits(uint32_t bits) {
    Epoch epoch;
    epoch.bits_ = bits;
    return epoch;
  }
  constexpr uint32_t stream() const { return bits_ % kStreamsMax; }
  constexpr uint32_t count() const { return bits_ / kStreamsMax; }  // from 1
  constexpr uint32_t bits() const { return bits_; }

 private:
  uint32_t bits_ = 0;
};

class VectorClock {
 public:
  void Join(const VectorClock& other) {
    for (uint32_t i = 0; i < kStreamsMax; i++) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }
  Epoch Tick(uint32_t stream) { return {stream, ++counts_[stream]}; }
  void Continue(uint32_t stream, const VectorClock& other) {
    counts_[stream] = std::max(counts_[stream], other.counts_[stream]);
  }
  bool Reaches(Epoch epoch) const { return counts_[epoch.stream()] >= epoch.count(); }

 private:
  std::array<uint32_t, kStreamsMax> counts_ = {};
};

// A work as the checks see it.
struct Moment {
  Epoch epoch;
  VectorClock clock;
};

}  // namespace cairn::cuemu
