#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace cairn {
namespace {

// Loops over a row go in groups of kLanes with a fixed count, which the compiler turns into vector
// code without being allowed to reorder anything: lane i of the code is lane i of the machine.
constexpr size_t kLanes = 16;
// Ids whose weights have one sum, so that a draw looks at sums first. A multiple of kLanes.
constexpr size_t kBlock = 1024;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

using Lanes = std::array<float, kLanes>;

// exp(x) for x <= 0 with a relative error below 3e-7; 0 below -87, where the result would soon be
// subnormal, and for NaN. Range reduction x = n ln 2 + r, |r| <= (ln 2) / 2, then the Taylor
// polynomial of degree 7, whose remainder is below 2^-27.
inline float Exp(float x) {
  constexpr float kRoundingShift = 0x1.8p23f;  // adding it rounds a small float to an integer
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts: n times the first is exact for |n| < 2^9.
  constexpr float kLn2High = 0x1.62ep-1f;
  constexpr float kLn2Low = static_cast<float>(0.693147180559945309 - 0x1.62ep-1);
  const float clamped = x > -87.0f ? x : -87.0f;
  const float shifted = clamped * kLog2E + kRoundingShift;
  const float n = shifted - kRoundingShift;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // n sits in the low bits of `shifted`; the shift drops the rest of them.
  const float power =
      std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
  return x > -87.0f ? power : 0.0f;
}

inline void WeighLanes(const float* __restrict logits, float highest, float temperature,
                       float* __restrict weights) {
  for (size_t i = 0; i < kLanes; ++i) weights[i] = Exp((logits[i] - highest) / temperature);
}

// weights[id] = exp((logits[id] - highest) / temperature), zeros after the last up to a whole
// block; totals[b] = the sum of block b.
void Weigh(std::span<const float> logits, float highest, float temperature,
           std::vector<float>& weights, std::vector<double>& totals) {
  const size_t block_count = (logits.size() + kBlock - 1) / kBlock;
  weights.resize(block_count * kBlock);
  totals.resize(block_count);
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    WeighLanes(&logits[i], highest, temperature, &weights[i]);
  }
  std::fill(weights.begin() + static_cast<ptrdiff_t>(whole), weights.end(), 0.0f);
  for (size_t i = whole; i < logits.size(); ++i) {
    weights[i] = Exp((logits[i] - highest) / temperature);
  }
  for (size_t block = 0; block < block_count; ++block) {
    const float* const begin = &weights[block * kBlock];
    std::array<double, kLanes> sums = {};
    for (const float* lanes = begin; lanes != begin + kBlock; lanes += kLanes) {
      for (size_t i = 0; i < kLanes; ++i) sums[i] += lanes[i];
    }
    totals[block] = std::accumulate(sums.begin(), sums.end(), 0.0);
  }
}

float HighestOf(const float* values, size_t count) {
  Lanes highest;
  highest.fill(-kInfinity);
  size_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    for (size_t i = 0; i < kLanes; ++i) {
      highest[i] = values[at + i] > highest[i] ? values[at + i] : highest[i];
    }
  }
  float best = -kInfinity;
  for (; at < count; ++at) best = values[at] > best ? values[at] : best;
  for (const float value : highest) best = value > best ? value : best;
  return best;
}

bool AnyAbove(const float* values, float threshold) {
  int above = 0;
  for (size_t i = 0; i < kLanes; ++i) above |= values[i] > threshold ? 1 : 0;
  return above != 0;
}

// The highest value, at its lowest id. The id is 0 and the value -inf when nothing is above that.
std::pair<uint32_t, float> Highest(std::span<const float> values) {
  float best = -kInfinity;
  size_t best_block = 0;
  for (size_t base = 0; base < values.size(); base += kBlock) {
    const float value = HighestOf(&values[base], std::min(kBlock, values.size() - base));
    if (value > best) best = value, best_block = base;
  }
  if (best == -kInfinity) return {0, best};
  const auto found =
      std::find(values.begin() + static_cast<ptrdiff_t>(best_block), values.end(), best);
  return {static_cast<uint32_t>(found - values.begin()), best};
}

}  // namespace

