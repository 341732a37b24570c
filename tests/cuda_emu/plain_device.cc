#include "tests/cuda_emu/plain_device.h"

#include <cuda_runtime.h>

#include <utility>

#include "base/check.h"
#include "kernels/cuda/cuda_stream.h"

namespace cairn::cuda {
namespace {

class PlainBuffer final : public Buffer {
 public:
  PlainBuffer(void* data, size_t size_bytes, bool is_host)
      : data_(static_cast<std::byte*>(data)), size_bytes_(size_bytes), is_host_(is_host) {}
  ~PlainBuffer() override { is_host_ ? cudaFreeHost(data_) : cudaFree(data_); }
  std::byte* data() override { return data_; }
  size_t size_bytes() const override { return size_bytes_; }

 private:
  std::byte* const data_;
  const size_t size_bytes_;
  const bool is_host_;
};

class PlainEvent final : public Event {
 public:
  explicit PlainEvent(cudaStream_t stream) {
    CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventRecord(event_, stream) == cudaSuccess);
  }
  ~PlainEvent() override { cudaEventDestroy(event_); }
  bool Passed() const override { return cudaEventQuery(event_) == cudaSuccess; }
  Status Wait() override {
    return cudaEventSynchronize(event_) == cudaSuccess ? Status()
                                                       : Status(Code::kInternal, "CUDA: event");
  }
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class PlainStream final : public CudaStream {
 public:
  PlainStream() {
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~PlainStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  EventRef Record() override { return std::make_shared<PlainEvent>(stream_); }
  void Wait(const EventRef& event) override {
    if (event == nullptr) return;
    Note(cudaStreamWaitEvent(stream_, static_cast<PlainEvent&>(*event).handle(), 0));
  }
  void Copy(void* destination, const void* source, size_t size_bytes) override {
    Note(cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, stream_));
  }
  void Clear(void* destination, size_t size_bytes) override {
    Note(cudaMemsetAsync(destination, 0, size_bytes, stream_));
  }
  Status Synchronize() override {
    Note(cudaStreamSynchronize(stream_));
    return std::exchange(status_, Status());
  }
  cudaStream_t handle() const override { return stream_; }
  void Fail(Status status) override {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  cudaStream_t stream_ = nullptr;
  Status status_;
};

class PlainDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override {
    void* data = nullptr;
    if (cudaMalloc(&data, size_bytes) != cudaSuccess) return ResourceExhausted("cudaMalloc");
    std::unique_ptr<Buffer> buffer = std::make_unique<PlainBuffer>(data, size_bytes, false);
    PlainStream stream;
    stream.Clear(data, size_bytes);
    RETURN_IF_ERROR(stream.Synchronize());
    return buffer;
  }
  Result<std::unique_ptr<Buffer>> AllocateHost(size_t size_bytes) override {
    void* data = nullptr;
    if (cudaHostAlloc(&data, size_bytes, cudaHostAllocDefault) != cudaSuccess) {
      return ResourceExhausted("cudaHostAlloc");
    }
    return std::unique_ptr<Buffer>(std::make_unique<PlainBuffer>(data, size_bytes, true));
  }
  Result<std::unique_ptr<Stream>> NewStream(StreamUse) override {
    return std::unique_ptr<Stream>(std::make_unique<PlainStream>());
  }

 private:
  const DeviceInfo info_ = {.backend = "cuda"};
};

}  // namespace

std::unique_ptr<Device> MakePlainDevice() { return std::make_unique<PlainDevice>(); }

}  // namespace cairn::cuda
