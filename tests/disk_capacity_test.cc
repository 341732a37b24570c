// A disk tier holds as many blocks as it says, however small its quota is.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <semaphore>
#include <vector>

#include "base/clock.h"
#include "offload/disk_tier.h"
#include "offload/rocksdb_spill_store.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 368'640;  // of the default model

class DiskCapacity : public testing::Test {
 protected:
  DiskCapacity() : payload_(kBlockBytes) {
    auto store = OpenSpillStore({.directory = folder_.path() + "/blocks", .quota_bytes = 16 << 20},
                                {1, 2}, layout_, [this] { wakes_.release(); });
    CHECK(store.ok());
    tier_ = std::make_unique<DiskTier>(*std::move(store), clock_);
  }

  void Poll() {
    for (const DiskTier::Outcome& outcome : tier_->Poll().outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
      --under_way_;
    }
    if (auto candidate = tier_->SegmentToRetire()) {
      tier_->Retire(MoveId(next_move_++), *candidate, {});
    }
  }
  // As a server does that suspends sessions: some blocks, then it waits for them.
  void Write(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      while (!tier_->TakesSpills()) Wait();
      const uint64_t move = next_move_++;
      tier_->Spill(MoveId(move), BlockId(static_cast<uint32_t>(move)),
                   NumberedBlock(move, layout_.block_tokens), payload_);
      ++under_way_;
    }
    tier_->Close();
    while (under_way_ > 0 || tier_->makes_room()) Wait();
  }
  void Wait() {
    Poll();
    if (under_way_ > 0 || tier_->makes_room()) wakes_.acquire();
    Poll();
  }

  const ScratchFolder folder_;
  const KvLayout layout_ = LayoutOf(kBlockBytes);
  const SystemClock clock_;
  std::counting_semaphore<> wakes_{0};
  std::unique_ptr<DiskTier> tier_;
  const std::vector<std::byte> payload_;
  uint64_t next_move_ = 0;
  uint64_t under_way_ = 0;
};

TEST_F(DiskCapacity, HoldsWhatItSays) {
  const uint64_t capacity = tier_->stats().capacity;
  EXPECT_EQ(capacity, 29u);
  const SpillStats store = tier_->stats().store;
  const uint64_t segment_records = store.segment_bytes / store.record_bytes;
  // Nothing goes before there are so many.
  for (uint64_t written = 0; written < capacity; written += 2) {
    Write(std::min<uint64_t>(2, capacity - written));
  }
  EXPECT_EQ(tier_->stats().records, capacity);
  EXPECT_EQ(tier_->stats().evictions, 0u);
  // From then on the oldest segment goes, and no more than that at a time.
  for (int i = 0; i < 12; ++i) {
    Write(2);
    const DiskTierStats stats = tier_->stats();
    EXPECT_GE(stats.records, capacity - segment_records);
    EXPECT_LE(stats.records, capacity + segment_records + 1);
    EXPECT_LE(stats.records, stats.capacity_max);
    EXPECT_EQ(stats.capacity_max, 33u);  // a segment and a block more
    EXPECT_EQ(stats.evictions, stats.spills - stats.records);
    EXPECT_LE(stats.store.used_bytes, stats.store.quota_bytes);
  }
}

}  // namespace
}  // namespace cairn
