// What blocks cost of which only a record on disk is left: there are a hundred times as many as in
// memory, so each must take little of it, and no choice may look at all of them.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "offload/block_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kContextBlocks = 50;
constexpr uint32_t kContexts = kSanitized ? 100 : 1000;
constexpr uint32_t kSegmentBlocks = 2500;
constexpr size_t kColdCount = size_t{kContexts} * kContextBlocks;

size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class ColdBlocks : public testing::Test {
 protected:
  Tokens Context(uint32_t number) const {
    Tokens tokens(size_t{kContextBlocks} * kBlockTokens, number);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] += static_cast<uint32_t>(i) << 20;
    return tokens;
  }

  // What an earlier process left.
  void FillDisk() {
    for (uint32_t number = 0; number < kContexts; ++number) {
      const Tokens tokens = Context(number);
      BlockKey parent = root_;
      for (uint32_t i = 0; i < kContextBlocks; ++i) {
        const auto own = std::span(tokens).subspan(size_t{i} * kBlockTokens, kBlockTokens);
        const BlockKey key = ChildKey(parent, own);
        const RecordId record(disk_.next_record++);
        const SegmentId segment((record.value() - 1) / kSegmentBlocks * kSegmentBlocks + 1);
        disk_.segments[segment].records[record] = {
            {key, parent, i * kBlockTokens, {own.begin(), own.end()}}, {}};
        parent = key;
      }
    }
  }

  std::unique_ptr<BlockStore> NewStore() {
    auto spill = std::make_unique<FakeSpillStore>(
        disk_,
        FakeSpillOptions{.quota_blocks = 2 * kColdCount, .segment_blocks = 4, .answer_chance = 1},
        layout_.block_bytes());
    auto store =
        BlockStore::Create({.device_blocks_max = 64}, layout_, *device_, clock_, std::move(spill));
    CHECK(store.ok());
    return *std::move(store);
  }

  const KvLayout layout_{.layer_count = 1,
                         .kv_head_count = 1,
                         .head_dim = 1,
                         .block_tokens = kBlockTokens,
                         .arithmetic = "test"};
  const BlockKey root_ = RootKey({1, 2}, layout_.Id(), "");
  const std::unique_ptr<Device> device_ =
      MakeCpuDevice({.backend = "cpu", .memory_bytes = 1 << 20});
  FakeClock clock_;
  FakeDisk disk_;
};

TEST_F(ColdBlocks, TakeLittleMemory) {
  FillDisk();
  const size_t before = HeapBytes();
  const std::unique_ptr<BlockStore> store = NewStore();
  const size_t found = HeapBytes() - before;
  for (uint32_t number = 0; number < kContexts; ++number) {
    const std::vector<Tier> tiers = store->Locate(root_, Context(number));
    ASSERT_EQ(tiers, std::vector<Tier>(kContextBlocks, Tier::kDisk));
  }
  const size_t asked_for = HeapBytes() - before;
  store->CheckInvariants();
  if (kSanitized) GTEST_SKIP() << "the heap is another one";
  EXPECT_LE(found / kColdCount, 150u);
  EXPECT_LE(asked_for / kColdCount, 310u);
}

// The processor time of so many evictions, each of which ranks what could go.
double EvictionSeconds(BlockStore& store, const BlockKey& root) {
  const std::clock_t start = std::clock();
  for (uint32_t i = 0; i < 300; ++i) {
    Result<std::vector<Hold>> fresh = store.Reserve(1);
    CHECK(fresh.ok());
    const Tokens tokens(kBlockTokens, UINT32_MAX - i);
    (void)store.Seal(std::move(fresh->front()), root, tokens, kPriorityDefault);
  }
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

TEST_F(ColdBlocks, AreNotLookedAtWhenOthersMakeRoom) {
  const double alone = EvictionSeconds(*NewStore(), root_);
  FillDisk();
  const std::unique_ptr<BlockStore> store = NewStore();
  for (uint32_t number = 0; number < kContexts; ++number) {
    (void)store->Locate(root_, Context(number));
  }
  const double beside_cold = EvictionSeconds(*store, root_);
  EXPECT_GE(store->stats().evictions, 200u);
  EXPECT_EQ(store->stats().cold, kColdCount);
  EXPECT_LT(beside_cold, 10 * alone + 0.01);
}

}  // namespace
}  // namespace cairn
