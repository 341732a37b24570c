// The engine with its thread: many clients at once, cancels at random moments, draining, refusal.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>

#include "tests/engine_harness.h"

namespace cairn {
namespace {

// Waits for the end of a stream; counts its tokens.
class WaitingSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate update) override {
    std::lock_guard lock(mutex_);
    tokens_.insert(tokens_.end(), update.token_ids.begin(), update.token_ids.end());
    return true;
  }
  void OnEnd(StreamEnd end) override {
    {
      std::lock_guard lock(mutex_);
      end_ = std::move(end);
    }
    ended_.notify_all();
  }
  const StreamEnd& Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(ended_.wait_for(lock, std::chrono::seconds(60), [&] { return end_.has_value(); }));
    return *end_;
  }
  std::vector<uint32_t> tokens() {
    std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<uint32_t> tokens_;
  std::optional<StreamEnd> end_;
};

class EngineTest : public testing::Test {
 protected:
  void Start(EngineConfig config = {}, uint64_t device_memory_bytes = 4 << 20) {
    const std::string path = scratch_.File("tiny.gguf");
    WriteTinyModel(path);
    LoadOptions options;
    options.model_path = path;
    options.thread_count = 2;
    options.device_memory_bytes = device_memory_bytes;
    config.prefill_chunk = 64;
    options.engine = config;
    Result<LoadedEngine> loaded = LoadEngine(options, clock_, nullptr);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    engine_ = std::make_unique<Engine>(std::move(loaded->parts), loaded->config, clock_);
  }

  // The answer of a call that takes a Reply<T>.
  template <class T, class F>
  Result<T> Await(F call) {
    std::promise<Result<T>> promise;
    call([&](Result<T> result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  }
  EngineStats Stats() {
    return *Await<EngineStats>([&](Reply<EngineStats> reply) { engine_->GetStats(reply); });
  }

  GenerateRequest Request(uint64_t seed, uint32_t max_tokens) {
    GenerateRequest request;
    request.content = RandomTokens(seed, 20 + seed % 50);
    request.max_tokens = max_tokens;
    request.sampling = Greedy();
    return request;
  }

  ScratchFolder scratch_;
  SystemClock clock_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, ManyStreamsAtOnceEqualLoneOnes) {
  Start();
  constexpr int kStreams = 64;
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < kStreams; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>());
    engine_->Generate(Request(i, 40), sinks.back());
  }
  for (auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
  for (int i = 0; i < kStreams; i += 7) {
    auto lone = std::make_shared<WaitingSink>();
    engine_->Generate(Request(i, 40), lone);
    lone->Wait();
    EXPECT_EQ(lone->tokens(), sinks[i]->tokens());
  }
}

TEST_F(EngineTest, AThousandCancelsLeaveNothingHeld) {
  Start();
  Rng rng(3);
  for (int batch = 0; batch < 50; ++batch) {
    std::vector<std::shared_ptr<WaitingSink>> sinks;
    std::vector<StreamId> streams;
    for (int i = 0; i < 20; ++i) {
      sinks.push_back(std::make_shared<WaitingSink>());
      streams.push_back(engine_->Generate(Request(rng.Below(40), 500), sinks.back()));
      if (rng.Chance(0.5)) std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(300)));
    }
    for (const StreamId stream : streams) {
      engine_->CancelStream(stream, Status(Code::kCancelled, "by the test"));
    }
    for (auto& sink : sinks) {
      const Code code = sink->Wait().status.code();
      EXPECT_TRUE(code == Code::kCancelled || code == Code::kOk);
    }
  }
  const EngineStats stats = Stats();
  EXPECT_EQ(stats.tiers[0].held_blocks, 0);
  EXPECT_EQ(stats.running_count, 0);
  EXPECT_EQ(stats.waiting_count, 0);
}

TEST_F(EngineTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  Start();
  auto running = std::make_shared<WaitingSink>();
  engine_->Generate(Request(1, 200), running);
  std::promise<void> drained;
  engine_->Drain([&] { drained.set_value(); });
  auto refused = std::make_shared<WaitingSink>();
  engine_->Generate(Request(2, 5), refused);
  EXPECT_EQ(refused->Wait().status.code(), Code::kUnavailable);
  drained.get_future().get();
  EXPECT_TRUE(running->Wait().status.ok());
  EXPECT_EQ(running->tokens().size(), 200u);
}

