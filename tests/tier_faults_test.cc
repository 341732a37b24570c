// Kinds of fault that moving KV has had elsewhere, each on a whole engine over a small model.
// docs/FAULTS.md lists them all; the names here are its numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/planned_restores.h"
#include "tests/engine_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlock = 16;

class TierFaults : public testing::Test {
 protected:
  // An engine over this disk; `spill()` is its store.
  EngineHarness& Open(HarnessOptions options, const FakeSpillOptions& spill = {}) {
    harness_.reset();
    options.clock = &clock_;
    options.threads = 1;
    options.open_spill = [this, spill](const Digest&, const KvLayout& layout, auto) {
      auto store = std::make_unique<FakeSpillStore>(disk_, spill, layout.block_bytes());
      spill_ = store.get();
      return Result<std::unique_ptr<SpillStore>>(std::move(store));
    };
    harness_ = std::make_unique<EngineHarness>(options);
    harness_->check_every_step = false;
    return *harness_;
  }
  EngineHarness& harness() { return *harness_; }
  EngineCore& core() { return harness_->core(); }
  FakeSpillStore& spill() { return *spill_; }

  // What a lone engine with everything on the device says after `prompt`.
  Tokens Lone(const Tokens& prompt, uint32_t count) {
    EngineHarness lone({.threads = 1});
    lone.Create("lone", {});
    return lone.Decode(Turn("lone", prompt, count))->tokens;
  }

  static DecodeRequest Turn(const std::string& id, const Tokens& content, uint32_t count) {
    DecodeRequest request;
    request.id = id;
    if (!content.empty()) request.content = content;
    request.max_tokens = count;
    request.sampling = Greedy();
    return request;
  }

  // Steps until every sink has ended; time goes on a little with each.
  void Finish(const std::vector<std::shared_ptr<RecordingSink>>& sinks, int steps_max = 200000) {
    const auto open = [](const auto& sink) { return !sink->end.has_value(); };
    while (std::ranges::any_of(sinks, open)) {
      ASSERT_GT(--steps_max, 0) << "a stream does not end";
      core().Step();
      clock_.Advance(std::chrono::milliseconds(1));
    }
    core().CheckInvariants();
  }

  Tokens Say(const std::string& id, const Tokens& content, uint32_t count) {
    auto sink = harness().StartDecode(Turn(id, content, count));
    Finish({sink});
    EXPECT_TRUE(sink->end->status.ok()) << sink->end->status.ToString();
    usage_ = sink->end->usage;
    return sink->tokens;
  }

  void SuspendToDisk(const std::string& id) { EXPECT_TRUE(Suspend(core(), id, Tier::kDisk).ok()); }

  DiskTierStats Disk() { return *harness().blocks().disk_stats(); }

  FakeClock clock_;
  FakeDisk disk_;
  FakeSpillStore* spill_ = nullptr;
  std::unique_ptr<EngineHarness> harness_;
  Usage usage_;  // of the last Say
};

TEST_F(TierFaults, T1ManySessionsOverATinyPoolSayWhatTheySayAlone) {
  constexpr int kSessions = 256;
  Open({.device_blocks = 24, .prefill_chunk = 64, .concurrent_max = 32, .host_blocks = 12});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<Tokens> prompts;
  for (int turn = 0; turn < 2; ++turn) {
    sinks.clear();
    for (int i = 0; i < kSessions; ++i) {
      const std::string id = "s" + std::to_string(i);
      if (turn == 0) {
        harness().Create(id, {});
        prompts.push_back(RandomTokens(static_cast<uint64_t>(i), 40));
      }
      sinks.push_back(
          harness().StartDecode(Turn(id, turn == 0 ? prompts.back() : Tokens{7, 8, 9}, 4)));
    }
    Finish(sinks);
  }
  EXPECT_GT(Disk().loads, 50u);
  for (int i = 0; i < kSessions; i += 16) {
    const Tokens first = Lone(prompts[static_cast<size_t>(i)], 4);
    Tokens second = prompts[static_cast<size_t>(i)];
    second.insert(second.end(), first.begin(), first.end());
    second.insert(second.end(), {7, 8, 9});
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->tokens, Lone(second, 4)) << i;
  }
}

