// What a session and a stream mean, on a tiny model: decode, replay, stop, refuse, give way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/engine_harness.h"

namespace cairn {
namespace {

DecodeRequest GreedyDecode(const std::string& id, uint32_t max_tokens) {
  DecodeRequest request;
  request.id = id;
  request.max_tokens = max_tokens;
  request.sampling = Greedy();
  return request;
}

TEST(EngineCore, DecodesToTheLengthAndKeepsTheTokens) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(1, 37));
  const auto sink = harness.Decode(GreedyDecode("a", 20));
  ASSERT_TRUE(sink->end);
  EXPECT_TRUE(sink->end->status.ok()) << sink->end->status.ToString();
  EXPECT_EQ(sink->end->finish_reason, FinishReason::kLength);
  EXPECT_EQ(sink->first_position, 37);
  ASSERT_EQ(sink->tokens.size(), 20u);
  std::vector<uint32_t> expected = RandomTokens(1, 37);
  expected.insert(expected.end(), sink->tokens.begin(), sink->tokens.end());
  EXPECT_EQ(harness.Tokens("a"), expected);
  EXPECT_EQ(sink->end->usage.prompt_tokens, 37);
  EXPECT_EQ(sink->end->usage.new_tokens, 37);
  EXPECT_EQ(sink->end->usage.completion_tokens, 20);
}

TEST(EngineCore, AnyCutOfAStreamResumesToTheSameTokens) {
  EngineHarness harness;
  harness.Create("whole", RandomTokens(2, 30));
  SamplingParams sampled;
  sampled.temperature = 1.0f;
  sampled.seed = 99;
  sampled.ignore_eos = true;
  sampled.presence_penalty = 0.5f;
  DecodeRequest request = GreedyDecode("whole", 40);
  request.sampling = sampled;
  const auto whole = harness.Decode(request);
  for (const uint32_t cut : {1u, 2u, 7u, 16u, 39u}) {
    harness.Create("cut" + std::to_string(cut), RandomTokens(2, 30));
    DecodeRequest first = request;
    first.id = "cut" + std::to_string(cut);
    first.max_tokens = cut;
    harness.Decode(first);
    DecodeRequest again = first;
    again.start_position = 30;
    again.max_tokens = 40;
    const auto resumed = harness.Decode(again);
    EXPECT_EQ(resumed->tokens, whole->tokens) << "cut after " << cut;
    EXPECT_EQ(resumed->text, whole->text) << "cut after " << cut;
    EXPECT_EQ(resumed->first_position, 30);
  }
}

TEST(EngineCore, ReplayNeedsNoModelAndEndsAtMaxTokens) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(3, 3000 / 2));
  const int64_t steps = harness.core().GetStats()->steps;
  DecodeRequest request = GreedyDecode("a", 1200);
  request.start_position = 100;
  const auto sink = harness.Decode(request);
  const std::vector<uint32_t> prompt = RandomTokens(3, 1500);
  EXPECT_EQ(sink->tokens, std::vector<uint32_t>(prompt.begin() + 100, prompt.begin() + 1300));
  EXPECT_EQ(sink->end->finish_reason, FinishReason::kLength);
  EXPECT_GT(sink->update_count, 1u);
  EXPECT_EQ(harness.core().GetStats()->steps, steps);
}

TEST(EngineCore, ASecondTurnFindsTheFirstOnTheDevice) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(4, 100));
  harness.Decode(GreedyDecode("a", 30));
  DecodeRequest next = GreedyDecode("a", 10);
  next.content = RandomTokens(5, 12);
  next.expected_token_count = 130;
  const auto sink = harness.Decode(next);
  // The last sampled token was never computed; the 12 appended ones are new.
  EXPECT_EQ(sink->end->usage.prompt_tokens, 142);
  EXPECT_EQ(sink->end->usage.device_tokens, 129);
  EXPECT_EQ(sink->end->usage.new_tokens, 13);
  EXPECT_EQ(sink->end->usage.recomputed_tokens, 0);
}

