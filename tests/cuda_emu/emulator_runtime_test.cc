// The emulated runtime: streams, events, graphs, memory, limits, and faults on demand.

#include <cublas_v2.h>
#include <cuda_fp16.h>
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
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
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
  size_t node_count = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &node_count), cudaSuccess);
  EXPECT_EQ(node_count, 2u);
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

// Two streams and an array that both use. Whatever ran first, what is not ordered is reported.
class StreamOrderTest : public testing::Test {
 protected:
  StreamOrderTest() {
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host_), 4096, 0), cudaSuccess);
    CopyIn(compute_);
    EXPECT_EQ(compute_.Synchronize(), cudaSuccess);
  }
  ~StreamOrderTest() override {
    cudaEventDestroy(event_);
    cudaFreeHost(host_);
  }

  void CopyIn(const TestStream& stream) {
    EXPECT_EQ(cudaMemcpyAsync(array_.get(), host_, 4096, cudaMemcpyHostToDevice, stream.get()),
              cudaSuccess);
  }
  void CopyOut(const TestStream& stream) {
    EXPECT_EQ(cudaMemcpyAsync(host_, array_.get(), 4096, cudaMemcpyDeviceToHost, stream.get()),
              cudaSuccess);
  }
  void Kernel() { EXPECT_EQ(LaunchIncrement(array_.get(), 1024, compute_.get()), cudaSuccess); }
  void Order(const TestStream& first, const TestStream& second) {
    EXPECT_EQ(cudaEventRecord(event_, first.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second.get(), event_, 0), cudaSuccess);
  }
  std::vector<std::string> Reports() {
    EXPECT_EQ(compute_.Synchronize(), cudaSuccess);
    EXPECT_EQ(copy_.Synchronize(), cudaSuccess);
    return TakeReports();
  }

  TestMachine machine_;
  const TestStream compute_;
  const TestStream copy_;
  const DeviceArray<float> array_{1024};
  float* host_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(StreamOrderTest, WhatEventsOrderIsFine) {
  for (int round = 0; round < 5; round++) {
    CopyIn(copy_);
    Order(copy_, compute_);
    Kernel();
    Order(compute_, copy_);
    CopyOut(copy_);
  }
  EXPECT_THAT(Reports(), ElementsAre());
}

TEST_F(StreamOrderTest, WhatTheHostWaitedForIsFine) {
  CopyIn(copy_);
  EXPECT_EQ(copy_.Synchronize(), cudaSuccess);
  Kernel();
  EXPECT_EQ(cudaEventRecord(event_, compute_.get()), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  CopyOut(copy_);
  EXPECT_THAT(Reports(), ElementsAre());
}

TEST_F(StreamOrderTest, AnOldRecordOrdersNothingNew) {
  Order(copy_, compute_);  // before the copy that matters
  CopyIn(copy_);
  EXPECT_EQ(copy_.Synchronize(), cudaSuccess);
  CopyIn(copy_);
  CopyOut(compute_);
  EXPECT_THAT(Reports(), testing::SizeIs(testing::Ge(1u)));
}

TEST_F(StreamOrderTest, TwoCopiesThatNothingOrdersAreReported) {
  CopyIn(copy_);
  CopyOut(compute_);
  EXPECT_THAT(Reports(), testing::SizeIs(testing::Ge(1u)));
}

#if !defined(CAIRN_SANITIZED)  // what kernels touch is known from the instrumentation

TEST_F(StreamOrderTest, AKernelMayNotReadWhatIsStillBeingCopied) {
  CopyIn(copy_);
  Kernel();
  EXPECT_THAT(Reports(), testing::Contains(HasSubstr("no event orders")));
}

TEST_F(StreamOrderTest, ACopyMayNotOverwriteWhatAKernelStillReads) {
  Kernel();
  CopyIn(copy_);
  const std::vector<std::string> reports = Reports();
  ASSERT_FALSE(reports.empty());
  EXPECT_THAT(reports[0], HasSubstr("Increment"));
  EXPECT_THAT(reports[0], HasSubstr("a copy"));
}

TEST_F(StreamOrderTest, AGraphIsOrderedByWhereItIsLaunched) {
  ASSERT_EQ(cudaStreamBeginCapture(compute_.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  Kernel();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(compute_.get(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  CopyIn(copy_);
  Order(copy_, compute_);
  EXPECT_EQ(cudaGraphLaunch(executable, compute_.get()), cudaSuccess);
  EXPECT_THAT(Reports(), ElementsAre());
  CopyIn(copy_);
  EXPECT_EQ(cudaGraphLaunch(executable, compute_.get()), cudaSuccess);
  EXPECT_THAT(Reports(), testing::Contains(HasSubstr("no event orders")));
  cudaGraphDestroy(graph);
  cudaGraphExecDestroy(executable);
}

#endif

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

TEST_F(RuntimeTest, ALaunchDoesNotTellOfAnEarlierErrorThatNobodyTook) {
  const TestStream stream;
  const DeviceArray<float> array(std::vector<float>(4, 1.0f), stream);
  void* memory = nullptr;
  FailCall("cudaMalloc", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(LaunchIncrement(array.get(), 4, stream.get()), cudaSuccess);
  EXPECT_EQ(array.Read(stream), std::vector<float>(4, 2.0f));
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

TEST_F(RuntimeTest, CublasMultiplies) {
  constexpr int kM = 5;
  constexpr int kN = 3;
  constexpr int kK = 7;
  const TestStream stream;
  std::vector<__half> a(kM * kK);
  std::vector<__half> b(kN * kK);
  for (size_t i = 0; i < a.size(); i++) a[i] = __float2half(static_cast<float>(i % 11) - 5);
  for (size_t i = 0; i < b.size(); i++) b[i] = __float2half(static_cast<float>(i % 7) - 3);
  const DeviceArray<__half> device_a(a, stream);
  const DeviceArray<__half> device_b(b, stream);
  const DeviceArray<float> c(kM * kN);
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasSetStream(handle, stream.get()), CUBLAS_STATUS_SUCCESS);
  const float one = 1;
  const float zero = 0;
  // In rows: c[n][m] = b[n][k] * a[m][k]^T.
  ASSERT_EQ(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kM, kN, kK, &one, device_a.get(),
                         CUDA_R_16F, kK, device_b.get(), CUDA_R_16F, kK, &zero, c.get(), CUDA_R_32F,
                         kM, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  const std::vector<float> result = c.Read(stream);
  for (size_t n = 0; n < kN; n++) {
    for (size_t m = 0; m < kM; m++) {
      float expected = 0;
      for (size_t k = 0; k < kK; k++) {
        expected += __half2float(a[m * kK + k]) * __half2float(b[n * kK + k]);
      }
      EXPECT_EQ(result[n * kM + m], expected);
    }
  }
  EXPECT_EQ(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kM, kN, kK, &one, device_a.get(),
                         CUDA_R_16F, kK - 1, device_b.get(), CUDA_R_16F, kK, &zero, c.get(),
                         CUDA_R_32F, kM, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
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
