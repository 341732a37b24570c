// Clients on threads of their own, a disk that fails at random, and servers that follow each other:
// what a client was told is what every later server has.
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "tests/engine_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/hooked_engine.h"
#include "tests/fakes/memory_store.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

using Ids = std::vector<uint32_t>;

constexpr uint32_t kContextLength = 256;
constexpr int kClients = 3;

constexpr int kServers = kSanitized ? 6 : 20;

// A stream's reader, which is full now and then.
class SlowSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate update) override {
    tokens_.insert(tokens_.end(), update.token_ids.begin(), update.token_ids.end());
    const bool full = tokens_.size() % 7 == 0;
    if (full) full_.store(true);
    return !full;
  }
  void OnEnd(StreamEnd end) override { end_.set_value(std::move(end.status)); }

  // Until the end: reads, which makes room.
  Status Wait(Engine& engine, StreamId id) {
    std::future<Status> end = end_.get_future();
    while (end.wait_for(std::chrono::microseconds(200)) != std::future_status::ready) {
      if (full_.exchange(false)) engine.ResumeStream(id);
    }
    return end.get();
  }
  const Ids& tokens() const { return tokens_; }  // after the end

 private:
  Ids tokens_;
  std::atomic<bool> full_{false};
  std::promise<Status> end_;
};

// A client and what it knows of its sessions, which are nobody else's.
class DurableClient {
 public:
  DurableClient(uint64_t seed, int number) : rng_(seed), prefix_("c" + std::to_string(number)) {}

  void Work(Engine& engine, int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) Act(engine);
  }
  // The table of the server has what this client knows, and so has its store.
  void Check(Engine& engine, const DurableStore& store) {
    for (int i = 0; i < kSessions; ++i) {
      const std::string id = prefix_ + "-" + std::to_string(i);
      const auto known = sessions_.find(id);
      const auto stored = LoadSession(store, id);
      ASSERT_TRUE(stored.ok());
      ASSERT_EQ(stored->has_value(), known != sessions_.end()) << id;
      if (known == sessions_.end()) continue;
      ASSERT_TRUE((**stored).damage.ok()) << (**stored).damage.ToString();
      ASSERT_EQ((**stored).session.tokens, known->second) << id;
      const auto range = Ask<TokenRange>(
          [&](Reply<TokenRange> reply) { engine.ReadTokens(id, 0, 0, std::move(reply)); });
      ASSERT_TRUE(range.ok()) << range.status().ToString();
      ASSERT_EQ(range->token_ids, known->second) << id;
    }
  }

  int64_t refused = 0;  // because of the disk
  int64_t done = 0;

 private:
  static constexpr int kSessions = 4;

  template <class T, class F>
  static Result<T> Ask(F call) {
    auto answer = std::make_shared<std::promise<Result<T>>>();
    call([answer](Result<T> result) { answer->set_value(std::move(result)); });
    return answer->get_future().get();
  }

  // Whether it was done; if not, the disk was at fault.
  bool Done(const Status& status) {
    ++(status.ok() ? done : refused);
    EXPECT_TRUE(status.ok() || status.code() == Code::kUnavailable) << status.ToString();
    return status.ok();
  }

  void Act(Engine& engine) {
    const std::string id = prefix_ + "-" + std::to_string(rng_.Below(kSessions));
    const auto known = sessions_.find(id);
    if (known == sessions_.end()) return Create(engine, id);
    Ids& tokens = known->second;
    if (tokens.size() > 150 || rng_.Chance(0.2)) return Truncate(engine, id, tokens);
    if (rng_.Chance(0.1)) return Delete(engine, id);
    if (rng_.Chance(0.1)) return Fork(engine, id, tokens);
    if (rng_.Chance(0.5)) return Append(engine, id, tokens);
    Decode(engine, id, tokens);
  }

  void Create(Engine& engine, const std::string& id) {
    const Ids tokens = RandomTokens(rng_.Next(), 1 + rng_.Below(60));
    const auto made = Ask<SessionInfo>([&](Reply<SessionInfo> reply) {
      engine.CreateSession({.id = id, .content = tokens}, std::move(reply));
    });
    if (Done(made.status())) sessions_[id] = tokens;
  }
  void Append(Engine& engine, const std::string& id, Ids& tokens) {
    const Ids more = RandomTokens(rng_.Next(), 1 + rng_.Below(30));
    const auto appended = Ask<AppendResult>([&](Reply<AppendResult> reply) {
      engine.AppendContent({.id = id, .content = more}, std::move(reply));
    });
    if (!Done(appended.status())) return;
    tokens.insert(tokens.end(), more.begin(), more.end());
    EXPECT_EQ(appended->token_count, static_cast<int64_t>(tokens.size()));
  }
  void Truncate(Engine& engine, const std::string& id, Ids& tokens) {
    const size_t count = 1 + rng_.Below(tokens.size());
    const auto cut = Ask<SessionInfo>([&](Reply<SessionInfo> reply) {
      engine.TruncateSession({id, static_cast<int64_t>(count)}, std::move(reply));
    });
    if (Done(cut.status())) tokens.resize(count);
  }
  void Delete(Engine& engine, const std::string& id) {
    const auto gone = Ask<cairn::Done>(
        [&](Reply<cairn::Done> reply) { engine.DeleteSession({id}, std::move(reply)); });
    if (Done(gone.status())) sessions_.erase(id);
  }
  void Fork(Engine& engine, const std::string& id, const Ids& tokens) {
    const std::string to = prefix_ + "-" + std::to_string(rng_.Below(kSessions));
    if (sessions_.contains(to)) return;
    const auto forked = Ask<SessionInfo>([&](Reply<SessionInfo> reply) {
      engine.ForkSession({.id = id, .new_id = to, .token_count = {}}, std::move(reply));
    });
    if (Done(forked.status())) sessions_[to] = Ids(tokens);
  }
  void Decode(Engine& engine, const std::string& id, Ids& tokens) {
    SamplingParams sampling;
    sampling.ignore_eos = true;
    const auto sink = std::make_shared<SlowSink>();
    const StreamId stream = engine.Decode(
        {.id = id, .max_tokens = static_cast<uint32_t>(1 + rng_.Below(40)), .sampling = sampling},
        sink);
    (void)Done(sink->Wait(engine, stream));  // failed or not, what it was told counts
    tokens.insert(tokens.end(), sink->tokens().begin(), sink->tokens().end());
  }

  Rng rng_;
  const std::string prefix_;
  std::map<std::string, Ids> sessions_;
};

