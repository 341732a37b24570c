// The engine with a journal: sessions outlive it, nothing is said before it is durable, and what
// the disk does not take is taken back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <semaphore>
#include <thread>

#include "engine/engine.h"
#include "tests/engine_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/hooked_engine.h"
#include "tests/fakes/memory_store.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Ids = std::vector<uint32_t>;

// A stream's reader on other threads.
class WaitingSink final : public TokenSink {
 public:
  explicit WaitingSink(size_t full_at = SIZE_MAX) : full_at_(full_at) {}
  bool OnTokens(StreamUpdate update) override {
    const std::lock_guard lock(mutex_);
    tokens_.insert(tokens_.end(), update.token_ids.begin(), update.token_ids.end());
    return tokens_.size() < full_at_;
  }
  void OnEnd(StreamEnd end) override { end_.set_value(std::move(end)); }
  StreamEnd Wait() { return end_.get_future().get(); }
  Ids tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  const size_t full_at_;
  mutable std::mutex mutex_;
  Ids tokens_;
  std::promise<StreamEnd> end_;
};

class EngineDurableTest : public testing::Test {
 protected:
  EngineDurableTest() {
    WriteTinyModel(path_);
    Start();
  }

  // A new server on what the one before has left; that one has been killed, or has stopped.
  void Start() {
    auto store = std::make_unique<MemoryStore>();
    if (engine_) {
      MemoryStore::Map left = store_->Everything();
      engine_.reset();
      store->Damage([&](MemoryStore::Map& map) { map = std::move(left); });
    }
    store_ = store.get();
    HookedEngineOptions options{.model_path = path_};
    options.config.context_length = 256;
    options.config.paused_max = watchdog_max_ / 2;
    options.config.watchdog_max = watchdog_max_;
    options.hooks.on_pass = [this](uint32_t) {
      if (on_pass_) on_pass_();
    };
    EngineParts parts = MakeHookedEngine(options, clock_);
    StoredSessions loaded = *LoadSessions(*store, VocabularyDigest(*parts.tokenizer), "tiny");
    parts.journal = std::make_unique<SessionJournal>(std::move(store), CommitSync::kDevice,
                                                     std::move(loaded), clock_, patience_);
    engine_ = std::make_unique<Engine>(std::move(parts), options.config, clock_);
  }

  template <class T, class F>
  Result<T> Ask(F call) {
    auto answer = std::make_shared<std::promise<Result<T>>>();
    call([answer](Result<T> result) { answer->set_value(std::move(result)); });
    return answer->get_future().get();
  }
  Result<SessionInfo> Create(const std::string& id, Ids tokens, SessionSettings settings = {}) {
    return Ask<SessionInfo>([&](Reply<SessionInfo> reply) {
      engine_->CreateSession(
          {.id = id, .settings = std::move(settings), .content = std::move(tokens)},
          std::move(reply));
    });
  }
  Result<SessionInfo> Get(const std::string& id) {
    return Ask<SessionInfo>(
        [&](Reply<SessionInfo> reply) { engine_->GetSession({id}, std::move(reply)); });
  }
  Result<AppendResult> Append(const std::string& id, Ids tokens) {
    return Ask<AppendResult>([&](Reply<AppendResult> reply) {
      engine_->AppendContent({.id = id, .content = std::move(tokens)}, std::move(reply));
    });
  }
  Result<SessionInfo> Truncate(const std::string& id, int64_t token_count) {
    return Ask<SessionInfo>([&](Reply<SessionInfo> reply) {
      engine_->TruncateSession({.id = id, .token_count = token_count}, std::move(reply));
    });
  }
  Ids Tokens(const std::string& id) {
    const auto range = Ask<TokenRange>(
        [&](Reply<TokenRange> reply) { engine_->ReadTokens(id, 0, 0, std::move(reply)); });
    return range.ok() ? range->token_ids : Ids{404};
  }
  Ids Stored(const std::string& id) {
    const auto stored = LoadSession(*store_, id);
    return stored.ok() && stored->has_value() ? (**stored).session.tokens : Ids{404};
  }
  std::shared_ptr<WaitingSink> Decode(const std::string& id, uint32_t max_tokens,
                                      size_t full_at = SIZE_MAX) {
    auto sink = std::make_shared<WaitingSink>(full_at);
    SamplingParams sampling;
    sampling.ignore_eos = true;
    last_stream_ = engine_->Decode(
        {.id = id, .max_tokens = max_tokens, .sampling = std::move(sampling)}, sink);
    return sink;
  }
  // Commits fail with `status` from now on; none is under way.
  void DiskSays(const Status& status) {
    store_->on_commit = [status](const DurableBatch&) { return status; };
  }
  // From now on each commit says that it began, and waits until it may end.
  void HoldCommits() {
    store_->on_commit = [this](const DurableBatch&) {
      commit_began_.release();
      commit_may_end_.acquire();
      return Status();
    };
  }

