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
#include <vector>

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

  static BlockRunner& Current();  // of the calling OS thread

  // What thread.h promises; called by the block's threads.
  Collective& MeetWarp(uint32_t mask, WarpOp op, const void* payload, size_t bytes, Place place);
  void LeaveWarp(Collective& collective);
  int MeetBlock(int predicate, BarrierKind kind, Place place);
  void Yield(Place place) { scheduler_.StepBack(place); }
  // Ends the block, from inside an IgnoreAccesses. What the thread's stack holds is not destroyed.
  [[noreturn]] void Trap(cudaError_t error, const char* what, Place place, const char* name = "");
  void* StaticShared(const void* tag, size_t bytes, size_t alignment, const char* name);
  void* DynamicShared() { return shared_.dynamic_memory(); }
  void AsyncCopy(const PendingCopy& copy, Place place);
  void AsyncCopyCommit();
  void AsyncCopyWait(unsigned pending_max);

 private:
  struct Warp {
    uint32_t live = 0;  // lanes that have not ended
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
  std::vector<std::unique_ptr<Collective>> collectives_;
  std::vector<Collective*> free_collectives_;
  Statistics statistics_;
};

}  // namespace cairn::cuemu
