// A device that another one is, but for what a test overrides.
#pragma once

#include <memory>
#include <utility>

#include "kernels/device.h"

namespace cairn {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  const DeviceInfo& info() const override { return inner_->info(); }
  Status lost() const override { return inner_->lost(); }
  Result<uint64_t> FreeBytes() override { return inner_->FreeBytes(); }
  Result<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override {
    return inner_->Allocate(size_bytes);
  }
  Result<std::unique_ptr<Buffer>> AllocateHost(size_t size_bytes) override {
    return inner_->AllocateHost(size_bytes);
  }
  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    return inner_->NewStream(use);
  }

 private:
  const std::unique_ptr<Device> inner_;
};

}  // namespace cairn
