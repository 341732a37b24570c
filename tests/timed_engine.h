// An engine of real parts in a world where time passes as a test says: a pass takes what its rows
// cost, a load from disk or from the host's pool what the test wants, nothing else takes any.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/planned_restores.h"
#include "tests/engine_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/hooked_engine.h"
#include "tests/fakes/timed_copy_stream.h"
#include "tests/fakes/timed_disk.h"

namespace cairn {

inline std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

// Remembers when its tokens came.
class TimedSink final : public TokenSink {
 public:
  explicit TimedSink(const Clock& clock) : clock_(clock), began_(clock.Now()) {}
  bool OnTokens(StreamUpdate update) override {
    for (const uint32_t token : update.token_ids) {
      tokens.push_back(token);
      times.push_back(clock_.Now());
    }
    return true;
  }
  void OnEnd(StreamEnd stream_end) override { end = std::move(stream_end); }

  double first_token_s() const {
    return std::chrono::duration<double>(times.at(0) - began_).count();
  }
  size_t CountWithin(Clock::Monotonic begin, Clock::Monotonic end_time) const {
    return static_cast<size_t>(std::ranges::count_if(
        times, [&](Clock::Monotonic time) { return time > begin && time <= end_time; }));
  }

  std::vector<uint32_t> tokens;
  std::vector<Clock::Monotonic> times;
  std::optional<StreamEnd> end;

 private:
  const Clock& clock_;
  const Clock::Monotonic began_;
};

struct TimedEngineOptions {
  PassCosts pass{.pass_s = 0.002, .sweep_s = 0.004, .token_s = 0.001};  // positions cost nothing
  RestorePolicy policy = RestorePolicy::kCairn;
  bool knows_costs = false;  // of passes, from the start; otherwise it learns from a few
  bool allows_wave = true;   // of the policy
  uint32_t layers = 1;       // a pass takes the same time in each
  uint32_t device_blocks = 600;
  uint32_t host_blocks = 0;
  std::chrono::nanoseconds copy_time{0};  // of a block, between host and device
  bool is_paced = false;                  // the same by the limit; the copy takes no time then
  uint32_t prefill_chunk = 64;
  uint32_t restore_share = 20;
};

class TimedEngine {
 public:
  explicit TimedEngine(const TimedEngineOptions& options = {}) : pass(options.pass) {
    const std::string path = scratch_.File("tiny.gguf");
    WriteTinyModel(path, {.layers = options.layers});
    fingerprint_ = DigestOf(path);
    config_.context_length = 2048;
    config_.prefill_chunk = options.prefill_chunk;
    config_.restore_share = options.restore_share;
    HookedEngineOptions hooked{.model_path = path,
                               .device_blocks = options.device_blocks,
                               .host_blocks = options.host_blocks,
                               .config = config_};
    hooked.hooks.on_layer = [this, layers = options.layers](uint32_t rows) {
      clock.Advance(Seconds(pass.FixedSeconds(rows) / layers));
    };
    if (options.copy_time.count() > 0) {
      const TinyModelOptions model;
      const KvLayout layout = {.layer_count = options.layers,
                               .kv_head_count = model.kv_heads,
                               .head_dim = model.head_dim};
      double byte_s =
          1e-9 * static_cast<double>(options.copy_time.count()) / double(layout.block_bytes());
      if (options.is_paced) {
        hooked.host_bandwidth_limit = static_cast<uint64_t>(1 / byte_s);
        byte_s = 0;
      }
      hooked.make_copy_stream = [this, byte_s] {
        return std::make_unique<TimedCopyStream>(byte_s, clock);
      };
    }
    hooked.open_spill = [this](const Digest&, const KvLayout& layout, auto) {
      auto made = std::make_unique<TimedDisk>(clock, layout.block_bytes());
      disk_ = made.get();
      return Result<std::unique_ptr<SpillStore>>(std::move(made));
    };
    hooked.make_restores = [this, &options](const BlockStore& store) {
      RestoreSettings settings = {.policy = options.policy,
                                  .allows_wave = options.allows_wave,
                                  .chunk_tokens = options.prefill_chunk,
                                  .share = options.restore_share / 100.0};
      if (options.knows_costs) settings.calibrated = PassFit{.costs = pass};
      auto restores = std::make_unique<PlannedRestores>(settings, store, clock);
      for (const uint32_t rows : {16u, 24u, 32u, 64u}) {
        restores->Learn({.rows = rows, .seconds = pass.FixedSeconds(rows)});
      }
      return restores;
    };
    EngineParts parts = MakeHookedEngine(hooked, clock);
    parts.trace = *TraceWriter::Open(scratch_.File("trace"));
    blocks_ = parts.blocks.get();
    core_ = std::make_unique<EngineCore>(std::move(parts), config_, clock, 42);
  }

