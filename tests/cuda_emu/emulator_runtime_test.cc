// The emulated runtime: streams, events, graphs, memory, limits, and faults on demand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <semaphore>
#include <vector>

#include "tests/cuda_emu/emulator_kernels.h"
#include "tests/cuda_emu/test_device.h"

namespace cairn::cuemu {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RuntimeTest : public testing::Test {
 protected:
  TestMachine machine_;
};

// Holds a stream until it is opened.
struct Gate {
  std::binary_semaphore open{0};
  void Hold(const TestStream& stream) {
    const cudaHostFn_t wait = [](void* gate) { static_cast<Gate*>(gate)->open.acquire(); };
    EXPECT_EQ(cudaLaunchHostFunc(stream.get(), wait, this), cudaSuccess);
  }
};

TEST_F(RuntimeTest, AnEventOrdersTwoStreams) {
  const TestStream first;
  const TestStream second;
  const DeviceArray<float> array(std::vector<float>(8, 5.0f), first);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  Gate gate;
  gate.Hold(first);
  ASSERT_EQ(LaunchIncrement(array.get(), 8, first.get()), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first.get()), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(first.get()), cudaErrorNotReady);
  ASSERT_EQ(cudaStreamWaitEvent(second.get(), event, 0), cudaSuccess);
  ASSERT_EQ(LaunchIncrement(array.get(), 8, second.get()), cudaSuccess);
  gate.open.release();
  EXPECT_EQ(array.Read(second), std::vector<float>(8, 7.0f));
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(RuntimeTest, AnEventMayBeDestroyedBeforeItIsPassed) {
  const TestStream first;
  const TestStream second;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  Gate gate;
  gate.Hold(first);
  ASSERT_EQ(cudaEventRecord(event, first.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second.get(), event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(ReadStatistics().event_count, 0u);
  gate.open.release();
  EXPECT_EQ(second.Synchronize(), cudaSuccess);
}

TEST_F(RuntimeTest, EventsTellTheTimeBetweenThem) {
  const TestStream stream;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(begin, stream.get()), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, stream.get()), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGetLastError();
}

TEST_F(RuntimeTest, AGraphRunsWhatWasCapturedAndNothingBefore) {
  const TestStream stream;
  const DeviceArray<float> array(std::vector<float>(100, 1.0f), stream);
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(LaunchIncrement(array.get(), 100, stream.get()), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(array.get(), 0, 4, stream.get()), cudaSuccess);
  EXPECT_EQ(stream.Synchronize(), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(array.Read(stream), std::vector<float>(100, 1.0f));
  for (int i = 0; i < 3; i++) ASSERT_EQ(cudaGraphLaunch(executable, stream.get()), cudaSuccess);
  std::vector<float> expected(100, 4.0f);
  expected[0] = 0;
  EXPECT_EQ(array.Read(stream), expected);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
}

TEST_F(RuntimeTest, LaunchesBeyondTheLimitsAreRefused) {
  const TestStream stream;
  const DeviceArray<unsigned> out(2048);
  EXPECT_EQ(LaunchNumber(out.get(), 1, 1025, stream.get()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNumber(out.get(), 1, 0, stream.get()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNumber(out.get(), {1, 65536}, 1, stream.get()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(LaunchNumber(out.get(), 2, 1024, stream.get()), cudaSuccess);
  EXPECT_EQ(out.Read(stream)[2047], 2047u);
}

TEST_F(RuntimeTest, StreamZeroIsRefused) {
  const DeviceArray<unsigned> out(1);
  EXPECT_EQ(LaunchNumber(out.get(), 1, 1, nullptr), cudaErrorInvalidResourceHandle);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), cudaErrorNotSupported);
  EXPECT_EQ(TakeReports().size(), 2u);
}

TEST_F(RuntimeTest, CopiesAreChecked) {
  const TestStream stream;
  const DeviceArray<float> array(16);
  std::vector<float> host(32);
  EXPECT_EQ(cudaMemcpyAsync(array.get(), host.data(), 64, cudaMemcpyDeviceToHost, stream.get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(array.get(), host.data(), 65, cudaMemcpyHostToDevice, stream.get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), array.get() + 1, 64, cudaMemcpyDeviceToHost, stream.get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(array.get(), 0, 65, stream.get()), cudaErrorInvalidValue);
  EXPECT_THAT(TakeReports(), ElementsAre(HasSubstr("direction"), HasSubstr("writes past the end"),
                                         HasSubstr("reads past the end"), HasSubstr("outside")));
}

TEST_F(RuntimeTest, AKernelThatFailsStopsWhatFollows) {
  const TestStream stream;
  const DeviceArray<float> array(std::vector<float>(4, 1.0f), stream);
  FailCall("cudaLaunchKernel", 2, cudaErrorLaunchFailure);
  EXPECT_EQ(LaunchIncrement(array.get(), 4, stream.get()), cudaSuccess);
  EXPECT_EQ(LaunchIncrement(array.get(), 4, stream.get()), cudaErrorLaunchFailure);
  EXPECT_EQ(stream.Synchronize(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);  // for ever
  ClearStickyError();
}

TEST_F(RuntimeTest, AnyFunctionFailsOnDemand) {
  FailCall("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
  FailCall("cudaMalloc", 2, cudaErrorMemoryAllocation);
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, -1);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  void* first = nullptr;
  void* second = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 8), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&second, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(second), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST(RuntimeMemoryTest, MemoryEndsAndComesBack) {
  Settings settings;
  settings.device_memory_bytes = 1 << 20;
  const TestMachine machine(settings);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  std::vector<void*> blocks;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 16; i++) {
      void* block = nullptr;
      ASSERT_EQ(cudaMalloc(&block, 64 << 10), cudaSuccess);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0u);
      blocks.push_back(block);
    }
    void* more = nullptr;
    EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
    ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    EXPECT_EQ(free_bytes, 0u);
    EXPECT_EQ(total_bytes, size_t{1} << 20);
    for (void* block : blocks) EXPECT_EQ(cudaFree(block), cudaSuccess);
    blocks.clear();
  }
  EXPECT_EQ(cudaFree(&free_bytes), cudaErrorInvalidValue);
  EXPECT_EQ(TakeReports().size(), 1u);
}

TEST_F(RuntimeTest, HostMemoryHasItsKinds) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 100, cudaHostAllocPortable), cudaSuccess);
  std::vector<float> own(1024);
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, own.data()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  ASSERT_EQ(cudaHostRegister(own.data(), 4096, cudaHostRegisterDefault), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(own.data() + 8, 64, cudaHostRegisterDefault),
            cudaErrorHostMemoryAlreadyRegistered);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, own.data() + 1000), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  ASSERT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

}  // namespace
}  // namespace cairn::cuemu
