// One answer: whatever shares the batch, whatever the chunks, the order of arrival, the number of
// threads, forks, truncations, preemptions and cancels, every session's tokens and every block's
// bytes equal those of a lone run.
//
// A mix is a random script over some sessions. It runs once on a busy engine with random settings,
// many streams at once, and once alone: a fresh engine with one thread and a large chunk carries
// out each session's own operations one after the other.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/engine_harness.h"

namespace cairn {
namespace {

struct Operation {
  enum Kind { kDecode, kFork, kTruncate, kSuspend } kind = kDecode;
  std::vector<uint32_t> content;
  uint32_t max_tokens = 0;
  SamplingParams sampling;
  int64_t keep = 0;        // kTruncate, kFork: tokens
  std::string new_id;      // kFork
  uint32_t cancel_at = 0;  // kDecode: cancelled after so many steps; 0: not
};

using Script = std::map<std::string, std::vector<Operation>>;

// Sessions share a prefix now and then, so that blocks are shared while they are in use.
Script RandomScript(Rng& rng) {
  Script script;
  const std::vector<uint32_t> shared = RandomTokens(rng.Next(), 20 + rng.Below(120));
  const size_t session_count = 2 + rng.Below(5);
  for (size_t s = 0; s < session_count; ++s) {
    const std::string id = "s" + std::to_string(s);
    std::vector<Operation>& operations = script[id];
    const size_t turns = 1 + rng.Below(3);
    for (size_t turn = 0; turn < turns; ++turn) {
      Operation decode;
      if (turn == 0 && rng.Chance(0.6)) decode.content = shared;
      const auto own = RandomTokens(rng.Next(), 1 + rng.Below(90));
      decode.content.insert(decode.content.end(), own.begin(), own.end());
      decode.max_tokens = static_cast<uint32_t>(1 + rng.Below(40));
      decode.sampling = RandomSampling(rng);
      if (rng.Chance(0.15)) decode.cancel_at = static_cast<uint32_t>(1 + rng.Below(20));
      operations.push_back(decode);
      if (rng.Chance(0.2)) operations.push_back({.kind = Operation::kSuspend});
      if (rng.Chance(0.2)) {
        operations.push_back(
            {.kind = Operation::kTruncate, .keep = static_cast<int64_t>(1 + rng.Below(30))});
      }
      if (rng.Chance(0.2)) {
        const std::string fork = id + "-f" + std::to_string(turn);
        operations.push_back({.kind = Operation::kFork,
                              .keep = static_cast<int64_t>(1 + rng.Below(30)),
                              .new_id = fork});
        Operation after;
        after.content = RandomTokens(rng.Next(), 1 + rng.Below(20));
        after.max_tokens = static_cast<uint32_t>(1 + rng.Below(30));
        after.sampling = RandomSampling(rng);
        script[fork] = {after};
      }
    }
  }
  return script;
}

// Blocks that the largest context of the script takes: no pool may be smaller.
uint32_t LargestContextBlocks(const Script& script) {
  size_t largest = 0;
  for (const auto& [id, operations] : script) {
    size_t token_count = 31;  // of a fork
    for (const Operation& operation : operations) {
      token_count += operation.content.size() + operation.max_tokens;
    }
    largest = std::max(largest, token_count);
  }
  return ContextBlocks::BlocksFor(largest, 16);
}

// What a session's operations produced: the tokens of every decode that was not cancelled.
using Outputs = std::map<std::string, std::vector<std::vector<uint32_t>>>;

// Digests of block bytes by key: equal keys must have equal bytes, in every engine.
class BlockBook {
 public:
  void Read(EngineHarness& harness, const std::vector<uint32_t>& tokens) {
    for (const Hold& hold : harness.blocks().Match(harness.root(), tokens, 50)) {
      if (!hold) continue;
      const Digest bytes =
          DigestOf(std::span(hold.address(), harness.blocks().layout().block_bytes()));
      const auto [known, fresh] = digests_.emplace(hold.key(), bytes);
      EXPECT_EQ(known->second, bytes) << "a block's bytes depend on how it was computed";
      compared_ += !fresh;
    }
  }
  size_t compared() const { return compared_; }

 private:
  std::map<BlockKey, Digest> digests_;
  size_t compared_ = 0;
};

// Carries out a script, one session's operations in order, several sessions at once.
class Player {
 public:
  Player(EngineHarness& harness, const Script& script, uint64_t seed, bool alone)
      : harness_(harness), script_(script), rng_(seed), alone_(alone) {}

  Outputs Play() {
    for (const auto& [id, operations] : script_) {
      if (id.find("-f") == std::string::npos) {
        harness_.Create(id, {});
        ready_.insert(id);
      }
    }
    while (!ready_.empty() || !running_.empty()) {
      const bool start = !ready_.empty() && (running_.empty() || (!alone_ && rng_.Chance(0.3)));
      if (start) {
        StartNext();
      } else {
        harness_.core().Step();
        CollectEnded();
      }
      harness_.core().CheckInvariants();
    }
    return outputs_;
  }