TEST(EngineCore, ASuspendedSessionIsRecomputedToTheSameTokens) {
  EngineHarness harness;
  for (const char* id : {"kept", "dropped"}) {
    harness.Create(id, RandomTokens(6, 90));
    harness.Decode(GreedyDecode(id, 20));
  }
  const auto kept = harness.Decode(GreedyDecode("kept", 25));
  ASSERT_TRUE(Suspend(harness.core(), "dropped", Tier::kAbsent).ok());
  const Result<SessionInfo> info = harness.core().GetSession("dropped");
  EXPECT_EQ(info->residency.device_tokens, 0);
  const auto dropped = harness.Decode(GreedyDecode("dropped", 25));
  EXPECT_EQ(dropped->tokens, kept->tokens);
  EXPECT_EQ(kept->end->usage.recomputed_tokens, 0);
  EXPECT_EQ(dropped->end->usage.recomputed_tokens, 109);
  EXPECT_EQ(dropped->end->usage.new_tokens, 1);
}

TEST(EngineCore, ASuspensionThatHasNowhereToGoDropsNothing) {
  for (const uint32_t host_blocks : {0u, 64u}) {
    SCOPED_TRACE(host_blocks);
    EngineHarness harness({.host_blocks = host_blocks});
    harness.Create("a", RandomTokens(6, 90));
    harness.Decode(GreedyDecode("a", 1));
    const Status to_disk = Suspend(harness.core(), "a", Tier::kDisk).status();
    EXPECT_EQ(to_disk.code(), Code::kFailedPrecondition);
    EXPECT_EQ(to_disk.message(),
              "the server has no disk tier (--disk-dir) for the blocks to go to; TIER_ABSENT drops "
              "them");
    const Result<SessionInfo> to_host = Suspend(harness.core(), "a", Tier::kHost);
    EXPECT_EQ(to_host.status().code(), host_blocks > 0 ? Code::kOk : Code::kFailedPrecondition);
    EXPECT_THAT(to_host.status().message(),
                testing::HasSubstr(host_blocks > 0 ? "" : "no host tier (--host-memory)"));
    const Residency residency = harness.core().GetSession("a")->residency;
    EXPECT_EQ(host_blocks > 0 ? residency.host_tokens : residency.device_tokens, 80);
  }
}

TEST(EngineCore, PrefetchComputesSoThatTheTurnFindsIt) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(7, 200));
  ASSERT_TRUE(harness.core().PrefetchSession("a", harness.NextId()).ok());
  EXPECT_EQ(harness.core().GetSession("a")->state, SessionState::kQueued);
  harness.Run();
  EXPECT_EQ(harness.core().GetSession("a")->residency.device_tokens, 192);
  const auto sink = harness.Decode(GreedyDecode("a", 4));
  EXPECT_EQ(sink->end->usage.device_tokens, 200);
}

TEST(EngineCore, AContextThatWaitsUsesNothing) {
  HarnessOptions options;
  options.device_blocks = 16;
  EngineHarness harness(options);
  const std::vector<uint32_t> shared = RandomTokens(1, 80);
  harness.StartGenerate({.content = shared, .max_tokens = 1, .sampling = Greedy()});
  harness.Run();  // leaves 5 blocks
  const SequenceId first = harness.NextId();
  harness.StartGenerate({.content = RandomTokens(2, 140), .max_tokens = 1000, .sampling = Greedy()},
                        first);
  harness.core().Step();
  std::vector<uint32_t> longer = shared;
  const std::vector<uint32_t> more = RandomTokens(3, 100);
  longer.insert(longer.end(), more.begin(), more.end());
  const auto waiting =
      harness.StartGenerate({.content = longer, .max_tokens = 1, .sampling = Greedy()});
  const BlockStoreStats before = harness.blocks().stats();
  for (int i = 0; i < 10; ++i) harness.core().Step();
  EXPECT_EQ(harness.core().GetStats()->waiting_count, 1);
  EXPECT_EQ(harness.blocks().stats().hits, before.hits);
  EXPECT_EQ(harness.blocks().stats().misses, before.misses);
  harness.core().CancelStream(first, Status(Code::kCancelled, "by the test"));
  harness.Run();
  EXPECT_TRUE(waiting->end && waiting->end->status.ok());
  EXPECT_EQ(waiting->end->usage.device_tokens, 80);
  EXPECT_EQ(harness.blocks().stats().hits, before.hits + 5);
}

TEST(EngineCore, ASessionHasOneStream) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(8, 40));
  const auto first = harness.StartDecode(GreedyDecode("a", 50));
  harness.core().Step();
  const auto second = harness.StartDecode(GreedyDecode("a", 5));
  ASSERT_TRUE(second->end);
  EXPECT_EQ(second->end->status.code(), Code::kAborted);
  EXPECT_EQ(
      harness.core().AppendContent({.id = "a"}, harness.Encode(std::string("x"))).status().code(),
      Code::kAborted);
  EXPECT_EQ(harness.core().TruncateSession("a", 3).status().code(), Code::kAborted);
  harness.Run();
  EXPECT_EQ(first->tokens.size(), 50u);
}

