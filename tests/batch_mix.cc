#include "tests/batch_mix.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cairn {
namespace {

// What a session's operations produced: the tokens of every decode that was not cancelled.
using Outputs = std::map<std::string, std::vector<std::vector<uint32_t>>>;

// Carries out a script, one session's operations in order, several sessions at once.
class Player {
 public:
  Player(MixEngine& engine, const MixScript& script, uint64_t seed, bool alone)
      : engine_(engine), script_(script), rng_(seed), alone_(alone) {}

  Outputs Play() {
    for (const auto& [id, operations] : script_) {
      if (id.find("-f") == std::string::npos) {
        harness().Create(id, {});
        ready_.insert(id);
      }
    }
    while (!ready_.empty() || !running_.empty() || leaving_count_ > 0) {
      const bool idle = running_.empty() && leaving_count_ == 0;
      const bool start = !ready_.empty() && (running_.empty() || (!alone_ && rng_.Chance(0.3)));
      if (idle && rng_.Chance(engine_.restart_chance)) {
        Restart();
      } else if (start) {
        StartNext();
      } else {
        core().Step();
        CollectEnded();
      }
      core().CheckInvariants();
    }
    return outputs_;
  }

  int64_t restart_count() const { return restart_count_; }
  int64_t reload_count() { return reload_count_ + core().GetStats()->blocks_reloaded; }
  int64_t preemption_count() { return preemption_count_ + core().GetStats()->preemptions; }

 private:
  struct Running {
    std::shared_ptr<RecordingSink> sink;
    SequenceId stream;
    uint32_t steps_left;  // until it is cancelled; 0: not at all
    int64_t tokens_before;
  };

  EngineHarness& harness() { return *engine_.harness; }
  EngineCore& core() { return harness().core(); }

  void Restart() {
    std::map<std::string, std::vector<uint32_t>> sessions;
    const Result<SessionPage> page = core().ListSessions({.page_size = 1000});
    for (const SessionInfo& session : page->sessions) {
      sessions[session.id] = harness().Tokens(session.id);
    }
    reload_count_ = reload_count();
    preemption_count_ = preemption_count();
    engine_.harness.reset();
    engine_.harness = engine_.reopen();
    for (const auto& [id, tokens] : sessions) harness().Create(id, tokens);
    ++restart_count_;
  }

  void StartSuspend(const std::string& id, Tier tier) {
    ready_.erase(id);
    ++leaving_count_;
    core().SuspendSession(id, tier, [this, id](const Result<SessionInfo>& info) {
      // Without a tier below the device there is nowhere to go.
      EXPECT_TRUE(info.ok() || info.status().code() == Code::kFailedPrecondition)
          << info.status().ToString();
      --leaving_count_;
      ready_.insert(id);
    });
  }

  void StartNext() {
    auto at = ready_.begin();
    if (!alone_) std::advance(at, static_cast<long>(rng_.Below(ready_.size())));
    const std::string id = *at;
    const size_t index = next_[id]++;
    if (index >= script_.at(id).size()) {
      ready_.erase(id);
      return;
    }
    const MixOperation& operation = script_.at(id)[index];
    const int64_t count = core().GetSession(id)->token_count;
    if (operation.kind == MixOperation::kTruncate) {
      EXPECT_TRUE(core().TruncateSession(id, std::min(operation.keep, count)).ok());
    } else if (operation.kind == MixOperation::kSuspend) {
      if (!alone_) StartSuspend(id, operation.tier);
    } else if (operation.kind == MixOperation::kFork) {
      const auto forked = core().ForkSession(
          {.id = id, .new_id = operation.new_id, .token_count = std::min(operation.keep, count)});
      EXPECT_TRUE(forked.ok()) << forked.status().ToString();
      ready_.insert(operation.new_id);
    } else {
      DecodeRequest request;
      request.id = id;
      request.content = operation.content;
      request.max_tokens = operation.max_tokens;
      request.sampling = operation.sampling;
      const SequenceId stream = harness().NextId();
      running_[id] = {harness().StartDecode(request, stream), stream, operation.cancel_at, count};
      ready_.erase(id);
    }
  }

  void CollectEnded() {
    for (auto it = running_.begin(); it != running_.end();) {
      auto& [id, running] = *it;
      if (running.steps_left > 0 && --running.steps_left == 0 && !running.sink->end) {
        core().CancelStream(running.stream, Status(Code::kCancelled, "by the script"));
      }
      if (!running.sink->end) {
        ++it;
        continue;
      }
      const bool cancelled = script_.at(id)[next_[id] - 1].cancel_at > 0;
      if (cancelled) {  // how far it came depends on the timing: back to where it began
        EXPECT_TRUE(core().TruncateSession(id, running.tokens_before).ok());
      } else {
        EXPECT_TRUE(running.sink->end->status.ok()) << running.sink->end->status.ToString();
        outputs_[id].push_back(running.sink->tokens);
      }
      ready_.insert(id);
      it = running_.erase(it);
    }
  }