bool NeedsTokenCounts(const SamplingParams& params) {
  return params.repetition_penalty.value_or(1) != 1 || params.presence_penalty.value_or(0) != 0 ||
         params.frequency_penalty.value_or(0) != 0;
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                     uint64_t seed, uint64_t position, const TokenCounts* counts) {
  CHECK(!logits.empty());
  auto [likeliest, highest] = Highest(logits);
  if (highest == -kInfinity) {
    return Status(Code::kInternal,
                  "the model gave no finite logit for position " + std::to_string(position));
  }
  if (highest == kInfinity) {
    finite_.assign(logits.begin(), logits.end());
    for (float& logit : finite_) logit = std::min(logit, kLargest);
    logits = finite_;
    std::tie(likeliest, highest) = Highest(logits);
  }
  SampledToken token{likeliest, std::nullopt};
  const std::span<const float> adjusted = Adjust(logits, params, counts);
  if (params.temperature.value_or(1) != 0) {
    const float highest_adjusted =
        adjusted.data() == logits.data() ? highest : Highest(adjusted).second;
    token.id = Draw(adjusted, highest_adjusted, params, CounterUniform(seed, position, 0));
  } else if (adjusted.data() != logits.data()) {
    token.id = Highest(adjusted).first;
  }
  if (params.logprobs) token.logprob = Logprob(logits, highest, token.id, *params.logprobs);
  return token;
}

std::span<const float> Sampler::Adjust(std::span<const float> logits, const SamplingParams& params,
                                       const TokenCounts* counts) {
  const bool penalize = NeedsTokenCounts(params);
  if (params.logit_bias.empty() && !penalize) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  const auto set = [&](uint32_t id, float logit) {
    adjusted_[id] = std::clamp(logit, -kLargest, kLargest);
  };
  // What the model has ruled out stays so, and NaN stays NaN.
  const auto possible = [&](uint32_t id) { return adjusted_[id] >= -kLargest; };
  for (const auto& [id, bias] : params.logit_bias) {
    CHECK(id < adjusted_.size());
    if (possible(id)) set(id, adjusted_[id] + bias);
  }
  if (!penalize) return adjusted_;
  CHECK(counts != nullptr);
  const float repetition = params.repetition_penalty.value_or(1);
  const float presence = params.presence_penalty.value_or(0);
  const float frequency = params.frequency_penalty.value_or(0);
  for (const auto& [id, count] : counts->counts()) {
    CHECK(id < adjusted_.size());
    if (!possible(id)) continue;
    const float logit = adjusted_[id];
    set(id, logit > 0 ? logit / repetition : logit * repetition);
    set(id, adjusted_[id] - (presence + frequency * static_cast<float>(count)));
  }
  return adjusted_;
}

uint32_t Sampler::Draw(std::span<const float> logits, float highest, const SamplingParams& params,
                       double uniform) {
  const float temperature = params.temperature.value_or(1);
  const uint32_t top_k = params.top_k.value_or(0);
  const float top_p = params.top_p.value_or(1);
  const float min_p = params.min_p.value_or(0);
  double total = 0;
  if (top_k != 0 && top_k < logits.size()) {
    SelectHighest(logits, top_k);
    for (Candidate& candidate : kept_) {
      candidate.weight = Exp((candidate.logit - highest) / temperature);
      total += candidate.weight;
    }
  } else {
    Weigh(logits, highest, temperature, weights_, block_totals_);
    if (top_p == 1 && min_p == 0) return DrawFromAll(uniform);
    total = std::accumulate(block_totals_.begin(), block_totals_.end(), 0.0);
    // Tokens lighter than the share of one token in the mass that top_p leaves out weigh less than
    // that mass even all together, so none of them is in the nucleus.
    const double share = (1.0 - top_p) * total / static_cast<double>(logits.size());
    SelectHeavy(logits, std::max(static_cast<float>(share), min_p));
  }
  if (top_p < 1) KeepNucleus(top_p * total);
  // The likeliest token weighs 1, so its probability times min_p is a weight of min_p.
  std::erase_if(kept_, [&](const Candidate& candidate) { return candidate.weight < min_p; });
  return DrawFromKept(uniform);
}