TEST_F(TierFaults, T4EveryThirdReadFailsAndIsCounted) {
  Open({.device_blocks = 64});
  const Tokens prompt = RandomTokens(4, 20 * kBlock);
  harness().Create("a", {});
  const Tokens first = Say("a", prompt, 4);
  SuspendToDisk("a");
  spill().options.fails_every = 3;
  Tokens context = prompt;
  context.insert(context.end(), first.begin(), first.end());
  EXPECT_EQ(Say("a", {}, 8), Lone(context, 8));
  EXPECT_GT(spill().failed_count(), 3u);
  EXPECT_EQ(Disk().load_failures, spill().failed_count());
  EXPECT_EQ(Disk().corrupt, spill().failed_count() / 2);
  // Each failure was one block, and no more was computed again.
  const int64_t lost = static_cast<int64_t>(spill().failed_count()) * kBlock;
  EXPECT_GE(usage_.recomputed_tokens, lost);
  EXPECT_LE(usage_.recomputed_tokens, lost + kBlock);
  EXPECT_EQ(usage_.disk_tokens + usage_.recomputed_tokens + usage_.new_tokens,
            usage_.prompt_tokens);
}

TEST_F(TierFaults, T5SharersOfABlockThatCannotBeLoadedBothGoOn) {
  Open({.device_blocks = 64});
  const Tokens shared = RandomTokens(5, 8 * kBlock);
  Tokens mine = shared, yours = shared;
  mine.push_back(5);
  yours.push_back(6);
  harness().Create("mine", mine);
  harness().Create("yours", yours);
  const Tokens said = Say("mine", {}, 1);
  SuspendToDisk("mine");
  spill().options.corruption = 1;
  auto a = harness().StartDecode(Turn("mine", {}, 6));
  auto b = harness().StartDecode(Turn("yours", {}, 6));
  Finish({a, b});  // an engine that has nothing else to do
  Tokens after = mine;
  after.push_back(said[0]);
  EXPECT_EQ(a->tokens, Lone(after, 6));
  EXPECT_EQ(b->tokens, Lone(yours, 6));
  EXPECT_EQ(Disk().corrupt, 8u);
}

TEST_F(TierFaults, T9ADiskThatHangsIsGivenUpAndItsSlotsAreNotUsedBeforeItAnswers) {
  Open({.device_blocks = 40});
  const Tokens prompt = RandomTokens(9, 16 * kBlock);
  harness().Create("a", prompt);
  const Tokens first = Say("a", {}, 1);
  SuspendToDisk("a");
  spill().options.hangs = true;
  auto sink = harness().StartDecode(Turn("a", {}, 6));
  for (int i = 0; i < 50; ++i) core().Step();
  EXPECT_FALSE(sink->end);  // it waits for its blocks
  clock_.Advance(2 * DiskTier::kPatience);
  Finish({sink});
  Tokens context = prompt;
  context.push_back(first[0]);
  EXPECT_EQ(sink->tokens, Lone(context, 6));
  EXPECT_TRUE(Disk().is_paused);
  EXPECT_GT(harness().blocks().stats().in_flight, 0u);  // the disk may still write there
  spill().options.hangs = false;
  spill().options.answer_chance = 1;
  for (int i = 0; i < 10; ++i) core().Step();
  EXPECT_EQ(harness().blocks().stats().in_flight, 0u);
  EXPECT_FALSE(Disk().is_paused);
}