  ScratchFolder scratch_;
  const std::string path_ = scratch_.File("tiny.gguf");
  FakeClock clock_;
  milliseconds patience_ = std::chrono::hours(1);  // with a disk that does not answer
  milliseconds watchdog_max_ = seconds(200);
  std::function<void()> on_pass_;  // set it while nothing runs
  std::atomic<int> passes_{0};
  std::counting_semaphore<> commit_began_{0};
  std::counting_semaphore<> commit_may_end_{0};
  MemoryStore* store_ = nullptr;
  StreamId last_stream_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineDurableTest, ASessionIsWhatItWas) {
  SessionSettings settings;
  settings.display_name = "A talk";
  settings.priority = 70;
  settings.annotations = {{"team", "blue"}};
  settings.expiration = std::chrono::nanoseconds(seconds(100));
  settings.sampling.temperature = 0.8f;
  const SessionInfo made = *Create("a", RandomTokens(1, 40), settings);
  clock_.Advance(seconds(30));
  const auto sink = Decode("a", 12);
  const StreamEnd end = sink->Wait();
  ASSERT_TRUE(end.status.ok());
  const Ids tokens = Tokens("a");
  const SessionInfo before = *Get("a");
  clock_.JumpWall(std::chrono::hours(24 * 365));  // so long there is no server
  Start();
  const SessionInfo after = *Get("a");
  EXPECT_EQ(Tokens("a"), tokens);
  EXPECT_EQ(after.settings.display_name, "A talk");
  EXPECT_EQ(after.settings.priority, 70);
  EXPECT_EQ(after.settings.annotations, settings.annotations);
  EXPECT_EQ(after.settings.expiration, settings.expiration);
  EXPECT_EQ(after.settings.sampling, settings.sampling);
  EXPECT_EQ(after.create_time, made.create_time);
  EXPECT_EQ(after.update_time, before.update_time);
  EXPECT_EQ(after.etag, before.etag);
  EXPECT_EQ(after.expire_time, clock_.WallNow() + seconds(100)) << "its time to live is as it was";
  // The seed too: the same context gives the same tokens.
  ASSERT_TRUE(Ask<SessionInfo>([&](Reply<SessionInfo> reply) {
                engine_->TruncateSession({"a", 40}, std::move(reply));
              }).ok());
  const auto again = Decode("a", 12);
  EXPECT_EQ(again->Wait().usage.seed, end.usage.seed);
  EXPECT_EQ(again->tokens(), sink->tokens());
}

TEST_F(EngineDurableTest, WhatIsDeletedOrExpiredStaysAway) {
  SessionSettings settings;
  settings.expiration = clock_.WallNow() + seconds(10);
  for (const char* id : {"stays", "goes"}) ASSERT_TRUE(Create(id, {5}).ok());
  ASSERT_TRUE(Create("expires", {5}, settings).ok());
  ASSERT_TRUE(Ask<Done>([&](Reply<Done> reply) {
                engine_->DeleteSession({"goes"}, std::move(reply));
              }).ok());
  clock_.JumpWall(seconds(11));
  Start();
  EXPECT_EQ(Get("goes").status().code(), Code::kNotFound);
  EXPECT_EQ(Get("expires").status().code(), Code::kNotFound);
  EXPECT_EQ(Stored("expires"), Ids{404});
  EXPECT_EQ(Tokens("stays"), Ids{5});
}

