#include "kernels/cpu/cpu_device.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/host_memory.h"

namespace cairn {
namespace {

constexpr uint64_t kMemoryBytes = 64 << 20;

std::unique_ptr<Device> NewDevice() {
  return MakeCpuDevice({.backend = "cpu", .thread_count = 1, .memory_bytes = kMemoryBytes});
}

// Ends a stream's wait when the test says so.
class ManualEvent final : public Event {
 public:
  bool Passed() const override { return passed_.load(); }
  Status Wait() override {
    while (!passed_.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return Status();
  }
  void Pass() { passed_.store(true); }

 private:
  std::atomic<bool> passed_{false};
};

TEST(CpuDeviceTest, BuffersAreZeroFilledAlignedAndCounted) {
  const auto device = NewDevice();
  auto first = device->Allocate(3 * kHugePageBytes + 5);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)->size_bytes(), 3 * kHugePageBytes + 5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*first)->data()) % kHugePageBytes, 0u);
  const std::vector<std::byte> zeros((*first)->size_bytes());
  EXPECT_EQ(std::memcmp((*first)->data(), zeros.data(), zeros.size()), 0);

  EXPECT_EQ(device->Allocate(kMemoryBytes).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(device->Allocate(SIZE_MAX).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(device->Allocate(0).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(device->Allocate(kMemoryBytes - (*first)->size_bytes()).ok());
  *first = nullptr;
  EXPECT_TRUE(device->Allocate(kMemoryBytes).ok());
}

uint64_t LockedKib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmLck:") {
  }
  uint64_t kib = 0;
  status >> kib;
  return kib;
}

TEST(CpuDeviceTest, LocksAsMuchAsTheSystemAllows) {
  const auto device = NewDevice();
  const size_t little = 16 << 10;  // below any limit that is usual
  const auto buffer = *device->AllocateHost(little);
  const uint64_t before = LockedKib();
  ASSERT_TRUE(buffer->Lock().ok());
  EXPECT_EQ(LockedKib() - before, little >> 10);

  rlimit none{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &none), 0);
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
  const Status refused = (*device->AllocateHost(little))->Lock();
  if (refused.ok()) GTEST_SKIP() << "a privileged process has no limit";
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("the limit is 0 bytes"), std::string::npos) << refused.message();
}

TEST(CpuDeviceTest, ComputeStreamWorksBeforeTheCallReturns) {
  const auto device = NewDevice();
  const auto stream = *device->NewStream(StreamUse::kCompute);
  const char source[] = "sealed";
  char target[sizeof(source)] = {};
  stream->Copy(target, source, sizeof(source));
  EXPECT_STREQ(target, "sealed");
  EXPECT_EQ(stream->Record(), nullptr);
  stream->Clear(target, sizeof(target));
  EXPECT_EQ(target[0], 0);
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST(CpuDeviceTest, CopyStreamKeepsItsOrder) {
  const auto device = NewDevice();
  const auto stream = *device->NewStream(StreamUse::kCopy);
  std::vector<uint32_t> chain(4 * kCopyQueueMax, 0);  // more tasks than the queue holds
  chain[0] = 7;
  for (size_t i = 1; i < chain.size(); ++i) {
    stream->Copy(&chain[i], &chain[i - 1], sizeof(uint32_t));
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(chain, std::vector<uint32_t>(chain.size(), 7));
  stream->Clear(chain.data(), chain.size() * sizeof(uint32_t));
  const EventRef cleared = stream->Record();
  ASSERT_TRUE(cleared->Wait().ok());
  EXPECT_TRUE(cleared->Passed());
  EXPECT_EQ(chain, std::vector<uint32_t>(chain.size(), 0));
}

TEST(CpuDeviceTest, AnEventPassesOnlyAfterTheWorkBeforeIt) {
  const auto device = NewDevice();
  const auto stream = *device->NewStream(StreamUse::kCopy);
  const auto gate = std::make_shared<ManualEvent>();
  int value = 0;
  const int one = 1;
  stream->Wait(gate);
  stream->Copy(&value, &one, sizeof(one));
  const EventRef copied = stream->Record();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(copied->Passed());
  gate->Pass();
  ASSERT_TRUE(copied->Wait().ok());
  EXPECT_EQ(value, 1);
}

// Two copy streams and a compute stream pass one word around; plain memory, so TSan proves the
// edges that the events make.
TEST(CpuDeviceTest, EventsTellHowLongTheWorkBetweenThemTook) {
  const auto device = NewDevice();
  const auto stream = *device->NewStream(StreamUse::kCopy);
  const auto gate = std::make_shared<ManualEvent>();
  const EventRef first = stream->Record();
  stream->Wait(gate);
  const EventRef second = stream->Record();
  const EventRef third = stream->Record();
  ASSERT_TRUE(first->Wait().ok());
  const auto waited = std::chrono::milliseconds(20);
  std::this_thread::sleep_for(waited);
  gate->Pass();
  ASSERT_TRUE(third->Wait().ok());
  EXPECT_GE(second->SecondsSince(*first), std::chrono::duration<double>(waited).count());
  EXPECT_GE(third->SecondsSince(*second), 0);
  EXPECT_DOUBLE_EQ(third->SecondsSince(*first),
                   second->SecondsSince(*first) + third->SecondsSince(*second));
}

TEST(CpuDeviceTest, EventsOrderWorkAcrossStreams) {
  const auto device = NewDevice();
  const auto compute = *device->NewStream(StreamUse::kCompute);
  const auto demote = *device->NewStream(StreamUse::kCopy);
  const auto reload = *device->NewStream(StreamUse::kCopy);
  uint64_t hot = 0, warm = 0;
  for (uint64_t round = 1; round <= 2000; ++round) {
    compute->Copy(&hot, &round, sizeof(round));
    demote->Wait(compute->Record());
    demote->Copy(&warm, &hot, sizeof(hot));
    const EventRef demoted = demote->Record();
    reload->Wait(demoted);
    reload->Clear(&hot, sizeof(hot));
    reload->Copy(&hot, &warm, sizeof(warm));
    compute->Wait(reload->Record());
    ASSERT_EQ(hot, round);
  }
}

TEST(CpuDeviceTest, DestroyingACopyStreamFinishesItsWork) {
  const auto device = NewDevice();
  std::vector<char> source(1 << 20, 'x'), target(1 << 20, 0);
  EventRef event;
  {
    const auto stream = *device->NewStream(StreamUse::kCopy);
    stream->Copy(target.data(), source.data(), source.size());
    event = stream->Record();
  }
  EXPECT_TRUE(event->Passed());
  EXPECT_EQ(source, target);
}

TEST(CpuDeviceTest, KnowsItsMemoryLimit) { EXPECT_GE(HostMemoryLimit(), uint64_t{64} << 20); }

}  // namespace
}  // namespace cairn