  EngineCore& core() { return *core_; }
  BlockStore& blocks() { return *blocks_; }
  BlockKey root() const { return RootKey(fingerprint_, blocks_->layout().Id(), ""); }
  TimedDisk& disk() { return *disk_; }

  void Create(const std::string& id, const std::vector<uint32_t>& tokens, int32_t priority = 50) {
    const CreateSessionRequest request{.id = id, .settings = {.priority = priority}};
    ASSERT_TRUE(core_->CreateSession(request, Encode(tokens)).ok());
  }
  std::shared_ptr<TimedSink> Start(const std::string& id, const std::vector<uint32_t>& content,
                                   uint32_t count) {
    auto sink = std::make_shared<TimedSink>(clock);
    DecodeRequest request{.id = id, .max_tokens = count, .sampling = Greedy()};
    if (!content.empty()) request.content = content;
    last_stream_ = SequenceId(next_id_++);
    core_->Decode({last_stream_, sink, clock.Now()}, request, Encode(request.content));
    return sink;
  }
  SequenceId last_stream() const { return last_stream_; }
  SequenceId NextId() { return SequenceId(next_id_++); }

  // A session of so many whole blocks that is on disk, or nowhere.
  void Prepare(const std::string& id, uint64_t seed, uint32_t block_count, Tier tier = Tier::kDisk,
               int32_t priority = 50) {
    Create(id, RandomTokens(seed, size_t{block_count} * 16), priority);
    const auto sink = Start(id, {}, 1);
    RunUntil([&] { return sink->end.has_value(); });
    SuspendTo(id, tier);
  }
  void SuspendTo(const std::string& id, Tier tier) {
    std::optional<Result<SessionInfo>> answer;
    core_->SuspendSession(id, tier, [&](Result<SessionInfo> info) { answer = std::move(info); });
    RunUntil([&] { return answer.has_value(); });
    EXPECT_TRUE(answer->ok());
  }

  // A step; while there is nothing to do, some time passes.
  void Step() {
    if (!core_->Step()) clock.Advance(std::chrono::microseconds(100));
  }
  void RunUntil(const std::function<bool()>& done, int steps_max = 100'000) {
    while (!done()) {
      ASSERT_GT(--steps_max, 0) << "it does not come";
      Step();
    }
    core_->CheckInvariants();
  }
  void RunFor(double seconds) {
    const Clock::Monotonic end = clock.Now() + Seconds(seconds);
    RunUntil([&] { return clock.Now() >= end; });
  }

  // The lines of the trace that name something; the engine is gone then.
  std::vector<std::string> ReadTrace(const std::string& name) {
    core_.reset();
    std::ifstream file(scratch_.File("trace"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      if (line.find('"' + name + '"') != std::string::npos) lines.push_back(line);
    }
    return lines;
  }

  FakeClock clock;
  PassCosts pass;  // what passes take from now on

 private:
  EncodedContent Encode(const Content& content) {
    Result<EncodedContent> encoded = core_->encoder().Encode(content);
    EXPECT_TRUE(encoded.ok()) << encoded.status().ToString();
    return *std::move(encoded);
  }

  ScratchFolder scratch_;
  Digest fingerprint_;
  EngineConfig config_;
  BlockStore* blocks_ = nullptr;
  TimedDisk* disk_ = nullptr;
  std::unique_ptr<EngineCore> core_;
  uint64_t next_id_ = 0;
  SequenceId last_stream_;
};

}  // namespace cairn
