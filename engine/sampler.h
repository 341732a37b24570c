// Chooses the next token from one row of logits.
//
// The order of the steps is fixed: logit_bias, repetition_penalty (positive logits are divided by
// it, negative ones multiplied), presence_penalty once and frequency_penalty per occurrence are
// subtracted, temperature, top_k, top_p (of what top_k kept), min_p (against the likeliest token).
// Ranks are by value, then by lower id. One number CounterUniform(seed, position, 0) is then
// inverted over the kept tokens in ascending order of id. Temperature 0 takes the highest adjusted
// logit, the lowest id on a tie.
//
// The answer is a pure function of the arguments, bit for bit and on every machine: the
// exponential is our own, sums have a fixed order, and nothing is carried from call to call but
// scratch memory.
//
// A NaN counts as -inf and +inf as the largest float, so a token whose logit is NaN or -inf is
// never chosen. A row without any other logit is kInternal: the model has failed on it.
//
// Log-probabilities are of the row as it came (temperature 1, nothing cut, no penalty, no bias).
//
// Threads: a Sampler belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/api.h"
#include "engine/row_logits.h"
#include "engine/sampling_params.h"

namespace cairn {

// How often each token occurs in the whole context, prompt and output. Never in the output alone:
// then the penalties would depend on where a stream started, and a resumed stream would not give
// the tokens of an uninterrupted one.
class TokenCounts {
 public:
  TokenCounts() = default;
  explicit TokenCounts(std::span<const uint32_t> context) {
    for (const uint32_t id : context) Add(id);
  }
  void Add(uint32_t id) { ++counts_[id]; }
  const std::unordered_map<uint32_t, uint32_t>& counts() const { return counts_; }

 private:
  std::unordered_map<uint32_t, uint32_t> counts_;
};

// Whether `params` have a penalty, so that Sample needs counts.
bool NeedsTokenCounts(const SamplingParams& params);

// Of a row of logits, Sample needs only so many, the highest; 0: all of them.
uint32_t HighestNeeded(const SamplingParams& params, uint32_t vocabulary_size);

struct SampledToken {
  uint32_t id = 0;
  std::optional<TokenLogprob> logprob;  // when params.logprobs is set, with that many in `top`
};

class Sampler {
 public:
  // `logits`: one a vocabulary id, in [1, 2^32) of them. `params`: valid (ValidateSampling); an
  // unset field has its default; params.seed is not read. `position`: of the token to be chosen.
  // `counts`: of the tokens before `position`; may be null unless NeedsTokenCounts(params).
  Result<SampledToken> Sample(std::span<const float> logits, const SamplingParams& params,
                              uint64_t seed, uint64_t position, const TokenCounts* counts);
  // The same, by all logits of the row or by the highest: at least HighestNeeded(params).
  Result<SampledToken> Sample(const RowLogits& logits, const SamplingParams& params, uint64_t seed,
                              uint64_t position, const TokenCounts* counts);

 private:
  struct Candidate {
    float logit;
    float weight;  // exp((logit - highest logit) / temperature)
    uint32_t id;
  };
  static bool RanksBefore(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }

  // The logits after bias and penalties: the row itself when nothing changes them.
  std::span<const float> Adjust(std::span<const float> logits, const SamplingParams& params,
                                const TokenCounts* counts);
  uint32_t Draw(std::span<const float> logits, float highest, const SamplingParams& params,
                double uniform);
  uint32_t DrawFromAll(double uniform) const;
  // From `kept_`, what top_k has left, in any order and without weights.
  uint32_t DrawFromTop(float highest, const SamplingParams& params, double uniform);
  // From `kept_`, after top_p of `total` and min_p.
  uint32_t CutAndDraw(float highest, const SamplingParams& params, double total, double uniform);
  uint32_t DrawFromKept(double uniform) const;
  // Makes `kept_` the `count` highest logits, in no order, without weights.
  void SelectHighest(std::span<const float> logits, size_t count);
  // Makes `kept_` the tokens that weigh at least `weight_min` (above 0), in order of id.
  void SelectHeavy(std::span<const float> logits, float weight_min);
  // Reduces `kept_` to the fewest of highest rank that weigh at least `mass_min` together.
  void KeepNucleus(float highest, float temperature, double mass_min);
  TokenLogprob Logprob(std::span<const float> logits, float highest, uint32_t id,
                       uint32_t top_count);

  // Scratch.
  std::vector<float> finite_;    // the row, if it had to be made finite
  std::vector<float> adjusted_;  // the row after bias and penalties
  std::vector<float> weights_;   // by id, zeros up to a whole block
  std::vector<double> block_totals_;
  std::vector<Candidate> kept_;  // in order of id, unless said otherwise
  std::vector<double> bucket_masses_;
  std::vector<Candidate> bucket_;
};

}  // namespace cairn
