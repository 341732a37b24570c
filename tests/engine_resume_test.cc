// One answer, cut anywhere: a stream that is cut at random moments and asked for again, in the same
// engine or in a new one, says byte for byte what an uninterrupted one says; one that fails before
// it says anything has not happened.
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

TEST(EngineResume, ADecodeThatFailsBeforeItSaysAnythingLeavesTheSessionAsItWas) {
  HarnessOptions options;
  options.device_blocks = 8;
  EngineHarness harness(options);
  const std::vector<uint32_t> before = RandomTokens(12, 40);
  harness.Create("a", before);
  DecodeRequest request = RequestOf(Greedy(), 5);
  request.content = RandomTokens(13, 100);
  request.expected_token_count = 40;  // a retry of what has not happened may ask as before
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(harness.Decode(request)->end->status.code(), Code::kResourceExhausted);
    EXPECT_EQ(harness.Tokens("a"), before);
  }
  request.content = RandomTokens(13, 80);
  const SequenceId id = harness.NextId();
  const auto cut = harness.StartDecode(request, id);
  harness.core().Step();  // 64 of 120 rows
  const SessionInfo info = *harness.core().GetSession("a");
  EXPECT_EQ(info.state, SessionState::kDecoding);
  EXPECT_EQ(info.token_count, 40);
  EXPECT_EQ(info.residency.device_tokens, 40) << "more than that is in place";
  harness.core().CancelStream(id, Status(Code::kCancelled, "by the client"));
  EXPECT_EQ(cut->tokens.size(), 0u);
  EXPECT_EQ(harness.Tokens("a"), before);
  // Tokens that may begin a stop string are not said, and the one after them finds no room.
  request.content = RandomTokens(13, 87);
  request.sampling.logit_bias = {{100, 100.0f}};
  const auto free_run = harness.Decode(request);
  EXPECT_EQ(free_run->text, "aa");
  ASSERT_TRUE(harness.core().TruncateSession("a", 40).ok());
  request.sampling.stop = {"aaax"};
  const auto held_back = harness.Decode(request);
  EXPECT_EQ(held_back->end->status.code(), Code::kResourceExhausted);
  EXPECT_EQ(held_back->tokens.size(), 0u);
  EXPECT_EQ(harness.Tokens("a"), before);
}

// One that ends well adds its content, whether it says anything or not.
TEST(EngineResume, TheContentBelongsToTheSessionWithTheFirstToken) {
  EngineHarness harness;
  const std::vector<uint32_t> before = RandomTokens(12, 40);
  std::vector<uint32_t> whole = before;
  const std::vector<uint32_t> content = RandomTokens(13, 70);
  whole.insert(whole.end(), content.begin(), content.end());
  harness.Create("a", before);
  DecodeRequest request = RequestOf(Greedy(), 10);
  request.content = content;
  request.start_position = 35;  // what is told again ends within the content
  const auto replayed = harness.Decode(request);
  EXPECT_EQ(replayed->tokens, std::vector(whole.begin() + 35, whole.begin() + 45));
  EXPECT_EQ(harness.Tokens("a"), whole);
  const auto free_run = harness.Decode(RequestOf(Greedy(), 1));
  ASSERT_TRUE(harness.core().TruncateSession("a", 40).ok());
  request.start_position.reset();
  request.sampling.stop_token_ids = {free_run->tokens[0]};
  const auto stopped = harness.Decode(request);
  EXPECT_EQ(stopped->end->finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped->tokens.size(), 0u);
  EXPECT_EQ(harness.Tokens("a"), whole);
}

}  // namespace
}  // namespace cairn
