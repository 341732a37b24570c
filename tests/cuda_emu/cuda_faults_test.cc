// What the engine makes of a device that fails: calls that fail once, wherever it is, and a device
// that is lost, on the emulated CUDA backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>

#include "engine/engine.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_emu/test_device.h"
#include "tests/engine_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int kStrides = kSanitized ? 7 : 1;  // fewer faults

Result<Backend> MakeBackend() { return cuda::MakeCudaBackend(ComputeMode::kExact); }

TinyModelOptions SmallModel() { return {.layers = 1, .width = 32, .heads = 2, .kv_heads = 1}; }

// Contexts of six blocks in a pool of nine, with a host pool: everything has to move.
HarnessOptions Tiers() {
  HarnessOptions options;
  options.model = SmallModel();
  options.device_blocks = 9;
  options.host_blocks = 16;
  options.prefill_chunk = 32;
  options.concurrent_max = 2;
  options.make_backend = MakeBackend;
  return options;
}

DecodeRequest Turn(const std::string& id, uint64_t seed) {
  DecodeRequest request{.id = id, .content = RandomTokens(seed, 30), .max_tokens = 6};
  request.sampling = Greedy();
  return request;
}

// Two sessions of two turns each, put aside in between; what a failing call ends is asked for
// again, with its content unless it had said something. The tokens of both.
class TwoSessions {
 public:
  TwoSessions() : harness_(Tiers()) {}

  std::vector<std::vector<uint32_t>> Play() {
    for (const char* id : {"a", "b"}) harness_.Create(id, {});
    for (uint64_t turn = 0; turn < 2; ++turn) {
      std::vector<std::pair<DecodeRequest, std::shared_ptr<RecordingSink>>> streams;
      for (const char* id : {"a", "b"}) {
        const DecodeRequest request = Turn(id, id[0] + turn);
        streams.emplace_back(request, harness_.StartDecode(request));
      }
      for (auto& [request, sink] : streams) FinishTurn(request, *sink);
      EXPECT_TRUE(Suspend(harness_.core(), "a", Tier::kHost).ok());
    }
    return {harness_.Tokens("a"), harness_.Tokens("b")};
  }

  // Blocks of a session that are there have the bytes that a computation gives.
  void ExpectBlocksOf(EngineHarness& fresh) {
    for (const char* id : {"a", "b"}) {
      const std::vector<uint32_t> tokens = harness_.Tokens(id);
      const std::vector<Hold> holds = harness_.blocks().Match(harness_.root(), tokens, 50);
      const std::vector<Hold> others = fresh.blocks().Match(fresh.root(), tokens, 50);
      for (size_t i = 0; i < std::min(holds.size(), others.size()); ++i) {
        while (holds[i] && holds[i].is_loading()) harness_.blocks().Poll();
        if (!holds[i] || !holds[i].is_ready() || !others[i]) continue;
        EXPECT_EQ(harness_.BytesOf(holds[i]), fresh.BytesOf(others[i])) << id << ' ' << i;
      }
    }
  }

  EngineHarness& harness() { return harness_; }
  int failed_count() const { return failed_count_; }

 private:
  // Copies take their time, during which a step may find nothing to do.
  void StepUntil(const RecordingSink& sink) {
    while (!sink.end) {
      harness_.core().Step();
      harness_.core().CheckInvariants();
    }
  }

  void FinishTurn(DecodeRequest request, const RecordingSink& first) {
    StepUntil(first);
    std::vector<uint32_t> tokens = first.tokens;
    Status status = first.end->status;
    while (!status.ok()) {
      ++failed_count_;
      ASSERT_EQ(status.code(), Code::kInternal) << status.ToString();
      ASSERT_THAT(status.message(), StartsWith("the device could not compute a step: CUDA: "));
      if (!tokens.empty()) request.content = std::monostate();
      request.max_tokens = 6 - static_cast<uint32_t>(tokens.size());
      const auto again = harness_.StartDecode(request);
      StepUntil(*again);
      tokens.insert(tokens.end(), again->tokens.begin(), again->tokens.end());
      status = again->end->status;
    }
    EXPECT_EQ(tokens.size(), 6u);
  }

  EngineHarness harness_;
  int failed_count_ = 0;
};

struct Faults {
  const char* function;
  int stride;  // every so many of its calls fail, each in a run of its own
};

class OneCall : public testing::TestWithParam<Faults> {};

