// Waves in a world where time passes as the test says: a block takes a millisecond to copy from the
// host's pool and 1.6 to compute, a pass at least four, the same in each of eight layers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/timed_engine.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

TimedEngineOptions Options(bool allows_wave, RestorePolicy policy = RestorePolicy::kCairn) {
  TimedEngineOptions options;
  options.policy = policy;
  options.pass = {.pass_s = 0.0002, .sweep_s = 0.004, .token_s = 0.0001};
  options.knows_costs = true;
  options.allows_wave = allows_wave;
  options.layers = 8;
  options.host_blocks = 400;
  options.copy_time = milliseconds(1);
  options.prefill_chunk = 512;
  return options;
}

class TimedWorld {
 public:
  explicit TimedWorld(bool allows_wave) : TimedWorld(Options(allows_wave)) {}
  explicit TimedWorld(const TimedEngineOptions& options) : engine(options) {
    engine.disk().read_time = [](const BlockIdentity&) { return milliseconds(4); };
    engine.Prepare("warm", 99, 8, Tier::kHost);  // from which the copies' time is known
    Finish(engine.Start("warm", {}, 1));
  }
  void Finish(const std::shared_ptr<TimedSink>& sink) {
    engine.RunUntil([&] { return sink->end.has_value(); });
  }
  // A session of so many blocks in the host's pool, but those that are on disk or nowhere.
  void Prepare(const std::string& id, uint64_t seed, uint32_t block_count,
               const std::vector<uint32_t>& absent = {}) {
    engine.Prepare(id, seed, block_count, Tier::kHost);
    const std::vector<uint32_t> tokens = RandomTokens(seed, size_t{block_count} * 16);
    for (const uint32_t block : absent) {
      const auto upto = std::span(tokens).first((size_t{block} + 1) * 16);
      EXPECT_EQ(engine.blocks().DropUnheld(engine.root(), upto, block), 1u);
    }
  }
  // Comes back with so many new tokens; the time to the first token.
  double Return(const std::string& id, uint32_t new_tokens) {
    const auto sink = engine.Start(
        id, RandomTokens(engine.clock.Now().time_since_epoch().count(), new_tokens), 1);
    Finish(sink);
    return sink->first_token_s();
  }
  RestoreReport LastOf(const std::string& id) {
    return *engine.core().ExplainRestore({.id = id, .last = true});
  }
  int64_t waiting_passes() { return engine.core().GetStats()->restores.waiting_passes; }

  TimedEngine engine;
};

// What Front cannot do: what is computed needs all that is loaded, and both take as long.
TEST(TimedWave, HidesTheCopiesBehindTheNewTokens) {
  TimedWorld waves(true), fronts(false);
  for (TimedWorld* world : {&waves, &fronts}) world->Prepare("back", 1, 32);
  const double wave_s = waves.Return("back", 320), front_s = fronts.Return("back", 320);
  const RestoreReport report = waves.LastOf("back");
  EXPECT_EQ(report.execution, Execution::kWave);
  EXPECT_EQ(waves.waiting_passes(), 1);
  EXPECT_EQ(fronts.waiting_passes(), 0);
  // 32 ms of copies and 32.2 of the pass: one after the other without Wave, save what is computed
  // again; beside each other, but for the first of eight groups of layers, with it.
  EXPECT_NEAR(wave_s, 0.0322 + 0.032 / 8, 0.001);
  EXPECT_GT(front_s, 1.35 * wave_s);
  EXPECT_NEAR(report.predicted_s, wave_s, 0.05 * wave_s);
}

// A limit paces the layers as a slow bus does, also while the pass waits for them.
TEST(TimedWave, IsPacedByALimit) {
  TimedEngineOptions wave_options = Options(true), front_options = Options(false);
  wave_options.is_paced = front_options.is_paced = true;
  TimedWorld waves(wave_options), fronts(front_options);
  const int64_t waves_before = waves.waiting_passes();
  for (TimedWorld* world : {&waves, &fronts}) world->Prepare("back", 1, 32);
  const double wave_s = waves.Return("back", 320), front_s = fronts.Return("back", 320);
  const RestoreReport report = waves.LastOf("back");
  EXPECT_EQ(report.execution, Execution::kWave);
  EXPECT_EQ(waves.waiting_passes(), waves_before + 1);
  EXPECT_NEAR(wave_s, 0.0322 + 0.032 / 8, 0.0015);
  EXPECT_GT(front_s, 1.35 * wave_s);
  EXPECT_NEAR(report.predicted_s, wave_s, 0.05 * wave_s);
}

