// The watchdog: work is waiting and no step ends. Time passes only when the test says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <semaphore>
#include <thread>

#include "engine/engine.h"
#include "tests/engine_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/hooked_engine.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class EndSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate) override { return true; }
  void OnEnd(StreamEnd end) override { ended_.set_value(std::move(end.status)); }
  Status Wait() { return ended_.get_future().get(); }

 private:
  std::promise<Status> ended_;
};

// An engine whose forward passes wait for the test.
class Watchdog : public testing::Test {
 protected:
  Watchdog() {
    const std::string path = scratch_.File("tiny.gguf");
    WriteTinyModel(path);
    HookedEngineOptions options{.model_path = path};
    options.config.context_length = 64;
    options.config.paused_max = milliseconds(20);
    options.config.watchdog_max = milliseconds(40);
    options.hooks.on_pass = [this](uint32_t) {
      pass_began_.release();
      pass_may_end_.acquire();
    };
    engine_ = std::make_unique<Engine>(MakeHookedEngine(options, clock_), options.config, clock_);
  }

  std::shared_ptr<EndSink> Generate(uint32_t max_tokens) {
    auto sink = std::make_shared<EndSink>();
    engine_->Generate(
        {.content = RandomTokens(1, 20), .max_tokens = max_tokens, .sampling = Greedy()}, sink);
    return sink;
  }

  // The watchdog looks every 10 ms of true time.
  bool BecomesHealthy(bool healthy) {
    const auto give_up = steady_clock::now() + std::chrono::seconds(60);
    while (engine_->Healthy() != healthy) {
      if (steady_clock::now() > give_up) return false;
      std::this_thread::yield();
    }
    return true;
  }

  ScratchFolder scratch_;
  FakeClock clock_;
  std::counting_semaphore<> pass_began_{0};
  std::counting_semaphore<> pass_may_end_{0};
  std::unique_ptr<Engine> engine_;
};

TEST_F(Watchdog, AStepThatHangsIsNotHealthyUntilItEnds) {
  EXPECT_TRUE(engine_->Healthy());
  const auto sink = Generate(2);
  pass_began_.acquire();
  testing::internal::CaptureStderr();
  clock_.Advance(milliseconds(41));
  EXPECT_TRUE(BecomesHealthy(false)) << "a step hangs, and nobody notices";
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("watchdog: stream 0: running, 20 rows to go; 20 tokens\n"));
  pass_may_end_.release(2);
  EXPECT_TRUE(sink->Wait().ok());
  EXPECT_TRUE(BecomesHealthy(true)) << "steps end again";
}

// Each step is within the bound; the sum of them is not.
TEST_F(Watchdog, SlowStepsAreHealthy) {
  const auto sink = Generate(20);
  for (int step = 0; step < 20; ++step) {
    pass_began_.acquire();
    clock_.Advance(milliseconds(39));
    EXPECT_TRUE(engine_->Healthy());
    pass_may_end_.release();
  }
  EXPECT_TRUE(sink->Wait().ok());
  EXPECT_TRUE(engine_->Healthy());
}

}  // namespace
}  // namespace cairn
