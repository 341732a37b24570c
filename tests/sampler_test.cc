// Sampling against a plain double-precision reference, by frequencies, and at every edge.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace cairn {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

using Row = std::vector<float>;

Row RandomRow(size_t size, double spread, Rng& rng) {
  Row row(size);
  for (float& logit : row) {
    const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
    logit = static_cast<float>(spread * radius * std::cos(6.283185307179586 * rng.Uniform()));
  }
  return row;
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

uint32_t SampleId(const Row& row, const SamplingParams& params, uint64_t seed = 1,
                  uint64_t position = 0, const TokenCounts& counts = TokenCounts()) {
  Sampler sampler;
  return (*sampler.Sample(row, params, seed, position, &counts)).id;
}

// The definition, step by step, in double precision.
struct Reference {
  struct Entry {
    uint32_t id;
    double logit;
    double probability;
  };
  std::vector<Entry> kept;  // by id, probabilities of the kept set
  // Whether some cut would fall differently if probabilities were off by a rounding error.
  bool is_close = false;

  Reference(const Row& row, const SamplingParams& params, const TokenCounts& counts) {
    for (uint32_t id = 0; id < row.size(); ++id)
      kept.push_back({id, Adjusted(row, id, params, counts), 0});
    std::sort(kept.begin(), kept.end(), [](const Entry& a, const Entry& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    });
    for (size_t i = 0; i + 1 < kept.size(); ++i) {
      is_close |= kept[i].logit - kept[i + 1].logit < 1e-5 && kept[i].logit != kept[i + 1].logit &&
                  (i + 1 == params.top_k.value_or(0));
    }
    if (params.top_k.value_or(0) != 0) {
      kept.resize(std::min<size_t>(kept.size(), *params.top_k));
    }
    Normalize(params.temperature.value_or(1));
    CutTopP(params.top_p.value_or(1));
    const double limit = params.min_p.value_or(0) * kept[0].probability;
    std::erase_if(kept, [&](const Entry& entry) {
      is_close |= limit > 0 && std::abs(entry.probability / limit - 1) < 1e-4;
      return entry.probability < limit;
    });
    Normalize(params.temperature.value_or(1));
    std::sort(kept.begin(), kept.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
  }

  static double Adjusted(const Row& row, uint32_t id, const SamplingParams& params,
                         const TokenCounts& counts) {
    double logit = row[id];
    if (const auto bias = params.logit_bias.find(id); bias != params.logit_bias.end()) {
      logit += bias->second;
    }
    const auto count = counts.counts().find(id);
    if (count == counts.counts().end()) return logit;
    const double repetition = params.repetition_penalty.value_or(1);
    logit = logit > 0 ? logit / repetition : logit * repetition;
    logit -= params.presence_penalty.value_or(0);
    return logit - static_cast<double>(params.frequency_penalty.value_or(0)) * count->second;
  }

  void Normalize(double temperature) {
    double highest = kept[0].logit;
    for (const Entry& entry : kept) highest = std::max(highest, entry.logit);
    double total = 0;
    for (Entry& entry : kept) {
      total += entry.probability = std::exp((entry.logit - highest) / temperature);
    }
    for (Entry& entry : kept) entry.probability /= total;
  }

  void CutTopP(double top_p) {
    if (top_p == 1) return;
    double mass = 0;
    size_t count = 0;
    while (count < kept.size() && mass < top_p) {
      mass += kept[count++].probability;
      is_close |= std::abs(mass - top_p) < 1e-5;
    }
    kept.resize(count);
  }

  // The token at `uniform`; none when it is within rounding errors of two of them.
  std::optional<uint32_t> At(double uniform) const {
    double passed = 0;
    for (const Entry& entry : kept) {
      if (std::abs(passed - uniform) < 1e-5 && passed > 0) return std::nullopt;
      passed += entry.probability;
      if (std::abs(passed - uniform) < 1e-5) return std::nullopt;
      if (passed > uniform) return entry.id;
    }
    return std::nullopt;
  }
};

SamplingParams RandomParams(size_t vocabulary_size, Rng& rng) {
  SamplingParams params;
  params.temperature = static_cast<float>(0.2 + 1.8 * rng.Uniform());
  if (rng.Chance(0.5)) params.top_k = static_cast<uint32_t>(rng.Below(vocabulary_size + 10));
  if (rng.Chance(0.2)) params.top_k = static_cast<uint32_t>(1 + rng.Below(5));
  if (rng.Chance(0.6)) params.top_p = static_cast<float>(1 - 0.95 * rng.Uniform());
  if (rng.Chance(0.4)) params.min_p = static_cast<float>(0.3 * rng.Uniform());
  if (rng.Chance(0.3)) params.repetition_penalty = static_cast<float>(0.5 + rng.Uniform());
  if (rng.Chance(0.3)) params.presence_penalty = static_cast<float>(4 * rng.Uniform() - 2);
  if (rng.Chance(0.3)) params.frequency_penalty = static_cast<float>(4 * rng.Uniform() - 2);
  for (size_t i = rng.Below(2) * rng.Below(10); i > 0; --i) {
    params.logit_bias[static_cast<uint32_t>(rng.Below(vocabulary_size))] =
        static_cast<float>(10 * rng.Uniform() - 5);
  }
  return params;
}

TEST(Sampler, AgreesWithTheReference) {
  Rng rng(3);
  Sampler sampler;
  int compared = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    const size_t size = round % 10 == 0 ? 1 + rng.Below(3000) : 1 + rng.Below(300);
    const Row row = RandomRow(size, 0.2 + 4 * rng.Uniform(), rng);
    const SamplingParams params = RandomParams(size, rng);
    TokenCounts counts;
    for (size_t i = rng.Below(40); i > 0; --i) {
      counts.Add(static_cast<uint32_t>(rng.Below(std::min<size_t>(size, 50))));
    }
    const Reference reference(row, params, counts);
    const uint64_t seed = rng.Next();
    const uint64_t position = rng.Below(100000);
    const auto expected = reference.At(CounterUniform(seed, position, 0));
    if (reference.is_close || !expected) continue;
    ++compared;
    const auto sampled = sampler.Sample(row, params, seed, position, &counts);
    ASSERT_EQ((*sampled).id, *expected) << "round " << round << ", vocabulary " << size;
  }
  EXPECT_GT(compared, kRounds * 9 / 10);
}

// Pearson's statistic of `draws` samples against the reference's probabilities.
double ChiSquare(const Row& row, const SamplingParams& params, int draws, size_t* kept_count) {
  const Reference reference(row, params, TokenCounts());
  std::vector<int> observed(row.size());
  Sampler sampler;
  for (int i = 0; i < draws; ++i) {
    ++observed[(*sampler.Sample(row, params, 99, static_cast<uint64_t>(i), nullptr)).id];
  }
  double statistic = 0;
  int seen = 0;
  for (const auto& entry : reference.kept) {
    const double expected = entry.probability * draws;
    EXPECT_GT(expected, 5);  // else the statistic means nothing
    statistic += (observed[entry.id] - expected) * (observed[entry.id] - expected) / expected;
    seen += observed[entry.id];
  }
  EXPECT_EQ(seen, draws) << "a token outside the kept set was drawn";
  *kept_count = reference.kept.size();
  return statistic;
}

TEST(Sampler, FrequenciesAreTheProbabilities) {
  Rng rng(4);
  const Row row = RandomRow(40, 1, rng);
  std::vector<SamplingParams> cases(5);
  cases[1].temperature = 0.6f;
  cases[2].top_k = 7;
  cases[3].top_p = 0.8f;
  cases[4].min_p = 0.2f;
  for (const SamplingParams& params : cases) {
    size_t kept_count = 0;
    const double statistic = ChiSquare(row, params, 100000, &kept_count);
    // Mean k - 1, variance 2 (k - 1): four standard deviations are one in 10^4 or rarer.
    const double freedom = static_cast<double>(kept_count) - 1;
    EXPECT_GT(freedom, 3);
    EXPECT_LT(statistic, freedom + 4 * std::sqrt(2 * freedom) + 4);
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualOnes) {
  for (const size_t size : {1u, 5u, 16u, 17u, 1024u, 1025u, 3000u}) {
    Row row(size, -1);
    EXPECT_EQ(SampleId(row, Greedy()), 0u);
    row[size - 1] = 2;
    EXPECT_EQ(SampleId(row, Greedy()), size - 1);
    row[size / 2] = 2;
    EXPECT_EQ(SampleId(row, Greedy()), size / 2);
  }
}

TEST(Sampler, GreedyIgnoresWhatCutsTheDistribution) {
  SamplingParams params = Greedy();
  params.top_k = 1;
  params.top_p = 0.1f;
  params.min_p = 1;
  EXPECT_EQ(SampleId({1, 3, 2}, params), 1u);
}

TEST(Sampler, EachStepInItsOrder) {
  const TokenCounts counts(std::vector<uint32_t>{0, 0, 0, 2});
  SamplingParams params = Greedy();
  params.logit_bias = {{3, 4.0f}};
  EXPECT_EQ(SampleId({5, 4.5f, 4, 1.25f}, params), 3u);  // 1.25 + 4 > 5
  params = Greedy();
  params.repetition_penalty = 2;  // 5 / 2 and 4.9 / 2 are below 2.6
  EXPECT_EQ(SampleId({5, 2.6f, 4.9f, 1}, params, 1, 0, counts), 1u);
  EXPECT_EQ(SampleId({-1, -1.9f, -1.5f, -2.1f}, params, 1, 0, counts), 1u);  // -1 * 2 < -1.9
  params = Greedy();
  params.presence_penalty = 1;  // once, however often: 0 and 2 lose the same
  EXPECT_EQ(SampleId({5, 3.9f, 4.9f, 1}, params, 1, 0, counts), 0u);
  params = Greedy();
  params.frequency_penalty = 0.5f;  // 5 - 1.5 < 4.9 - 0.5
  EXPECT_EQ(SampleId({5, 4.3f, 4.9f, 1}, params, 1, 0, counts), 2u);
  params = Greedy();
  params.logit_bias = {{0, 4.0f}};
  params.repetition_penalty = 2;  // (1 + 4) / 2 = 2.5, not 1 / 2 + 4
  EXPECT_EQ(SampleId({1, 2.6f, 0, 0}, params, 1, 0, counts), 1u);
}

TEST(Sampler, TopKKeepsTheLowerIdsOfEqualOnes) {
  SamplingParams params;
  params.top_k = 3;
  const Row row(5000, 1.0f);
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_LT(SampleId(row, params, 5, position), 3u);
  }
  params.top_k = 1;
  EXPECT_EQ(SampleId({0, 7, 7}, params), 1u);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  // Four equal tokens: 0.5 needs exactly two of them, a little more than 0.5 three.
  const Row row = {-50, 1, 1, 1, 1};
  for (const auto& [top_p, last] : {std::pair(0.5f, 2u), std::pair(0.5001f, 3u)}) {
    SamplingParams params;
    params.top_p = top_p;
    uint32_t highest = 0;
    for (uint64_t position = 0; position < 200; ++position) {
      const uint32_t id = SampleId(row, params, 5, position);
      EXPECT_GE(id, 1u);
      highest = std::max(highest, id);
    }
    EXPECT_EQ(highest, last);
  }
  SamplingParams tiny;
  tiny.top_p = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(SampleId({1, 2, 2}, tiny), 1u);
}

TEST(Sampler, TopKOfEverythingIsOff) {
  Rng rng(6);
  const Row row = RandomRow(700, 2, rng);
  SamplingParams off;
  off.top_p = 0.9f;
  SamplingParams all = off;
  for (const uint32_t top_k : {700u, 701u, std::numeric_limits<uint32_t>::max()}) {
    all.top_k = top_k;
    for (uint64_t position = 0; position < 100; ++position) {
      EXPECT_EQ(SampleId(row, all, 8, position), SampleId(row, off, 8, position));
    }
  }
}

TEST(Sampler, TinyTemperatureIsGreedy) {
  SamplingParams params;
  for (const float temperature : {1e-3f, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    params.temperature = temperature;
    for (uint64_t position = 0; position < 50; ++position) {
      EXPECT_EQ(SampleId({1, 3, 2, -kInfinity}, params, 1, position), 1u);
    }
  }
}

TEST(Sampler, IsAPureFunctionOfItsArguments) {
  Rng rng(7);
  struct Call {
    Row row;
    SamplingParams params;
    TokenCounts counts;
    uint64_t position;
    SampledToken fresh;
  };
  std::vector<Call> calls;
  for (int i = 0; i < 200; ++i) {
    const size_t size = 1 + rng.Below(4000);
    Call call{RandomRow(size, 3, rng), RandomParams(size, rng), {}, rng.Next(), {}};
    for (int j = 0; j < 20; ++j) call.counts.Add(static_cast<uint32_t>(rng.Below(size)));
    if (rng.Chance(0.5)) call.params.logprobs = static_cast<uint32_t>(rng.Below(21));
    Sampler sampler;
    call.fresh = *sampler.Sample(call.row, call.params, 11, call.position, &call.counts);
    calls.push_back(std::move(call));
  }
  Sampler reused;
  for (int round = 0; round < 400; ++round) {
    const Call& call = calls[rng.Below(calls.size())];
    const SampledToken again =
        *reused.Sample(call.row, call.params, 11, call.position, &call.counts);
    ASSERT_EQ(again.id, call.fresh.id);
    ASSERT_EQ(again.logprob.has_value(), call.fresh.logprob.has_value());
    if (!again.logprob) continue;
    EXPECT_EQ(again.logprob->logprob, call.fresh.logprob->logprob);
    ASSERT_EQ(again.logprob->top.size(), call.fresh.logprob->top.size());
  }
}

TEST(Sampler, TheOrderInWhichTokensWereCountedDoesNotMatter) {
  Rng rng(8);
  const Row row = RandomRow(500, 1, rng);
  std::vector<uint32_t> context(300);
  for (uint32_t& id : context) id = static_cast<uint32_t>(rng.Below(500));
  const TokenCounts forwards(context);
  const TokenCounts backwards(std::vector<uint32_t>(context.rbegin(), context.rend()));
  SamplingParams params;
  params.repetition_penalty = 1.3f;
  params.frequency_penalty = 0.7f;
  params.presence_penalty = -0.2f;
  for (uint64_t position = 0; position < 300; ++position) {
    EXPECT_EQ(SampleId(row, params, 2, position, forwards),
              SampleId(row, params, 2, position, backwards));
  }
}

TEST(Sampler, KeepsItsChoices) {
  // Pinned, because a changed choice would make stored sessions continue differently.
  Rng rng(9);
  const Row row = RandomRow(49152, 1.5, rng);
  SamplingParams params;
  params.temperature = 0.8f;
  std::vector<uint32_t> chosen;
  for (uint64_t position = 0; position < 4; ++position) {
    chosen.push_back(SampleId(row, params, 42, position));
  }
  params.top_p = 0.95f;
  chosen.push_back(SampleId(row, params, 42, 4));
  params.top_k = 40;
  chosen.push_back(SampleId(row, params, 42, 5));
  EXPECT_EQ(chosen, (std::vector<uint32_t>{20067, 28712, 1343, 8959, 44372, 32647}));
}

TEST(Sampler, NeverChoosesWhatTheModelRulesOut) {
  SamplingParams biased;
  biased.logit_bias = {{0, 100.0f}, {2, 100.0f}};
  biased.repetition_penalty = 0.5f;
  const TokenCounts counts(std::vector<uint32_t>{0, 2, 2});
  for (const Row& row : {Row{-kInfinity, 1, kNan, 0}, Row{kNan, -3, -kInfinity, -2}}) {
    for (const SamplingParams& params : {Greedy(), SamplingParams(), biased}) {
      for (uint64_t position = 0; position < 100; ++position) {
        const uint32_t id = SampleId(row, params, 3, position, counts);
        EXPECT_TRUE(id == 1 || id == 3) << id;
      }
    }
  }
}

TEST(Sampler, ARowWithoutLogitsIsAnError) {
  Sampler sampler;
  for (const float logit : {kNan, -kInfinity}) {
    for (const SamplingParams& params : {Greedy(), SamplingParams()}) {
      const auto sampled = sampler.Sample(Row(100, logit), params, 1, 17, nullptr);
      EXPECT_EQ(sampled.status().code(), Code::kInternal);
      EXPECT_EQ(sampled.status().message(), "the model gave no finite logit for position 17");
    }
  }
}

TEST(Sampler, InfinityIsTheLargestFloat) {
  const Row row = {1, kLargest, kInfinity, 0};
  EXPECT_EQ(SampleId(row, Greedy()), 1u);
  SamplingParams params;
  params.logprobs = 2;
  uint32_t seen = 0;
  for (uint64_t position = 0; position < 100; ++position) {
    Sampler sampler;
    const SampledToken token = *sampler.Sample(row, params, 1, position, nullptr);
    EXPECT_TRUE(token.id == 1 || token.id == 2);
    seen |= 1u << token.id;
    EXPECT_NEAR(token.logprob->logprob, std::log(0.5), 1e-6);
  }
  EXPECT_EQ(seen, 6u);
}

TEST(Sampler, PenaltiesThatOverflowLeaveAToken) {
  // Whatever a client asks for, finite logits give a token.
  const TokenCounts counts(std::vector<uint32_t>{0, 1});
  for (const float penalty : {std::numeric_limits<float>::denorm_min(), kLargest}) {
    for (const Row& row : {Row{5, 3}, Row{-5, -3}, Row{kLargest, -kLargest}}) {
      for (const std::optional<float> temperature : {std::optional<float>(0), {}}) {
        SamplingParams params;
        params.temperature = temperature;
        params.repetition_penalty = penalty;
        params.frequency_penalty = 2;
        EXPECT_LT(SampleId(row, params, 1, 0, counts), 2u);
      }
    }
  }
}

TEST(Sampler, LogprobsAreOfTheUnmodifiedDistribution) {
  Rng rng(10);
  for (const size_t size : {1u, 19u, 20u, 21u, 1000u, 5000u}) {
    Row row = RandomRow(size, 3, rng);
    if (size > 30) row[7] = row[20] = row[3] = 30;  // a tie at the top: by id
    double total = 0;
    for (const float logit : row) total += std::exp(static_cast<double>(logit));
    const auto exact = [&](uint32_t id) { return row[id] - std::log(total); };
    SamplingParams params = RandomParams(size, rng);
    params.logprobs = 20;
    Sampler sampler;
    const TokenCounts counts(std::vector<uint32_t>{0});
    const SampledToken token = *sampler.Sample(row, params, 4, 4, &counts);
    ASSERT_TRUE(token.logprob.has_value());
    EXPECT_EQ(token.logprob->token_id, token.id);
    EXPECT_NEAR(token.logprob->logprob, exact(token.id), 2e-6);
    std::vector<uint32_t> ids(size);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](uint32_t a, uint32_t b) { return row[a] > row[b]; });
    const auto& top = token.logprob->top;
    ASSERT_EQ(top.size(), std::min<size_t>(20, size));
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token_id, ids[i]);
      EXPECT_NEAR(top[i].logprob, exact(ids[i]), 2e-6);
      EXPECT_TRUE(top[i].top.empty());
    }
  }
}

