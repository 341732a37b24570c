#include "tests/eviction_simulator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "offload/block_store.h"
#include "offload/restore_planner.h"
#include "tests/fakes/timed_tiers.h"

namespace cairn {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kChunkTokens = 256;
constexpr uint32_t kHostChannel = 0;
constexpr uint32_t kDiskChannel = 1;
constexpr std::chrono::milliseconds kTick{20};  // between the looks of an engine

std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

BlockSource SourceOf(Origin origin) {
  if (origin == Origin::kResident) return BlockSource::kDevice;
  if (origin == Origin::kAbsent) return BlockSource::kAbsent;
  return ThroughChannel(origin == Origin::kHost ? kHostChannel : kDiskChannel);
}

class Simulation {
 public:
  Simulation(const SimulatedMachine& machine, EvictionPolicy policy)
      : machine_(machine), device_(1 << 26, Nanoseconds(machine.host_s), clock_) {
    const OffloadConfig config{.device_blocks_max = machine.device_blocks,
                               .host_blocks_max = machine.host_blocks,
                               .host_in_place = false,
                               .eviction = policy};
    auto store =
        BlockStore::Create(config, layout_, device_, clock_,
                           std::make_unique<TimedSpillStore>(
                               TimedDiskOptions{.read_time = Nanoseconds(machine.disk_read_s),
                                                .write_time = Nanoseconds(machine.disk_write_s),
                                                .quota_blocks = machine.disk_blocks,
                                                .segment_blocks = 64},
                               clock_, layout_.block_bytes()));
    CHECK(store.ok());
    store_ = *std::move(store);
    store_->SetRecomputePrice(RecomputePriceOf(machine.pass, kChunkTokens, kBlockTokens));
  }

  void Turn(const TraceTurn& turn) {
    AdvanceTo(Clock::Monotonic(Nanoseconds(turn.at_s / machine_.speed)));
    const Clock::Monotonic begin = clock_.Now();
    auto [known, is_new] = conversations_.try_emplace(turn.conversation, turn.prefix_tokens);
    const bool is_known = !prefixes_.insert(turn.prefix).second || !is_new;
    const uint32_t old_count = is_known ? known->second : 0;
    known->second += turn.input_tokens;
    Restore(TokensOf(turn, known->second), old_count);
    if (2 * old_count >= known->second) {
      const std::chrono::duration<double> waited = clock_.Now() - begin;
      times_.push_back(waited.count());
    }
    known->second += turn.output_tokens;
    Generate(TokensOf(turn, known->second));
  }

  SimulatedOutcome Outcome() {
    std::ranges::sort(times_);
    SimulatedOutcome outcome{.turns = static_cast<uint32_t>(times_.size()),
                             .p95_s = times_[times_.size() * 95 / 100],
                             .written_blocks = store_->disk_stats()->spills,
                             .read_blocks = store_->disk_stats()->loads,
                             .computed_blocks = computed_again_};
    for (const double time : times_) outcome.mean_s += time / static_cast<double>(times_.size());
    return outcome;
  }

 private:
  static Tokens TokensOf(const TraceTurn& turn, uint32_t count) {
    Tokens tokens(count);
    for (uint32_t i = 0; i < count; ++i) {
      const bool is_shared = i < turn.prefix_tokens;
      tokens[i] = static_cast<uint32_t>(
          CounterBits(is_shared ? turn.prefix : turn.conversation, i, is_shared) % 50000);
    }
    return tokens;
  }

  void Look() {
    store_->Poll();
    store_->WriteBack();
  }

  void AdvanceTo(Clock::Monotonic end) {
    while (clock_.Now() < end) {
      clock_.Advance(std::min<std::chrono::nanoseconds>(kTick, end - clock_.Now()));
      Look();
    }
  }

  // Everything before the first new token.
  void Restore(const Tokens& tokens, uint32_t old_count) {
    const auto block_count = static_cast<uint32_t>(tokens.size() / kBlockTokens + 1);
    const Clock::Monotonic asked = clock_.Now();
    while (true) {  // as ContextBlocks::Acquire
      const BlockNeed need = store_->NeedOf(root_, tokens, block_count);
      const bool waits = need.missing > need.available ||
                         (need.missing > need.lossless &&
                          store_->AwaitsRoom(need.missing - need.lossless, clock_.Now() - asked));
      if (!waits) break;
      AdvanceTo(clock_.Now() + Nanoseconds(machine_.disk_write_s));
    }
    const RestorePlan plan = PlanFor(tokens);
    const Clock::Monotonic begin = clock_.Now();
    std::vector<uint32_t> loads;
    for (const auto& order : plan.load_order) loads.insert(loads.end(), order.begin(), order.end());
    holds_ = store_->Match(root_, tokens, kPriorityDefault, loads);
    holds_.resize(block_count);
    FillWithFresh(old_count);
    AdvanceTo(begin + Nanoseconds(plan.predicted_s));
    const bool is_late = IsLoading();
    while (IsLoading()) AdvanceTo(clock_.Now() + Nanoseconds(machine_.disk_read_s));
    if (is_late) clock_.Advance(Nanoseconds(machine_.pass.FixedSeconds(kBlockTokens)));
    FillWithFresh(old_count);  // what got lost
    SealFull(tokens);
  }