// Whichever call of a function fails: streams end cleanly or do not notice, and what is asked for
// again has the tokens, and the blocks the bytes, of a run without faults.
TEST_P(OneCall, MayFailAnywhere) {
  const cuemu::TestMachine machine;
  HarnessOptions roomy = Tiers();
  roomy.device_blocks = 64;
  EngineHarness fresh(roomy);
  std::vector<std::vector<uint32_t>> expected;
  {
    TwoSessions sound;
    expected = sound.Play();
  }
  for (const std::vector<uint32_t>& tokens : expected) {
    DecodeRequest request{.content = tokens, .max_tokens = 1, .sampling = Greedy()};
    request.id = "s" + std::to_string(tokens.front());
    fresh.Create(request.id, {});
    ASSERT_TRUE(fresh.Decode(request)->end->status.ok());
  }
  const auto& [function, stride] = GetParam();
  int failed_count = 0, noticed_count = 0, call = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); call += stride * kStrides) {
    SCOPED_TRACE("call " + std::to_string(call));
    TwoSessions sessions;
    cuemu::FailCall(function, call, cudaErrorInvalidValue);
    EXPECT_EQ(sessions.Play(), expected);
    has_failed = cuemu::CancelFailures() == 0;
    sessions.ExpectBlocksOf(fresh);
    EXPECT_TRUE(sessions.harness().core().lost().ok());
    failed_count += has_failed;
    noticed_count += sessions.failed_count() > 0;
  }
  std::printf("%s: %d calls failed, of which %d ended a stream\n", function, failed_count,
              noticed_count);
  EXPECT_GT(failed_count, 0);
}

INSTANTIATE_TEST_SUITE_P(Functions, OneCall,
                         testing::Values(Faults{"cudaMemcpyAsync", 11},
                                         Faults{"cudaLaunchKernel", 43},
                                         Faults{"cudaEventRecord", 7},
                                         Faults{"cudaStreamSynchronize", 3},
                                         Faults{"cudaMalloc", 1}),
                         [](const auto& faults) { return std::string(faults.param.function); });

// Everything that uses the device goes before its error is ended, as with a process.
class Forgiven {
 public:
  ~Forgiven() { cuemu::ClearStickyError(); }
};

TEST(LostDevice, EndsEveryStreamAndLeavesSessionsAsTheyWere) {
  const cuemu::TestMachine machine;
  EngineHarness harness(Tiers());
  const Forgiven before_the_harness_goes;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const char* id : {"a", "b", "waits"}) {
    harness.Create(id, {});
    DecodeRequest request = Turn(id, static_cast<uint64_t>(id[0]));
    request.max_tokens = 40;
    sinks.push_back(harness.StartDecode(request));
  }
  while (sinks[1]->tokens.size() < 3) ASSERT_TRUE(harness.core().Step());
  cuemu::FailCall("cudaLaunchKernel", 5, cudaErrorIllegalAddress);
  harness.Run();
  EXPECT_EQ(harness.core().lost().code(), Code::kUnavailable);
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->end);
    EXPECT_EQ(sink->end->status.code(), Code::kUnavailable);
    EXPECT_THAT(sink->end->status.message(), StartsWith("the device is lost: CUDA: "));
    EXPECT_THAT(sink->end->status.message(), HasSubstr("cudaErrorIllegalAddress"));
  }
  // What was handed out is what the session has.
  std::vector<uint32_t> expected = RandomTokens('a', 30);
  expected.insert(expected.end(), sinks[0]->tokens.begin(), sinks[0]->tokens.end());
  EXPECT_EQ(harness.Tokens("a"), expected);
  EXPECT_EQ(harness.Tokens("waits").size(), 0u);
  const auto late = harness.Decode(Turn("a", 1));
  ASSERT_TRUE(late->end);
  EXPECT_EQ(late->end->status.code(), Code::kUnavailable);
}

// Nobody decodes; blocks are on their way to the host.
TEST(LostDevice, IsNoticedWhenACopyFails) {
  const cuemu::TestMachine machine;
  EngineHarness harness(Tiers());
  const Forgiven before_the_harness_goes;
  harness.Create("a", {});
  ASSERT_TRUE(harness.Decode(Turn("a", 1))->end->status.ok());
  for (const char* copy : {"cudaMemcpyAsync", "cudaMemcpyBatchAsync", "cudaLaunchKernel"}) {
    cuemu::FailCall(copy, 1, cudaErrorECCUncorrectable);
  }
  EXPECT_TRUE(Suspend(harness.core(), "a", Tier::kHost).ok());  // it is answered
  harness.Run();
  EXPECT_THAT(harness.core().lost().message(), HasSubstr("cudaErrorECCUncorrectable"));
}