TEST_F(TierFaults, T6SegmentsOfAnotherModelAreNotReadAndMakeRoomWhenTheyAreOldest) {
  constexpr uint64_t kQuota = 24;
  for (int i = 0; i < 6; ++i) {  // they fill the quota
    FakeDisk::Segment& segment = disk_.segments[SegmentId(disk_.next_record)];
    segment.is_foreign = true;
    for (int j = 0; j < 4; ++j) segment.records[RecordId(disk_.next_record++)];
  }
  Open({.device_blocks = 64}, {.quota_blocks = kQuota, .answer_chance = 1});
  const Tokens prompt = RandomTokens(6, 12 * kBlock);
  harness().Create("a", prompt);
  Say("a", {}, 1);
  for (int i = 0; i < 20; ++i) core().Step();  // room comes segment by segment
  SuspendToDisk("a");
  Say("a", {}, 1);
  EXPECT_GT(usage_.disk_tokens, 0);
  EXPECT_LT(
      std::ranges::count_if(disk_.segments, [](const auto& s) { return s.second.is_foreign; }), 6);
}

// The quota shrinks under a session whose loads wait: the oldest segments go, and what was to be
// read there is computed again. Neither is a fault of the disk.
TEST_F(TierFaults, T21ASegmentThatGoesWhileItsLoadsWaitIsAMiss) {
  Open({.device_blocks = 64}, {.quota_blocks = 40});
  const Tokens prompt = RandomTokens(21, 20 * kBlock);
  harness().Create("a", {});
  const Tokens first = Say("a", prompt, 4);
  SuspendToDisk("a");
  Tokens context = prompt;
  context.insert(context.end(), first.begin(), first.end());
  testing::internal::CaptureStderr();
  auto sink = harness().StartDecode(Turn("a", {}, 8));
  core().Step();
  spill().options.quota_blocks = 12;
  Finish({sink});
  EXPECT_EQ(sink->tokens, Lone(context, 8));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "nothing is damaged";
  const Usage& usage = sink->end->usage;
  EXPECT_GT(usage.recomputed_tokens, kBlock);
  EXPECT_GT(usage.disk_tokens, kBlock);
  EXPECT_EQ(usage.disk_tokens + usage.recomputed_tokens + usage.new_tokens, usage.prompt_tokens);
  EXPECT_GT(Disk().evictions, 4u);
  EXPECT_EQ(Disk().load_failures, 0u);
  EXPECT_FALSE(Disk().is_paused);
}

TEST_F(TierFaults, T11SessionsThatEachNeedMostOfThePoolAllResumeAtOnce) {
  constexpr int kSessions = 6;
  Open({.device_blocks = 20});  // each needs 13
  std::vector<Tokens> prompts;
  for (int i = 0; i < kSessions; ++i) {
    prompts.push_back(RandomTokens(100 + static_cast<uint64_t>(i), 12 * kBlock));
    harness().Create("s" + std::to_string(i), prompts.back());
    Say("s" + std::to_string(i), {}, 1);
    SuspendToDisk("s" + std::to_string(i));
  }
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < kSessions; ++i) {
    sinks.push_back(harness().StartDecode(Turn("s" + std::to_string(i), {}, 4)));
  }
  Finish(sinks);
  for (int i = 0; i < kSessions; ++i) {
    Tokens context = prompts[static_cast<size_t>(i)];
    context.push_back(harness().Tokens("s" + std::to_string(i))[context.size()]);
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->tokens, Lone(context, 4)) << i;
  }
}

TEST_F(TierFaults, T12ADamagedRecordIsReadOnce) {
  Open({.device_blocks = 64});
  harness().Create("a", RandomTokens(12, 6 * kBlock));
  Say("a", {}, 1);
  SuspendToDisk("a");
  spill().options.corruption = 1;
  Say("a", {}, 1);
  EXPECT_EQ(Disk().corrupt, 6u);
  EXPECT_EQ(Disk().records, 0u);
  EXPECT_TRUE(Suspend(core(), "a", Tier::kAbsent).ok());
  Say("a", {}, 1);
  EXPECT_EQ(Disk().corrupt, 6u);
  EXPECT_EQ(usage_.disk_tokens, 0);
}

