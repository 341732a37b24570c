// Who touched the shared memory of a block last, byte for byte: finds races between its threads.
// Two accesses of different threads, one of them a write, are ordered by a __syncthreads between
// them, or within a warp by a __syncwarp; shuffles and votes order nothing, as CUDA says. Bytes
// that a cp.async fills may not be touched before its wait, and bytes that nobody has written in
// this block may not be read.
//
// A __syncwarp of part of a warp counts for all of it, and atomics are not noted: both can hide a
// race, neither makes one up. Threads: one block at a time, so one OS thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/cuda_emu/memory_shadow.h"

namespace cairn::cuemu {

enum class SharedProblem : uint8_t { kNone, kOutside, kUnwritten, kRace, kBeforeWait };

// Which thread accesses, and how often its block and its warp have met before.
struct SharedMoment {
  uint32_t thread;
  uint32_t barrier;
  uint32_t warp_sync;
};

class SharedShadow {
 public:
  SharedShadow(const std::byte* base, size_t bytes);

  bool Covers(const void* address) const { return IndexOf(address) < cells_.size(); }
  // A block begins: no memory is open. Barriers go on counting from block to block.
  void Begin(uint32_t first_barrier);
  void Open(const void* address, size_t bytes);

  SharedProblem Read(const SharedMoment& moment, const void* address, size_t bytes);
  SharedProblem Write(const SharedMoment& moment, const void* address, size_t bytes);
  // A cp.async to these bytes begins, and has been waited for: a write of that moment.
  SharedProblem BeginCopy(const SharedMoment& moment, const void* address, size_t bytes);
  void EndCopy(const SharedMoment& moment, const void* address, size_t bytes);

 private:
  enum class Who : uint8_t { kThread, kLanes, kWarps, kCopy };
  // The last access of a kind; kLanes: of several lanes of the thread's warp, kWarps: of several
  // warps, since the last meeting.
  struct Stamp {
    uint32_t barrier = 0;
    uint32_t warp_sync = 0;
    uint16_t thread = 0;
    Who who = Who::kThread;
  };
  struct Cell {
    Stamp write;
    Stamp read;
  };
  // Stamps of earlier blocks are none.
  bool IsEmpty(const Stamp& stamp) const { return stamp.barrier < first_barrier_; }
  bool Ordered(const Stamp& stamp, const SharedMoment& moment) const;
  static Stamp StampOf(const SharedMoment& moment, Who who);
  SharedProblem CheckWrite(size_t index, const SharedMoment& moment) const;
  size_t IndexOf(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - base_);
  }

  const std::byte* const base_;
  std::vector<Cell> cells_;
  std::vector<uint32_t> opened_;  // since which block's first barrier
  uint32_t first_barrier_ = 1;
};

}  // namespace cairn::cuemu