  MixEngine& engine_;
  const MixScript& script_;
  Rng rng_;
  const bool alone_;
  std::set<std::string> ready_;
  std::map<std::string, size_t> next_;
  std::map<std::string, Running> running_;
  Outputs outputs_;
  int leaving_count_ = 0;  // suspensions that were not answered yet
  int64_t restart_count_ = 0;
  int64_t reload_count_ = 0;  // before the last restart, as is the next
  int64_t preemption_count_ = 0;
};

}  // namespace

MixScript RandomScript(Rng& rng, const MixShape& shape) {
  MixScript script;
  const std::vector<uint32_t> shared = shape.text(rng, 20 + rng.Below(shape.shared));
  const size_t session_count = 2 + rng.Below(shape.sessions);
  for (size_t s = 0; s < session_count; ++s) {
    const std::string id = "s" + std::to_string(s);
    std::vector<MixOperation>& operations = script[id];
    const size_t turns = 1 + rng.Below(shape.turns);
    for (size_t turn = 0; turn < turns; ++turn) {
      MixOperation decode;
      if (turn == 0 && rng.Chance(0.6)) decode.content = shared;
      const auto own = shape.text(rng, 1 + rng.Below(shape.prompt));
      decode.content.insert(decode.content.end(), own.begin(), own.end());
      decode.max_tokens = static_cast<uint32_t>(1 + rng.Below(shape.decode));
      decode.sampling = RandomSampling(rng);
      if (rng.Chance(shape.cancel_share))
        decode.cancel_at = static_cast<uint32_t>(1 + rng.Below(20));
      operations.push_back(decode);
      if (rng.Chance(shape.change_share)) {
        operations.push_back({.kind = MixOperation::kSuspend,
                              .tier = shape.suspended_to[rng.Below(shape.suspended_to.size())]});
      }
      if (rng.Chance(shape.change_share)) {
        operations.push_back(
            {.kind = MixOperation::kTruncate, .keep = static_cast<int64_t>(1 + rng.Below(30))});
      }
      if (rng.Chance(shape.change_share)) {
        const std::string fork = id + "-f" + std::to_string(turn);
        operations.push_back({.kind = MixOperation::kFork,
                              .keep = static_cast<int64_t>(1 + rng.Below(30)),
                              .new_id = fork});
        MixOperation after;
        after.content = shape.text(rng, 1 + rng.Below(20));
        after.max_tokens = static_cast<uint32_t>(1 + rng.Below(shape.decode));
        after.sampling = RandomSampling(rng);
        script[fork] = {after};
      }
    }
  }
  return script;
}

uint32_t LargestContextBlocks(const MixScript& script) {
  size_t largest = 0;
  for (const auto& [id, operations] : script) {
    size_t token_count = 31;  // of a fork
    for (const MixOperation& operation : operations) {
      token_count += operation.content.size() + operation.max_tokens;
    }
    largest = std::max(largest, token_count);
  }
  return ContextBlocks::BlocksFor(largest, 16);
}

void MixComparison::Run(const MixScript& script, MixEngine& busy, MixEngine& lone, uint64_t seed) {
  Player busy_player(busy, script, seed, false);
  const Outputs busy_outputs = busy_player.Play();
  const Outputs lone_outputs = Player(lone, script, 0, true).Play();
  EXPECT_EQ(busy_outputs, lone_outputs);
  for (const auto& [id, operations] : script) {
    const std::vector<uint32_t> tokens = lone.harness->Tokens(id);
    EXPECT_EQ(busy.harness->Tokens(id), tokens) << id;
    ReadBlocks(*lone.harness, tokens);
    ReadBlocks(*busy.harness, tokens);
  }
  preemptions_ += busy_player.preemption_count();
  reloads_ += busy_player.reload_count();
  restarts_ += busy_player.restart_count();
}

void MixComparison::ReadBlocks(EngineHarness& harness, const std::vector<uint32_t>& tokens) {
  const std::vector<Hold> holds = harness.blocks().Match(harness.root(), tokens, 50);
  const auto is_loading = [](const Hold& hold) { return hold && hold.is_loading(); };
  while (std::ranges::any_of(holds, is_loading)) harness.blocks().Poll();
  for (const Hold& hold : holds) {
    if (!hold || !hold.is_ready()) continue;
    const Digest bytes = DigestOf(harness.BytesOf(hold));
    const auto [known, fresh] = digests_.emplace(hold.key(), bytes);
    EXPECT_EQ(known->second, bytes) << "a block's bytes depend on how it was computed";
    compared_blocks_ += !fresh;
  }
}

}  // namespace cairn