TEST(TimedWave, ComputesAllHolesInOnePass) {
  TimedWorld waves(true), fronts(false);
  const std::vector<uint32_t> absent = {7, 15, 23, 31, 39};
  for (TimedWorld* world : {&waves, &fronts}) world->Prepare("back", 2, 48, absent);
  const double wave_s = waves.Return("back", 100), front_s = fronts.Return("back", 100);
  const RestoreReport report = waves.LastOf("back");
  EXPECT_EQ(report.execution, Execution::kWave);
  EXPECT_NEAR(report.predicted_s, wave_s, 0.05 * wave_s);
  EXPECT_GT(front_s, 1.03 * wave_s);
}

// Of several passes the first one waits, and the others find everything there.
TEST(TimedWave, TakesAsManyPassesAsItNeeds) {
  TimedEngineOptions wave_options = Options(true), front_options = Options(false);
  wave_options.prefill_chunk = front_options.prefill_chunk = 128;
  TimedWorld waves(wave_options), fronts(front_options);
  for (TimedWorld* world : {&waves, &fronts}) world->Prepare("back", 13, 14, {5});
  const double wave_s = waves.Return("back", 300), front_s = fronts.Return("back", 300);
  const RestoreReport report = waves.LastOf("back");
  EXPECT_EQ(report.execution, Execution::kWave);
  EXPECT_EQ(waves.waiting_passes(), 1);
  EXPECT_NEAR(report.predicted_s, wave_s, 0.05 * wave_s);
  EXPECT_GT(front_s, 1.1 * wave_s);
}

// A pass does not begin before what it would wait for is nearly there: while copies take much
// longer than it does, others run.
TEST(TimedWave, HoldsNobodyUp) {
  TimedWorld world(true);
  world.Prepare("back", 3, 96);
  const auto back = world.engine.Start("back", RandomTokens(4, 300), 1);
  double longest_s = 0;
  while (!back->end) {
    const Clock::Monotonic begin = world.engine.clock.Now();
    world.engine.Step();
    const std::chrono::duration<double> step = world.engine.clock.Now() - begin;
    longest_s = std::max(longest_s, step.count());
  }
  const RestoreReport report = world.LastOf("back");
  EXPECT_EQ(report.execution, Execution::kWave);
  EXPECT_EQ(world.waiting_passes(), 1);
  EXPECT_GT(back->first_token_s(), 0.06);
  // All that it may compute in one pass, a millisecond of waiting, and what the predictions miss.
  EXPECT_LT(longest_s, 0.0002 + 0.0001 * 512 + 0.002);
  EXPECT_NEAR(report.predicted_s, back->first_token_s(), 0.05 * report.predicted_s);
}

TEST(TimedWave, IsNotForRunningStreamsToWaitFor) {
  TimedWorld world(true);
  world.Prepare("back", 5, 32);
  world.engine.Create("stream", RandomTokens(6, 20));
  const auto stream = world.engine.Start("stream", {}, 400);
  world.engine.RunUntil([&] { return stream->tokens.size() > 5; });
  EXPECT_GT(world.Return("back", 64), 0);
  EXPECT_NE(world.LastOf("back").execution, Execution::kWave);
  EXPECT_EQ(world.waiting_passes(), 0);
}

// Where it is wanted, but cannot be, the report says why; else there is one, whatever it takes.
TEST(TimedWave, OfThePolicyIsMadeOrItIsSaidWhyNot) {
  TimedWorld world(Options(true, RestorePolicy::kWave)), cairn(true);
  const int64_t waves_before = world.waiting_passes();
  world.Prepare("back", 5, 32);
  world.Return("back", 1);
  EXPECT_EQ(world.LastOf("back").execution, Execution::kWave);
  EXPECT_EQ(world.LastOf("back").no_wave, NoWave::kNone);
  EXPECT_EQ(world.waiting_passes(), waves_before + 1);
  for (TimedWorld* each : {&world, &cairn}) {
    each->engine.Prepare("disk", 12, 8, Tier::kDisk);
    each->Return("disk", 64);
  }
  EXPECT_EQ(world.LastOf("disk").execution, Execution::kWave);
  EXPECT_NE(cairn.LastOf("disk").execution, Execution::kWave);

  world.engine.Create("stream", RandomTokens(6, 20));
  const auto stream = world.engine.Start("stream", {}, 400);
  world.engine.RunUntil([&] { return stream->tokens.size() > 5; });
  world.engine.SuspendTo("back", Tier::kHost);
  world.Return("back", 64);
  EXPECT_NE(world.LastOf("back").execution, Execution::kWave);
  EXPECT_EQ(world.LastOf("back").no_wave, NoWave::kStreams);
  EXPECT_EQ(world.waiting_passes(), waves_before + 1);
  EXPECT_EQ(cairn.LastOf("disk").no_wave, NoWave::kNone);  // which nobody wanted
}

