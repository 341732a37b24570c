// Runs the blocks of a grid, one after another, on the OS thread that it belongs to: the barriers
// of a block, the meetings of its warps, its shared memory, and the checks of all of them.
//
// What is reported: a warp meeting that the caller is not part of, that names lanes that have
// ended, or whose lanes come from different intrinsics or lines; __syncthreads met at different
// lines, or missed by a thread that ended; threads that wait for what cannot come; cp.async that
// nobody waited for; shared memory beyond its limits. Two barriers on one source line look like
// one.
#pragma once

#include <cuemu/emulator.h>
#include <cuemu/thread.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tests/cuda_emu/grid.h"
#include "tests/cuda_emu/shared_memory.h"
#include "tests/cuda_emu/thread_scheduler.h"

namespace cairn::cuemu {

class BlockRunner {
 public:
  explicit BlockRunner(const Settings& settings);
  ~BlockRunner();

  void Run(Grid& grid, uint64_t block_number);
  void AddTo(Statistics& statistics);  // what it did since the last time

  // Of the calling thread; device code runs on a device.
  static BlockRunner& Current() {
    CHECK(current_thread != nullptr);
    return *current_thread->runner;
  }

  // An access of device code, from the instrumentation. `alignment` is what the code relies on.
  // Outside of a block (launchers are in the same files) it does nothing.
  static void Access(const void* address, size_t bytes, size_t alignment, AccessKind kind,
                     const void* return_address) {
    if (current_thread == nullptr) return;
    current_thread->runner->CheckAccess(address, bytes, alignment, kind, return_address);
  }

  // What thread.h promises; called by the block's threads.
  Collective& MeetWarp(uint32_t mask, WarpOp op, const void* payload, size_t bytes, Place place);
  void LeaveWarp(Collective& collective);
  int MeetBlock(int predicate, BarrierKind kind, Place place);
  void Yield(Place place) { scheduler_.StepBack(place); }
  // Ends the block, from inside an IgnoreAccesses. What the thread's stack holds is not destroyed.
  [[noreturn]] void Trap(cudaError_t error, const char* what, Place place,
                         std::string_view detail = "");
  void* StaticShared(const void* tag, size_t bytes, size_t alignment, const char* name);
  void* DynamicShared() { return shared_.dynamic_memory(); }
  void AsyncCopy(const PendingCopy& copy, Place place);
  void AsyncCopyCommit();
  void AsyncCopyWait(unsigned pending_max);

 private:
  static constexpr size_t kCollectivesMax = 512;  // in flight, in a block

  struct Warp {
    uint32_t live = 0;        // lanes that have not ended
    uint32_t sync_count = 0;  // __syncwarp, of all blocks
    std::vector<Collective*> gathering;
    Strand* lanes[kWarpSize] = {};
  };

  struct Barrier {
    Place place;
    BarrierKind kind = BarrierKind::kPlain;
    unsigned arrived = 0;
    unsigned true_count = 0;
    std::vector<Strand*> waiting;
  };

  static void RunThreads();
  void CheckAccess(const void* address, size_t bytes, size_t alignment, AccessKind kind,
                   const void* return_address);
  void NoteShared(SharedShadow& shadow, const void* address, size_t bytes, AccessKind kind,
                  const void* return_address);
  void NoteGlobal(MemoryShadow& shadow, const void* address, size_t bytes, AccessKind kind,
                  const void* return_address);
  [[noreturn]] void TrapAccess(cudaError_t error, const char* what, const void* address,
                               const void* return_address);
  bool IsOwnMemory(const void* address) const;
  SharedMoment Now();
  static void Land(const PendingCopy& copy);
  void ThreadEnds(Strand& strand);
  void Prepare(Grid& grid);
  Collective& Join(Warp& warp, const Thread& thread, uint32_t mask, WarpOp op, Place place);
  Collective& NewCollective();
  void WakeLanes(const Warp& warp, uint32_t lanes);
  void OpenBarrier(Strand& last);
  void Report(cudaError_t error, const std::string& what, const std::string& where);

  const Settings settings_;
  ThreadScheduler scheduler_;
  SharedMemory shared_;
  Grid* grid_ = nullptr;
  unsigned thread_count_ = 0;
  std::vector<Warp> warps_;
  Barrier barrier_;
  uint32_t barrier_count_ = 1;  // of all blocks, so that a block can be told from those before it
  std::vector<Collective> collectives_;
  std::vector<Collective*> free_collectives_;
  Statistics statistics_;
  std::string detail_;  // of a report; not on a stack that is dropped
};

}  // namespace cairn::cuemu
