// The device of kernels/device.h as the CUDA runtime gives it: memory, and the order of streams.
// (Its errors are tests/cuda_emu/cuda_device_test.cc.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "tests/cuda_machine.h"

namespace cairn {
namespace {

class CudaDeviceConformance : public testing::TestWithParam<CudaMachine> {
 protected:
  void SetUp() override {
    StartMachine(GetParam());
    backend_ = *MakeCudaTestBackend(ComputeMode::kExact);
  }
  void TearDown() override {
    backend_ = {};
    ExpectNothingFound();
  }
  Device& device() { return *backend_.device; }

 private:
  Backend backend_;
};

std::vector<std::byte> Read(Buffer& buffer, Stream& stream) {
  std::vector<std::byte> bytes(buffer.size_bytes());
  stream.Copy(bytes.data(), buffer.data(), bytes.size());
  EXPECT_TRUE(stream.Synchronize().ok());
  return bytes;
}

TEST_P(CudaDeviceConformance, MemoryIsZeroedAndCopied) {
  const std::unique_ptr<Stream> stream = *device().NewStream(StreamUse::kCompute);
  const std::unique_ptr<Buffer> buffer = *device().Allocate(1000);
  const std::unique_ptr<Buffer> host = *device().AllocateHost(1000);
  EXPECT_EQ(buffer->size_bytes(), 1000u);
  EXPECT_EQ(host->size_bytes(), 1000u);
  EXPECT_EQ(Read(*buffer, *stream), std::vector<std::byte>(1000));
  std::memset(host->data(), 7, 1000);
  stream->Copy(buffer->data(), host->data(), 1000);
  stream->Clear(buffer->data() + 10, 20);
  std::vector<std::byte> expected(1000, std::byte{7});
  std::fill_n(expected.begin() + 10, 20, std::byte{0});
  EXPECT_EQ(Read(*buffer, *stream), expected);
}

// Blocks that begin late and copies that take their time would show what is read too early.
TEST_P(CudaDeviceConformance, EventsOrderStreams) {
  constexpr size_t kBytes = 256 << 10;
  const std::unique_ptr<Stream> in = *device().NewStream(StreamUse::kCopy);
  const std::unique_ptr<Stream> out = *device().NewStream(StreamUse::kCopy);
  const std::unique_ptr<Buffer> buffer = *device().Allocate(kBytes);
  const std::unique_ptr<Buffer> host = *device().AllocateHost(2 * kBytes);
  for (int round = 0; round < 20; ++round) {
    std::memset(host->data(), round, kBytes);
    const EventRef before = in->Record();
    in->Copy(buffer->data(), host->data(), kBytes);
    const EventRef filled = in->Record();
    out->Wait(filled);
    out->Wait(nullptr);
    out->Copy(host->data() + kBytes, buffer->data(), kBytes);
    const EventRef done = out->Record();
    in->Wait(done);  // the next round fills the buffer again
    ASSERT_TRUE(done->Wait().ok());
    EXPECT_TRUE(done->Passed() && filled->Passed());
    EXPECT_GE(filled->SecondsSince(*before), 0);
    ASSERT_EQ(std::memcmp(host->data(), host->data() + kBytes, kBytes), 0) << round;
  }
}

// Page-locked memory has one address for both sides: small parts are copied by a kernel, which
// reads and writes it itself, large ones and odd ones by the device's engines.
TEST_P(CudaDeviceConformance, BatchesOfCopiesReadAndWriteHostMemory) {
  constexpr size_t kSizes[] = {16, 12288, 1000, 200 << 10, 4096};
  constexpr size_t kPitch = 256 << 10, kBytes = std::size(kSizes) * kPitch;
  const std::unique_ptr<Stream> stream = *device().NewStream(StreamUse::kCopy);
  const std::unique_ptr<Buffer> host = *device().AllocateHost(2 * kBytes);
  const std::unique_ptr<Buffer> buffer = *device().Allocate(kBytes);
  std::byte* const back = host->data() + kBytes;
  for (size_t i = 0; i < kBytes; ++i) host->data()[i] = static_cast<std::byte>(i * 7 + i / 256);
  std::memset(back, 0, kBytes);
  std::vector<CopyPart> there, here;
  std::vector<std::byte> expected(kBytes);
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const size_t at = i * kPitch;
    there.push_back({buffer->data() + at, host->data() + at, kSizes[i]});
    here.push_back({back + at, buffer->data() + at, kSizes[i]});
    std::copy_n(host->data() + at, kSizes[i], &expected[at]);
  }
  stream->CopyBatch(there);
  stream->CopyBatch(here);
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(std::memcmp(back, expected.data(), kBytes), 0);
}

INSTANTIATE_TEST_SUITE_P(All, CudaDeviceConformance, testing::ValuesIn(CudaMachines()),
                         NameOfMachine);

}  // namespace
}  // namespace cairn