  void Generate(const Tokens& tokens) {
    const size_t block_count = tokens.size() / kBlockTokens + 1;
    if (block_count > holds_.size()) {
      holds_.resize(block_count);
      FillWithFresh(0);
    }
    SealFull(tokens);
    holds_.clear();
  }

  RestorePlan PlanFor(const Tokens& tokens) {
    sources_.clear();
    for (const Origin origin : store_->Survey(root_, tokens)) sources_.push_back(SourceOf(origin));
    const auto channel = [](double block_s, const LoadFlow& flow) {
      return RestoreChannel{.block_s = block_s, .backlog_s = flow.under_way * block_s};
    };
    channels_ = {channel(machine_.host_s, store_->host_flow()),
                 channel(machine_.disk_read_s, store_->disk_flow())};
    return PlanRestore(
        {.blocks = sources_,
         .new_tokens = static_cast<uint32_t>(tokens.size() - sources_.size() * kBlockTokens),
         .block_tokens = kBlockTokens,
         .layers = machine_.layers,
         .chunk_tokens = kChunkTokens,
         .pass = machine_.pass,
         .channels = channels_,
         .uncertainty = 0.03,
         .allows_wave = false});
  }

  // A slot for each block that is not there nor on its way.
  void FillWithFresh(uint32_t old_count) {
    for (size_t i = 0; i < holds_.size(); ++i) {
      if (holds_[i] && (!holds_[i].is_sealed() || !holds_[i].is_lost())) continue;
      holds_[i].Release();
      computed_again_ += (i + 1) * kBlockTokens <= old_count;
    }
    const auto missing = static_cast<uint32_t>(
        std::ranges::count_if(holds_, [](const Hold& hold) { return !hold; }));
    Result<std::vector<Hold>> fresh = store_->Reserve(missing);
    CHECK(fresh.ok());
    for (Hold& hold : holds_) {
      if (hold) continue;
      hold = std::move(fresh->back());
      fresh->pop_back();
    }
  }

  bool IsLoading() const {
    return std::ranges::any_of(holds_, [](const Hold& hold) { return hold.is_loading(); });
  }

  void SealFull(const Tokens& tokens) {
    BlockKey parent = root_;
    for (size_t i = 0; (i + 1) * kBlockTokens <= tokens.size(); ++i) {
      if (!holds_[i].is_sealed()) {
        const auto own = std::span(tokens).subspan(i * kBlockTokens, kBlockTokens);
        holds_[i] = store_->Seal(std::move(holds_[i]), parent, own, kPriorityDefault);
      }
      parent = holds_[i].key();
    }
  }

  const SimulatedMachine machine_;
  const KvLayout layout_{
      .layer_count = 1, .kv_head_count = 1, .head_dim = 1, .block_tokens = kBlockTokens};
  const BlockKey root_ = RootKey({1, 2}, "layout", "");
  FakeClock clock_;
  TimedDevice device_;
  std::unique_ptr<BlockStore> store_;
  std::map<uint32_t, uint32_t> conversations_;  // tokens of each
  std::set<uint32_t> prefixes_;                 // that were computed
  std::vector<Hold> holds_;                     // of the context that is being used
  std::vector<BlockSource> sources_;
  std::array<RestoreChannel, 2> channels_;
  std::vector<double> times_;
  uint64_t computed_again_ = 0;
};

}  // namespace

std::vector<SimulatedMachine> SimulatedMachines() {
  const PassCosts cpu{.pass_s = 2e-4, .sweep_s = 4e-3, .token_s = 7e-4, .token_position_s = 1e-7};
  const PassCosts gpu{
      .pass_s = 1e-4, .sweep_s = 4.8e-3, .token_s = 32.5e-6, .token_position_s = 1.06e-9};
  return {{.name = "CPU, NVMe",
           .pass = cpu,
           .layers = 30,
           .device_blocks = 1000,
           .disk_blocks = 5700,
           .disk_read_s = 0.7e-3,
           .disk_write_s = 0.9e-3},
          {.name = "CPU, 20 MiB/s",
           .pass = cpu,
           .layers = 30,
           .device_blocks = 1000,
           .disk_blocks = 5700,
           .disk_read_s = 17.6e-3,
           .disk_write_s = 17.6e-3},
          {.name = "GPU, 5 GB/s",
           .pass = gpu,
           .layers = 32,
           .device_blocks = 1000,
           .host_blocks = 1000,
           .disk_blocks = 5700,
           .host_s = 42e-6,
           .disk_read_s = 0.42e-3,
           .disk_write_s = 0.42e-3,
           .speed = 20}};
}

SimulatedOutcome Simulate(const SimulatedMachine& machine, const Trace& trace,
                          EvictionPolicy policy) {
  Simulation simulation(machine, policy);
  for (const TraceTurn& turn : trace.turns) simulation.Turn(turn);
  return simulation.Outcome();
}

}  // namespace cairn
