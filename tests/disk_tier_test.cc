// When a disk counts as hanging.
#include "offload/disk_tier.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"

namespace cairn {
namespace {

using std::chrono::seconds;

constexpr size_t kBytes = 1000;

// Something is ordered to be written, and nothing ends.
class HangingDisk : public testing::Test {
 protected:
  HangingDisk() {
    auto store = std::make_unique<FakeSpillStore>(files_, FakeSpillOptions{.hangs = true}, kBytes);
    store_ = store.get();
    tier_ = std::make_unique<DiskTier>(std::move(store), clock_);
    tier_->Spill(MoveId(1), BlockId(1), {.first_position = 0}, bytes_);
  }
  // Whether the order is given up within the time.
  bool IsGivenUpAfter(seconds time) {
    clock_.Advance(time);
    return !tier_->Poll().outcomes.empty();
  }

  FakeClock clock_;
  FakeDisk files_;
  FakeSpillStore* store_ = nullptr;
  std::unique_ptr<DiskTier> tier_;
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(kBytes);
};

TEST_F(HangingDisk, IsGivenUpAfterAWhile) {
  EXPECT_FALSE(IsGivenUpAfter(DiskTier::kPatience - seconds(1)));
  EXPECT_TRUE(IsGivenUpAfter(seconds(2)));
  EXPECT_FALSE(tier_->TakesSpills());
}

// A segment takes long to fill, but records are appended to it all the time.
TEST_F(HangingDisk, IsNoneWhileRecordsGetDone) {
  for (int i = 0; i < 20; ++i) {
    ++store_->options.record_count;
    ASSERT_FALSE(IsGivenUpAfter(DiskTier::kPatience - seconds(1)));
  }
  EXPECT_TRUE(tier_->TakesSpills());
  EXPECT_TRUE(IsGivenUpAfter(DiskTier::kPatience));
}

TEST_F(HangingDisk, IsNoneWhileALimitHoldsBackARecord) {
  store_->options.bandwidth_limit = 100;  // a record takes ten seconds, and waits for others
  EXPECT_FALSE(IsGivenUpAfter(seconds(45)));
  EXPECT_TRUE(IsGivenUpAfter(seconds(6)));
}

TEST_F(HangingDisk, IsUsedAgainWhenARecordGetsDone) {
  ASSERT_TRUE(IsGivenUpAfter(DiskTier::kPatience));
  ++store_->options.record_count;
  tier_->Poll();
  EXPECT_TRUE(tier_->TakesSpills());
}

}  // namespace
}  // namespace cairn
