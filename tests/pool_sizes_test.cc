// How large pools become on a device with memory of its own; on the CPU, cairnd_test and engine
// tests have them.
#include "engine/pool_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// 64 MiB of memory, of which some are free.
class SomeDevice final : public Device {
 public:
  explicit SomeDevice(uint64_t free_bytes) : free_bytes_(free_bytes) {
    info_.memory_bytes = 64 * kMiB;
  }
  const DeviceInfo& info() const override { return info_; }
  Result<uint64_t> FreeBytes() override { return free_bytes_; }
  Result<std::unique_ptr<Buffer>> Allocate(size_t) override { return Unavailable("no"); }
  Result<std::unique_ptr<Buffer>> AllocateHost(size_t) override { return Unavailable("no"); }
  Result<std::unique_ptr<Stream>> NewStream(StreamUse) override { return Unavailable("no"); }

 private:
  DeviceInfo info_;
  const uint64_t free_bytes_;
};

const KvLayout kLayout = {.layer_count = 4, .kv_head_count = 2, .head_dim = 64};
constexpr uint64_t kBlockBytes = 32768;

// Operations take 3 MiB, and a 64th of the device is one more.
Result<PoolSizes> Choose(uint64_t free_bytes, uint64_t device_bytes, uint64_t host_bytes = 0,
                         uint32_t concurrent_max = 1000) {
  SomeDevice device(free_bytes);
  EngineConfig config;
  config.context_length = 1600;
  config.concurrent_max = concurrent_max;
  return ChoosePoolSizes(device_bytes, host_bytes, kLayout, config, 3 * kMiB, device);
}

TEST(PoolSizes, TheDefaultIsWhatIsFreeButForOperationsAndA64thOfTheDevice) {
  const Result<PoolSizes> sizes = Choose(40 * kMiB, 0);
  ASSERT_TRUE(sizes.ok()) << sizes.status().ToString();
  EXPECT_EQ(kLayout.block_bytes(), kBlockBytes);
  EXPECT_EQ(sizes->device_blocks, 36 * kMiB / kBlockBytes);
  EXPECT_EQ(sizes->host_blocks, 0u);
  EXPECT_EQ(sizes->device_free_bytes, 40 * kMiB);
}

TEST(PoolSizes, TheDefaultIsNoMoreThanAllPlacesTake) {
  EXPECT_EQ(Choose(40 * kMiB, 0, 0, 3)->device_blocks, 300u);
}

TEST(PoolSizes, WhatIsAskedForMayBeAllThatIsFree) {
  EXPECT_EQ(Choose(40 * kMiB, 40 * kMiB)->device_blocks, 40 * kMiB / kBlockBytes);
  const Status refused = Choose(40 * kMiB, 40 * kMiB + 1).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "--device-memory: takes 41,943,041 bytes; 41,943,040 are free on the device beside the "
            "weights");
}

TEST(PoolSizes, ADeviceWithoutRoomIsRefused) {
  const Status refused = Choose(4 * kMiB + kBlockBytes, 0).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "the device has no room for KV blocks: 4,227,072 are free on the device beside the "
            "weights, of which 3,145,728 are for operations (--prefill-chunk, --max-concurrent, "
            "--context-length) and 1,048,576 are to stay free");
  EXPECT_EQ(Choose(0, 0).status().code(), Code::kResourceExhausted);
  EXPECT_THAT(Choose(40 * kMiB, kBlockBytes).status().message(),
              HasSubstr("--device-memory: must hold at least 2 blocks of 32,768 bytes"));
}

// The host pool lies in the host's memory, however small the device is.
TEST(PoolSizes, TheHostPoolIsTheHosts) {
  EXPECT_EQ(Choose(40 * kMiB, 0, 80 * kMiB)->host_blocks, 80 * kMiB / kBlockBytes);
  EXPECT_EQ(Choose(40 * kMiB, 0, 1).status().field(), "--host-memory");
  EXPECT_THAT(Choose(40 * kMiB, 0, uint64_t{1} << 45).status().message(),
              HasSubstr("--host-memory: takes 35,184,372,088,832 bytes; this process may have "));
}

}  // namespace
}  // namespace cairn