TEST_F(TierFaults, T13CancelsAtEveryMomentLeaveNothingBehind) {
  Open({.device_blocks = 40, .prefill_chunk = 32, .host_blocks = 8}, {.answer_chance = 0.3});
  Rng rng(13);
  harness().Create("a", RandomTokens(13, 14 * kBlock));
  Say("a", {}, 1);
  constexpr int kRounds = kSanitized ? 200 : 2000;
  for (int round = 0; round < kRounds; ++round) {
    const Tier tier = rng.Chance(0.5) ? Tier::kDisk : rng.Chance(0.5) ? Tier::kHost : Tier::kAbsent;
    ASSERT_TRUE(Suspend(core(), "a", tier).ok());
    const SequenceId id = harness().NextId();
    auto sink = harness().StartDecode(Turn("a", {}, 2), id);
    for (uint64_t steps = rng.Below(10); steps > 0; --steps) core().Step();
    core().CancelStream(id, Status(Code::kCancelled, "by the test"));
    Finish({sink});
    ASSERT_TRUE(core().TruncateSession("a", 14 * kBlock + 1).ok());
  }
  spill().options.answer_chance = 1;
  for (int i = 0; i < 100; ++i) core().Step();
  const BlockStoreStats stats = harness().blocks().stats();
  EXPECT_EQ(stats.filling + stats.held_hot + stats.busy + stats.in_flight, 0u);
  EXPECT_EQ(stats.free + stats.evictable, stats.capacity);
}

TEST_F(TierFaults, T17ADiskThatTurnsSlowIsLeftForComputingAndUsedAgainWhenItRecovers) {
  HarnessOptions options{.device_blocks = 64};
  options.make_restores = [this](const BlockStore& store) {
    auto restores = std::make_unique<PlannedRestores>(RestoreSettings(), store, clock_);
    restores->Learn({.rows = 10 * kBlock, .seconds = 0.1});
    restores->Learn({.rows = 20 * kBlock, .seconds = 0.2});
    return restores;
  };
  Open(options, {.answer_chance = 1, .clock = &clock_});
  const Tokens prompt = RandomTokens(17, 24 * kBlock);
  harness().Create("a", prompt);
  Say("a", {}, 1);
  SuspendToDisk("a");
  Say("a", {}, 1);
  EXPECT_GT(usage_.disk_tokens, 20 * kBlock);
  // A thousand times slower: within a few blocks the rest is computed.
  SuspendToDisk("a");
  spill().options.operation_time = std::chrono::milliseconds(700);
  spill().options.answer_chance = 0.1;
  Say("a", {}, 1);
  EXPECT_LT(usage_.disk_tokens, 12 * kBlock);
  SuspendToDisk("a");
  Say("a", {}, 1);
  EXPECT_LE(usage_.disk_tokens, 1 * kBlock);  // a probe at most
  // It recovers: probes notice.
  spill().options.operation_time = std::chrono::microseconds(700);
  spill().options.answer_chance = 1;
  for (int i = 0; i < 8; ++i) {
    SuspendToDisk("a");
    clock_.Advance(std::chrono::seconds(2));
    Say("a", {}, 1);
    if (usage_.disk_tokens > 20 * kBlock) return;
  }
  FAIL() << "the disk is not used again";
}

TEST_F(TierFaults, T18AShortRequestDoesNotWaitForALongLoad) {
  Open({.device_blocks = 200}, {.answer_chance = 0});
  harness().Create("long", RandomTokens(18, 100 * kBlock));
  spill().options.answer_chance = 1;
  Say("long", {}, 1);
  SuspendToDisk("long");
  spill().options.answer_chance = 0;  // the load takes as long as we like
  auto slow = harness().StartDecode(Turn("long", {}, 1));
  core().Step();
  harness().Create("short", RandomTokens(19, 40));
  auto quick = harness().StartDecode(Turn("short", {}, 1));
  core().Step();
  core().Step();
  EXPECT_TRUE(quick->end);
  EXPECT_FALSE(slow->end);
  spill().options.answer_chance = 1;
  Finish({slow});
}

}  // namespace
}  // namespace cairn
