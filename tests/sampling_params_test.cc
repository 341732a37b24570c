// Every bound of SamplingParams, with the field, the limit and the value in the message; and which
// of two sets of parameters wins.
#include "engine/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace cairn {
namespace {

constexpr uint32_t kVocabularySize = 1000;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Refusal {
  std::function<void(SamplingParams&)> break_it;
  std::string field;
  std::string why;
};

TEST(ValidateSampling, RefusesWhatIsOutOfBounds) {
  const Refusal refusals[] = {
      {[](auto& p) { p.temperature = -1.0f; }, "temperature", "must be in [0, 2], is -1"},
      {[](auto& p) { p.temperature = 2.5f; }, "temperature", "must be in [0, 2], is 2.5"},
      {[](auto& p) { p.temperature = kNan; }, "temperature", "must be in [0, 2], is nan"},
      {[](auto& p) { p.temperature = kInfinity; }, "temperature", "must be in [0, 2], is inf"},
      {[](auto& p) { p.top_p = 0.0f; }, "top_p", "must be in (0, 1], is 0"},
      {[](auto& p) { p.top_p = 1.5f; }, "top_p", "must be in (0, 1], is 1.5"},
      {[](auto& p) { p.top_p = kNan; }, "top_p", "must be in (0, 1], is nan"},
      {[](auto& p) { p.min_p = -0.5f; }, "min_p", "must be in [0, 1], is -0.5"},
      {[](auto& p) { p.min_p = 1.25f; }, "min_p", "must be in [0, 1], is 1.25"},
      {[](auto& p) { p.min_p = kNan; }, "min_p", "must be in [0, 1], is nan"},
      {[](auto& p) { p.repetition_penalty = 0.0f; }, "repetition_penalty",
       "must be above 0 and finite, is 0"},
      {[](auto& p) { p.repetition_penalty = kInfinity; }, "repetition_penalty",
       "must be above 0 and finite, is inf"},
      {[](auto& p) { p.repetition_penalty = kNan; }, "repetition_penalty",
       "must be above 0 and finite, is nan"},
      {[](auto& p) { p.presence_penalty = -2.5f; }, "presence_penalty",
       "must be in [-2, 2], is -2.5"},
      {[](auto& p) { p.presence_penalty = kNan; }, "presence_penalty",
       "must be in [-2, 2], is nan"},
      {[](auto& p) { p.frequency_penalty = 3.0f; }, "frequency_penalty",
       "must be in [-2, 2], is 3"},
      {[](auto& p) { p.frequency_penalty = -kInfinity; }, "frequency_penalty",
       "must be in [-2, 2], is -inf"},
      {[](auto& p) { p.stop.assign(17, "x"); }, "stop", "must have at most 16 entries, has 17"},
      {[](auto& p) {
         p.stop = {"x", ""};
       },
       "stop[1]", "must have 1 to 256 bytes, has 0"},
      {[](auto& p) { p.stop = {std::string(257, 'x')}; }, "stop[0]",
       "must have 1 to 256 bytes, has 257"},
      {[](auto& p) { p.stop_token_ids.assign(65, 1); }, "stop_token_ids",
       "must have at most 64 entries, has 65"},
      {[](auto& p) {
         p.stop_token_ids = {0, 999, 1000};
       },
       "stop_token_ids[2]", "must be a token id below the vocabulary size 1000, is 1000"},
      {[](auto& p) { p.logit_bias[1000] = 1; }, "logit_bias[1000]",
       "must be a token id below the vocabulary size 1000, is 1000"},
      {[](auto& p) { p.logit_bias[7] = 100.5f; }, "logit_bias[7]",
       "must be in [-100, 100], is 100.5"},
      {[](auto& p) { p.logit_bias[7] = kNan; }, "logit_bias[7]", "must be in [-100, 100], is nan"},
      {[](auto& p) { p.logprobs = 21; }, "logprobs", "must be at most 20, is 21"},
  };
  for (const Refusal& refusal : refusals) {
    SamplingParams params;
    refusal.break_it(params);
    const std::string field = "session.sampling." + refusal.field;
    const Status status = ValidateSampling(params, kVocabularySize, "session.sampling.");
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << field;
    EXPECT_EQ(status.field(), field);
    EXPECT_EQ(status.message(), field + ": " + refusal.why);
  }
}

TEST(ValidateSampling, RefusesTooManyBiases) {
  SamplingParams params;
  for (uint32_t id = 0; id < 1025; ++id) params.logit_bias[id] = 1;
  const Status status = ValidateSampling(params, 2000, "sampling.");
  EXPECT_EQ(status.message(), "sampling.logit_bias: must have at most 1024 entries, has 1025");
  params.logit_bias.erase(0);
  EXPECT_TRUE(ValidateSampling(params, 2000, "sampling.").ok());
}

TEST(ValidateSampling, AcceptsTheBoundsThemselves) {
  EXPECT_TRUE(ValidateSampling({}, kVocabularySize, "").ok());
  SamplingParams low;
  low.temperature = 0;
  low.top_p = std::numeric_limits<float>::denorm_min();
  low.top_k = 0;
  low.min_p = 0;
  low.repetition_penalty = std::numeric_limits<float>::denorm_min();
  low.presence_penalty = low.frequency_penalty = -2;
  low.seed = 0;
  low.stop.assign(16, "x");
  low.stop_token_ids.assign(64, 0);
  low.logit_bias[0] = -100;
  low.logprobs = 0;
  EXPECT_TRUE(ValidateSampling(low, kVocabularySize, "").ok());
  SamplingParams high;
  high.temperature = 2;
  high.top_p = 1;
  high.top_k = std::numeric_limits<uint32_t>::max();
  high.min_p = 1;
  high.repetition_penalty = std::numeric_limits<float>::max();
  high.presence_penalty = high.frequency_penalty = 2;
  high.seed = std::numeric_limits<uint64_t>::max();
  high.stop = {std::string(256, 'x')};
  high.stop_token_ids = {kVocabularySize - 1};
  high.logit_bias[kVocabularySize - 1] = 100;
  high.logprobs = 20;
  EXPECT_TRUE(ValidateSampling(high, kVocabularySize, "").ok());
}

SamplingParams Everything() {
  SamplingParams params;
  params.temperature = 0.5f;
  params.top_p = 0.25f;
  params.top_k = 3;
  params.min_p = 0.125f;
  params.repetition_penalty = 1.5f;
  params.presence_penalty = 1;
  params.frequency_penalty = -1;
  params.seed = 11;
  params.stop = {"a", "b"};
  params.stop_token_ids = {1, 2};
  params.ignore_eos = true;
  params.logit_bias = {{1, 2.0f}};
  params.logprobs = 4;
  return params;
}

TEST(Overlay, TakesEveryFieldThatIsSet) {
  EXPECT_EQ(Overlay({}, {}), SamplingParams());
  EXPECT_EQ(Overlay(Everything(), {}), Everything());
  EXPECT_EQ(Overlay({}, Everything()), Everything());
}

TEST(Overlay, AZeroIsSetAndAListReplacesTheWhole) {
  SamplingParams over;
  over.temperature = 0;
  over.top_k = 0;
  over.seed = 0;
  over.logprobs = 0;
  over.stop = {"c"};
  over.stop_token_ids = {3};
  over.logit_bias = {{9, -1.0f}};
  SamplingParams expected = Everything();
  expected.temperature = 0;
  expected.top_k = 0;
  expected.seed = 0;
  expected.logprobs = 0;
  expected.stop = {"c"};
  expected.stop_token_ids = {3};
  expected.logit_bias = {{9, -1.0f}};
  EXPECT_EQ(Overlay(Everything(), over), expected);
}

}  // namespace
}  // namespace cairn
