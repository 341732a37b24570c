#include "offload/return_rates.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace cairn {
namespace {

constexpr double kFirstSeconds = std::chrono::duration<double>(kIdleMin).count();

// The half octave that so much idle time ends in.
uint8_t HalfOctaveOf(std::chrono::nanoseconds idle) {
  const double times = std::chrono::duration<double>(idle).count() / kFirstSeconds;
  if (times < 1) return 0;
  return static_cast<uint8_t>(std::min(2 * std::log2(times), ReturnRates::kHalfOctaves - 1.0));
}

using OfHalfOctaves = std::array<double, ReturnRates::kHalfOctaves>;

// The first one begins at zero.
OfHalfOctaves LengthsInSeconds() {
  OfHalfOctaves lengths;
  double begin = 0;
  for (uint32_t i = 0; i < lengths.size(); ++i) {
    const double end = kFirstSeconds * std::exp2((i + 1) / 2.0);
    lengths[i] = end - begin;
    begin = end;
  }
  return lengths;
}

// Keeping a block for a while: what comes of it, for each that is there at its begin.
struct Stay {
  double returns = 0;
  double seconds = 0;
  double left = 0;  // of which nobody has asked for it at its end

  double rate() const { return returns / seconds; }
};

}  // namespace

uint32_t ReturnRates::KindOf(uint32_t reuse_count) { return std::min(reuse_count, kKinds - 1); }

void ReturnRates::Seen::Add(bool returned) {
  constexpr double kKept = 1 - 1 / kWindow;
  blocks = blocks * kKept + 1;
  returns = returns * kKept + returned;
}

uint8_t ReturnRates::NoteIdle(uint32_t reuse_count, std::chrono::nanoseconds idle,
                              uint8_t counted) {
  auto& seen = seen_[KindOf(reuse_count)];
  const uint8_t now = HalfOctaveOf(idle);
  for (uint8_t i = counted; i < now; ++i) seen[i].Add(false);
  return std::max(counted, now);
}

void ReturnRates::NoteReturn(uint32_t reuse_count, std::chrono::nanoseconds idle, uint8_t counted) {
  const uint8_t now = NoteIdle(reuse_count, idle, counted);
  seen_[KindOf(reuse_count)][now].Add(true);
}

void ReturnRates::Learn(const ReuseOdds& odds) {
  static const OfHalfOctaves kSeconds = LengthsInSeconds();
  for (uint32_t kind = 0; kind < kKinds; ++kind) {
    const double unseen = odds.Chance(kind) * kUnseenShare;
    OfHalfOctaves chances;
    std::ranges::transform(seen_[kind], chances.begin(), [&](const Seen& seen) {
      return (seen.returns + kPrior * unseen) / (seen.blocks + kPrior);
    });
    BestRates(chances, kSeconds, rates_[kind]);
  }
}

double ReturnRates::PerSecond(uint32_t reuse_count, std::chrono::nanoseconds idle) const {
  return rates_[KindOf(reuse_count)][HalfOctaveOf(idle)];
}

// From the end on: what follows a span is worth waiting for as long as its own best rate is higher
// than the one up to there. The stays behind each other fall in rate, so each is joined once.
void BestRates(std::span<const double> chances, std::span<const double> seconds,
               std::span<double> rates) {
  std::array<Stay, ReturnRates::kHalfOctaves> later;  // the next one last
  size_t count = 0;
  CHECK(chances.size() <= later.size());
  for (size_t i = chances.size(); i-- > 0;) {
    Stay stay{chances[i], seconds[i] * (1 - chances[i] / 2), 1 - chances[i]};
    while (count > 0 && later[count - 1].rate() > stay.rate()) {
      const Stay& next = later[--count];
      stay.returns += stay.left * next.returns;
      stay.seconds += stay.left * next.seconds;
      stay.left *= next.left;
    }
    rates[i] = stay.rate();
    later[count++] = stay;
  }
}

}  // namespace cairn
