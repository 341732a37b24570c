// Where the threads of a block meet: warp intrinsics and __syncthreads.

#include <cstring>
#include <utility>

#include "base/check.h"
#include "tests/cuda_emu/block_runner.h"
#include "tests/cuda_emu/sanitizers.h"

namespace cairn::cuemu {
namespace {

bool SameLine(Place a, Place b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace

Collective& BlockRunner::NewCollective() {
  CHECK(!free_collectives_.empty());
  Collective& collective = *free_collectives_.back();
  free_collectives_.pop_back();
  return collective;
}

// The meeting that the lane takes part in: one that gathers already, or a new one.
Collective& BlockRunner::Join(Warp& warp, const Thread& thread, uint32_t mask, WarpOp op,
                              Place place) {
  const uint32_t lane = 1u << thread.lane;
  if ((mask & lane) == 0) {
    Trap(cudaErrorLaunchFailure, "a lane takes part in a warp intrinsic whose mask leaves it out",
         place);
  }
  if ((mask & warp.live) != mask) {
    Trap(cudaErrorLaunchFailure,
         "the mask of a warp intrinsic names lanes that have ended or do not exist", place);
  }
  // Masks may overlap: half a warp may wait for all of it while the other half meets by itself. But
  // lanes of one mask come to its meetings in one order.
  for (Collective* other : warp.gathering) {
    if (other->mask != mask) continue;
    if (other->op == op && SameLine(other->place, place)) return *other;
    Trap(cudaErrorLaunchFailure,
         "divergent warp: lanes of one mask are at different intrinsics or lines", place);
  }
  Collective& fresh = NewCollective();
  fresh.mask = mask;
  fresh.arrived = 0;
  fresh.readers = static_cast<unsigned>(__builtin_popcount(mask));
  fresh.op = op;
  fresh.place = place;
  warp.gathering.push_back(&fresh);
  statistics_.meetings++;
  return fresh;
}

// The lowest lane runs first, in reverse order the highest.
void BlockRunner::WakeLanes(const Warp& warp, uint32_t lanes) {
  while (lanes != 0) {
    const int lane = scheduler_.order() == ThreadOrder::kReverse ? __builtin_ctz(lanes)
                                                                 : 31 - __builtin_clz(lanes);
    scheduler_.Wake(*warp.lanes[lane]);
    lanes &= ~(1u << lane);
  }
}

Collective& BlockRunner::MeetWarp(uint32_t mask, WarpOp op, const void* payload, size_t bytes,
                                  Place place) {
  const IgnoreAccesses ignore;
  CHECK(bytes <= kPayloadBytes);
  Strand& strand = scheduler_.current();
  const Thread& thread = strand.thread;
  Warp& warp = warps_[thread.warp];
  Collective& collective = Join(warp, thread, mask, op, place);
  if (bytes > 0) std::memcpy(collective.payload[thread.lane], payload, bytes);
  collective.arrived |= 1u << thread.lane;
  if (op == WarpOp::kSync) Release(&collective);
  if (collective.arrived != mask) {
    scheduler_.Wait(WaitingFor::kWarp, place);
  } else {
    std::erase(warp.gathering, &collective);
    if (op == WarpOp::kSync) warp.sync_count++;
    WakeLanes(warp, mask & ~(1u << thread.lane));
    if (scheduler_.DrawsYield()) scheduler_.StepBack(place);
  }
  if (op == WarpOp::kSync) Acquire(&collective);
  return collective;
}

void BlockRunner::LeaveWarp(Collective& collective) {
  const IgnoreAccesses ignore;
  if (--collective.readers == 0) free_collectives_.push_back(&collective);
}

int BlockRunner::MeetBlock(int predicate, BarrierKind kind, Place place) {
  const IgnoreAccesses ignore;
  Strand& strand = scheduler_.current();
  if (scheduler_.ended_count() > 0) {
    Trap(cudaErrorLaunchFailure, "__syncthreads after a thread of the block has ended", place);
  }
  if (barrier_.arrived == 0) {
    barrier_.place = place;
    barrier_.kind = kind;
    barrier_.true_count = 0;
  } else if (!SameLine(barrier_.place, place) || barrier_.kind != kind) {
    Trap(cudaErrorLaunchFailure, "divergent block: its threads are at different __syncthreads",
         place);
  }
  barrier_.arrived++;
  barrier_.true_count += predicate != 0 ? 1 : 0;
  Release(&barrier_);
  if (barrier_.arrived < thread_count_) {
    barrier_.waiting.push_back(&strand);
    scheduler_.Wait(WaitingFor::kBlock, place);
  } else {
    OpenBarrier(strand);
    if (scheduler_.DrawsYield()) scheduler_.StepBack(place);
  }
  Acquire(&barrier_);
  return strand.barrier_result;
}

void BlockRunner::OpenBarrier(Strand& last) {
  statistics_.barriers++;
  barrier_count_++;
  int result = static_cast<int>(barrier_.true_count);
  if (barrier_.kind == BarrierKind::kAnd) result = barrier_.true_count == thread_count_ ? 1 : 0;
  if (barrier_.kind == BarrierKind::kOr) result = barrier_.true_count > 0 ? 1 : 0;
  last.barrier_result = result;
  // Woken from the last to the first, so that the first to come is the first to go on.
  for (auto waiting = barrier_.waiting.rbegin(); waiting != barrier_.waiting.rend(); ++waiting) {
    (*waiting)->barrier_result = result;
    scheduler_.Wake(**waiting);
  }
  barrier_.waiting.clear();
  barrier_.arrived = 0;
}

// ---- thread.h
// -------------------------------------------------------------------------------------

Collective& MeetWarp(uint32_t mask, WarpOp op, const void* payload, size_t bytes, Place place) {
  return BlockRunner::Current().MeetWarp(mask, op, payload, bytes, place);
}
void LeaveWarp(Collective& collective) { BlockRunner::Current().LeaveWarp(collective); }
int MeetBlock(int predicate, BarrierKind kind, Place place) {
  return BlockRunner::Current().MeetBlock(predicate, kind, place);
}
void Yield(Place place) {
  const IgnoreAccesses ignore;
  BlockRunner::Current().Yield(place);
}
void Trap(const char* what, Place place) {
  const IgnoreAccesses ignore;
  BlockRunner::Current().Trap(cudaErrorAssert, what, place);
}
void* StaticShared(const void* tag, size_t bytes, size_t alignment, const char* name) {
  return BlockRunner::Current().StaticShared(tag, bytes, alignment, name);
}
void* DynamicShared() { return BlockRunner::Current().DynamicShared(); }
void AsyncCopy(void* shared, const void* global, unsigned bytes, unsigned copy_bytes, Place place) {
  BlockRunner::Current().AsyncCopy({shared, global, bytes, copy_bytes}, place);
}
void AsyncCopyCommit() { BlockRunner::Current().AsyncCopyCommit(); }
void AsyncCopyWait(unsigned pending_max) { BlockRunner::Current().AsyncCopyWait(pending_max); }

}  // namespace cairn::cuemu
