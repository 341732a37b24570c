// What memory there is: the device's, page-locked host memory, and host memory that was registered.
// Device and page-locked memory come from ranges of their own, first fit, with red zones between
// allocations; they are full of NaN at first, and poisoned for ASan when they are freed.
// Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "tests/cuda_emu/memory_shadow.h"

namespace cairn::cuemu {

enum class MemoryKind : unsigned char { kDevice, kPinned, kRegistered };

struct Allocation {
  std::byte* address = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
};

// Addresses that are given out and taken back. Not thread-safe.
class AddressRange {
 public:
  explicit AddressRange(size_t capacity_bytes);
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  std::byte* Take(size_t bytes);  // null when there is not so much
  void Return(std::byte* address, size_t bytes);
  size_t capacity_bytes() const { return capacity_bytes_; }
  size_t used_bytes() const { return used_bytes_; }
  MemoryShadow& shadow() { return *shadow_; }

 private:
  const size_t capacity_bytes_;
  const size_t mapped_bytes_;  // red zones and gaps take room of their own
  size_t used_bytes_ = 0;
  std::byte* base_;
  std::unique_ptr<MemoryShadow> shadow_;
  std::map<std::byte*, size_t> free_;
};

class MemoryMap {
 public:
  MemoryMap(size_t device_bytes, size_t pinned_bytes);

  void* Allocate(MemoryKind kind, size_t bytes);  // null when there is not so much
  bool Free(MemoryKind kind, void* address);      // false: no such allocation
  bool Register(void* address, size_t bytes);     // false: part of it is known already
  bool Unregister(void* address);
  // The allocation that `address` lies in.
  std::optional<Allocation> Find(const void* address) const;
  // The shadow of what CUDA knows at `address`; null for the host's own memory. Valid while that
  // memory is registered.
  MemoryShadow* FindShadow(const void* address);
  size_t device_bytes() const;
  size_t device_bytes_used() const;
  bool empty() const;

 private:
  AddressRange& RangeOf(MemoryKind kind) { return kind == MemoryKind::kDevice ? device_ : pinned_; }

  mutable std::mutex mutex_;
  AddressRange device_;
  AddressRange pinned_;
  std::map<const std::byte*, Allocation> allocations_;
  std::map<const std::byte*, std::unique_ptr<MemoryShadow>> registered_;
};

}  // namespace cairn::cuemu
