// Random histories of contexts over a device pool, a host pool and a disk that answers late, out of
// order and sometimes wrong, with restarts. Whatever a Hold offers as ready has the bytes of its
// tokens; the store's laws hold after each operation; nothing is left when it ends. One seed
// replays one history.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "offload/block_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"
#include "tests/fakes/far_device.h"
#include "tests/fakes/late_copy_device.h"
#include "tests/fakes/pattern_kv.h"

namespace cairn {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlockTokens = 4;
constexpr uint32_t kContextBlocksMax = 6;

struct Setup {
  const char* name;
  uint64_t seed;
  uint32_t device_blocks;
  uint32_t host_blocks;
  bool in_place;
  uint64_t disk_blocks;  // 0: no disk
  double faults;         // chance of each kind
  // The device's memory cannot be addressed; what comes from disk passes through so many slots.
  uint32_t staging_blocks = 0;
  uint64_t host_bandwidth_limit = 0;
  uint32_t operation_count = 60000;
};
std::ostream& operator<<(std::ostream& out, const Setup& setup) { return out << setup.name; }

// A running generation, as ContextBlocks does it: what is lost or missing is computed in order.
struct Run {
  Tokens tokens;
  std::vector<Hold> holds;  // of every block of `tokens`; the last may be a tail
  size_t next = 0;          // blocks before it are sealed and ready
};

// A block that began with another's bytes.
struct Copied {
  Tokens tokens;
  size_t begin;
  PartialBlock block;
};

class History {
 public:
  explicit History(const Setup& setup) : setup_(setup), rng_(setup.seed) {
    device_ = std::make_unique<LateCopyDevice>(1 << 24, setup.seed);
    if (setup.staging_blocks > 0) {
      auto far = std::make_unique<FarDevice>(std::move(device_), setup.faults / 4, setup.seed);
      far_ = far.get();
      device_ = std::move(far);
    }
    auto compute = device_->NewStream(StreamUse::kCompute);
    CHECK(compute.ok());
    compute_ = *std::move(compute);
    Open();
  }
  ~History() {
    copied_.reset();
    runs_.clear();
    store_.reset();
  }

  void Step() {
    clock_.Advance(std::chrono::milliseconds(rng_.Below(50)));
    const uint64_t choice = rng_.Below(1000);
    if (choice < 200) {
      Start();
    } else if (choice < 500) {
      if (Run* run = AnyRun()) Advance(*run);
    } else if (choice < 570) {
      Finish();
    } else if (choice < 600) {
      CopyPrefix();
    } else if (choice < 650) {
      Suspend();
    } else if (choice < 950) {
      store_->Poll();
    } else if (choice < 980) {
      store_->WriteBack();
    } else if (choice < 985) {
      store_->DropUnheld(root_, SomeContext(), static_cast<uint32_t>(rng_.Below(3)));
    } else if (choice < 990) {
      constexpr Tier kTiers[] = {Tier::kAbsent, Tier::kDevice, Tier::kHost, Tier::kDisk};
      store_->Clear(kTiers[rng_.Below(4)]);
    } else if (choice < 994) {
      Expect();
      store_->SpillAll([this] { --departures_; });
    } else if (choice < 996) {
      Restart();
    } else {
      ChangeTheWeather();
    }
    Check();
  }

  // No more faults: everything that is under way ends, and then nothing is left of it.
  void Settle() {
    copied_.reset();
    runs_.clear();
    if (spill_ != nullptr) {
      spill_->options = Options();
      spill_->options.read_error = spill_->options.write_error = spill_->options.corruption = 0;
      spill_->options.answer_chance = 1;
    }
    const auto is_busy = [&] {
      const bool is_staged = store_->disk_stats() && store_->disk_stats()->store.staged_count > 0;
      return departures_ > 0 || store_->stats().in_flight > 0 || store_->has_copies_under_way() ||
             is_staged;
    };
    Expect();
    store_->SpillAll([this] { --departures_; });
    for (int i = 0; i < 10000 && is_busy(); ++i) {
      clock_.Advance(std::chrono::milliseconds(100));
      store_->Poll();
    }
    EXPECT_EQ(departures_, 0);
    EXPECT_EQ(store_->stats().in_flight, 0u);
    if (store_->disk_stats()) {
      EXPECT_EQ(store_->disk_stats()->store.staging_count, setup_.staging_blocks);
      EXPECT_EQ(store_->disk_stats()->store.staged_count, 0u);
    }
    Count();
    EXPECT_EQ(store_->stats().held_hot + store_->stats().filling, 0u);
    Check();
  }

