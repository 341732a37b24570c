// Several contexts that come back together, in an engine where time passes as the test says: a
// block takes 16 ms to compute, and 16 ms to load.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/timed_engine.h"

namespace cairn {
namespace {

constexpr double kBlockSeconds = 0.016;

struct Back {
  std::string id;
  std::shared_ptr<TimedSink> sink;
};

class RestoresTogether : public testing::Test {
 protected:
  void Open(RestorePolicy policy) {
    TimedEngineOptions options{.policy = policy, .device_blocks = 1200};
    options.pass.sweep_s = 0;
    engine_ = std::make_unique<TimedEngine>(options);
    engine_->disk().read_time = [](const BlockIdentity&) { return Seconds(kBlockSeconds); };
  }
  void Prepare(const std::vector<uint32_t>& block_counts) {
    for (size_t i = 0; i < block_counts.size(); ++i) {
      engine_->Prepare("s" + std::to_string(i), i + 1, block_counts[i]);
    }
    // The disk's time is known from a first restore.
    engine_->Prepare("warm", 99, 12);
    Wait({engine_->Start("warm", {}, 1)});
  }
  std::shared_ptr<TimedSink> Start(size_t i) {
    return engine_->Start("s" + std::to_string(i), {}, 1);
  }
  void Wait(const std::vector<std::shared_ptr<TimedSink>>& sinks) {
    engine_->RunUntil([&] {
      return std::ranges::all_of(sinks, [](const auto& sink) { return sink->end.has_value(); });
    });
  }
  // All at once; seconds to the first token, by session.
  std::vector<double> ComeBack(size_t count) {
    std::vector<std::shared_ptr<TimedSink>> sinks;
    sinks.reserve(count);
    for (size_t i = 0; i < count; ++i) sinks.push_back(Start(i));
    Wait(sinks);
    std::vector<double> times;
    times.reserve(count);
    for (const auto& sink : sinks) times.push_back(sink->first_token_s());
    return times;
  }
  static double Mean(const std::vector<double>& times) {
    return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  }

  std::unique_ptr<TimedEngine> engine_;
};

TEST_F(RestoresTogether, TheShortestComesFirstWhateverTheOrderOfArrival) {
  const std::vector<uint32_t> blocks = {60, 30, 10};
  Open(RestorePolicy::kCairn);
  Prepare(blocks);
  const std::vector<double> times = ComeBack(3);
  EXPECT_LT(times[2], times[1]);
  EXPECT_LT(times[1], times[0]);
  // Both sides work all the time: half of what the blocks before it and its own take.
  // A pass takes 66 ms, and a quarter of it is kept for the one that came first.
  EXPECT_NEAR(times[2], 10 / 2.0 * kBlockSeconds, 0.08);
  EXPECT_NEAR(times[1], 40 / 2.0 * kBlockSeconds, 0.12);
  EXPECT_NEAR(times[0], 100 / 2.0 * kBlockSeconds, 0.16);
  for (int i = 0; i < 3; ++i) {
    const auto report =
        engine_->core().ExplainRestore({.id = "s" + std::to_string(i), .last = true});
    ASSERT_TRUE(report.ok());
    EXPECT_NEAR(report->predicted_s, times[static_cast<size_t>(i)], 0.11)
        << "it is planned with the backlog that it finds: " << i;
  }
}

TEST_F(RestoresTogether, PriorityIsAFactorOfLength) {
  Open(RestorePolicy::kCairn);
  engine_->Prepare("s1", 2, 40, Tier::kDisk, 70);  // counts for four
  Prepare({20});
  const auto small = Start(0);
  const auto large = Start(1);
  Wait({small, large});
  EXPECT_NEAR(large->first_token_s(), 40 / 2.0 * kBlockSeconds, 0.12);
  EXPECT_NEAR(small->first_token_s(), 60 / 2.0 * kBlockSeconds, 0.12);
}

TEST_F(RestoresTogether, AShortOneThatComesLaterGoesBefore) {
  Open(RestorePolicy::kCairn);
  Prepare({80, 8});
  const auto large = Start(0);
  engine_->RunFor(0.2);
  const auto small = Start(1);
  Wait({small});
  EXPECT_FALSE(large->end);
  EXPECT_LT(small->first_token_s(), 0.2);
  Wait({large});
  EXPECT_NEAR(large->first_token_s(), 88 / 2.0 * kBlockSeconds, 0.16);
}

TEST_F(RestoresTogether, NothingIsReadOrComputedTwiceForTheOrdersSake) {
  Open(RestorePolicy::kCairn);
  Prepare({50, 40, 30, 20, 10});
  const size_t read_before = engine_->disk().begun().size();
  const int64_t computed_before = engine_->core().GetStats()->blocks_recomputed;
  ComeBack(5);
  const size_t read = engine_->disk().begun().size() - read_before;
  const auto computed =
      static_cast<size_t>(engine_->core().GetStats()->blocks_recomputed - computed_before);
  // A load that had begun when its plan changed is wasted; there is one at a time.
  EXPECT_LE(read + computed, 150u + 10u);
  EXPECT_GE(read + computed, 145u);
}

TEST_F(RestoresTogether, EightComeBackFasterThanByLoadingInTurnAndStreamsKeepTheirPace) {
  const std::vector<uint32_t> blocks = {40, 10, 35, 15, 30, 20, 25, 12};
  std::vector<double> means;
  for (const RestorePolicy policy : {RestorePolicy::kLoadAll, RestorePolicy::kCairn}) {
    Open(policy);
    Prepare(blocks);
    std::vector<std::shared_ptr<TimedSink>> streams;
    for (uint64_t i = 0; i < 4; ++i) {
      const std::string id = "stream" + std::to_string(i);
      engine_->Create(id, RandomTokens(70 + i, 20));
      streams.push_back(engine_->Start(id, {}, 2000));
    }
    engine_->RunUntil([&] { return !streams.back()->tokens.empty(); });
    const Clock::Monotonic begin = engine_->clock.Now();
    means.push_back(Mean(ComeBack(blocks.size())));
    const Clock::Monotonic end = engine_->clock.Now();
    const double alone = std::chrono::duration<double>(end - begin).count() / 0.006;
    for (const auto& stream : streams) {
      EXPECT_GE(static_cast<double>(stream->CountWithin(begin, end)), 0.78 * alone);
    }
  }
  EXPECT_GT(means[0], 1.3 * means[1]);
}

}  // namespace
}  // namespace cairn