// Counts what comes after the moment at which no stream was left.
class LateSink final : public TokenSink {
 public:
  LateSink(const std::atomic<bool>& drained, std::atomic<int>& late_count)
      : drained_(drained), late_count_(late_count) {}
  bool OnTokens(StreamUpdate) override {
    if (drained_) ++late_count_;
    return true;
  }
  void OnEnd(StreamEnd end) override { ended_.set_value(end.status.code()); }
  Code End() { return ended_.get_future().get(); }

 private:
  const std::atomic<bool>& drained_;
  std::atomic<int>& late_count_;
  std::promise<Code> ended_;
};

TEST_F(EngineTest, OnceDrainedNoStreamComes) {
  for (int round = 0; round < 20; ++round) {
    Start();
    std::atomic<bool> drained = false;
    std::atomic<int> late_count = 0;
    std::vector<std::thread> clients;
    for (uint64_t client = 0; client < 4; ++client) {
      clients.emplace_back([&, client] {
        Code code = Code::kOk;
        while (code == Code::kOk) {
          auto sink = std::make_shared<LateSink>(drained, late_count);
          engine_->Generate(Request(client, 1), sink);
          code = sink->End();
        }
        EXPECT_EQ(code, Code::kUnavailable);
      });
    }
    engine_->Drain([&] { drained = true; });
    for (std::thread& client : clients) client.join();
    engine_.reset();  // a stream that came before may still be running; then Drain is answered
    EXPECT_EQ(late_count, 0);
  }
}

TEST_F(EngineTest, StreamsEndOnDemand) {
  Start();
  auto endless = std::make_shared<WaitingSink>();
  engine_->Generate(Request(1, 1500), endless);
  std::promise<void> drained;
  engine_->Drain([&] { drained.set_value(); });
  engine_->EndStreams();
  drained.get_future().get();
  EXPECT_EQ(endless->Wait().status.code(), Code::kUnavailable);
  EXPECT_LT(endless->tokens().size(), 1500u);
}

TEST_F(EngineTest, AnIdleEngineIsHealthyHoweverStrictTheWatchdog) {
  EngineConfig config;
  config.paused_max = std::chrono::milliseconds(10);
  config.watchdog_max = std::chrono::milliseconds(20);
  Start(config);
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(engine_->Healthy());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_F(EngineTest, StoppingEndsEveryStream) {
  Start();
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 30; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>());
    engine_->Generate(Request(i, 1500), sinks.back());
  }
  engine_.reset();
  for (auto& sink : sinks) EXPECT_EQ(sink->Wait().status.code(), Code::kUnavailable);
}

TEST_F(EngineTest, AFullQueueSaysWhenToComeBack) {
  EngineConfig config;
  config.waiting_max = 2;
  config.concurrent_max = 1;
  Start(config);
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>());
    engine_->Generate(Request(i, 300), sinks.back());
  }
  int refused = 0;
  for (auto& sink : sinks) {
    const Status& status = sink->Wait().status;
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_TRUE(status.retry_after());
  }
  EXPECT_GE(refused, 1);
}

TEST_F(EngineTest, SessionsExpire) {
  Start();
  CreateSessionRequest request{.id = "short"};
  request.settings.expiration = std::chrono::nanoseconds(std::chrono::milliseconds(30));
  ASSERT_TRUE(Await<SessionInfo>([&](Reply<SessionInfo> reply) {
                engine_->CreateSession(request, reply);
              }).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  const auto gone =
      Await<SessionInfo>([&](Reply<SessionInfo> reply) { engine_->GetSession({"short"}, reply); });
  EXPECT_EQ(gone.status().code(), Code::kNotFound);
}

TEST_F(EngineTest, BadContentIsRefusedAtTheDoor) {
  Start();
  AppendRequest append{.id = "x", .content = std::string("\xff\xfe")};
  const auto refused = Await<AppendResult>(
      [&](Reply<AppendResult> reply) { engine_->AppendContent(append, reply); });
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status().field(), "content.text");
  EXPECT_EQ(engine_->Tokenize(std::vector<uint32_t>{5, 100000}).status().field(),
            "content.tokens.ids[1]");
  EXPECT_EQ(engine_->Detokenize({5, 100000}).status().field(), "ids[1]");
}

}  // namespace
}  // namespace cairn