  const BlockStoreStats& totals() const { return totals_; }
  uint64_t loads() const { return loads_; }
  uint64_t lost() const { return lost_; }
  uint64_t copied() const { return copied_count_; }

 private:
  FakeSpillOptions Options() {
    return {.seed = rng_.Next(),
            .quota_blocks = setup_.disk_blocks,
            .segment_blocks = 4,
            .answer_chance = 0.6,
            .read_error = setup_.faults,
            .corruption = setup_.faults,
            .write_error = setup_.faults};
  }

  void Open() {
    const OffloadConfig config{.device_blocks_max = setup_.device_blocks,
                               .host_blocks_max = setup_.host_blocks,
                               .host_in_place = setup_.in_place,
                               .staging_blocks_max = std::max(setup_.staging_blocks, 2u),
                               .host_bandwidth_limit = setup_.host_bandwidth_limit,
                               .verify_duplicates = true};
    std::unique_ptr<FakeSpillStore> spill;
    if (setup_.disk_blocks > 0) {
      spill = std::make_unique<FakeSpillStore>(disk_, Options(), layout_.block_bytes());
    }
    spill_ = spill.get();
    auto store = BlockStore::Create(config, layout_, *device_, clock_, std::move(spill));
    CHECK(store.ok());
    store_ = *std::move(store);
  }

  // The process dies: only the disk stays.
  void Restart() {
    copied_.reset();
    runs_.clear();
    Count();
    store_.reset();
    departures_ = 0;
    Open();
  }

  void Count() {
    const BlockStoreStats stats = store_->stats();
    totals_.evictions += stats.evictions;
    totals_.losses += stats.losses;
    totals_.demotions += stats.demotions;
    totals_.promotions += stats.promotions;
    totals_.duplicate_seals += stats.duplicate_seals;
    if (store_->disk_stats()) loads_ += store_->disk_stats()->loads;
  }

  // A disk that hangs, or turns slow, and recovers.
  void ChangeTheWeather() {
    if (spill_ == nullptr) return;
    spill_->options.hangs = rng_.Chance(0.1);
    if (spill_->options.hangs && rng_.Chance(0.5)) clock_.Advance(2 * DiskTier::kPatience);
    // Nothing, the later blocks, or everything is worth a write of 700 us.
    constexpr RecomputePrice kPrices[] = {{1e-4, 0}, {5e-4, 2e-5}, {1e-2, 1e-6}};
    store_->SetRecomputePrice(kPrices[rng_.Below(3)]);
  }

  // The bytes of a block, as operations on the compute stream would see them.
  std::byte* Reach(const std::byte* address) {
    CHECK(compute_->Synchronize().ok());
    return far_ != nullptr ? far_->Reach(address) : const_cast<std::byte*>(address);
  }

  Run* AnyRun() { return runs_.empty() ? nullptr : &runs_[rng_.Below(runs_.size())]; }

  Tokens SomeContext() {
    Tokens tokens;
    if (!contexts_.empty() && rng_.Chance(0.9)) tokens = contexts_[rng_.Below(contexts_.size())];
    if (rng_.Chance(0.15)) tokens.resize(rng_.Below(tokens.size() + 1));
    const bool grows = tokens.size() < 2 * kBlockTokens || rng_.Chance(0.4);
    for (uint64_t more = grows ? 1 + rng_.Below(3 * kBlockTokens) : 0; more > 0; --more) {
      tokens.push_back(static_cast<uint32_t>(rng_.Below(3)));
    }
    tokens.resize(std::min<size_t>(tokens.size(), kContextBlocksMax * kBlockTokens - 1));
    return tokens;
  }

  // Begins a block with another's bytes, and sees later whether they came.
  void CopyPrefix() {
    if (copied_) {
      for (size_t i = 1; i <= copied_->block.token_count; ++i) {
        const auto context = std::span(copied_->tokens).first(copied_->begin + i);
        ASSERT_TRUE(HasPatternKv(layout_, Reach(copied_->block.block.writable_address()), context));
      }
      return copied_.reset();
    }
    const Tokens tokens = SomeContext();
    BlockKey parent = root_;
    size_t begin = 0;
    for (; begin + kBlockTokens < tokens.size() && rng_.Chance(0.6); begin += kBlockTokens) {
      parent = ChildKey(parent, std::span(tokens).subspan(begin, kBlockTokens));
    }
    auto block = store_->CopyPrefix(parent, std::span(tokens).subspan(begin), *compute_);
    copied_count_ += block.has_value();
    // Dropped at once: its slot may have another block before the copy comes.
    if (block && rng_.Chance(0.5)) copied_.emplace(tokens, begin, *std::move(block));
  }