TEST(Sampler, LogprobsOnlyWhenAsked) {
  Sampler sampler;
  SamplingParams params;
  EXPECT_FALSE((*sampler.Sample(Row{1, 2}, params, 1, 1, nullptr)).logprob.has_value());
  params.logprobs = 0;
  const SampledToken token = *sampler.Sample(Row{1, 2}, params, 1, 1, nullptr);
  ASSERT_TRUE(token.logprob.has_value());
  EXPECT_TRUE(token.logprob->top.empty());
}

TEST(Sampler, EndTokensStayInTheDistribution) {
  SamplingParams params = Greedy();
  params.ignore_eos = true;  // says what an end token means to the stream, not what is sampled
  params.stop_token_ids = {1};
  EXPECT_EQ(SampleId({0, 5, 1}, params), 1u);
}

TEST(TokenCounts, CountTheWholeContext) {
  TokenCounts counts(std::vector<uint32_t>{5, 6, 5});
  counts.Add(6);
  counts.Add(5);
  EXPECT_EQ(counts.counts().at(5), 3u);
  EXPECT_EQ(counts.counts().at(6), 2u);
  EXPECT_EQ(counts.counts().size(), 2u);
}

TEST(TokenCounts, NeededForPenaltiesOnly) {
  SamplingParams params;
  EXPECT_FALSE(NeedsTokenCounts(params));
  params.repetition_penalty = 1;
  params.presence_penalty = 0;
  params.logit_bias = {{1, 1.0f}};
  EXPECT_FALSE(NeedsTokenCounts(params));
  params.frequency_penalty = 0.1f;
  EXPECT_TRUE(NeedsTokenCounts(params));
}

}  // namespace
}  // namespace cairn