// Errors that CUDA does not call sticky, but that do not go away either.
TEST(LostDevice, IsGivenUpWhenPassAfterPassFails) {
  const cuemu::TestMachine machine;
  EngineHarness harness(Tiers());
  harness.Create("a", RandomTokens(1, 20));
  for (int call = 1; call < 100; ++call) {
    cuemu::FailCall("cudaLaunchKernel", call, cudaErrorLaunchOutOfResources);
  }
  std::vector<Code> codes;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto sink = harness.Decode({.id = "a", .max_tokens = 3, .sampling = Greedy()});
    codes.push_back(sink->end->status.code());
  }
  EXPECT_EQ(codes, (std::vector{Code::kInternal, Code::kInternal, Code::kUnavailable}));
  EXPECT_THAT(harness.core().lost().message(),
              StartsWith("the device is given up after 3 passes in a row that failed: CUDA: "));
}

// Blocks take what weights and activations have left, in one allocation, but for what operations
// take and a 64th.
TEST(DeviceMemory, IsTheDefaultSizeOfTheBlockPool) {
  const cuemu::TestMachine machine;
  const ScratchFolder scratch;
  LoadOptions options{.model_path = scratch.File("tiny.gguf"), .make_backend = MakeBackend};
  options.engine.prefill_chunk = 64;
  options.engine.concurrent_max = 500;  // or all of them would fit
  WriteTinyModel(options.model_path, SmallModel());
  const SystemClock clock;
  uint64_t used_bytes = 0, pool_bytes = 0, scratch_bytes = 0;
  {
    const Result<LoadedEngine> loaded = LoadEngine(options, clock, nullptr);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    used_bytes = cuemu::ReadStatistics().device_bytes_used;
    const BlockStoreStats blocks = loaded->parts.blocks->stats();
    pool_bytes = blocks.device_capacity * blocks.block_bytes;
    scratch_bytes = loaded->parts.model->scratch_bytes_max();
    EXPECT_THAT(loaded->summary, testing::Contains(HasSubstr(" MiB that were free")));
  }
  constexpr uint64_t kMemory = 32 << 20, kMargin = kMemory / 64;
  EXPECT_GT(scratch_bytes, 500'000u);
  EXPECT_LE(used_bytes, kMemory - kMargin - scratch_bytes);
  EXPECT_GT(used_bytes, kMemory - kMargin - scratch_bytes - 4096);
  EXPECT_GT(pool_bytes, kMemory / 2);
  options.device_memory_bytes = kMemory;
  EXPECT_THAT(LoadEngine(options, clock, nullptr).status().message(),
              StartsWith("--device-memory: takes 33,554,432 bytes; "));
}

// Some passes that take most of one thing or another, and random ones between them.
class PassesWithinLimits {
 public:
  static constexpr uint32_t kContext = 600, kRows = 100, kLogits = 3;

  explicit PassesWithinLimits(Model& model) : model_(model) {
    const size_t block_bytes = model.kv_layout().block_bytes();
    const uint32_t block_count = (kContext + 15) / 16;
    memory_ = *model.device().Allocate(kLogits * block_count * block_bytes);
    for (uint32_t i = 0; i < kLogits * block_count; ++i) {
      blocks_[i / block_count].push_back(memory_->data() + i * block_bytes);
    }
  }

  // `row_count` rows that end at `end`, of one of the contexts.
  BatchSegment Piece(uint32_t context, uint32_t row_count, uint32_t end, bool want_logits) const {
    return {.tokens = std::span(tokens_).first(row_count),
            .first_position = end - row_count,
            .blocks = blocks_[context].data(),
            .want_logits = want_logits,
            .highest_count = 256};
  }
  // Of no context two pieces want logits.
  std::vector<BatchSegment> SomePieces() {
    std::vector<BatchSegment> pieces;
    for (uint32_t rows = 0, end[kLogits] = {0, 200, 300}; rows < kRows;) {
      const auto context = static_cast<uint32_t>(rng_.Below(kLogits));
      const auto most = std::min(kRows - rows, kContext - end[context]);
      if (most == 0) break;
      const auto count =
          static_cast<uint32_t>(1 + rng_.Below(rng_.Chance(0.7) ? 4 : 64)) % most + 1;
      if (count > most) continue;
      end[context] += count;
      pieces.push_back(Piece(context, count, end[context], false));
      rows += count;
    }
    return pieces;
  }
  void Run(const std::vector<BatchSegment>& segments) {
    const auto logits = model_.Forward(segments);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
  }
  std::vector<BatchSegment> OneRowEach() const {
    return {Piece(0, 1, kContext, true), Piece(1, 1, kContext, true), Piece(2, 1, kContext, true)};
  }
  // As short as makes most of them at long contexts.
  std::vector<BatchSegment> ShortOnes() const {
    std::vector<BatchSegment> pieces = OneRowEach();
    for (uint32_t i = 0; i < 12; ++i) {
      pieces.push_back(Piece(i % kLogits, 8, kContext - 1 - i / kLogits * 16, false));
    }
    return pieces;
  }

 private:
  Model& model_;
  Rng rng_{7};
  const std::vector<uint32_t> tokens_ = RandomTokens(3, kRows);
  std::unique_ptr<Buffer> memory_;
  std::vector<std::byte*> blocks_[kLogits];
};

class ScratchMemory : public testing::TestWithParam<ComputeMode> {};

TEST_P(ScratchMemory, IsNoMoreThanIsPredictedAndNotMuchLess) {
  const cuemu::TestMachine machine({.device_memory_bytes = size_t{64} << 20});
  const ScratchFolder scratch;
  const std::string path = scratch.File("tiny.gguf");
  WriteTinyModel(path, {.layers = 1, .width = 64, .heads = 4, .kv_heads = 2, .vocab = 2100});
  const Result<Checkpoint> checkpoint = Checkpoint::Open(path);
  using Passes = PassesWithinLimits;
  const std::unique_ptr<Model> model =
      *Model::Create(*checkpoint, *cuda::MakeCudaBackend(GetParam()),
                     {.context_length = Passes::kContext,
                      .rows_max = Passes::kRows,
                      .logits_max = Passes::kLogits},
                     nullptr);
  Passes passes(*model);
  const auto used_bytes = [] { return cuemu::ReadStatistics().device_bytes_used; };
  const size_t before = used_bytes();
  const auto run = [&](const std::vector<BatchSegment>& segments) {
    passes.Run(segments);
    EXPECT_LE(used_bytes() - before, model->scratch_bytes_max());
  };
  for (int i = 0; i < (kSanitized ? 1 : 4); ++i) run(passes.SomePieces());
  for (int i = 0; i < 3; ++i) run(passes.OneRowEach());  // done, recorded, repeated
  run(passes.ShortOnes());
  run({passes.Piece(0, Passes::kRows, Passes::kContext, true)});
  // In fast mode there is room for the output matrix as float16, which so few rows do not need.
  const int part = GetParam() == ComputeMode::kExact ? 2 : 5;
  EXPECT_GT(used_bytes() - before, model->scratch_bytes_max() / part);
}

INSTANTIATE_TEST_SUITE_P(BothModes, ScratchMemory,
                         testing::Values(ComputeMode::kExact, ComputeMode::kFast),
                         [](const auto& mode) { return std::string(ComputeModeName(mode.param)); });

class WaitingSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate update) override {
    if (count_ == 0 && !update.token_ids.empty()) begun_.set_value();
    count_ += update.token_ids.size();
    return true;
  }
  void OnEnd(StreamEnd end) override { ended_.set_value(std::move(end.status)); }
  void WaitForTokens() { begun_.get_future().get(); }
  Status Wait() { return ended_.get_future().get(); }

 private:
  size_t count_ = 0;
  std::promise<void> begun_;
  std::promise<Status> ended_;
};

