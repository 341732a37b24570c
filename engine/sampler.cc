#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "engine/logits_row.h"

namespace cairn {
namespace {

// How finely tokens are sorted by logit before the last ones of a nucleus are ranked: buckets a
// natural unit of (highest logit - logit) / temperature, and up to where a weight is 0.
constexpr float kBucketsPerUnit = 32;
constexpr size_t kBucketCount = 88 * 32;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

Status NoFiniteLogit(uint64_t position) {
  return Status(Code::kInternal,
                "the model gave no finite logit for position " + std::to_string(position));
}

}  // namespace

bool NeedsTokenCounts(const SamplingParams& params) {
  return params.repetition_penalty.value_or(1) != 1 || params.presence_penalty.value_or(0) != 0 ||
         params.frequency_penalty.value_or(0) != 0;
}

uint32_t HighestNeeded(const SamplingParams& params, uint32_t vocabulary_size) {
  // A log-probability is a share of the whole row; biases and penalties change who is highest.
  if (params.logprobs || !params.logit_bias.empty() || NeedsTokenCounts(params)) return 0;
  if (params.temperature.value_or(1) == 0) return 1;
  const uint32_t top_k = params.top_k.value_or(0);
  return top_k < vocabulary_size ? top_k : 0;
}

Result<SampledToken> Sampler::Sample(const RowLogits& logits, const SamplingParams& params,
                                     uint64_t seed, uint64_t position, const TokenCounts* counts) {
  if (logits.highest.empty()) return Sample(logits.all, params, seed, position, counts);
  const RankedLogit highest = logits.highest.front();
  if (highest.value == -kInfinity) return NoFiniteLogit(position);
  if (params.temperature.value_or(1) == 0) return SampledToken{highest.id, std::nullopt};
  const uint32_t top_k = params.top_k.value_or(0);
  CHECK(top_k > 0 && top_k <= logits.highest.size());
  kept_.clear();
  for (const RankedLogit& logit : logits.highest.first(top_k)) {
    if (logit.value > -kInfinity) kept_.push_back({logit.value, 0, logit.id});
  }
  return SampledToken{DrawFromTop(highest.value, params, CounterUniform(seed, position, 0)),
                      std::nullopt};
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                     uint64_t seed, uint64_t position, const TokenCounts* counts) {
  CHECK(!logits.empty());
  auto [likeliest, highest] = HighestInRow(logits);
  if (highest == -kInfinity) return NoFiniteLogit(position);
  if (highest == kInfinity) {
    finite_.assign(logits.begin(), logits.end());
    for (float& logit : finite_) logit = std::min(logit, kLargest);
    logits = finite_;
    std::tie(likeliest, highest) = HighestInRow(logits);
  }
  SampledToken token{likeliest, std::nullopt};
  const std::span<const float> adjusted = Adjust(logits, params, counts);
  if (params.temperature.value_or(1) != 0) {
    const float highest_adjusted =
        adjusted.data() == logits.data() ? highest : HighestInRow(adjusted).second;
    token.id = Draw(adjusted, highest_adjusted, params, CounterUniform(seed, position, 0));
  } else if (adjusted.data() != logits.data()) {
    token.id = HighestInRow(adjusted).first;
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
  if (top_k != 0 && top_k < logits.size()) {
    SelectHighest(logits, top_k);
    return DrawFromTop(highest, params, uniform);
  }
  WeighRow(logits, highest, temperature, weights_, block_totals_);
  if (top_p == 1 && min_p == 0) return DrawFromAll(uniform);
  const double total = std::accumulate(block_totals_.begin(), block_totals_.end(), 0.0);
  // Tokens lighter than the share of one token in the mass that top_p leaves out weigh less than
  // that mass even all together, so none of them is in the nucleus.
  const double share = (1.0 - top_p) * total / static_cast<double>(logits.size());
  SelectHeavy(logits, std::max(static_cast<float>(share), min_p));
  return CutAndDraw(highest, params, total, uniform);
}

uint32_t Sampler::DrawFromTop(float highest, const SamplingParams& params, double uniform) {
  const float temperature = params.temperature.value_or(1);
  std::sort(kept_.begin(), kept_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (Candidate& candidate : kept_) {
    candidate.weight = ExpNotPositive((candidate.logit - highest) / temperature);
    total += candidate.weight;
  }
  return CutAndDraw(highest, params, total, uniform);
}

uint32_t Sampler::CutAndDraw(float highest, const SamplingParams& params, double total,
                             double uniform) {
  const float top_p = params.top_p.value_or(1);
  const float min_p = params.min_p.value_or(0);
  if (top_p < 1) KeepNucleus(highest, params.temperature.value_or(1), top_p * total);
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
  size_t chosen = block * kRowBlock;
  for (size_t id = block * kRowBlock; id < (block + 1) * kRowBlock && passed <= target; ++id) {
    if (weights_[id] == 0) continue;
    passed += weights_[id];
    chosen = id;
  }
  return static_cast<uint32_t>(chosen);
}

uint32_t Sampler::DrawFromKept(double uniform) const {
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
  for (size_t base = 0; base < logits.size(); base += kRowLanes) {
    const size_t end = std::min(base + kRowLanes, logits.size());
    if (end == base + kRowLanes && !AnyAbove(&logits[base], threshold)) continue;
    for (size_t id = base; id < end; ++id) {
      if (!(logits[id] > threshold)) continue;
      kept_.push_back({logits[id], 0, static_cast<uint32_t>(id)});
      if (kept_.size() == collected_max) cut();
    }
  }
  cut();
}

void Sampler::SelectHeavy(std::span<const float> logits, float weight_min) {
  kept_.clear();
  // Just below weight_min, so that what weighs exactly that is kept; what weighs nothing is not.
  const float below = std::nextafter(weight_min, 0.0f);
  for (size_t base = 0; base < weights_.size(); base += kRowLanes) {
    if (!AnyAbove(&weights_[base], below)) continue;
    for (size_t id = base; id < base + kRowLanes; ++id) {
      if (weights_[id] > below) {
        kept_.push_back({logits[id], weights_[id], static_cast<uint32_t>(id)});
      }
    }
  }
}

void Sampler::KeepNucleus(float highest, float temperature, double mass_min) {
  // Buckets of the distance from the highest logit stand in order of rank, so only the one in which
  // the mass is reached has to be sorted.
  const auto bucket_of = [&](const Candidate& candidate) {
    const float depth = (highest - candidate.logit) / temperature * kBucketsPerUnit;
    return static_cast<size_t>(std::min(depth, static_cast<float>(kBucketCount - 1)));
  };
  bucket_masses_.assign(kBucketCount, 0.0);
  for (const Candidate& candidate : kept_) bucket_masses_[bucket_of(candidate)] += candidate.weight;
  double mass = 0;
  size_t last_bucket = 0;
  while (mass + bucket_masses_[last_bucket] < mass_min) {
    mass += bucket_masses_[last_bucket];
    if (++last_bucket == kBucketCount) return;  // by rounding only: all of them are needed
  }
  bucket_.clear();
  for (const Candidate& candidate : kept_) {
    if (bucket_of(candidate) == last_bucket) bucket_.push_back(candidate);
  }
  std::sort(bucket_.begin(), bucket_.end(), RanksBefore);
  auto last = bucket_.begin();
  for (mass += last->weight; mass < mass_min && last + 1 != bucket_.end(); mass += last->weight) {
    ++last;
  }
  std::erase_if(kept_, [&](const Candidate& candidate) { return RanksBefore(*last, candidate); });
}

TokenLogprob Sampler::Logprob(std::span<const float> logits, float highest, uint32_t id,
                              uint32_t top_count) {
  WeighRow(logits, highest, 1, weights_, block_totals_);
  const double log_total =
      std::log(std::accumulate(block_totals_.begin(), block_totals_.end(), 0.0));
  const auto logprob_of = [&](uint32_t token) {
    const double relative = static_cast<double>(logits[token]) - highest;
    return TokenLogprob{token, static_cast<float>(relative - log_total), {}};
  };
  TokenLogprob logprob = logprob_of(id);
  if (top_count == 0) return logprob;
  SelectHighest(logits, top_count);
  std::sort(kept_.begin(), kept_.end(), RanksBefore);
  for (const Candidate& candidate : kept_) logprob.top.push_back(logprob_of(candidate.id));
  return logprob;
}

}  // namespace cairn
