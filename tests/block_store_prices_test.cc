// What BlockStore does with prices: which blocks it writes down, which it lets go, and which keep
// their place in the host pool.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "offload/block_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlockTokens = 4;
constexpr Tier kAbsent = Tier::kAbsent;
constexpr Tier kDevice = Tier::kDevice;
constexpr Tier kHost = Tier::kHost;
constexpr Tier kDisk = Tier::kDisk;

// A store over a disk that reads or writes a block in 700 us and does at once what it is told.
class PricedStore {
 public:
  explicit PricedStore(const OffloadConfig& config) {
    auto spill = std::make_unique<FakeSpillStore>(
        disk_, FakeSpillOptions{.segment_blocks = 1, .answer_chance = 1, .clock = &clock_},
        layout_.block_bytes());
    auto store = BlockStore::Create(config, layout_, *device_, clock_, std::move(spill));
    CHECK(store.ok());
    store_ = *std::move(store);
  }

  // A context of so many blocks that nobody knows yet, computed and left.
  Tokens Compute(uint32_t block_count, uint32_t priority = kPriorityDefault) {
    Tokens tokens(size_t{block_count} * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), 1000 * ++context_count_);
    Use(tokens, priority);
    return tokens;
  }

  // Brings back what has a copy, and computes the rest.
  void Use(const Tokens& tokens, uint32_t priority = kPriorityDefault) {
    std::vector<Hold> holds = store_->Match(root_, tokens, priority);
    holds.resize(tokens.size() / kBlockTokens);
    Settle();
    BlockKey parent = root_;
    for (size_t i = 0; i < holds.size(); ++i) {
      if (!holds[i]) {
        Result<std::vector<Hold>> fresh = store_->Reserve(1);
        ASSERT_TRUE(fresh.ok());
        const auto own = std::span(tokens).subspan(i * kBlockTokens, kBlockTokens);
        holds[i] = store_->Seal(std::move(fresh->front()), parent, own, priority);
      }
      ASSERT_TRUE(holds[i].is_ready());
      parent = holds[i].key();
    }
    clock_.Advance(milliseconds(100));
  }

  // Once the store has seen eight writes it knows what they take.
  void LearnWriting() {
    const Tokens tokens = Compute(8);
    Suspend(tokens, kDisk);
    ASSERT_EQ(Where(tokens), std::vector<Tier>(8, kDisk));
  }

  void Suspend(const Tokens& tokens, Tier tier) {
    store_->Suspend(root_, tokens, tier, [] {});
    Settle();
  }

  void WriteBack() {
    clock_.Advance(milliseconds(20));
    store_->WriteBack();
    Settle();
  }

  void Settle() {
    for (int i = 0; i < 10 || store_->has_copies_under_way(); ++i) store_->Poll();
    store_->CheckInvariants();
  }

  std::vector<Tier> Where(const Tokens& tokens) { return store_->Locate(root_, tokens); }
  uint64_t writes() const { return store_->disk_stats()->spills; }
  BlockNeed NeedOf(uint32_t block_count) { return store_->NeedOf(root_, {}, block_count); }
  BlockStore* operator->() { return store_.get(); }

 private:
  const KvLayout layout_{
      .layer_count = 1, .kv_head_count = 1, .head_dim = 2, .block_tokens = kBlockTokens};
  const BlockKey root_ = RootKey({1, 2}, "layout", "");
  FakeClock clock_;
  std::unique_ptr<Device> device_ = MakeCpuDevice({.backend = "cpu", .memory_bytes = 1 << 20});
  FakeDisk disk_;
  std::unique_ptr<BlockStore> store_;
  uint32_t context_count_ = 0;
};

// Block i takes 100 + 200 i us to compute, so writing pays from block 3 on.
constexpr RecomputePrice kGrowing{.block_s = 100e-6, .position_s = 50e-6};
constexpr RecomputePrice kCheap{.block_s = 50e-6, .position_s = 0};
constexpr RecomputePrice kDear{.block_s = 0.010, .position_s = 1e-6};

TEST(BlockStorePrices, OfTheNextToGoThoseThatAreWorthItAreWritten) {
  PricedStore store({.device_blocks_max = 16});
  store.LearnWriting();
  store->SetRecomputePrice(kGrowing);
  const Tokens tokens = store.Compute(16);
  store.WriteBack();
  EXPECT_EQ(store.writes(), 8u + 5);  // a quarter of the slots, and one
  EXPECT_EQ(store->stats().clean, 5u);
  store->Clear(kDevice);
  std::vector<Tier> expected(16, kAbsent);
  std::fill_n(expected.begin() + 3, 5, kDisk);
  EXPECT_EQ(store.Where(tokens), expected);
}

