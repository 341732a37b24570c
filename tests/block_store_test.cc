// BlockStore, one law at a time. tests/block_store_model_test.cc has the random histories.
#include "offload/block_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/pattern_kv.h"

namespace cairn {
namespace {

using std::chrono::seconds;
using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlockTokens = 4;

Tokens Concat(Tokens head, const Tokens& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

// A key that sees only the parent and the first token of a block: easy to collide with.
BlockKey FirstTokenKey(const BlockKey& parent, std::span<const uint32_t> tokens) {
  return ChildKey(parent, tokens.first(1));
}

class BlockStoreTest : public testing::Test {
 protected:
  void SetUp() override { Start({.device_blocks_max = 8}); }

  void Start(const OffloadConfig& config, BlockStore::ChildKeyFunction child_key = &ChildKey) {
    store_.reset();
    Result<std::unique_ptr<BlockStore>> store =
        BlockStore::Create(config, layout_, *device_, clock_, nullptr, child_key);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
  }
  void TearDown() override { store_->CheckInvariants(); }

  Hold NewBlock() {
    Result<std::vector<Hold>> holds = store_->Reserve(1);
    CHECK(holds.ok());
    return std::move(holds->front());
  }

  // Computes and seals the whole blocks of `tokens`, and parks the rest, as a sequence would.
  std::vector<Hold> Run(const Tokens& tokens, uint32_t priority = kPriorityDefault) {
    std::vector<Hold> holds = store_->Match(root_, tokens, priority);
    BlockKey parent = root_;
    for (size_t begin = 0; begin < tokens.size(); begin += kBlockTokens) {
      const size_t index = begin / kBlockTokens;
      if (holds.size() == index) holds.emplace_back();
      const size_t count = std::min<size_t>(kBlockTokens, tokens.size() - begin);
      const auto block_tokens = std::span(tokens).subspan(begin, count);
      if (!holds[index]) {
        Hold fresh = NewBlock();
        for (size_t i = 1; i <= count; ++i) {
          WritePatternKv(layout_, fresh.writable_address(), std::span(tokens).first(begin + i));
        }
        if (count < kBlockTokens) {
          store_->Park(std::move(fresh), parent, block_tokens, priority);
          break;
        }
        holds[index] = store_->Seal(std::move(fresh), parent, block_tokens, priority);
      }
      parent = holds[index].key();
    }
    if (!holds.empty() && !holds.back()) holds.pop_back();
    return holds;
  }

  bool Holds(const Hold& hold, const Tokens& context, size_t first, size_t count) const {
    for (size_t i = first + 1; i <= first + count; ++i) {
      if (!HasPatternKv(layout_, hold.address(), std::span(context).first(i))) return false;
    }
    return true;
  }

  const KvLayout layout_{.layer_count = 2, .kv_head_count = 1, .head_dim = 4, .block_tokens = 4};
  const BlockKey root_ = RootKey({1, 2}, "layout", "");
  FakeClock clock_;
  std::unique_ptr<Device> device_ = MakeCpuDevice({.backend = "cpu", .memory_bytes = 1 << 20});
  CpuComputeStream stream_;
  std::unique_ptr<BlockStore> store_;
};

TEST_F(BlockStoreTest, RefusesAPoolOfNothingAndOneThatIsTooLarge) {
  const auto none = BlockStore::Create({}, layout_, *device_, clock_);
  EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(none.status().message(), testing::HasSubstr("device_blocks_max"));
  const auto vast = BlockStore::Create({.device_blocks_max = 1 << 20}, layout_, *device_, clock_);
  EXPECT_EQ(vast.status().code(), Code::kResourceExhausted);
}

TEST_F(BlockStoreTest, NewSlotsAreZeroAlignedAndApart) {
  const Result<std::vector<Hold>> holds = store_->Reserve(8);
  ASSERT_TRUE(holds.ok());
  std::vector<const std::byte*> addresses;
  for (const Hold& hold : *holds) {
    addresses.push_back(hold.address());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(hold.address()) % SlotPool::kSlotAlignment, 0u);
    EXPECT_TRUE(std::all_of(hold.address(), hold.address() + layout_.block_bytes(),
                            [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(hold.ready(), nullptr);
  }
  std::ranges::sort(addresses);
  for (size_t i = 1; i < addresses.size(); ++i) {
    EXPECT_GE(addresses[i] - addresses[i - 1], static_cast<ptrdiff_t>(layout_.block_bytes()));
  }
}

TEST_F(BlockStoreTest, SealedBlocksAreFoundByTheirTokens) {
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  Run(tokens).clear();
  const std::vector<Hold> found = store_->Match(root_, tokens, kPriorityDefault);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(Holds(found[0], tokens, 0, 4));
  EXPECT_TRUE(Holds(found[1], tokens, 4, 4));
  EXPECT_EQ(store_->Match(root_, Tokens{1, 2, 3, 4, 5, 6, 7, 0}, 50).size(), 1u);
  EXPECT_EQ(store_->Match(root_, Tokens{1, 2, 3, 0, 5, 6, 7, 8}, 50).size(), 0u);
  EXPECT_EQ(store_->Match(root_, Tokens{1, 2, 3}, 50).size(), 0u);
  EXPECT_EQ(store_->Match(RootKey({1, 2}, "layout", "other tenant"), tokens, 50).size(), 0u);
  EXPECT_EQ(store_->stats().hits, 3u);
  EXPECT_EQ(store_->stats().misses, 2u + 1 + 2 + 2);  // the first two are Run's own
}

TEST_F(BlockStoreTest, MatchLooksPastHoles) {
  Start({.device_blocks_max = 3});
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  Run(tokens).clear();
  NewBlock().Release();  // the chain's first block makes room
  EXPECT_THAT(store_->Locate(root_, tokens),
              testing::ElementsAre(Tier::kAbsent, Tier::kDevice, Tier::kDevice));
  const std::vector<Hold> found = store_->Match(root_, tokens, kPriorityDefault);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_FALSE(found[0]);
  EXPECT_TRUE(Holds(found[1], tokens, 4, 4));
  EXPECT_TRUE(Holds(found[2], tokens, 8, 4));
  // A hole's tokens are compared too.
  const Tokens other{1, 2, 3, 0, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(store_->Match(root_, other, kPriorityDefault).size(), 0u);
}

TEST_F(BlockStoreTest, ReserveTakesAllOrNone) {
  const std::vector<Hold> held = Run({1, 2, 3, 4, 5, 6, 7, 8});
  Run({9, 9, 9, 9}).clear();
  const Result<std::vector<Hold>> filling = store_->Reserve(2);
  ASSERT_TRUE(filling.ok());
  const Result<std::vector<Hold>> refused = store_->Reserve(5);
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.status().message(), "need 5 blocks: 3 free, 1 evictable, capacity 8");
  EXPECT_EQ(store_->stats().evictions, 0u);
  const Result<std::vector<Hold>> granted = store_->Reserve(4);
  EXPECT_TRUE(granted.ok());
  EXPECT_EQ(store_->stats().evictions, 1u);
  EXPECT_EQ(store_->Reserve(1).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(store_->Reserve(0).ok());
}

TEST_F(BlockStoreTest, NeedOfCountsWhatIsThereOnceAndUsesNothing) {
  const Tokens idle{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<Hold> held = Run({9, 9, 9, 9});
  Run(idle).clear();
  const BlockStoreStats before = store_->stats();
  // Of 8 slots 5 are free, 2 hold `idle` and 1 is held: who uses `idle` cannot evict it too.
  const BlockNeed need = store_->NeedOf(root_, idle, 8);
  EXPECT_EQ(need.missing, 6u);
  EXPECT_EQ(need.available, 5u);
  EXPECT_EQ(store_->NeedOf(root_, Tokens{9, 9, 9, 9}, 8).available, 7u);
  EXPECT_EQ(store_->NeedOf(root_, Tokens{5, 5, 5, 5}, 8).missing, 8u);
  EXPECT_EQ(store_->stats().hits, before.hits);
  EXPECT_EQ(store_->stats().misses, before.misses);
  const std::vector<Hold> found = store_->Match(root_, idle, kPriorityDefault);
  EXPECT_FALSE(store_->Reserve(need.available + 1).ok());
  EXPECT_TRUE(store_->Reserve(need.available).ok());
}

TEST_F(BlockStoreTest, EqualBlocksBecomeOne) {
  Start({.device_blocks_max = 8, .verify_duplicates = true});
  const Tokens tokens{1, 2, 3, 4};
  const std::vector<Hold> first = Run(tokens);
  Hold second = NewBlock();
  for (size_t i = 1; i <= 4; ++i) {
    WritePatternKv(layout_, second.writable_address(), std::span(tokens).first(i));
  }
  second = store_->Seal(std::move(second), root_, tokens, kPriorityDefault);
  EXPECT_EQ(second.id(), first[0].id());
  EXPECT_EQ(second.address(), first[0].address());
  EXPECT_EQ(store_->stats().duplicate_seals, 1u);
  EXPECT_EQ(store_->stats().free, 7u);

  Hold wrong = NewBlock();
  wrong.writable_address()[0] ^= std::byte{1};  // a breach of the determinism law
  EXPECT_DEATH((void)store_->Seal(std::move(wrong), root_, tokens, 50), "memcmp");
}

TEST_F(BlockStoreTest, ACollisionNeverServesForeignBytes) {
  Start({.device_blocks_max = 8}, &FirstTokenKey);
  const Tokens mine{1, 2, 3, 4, 5, 6, 7, 8};
  const Tokens foreign{1, 0, 0, 0, 5, 6, 7, 8};  // same keys at both blocks, same second block
  Run(mine).clear();
  EXPECT_EQ(store_->Match(root_, foreign, 50).size(), 0u);
  {
    const std::vector<Hold> held = Run(foreign);  // sealed beside the others, not taken for them
    ASSERT_EQ(held.size(), 2u);
    EXPECT_TRUE(Holds(held[0], foreign, 0, 4));
    EXPECT_TRUE(Holds(held[1], foreign, 4, 4));
    EXPECT_EQ(store_->stats().collisions, 1u);  // the second block follows a key of its own
    EXPECT_EQ(store_->stats().duplicate_seals, 0u);
  }
  const std::vector<Hold> found = store_->Match(root_, mine, 50);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(Holds(found[1], mine, 4, 4));
}

// The first block of `mine` is gone; what follows it may still not be served to `foreign`, whose
// first block now could have the key.
TEST_F(BlockStoreTest, ACollisionAtAHoleNeverServesForeignBytes) {
  Start({.device_blocks_max = 4}, &FirstTokenKey);
  const Tokens mine{1, 2, 3, 4, 5, 6, 7, 8};
  const Tokens foreign{1, 0, 0, 0, 5, 6, 7, 8};
  const std::vector<Hold> second = [&] {
    std::vector<Hold> holds = Run(mine);
    holds.erase(holds.begin());
    return holds;
  }();
  ASSERT_EQ(store_->Clear(), 1u);
  EXPECT_EQ(store_->Match(root_, foreign, 50).size(), 0u);
  const std::vector<Hold> held = Run(foreign);
  ASSERT_EQ(held.size(), 2u);
  EXPECT_TRUE(Holds(held[1], foreign, 4, 4));
  EXPECT_NE(held[1].id(), second[0].id());
}

TEST_F(BlockStoreTest, CopyPrefixTakesTheLongestAndLeavesTheSource) {
  const Tokens tail{1, 2, 3};
  Run(tail);
  Run({1, 2, 9, 9});
  Run({7, 7, 7, 7});
  std::optional<PartialBlock> copy = store_->CopyPrefix(root_, Tokens{1, 2, 3, 4, 5}, stream_);
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->token_count, 3u);
  EXPECT_TRUE(Holds(copy->block, tail, 0, 3));
  const Tokens longer{1, 2, 3, 4};
  WritePatternKv(layout_, copy->block.writable_address(), longer);

  const std::optional<PartialBlock> again = store_->CopyPrefix(root_, Tokens{1, 2, 3}, stream_);
  ASSERT_TRUE(again);
  EXPECT_FALSE(HasPatternKv(layout_, again->block.address(), longer));
  // A rewind into a full block, and no match at all.
  EXPECT_EQ(store_->CopyPrefix(root_, Tokens{7, 7, 8}, stream_)->token_count, 2u);
  EXPECT_FALSE(store_->CopyPrefix(root_, Tokens{8}, stream_));
  EXPECT_FALSE(store_->CopyPrefix(root_, Tokens{}, stream_));
  EXPECT_FALSE(store_->CopyPrefix(RootKey({}, "", ""), Tokens{1}, stream_));
}

TEST_F(BlockStoreTest, CopyPrefixNeverEvictsItsSource) {
  Start({.device_blocks_max = 2});
  const Tokens cheap{1, 2};
  Run(cheap);  // a parked tail of two tokens: the first to go
  clock_.Advance(seconds(100));
  Run({7, 7, 7, 7}, kPriorityMax).clear();
  {
    const std::optional<PartialBlock> copy = store_->CopyPrefix(root_, cheap, stream_);
    ASSERT_TRUE(copy);
    EXPECT_TRUE(Holds(copy->block, cheap, 0, 2));
    EXPECT_FALSE(store_->CopyPrefix(root_, cheap, stream_));  // only the source is evictable
    EXPECT_EQ(store_->stats().parked, 1u);
  }
  EXPECT_EQ(store_->stats().free, 1u);
}

TEST_F(BlockStoreTest, CopyPrefixComparesABoundedNumberOfBlocks) {
  Start({.device_blocks_max = BlockStore::kSiblingScanMax + 2});
  for (uint32_t first = 0; first <= BlockStore::kSiblingScanMax; ++first) {
    Run({first, 0, 0, 0}).clear();
  }
  EXPECT_FALSE(store_->CopyPrefix(root_, Tokens{0, 0}, stream_));  // the oldest of 33
  EXPECT_TRUE(store_->CopyPrefix(root_, Tokens{1, 0}, stream_));
}

TEST_F(BlockStoreTest, CoveredTailsGo) {
  Run({1, 2});
  EXPECT_EQ(store_->stats().parked, 1u);
  Run({1, 2, 3});  // covers the shorter one
  EXPECT_EQ(store_->stats().parked, 1u);
  Run({1});  // is covered
  EXPECT_EQ(store_->stats().parked, 1u);
  Run({1, 9});  // branches off
  EXPECT_EQ(store_->stats().parked, 2u);
  Run({1, 2, 3, 4}).clear();
  EXPECT_EQ(store_->stats().parked, 1u);
  EXPECT_EQ(store_->stats().hot, 2u);
  EXPECT_EQ(store_->stats().drops, 2u);
}

TEST_F(BlockStoreTest, HoldsKeepAndRelease) {
  Hold filling = NewBlock();
  EXPECT_EQ(store_->stats().filling, 1u);
  filling.Release();
  EXPECT_FALSE(filling);
  EXPECT_EQ(store_->stats().free, 8u);

  std::vector<Hold> held = Run({1, 2, 3, 4});
  Hold clone = held[0].Clone();
  held.clear();
  EXPECT_EQ(store_->Clear(), 0u);
  EXPECT_EQ(store_->stats().held_hot, 1u);
  Hold moved = std::move(clone);
  clone = std::move(moved);
  EXPECT_EQ(store_->stats().held_hot, 1u);
  clone = Hold();
  EXPECT_EQ(store_->stats().evictable, 1u);
  EXPECT_EQ(store_->Clear(), 1u);
  EXPECT_EQ(store_->stats().free, 8u);
}

TEST_F(BlockStoreTest, DropUnheldDropsAContextAndItsTail) {
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  Run(tokens).clear();
  Run(Concat({1, 2, 3, 4}, {0, 0, 0, 0})).clear();
  const std::vector<Hold> held = store_->Match(root_, Tokens{1, 2, 3, 4}, 50);
  EXPECT_EQ(store_->DropUnheld(root_, tokens), 2u);  // the second block and the tail
  EXPECT_EQ(store_->stats().hot, 2u);
  EXPECT_THAT(store_->Locate(root_, tokens), testing::ElementsAre(Tier::kDevice, Tier::kAbsent));
  EXPECT_EQ(store_->Locate(root_, Tokens{1, 2, 3, 4, 0, 0, 0, 0})[1], Tier::kDevice);
  EXPECT_EQ(store_->DropUnheld(root_, Tokens{5, 5, 5, 5, 5}), 0u);
}

TEST_F(BlockStoreTest, TheLongestUnusedGoesUnlessItsPriorityIsHigher) {
  Start({.device_blocks_max = 3});
  const Tokens a{1, 1, 1, 1}, b{2, 2, 2, 2}, c{3, 3, 3, 3};
  Run(a, 90).clear();
  clock_.Advance(seconds(1));
  std::vector<Hold> b_held = Run(b);
  clock_.Advance(seconds(1));
  Run(c).clear();
  clock_.Advance(seconds(1));
  b_held.clear();  // the last use is the end of the last Hold
  clock_.Advance(seconds(1));
  NewBlock().Release();
  EXPECT_EQ(store_->Locate(root_, c)[0], Tier::kAbsent);
  EXPECT_EQ(store_->Locate(root_, b)[0], Tier::kDevice);
  EXPECT_EQ(store_->Locate(root_, a)[0], Tier::kDevice);
}

TEST_F(BlockStoreTest, PriorityDoesNotKeepForEver) {
  Start({.device_blocks_max = 2});
  const Tokens urgent{1, 1, 1, 1}, plain{2, 2, 2, 2};
  Run(urgent, kPriorityDefault + 10).clear();  // worth twice as much, but ten times as old
  clock_.Advance(seconds(9));
  Run(plain).clear();
  clock_.Advance(seconds(1));
  NewBlock().Release();
  EXPECT_EQ(store_->Locate(root_, urgent)[0], Tier::kAbsent);
  EXPECT_EQ(store_->Locate(root_, plain)[0], Tier::kDevice);
}

// Victims are ranked in batches; what is used after the ranking is no victim any more.
TEST_F(BlockStoreTest, UseSavesARankedVictim) {
  Start({.device_blocks_max = 256});  // ranks 4 at a time
  for (uint32_t i = 0; i < 256; ++i) {
    Run({i, 0, 0, 0}).clear();
    clock_.Advance(seconds(1));
  }
  Hold filling = NewBlock();  // evicts 0, with 1, 2 and 3 ranked behind it
  EXPECT_EQ(store_->Locate(root_, Tokens{0, 0, 0, 0})[0], Tier::kAbsent);
  store_->Match(root_, Tokens{1, 0, 0, 0}, kPriorityDefault).clear();
  ASSERT_EQ(store_->DropUnheld(root_, Tokens{2, 0, 0, 0}), 1u);
  Hold second = NewBlock();  // takes the freed slot
  Hold third = NewBlock();
  EXPECT_EQ(store_->Locate(root_, Tokens{1, 0, 0, 0})[0], Tier::kDevice);
  EXPECT_EQ(store_->Locate(root_, Tokens{3, 0, 0, 0})[0], Tier::kAbsent);
  EXPECT_EQ(store_->Locate(root_, Tokens{4, 0, 0, 0})[0], Tier::kDevice);
  EXPECT_EQ(store_->stats().evictions, 2u);
}

using BlockStoreDeathTest = BlockStoreTest;

TEST_F(BlockStoreDeathTest, MisuseIsABug) {
  const std::vector<Hold> held = Run({1, 2, 3, 4});
  EXPECT_DEATH(held[0].writable_address(), "kFilling");
  EXPECT_DEATH(Hold().address(), "store_");
  const Hold filling = NewBlock();
  EXPECT_DEATH((void)filling.Clone(), "kSealed");
  EXPECT_DEATH(filling.key(), "kSealed");
  EXPECT_DEATH((void)store_->Seal(NewBlock(), root_, Tokens{1, 2, 3}, 50), "block_tokens");
  EXPECT_DEATH(store_->Park(NewBlock(), root_, Tokens{1, 2, 3, 4}, 50), "block_tokens");
  EXPECT_DEATH(store_.reset(), "kHeld");
}

}  // namespace
}  // namespace cairn