  // Takes everything that a context needs, or nothing.
  void Start() {
    if (runs_.size() >= 4) return;
    Run run{.tokens = SomeContext()};
    const auto block_count = static_cast<uint32_t>(run.tokens.size() / kBlockTokens + 1);
    const BlockNeed need = store_->NeedOf(root_, run.tokens, block_count);
    ASSERT_LE(need.lossless, need.available);
    if (need.missing > need.lossless && need.missing <= need.available && rng_.Chance(0.8) &&
        store_->AwaitsRoom(need.missing - need.lossless, std::chrono::hours(rng_.Below(2)))) {
      return;
    }
    if (need.missing > need.available) return;
    const std::vector<Tier> tiers = store_->Locate(root_, run.tokens);
    std::vector<uint32_t> loads(run.tokens.size() / kBlockTokens);
    std::iota(loads.begin(), loads.end(), 0);
    const uint32_t turn = rng_.Chance(0.3) ? kTurnAhead : static_cast<uint32_t>(rng_.Below(3));
    run.holds = store_->Match(root_, run.tokens, kPriorityDefault, loads, turn);
    if (rng_.Chance(0.5)) store_->OrderLoads();
    ASSERT_LE(run.holds.size(), tiers.size());
    run.holds.resize(block_count);
    uint32_t missing = 0;
    for (size_t i = 0; i < block_count; ++i) {
      if (!run.holds[i]) {
        ++missing;
        continue;
      }
      // A record may go while it is being read.
      ASSERT_TRUE(tiers[i] != Tier::kAbsent || run.holds[i].is_loading());
      if (run.holds[i].is_ready()) Verify(run, i);
    }
    Result<std::vector<Hold>> fresh = store_->Reserve(missing);
    ASSERT_TRUE(fresh.ok()) << fresh.status().ToString();
    for (Hold& hold : run.holds) {
      if (hold) continue;
      hold = std::move(fresh->back());
      fresh->pop_back();
    }
    contexts_.push_back(run.tokens);
    if (contexts_.size() > 12) contexts_.erase(contexts_.begin());
    runs_.push_back(std::move(run));
  }

  void Verify(const Run& run, size_t block) {
    for (size_t i = 1; i <= kBlockTokens; ++i) {
      const auto context = std::span(run.tokens).first(block * kBlockTokens + i);
      ASSERT_TRUE(HasPatternKv(layout_, Reach(run.holds[block].address()), context));
    }
  }

  // Some blocks further, unless one is still on its way. The run ends when a lost block finds no
  // slot.
  void Advance(Run& run) {
    for (Hold& hold : run.holds) {
      if (hold.is_loading()) return;
    }
    for (uint64_t steps = 1 + rng_.Below(4); steps > 0 && run.next < run.holds.size(); --steps) {
      Hold& hold = run.holds[run.next];
      const size_t begin = run.next * kBlockTokens;
      const auto own =
          std::span(run.tokens)
              .subspan(begin, std::min<size_t>(kBlockTokens, run.tokens.size() - begin));
      if (hold.is_lost()) {
        ++lost_;
        Result<std::vector<Hold>> fresh = store_->Reserve(1);
        if (!fresh.ok()) return Forget(run);
        hold = std::move(fresh->front());
      }
      if (IsFilling(run, run.next)) {
        for (size_t i = 1; i <= own.size(); ++i) {
          WritePatternKv(layout_, Reach(hold.writable_address()),
                         std::span(run.tokens).first(begin + i));
        }
        if (own.size() < kBlockTokens) return;
        hold = store_->Seal(std::move(hold), Parent(run), own, kPriorityDefault);
      }
      Verify(run, run.next);
      ++run.next;
    }
  }

  bool IsFilling(const Run& run, size_t block) const {
    const size_t begin = block * kBlockTokens;
    if (begin + kBlockTokens > run.tokens.size()) return true;
    return !run.holds[block].is_sealed();
  }
  BlockKey Parent(const Run& run) const {
    return run.next == 0 ? root_ : run.holds[run.next - 1].key();
  }

  void Forget(const Run& run) {
    std::erase_if(runs_, [&](const Run& other) { return &other == &run; });
  }

