// Who touched memory last, for one range of it: finds accesses outside of allocations, and accesses
// that conflict with another stream's and that no event orders. It remembers per 16 bytes the last
// work that wrote and up to three that read, as in FastTrack (Flanagan and Freund 2009); when more
// works than that read at a time, some are forgotten. Two works that write different bytes of the
// same 16 look like a conflict. Threads: any; blocks of one grid note their accesses side by side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tests/cuda_emu/vector_clock.h"

namespace cairn::cuemu {

enum class AccessKind : uint8_t { kRead, kWrite };

struct AccessProblem {
  bool outside = false;  // of every allocation; else a conflict with `other`
  Epoch other;
  AccessKind other_kind = AccessKind::kRead;
};

class MemoryShadow {
 public:
  MemoryShadow(const std::byte* base, size_t bytes);
  ~MemoryShadow();
  MemoryShadow(const MemoryShadow&) = delete;
  MemoryShadow& operator=(const MemoryShadow&) = delete;

  bool Covers(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - base_) < bytes_;
  }
  void Open(const std::byte* address, size_t bytes);   // allocated, and touched by nobody
  void Close(const std::byte* address, size_t bytes);  // outside again
  // Remembers an access. The first problem with it, if there is one.
  std::optional<AccessProblem> Note(const Moment& moment, const void* address, size_t bytes,
                                    AccessKind kind);

 private:
  static constexpr size_t kGranuleBytes = 16;
  static constexpr size_t kReaders = 3;
  // Epochs; 0 is closed memory, 1 a place that no work has touched (no epoch is below kStreamsMax).
  struct Cell {
    std::atomic<uint32_t> writer;
    std::atomic<uint32_t> readers[kReaders];
  };
  static std::optional<AccessProblem> Read(Cell& cell, const Moment& moment);
  static std::optional<AccessProblem> Write(Cell& cell, const Moment& moment);
  size_t IndexOf(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - base_) / kGranuleBytes;
  }

  const std::byte* const base_;
  const size_t bytes_;
  const size_t mapped_bytes_;
  Cell* cells_;
};

}  // namespace cairn::cuemu
