// Randomness as a pure function of a counter: the same (seed, position, draw) gives the same bits
// in every process, so a position of a session can be sampled again and gives the same token. The
// mixing function is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, OOPSLA 2014).
#pragma once

#include <cstdint>

namespace cairn {

constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t CounterBits(uint64_t seed, uint64_t position, uint64_t draw) {
  return MixBits(MixBits(MixBits(seed) ^ position) ^ draw);
}

// Uniform in [0, 1), a multiple of 2^-53.
constexpr double CounterUniform(uint64_t seed, uint64_t position, uint64_t draw) {
  return static_cast<double>(CounterBits(seed, position, draw) >> 11) * 0x1p-53;
}

// A seeded stream of numbers, for tests and tools.
class Rng {
 public:
  explicit Rng(uint64_t seed) : seed_(seed) {}
  uint64_t Next() { return CounterBits(seed_, count_++, 0); }
  uint64_t Below(uint64_t bound) { return Next() % bound; }  // bias is below 2^-32 for test sizes
  double Uniform() { return CounterUniform(seed_, count_++, 1); }
  bool Chance(double probability) { return Uniform() < probability; }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

}  // namespace cairn