TEST(EngineCore, CancelKeepsWhatWasHandedOut) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(9, 40));
  const SequenceId id = harness.NextId();
  const auto sink = harness.StartDecode(GreedyDecode("a", 500), id);
  for (int i = 0; i < 10; ++i) harness.core().Step();
  harness.core().CancelStream(id, Status(Code::kCancelled, "by the client"));
  ASSERT_TRUE(sink->end);
  EXPECT_EQ(sink->end->status.code(), Code::kCancelled);
  EXPECT_GT(sink->tokens.size(), 0u);
  EXPECT_EQ(harness.Tokens("a").size(), 40 + sink->tokens.size());
  EXPECT_EQ(harness.core().GetStats()->tiers[0].held_blocks, 0);
  harness.core().CancelStream(id, Status(Code::kCancelled, "again"));
}

TEST(EngineCore, AFullSinkPausesItsOwnSequenceOnly) {
  EngineHarness harness;
  harness.Create("slow", RandomTokens(10, 20));
  harness.Create("fast", RandomTokens(11, 20));
  const SequenceId slow_id = harness.NextId();
  auto slow = std::make_shared<RecordingSink>();
  slow->full_at = 5;
  harness.core().Decode({slow_id, slow, SystemClock().Now()}, GreedyDecode("slow", 30), {});
  const auto fast = harness.Decode(GreedyDecode("fast", 30));
  EXPECT_EQ(fast->tokens.size(), 30u);
  EXPECT_EQ(slow->tokens.size(), 5u);
  EXPECT_FALSE(slow->end);
  slow->full_at = SIZE_MAX;
  harness.core().ResumeStream(slow_id);
  harness.Run();
  EXPECT_EQ(slow->tokens.size(), 30u);
}

TEST(EngineCore, AContextThatCanNeverFitIsRefusedAndOthersGoOn) {
  HarnessOptions options;
  options.device_blocks = 8;
  EngineHarness harness(options);
  harness.Create("big", RandomTokens(12, 300));
  harness.Create("small", RandomTokens(13, 60));
  const auto big = harness.StartDecode(GreedyDecode("big", 5));
  const auto small = harness.StartDecode(GreedyDecode("small", 5));
  harness.Run();
  EXPECT_EQ(big->end->status.code(), Code::kResourceExhausted);
  const std::string& message = big->end->status.message();
  EXPECT_THAT(message, testing::HasSubstr("19 blocks"));
  EXPECT_THAT(message, testing::EndsWith("room for 8 (--device-memory, --host-memory)"));
  EXPECT_EQ(small->tokens.size(), 5u);
}

TEST(EngineCore, APoolThatIsCopiedFromMakesNoRoomForAContext) {
  EngineHarness harness({.device_blocks = 8, .host_blocks = 64, .host_in_place = false});
  harness.Create("big", RandomTokens(12, 300));
  const auto big = harness.Decode(GreedyDecode("big", 5));
  EXPECT_THAT(big->end->status.message(),
              testing::EndsWith("there is room for 8 (--device-memory)"));
}

TEST(EngineCore, TiersTellWhatLeftThemAndWhatCameBack) {
  EngineHarness harness({.device_blocks = 16, .host_blocks = 12, .host_in_place = false});
  for (int i = 0; i < 4; ++i) {
    const std::string id = "s" + std::to_string(i);
    harness.Create(id, RandomTokens(20 + i, 90));
    for (int turn = 0; turn < 3; ++turn) {
      const auto sink = harness.StartDecode(GreedyDecode(id, 1));
      while (!sink->end) harness.core().Step();  // also while copies are on their way
      ASSERT_TRUE(Suspend(harness.core(), id, Tier::kHost).ok());
    }
  }
  const EngineStats stats = *harness.core().GetStats();
  ASSERT_EQ(stats.tiers.size(), 2u);
  const TierStats& host = stats.tiers[1];
  const BlockStoreStats blocks = harness.blocks().stats();
  const auto block_bytes = static_cast<int64_t>(blocks.block_bytes);
  EXPECT_EQ(host.tier, Tier::kHost);
  EXPECT_GT(host.evictions, 0);
  // Tails that a longer block covers have left too, but not for want of room.
  EXPECT_EQ(host.evictions + static_cast<int64_t>(blocks.drops),
            host.bytes_written / block_bytes - host.used_blocks);
  EXPECT_GT(stats.blocks_reloaded, 0);
  EXPECT_EQ(stats.blocks_reloaded, host.bytes_read / block_bytes);
  EXPECT_EQ(stats.tiers[0].evictions + host.evictions, static_cast<int64_t>(blocks.evictions));
}