// A commit that takes long holds back the tokens that it makes durable, and everything after them.
TEST_F(EngineDurableTest, NothingIsSaidBeforeItIsDurable) {
  ASSERT_TRUE(Create("a", RandomTokens(1, 20)).ok());
  HoldCommits();
  const auto sink = Decode("a", 3);
  commit_began_.acquire();
  std::promise<Result<SessionInfo>> answer;
  engine_->GetSession({"a"}, [&](Result<SessionInfo> info) { answer.set_value(std::move(info)); });
  auto seen = answer.get_future();
  EXPECT_EQ(seen.wait_for(milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(sink->tokens(), Ids());
  commit_may_end_.release(100);
  EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_EQ(sink->tokens().size(), 3u);
  EXPECT_GT((*seen.get()).token_count, 20);
}

TEST_F(EngineDurableTest, WhatTheDiskDoesNotTakeIsTakenBack) {
  ASSERT_TRUE(Create("a", {5, 6}).ok());
  ASSERT_TRUE(Create("b", {7}).ok());
  DiskSays(ResourceExhausted("the disk is full").WithRetryAfter(milliseconds(500)));
  const Status refused = Append("a", {8}).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("could not be made durable: the disk is full"));
  EXPECT_EQ(refused.retry_after(), milliseconds(500));
  EXPECT_EQ(Tokens("a"), (Ids{5, 6}));
  EXPECT_FALSE(Create("c", {9}).ok());
  EXPECT_EQ(Get("c").status().code(), Code::kNotFound);
  EXPECT_FALSE(
      Ask<Done>([&](Reply<Done> reply) { engine_->DeleteSession({"b"}, std::move(reply)); }).ok());
  EXPECT_EQ(Tokens("b"), Ids{7}) << "others can be read, and a deletion is taken back";
  const auto sink = Decode("b", 5);
  const StreamEnd end = sink->Wait();
  EXPECT_EQ(end.status.code(), Code::kResourceExhausted);
  EXPECT_EQ(sink->tokens(), Ids());
  EXPECT_EQ(Tokens("b"), Ids{7});
  auto one_shot = std::make_shared<WaitingSink>();
  engine_->Generate({.content = Ids{5}, .max_tokens = 4, .sampling = Greedy()}, one_shot);
  EXPECT_TRUE(one_shot->Wait().status.ok()) << "it is of no session";
  EXPECT_EQ(one_shot->tokens().size(), 4u);
  EXPECT_TRUE(engine_->Healthy());
  const auto stats =
      Ask<EngineStats>([&](Reply<EngineStats> reply) { engine_->GetStats(std::move(reply)); });
  EXPECT_EQ(stats->session_commits, 2);
  EXPECT_GE(stats->session_commits_failed, 4);

  store_->on_commit = nullptr;
  EXPECT_TRUE(Append("a", {8}).ok());
  EXPECT_TRUE(Decode("b", 5)->Wait().status.ok());
  EXPECT_EQ(Stored("a"), (Ids{5, 6, 8}));
  EXPECT_EQ(Stored("b"), Tokens("b"));
}

// A Decode's content and its first token are one change: a crash or a failure before it leaves the
// session as it was, so that asking again is right.
TEST_F(EngineDurableTest, ADecodeHasHappenedWithItsFirstTokenOrNot) {
  const Ids before = RandomTokens(1, 20), content = RandomTokens(2, 30);
  ASSERT_TRUE(Create("a", before).ok());
  const auto decode = [&] {
    auto sink = std::make_shared<WaitingSink>();
    last_stream_ = engine_->Decode({.id = "a",
                                    .content = content,
                                    .expected_token_count = 20,
                                    .max_tokens = 100,
                                    .sampling = Greedy()},
                                   sink);
    return sink;
  };
  for (int taken = 0; taken < 3; ++taken) {
    int left = taken;
    store_->on_commit = [&left](const DurableBatch&) {
      return left-- > 0 ? Status() : Unavailable("the cable is out");
    };
    Ids at_pass;
    on_pass_ = [&] {
      if (at_pass.empty()) at_pass = Stored("a");
    };
    const auto sink = decode();
    EXPECT_EQ(sink->Wait().status.code(), Code::kUnavailable);
    EXPECT_EQ(at_pass, before) << "what a crash would have left";
    const Ids told = sink->tokens();
    EXPECT_EQ(told.empty(), taken == 0);
    Ids expected = before;
    if (taken > 0) expected.insert(expected.end(), content.begin(), content.end());
    expected.insert(expected.end(), told.begin(), told.end());
    EXPECT_EQ(Tokens("a"), expected);
    on_pass_ = nullptr;
    store_->on_commit = nullptr;
    Start();
    EXPECT_EQ(Tokens("a"), expected);
    ASSERT_TRUE(Truncate("a", 20).ok());
  }
  EXPECT_TRUE(decode()->Wait().status.ok());
}

// The disk fails in the middle of two streams. What they were told is there, nothing else is.
TEST_F(EngineDurableTest, StreamsEndWhereTheDiskDid) {
  ASSERT_TRUE(Create("a", RandomTokens(1, 20)).ok());
  ASSERT_TRUE(Create("b", RandomTokens(2, 20)).ok());
  store_->on_commit = [left = 10](const DurableBatch&) mutable {
    return left-- > 0 ? Status() : Unavailable("the cable is out");
  };
  const auto a = Decode("a", 100), b = Decode("b", 100);
  for (const auto& [id, sink] : {std::pair("a", a), std::pair("b", b)}) {
    const StreamEnd end = sink->Wait();
    EXPECT_EQ(end.status.code(), Code::kUnavailable);
    Ids tokens = Tokens(id);
    EXPECT_EQ(tokens, Stored(id));
    tokens.erase(tokens.begin(), tokens.begin() + 20);
    EXPECT_EQ(tokens, sink->tokens());
    EXPECT_LT(tokens.size(), 100u);
  }
}

// Sinks are told on the journal's thread; the stream stops all the same, and goes on.
TEST_F(EngineDurableTest, AFullSinkPausesItsStream) {
  ASSERT_TRUE(Create("a", RandomTokens(1, 20)).ok());
  on_pass_ = [this] { ++passes_; };
  const auto sink = Decode("a", 100, 5);
  const auto state = [&] { return *Get("a"); };
  // Until it is paused: then its tokens stand still from one look to the next.
  int64_t count = 0;
  for (int still = 0; still < 3;) {
    const int64_t now = state().token_count;
    still = now == count && now >= 25 ? still + 1 : 0;
    count = now;
  }
  EXPECT_LT(count, 20 + 5 + 2 * static_cast<int64_t>(SessionJournal::kRoundsMax) + 2);
  const int before = passes_;
  engine_->ResumeStream(last_stream_);
  while (state().token_count == count) {
  }
  EXPECT_GT(passes_, before);
  engine_->CancelStream(last_stream_, Status(Code::kCancelled, "enough"));
  EXPECT_EQ(sink->Wait().status.code(), Code::kCancelled);
}

// What would have to be durable waits or is refused, and everything else goes on.
TEST_F(EngineDurableTest, ADiskThatDoesNotAnswerHoldsUpNobodyElse) {
  patience_ = milliseconds(0);
  watchdog_max_ = milliseconds(40);
  Start();
  ASSERT_TRUE(Create("a", RandomTokens(1, 20)).ok());
  ASSERT_TRUE(Create("b", {7, 8}).ok());
  HoldCommits();
  testing::internal::CaptureStderr();
  const auto stream = Decode("a", 100);
  const StreamId stream_id = last_stream_;
  commit_began_.acquire();
  const auto generate = [&](uint32_t count) {
    auto sink = std::make_shared<WaitingSink>();
    SamplingParams sampling;
    sampling.ignore_eos = true;
    engine_->Generate({.content = Ids{5}, .max_tokens = count, .sampling = sampling}, sink);
    return sink;
  };
  // So many steps make more rounds than may wait.
  EXPECT_TRUE(generate(100)->Wait().status.ok());
  EXPECT_EQ(stream->tokens(), Ids());
  EXPECT_TRUE(Ask<EngineStats>([&](Reply<EngineStats> reply) {
                engine_->GetStats(std::move(reply));
              }).ok());
  EXPECT_EQ(Tokens("b"), (Ids{7, 8})) << "nothing of it waits for the disk";
  EXPECT_EQ(Get("a").status().code(), Code::kUnavailable);
  EXPECT_EQ(Ask<SessionPage>([&](Reply<SessionPage> reply) {
              engine_->ListSessions({.page_size = 10}, std::move(reply));
            })->sessions.size(),
            2u);
  const Status refused = Append("b", {9}).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("the disk of the sessions has not answered for 0 s"));
  EXPECT_TRUE(refused.retry_after().has_value());
  EXPECT_EQ(Create("c", {9}).status().code(), Code::kUnavailable);
  EXPECT_EQ(Decode("b", 5)->Wait().status.code(), Code::kUnavailable);
  engine_->CancelStream(stream_id, Status(Code::kCancelled, "enough"));
  EXPECT_TRUE(generate(3)->Wait().status.ok());

  commit_may_end_.release(1000);
  EXPECT_EQ(stream->Wait().status.code(), Code::kCancelled);
  Ids tokens = stream->tokens();
  EXPECT_GT(tokens.size(), 0u) << "those that had been computed are durable, and told";
  while (Append("b", {9}).status().code() == Code::kUnavailable) {
  }
  EXPECT_EQ(Tokens("b"), (Ids{7, 8, 9}));
  EXPECT_EQ(Stored("b"), (Ids{7, 8, 9}));
  Ids stored = Stored("a");
  stored.erase(stored.begin(), stored.begin() + 20);
  EXPECT_EQ(stored, tokens);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("sessions: the disk does not answer;"));
  EXPECT_THAT(said, HasSubstr("sessions: the disk answers again;"));
}

