// An engine core over a tiny or the real model, driven step by step, and sinks that remember.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine_core.h"
#include "engine/load.h"
#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {

// Remembers what a stream said.
class RecordingSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate update) override {
    EXPECT_FALSE(end) << "an update after the end";
    if (!first_position) first_position = update.position;
    EXPECT_EQ(update.position, *first_position + static_cast<int64_t>(tokens.size()));
    tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
    text += update.text;
    for (TokenLogprob& logprob : update.logprobs) logprobs.push_back(std::move(logprob));
    ++update_count;
    return tokens.size() < full_at;
  }
  void OnEnd(StreamEnd stream_end) override {
    EXPECT_FALSE(end) << "a second end";
    end = std::move(stream_end);
  }

  std::optional<int64_t> first_position;
  std::vector<uint32_t> tokens;
  std::string text;
  std::vector<TokenLogprob> logprobs;
  size_t update_count = 0;
  std::optional<StreamEnd> end;
  size_t full_at = SIZE_MAX;  // from so many tokens on it says that it is full
};

struct HarnessOptions {
  TinyModelOptions model;
  uint32_t threads = 2;
  ComputeMode mode = ComputeMode::kExact;
  uint32_t device_blocks = 512;
  uint32_t prefill_chunk = 64;
  uint32_t concurrent_max = 16;
  std::string model_path;  // empty: a tiny model is written
  std::optional<std::string> instruction_set;
  uint32_t host_blocks = 0;
  bool host_in_place = true;
  uint64_t host_bandwidth_limit = 0;  // bytes a second; 0: none
  SpillOpener open_spill;
  RestoreStrategyMaker make_restores;
  BackendMaker make_backend;     // empty: the CPU's
  const Clock* clock = nullptr;  // null: the system's; outlives the harness
};

// Answers as the core does, after as many steps as it takes.
inline Result<SessionInfo> Suspend(EngineCore& core, const std::string& id, Tier tier) {
  std::optional<Result<SessionInfo>> answer;
  core.SuspendSession(id, tier, [&](Result<SessionInfo> info) { answer = std::move(info); });
  while (!answer) core.Step();
  return *std::move(answer);
}

class EngineHarness {
 public:
  explicit EngineHarness(const HarnessOptions& options = {})
      : clock_(options.clock != nullptr ? *options.clock : system_clock_) {
    std::string path = options.model_path;
    if (path.empty()) {
      path = scratch_.File("tiny.gguf");
      WriteTinyModel(path, options.model);
    }
    LoadOptions load;
    load.model_path = path;
    load.thread_count = options.threads;
    load.mode = options.mode;
    load.instruction_set = options.instruction_set;
    load.make_backend = options.make_backend;
    load.verify_duplicate_blocks = true;
    load.engine.prefill_chunk = options.prefill_chunk;
    load.engine.concurrent_max = options.concurrent_max;
    load.device_memory_bytes = options.device_blocks * BlockBytes(path);
    load.host_memory_bytes = options.host_blocks * BlockBytes(path);
    load.host_in_place = options.host_in_place;
    load.host_bandwidth_limit = options.host_bandwidth_limit;
    load.open_spill = options.open_spill;
    load.make_restores = options.make_restores;
    Result<LoadedEngine> loaded = LoadEngine(load, clock_, nullptr);
    if (!loaded.ok()) {
      ADD_FAILURE() << loaded.status().ToString();
      std::abort();
    }
    config_ = loaded->config;
    blocks_ = loaded->parts.blocks.get();
    device_ = &loaded->parts.model->device();
    fingerprint_ = loaded->parts.fingerprint;
    core_ = std::make_unique<EngineCore>(std::move(loaded->parts), config_, clock_, 42);
  }

  EngineCore& core() { return *core_; }
  BlockStore& blocks() { return *blocks_; }
  const EngineConfig& config() const { return config_; }
  BlockKey root(const std::string& salt = "") const {
    return RootKey(fingerprint_, blocks_->layout().Id(), salt);
  }

  // Of a block that is there, wherever it is.
  std::vector<std::byte> BytesOf(const Hold& hold) {
    std::vector<std::byte> bytes(blocks_->layout().block_bytes());
    const std::unique_ptr<Stream> stream = *device_->NewStream(StreamUse::kCopy);
    stream->Wait(hold.ready());
    stream->Copy(bytes.data(), hold.address(), bytes.size());
    EXPECT_TRUE(stream->Synchronize().ok());
    return bytes;
  }