TEST(BlockStorePrices, WhatIsCheaperToComputeIsNotWrittenAndNotWaitedFor) {
  PricedStore store({.device_blocks_max = 16});
  store.LearnWriting();
  store->SetRecomputePrice(kDear);
  store.Compute(16);
  EXPECT_EQ(store.NeedOf(16).lossless, 0u);
  store->SetRecomputePrice(kCheap);
  store.WriteBack();
  EXPECT_EQ(store.writes(), 8u);
  EXPECT_EQ(store.NeedOf(16).lossless, 16u);
  EXPECT_EQ(store->stats().dirty, 16u);
}

TEST(BlockStorePrices, ADiskThatIsTooSlowIsTriedEveryTenSeconds) {
  PricedStore store({.device_blocks_max = 16});
  store.LearnWriting();
  store->SetRecomputePrice(kCheap);
  store.Compute(16);
  for (int i = 0; i < 1050; ++i) store.WriteBack();  // 21 seconds
  EXPECT_EQ(store.writes(), 8u + 8 + 8);
}

TEST(BlockStorePrices, WhatIsSuspendedByNameIsWrittenWhateverItCosts) {
  PricedStore store({.device_blocks_max = 16});
  store.LearnWriting();
  store->SetRecomputePrice(kCheap);
  const Tokens tokens = store.Compute(6);
  store.WriteBack();
  store.Suspend(tokens, kDisk);
  EXPECT_EQ(store.Where(tokens), std::vector<Tier>(6, kDisk));
}

// Four blocks that are used again and again and have a copy on disk, and four that are idle and
// have none, fill the device.
struct UsedAndIdle {
  explicit UsedAndIdle(PricedStore& store) {
    store.LearnWriting();
    used = store.Compute(4);
    store.Suspend(used, kDisk);
    idle = store.Compute(4);
    for (int i = 0; i < 3; ++i) store.Use(used);
  }
  Tokens used, idle;
};

// With a dear disk a copy there is worth little, and a block that is used stays before one that has
// none; with a cheap one the copy is nearly as good as the block.
TEST(BlockStorePrices, WhatIsUsedStaysThoughItHasACopy) {
  PricedStore store({.device_blocks_max = 8});
  const UsedAndIdle blocks(store);
  store->SetRecomputePrice(kCheap);
  store.WriteBack();
  store.Compute(4);
  EXPECT_EQ(store.Where(blocks.used), std::vector<Tier>(4, kDevice));
  EXPECT_EQ(store.Where(blocks.idle), std::vector<Tier>(4, kAbsent));
}

TEST(BlockStorePrices, NothingIsLostThatIsWorthWriting) {
  PricedStore store({.device_blocks_max = 8});
  const UsedAndIdle blocks(store);
  store->SetRecomputePrice(kDear);
  store.Compute(4);
  EXPECT_EQ(store.Where(blocks.used), std::vector<Tier>(4, kDisk));
  EXPECT_EQ(store.Where(blocks.idle), std::vector<Tier>(4, kDevice));
}

TEST(BlockStorePrices, WhatOnlyTheHostPoolHasIsWrittenDown) {
  PricedStore store({.device_blocks_max = 16, .host_blocks_max = 4, .host_in_place = false});
  store.LearnWriting();
  store->SetRecomputePrice(kDear);
  store.Suspend(store.Compute(4), kHost);
  for (int i = 0; i < 3; ++i) store.WriteBack();
  EXPECT_EQ(store.writes(), 8u + 2);  // a quarter of its slots, and one
}

TEST(BlockStorePrices, APlaceInTheHostPoolGoesToWhatIsWorthMore) {
  PricedStore store({.device_blocks_max = 16, .host_blocks_max = 4, .host_in_place = false});
  store->SetRecomputePrice(kDear);
  const auto in_host_count = [&](const Tokens& tokens) {
    return std::ranges::count(store.Where(tokens), kHost);
  };
  const auto with_record = [&](uint32_t block_count, uint32_t priority) {
    Tokens tokens = store.Compute(block_count, priority);
    store.Suspend(tokens, kDisk);
    store.Use(tokens, priority);
    store.Suspend(tokens, kHost);
    return tokens;
  };
  const Tokens first = with_record(4, 50);
  EXPECT_EQ(in_host_count(first), 4);
  const Tokens lesser = with_record(2, 0);
  EXPECT_EQ(in_host_count(lesser), 0);
  EXPECT_EQ(in_host_count(first), 4);
  const Tokens greater = with_record(2, 100);
  EXPECT_EQ(in_host_count(greater), 2);
  EXPECT_EQ(in_host_count(first), 2);
}

}  // namespace
}  // namespace cairn
