// The journal between a table of sessions and a store: what is said, when, and what a crash leaves.
#include "engine/session_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <semaphore>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/memory_store.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Ids = std::vector<uint32_t>;

constexpr uint32_t kVocabularySize = 1000;
constexpr Digest kVocabulary{1, 2};

EngineConfig SmallConfig() {
  EngineConfig config;
  config.context_length = 5000;
  config.session_count_max = 6;
  return config;
}

// A table, its journal and its store, as the engine has them.
class World {
 public:
  explicit World(std::unique_ptr<MemoryStore> store, CommitSync sync = CommitSync::kDevice)
      : memory_(store.get()) {
    StoredSessions loaded = *LoadSessions(*store, kVocabulary, "tiny");
    journal_ = std::make_unique<SessionJournal>(std::move(store), sync, std::move(loaded), clock_,
                                                std::chrono::hours(1));
    table_ =
        std::make_unique<SessionTable>(config_, kVocabularySize, clock_, 1, &journal_->changes());
    StoredSessions stored = journal_->TakeLoaded();
    table_->Continue(stored.ledger.next_serial, stored.ledger.lived);
    for (StoredSession& session : stored.sessions) {
      EXPECT_TRUE(table_->Restore(std::move(session)).ok());
    }
  }

  SessionTable& table() { return *table_; }
  SessionJournal& journal() { return *journal_; }
  MemoryStore& store() { return *memory_; }

  void Append(const std::string& id, const Ids& tokens) {
    ASSERT_TRUE(table_->Append(id, tokens, std::nullopt).ok());
  }
  // Notes `line` when it is said, with the code of a failure.
  void Hold(const std::string& subject, const std::string& line) {
    journal_->Hold(subject, [this, line](const Status& made) {
      said_.push_back(made.ok() ? line : line + " " + CodeName(made.code()));
    });
  }
  // Submits, and waits until it has been said.
  void Round() {
    std::promise<void> done;
    journal_->Hold(SessionJournal::kNoSession, [&](const Status&) { done.set_value(); });
    journal_->Submit(*table_);
    done.get_future().get();
  }
  std::vector<std::string> TakeSaid() { return std::exchange(said_, {}); }
  Ids Stored(const std::string& id) {
    const auto stored = LoadSession(*memory_, id);
    return stored.ok() && stored->has_value() ? (**stored).session.tokens : Ids{404};
  }
  // What a process leaves that has died: what it wrote is there, what it would write is not. With
  // the power goes what was not synced, all but a beginning of so many batches.
  static MemoryStore::Map Crash(std::unique_ptr<World> world, std::optional<size_t> power_left) {
    world->memory_->Die();
    if (power_left) world->memory_->LosePower(*power_left);
    MemoryStore::Map left = world->memory_->Everything();
    world->journal_->Close(*world->table_);
    return left;
  }

 private:
  const EngineConfig config_ = SmallConfig();
  FakeClock clock_;
  MemoryStore* memory_;
  std::unique_ptr<SessionJournal> journal_;
  std::unique_ptr<SessionTable> table_;
  std::vector<std::string> said_;  // by the journal's thread; read between rounds
};

class SessionJournalTest : public testing::Test {
 protected:
  void TearDown() override { world_.journal().Close(world_.table()); }
  World world_{std::make_unique<MemoryStore>()};
};

TEST_F(SessionJournalTest, WhatIsSaidIsDurable) {
  ASSERT_TRUE(world_.table().Create({.id = "a"}).ok());
  world_.Append("a", {1, 2});
  Ids stored;
  world_.journal().Hold("a", [&](const Status& made) {
    EXPECT_TRUE(made.ok());
    stored = world_.Stored("a");
  });
  world_.Round();
  EXPECT_EQ(stored, (Ids{1, 2}));
}

TEST_F(SessionJournalTest, RoundsThatChangeNothingAreNotWritten) {
  ASSERT_TRUE(world_.table().Create({.id = "a"}).ok());
  world_.Round();
  const size_t commits = world_.store().commit_count();
  world_.Hold("a", "looked at");
  world_.Round();
  world_.journal().Submit(world_.table());
  EXPECT_THAT(world_.TakeSaid(), ElementsAre("looked at"));
  EXPECT_EQ(world_.store().commit_count(), commits);
}