class EngineDurableModel : public testing::Test {
 protected:
  // An engine on what `left` has.
  std::unique_ptr<Engine> Start(MemoryStore::Map left, const std::string& model_path) {
    auto store = std::make_unique<MemoryStore>();
    store->Damage([&](MemoryStore::Map& map) { map = std::move(left); });
    HookedEngineOptions options{.model_path = model_path};
    options.config.context_length = kContextLength;
    EngineParts parts = MakeHookedEngine(options, clock_);
    StoredSessions loaded = *LoadSessions(*store, VocabularyDigest(*parts.tokenizer), "tiny");
    EXPECT_EQ(loaded.garbage_count, 0u) << "nothing leaks";
    store_ = store.get();
    // A spell of failures now and then. Only the journal's thread comes here.
    store_->on_commit = [this](const DurableBatch&) {
      if (bad_commits_ == 0 && disk_.Chance(0.02)) bad_commits_ = 1 + disk_.Below(6);
      if (bad_commits_ == 0) return Status();
      --bad_commits_;
      return Unavailable("a bad day");
    };
    parts.journal = std::make_unique<SessionJournal>(std::move(store), CommitSync::kDevice,
                                                     std::move(loaded), clock_);
    return std::make_unique<Engine>(std::move(parts), options.config, clock_);
  }

  FakeClock clock_;
  Rng disk_{99};
  uint64_t bad_commits_ = 0;
  MemoryStore* store_ = nullptr;
};

TEST_F(EngineDurableModel, WhatClientsWereToldIsWhatThereIs) {
  const ScratchFolder scratch;
  const std::string model_path = scratch.File("tiny.gguf");
  WriteTinyModel(model_path);
  std::vector<std::unique_ptr<DurableClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<DurableClient>(1000 + i, i));
  }
  MemoryStore::Map left;
  for (int server = 0; server < kServers && !HasFailure(); ++server) {
    SCOPED_TRACE(server);
    const std::unique_ptr<Engine> engine = Start(std::move(left), model_path);
    for (const auto& client : clients) client->Check(*engine, *store_);
    std::vector<std::thread> threads;
    for (const auto& client : clients) {
      threads.emplace_back([&] { client->Work(*engine, 60); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& client : clients) client->Check(*engine, *store_);
    EXPECT_TRUE(engine->Healthy());
    store_->Die();  // with whatever the journal may still be about
    left = store_->Everything();
  }
  int64_t refused = 0, done = 0;
  for (const auto& client : clients) {
    refused += client->refused;
    done += client->done;
  }
  EXPECT_GT(refused, 5 * kServers / 2);
  EXPECT_GT(done, 100 * kServers);
}

}  // namespace
}  // namespace cairn
