// Sessions that outlive a table: they are restored or set aside, and time goes on.
#include <gtest/gtest.h>

#include "engine/session_table.h"
#include "tests/fakes/fake_clock.h"

namespace cairn {
namespace {

using std::chrono::hours;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using Ids = std::vector<uint32_t>;

constexpr uint32_t kVocabularySize = 1000;

EngineConfig SmallConfig() {
  EngineConfig config;
  config.context_length = 100;
  config.session_count_max = 5;
  config.session_tokens_max = 250;
  return config;
}

class SessionRestoreTest : public testing::Test {
 protected:
  const Session& Create(const std::string& id, SessionSettings settings = {}) {
    return **table_.Create({.id = id, .settings = std::move(settings)});
  }
  const Session& At(const std::string& id) { return **table_.Find(id); }
  void Fill(const std::string& id, size_t count) {
    ASSERT_TRUE(table_.Append(id, Ids(count, 7), std::nullopt).ok());
  }
  std::vector<std::string> Advance(nanoseconds step) {
    clock_.Advance(step);
    return table_.ExpireNow([](const std::string&) { return false; });
  }
  void TearDown() override { table_.CheckInvariants(); }

  const EngineConfig config_ = SmallConfig();
  FakeClock clock_;
  SessionTable table_{config_, kVocabularySize, clock_, 1};
};

// A time to live counts the time that servers live, whatever the wall clock says meanwhile.
TEST_F(SessionRestoreTest, AWallClockThatJumpsEndsNoTimeToLive) {
  SessionSettings settings;
  settings.expiration = nanoseconds(seconds(10));
  Create("a", settings);
  for (const auto jump : {hours(24 * 365 * 100), -hours(24 * 365 * 100), -hours(1)}) {
    clock_.JumpWall(jump);
    EXPECT_TRUE(Advance(seconds(3)).empty());
    table_.CheckInvariants();
  }
  EXPECT_EQ(table_.Info(At("a")).expire_time, clock_.WallNow() + seconds(1));
  EXPECT_EQ(Advance(seconds(1)), std::vector<std::string>{"a"});
}

TEST_F(SessionRestoreTest, AFixedMomentIsOneOfTheWallClock) {
  SessionSettings settings;
  settings.expiration = clock_.WallNow() + seconds(10);
  Create("a", settings);
  clock_.JumpWall(-hours(1));
  EXPECT_TRUE(Advance(seconds(20)).empty());
  clock_.JumpWall(hours(1));
  EXPECT_EQ(Advance(nanoseconds(0)), std::vector<std::string>{"a"});
}

// What a table has, as a disk would have kept it.
StoredSession Stored(const Session& session) { return {.damage = Status(), .session = session}; }

TEST_F(SessionRestoreTest, GoesOnWhereAnEarlierTableStopped) {
  SessionSettings settings;
  settings.expiration = nanoseconds(seconds(10));
  Create("a", settings);
  Fill("a", 3);
  Create("b");
  EXPECT_TRUE(Advance(seconds(4)).empty());
  SessionTable later(config_, kVocabularySize, clock_, 9);
  later.Continue(table_.next_serial(), table_.lived());
  ASSERT_TRUE(later.Restore(Stored(At("a"))).ok());
  ASSERT_TRUE(later.Restore(Stored(At("b"))).ok());
  later.CheckInvariants();
  EXPECT_EQ(later.total_token_count(), 3u);
  EXPECT_EQ((**later.Find("a")).seed, At("a").seed);
  EXPECT_EQ((**later.Create({.id = "c"})).serial, At("b").serial + 1);

  clock_.JumpWall(hours(24 * 365));  // so long there was no server
  const auto expire = [&] { return later.ExpireNow([](const std::string&) { return false; }); };
  clock_.Advance(seconds(6) - nanoseconds(1));
  EXPECT_TRUE(expire().empty()) << "four of its ten seconds were over";
  clock_.Advance(nanoseconds(1));
  EXPECT_EQ(expire(), std::vector<std::string>{"a"});
}

TEST_F(SessionRestoreTest, WhatCannotBeServedIsSetAside) {
  table_.Continue(100, nanoseconds(0));
  Session session;
  session.id = "long";
  session.serial = 7;
  session.tokens = Ids(101, 1);
  session.token_digest = ExtendTokenDigest(kNoTokensDigest, session.tokens);
  const Status too_long = table_.Restore(Stored(session));
  EXPECT_EQ(too_long.code(), Code::kFailedPrecondition);
  EXPECT_EQ(too_long.message(),
            "session 'long' is set aside: it holds 101 tokens, over the context of 100 "
            "(--context-length)");
  session.id = "strange";
  session.tokens = Ids{kVocabularySize};
  EXPECT_EQ(table_.Restore(Stored(session)).message(),
            "session 'strange' is set aside: it holds token 1000, over the vocabulary of 1000");
  const Status lost(Code::kDataLoss, "it fell into the sea");
  EXPECT_EQ(table_.Restore({.damage = lost, .session = {.id = "lost"}}).message(), lost.message());

  EXPECT_EQ(table_.session_count(), 0u);
  EXPECT_EQ(table_.Find("lost").status().message(), lost.message());
  EXPECT_EQ(table_.Append("long", Ids{1}, {}).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(table_.Create({.id = "lost"}).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(table_.Fork({"long", "fork", {}}).status().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(table_.Delete("lost").ok());
  Create("lost");
  table_.Forget("long");
  EXPECT_EQ(table_.Find("long").status().code(), Code::kNotFound);
}

TEST_F(SessionRestoreTest, WhatIsOverTheBoundsIsRestoredAndNewOnesWait) {
  table_.Continue(100, nanoseconds(0));
  for (uint64_t i = 0; i < 7; ++i) {  // of five
    Session session;
    session.id = "s" + std::to_string(i);
    session.serial = 1 + i;
    session.tokens = Ids(60, 1);  // of 250 together
    session.token_digest = ExtendTokenDigest(kNoTokensDigest, session.tokens);
    ASSERT_TRUE(table_.Restore(Stored(session)).ok()) << i;
    table_.CheckInvariants();
  }
  EXPECT_EQ(table_.total_token_count(), 420u);
  EXPECT_EQ(table_.Append("s0", Ids{1}, {}).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(table_.Create({.id = "t"}).status().code(), Code::kResourceExhausted);
  ASSERT_TRUE(table_.Append("s0", Ids{}, {}).ok());
  for (const char* id : {"s1", "s2", "s3"}) ASSERT_TRUE(table_.Delete(id).ok());
  EXPECT_EQ(table_.Append("s0", Ids(11, 1), {}).status().code(), Code::kResourceExhausted);
  ASSERT_TRUE(table_.Append("s0", Ids(10, 1), {}).ok());
  Create("t");
}

}  // namespace
}  // namespace cairn
