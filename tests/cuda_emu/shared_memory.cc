#include "tests/cuda_emu/shared_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "base/check.h"
#include "tests/cuda_emu/sanitizers.h"

namespace cairn::cuemu {
namespace {

constexpr size_t kRedZoneBytes = 128;
constexpr size_t kArenaBytes = 128 << 10;
constexpr size_t kDynamicBytes = kDynamicSharedBytesMax + (4 << 10);
constexpr int kNaNByte = 0xff;  // of f16, bf16 and f32 alike

std::byte* Map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  return static_cast<std::byte*>(memory);
}

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

SharedMemory::SharedMemory()
    : arena_(Map(kArenaBytes)),
      dynamic_(Map(kDynamicBytes)),
      arena_shadow_(arena_, kArenaBytes),
      dynamic_shadow_(dynamic_, kDynamicBytes) {
  Poison(arena_, kArenaBytes);
  Poison(dynamic_, kDynamicBytes);
}

SharedMemory::~SharedMemory() {
  Unpoison(arena_, kArenaBytes);
  Unpoison(dynamic_, kDynamicBytes);
  munmap(arena_, kArenaBytes);
  munmap(dynamic_, kDynamicBytes);
}

void SharedMemory::Begin(size_t dynamic_bytes, uint32_t barrier) {
  CHECK(dynamic_bytes <= kDynamicSharedBytesMax);
  Poison(arena_, arena_used_);
  arena_used_ = 0;
  static_bytes_ = 0;
  objects_.clear();
  Poison(dynamic_, kDynamicBytes);
  Unpoison(dynamic_, dynamic_bytes);
  std::memset(dynamic_, kNaNByte, dynamic_bytes);
  arena_shadow_.Begin(barrier);
  dynamic_shadow_.Begin(barrier);
  dynamic_shadow_.Open(dynamic_, dynamic_bytes);
}

void* SharedMemory::Static(const void* tag, size_t bytes, size_t alignment, const char* name) {
  for (const Object& object : objects_) {
    if (object.tag == tag) return object.address;
  }
  static_bytes_ += bytes;
  const size_t offset = RoundUp(arena_used_ + kRedZoneBytes, alignment);
  if (static_bytes_ > kStaticSharedBytesMax || offset + bytes > kArenaBytes) return nullptr;
  std::byte* address = arena_ + offset;
  // ASan tells bytes apart only at the end of a group of eight.
  arena_used_ = RoundUp(offset + bytes, 8);
  Unpoison(address, bytes);
  std::memset(address, kNaNByte, bytes);
  arena_shadow_.Open(address, bytes);
  objects_.push_back({tag, address, bytes, name});
  return address;
}

SharedShadow* SharedMemory::FindShadow(const void* address) {
  if (dynamic_shadow_.Covers(address)) return &dynamic_shadow_;
  if (arena_shadow_.Covers(address)) return &arena_shadow_;
  return nullptr;
}

std::string SharedMemory::Describe(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  if (dynamic_shadow_.Covers(address)) {
    return "byte " + std::to_string(at - dynamic_) + " of dynamic shared memory";
  }
  for (const Object& object : objects_) {
    if (at < object.address - kRedZoneBytes ||
        at >= object.address + object.bytes + kRedZoneBytes) {
      continue;
    }
    return "byte " + std::to_string(at - object.address) + " of " + object.name + ", which has " +
           std::to_string(object.bytes);
  }
  return "static shared memory";
}

}  // namespace cairn::cuemu