  SequenceId NextId() { return SequenceId(next_id_++); }

  EncodedContent Encode(const Content& content) {
    Result<EncodedContent> encoded = core_->encoder().Encode(content);
    EXPECT_TRUE(encoded.ok()) << encoded.status().ToString();
    return *std::move(encoded);
  }

  // A session `id` with `tokens`.
  void Create(const std::string& id, const std::vector<uint32_t>& tokens,
              const SessionSettings& settings = {}) {
    const Result<SessionInfo> made =
        core_->CreateSession({.id = id, .settings = settings}, Encode(tokens));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
  }
  std::vector<uint32_t> Tokens(const std::string& id) {
    const Result<TokenRange> range = core_->ReadTokens(id, 0, 0);
    EXPECT_TRUE(range.ok()) << range.status().ToString();
    return range.ok() ? range->token_ids : std::vector<uint32_t>();
  }

  std::shared_ptr<RecordingSink> StartDecode(const DecodeRequest& request,
                                             SequenceId id = SequenceId()) {
    auto sink = std::make_shared<RecordingSink>();
    const EncodedContent content = Encode(request.content);
    core_->Decode({id.valid() ? id : NextId(), sink, clock_.Now()}, request, content);
    return sink;
  }
  std::shared_ptr<RecordingSink> StartGenerate(const GenerateRequest& request,
                                               SequenceId id = SequenceId()) {
    auto sink = std::make_shared<RecordingSink>();
    const EncodedContent content = Encode(request.content);
    core_->Generate({id.valid() ? id : NextId(), sink, clock_.Now()}, request, content);
    return sink;
  }

  // Steps until nothing is left to do, checking the invariants on the way.
  void Run(int steps_max = 100000) {
    while (steps_max-- > 0 && core_->Step()) {
      if (check_every_step) core_->CheckInvariants();
    }
    ASSERT_GE(steps_max, 0) << "the engine does not come to rest";
    core_->CheckInvariants();
  }

  std::shared_ptr<RecordingSink> Decode(const DecodeRequest& request) {
    auto sink = StartDecode(request);
    Run();
    return sink;
  }

  bool check_every_step = true;

 private:
  static uint64_t BlockBytes(const std::string& path) {
    Result<Checkpoint> checkpoint = Checkpoint::Open(path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    const ModelConfig& shape = checkpoint->config();
    return KvLayout{.layer_count = shape.layer_count,
                    .kv_head_count = shape.kv_head_count,
                    .head_dim = shape.head_dim}
        .block_bytes();
  }

  ScratchFolder scratch_;
  SystemClock system_clock_;
  const Clock& clock_;
  EngineConfig config_;
  Digest fingerprint_;
  BlockStore* blocks_ = nullptr;
  Device* device_ = nullptr;
  std::unique_ptr<EngineCore> core_;
  uint64_t next_id_ = 0;
};

// `count` token ids of the tiny model's text tokens, from a seed.
inline std::vector<uint32_t> RandomTokens(uint64_t seed, size_t count) {
  Rng rng(seed);
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<uint32_t>(3 + rng.Below(300)));
  return tokens;
}

inline SamplingParams Greedy() {
  SamplingParams sampling;
  sampling.temperature = 0.0f;
  sampling.ignore_eos = true;
  return sampling;
}

// Now greedy, now drawn, now with a cut, a penalty or stop strings; with a seed of its own.
inline SamplingParams RandomSampling(Rng& rng) {
  SamplingParams sampling;
  sampling.ignore_eos = rng.Chance(0.8);
  sampling.seed = rng.Next();
  sampling.temperature = rng.Chance(0.4) ? 0.0f : static_cast<float>(0.3 + rng.Uniform());
  if (rng.Chance(0.3)) sampling.top_k = static_cast<uint32_t>(1 + rng.Below(40));
  if (rng.Chance(0.3)) sampling.top_p = static_cast<float>(0.5 + 0.5 * rng.Uniform());
  if (rng.Chance(0.3)) sampling.repetition_penalty = 1.2f;
  if (rng.Chance(0.2)) sampling.stop = {"e", "ab"};
  if (rng.Chance(0.2)) {  // on the tiny models often held back, and now and then found
    sampling.stop = {"aab", "bbbab", "b\u00e9"};
    sampling.logit_bias = {{3 + 'a', 5.0f}, {3 + 'b', 5.0f}};
  }
  return sampling;
}

}  // namespace cairn
