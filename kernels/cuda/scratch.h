// Device memory that grows to the largest size asked for.
// Threads: those of the stream it is used on.
#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/device.h"

namespace cairn::cuda {

class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}

  const void* data() const { return buffer_ == nullptr ? nullptr : buffer_->data(); }

  // What runs on `stream` may still use the old memory, so growing waits for it. The address is the
  // same until it grows.
  template <class T>
  Result<T*> Reserve(size_t count, Stream& stream) {
    const size_t size_bytes = count * sizeof(T);
    if (size_bytes == 0) return static_cast<T*>(nullptr);
    if (buffer_ == nullptr || buffer_->size_bytes() < size_bytes) {
      RETURN_IF_ERROR(stream.Synchronize());
      buffer_.reset();  // before the new one is taken
      ASSIGN_OR_RETURN(buffer_, device_.Allocate(size_bytes));
    }
    return reinterpret_cast<T*>(buffer_->data());
  }

 private:
  Device& device_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace cairn::cuda
