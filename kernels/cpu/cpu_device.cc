#include "kernels/cpu/cpu_device.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/page_fetcher.h"

namespace cairn {
namespace {

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(HostMemory memory, size_t size_bytes, std::atomic<uint64_t>& allocated_bytes)
      : memory_(std::move(memory)), size_bytes_(size_bytes), allocated_bytes_(allocated_bytes) {}
  ~CpuBuffer() override { allocated_bytes_ -= size_bytes_; }

  std::byte* data() override { return memory_.bytes().data(); }
  size_t size_bytes() const override { return size_bytes_; }
  void WillUse(size_t size_bytes) override {
    if (!fetcher_.has_value()) fetcher_.emplace(memory_.bytes());
    fetcher_->FetchTo(size_bytes);
  }
  Status Lock() override { return memory_.Lock(); }

 private:
  HostMemory memory_;
  const size_t size_bytes_;
  std::atomic<uint64_t>& allocated_bytes_;  // the device's count
  std::optional<PageFetcher> fetcher_;      // ends before the memory
};

class CpuEvent final : public Event {
 public:
  bool Passed() const override {
    std::lock_guard lock(mutex_);
    return passed_;
  }

  Status Wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_; });
    return Status();
  }

  double SecondsSince(const Event& earlier) const override {
    const auto& other = static_cast<const CpuEvent&>(earlier);
    return std::chrono::duration<double>(time_ - other.time_).count();
  }

  void Pass() {
    std::lock_guard lock(mutex_);
    time_ = std::chrono::steady_clock::now();
    passed_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
  std::chrono::steady_clock::time_point time_;  // when it passed; it does not change any more
};

class CpuCopyStream final : public Stream {
 public:
  CpuCopyStream() : thread_([this] { Loop(); }) {}

  ~CpuCopyStream() override {
    Put(Stop{});
    thread_.join();
  }

  EventRef Record() override {
    auto event = std::make_shared<CpuEvent>();
    Put(RecordTask{event});
    return event;
  }

  void Wait(const EventRef& event) override {
    if (event != nullptr && !event->Passed()) Put(WaitTask{event});
  }

  void Copy(void* destination, const void* source, size_t size_bytes) override {
    if (size_bytes > 0) Put(CopyTask{destination, source, size_bytes});
  }

  // One entry of the queue, however many there are.
  void CopyBatch(std::span<const CopyPart> parts) override {
    if (!parts.empty()) Put(BatchTask{{parts.begin(), parts.end()}});
  }

  void Clear(void* destination, size_t size_bytes) override {
    if (size_bytes > 0) Put(ClearTask{destination, size_bytes});
  }

  Status Synchronize() override { return Record()->Wait(); }

 private:
  struct CopyTask {
    void* destination;
    const void* source;
    size_t size_bytes;
  };
  struct BatchTask {
    std::vector<CopyPart> parts;
  };
  struct ClearTask {
    void* destination;
    size_t size_bytes;
  };
  struct RecordTask {
    std::shared_ptr<CpuEvent> event;
  };
  struct WaitTask {
    EventRef event;
  };
  struct Stop {};
  using Task = std::variant<CopyTask, BatchTask, ClearTask, RecordTask, WaitTask, Stop>;

  void Put(Task task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < kCopyQueueMax; });
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  Task Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !tasks_.empty(); });
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    changed_.notify_all();
    return task;
  }

  void Loop() {
    while (true) {
      const Task task = Take();
      if (const auto* copy = std::get_if<CopyTask>(&task)) {
        std::memcpy(copy->destination, copy->source, copy->size_bytes);
      } else if (const auto* batch = std::get_if<BatchTask>(&task)) {
        for (const CopyPart& part : batch->parts) {
          std::memcpy(part.to, part.from, part.size_bytes);
        }
      } else if (const auto* clear = std::get_if<ClearTask>(&task)) {
        std::memset(clear->destination, 0, clear->size_bytes);
      } else if (const auto* record = std::get_if<RecordTask>(&task)) {
        record->event->Pass();
      } else if (const auto* wait = std::get_if<WaitTask>(&task)) {
        CHECK(wait->event->Wait().ok());  // an event of this device cannot fail
      } else {
        return;
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::thread thread_;  // last: it uses the others
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(DeviceInfo info) : info_(std::move(info)) {
    info_.reads_host_memory = true;
    info_.host_addressable = true;
  }

  const DeviceInfo& info() const override { return info_; }
  Result<uint64_t> FreeBytes() override { return info_.memory_bytes - allocated_bytes_; }

  Result<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override {
    if (size_bytes == 0) return InvalidArgument("a buffer of 0 bytes");
    // Untouched pages cost nothing yet, so the system would promise more than it has.
    if (!Reserve(size_bytes)) {
      return ResourceExhausted("a buffer of " + std::to_string(size_bytes) +
                               " bytes exceeds what is left of the device's " +
                               std::to_string(info_.memory_bytes) + " bytes");
    }
    Result<HostMemory> memory = HostMemory::Map(size_bytes);
    if (!memory.ok()) {
      allocated_bytes_ -= size_bytes;
      return memory.status();
    }
    return std::unique_ptr<Buffer>(
        std::make_unique<CpuBuffer>(*std::move(memory), size_bytes, allocated_bytes_));
  }

  // Host memory plays the device, so there is no other kind.
  Result<std::unique_ptr<Buffer>> AllocateHost(size_t size_bytes) override {
    return Allocate(size_bytes);
  }

  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    if (use == StreamUse::kCompute) {
      return std::unique_ptr<Stream>(std::make_unique<CpuComputeStream>());
    }
    return std::unique_ptr<Stream>(std::make_unique<CpuCopyStream>());
  }

 private:
  bool Reserve(size_t size_bytes) {
    uint64_t allocated = allocated_bytes_.load();
    do {
      if (size_bytes > info_.memory_bytes - allocated) return false;
    } while (!allocated_bytes_.compare_exchange_weak(allocated, allocated + size_bytes));
    return true;
  }

  DeviceInfo info_;
  std::atomic<uint64_t> allocated_bytes_{0};
};

}  // namespace

void CpuComputeStream::Wait(const EventRef& event) {
  if (event != nullptr) CHECK(event->Wait().ok());  // an event of this device cannot fail
}

void CpuComputeStream::Copy(void* destination, const void* source, size_t size_bytes) {
  if (size_bytes > 0) std::memcpy(destination, source, size_bytes);
}

void CpuComputeStream::Clear(void* destination, size_t size_bytes) {
  if (size_bytes > 0) std::memset(destination, 0, size_bytes);
}

std::unique_ptr<Device> MakeCpuDevice(DeviceInfo info) {
  return std::make_unique<CpuDevice>(std::move(info));
}

}  // namespace cairn