 private:
  struct Running {
    std::shared_ptr<RecordingSink> sink;
    SequenceId stream;
    uint32_t steps_left;  // until it is cancelled; 0: not at all
    int64_t tokens_before;
  };

  void StartNext() {
    auto at = ready_.begin();
    if (!alone_) std::advance(at, static_cast<long>(rng_.Below(ready_.size())));
    const std::string id = *at;
    const size_t index = next_[id]++;
    if (index >= script_.at(id).size()) {
      ready_.erase(id);
      return;
    }
    const Operation& operation = script_.at(id)[index];
    const int64_t count = harness_.core().GetSession(id)->token_count;
    if (operation.kind == Operation::kTruncate) {
      EXPECT_TRUE(harness_.core().TruncateSession(id, std::min(operation.keep, count)).ok());
    } else if (operation.kind == Operation::kSuspend) {
      EXPECT_TRUE(harness_.core().SuspendSession(id, Tier::kAbsent).ok());
    } else if (operation.kind == Operation::kFork) {
      const auto forked = harness_.core().ForkSession(
          {.id = id, .new_id = operation.new_id, .token_count = std::min(operation.keep, count)});
      EXPECT_TRUE(forked.ok()) << forked.status().ToString();
      ready_.insert(operation.new_id);
    } else {
      DecodeRequest request;
      request.id = id;
      request.content = operation.content;
      request.max_tokens = operation.max_tokens;
      request.sampling = operation.sampling;
      const SequenceId stream = harness_.NextId();
      const int64_t before = count + static_cast<int64_t>(operation.content.size());
      running_[id] = {harness_.StartDecode(request, stream), stream, operation.cancel_at, before};
      ready_.erase(id);
    }
  }

  void CollectEnded() {
    for (auto it = running_.begin(); it != running_.end();) {
      auto& [id, running] = *it;
      if (running.steps_left > 0 && --running.steps_left == 0 && !running.sink->end) {
        harness_.core().CancelStream(running.stream, Status(Code::kCancelled, "by the script"));
      }
      if (!running.sink->end) {
        ++it;
        continue;
      }
      const bool cancelled = script_.at(id)[next_[id] - 1].cancel_at > 0;
      if (cancelled) {  // how far it came depends on the timing: back to where it began
        EXPECT_TRUE(harness_.core().TruncateSession(id, running.tokens_before).ok());
      } else {
        EXPECT_TRUE(running.sink->end->status.ok()) << running.sink->end->status.ToString();
        outputs_[id].push_back(running.sink->tokens);
      }
      ready_.insert(id);
      it = running_.erase(it);
    }
  }

  EngineHarness& harness_;
  const Script& script_;
  Rng rng_;
  const bool alone_;
  std::set<std::string> ready_;
  std::map<std::string, size_t> next_;
  std::map<std::string, Running> running_;
  Outputs outputs_;
};

class BatchInvariance : public testing::TestWithParam<ComputeMode> {};

TEST_P(BatchInvariance, RandomMixesEqualLoneRuns) {
  constexpr int kMixes = 100;
  Rng rng(GetParam() == ComputeMode::kExact ? 2026 : 2027);
  BlockBook book;
  int64_t preemptions = 0;
  for (int mix = 0; mix < kMixes; ++mix) {
    SCOPED_TRACE("mix " + std::to_string(mix));
    const Script script = RandomScript(rng);
    HarnessOptions options;
    options.mode = GetParam();
    options.model.type = mix % 3 == 0   ? TensorType::kQ4_1
                         : mix % 3 == 1 ? TensorType::kQ4_0
                                        : TensorType::kQ8_0;
    HarnessOptions lone_options = options;
    lone_options.threads = 1;
    lone_options.prefill_chunk = 512;
    options.threads = 1u << rng.Below(3);
    options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(80));
    options.concurrent_max = static_cast<uint32_t>(2 + rng.Below(8));
    options.device_blocks = LargestContextBlocks(script) + static_cast<uint32_t>(rng.Below(12));
    EngineHarness busy(options), lone(lone_options);
    const Outputs busy_outputs = Player(busy, script, rng.Next(), false).Play();
    const Outputs lone_outputs = Player(lone, script, 0, true).Play();
    EXPECT_EQ(busy_outputs, lone_outputs);
    for (const auto& [id, operations] : script) {
      const std::vector<uint32_t> tokens = lone.Tokens(id);
      EXPECT_EQ(busy.Tokens(id), tokens) << id;
      book.Read(lone, tokens);
      book.Read(busy, tokens);
    }
    preemptions += busy.core().GetStats()->preemptions;
    if (HasFailure()) return;
  }
  EXPECT_GT(book.compared(), 1000u);
  EXPECT_GT(preemptions, 20);
}

INSTANTIATE_TEST_SUITE_P(Modes, BatchInvariance,
                         testing::Values(ComputeMode::kExact, ComputeMode::kFast),
                         [](const auto& test) { return std::string(ComputeModeName(test.param)); });

}  // namespace
}  // namespace cairn