// What was lost is computed with the new tokens, as if it were new; but it came back.
TEST(TimedWave, OfWhatHasNoCopyIsComputingItAgain) {
  for (const RestorePolicy policy : {RestorePolicy::kCairn, RestorePolicy::kWave}) {
    TimedWorld world(Options(true, policy));
    world.Prepare("back", 5, 32);
    world.engine.SuspendTo("back", Tier::kAbsent);
    const int64_t recomputed_before = world.engine.core().GetStats()->blocks_recomputed;
    world.Return("back", 64);
    const RestoreReport report = world.LastOf("back");
    EXPECT_EQ(report.execution, Execution::kRecomputeAll);
    EXPECT_EQ(report.no_wave,
              policy == RestorePolicy::kWave ? NoWave::kNothingToLoad : NoWave::kNone);
    EXPECT_EQ(world.engine.core().GetStats()->blocks_recomputed, recomputed_before + 32);
  }
}

// A stream that comes while copies are on their way makes a Front of it.
TEST(TimedWave, BecomesFrontWhenAStreamComes) {
  TimedWorld world(true);
  world.Prepare("back", 7, 96);
  const auto back = world.engine.Start("back", RandomTokens(8, 300), 1);
  world.engine.RunFor(0.01);
  world.engine.Create("stream", RandomTokens(9, 20));
  const auto stream = world.engine.Start("stream", {}, 60);
  world.Finish(back);
  EXPECT_EQ(world.waiting_passes(), 0);
  EXPECT_EQ(world.LastOf("back").execution, Execution::kFront);
  EXPECT_EQ(world.LastOf("back").no_wave, NoWave::kStreams);
  world.Finish(stream);
  EXPECT_EQ(stream->tokens.size(), 60u);
}

void CancelAtAnyMoment(bool is_paced) {
  TimedEngineOptions options = Options(true);
  options.is_paced = is_paced;
  TimedWorld world(options);
  world.Prepare("back", 10, 60, {20, 21});
  for (int moment = 0; moment < 24; ++moment) {
    const auto back = world.engine.Start("back", {}, 1);
    const SequenceId id = world.engine.last_stream();
    world.engine.RunFor(0.004 * moment);
    world.engine.core().CancelStream(id, Status(Code::kCancelled, "by the test"));
    EXPECT_TRUE(back->end);
    world.engine.RunFor(0.1);  // copies that had begun
    const BlockStoreStats stats = world.engine.blocks().stats();
    EXPECT_EQ(stats.filling + stats.held_hot + stats.busy + stats.in_flight, 0u) << moment;
    EXPECT_EQ(stats.free + stats.evictable, stats.capacity);
    EXPECT_EQ(world.engine.blocks().host_flow().under_way, 0u);
    world.engine.SuspendTo("back", Tier::kHost);
  }
}

TEST(TimedWave, ACancelAtAnyMomentFreesEverything) { CancelAtAnyMoment(false); }
TEST(TimedWave, ACancelUnderALimitFreesEverything) { CancelAtAnyMoment(true); }

// Predictions over layouts drawn at random: from the host's pool, with holes.
TEST(TimedWave, TakesAsLongAsPredictedAndNeverLongerThanFront) {
  Rng rng(11);
  int waves = 0;
  double wave_sum_s = 0, front_sum_s = 0;
  TimedWorld with(true), without(false);
  for (int i = 0; i < 24; ++i) {
    SCOPED_TRACE(i);
    const std::string id = "back" + std::to_string(i);
    const auto block_count = static_cast<uint32_t>(8 + rng.Below(60));
    std::vector<uint32_t> absent;
    const double absent_share = rng.Chance(0.5) ? 0 : 0.2 * rng.Uniform();
    for (uint32_t block = 0; block + 1 < block_count; ++block) {
      if (rng.Chance(absent_share)) absent.push_back(block);
    }
    const auto new_tokens = static_cast<uint32_t>(1 + rng.Below(300));
    for (TimedWorld* world : {&with, &without}) world->Prepare(id, 100 + i, block_count, absent);
    const double wave_s = with.Return(id, new_tokens);
    const double front_s = without.Return(id, new_tokens);
    wave_sum_s += wave_s;
    front_sum_s += front_s;
    const RestoreReport report = with.LastOf(id);
    if (report.execution == Execution::kWave) {
      ++waves;
      EXPECT_NEAR(report.predicted_s, wave_s, 0.1 * wave_s);
    }
    EXPECT_LE(wave_s, 1.02 * front_s + 0.001);
    for (TimedWorld* world : {&with, &without}) {
      world->engine.SuspendTo(id, Tier::kAbsent);
    }
  }
  std::printf("waves: %d of 24; Front takes %.3f of their time\n", waves, front_sum_s / wave_sum_s);
  EXPECT_GT(waves, 12);
  EXPECT_GT(front_sum_s, 1.1 * wave_sum_s);
}

}  // namespace
}  // namespace cairn