  void Finish() {
    if (runs_.empty()) return;
    Run& run = runs_[rng_.Below(runs_.size())];
    const size_t tail = run.tokens.size() % kBlockTokens;
    if (run.next + 1 == run.holds.size() && tail > 0 && rng_.Chance(0.7)) {
      const auto own = std::span(run.tokens).last(tail);
      for (size_t i = 1; i <= tail; ++i) {
        WritePatternKv(layout_, Reach(run.holds.back().writable_address()),
                       std::span(run.tokens).first(run.next * kBlockTokens + i));
      }
      store_->Park(std::move(run.holds.back()), Parent(run), own, kPriorityDefault);
    }
    Forget(run);
  }

  void Expect() { ++departures_; }

  void Suspend() {
    const Tier below = rng_.Chance(0.5) ? Tier::kHost : Tier::kDisk;
    const Tier tier = rng_.Chance(0.05) ? Tier::kAbsent : below;
    Expect();
    store_->Suspend(root_, SomeContext(), tier, [this] { --departures_; });
  }

  void Check() {
    store_->CheckInvariants();
    if (spill_ == nullptr) return;
    const SpillStats stats = spill_->stats();
    ASSERT_LE(stats.used_bytes, stats.quota_bytes);
  }

  const Setup setup_;
  Rng rng_;
  const KvLayout layout_{
      .layer_count = 2, .kv_head_count = 1, .head_dim = 2, .block_tokens = kBlockTokens};
  const BlockKey root_ = RootKey({1, 2}, "layout", "");
  FakeClock clock_;
  std::unique_ptr<Device> device_;
  FarDevice* far_ = nullptr;
  std::unique_ptr<Stream> compute_;
  FakeDisk disk_;
  FakeSpillStore* spill_ = nullptr;
  std::unique_ptr<BlockStore> store_;
  std::vector<Run> runs_;
  std::optional<Copied> copied_;
  uint64_t copied_count_ = 0;
  std::vector<Tokens> contexts_;
  int departures_ = 0;
  BlockStoreStats totals_;
  uint64_t loads_ = 0;
  uint64_t lost_ = 0;
};

class BlockStoreTiersTest : public testing::TestWithParam<Setup> {};

TEST_P(BlockStoreTiersTest, RandomHistory) {
  const auto& setup = GetParam();
  History history(setup);
  for (uint32_t i = 0; i < setup.operation_count; ++i) {
    ASSERT_NO_FATAL_FAILURE(history.Step()) << "operation " << i;
    ASSERT_FALSE(testing::Test::HasNonfatalFailure()) << "operation " << i;
  }
  history.Settle();
  // The history went everywhere.
  EXPECT_EQ(history.loads() > 100, setup.disk_blocks > 0);
  EXPECT_EQ(history.lost() > 20, setup.faults > 0);
  EXPECT_GT(history.copied(), 100u);
  EXPECT_EQ(history.totals().demotions > 20, setup.host_blocks > 0);
  EXPECT_EQ(history.totals().promotions > 20, setup.host_blocks > 0 && !setup.in_place);
}

INSTANTIATE_TEST_SUITE_P(All, BlockStoreTiersTest,
                         testing::Values(Setup{"Disk", 1, 16, 0, true, 100, 0},
                                         Setup{"HostInPlace", 2, 8, 8, true, 0, 0},
                                         Setup{"HostCopied", 3, 16, 12, false, 0, 0},
                                         Setup{"AllInPlace", 4, 8, 8, true, 100, 0},
                                         Setup{"AllCopied", 5, 16, 8, false, 100, 0},
                                         Setup{"SmallDisk", 6, 12, 4, true, 24, 0},
                                         Setup{"FaultyInPlace", 7, 8, 6, true, 60, 0.1},
                                         Setup{"FaultyCopied", 8, 14, 6, false, 60, 0.1},
                                         Setup{"FaultyDisk", 9, 14, 0, true, 40, 0.3},
                                         Setup{"FarDisk", 10, 16, 0, false, 100, 0, 4},
                                         Setup{"FarAll", 11, 16, 8, false, 60, 0, 8},
                                         Setup{"FarFaulty", 12, 14, 6, false, 40, 0.1, 4},
                                         Setup{"FarTwoSlots", 13, 14, 0, false, 40, 0.1, 2},
                                         // About one block an operation.
                                         Setup{"CopiedSlowly", 14, 16, 12, false, 100, 0, 0, 5000},
                                         Setup{"FarSlowly", 15, 14, 8, false, 60, 0.1, 4, 5000}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace cairn
