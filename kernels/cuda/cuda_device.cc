#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/copy_batch.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/pinned_memory.h"

namespace cairn::cuda {
namespace {

constexpr int kCapabilityMajorMin = 8;
// Some 80 us at 50 GB/s, ten times what putting them on a stream takes. By arithmetic, not
// measured.
constexpr size_t kCopyBatchBytes = size_t{4} << 20;

// What the parts of one device share: its idle events and its first sticky error. Threads: safe.
class CudaContext {
 public:
  CudaContext() = default;
  ~CudaContext();  // every event was given back
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // The Status of a call; a sticky one is remembered.
  Status Check(cudaError_t error, const char* doing);
  // The first sticky error; ok when there was none.
  Status lost() const;

  Result<cudaEvent_t> TakeEvent();
  void GiveEvent(cudaEvent_t event);

 private:
  mutable std::mutex mutex_;
  Status lost_;
  std::vector<cudaEvent_t> idle_events_;
};

CudaContext::~CudaContext() {
  for (const cudaEvent_t event : idle_events_) (void)cudaEventDestroy(event);
}

Status CudaContext::Check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return Status();
  Status status = ToStatus(error, doing);
  if (IsSticky(error)) {
    std::lock_guard lock(mutex_);
    if (lost_.ok()) lost_ = status;
  }
  return status;
}

Status CudaContext::lost() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

Result<cudaEvent_t> CudaContext::TakeEvent() {
  {
    std::lock_guard lock(mutex_);
    if (!idle_events_.empty()) {
      const cudaEvent_t event = idle_events_.back();
      idle_events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(Check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "a new event"));
  return event;
}

void CudaContext::GiveEvent(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  idle_events_.push_back(event);
}

class CudaEvent final : public Event {
 public:
  // `event` is null when none could be had. `error`: of the work before it.
  CudaEvent(std::shared_ptr<CudaContext> context, cudaEvent_t event, Status error)
      : context_(std::move(context)), event_(event), error_(std::move(error)) {}
  ~CudaEvent() override {
    if (event_ != nullptr) context_->GiveEvent(event_);
  }

  cudaEvent_t handle() const { return event_; }
  bool Passed() const override {
    return event_ == nullptr || cudaEventQuery(event_) != cudaErrorNotReady;
  }
  Status Wait() override {
    if (event_ == nullptr) return NoEvent();
    RETURN_IF_ERROR(context_->Check(cudaEventSynchronize(event_), "waiting for an event"));
    RETURN_IF_ERROR(context_->lost());
    return error_;
  }
  double SecondsSince(const Event& earlier) const override {
    const cudaEvent_t begin = static_cast<const CudaEvent&>(earlier).event_;
    float milliseconds = 0;
    const bool is_known = begin != nullptr && event_ != nullptr &&
                          cudaEventElapsedTime(&milliseconds, begin, event_) == cudaSuccess;
    return is_known ? milliseconds * 1e-3 : 0;
  }

 private:
  Status NoEvent() const {
    RETURN_IF_ERROR(context_->lost());
    return Unavailable("CUDA: there was no event to wait for");
  }

  const std::shared_ptr<CudaContext> context_;
  const cudaEvent_t event_;
  const Status error_;
};

class DeviceStream final : public CudaStream {
 public:
  DeviceStream(std::shared_ptr<CudaContext> context, cudaStream_t handle)
      : context_(std::move(context)), handle_(handle) {}
  ~DeviceStream() override {
    (void)Synchronize();
    (void)cudaStreamDestroy(handle_);
  }

  EventRef Record() override;
  void Wait(const EventRef& event) override;
  void Copy(void* destination, const void* source, size_t size_bytes) override;
  void CopyBatch(std::span<const CopyPart> parts) override;
  void Clear(void* destination, size_t size_bytes) override;
  Status Synchronize() override;
  bool failed() const override { return !error_.ok(); }

  cudaStream_t handle() const override { return handle_; }
  void Fail(Status status) override {
    if (unrecorded_error_.ok()) unrecorded_error_ = status;
    if (error_.ok()) error_ = std::move(status);
  }

 private:
  void Check(cudaError_t error, const char* doing) { Fail(context_->Check(error, doing)); }

  const std::shared_ptr<CudaContext> context_;
  const cudaStream_t handle_;
  Status error_;             // the first since the last Synchronize
  Status unrecorded_error_;  // the first since the last Record or Synchronize
};

EventRef DeviceStream::Record() {
  Result<cudaEvent_t> event = context_->TakeEvent();
  if (!event.ok()) {
    Fail(event.status());
    (void)cudaStreamSynchronize(handle_);  // such an event counts as passed
    return std::make_shared<CudaEvent>(context_, nullptr, Status());
  }
  if (const cudaError_t error = cudaEventRecord(*event, handle_); error != cudaSuccess) {
    Check(error, "recording an event");
    (void)cudaStreamSynchronize(handle_);  // the same of one that was never recorded
  }
  return std::make_shared<CudaEvent>(context_, *event, std::exchange(unrecorded_error_, Status()));
}

void DeviceStream::Wait(const EventRef& event) {
  if (event == nullptr) return;
  const cudaEvent_t handle = static_cast<const CudaEvent&>(*event).handle();
  if (handle == nullptr) return Fail(event->Wait());
  Check(cudaStreamWaitEvent(handle_, handle, 0), "waiting for another stream");
}

void DeviceStream::Copy(void* destination, const void* source, size_t size_bytes) {
  if (size_bytes == 0) return;
  Check(cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, handle_), "copying");
}

void DeviceStream::CopyBatch(std::span<const CopyPart> parts) {
  Check(cuda::CopyBatch(parts, handle_), "copying");
}

void DeviceStream::Clear(void* destination, size_t size_bytes) {
  if (size_bytes == 0) return;
  Check(cudaMemsetAsync(destination, 0, size_bytes, handle_), "clearing");
}

Status DeviceStream::Synchronize() {
  Check(cudaStreamSynchronize(handle_), "waiting for a stream");
  Status error = std::exchange(error_, Status());
  unrecorded_error_ = Status();
  RETURN_IF_ERROR(context_->lost());
  return error;
}

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(std::byte* data, size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  ~DeviceBuffer() override { (void)cudaFree(data_); }  // of a lost device nothing is left to free
  std::byte* data() override { return data_; }
  size_t size_bytes() const override { return size_bytes_; }

 private:
  std::byte* const data_;
  const size_t size_bytes_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceInfo info, std::shared_ptr<CudaContext> context,
             std::unique_ptr<DeviceStream> stream, int numa_node)
      : info_(std::move(info)),
        context_(std::move(context)),
        stream_(std::move(stream)),
        numa_node_(numa_node) {}

