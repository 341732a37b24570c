// Copies under a limit, by a clock that the test moves.
#include "offload/copy_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/late_copy_device.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using Way = CopyQueue::Way;

constexpr size_t kBytes = 1000;  // a millisecond at the limit
constexpr uint64_t kLimit = 1'000'000;

class CopyQueueTest : public testing::Test {
 protected:
  CopyRef Add(Way way, CopyQueue& queue) {
    return queue.Add(way, to_.data(), from_.data(), kBytes);
  }
  static int BegunCount(const std::vector<CopyRef>& copies) {
    int count = 0;
    for (const CopyRef& copy : copies) count += copy->has_begun();
    return count;
  }

  FakeClock clock_;
  std::array<std::byte, kBytes> from_{}, to_{};
};

TEST_F(CopyQueueTest, WithoutALimitCopiesBeginAtOnceAndEndLater) {
  LateCopyDevice device(1 << 20, 1);
  CopyQueue queue(*device.NewStream(StreamUse::kCopy), 0, clock_);
  from_[kBytes - 1] = std::byte{7};
  const CopyRef copy = Add(Way::kToDevice, queue);
  EXPECT_TRUE(copy->has_begun());
  EXPECT_FALSE(queue.has_waiting());
  EXPECT_FALSE(queue.Cancel(copy));
  while (!copy->IsOver()) {
  }
  EXPECT_TRUE(copy->Outcome().ok());
  EXPECT_GT(copy->seconds(), 0);
  EXPECT_EQ(to_, from_);
}

TEST_F(CopyQueueTest, TheLimitHoldsHoweverSeldomSomebodyLooks) {
  CopyQueue queue(std::make_unique<CpuComputeStream>(), kLimit, clock_);
  std::vector<CopyRef> copies;
  for (int i = 0; i < 40; ++i) copies.push_back(Add(Way::kToDevice, queue));
  EXPECT_EQ(BegunCount(copies), 1);
  clock_.Advance(milliseconds(1));
  queue.Advance();
  EXPECT_EQ(BegunCount(copies), 2);
  queue.Advance();
  EXPECT_EQ(BegunCount(copies), 2);
  clock_.Advance(milliseconds(20));  // a long step: what came due meanwhile begins
  queue.Advance();
  EXPECT_EQ(BegunCount(copies), 22);
  EXPECT_EQ(queue.begun_count(), 22u);
  // Time in which nothing waited is not made up for.
  clock_.Advance(milliseconds(100));
  queue.Advance();
  EXPECT_FALSE(queue.has_waiting());
  clock_.Advance(milliseconds(1000));
  copies.clear();
  for (int i = 0; i < 5; ++i) copies.push_back(Add(Way::kToDevice, queue));
  EXPECT_EQ(BegunCount(copies), 1);
  EXPECT_DOUBLE_EQ(queue.LimitedSeconds(kBytes), 1e-3);
}

TEST_F(CopyQueueTest, ToTheDeviceGoesFirstButNotForEver) {
  CopyQueue queue(std::make_unique<CpuComputeStream>(), kLimit, clock_);
  (void)Add(Way::kToHost, queue);  // begins
  const CopyRef leaving = Add(Way::kToHost, queue);
  std::vector<CopyRef> loads;
  for (int i = 0; i < 100; ++i) loads.push_back(Add(Way::kToDevice, queue));
  for (int i = 1; i < CopyQueue::kPatience.count(); ++i) {
    clock_.Advance(milliseconds(1));
    queue.Advance();
    EXPECT_EQ(BegunCount(loads), i);
    EXPECT_FALSE(leaving->has_begun());
  }
  clock_.Advance(milliseconds(1));
  queue.Advance();
  EXPECT_TRUE(leaving->has_begun());
  EXPECT_EQ(BegunCount(loads), CopyQueue::kPatience.count() - 1);
}

TEST_F(CopyQueueTest, WhatIsCancelledCostsNothing) {
  CopyQueue queue(std::make_unique<CpuComputeStream>(), kLimit, clock_);
  const CopyRef first = Add(Way::kToDevice, queue);
  const CopyRef second = Add(Way::kToDevice, queue);
  const CopyRef third = Add(Way::kToDevice, queue);
  EXPECT_FALSE(queue.Cancel(first));
  EXPECT_TRUE(queue.Cancel(second));
  EXPECT_FALSE(queue.Cancel(second));
  clock_.Advance(milliseconds(1));
  queue.Advance();
  EXPECT_TRUE(third->has_begun());
  EXPECT_FALSE(second->has_begun());
}

}  // namespace
}  // namespace cairn