TEST(EngineCore, SequencesThatOutgrowThePoolTakeTurns) {
  std::vector<std::vector<uint32_t>> lone;
  for (const uint32_t device_blocks : {512u, 12u}) {
    HarnessOptions options;
    options.device_blocks = device_blocks;
    EngineHarness harness(options);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int i = 0; i < 4; ++i) {
      const std::string id = "s" + std::to_string(i);
      harness.Create(id, RandomTokens(20 + i, 70));
      sinks.push_back(harness.StartDecode(GreedyDecode(id, 100)));
    }
    harness.Run();
    for (size_t i = 0; i < sinks.size(); ++i) {
      ASSERT_TRUE(sinks[i]->end && sinks[i]->end->status.ok());
      if (device_blocks == 512) {
        lone.push_back(sinks[i]->tokens);
      } else {
        EXPECT_EQ(sinks[i]->tokens, lone[i]);
      }
    }
    EXPECT_EQ(harness.core().GetStats()->preemptions > 0, device_blocks == 12);
  }
}

TEST(EngineCore, DeletingASessionEndsItsStream) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(14, 20));
  const auto sink = harness.StartDecode(GreedyDecode("a", 50));
  harness.core().Step();
  ASSERT_TRUE(harness.core().DeleteSession("a").ok());
  EXPECT_EQ(sink->end->status.code(), Code::kAborted);
  EXPECT_EQ(harness.core().GetSession("a").status().code(), Code::kNotFound);
  harness.Run();
}

TEST(EngineCore, AForkSharesAndDiverges) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(15, 75));
  harness.Decode(GreedyDecode("a", 10));
  ASSERT_TRUE(harness.core().ForkSession({.id = "a", .new_id = "b", .token_count = 70}).ok());
  DecodeRequest request = GreedyDecode("b", 10);
  request.content = RandomTokens(16, 3);
  const auto sink = harness.Decode(request);
  // 64 tokens in shared blocks, 6 copied with the block that the fork cuts.
  EXPECT_EQ(sink->end->usage.device_tokens, 70);
  EXPECT_EQ(sink->end->usage.new_tokens, 3);
  EXPECT_EQ(harness.Tokens("a").size(), 85u);
}

TEST(EngineCore, StopsAtAStopTokenWithoutKeepingIt) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(17, 33));
  const auto free_run = harness.Decode(GreedyDecode("a", 12));
  ASSERT_TRUE(harness.core().TruncateSession("a", 33).ok());
  DecodeRequest request = GreedyDecode("a", 12);
  request.sampling.stop_token_ids = {free_run->tokens[6]};
  const auto sink = harness.Decode(request);
  size_t first = 0;
  while (free_run->tokens[first] != free_run->tokens[6]) ++first;
  EXPECT_EQ(sink->end->finish_reason, FinishReason::kStop);
  EXPECT_EQ(sink->end->stop_token_id, free_run->tokens[6]);
  EXPECT_EQ(sink->tokens.size(), first);
  EXPECT_EQ(harness.Tokens("a").size(), 33 + first);
}

TEST(EngineCore, RefusesWhatIsOutOfBoundsAndNamesTheField) {
  EngineHarness harness;
  harness.Create("a", RandomTokens(18, 10));
  const auto field_of = [&](DecodeRequest request) {
    const auto sink = harness.StartDecode(std::move(request));
    EXPECT_EQ(sink->end->status.code(), Code::kInvalidArgument);
    return sink->end->status.field();
  };
  DecodeRequest request = GreedyDecode("a", 5);
  request.max_tokens = 1'000'000;
  EXPECT_EQ(field_of(request), "max_tokens");
  request = GreedyDecode("a", 5);
  request.start_position = 11;
  EXPECT_EQ(field_of(request), "start_position");
  request = GreedyDecode("a", 5);
  request.sampling.temperature = -1.0f;
  EXPECT_EQ(field_of(request), "sampling.temperature");
  request = GreedyDecode("a", 5);
  request.content = RandomTokens(19, 2100);
  EXPECT_EQ(field_of(request), "content");
  request = GreedyDecode("a", 5);
  request.expected_token_count = 9;
  EXPECT_EQ(harness.StartDecode(request)->end->status.code(), Code::kAborted);
  EXPECT_EQ(harness.StartDecode(GreedyDecode("nobody", 5))->end->status.code(), Code::kNotFound);
  EXPECT_EQ(harness.Tokens("a").size(), 10u) << "a refused request changes nothing";
}