  const DeviceInfo& info() const override { return info_; }
  Status lost() const override { return context_->lost(); }
  Result<uint64_t> FreeBytes() override {
    size_t free_bytes = 0, memory_bytes = 0;
    RETURN_IF_ERROR(context_->Check(cudaMemGetInfo(&free_bytes, &memory_bytes), "asking for room"));
    return uint64_t{free_bytes};
  }

  Result<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override {
    if (size_bytes == 0) return InvalidArgument("a buffer of 0 bytes");
    RETURN_IF_ERROR(context_->lost());
    void* data = nullptr;
    const std::string doing = "allocating " + std::to_string(size_bytes) + " bytes";
    RETURN_IF_ERROR(context_->Check(cudaMalloc(&data, size_bytes), doing.c_str()));
    auto buffer = std::make_unique<DeviceBuffer>(static_cast<std::byte*>(data), size_bytes);
    std::lock_guard lock(mutex_);
    stream_->Clear(data, size_bytes);
    RETURN_IF_ERROR(stream_->Synchronize());
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  Result<std::unique_ptr<Buffer>> AllocateHost(size_t size_bytes) override {
    if (size_bytes == 0) return InvalidArgument("a buffer of 0 bytes");
    RETURN_IF_ERROR(context_->lost());
    return MakePinnedMemory(size_bytes, numa_node_);
  }

  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, MakeStream(context_, use));
    return std::unique_ptr<Stream>(std::move(stream));
  }

  // What computes goes first where both could.
  static Result<std::unique_ptr<DeviceStream>> MakeStream(
      const std::shared_ptr<CudaContext>& context, StreamUse use) {
    int least = 0, greatest = 0;
    RETURN_IF_ERROR(
        context->Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking priorities"));
    const int priority = use == StreamUse::kCompute ? greatest : least;
    cudaStream_t handle = nullptr;
    RETURN_IF_ERROR(context->Check(
        cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, priority), "a new stream"));
    return std::make_unique<DeviceStream>(context, handle);
  }

 private:
  const DeviceInfo info_;
  const std::shared_ptr<CudaContext> context_;
  std::mutex mutex_;                            // of stream_
  const std::unique_ptr<DeviceStream> stream_;  // clears fresh memory
  const int numa_node_;
};

Status CheckCapability(const cudaDeviceProp& properties) {
  if (properties.major >= kCapabilityMajorMin) return Status();
  return FailedPrecondition(std::string("CUDA: ") + properties.name + " is too old: it has " +
                            std::to_string(properties.major) + "." +
                            std::to_string(properties.minor) +
                            " as its compute capability, 8.0 is needed");
}

}  // namespace

Result<std::unique_ptr<Device>> MakeCudaDevice() {
  auto context = std::make_shared<CudaContext>();
  int count = 0;
  RETURN_IF_ERROR(context->Check(cudaGetDeviceCount(&count), "looking for devices"));
  if (count == 0) return FailedPrecondition("CUDA: there is no device");
  RETURN_IF_ERROR(context->Check(cudaSetDevice(0), "choosing the device"));
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(
      context->Check(cudaGetDeviceProperties(&properties, 0), "asking what the device is"));
  RETURN_IF_ERROR(CheckCapability(properties));
  size_t free_bytes = 0, memory_bytes = 0;  // the first call that needs the device itself
  RETURN_IF_ERROR(
      context->Check(cudaMemGetInfo(&free_bytes, &memory_bytes), "beginning to use the device"));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream,
                   CudaDevice::MakeStream(context, StreamUse::kCopy));
  DeviceInfo info = {.backend = "cuda",
                     .name = properties.name,
                     .instruction_set = "sm_" + std::to_string(properties.major) +
                                        std::to_string(properties.minor),
                     .thread_count = static_cast<uint32_t>(properties.multiProcessorCount),
                     .memory_bytes = memory_bytes,
                     .copy_batch_bytes = kCopyBatchBytes};
  const int numa_node =
      NumaNodeOf(properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(info), std::move(context),
                                                              std::move(stream), numa_node));
}

}  // namespace cairn::cuda