// While one batch is being written, rounds wait; then they are written together, in one go.
TEST_F(SessionJournalTest, RoundsShareASync) {
  ASSERT_TRUE(world_.table().Create({.id = "a"}).ok());
  world_.Round();
  std::binary_semaphore begun(0), may_end(0);
  world_.store().on_commit = [&](const DurableBatch&) {
    begun.release();
    may_end.acquire();
    return Status();
  };
  const size_t commits = world_.store().commit_count();
  world_.Append("a", {1});
  world_.Hold("a", "1");
  world_.journal().Submit(world_.table());
  begun.acquire();
  for (uint32_t i = 2; i <= SessionJournal::kRoundsMax + 1; ++i) {
    world_.Append("a", {i});
    world_.Hold("a", std::to_string(i));
    world_.journal().Submit(world_.table());  // does not wait
  }
  EXPECT_THAT(world_.TakeSaid(), IsEmpty()) << "nothing of it is durable";
  // The next one waits, until there is room.
  world_.Append("a", {100});
  auto waits = std::async(std::launch::async, [&] { world_.journal().Submit(world_.table()); });
  may_end.release();
  begun.acquire();
  may_end.release();
  waits.get();
  begun.acquire();
  may_end.release();
  world_.Round();
  world_.store().on_commit = nullptr;
  EXPECT_EQ(world_.store().commit_count(), commits + 3);
  EXPECT_THAT(world_.TakeSaid(), ElementsAre("1", "2", "3", "4", "5", "6", "7", "8", "9"));
  EXPECT_EQ(world_.Stored("a"), (Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 100}));
}

TEST_F(SessionJournalTest, AFailureIsToldToThoseItConcerns) {
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(world_.table().Create({.id = id}).ok());
  world_.Round();
  world_.store().on_commit = [](const DurableBatch&) {
    return ResourceExhausted("the disk is full").WithRetryAfter(std::chrono::milliseconds(5));
  };
  world_.Append("a", {1});
  world_.Hold("a", "a appended");
  world_.Hold("b", "b looked at");
  world_.Hold(SessionJournal::kNoSession, "statistics");
  world_.Hold(SessionJournal::kAnySession, "list");
  world_.Round();
  EXPECT_TRUE(world_.journal().failed());
  EXPECT_THAT(world_.TakeSaid(), ElementsAre("a appended RESOURCE_EXHAUSTED", "b looked at",
                                             "statistics", "list RESOURCE_EXHAUSTED"));
  // Until the engine has seen it, nothing is written: it may build on what was not.
  world_.store().on_commit = nullptr;
  const MemoryStore::Map before = world_.store().Everything();
  world_.Append("b", {2});
  world_.Hold("b", "b appended");
  world_.Hold("a", "a looked at");
  world_.Hold("c", "c looked at");
  world_.Round();
  EXPECT_EQ(world_.store().Everything(), before);
  EXPECT_THAT(world_.TakeSaid(), ElementsAre("b appended RESOURCE_EXHAUSTED",
                                             "a looked at RESOURCE_EXHAUSTED", "c looked at"));

  const auto failure = world_.journal().TakeFailure(world_.table());
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->sessions, ElementsAre("a", "b"));
  EXPECT_EQ(failure->why.message(), "the change could not be made durable: the disk is full");
  EXPECT_EQ(failure->why.retry_after(), std::chrono::milliseconds(5));
  EXPECT_FALSE(world_.journal().failed());
  EXPECT_EQ(world_.journal().counts().failed_commits, 2u);
  for (const char* id : {"a", "b"}) {
    world_.table().Forget(id);
    ASSERT_TRUE(world_.table().Restore(**LoadSession(world_.store(), id)).ok());
  }
  world_.Append("a", {3});
  world_.Hold("a", "a appended");
  world_.Round();
  EXPECT_THAT(world_.TakeSaid(), ElementsAre("a appended"));
  EXPECT_EQ(world_.Stored("a"), (Ids{3}));
  EXPECT_EQ(world_.Stored("b"), (Ids{}));
}

class NotingSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate update) override {
    tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
    return tokens.size() % 2 != 0;
  }
  void OnEnd(StreamEnd stream_end) override {
    EXPECT_FALSE(end);
    end = std::move(stream_end);
  }
  Ids tokens;
  std::optional<StreamEnd> end;
};

TEST_F(SessionJournalTest, StreamsHearOfTokensThatAreDurableOnly) {
  ASSERT_TRUE(world_.table().Create({.id = "a"}).ok());
  const auto sink = std::make_shared<NotingSink>();
  const auto deliver = [&](uint32_t token) {
    world_.Append("a", {token});
    StreamUpdate update{.token_ids = {token}};
    world_.journal().Deliver({SequenceId(4), "a", sink, std::move(update), std::nullopt});
  };
  deliver(1);
  world_.Round();
  EXPECT_THAT(world_.journal().TakeFull(), IsEmpty());
  deliver(2);
  world_.Round();
  EXPECT_THAT(world_.journal().TakeFull(), ElementsAre(SequenceId(4)));
  EXPECT_THAT(world_.journal().TakeFull(), IsEmpty());
  world_.store().on_commit = [](const DurableBatch&) { return Unavailable("no disk"); };
  deliver(3);
  StreamEnd end{.finish_reason = FinishReason::kLength, .usage = {.completion_tokens = 3}};
  world_.journal().Deliver({SequenceId(4), "a", sink, std::nullopt, std::move(end)});
  world_.Round();
  EXPECT_EQ(sink->tokens, (Ids{1, 2}));
  ASSERT_TRUE(sink->end);
  EXPECT_EQ(sink->end->status.code(), Code::kUnavailable);
  EXPECT_EQ(sink->end->finish_reason, FinishReason::kNone);
  world_.store().on_commit = nullptr;
}