TEST_F(EngineDurableTest, WhenOnlySessionsWaitForTheDiskTheWatchdogSaysSo) {
  patience_ = milliseconds(0);
  watchdog_max_ = milliseconds(40);
  Start();
  ASSERT_TRUE(Create("a", RandomTokens(1, 20)).ok());
  HoldCommits();
  testing::internal::CaptureStderr();
  const auto stream = Decode("a", 100);
  commit_began_.acquire();
  const auto give_up = std::chrono::steady_clock::now() + seconds(60);
  while (engine_->Healthy() && std::chrono::steady_clock::now() < give_up) {
    clock_.Advance(seconds(2));
    std::this_thread::yield();
  }
  EXPECT_FALSE(engine_->Healthy());
  commit_may_end_.release(1000);
  EXPECT_TRUE(stream->Wait().status.ok());
  EXPECT_EQ(stream->tokens().size(), 100u);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("watchdog: the disk has not taken what sessions wait for, for "));
}

TEST_F(EngineDurableTest, AtTheEndEverythingIsSaid) {
  ASSERT_TRUE(Create("a", RandomTokens(1, 20)).ok());
  const auto sink = Decode("a", 200);
  std::promise<void> drained;
  engine_->Drain([&] { drained.set_value(); });
  EXPECT_EQ(Append("a", {5}).status().code(), Code::kUnavailable);
  engine_->EndStreams();
  drained.get_future().get();
  EXPECT_EQ(sink->Wait().status.code(), Code::kUnavailable);
  const Ids told = sink->tokens();
  Start();
  Ids tokens = Tokens("a");
  tokens.erase(tokens.begin(), tokens.begin() + 20);
  EXPECT_EQ(tokens, told);
}

