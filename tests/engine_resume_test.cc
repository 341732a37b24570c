// One answer, cut anywhere: a stream that is cut at random moments and asked for again, in the same
// engine or in a new one, says byte for byte what an uninterrupted one says.
#include <gtest/gtest.h>

#include "tests/engine_harness.h"

namespace cairn {
namespace {

constexpr uint32_t kTokens = 60;

HarnessOptions SmallEngine() {
  HarnessOptions options;
  options.threads = 1;
  options.device_blocks = 32;
  return options;
}

struct Output {
  std::vector<uint32_t> tokens;
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
};

DecodeRequest RequestOf(const SamplingParams& sampling, uint32_t max_tokens) {
  DecodeRequest request{.id = "a", .max_tokens = max_tokens};
  request.sampling = sampling;
  return request;
}

Output OutputOf(const RecordingSink& sink) {
  EXPECT_TRUE(sink.end && sink.end->status.ok());
  return {sink.tokens, sink.text, sink.end->finish_reason};
}

// Cuts the stream again and again until it ends by itself. Between two cuts the session stays where
// it is, loses its blocks, or moves to a new engine with nothing but its tokens.
Output InPieces(const std::vector<uint32_t>& prompt, const SamplingParams& sampling, Rng& rng,
                const HarnessOptions& options) {
  auto harness = std::make_unique<EngineHarness>(options);
  harness->Create("a", prompt);
  Output output;
  while (true) {
    const auto left = kTokens - static_cast<uint32_t>(output.tokens.size());
    const SequenceId id = harness->NextId();
    const auto sink = harness->StartDecode(RequestOf(sampling, left), id);
    for (uint64_t steps = rng.Below(12); steps > 0; --steps) harness->core().Step();
    harness->core().CancelStream(id, Status(Code::kCancelled, "cut"));
    output.tokens.insert(output.tokens.end(), sink->tokens.begin(), sink->tokens.end());
    output.text += sink->text;
    output.finish_reason = sink->end->finish_reason;
    if (sink->end->status.ok()) return output;
    if (rng.Chance(0.3)) {
      EXPECT_TRUE(Suspend(harness->core(), "a", Tier::kAbsent).ok());
    } else if (rng.Chance(0.3)) {
      const std::vector<uint32_t> tokens = harness->Tokens("a");
      harness = std::make_unique<EngineHarness>(options);
      harness->Create("a", tokens);
    }
  }
}

TEST(EngineResume, PiecesOfAStreamAreTheWhole) {
  int cut_by_a_stop_string = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::vector<uint32_t> prompt = RandomTokens(rng.Next(), 1 + rng.Below(100));
    SamplingParams sampling = RandomSampling(rng);
    HarnessOptions options = SmallEngine();
    options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(50));
    EngineHarness whole_harness(SmallEngine());
    whole_harness.Create("a", prompt);
    const Output whole = OutputOf(*whole_harness.Decode(RequestOf(sampling, kTokens)));
    const Output pieces = InPieces(prompt, sampling, rng, options);
    EXPECT_EQ(pieces.tokens, whole.tokens);
    EXPECT_EQ(pieces.text, whole.text);
    EXPECT_EQ(pieces.finish_reason, whole.finish_reason);
    cut_by_a_stop_string += !sampling.stop.empty() && whole.finish_reason == FinishReason::kStop;
    if (HasFailure()) return;
  }
  EXPECT_GT(cut_by_a_stop_string, 3);
}

// A stream that was cut and is asked for from its beginning: replayed, then continued.
TEST(EngineResume, AskedForFromTheBeginningItSaysTheWhole) {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::vector<uint32_t> prompt = RandomTokens(rng.Next(), 1 + rng.Below(100));
    SamplingParams sampling = RandomSampling(rng);
    sampling.stop.clear();  // matching begins with the first token that is sampled anew
    EngineHarness harness(SmallEngine());
    harness.Create("a", prompt);
    const SequenceId id = harness.NextId();
    harness.StartDecode(RequestOf(sampling, kTokens), id);
    for (uint64_t steps = rng.Below(50); steps > 0; --steps) harness.core().Step();
    harness.core().CancelStream(id, Status(Code::kCancelled, "cut"));
    DecodeRequest again = RequestOf(sampling, kTokens);
    again.start_position = static_cast<int64_t>(prompt.size());
    const Output resumed = OutputOf(*harness.Decode(again));

    EngineHarness whole_harness(SmallEngine());
    whole_harness.Create("a", prompt);
    const Output whole = OutputOf(*whole_harness.Decode(RequestOf(sampling, kTokens)));
    EXPECT_EQ(resumed.tokens, whole.tokens);
    EXPECT_EQ(resumed.text, whole.text);
    EXPECT_EQ(resumed.finish_reason, whole.finish_reason);
  }
}

}  // namespace
}  // namespace cairn