// A random history of commands. After a crash at a random moment, a new server has the sessions as
// they were after one of its rounds, none before the last that was acknowledged.
class History {
 public:
  History(uint64_t seed, CommitSync sync) : rng_(seed), sync_(sync) {
    Start(std::make_unique<MemoryStore>());
  }

  void LiveAndDie() {
    Note();
    for (uint64_t round = rng_.Below(30); round > 0; --round) {
      for (uint64_t i = rng_.Below(4); i > 0; --i) Act();
      Note();
      const size_t state = states_.size() - 1;
      world_->journal().Hold("", [this, state](const Status& made) {
        if (made.ok()) acknowledged_ = state;
      });
      world_->journal().Submit(world_->table());
    }
    std::optional<size_t> power_left;
    if (rng_.Chance(0.5)) power_left = rng_.Below(20);
    // Or more, by now. What was never synced may go with the power, acknowledged or not.
    const bool may_lose = power_left && sync_ == CommitSync::kSystem;
    const size_t acknowledged = may_lose ? 0 : acknowledged_.load();
    MemoryStore::Map left = World::Crash(std::move(world_), power_left);
    auto store = std::make_unique<MemoryStore>();
    store->Damage([&](MemoryStore::Map& map) { map = std::move(left); });
    Start(std::move(store));
    Snapshot now = Look();
    const auto found = std::find(states_.begin() + acknowledged, states_.end(), now);
    EXPECT_NE(found, states_.end()) << "not what it was after any round since the last answer";
    states_.clear();
    acknowledged_ = 0;
  }

 private:
  struct Seen {
    Ids tokens;
    uint64_t serial;
    uint64_t seed;
    std::string etag;
    std::string name;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  using Snapshot = std::map<std::string, Seen>;

  void Start(std::unique_ptr<MemoryStore> store) {
    world_ = std::make_unique<World>(std::move(store), sync_);
  }
  Snapshot Look() {
    Snapshot seen;
    const SessionPage page = *world_->table().List({});
    for (const SessionInfo& info : page.sessions) {
      const Session& session = **world_->table().Find(info.id);
      seen[info.id] = {session.tokens, session.serial, session.seed, info.etag,
                       info.settings.display_name};
    }
    return seen;
  }
  void Note() { states_.push_back(Look()); }

  void Act() {
    SessionTable& table = world_->table();
    const std::string id(1, static_cast<char>('a' + rng_.Below(8)));
    const std::string other(1, static_cast<char>('a' + rng_.Below(8)));
    const Result<const Session*> found = table.Find(id);
    const int64_t count = found.ok() ? (*found)->token_count() : 0;
    switch (rng_.Below(8)) {
      case 0:
      case 1:
        (void)table.Create({.id = id});
        break;
      case 2:
        (void)table.Fork({id, other, static_cast<int64_t>(rng_.Below(count + 1))});
        break;
      case 3:
        (void)table.Truncate(id, static_cast<int64_t>(rng_.Below(count + 1)));
        break;
      case 4: {
        SessionPatch patch;
        patch.display_name = std::to_string(rng_.Below(100));
        (void)table.Update({.id = id, .patch = patch});
        break;
      }
      case 5:
        if (rng_.Chance(0.5)) (void)table.Delete(id);
        break;
      default: {
        Ids tokens(rng_.Chance(0.3) ? rng_.Below(1500) : 1, static_cast<uint32_t>(rng_.Below(999)));
        (void)table.Append(id, tokens, std::nullopt);
      }
    }
  }

  Rng rng_;
  const CommitSync sync_;
  std::unique_ptr<World> world_;
  std::vector<Snapshot> states_;
  std::atomic<size_t> acknowledged_ = 0;
};

TEST(SessionJournalModel, ACrashLeavesTheStateAfterSomeRound) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    History history(seed, seed % 2 == 0 ? CommitSync::kDevice : CommitSync::kSystem);
    for (int life = 0; life < 20; ++life) {
      history.LiveAndDie();
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace cairn