// The disk loses everything while the server runs; what is in memory is written again.
TEST_F(EngineDurableTest, WhatTheDiskHasLostIsWrittenAgain) {
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(Create(id, RandomTokens(1, 200)).ok());
  SessionSettings settings;
  settings.priority = 70;
  ASSERT_TRUE(Create("d", {}, settings).ok());
  store_->Damage([](MemoryStore::Map& map) { map.clear(); });
  store_->lost = true;
  ASSERT_TRUE(Append("b", {8}).ok());  // the commit that finds it
  ASSERT_TRUE(Append("c", {9}).ok());
  ASSERT_TRUE(Get("a").ok());
  const Ids a = Tokens("a"), b = Tokens("b"), c = Tokens("c");
  Start();
  EXPECT_EQ(Tokens("a"), a);
  EXPECT_EQ(Tokens("b"), b);
  EXPECT_EQ(Tokens("c"), c);
  EXPECT_EQ(Get("d")->settings.priority, 70);
  EXPECT_EQ(a.size(), 200u);
  EXPECT_EQ(c.back(), 9u);
}

TEST_F(EngineDurableTest, DamagedSessionsAreSetAside) {
  ASSERT_TRUE(Create("good", {5}).ok());
  ASSERT_TRUE(Create("bad", {6}).ok());
  const auto good = store_->Everything();
  store_->Damage([](MemoryStore::Map& map) { map.lower_bound("sbad")->second[9] ^= 1; });
  testing::internal::CaptureStderr();
  Start();
  EXPECT_EQ(Tokens("good"), Ids{5});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("session 'bad' is set aside: its settings record does not match"));
  EXPECT_EQ(Get("bad").status().code(), Code::kDataLoss);
  EXPECT_EQ(Append("bad", {7}).status().code(), Code::kDataLoss);
  EXPECT_EQ(Decode("bad", 5)->Wait().status.code(), Code::kDataLoss);
  EXPECT_EQ(Create("bad", {8}).status().code(), Code::kAlreadyExists);
  ASSERT_TRUE(Ask<Done>([&](Reply<Done> reply) {
                engine_->DeleteSession({"bad"}, std::move(reply));
              }).ok());
  ASSERT_TRUE(Create("bad", {8}).ok());
  Start();
  EXPECT_EQ(Tokens("bad"), Ids{8});
  EXPECT_EQ(store_->Everything().size(), good.size()) << "nothing of the damaged one is left";
}

}  // namespace
}  // namespace cairn