TEST(LostDevice, TheEngineEndsStreamsRefusesWorkAndIsNotHealthy) {
  const cuemu::TestMachine machine;
  const ScratchFolder scratch;
  LoadOptions options{.model_path = scratch.File("tiny.gguf"),
                      .make_backend = MakeBackend,
                      .device_memory_bytes = 1 << 20};
  options.engine.paused_max = std::chrono::milliseconds(10);
  options.engine.watchdog_max = std::chrono::milliseconds(20);
  WriteTinyModel(options.model_path, SmallModel());
  FakeClock clock;
  Result<LoadedEngine> loaded = LoadEngine(options, clock, nullptr);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  Engine engine(std::move(loaded->parts), loaded->config, clock);
  const Forgiven before_the_engine_goes;
  const GenerateRequest request{
      .content = RandomTokens(1, 20), .max_tokens = 1000, .sampling = Greedy()};
  auto running = std::make_shared<WaitingSink>();
  engine.Generate(request, running);
  running->WaitForTokens();
  EXPECT_TRUE(engine.Healthy());
  testing::internal::CaptureStderr();
  cuemu::FailCall("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(running->Wait().code(), Code::kUnavailable);
  EXPECT_FALSE(engine.Healthy());
  EXPECT_THAT(engine.lost().message(), HasSubstr("cudaErrorIllegalAddress"));
  auto late = std::make_shared<WaitingSink>();
  engine.Generate(request, late);
  EXPECT_EQ(late->Wait().message(), engine.lost().message());
  std::promise<Status> refused;
  engine.GetStats([&](const Result<EngineStats>& stats) { refused.set_value(stats.status()); });
  EXPECT_EQ(refused.get_future().get().code(), Code::kUnavailable);
  clock.Advance(std::chrono::seconds(1));
  std::promise<void> drained;
  engine.Drain([&] { drained.set_value(); });
  drained.get_future().get();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("watchdog")));
}

}  // namespace
}  // namespace cairn
