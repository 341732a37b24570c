// Copies under a limit, by a clock that the test moves.
#include "offload/copy_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
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

TEST_F(CopyQueueTest, WithoutALimitCopiesBeginAtTheNextLookAndEndLater) {
  LateCopyDevice device(1 << 20, 1);
  const auto created = *CopyQueue::Create(device, 0, clock_);
  CopyQueue& queue = *created;
  from_[kBytes - 1] = std::byte{7};
  const CopyRef copy = Add(Way::kToDevice, queue);
  EXPECT_FALSE(copy->has_begun());
  queue.Advance();
  EXPECT_TRUE(copy->has_begun());
  EXPECT_FALSE(queue.has_waiting());
  EXPECT_FALSE(queue.Cancel(copy));
  while (!copy->IsOver()) {
  }
  EXPECT_TRUE(copy->Outcome().ok());
  EXPECT_GT(copy->seconds(), 0);
  EXPECT_EQ(to_, from_);
}

// Each way has a stream of its own: one is over while nobody has looked at the other's.
TEST_F(CopyQueueTest, NeitherWayQueuesBehindTheOther) {
  LateCopyDevice device(1 << 20, 1);
  const auto created = *CopyQueue::Create(device, 0, clock_);
  CopyQueue& queue = *created;
  for (const Way way : {Way::kToHost, Way::kToDevice}) {
    const Way opposite = way == Way::kToHost ? Way::kToDevice : Way::kToHost;
    std::array<std::byte, kBytes> first{}, second{};
    from_.fill(std::byte{7});
    const CopyRef ahead = queue.Add(opposite, first.data(), from_.data(), kBytes);
    const CopyRef copy = queue.Add(way, second.data(), from_.data(), kBytes);
    queue.Advance();
    while (!copy->IsOver()) {
    }
    EXPECT_EQ(second, from_);
    EXPECT_NE(first, from_);
    EXPECT_TRUE(ahead->Outcome().ok());
    EXPECT_EQ(first, from_);
  }
}

// Keeps what it was given in one call.
class BatchStream final : public Stream {
 public:
  explicit BatchStream(std::vector<std::vector<size_t>>& batches) : batches_(batches) {}
  EventRef Record() override { return nullptr; }
  void Wait(const EventRef& /*event*/) override {}
  void Copy(void* /*destination*/, const void* /*source*/, size_t size_bytes) override {
    batches_.back().push_back(size_bytes);
  }
  void CopyBatch(std::span<const CopyPart> parts) override {
    batches_.emplace_back();
    Stream::CopyBatch(parts);
  }
  void Clear(void* /*destination*/, size_t /*size_bytes*/) override {}
  Status Synchronize() override { return Status(); }

 private:
  std::vector<std::vector<size_t>>& batches_;
};

TEST_F(CopyQueueTest, WhatBeginsTogetherIsABatchUpToASize) {
  using Batches = std::vector<std::vector<size_t>>;
  for (const size_t batch_bytes : {size_t{0}, size_t{10}}) {
    Batches in, out;
    CopyQueue queue(std::make_unique<BatchStream>(in), std::make_unique<BatchStream>(out), 0,
                    clock_, batch_bytes);
    for (const size_t size_bytes : std::vector<size_t>{4, 5, 3, 12, 9, 1, 2}) {
      (void)queue.Add(Way::kToDevice, to_.data(), from_.data(), size_bytes);
    }
    (void)queue.Add(Way::kToHost, to_.data(), from_.data(), 7);
    queue.Advance();
    EXPECT_EQ(in, batch_bytes == 0 ? (Batches{{4}, {5}, {3}, {12}, {9}, {1}, {2}})
                                   : (Batches{{4, 5, 3}, {12}, {9, 1}, {2}}));
    EXPECT_EQ(out, (Batches{{7}}));
    EXPECT_EQ(queue.begun_count(), 8u);
  }
}

TEST_F(CopyQueueTest, TheLimitHoldsHoweverSeldomSomebodyLooks) {
  CopyQueue queue(std::make_unique<CpuComputeStream>(), std::make_unique<CpuComputeStream>(),
                  kLimit, clock_);
  std::vector<CopyRef> copies;
  for (int i = 0; i < 40; ++i) copies.push_back(Add(Way::kToDevice, queue));
  queue.Advance();
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
  queue.Advance();
  EXPECT_EQ(BegunCount(copies), 1);
  EXPECT_DOUBLE_EQ(queue.LimitedSeconds(kBytes), 1e-3);
}

TEST_F(CopyQueueTest, ToTheDeviceGoesFirstButNotForEver) {
  CopyQueue queue(std::make_unique<CpuComputeStream>(), std::make_unique<CpuComputeStream>(),
                  kLimit, clock_);
  (void)Add(Way::kToHost, queue);
  queue.Advance();  // it begins
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
  CopyQueue queue(std::make_unique<CpuComputeStream>(), std::make_unique<CpuComputeStream>(),
                  kLimit, clock_);
  const CopyRef first = Add(Way::kToDevice, queue);
  queue.Advance();
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
