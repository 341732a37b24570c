// Copies under a limit, by a clock that the test moves.
#include "offload/copy_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/late_copy_device.h"
#include "tests/fakes/timed_copy_stream.h"

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

// Of several blocks the first layers, then of all of them the next ones; and each event says that
// its layer and all before it have come, and nothing of the next group.
TEST_F(CopyQueueTest, BlocksComeLayerByLayer) {
  constexpr size_t kLayerBytes = 40, kBlocks = 3;
  for (const uint32_t layers : {1u, 2u, 7u, 8u, 9u, 30u}) {
    SCOPED_TRACE(layers);
    LateCopyDevice device(1 << 20, 1);
    const auto queue = *CopyQueue::Create(device, 0, clock_);
    const std::vector<std::byte> from(kBlocks * layers * kLayerBytes, std::byte{7});
    std::vector<std::byte> to(from.size());
    std::vector<CopyPart> blocks;
    for (size_t i = 0; i < kBlocks; ++i) {
      const size_t begin = i * layers * kLayerBytes;
      blocks.push_back({to.data() + begin, from.data() + begin, layers * kLayerBytes});
    }
    const CopyRef before = Add(Way::kToDevice, *queue);
    const CopyRef copy = queue->AddByLayer(blocks, layers);
    EXPECT_TRUE(before->has_begun()) << "what was ordered before goes first";
    EXPECT_TRUE(copy->has_begun());
    EXPECT_FALSE(queue->Cancel(copy));
    EXPECT_EQ(queue->begun_count(), kBlocks + 1);
    ASSERT_EQ(copy->layer_count(), layers);
    EXPECT_EQ(before->layer_count(), 0u);
    uint32_t groups = 0;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      EXPECT_TRUE(copy->layer(layer)->Wait().ok());
      if (layer + 1 < layers && copy->layer(layer) == copy->layer(layer + 1)) continue;
      ++groups;
      for (size_t i = 0; i < to.size(); ++i) {
        const size_t of_layer = i / kLayerBytes % layers;
        ASSERT_EQ(to[i] == std::byte{7}, of_layer <= layer) << "layer " << layer << ", byte " << i;
      }
    }
    EXPECT_EQ(groups, std::min(layers, CopyQueue::kLayerGroupsMax));
    EXPECT_TRUE(copy->IsOver());
    EXPECT_TRUE(copy->Outcome().ok());
    EXPECT_GT(copy->seconds(), 0);
  }
}

// Under a limit each block's part of a group comes due by itself, and who waits for a layer sleeps
// until all of its group has begun.
TEST_F(CopyQueueTest, ALimitPacesTheLayers) {
  constexpr uint32_t kLayers = 8, kBlocks = 3;
  CopyQueue queue(std::make_unique<TimedCopyStream>(0, clock_),
                  std::make_unique<TimedCopyStream>(0, clock_), kLimit, clock_);
  const double block_s = queue.LimitedSeconds(kBytes);
  const auto seconds = [&, begin = clock_.Now()] {
    return std::chrono::duration<double>(clock_.Now() - begin).count();
  };
  const std::vector<CopyPart> blocks(kBlocks, {to_.data(), from_.data(), kBytes});
  const CopyRef copy = queue.AddByLayer(blocks, kLayers);
  EXPECT_FALSE(copy->has_begun(0));
  EXPECT_FALSE(queue.Cancel(copy));
  const CopyRef behind = Add(Way::kToDevice, queue);
  for (uint32_t group = 0; group < kLayers; ++group) {
    SCOPED_TRACE(group);
    EXPECT_DOUBLE_EQ(copy->ArrivedShare(), group / double{kLayers});
    EXPECT_FALSE(copy->has_begun(group));
    EXPECT_TRUE(queue.AwaitBegin(*copy, group)->Passed());
    // All parts but this one are paid for: three a group, each of an eighth of a block.
    EXPECT_NEAR(seconds(), (3 * group + 2) * block_s / 8, 1e-6);
    EXPECT_FALSE(behind->has_begun());
  }
  EXPECT_TRUE(copy->IsOver());
  EXPECT_TRUE(copy->Outcome().ok());
  EXPECT_EQ(queue.begun_count(), kBlocks);
  clock_.Advance(std::chrono::nanoseconds(static_cast<int64_t>(1e9 * block_s)));
  queue.Advance();
  EXPECT_TRUE(behind->has_begun());
}

TEST_F(CopyQueueTest, TheShareThatHasComeGrowsGroupByGroup) {
  constexpr uint32_t kLayers = 20;  // in groups of 2 and 3
  CopyQueue queue(std::make_unique<TimedCopyStream>(1e-6, clock_),
                  std::make_unique<TimedCopyStream>(1e-6, clock_), 0, clock_);
  const std::vector<CopyPart> blocks(2, {to_.data(), from_.data(), kBytes});
  const CopyRef copy = queue.AddByLayer(blocks, kLayers);
  for (int half = 0; half <= 2 * static_cast<int>(kLayers); ++half) {
    const int layers_over = half / 2;  // a layer of both blocks takes 0.1 ms
    int groups_end = 0;
    for (int group = 1; group <= 8; ++group) {
      const int end = group * static_cast<int>(kLayers) / 8;
      if (end <= layers_over) groups_end = end;
    }
    EXPECT_DOUBLE_EQ(copy->ArrivedShare(), groups_end / double{kLayers}) << half;
    EXPECT_EQ(copy->IsOver(), layers_over == static_cast<int>(kLayers));
    clock_.Advance(std::chrono::microseconds(50));
  }
  EXPECT_DOUBLE_EQ(copy->seconds(), 1e-3);  // of one block
}

}  // namespace
}  // namespace cairn
