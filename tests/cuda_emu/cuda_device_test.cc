// The CUDA device on an emulated one: what it takes it gives back, and what every error of the
// runtime becomes. (Memory and the order of streams: tests/cuda_device_conformance_test.cc.)
#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <semaphore>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_stream.h"
#include "tests/cuda_emu/test_device.h"

namespace cairn::cuda {
namespace {

using testing::HasSubstr;

std::unique_ptr<Device> Make() {
  Result<std::unique_ptr<Device>> device = MakeCudaDevice();
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return *std::move(device);
}

std::unique_ptr<Stream> NewStream(Device& device) { return *device.NewStream(StreamUse::kCompute); }

TEST(CudaDevice, DescribesItself) {
  const cuemu::TestMachine machine({.compute_capability = 80});
  const DeviceInfo info = Make()->info();
  EXPECT_EQ(info.backend, "cuda");
  EXPECT_EQ(info.name, "Emulated GPU");
  EXPECT_EQ(info.instruction_set, "sm_80");
  EXPECT_EQ(info.memory_bytes, uint64_t{32} << 20);
  EXPECT_FALSE(info.reads_host_memory);
  EXPECT_FALSE(info.host_addressable);
}

TEST(CudaDevice, TakesEverythingBack) {
  const cuemu::TestMachine machine;
  {
    const std::unique_ptr<Device> device = Make();
    const std::unique_ptr<Stream> stream = NewStream(*device);
    const std::unique_ptr<Buffer> buffer = *device->Allocate(1000);
    const EventRef event = stream->Record();
    EXPECT_TRUE(event->Wait().ok());
  }
  const cuemu::Statistics left = cuemu::ReadStatistics();
  EXPECT_EQ(left.device_bytes_used, 0u);
  EXPECT_EQ(left.stream_count, 0u);
  EXPECT_EQ(left.event_count, 0u);
}

TEST(CudaDevice, HasNoMoreMemoryThanThereIs) {
  const cuemu::TestMachine machine;
  const std::unique_ptr<Device> device = Make();
  const Status refused = device->Allocate(size_t{64} << 20).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("allocating 67108864 bytes"));
  cuemu::FailCall("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(device->AllocateHost(size_t{8} << 20).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(device->Allocate(0).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(device->Allocate(4096).ok());
  EXPECT_TRUE(device->AllocateHost(4096).ok());
}

TEST(CudaDevice, SaysWhatIsFree) {
  const cuemu::TestMachine machine;
  const std::unique_ptr<Device> device = Make();
  EXPECT_EQ(*device->FreeBytes(), uint64_t{32} << 20);
  const std::unique_ptr<Buffer> buffer = *device->Allocate(size_t{20} << 20);
  EXPECT_EQ(*device->FreeBytes(), uint64_t{12} << 20);
}

TEST(CudaDevice, AnErrorOfACallIsReportedOnceAndByItsStream) {
  const cuemu::TestMachine machine;
  const std::unique_ptr<Device> device = Make();
  const std::unique_ptr<Stream> stream = NewStream(*device);
  const std::unique_ptr<Stream> other = NewStream(*device);
  const std::unique_ptr<Buffer> buffer = *device->Allocate(64);
  cuemu::FailCall("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
  stream->Copy(buffer->data(), buffer->data() + 32, 32);
  EXPECT_TRUE(other->Synchronize().ok());
  const Status error = stream->Synchronize();
  EXPECT_EQ(error.code(), Code::kInternal);
  EXPECT_THAT(error.message(), HasSubstr("copying"));
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST(CudaDevice, AStreamHasFailedUntilItIsSynchronized) {
  const cuemu::TestMachine machine;
  const std::unique_ptr<Device> device = Make();
  const std::unique_ptr<Stream> stream = NewStream(*device);
  const std::unique_ptr<Buffer> buffer = *device->Allocate(64);
  for (const char* call : {"cudaMemsetAsync", "cudaEventRecord"}) {
    cuemu::FailCall(call, 1, cudaErrorInvalidValue);
    stream->Clear(buffer->data(), 64);
    EXPECT_EQ(stream->Record()->Wait().code(), Code::kInternal);
    EXPECT_TRUE(stream->Record()->Wait().ok());
    EXPECT_TRUE(stream->failed()) << call;
    EXPECT_EQ(stream->Synchronize().code(), Code::kInternal);
    EXPECT_FALSE(stream->failed());
  }
  EXPECT_TRUE(device->lost().ok());
}

// CUDA keeps the last error of a thread: of an event that has not passed, of times between events
// that were never recorded, of calls whose failing means nothing. Launches do not answer with it.
TEST(CudaDevice, ALaunchAnswersForItselfAlone) {
  const cuemu::TestMachine machine;
  const std::unique_ptr<Device> device = Make();
  const std::unique_ptr<Stream> stream = NewStream(*device);
  const std::unique_ptr<Stream> other = NewStream(*device);
  const std::unique_ptr<Buffer> buffer = *device->Allocate(64);
  const auto expect_launch = [&](const char* after) {
    EXPECT_NE(cudaPeekAtLastError(), cudaSuccess) << after;
    const CopyPart part = {buffer->data(), buffer->data() + 32, 32};
    const uint64_t launched = cuemu::CallCount("cudaLaunchKernel");
    other->CopyBatch({&part, 1});
    EXPECT_EQ(cuemu::CallCount("cudaLaunchKernel"), launched + 1);
    const Status status = other->Synchronize();
    EXPECT_TRUE(status.ok()) << after << ": " << status.ToString();
  };
  std::binary_semaphore may_go_on(0);
  const auto wait = [](void* semaphore) {
    static_cast<std::binary_semaphore*>(semaphore)->acquire();
  };
  ASSERT_EQ(cudaLaunchHostFunc(static_cast<CudaStream&>(*stream).handle(), wait, &may_go_on),
            cudaSuccess);
  const EventRef event = stream->Record();
  EXPECT_FALSE(event->Passed());
  expect_launch("an event that has not passed");
  may_go_on.release();
  EXPECT_TRUE(event->Wait().ok());
  EXPECT_TRUE(event->Passed());
  cuemu::FailCall("cudaEventRecord", 1, cudaErrorInvalidValue);
  const EventRef unrecorded = stream->Record();
  EXPECT_EQ(stream->Synchronize().code(), Code::kInternal);
  EXPECT_EQ(unrecorded->SecondsSince(*event), 0);
  expect_launch("a time that is not known");
  cuemu::FailCall("cudaEventQuery", 1, cudaErrorInvalidValue);
  EXPECT_TRUE(event->Passed());
  expect_launch("an event that cannot be asked");
}

TEST(CudaDevice, ALostDeviceIsLostForAll) {
  const cuemu::TestMachine machine;
  {
    const std::unique_ptr<Device> device = Make();
    const std::unique_ptr<Stream> stream = NewStream(*device);
    const std::unique_ptr<Stream> other = NewStream(*device);
    const std::unique_ptr<Buffer> buffer = *device->Allocate(64);
    const EventRef event = stream->Record();
    cuemu::FailCall("cudaMemcpyAsync", 1, cudaErrorIllegalAddress);
    stream->Copy(buffer->data(), buffer->data() + 32, 32);
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(stream->Synchronize().code(), Code::kUnavailable);
      EXPECT_EQ(other->Synchronize().code(), Code::kUnavailable);
      EXPECT_EQ(event->Wait().code(), Code::kUnavailable);
      EXPECT_EQ(device->lost().code(), Code::kUnavailable);
      EXPECT_EQ(device->Allocate(64).status().code(), Code::kUnavailable);
      EXPECT_EQ(device->AllocateHost(64).status().code(), Code::kUnavailable);
    }
    EXPECT_THAT(stream->Synchronize().message(), HasSubstr("cudaErrorIllegalAddress"));
    cuemu::ClearStickyError();  // so that the machine can be put away
  }
}

struct Refusal {
  const char* function;
  cudaError_t error;
  Code code;
};

TEST(CudaDevice, IsRefusedInOneLine) {
  for (const Refusal& c :
       {Refusal{"cudaGetDeviceCount", cudaErrorInsufficientDriver, Code::kFailedPrecondition},
        Refusal{"cudaGetDeviceCount", cudaErrorNoDevice, Code::kFailedPrecondition},
        Refusal{"cudaSetDevice", cudaErrorDevicesUnavailable, Code::kUnavailable},
        Refusal{"cudaMemGetInfo", cudaErrorMemoryAllocation, Code::kResourceExhausted}}) {
    const cuemu::TestMachine machine;
    cuemu::FailCall(c.function, 1, c.error);
    const Status refused = MakeCudaDevice().status();
    EXPECT_EQ(refused.code(), c.code) << refused.ToString();
    EXPECT_THAT(refused.message(), HasSubstr(cudaGetErrorName(c.error)));
    EXPECT_THAT(refused.message(), testing::Not(HasSubstr("\n")));
  }
}

TEST(CudaDevice, MustBeNewEnough) {
  const cuemu::TestMachine machine({.compute_capability = 75});
  const Status refused = MakeCudaDevice().status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "CUDA: Emulated GPU is too old: it has 7.5 as its compute capability, 8.0 is needed");
}

}  // namespace
}  // namespace cairn::cuda