TEST(EngineCore, AFullContextEndsAtOnce) {
  HarnessOptions options;
  options.model.context_length = 64;
  EngineHarness harness(options);
  harness.Create("a", RandomTokens(21, 60));
  EXPECT_EQ(harness.Decode(GreedyDecode("a", 50))->tokens.size(), 4u);
  const auto sink = harness.Decode(GreedyDecode("a", 50));
  EXPECT_EQ(sink->tokens.size(), 0u);
  EXPECT_EQ(sink->end->finish_reason, FinishReason::kLength);
}

TEST(EngineCore, ATimeToLiveDoesNotRunOutUnderAStream) {
  using std::chrono::milliseconds;
  EngineHarness harness;
  SessionSettings settings;
  settings.expiration = std::chrono::nanoseconds(milliseconds(20));
  harness.Create("a", RandomTokens(52, 20), settings);
  const auto sink = harness.StartDecode(GreedyDecode("a", 5));
  std::this_thread::sleep_for(milliseconds(40));
  harness.core().ExpireSessions();
  harness.Run();
  EXPECT_TRUE(sink->end && sink->end->status.ok());
  EXPECT_EQ(sink->tokens.size(), 5u);
  std::this_thread::sleep_for(milliseconds(40));
  harness.core().ExpireSessions();
  EXPECT_EQ(harness.core().GetSession("a").status().code(), Code::kNotFound);
}

// Whatever its priority and the moment at which it comes.
TEST(EngineCore, AShortRequestDoesNotWaitForAPromptOf8000Tokens) {
  HarnessOptions options;
  options.model.context_length = 8192;
  options.threads = 1;
  options.prefill_chunk = 256;
  options.device_blocks = 600;
  EngineHarness harness(options);
  harness.check_every_step = false;
  const SequenceId long_id = harness.NextId();
  const auto long_sink = harness.StartGenerate(
      {.content = RandomTokens(50, 8000), .max_tokens = 1, .sampling = Greedy()}, long_id);
  for (int32_t priority = 0; priority <= 100; priority += 25) {
    harness.core().Step();
    const auto short_sink = harness.StartGenerate({.content = RandomTokens(51 + priority, 20),
                                                   .max_tokens = 1,
                                                   .sampling = Greedy(),
                                                   .priority = priority});
    for (int step = 0; step < 3; ++step) harness.core().Step();
    EXPECT_EQ(short_sink->tokens.size(), 1u) << "priority " << priority;
  }
  EXPECT_FALSE(long_sink->end) << "it was not in the way";
  harness.Run();
  EXPECT_EQ(long_sink->tokens.size(), 1u);
}

// "é" is two bytes, each a token of the tiny vocabulary: a range may end between them.
TEST(EngineCore, RangesThatCutACharacterConcatenate) {
  EngineHarness harness;
  const EncodedContent content = harness.Encode(std::string("caf\u00e9 na\u00efve \u4f60"));
  harness.Create("a", content.next);
  const int64_t count = static_cast<int64_t>(content.next.size());
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += harness.core().ReadTokens("a", i, 1)->text;
  EXPECT_EQ(text, "caf\u00e9 na\u00efve \u4f60");
  EXPECT_EQ(harness.core().ReadTokens("a", 0, 0)->text, text);
}

TEST(EngineCore, PinnedBlocksStayUntilNothingElseCanRun) {
  HarnessOptions options;
  options.device_blocks = 16;
  EngineHarness harness(options);
  SessionSettings pinned;
  pinned.pinned = true;
  harness.Create("pinned", RandomTokens(22, 100), pinned);
  harness.Decode(GreedyDecode("pinned", 4));
  for (int i = 0; i < 5; ++i) {  // a scan that would flush it
    harness.Create("scan" + std::to_string(i), RandomTokens(30 + i, 120));
    harness.Decode(GreedyDecode("scan" + std::to_string(i), 2));
  }
  EXPECT_EQ(harness.core().GetSession("pinned")->residency.device_tokens, 96);
  harness.Create("large", RandomTokens(40, 230));
  EXPECT_EQ(harness.Decode(GreedyDecode("large", 2))->tokens.size(), 2u);
}

}  // namespace
}  // namespace cairn