uint32_t Sampler::DrawFromAll(double uniform) const {
  const double total = std::accumulate(block_totals_.begin(), block_totals_.end(), 0.0);
  const double target = uniform * total;
  double passed = 0;
  size_t block = 0;
  while (passed + block_totals_[block] <= target) passed += block_totals_[block++];
  // A block's total may differ from the running sum by rounding: then its last token is meant.
  size_t chosen = block * kBlock;
  for (size_t id = block * kBlock; id < (block + 1) * kBlock && passed <= target; ++id) {
    if (weights_[id] == 0) continue;
    passed += weights_[id];
    chosen = id;
  }
  return static_cast<uint32_t>(chosen);
}

uint32_t Sampler::DrawFromKept(double uniform) {
  std::sort(kept_.begin(), kept_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (const Candidate& candidate : kept_) total += candidate.weight;
  const double target = uniform * total;
  double passed = 0;
  for (const Candidate& candidate : kept_) {
    passed += candidate.weight;
    if (passed > target) return candidate.id;
  }
  CHECK(false);  // uniform < 1, so target < total, which is what `passed` ends at
  return 0;
}

void Sampler::SelectHighest(std::span<const float> logits, size_t count) {
  // Candidates are collected until there are twice as many as wanted (or a few hundred); then the
  // lower part is dropped, and only what is above the rest is collected further. Equal logits that
  // come later have higher ids, so they rank behind.
  const size_t collected_max = std::max<size_t>(2 * count, 256);
  float threshold = -kInfinity;
  kept_.clear();
  const auto cut = [&] {
    if (kept_.size() < count) return;
    const auto last = kept_.begin() + static_cast<ptrdiff_t>(count - 1);
    std::nth_element(kept_.begin(), last, kept_.end(), RanksBefore);
    threshold = last->logit;
    kept_.resize(count);
  };
  for (size_t base = 0; base < logits.size(); base += kLanes) {
    const size_t end = std::min(base + kLanes, logits.size());
    if (end == base + kLanes && !AnyAbove(&logits[base], threshold)) continue;
    for (size_t id = base; id < end; ++id) {
      if (!(logits[id] > threshold)) continue;
      kept_.push_back({logits[id], 0, static_cast<uint32_t>(id)});
      if (kept_.size() == collected_max) cut();
    }
  }
  cut();
  std::sort(kept_.begin(), kept_.end(), RanksBefore);
}

void Sampler::SelectHeavy(std::span<const float> logits, float weight_min) {
  kept_.clear();
  // Just below weight_min, so that what weighs exactly that is kept; what weighs nothing is not.
  const float below = std::nextafter(weight_min, 0.0f);
  for (size_t base = 0; base < weights_.size(); base += kLanes) {
    if (!AnyAbove(&weights_[base], below)) continue;
    for (size_t id = base; id < base + kLanes; ++id) {
      if (weights_[id] > below) {
        kept_.push_back({logits[id], weights_[id], static_cast<uint32_t>(id)});
      }
    }
  }
}

void Sampler::KeepNucleus(double mass_min) {
  // Ranks as many as are needed, in batches that grow.
  double mass = 0;
  size_t ranked = 0;
  for (size_t batch = 128; ranked < kept_.size(); batch *= 4) {
    const auto begin = kept_.begin() + static_cast<ptrdiff_t>(ranked);
    const size_t batch_end = std::min(ranked + batch, kept_.size());
    const auto end = kept_.begin() + static_cast<ptrdiff_t>(batch_end);
    std::nth_element(begin, end - 1, kept_.end(), RanksBefore);
    std::sort(begin, end, RanksBefore);
    while (ranked < batch_end) {
      mass += kept_[ranked++].weight;
      if (mass >= mass_min) {
        kept_.resize(ranked);
        return;
      }
    }
  }
}

TokenLogprob Sampler::Logprob(std::span<const float> logits, float highest, uint32_t id,
                              uint32_t top_count) {
  Weigh(logits, highest, 1, weights_, block_totals_);
  const double log_total =
      std::log(std::accumulate(block_totals_.begin(), block_totals_.end(), 0.0));
  const auto logprob_of = [&](uint32_t token) {
    const double relative = static_cast<double>(logits[token]) - highest;
    return TokenLogprob{token, static_cast<float>(relative - log_total), {}};
  };
  TokenLogprob logprob = logprob_of(id);
  if (top_count == 0) return logprob;
  SelectHighest(logits, top_count);
  for (const Candidate& candidate : kept_) logprob.top.push_back(logprob_of(candidate.id));
  return logprob;
}

}  // namespace cairn
