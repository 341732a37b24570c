#include "tests/cuda_emu/memory_map.h"

#include <sys/mman.h>

#include <cstring>
#include <iterator>

#include "base/check.h"
#include "tests/cuda_emu/sanitizers.h"

namespace cairn::cuemu {
namespace {

constexpr size_t kAlignment = 4096;  // at least CUDA's 256; pages make strides easy to read
constexpr size_t kRedZoneBytes = 4096;
constexpr int kNaNByte = 0xff;

size_t Footprint(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment + kRedZoneBytes;
}

}  // namespace

AddressRange::AddressRange(size_t capacity_bytes)
    : capacity_bytes_(capacity_bytes), mapped_bytes_(2 * capacity_bytes + (1 << 20)) {
  void* mapping = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapping != MAP_FAILED);
  base_ = static_cast<std::byte*>(mapping);
  shadow_ = std::make_unique<MemoryShadow>(base_, mapped_bytes_);
  Poison(base_, kRedZoneBytes);
  free_[base_ + kRedZoneBytes] = mapped_bytes_ - kRedZoneBytes;
}

AddressRange::~AddressRange() {
  Unpoison(base_, mapped_bytes_);
  munmap(base_, mapped_bytes_);
}

std::byte* AddressRange::Take(size_t bytes) {
  if (bytes > capacity_bytes_ - used_bytes_) return nullptr;
  const size_t footprint = Footprint(bytes);
  for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
    if (gap->second < footprint) continue;
    std::byte* address = gap->first;
    const size_t rest = gap->second - footprint;
    free_.erase(gap);
    if (rest > 0) free_[address + footprint] = rest;
    used_bytes_ += bytes;
    Unpoison(address, bytes);
    Poison(address + bytes, footprint - bytes);
    std::memset(address, kNaNByte, bytes);
    shadow_->Open(address, bytes);
    return address;
  }
  return nullptr;
}

void AddressRange::Return(std::byte* address, size_t bytes) {
  Poison(address, bytes);
  shadow_->Close(address, bytes);
  used_bytes_ -= bytes;
  auto gap = free_.emplace(address, Footprint(bytes)).first;
  const auto next = std::next(gap);
  if (next != free_.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    free_.erase(next);
  }
  if (gap == free_.begin()) return;
  const auto before = std::prev(gap);
  if (before->first + before->second != gap->first) return;
  before->second += gap->second;
  free_.erase(gap);
}

MemoryMap::MemoryMap(size_t device_bytes, size_t pinned_bytes)
    : device_(device_bytes), pinned_(pinned_bytes) {}

void* MemoryMap::Allocate(MemoryKind kind, size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* address = RangeOf(kind).Take(bytes);
  if (address != nullptr) allocations_[address] = {address, bytes, kind};
  return address;
}

bool MemoryMap::Free(MemoryKind kind, void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<std::byte*>(address));
  if (found == allocations_.end() || found->second.kind != kind) return false;
  RangeOf(kind).Return(found->second.address, found->second.bytes);
  allocations_.erase(found);
  return true;
}

bool MemoryMap::Register(void* address, size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto* first = static_cast<std::byte*>(address);
  const auto next = allocations_.lower_bound(first);
  if (next != allocations_.end() && next->first < first + bytes) return false;
  if (next != allocations_.begin()) {
    const Allocation& before = std::prev(next)->second;
    if (before.address + before.bytes > first) return false;
  }
  allocations_[first] = {first, bytes, MemoryKind::kRegistered};
  registered_[first] = std::make_unique<MemoryShadow>(first, bytes);
  registered_[first]->Open(first, bytes);
  return true;
}

bool MemoryMap::Unregister(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<std::byte*>(address));
  if (found == allocations_.end() || found->second.kind != MemoryKind::kRegistered) return false;
  allocations_.erase(found);
  registered_.erase(static_cast<std::byte*>(address));
  return true;
}

MemoryShadow* MemoryMap::FindShadow(const void* address) {
  if (device_.shadow().Covers(address)) return &device_.shadow();
  if (pinned_.shadow().Covers(address)) return &pinned_.shadow();
  const std::lock_guard lock(mutex_);
  for (const auto& [first, shadow] : registered_) {
    if (shadow->Covers(address)) return shadow.get();
  }
  return nullptr;
}

std::optional<Allocation> MemoryMap::Find(const void* address) const {
  const std::lock_guard lock(mutex_);
  const auto* at = static_cast<const std::byte*>(address);
  const auto next = allocations_.upper_bound(at);
  if (next == allocations_.begin()) return std::nullopt;
  const Allocation& before = std::prev(next)->second;
  if (at >= before.address + before.bytes) return std::nullopt;
  return before;
}

size_t MemoryMap::device_bytes() const { return device_.capacity_bytes(); }

size_t MemoryMap::device_bytes_used() const {
  const std::lock_guard lock(mutex_);
  return device_.used_bytes();
}

bool MemoryMap::empty() const {
  const std::lock_guard lock(mutex_);
  return allocations_.empty();
}

}  // namespace cairn::cuemu
