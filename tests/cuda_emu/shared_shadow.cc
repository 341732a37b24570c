#include "tests/cuda_emu/shared_shadow.h"

#include <cuemu/thread.h>

#include <algorithm>

namespace cairn::cuemu {

SharedShadow::SharedShadow(const std::byte* base, size_t bytes)
    : base_(base), cells_(bytes), opened_(bytes) {}

void SharedShadow::Begin(uint32_t first_barrier) { first_barrier_ = first_barrier; }

void SharedShadow::Open(const void* address, size_t bytes) {
  std::fill_n(opened_.begin() + static_cast<ptrdiff_t>(IndexOf(address)), bytes, first_barrier_);
}

bool SharedShadow::Ordered(const Stamp& stamp, const SharedMoment& moment) const {
  if (IsEmpty(stamp) || stamp.barrier < moment.barrier) return true;
  if (stamp.who == Who::kWarps || stamp.who == Who::kCopy) return false;
  if (stamp.who == Who::kThread && stamp.thread == moment.thread) return true;
  const bool same_warp = stamp.thread / kWarpSize == moment.thread / kWarpSize;
  return same_warp && stamp.warp_sync < moment.warp_sync;
}

SharedShadow::Stamp SharedShadow::StampOf(const SharedMoment& moment, Who who) {
  return {moment.barrier, moment.warp_sync, static_cast<uint16_t>(moment.thread), who};
}

SharedProblem SharedShadow::Read(const SharedMoment& moment, const void* address, size_t bytes) {
  const size_t first = IndexOf(address);
  for (size_t i = first; i < first + bytes; i++) {
    if (opened_[i] != first_barrier_) return SharedProblem::kOutside;
    const Stamp& write = cells_[i].write;
    if (IsEmpty(write)) return SharedProblem::kUnwritten;
    if (write.who == Who::kCopy) return SharedProblem::kBeforeWait;
    if (!Ordered(write, moment)) return SharedProblem::kRace;
    Stamp& read = cells_[i].read;
    if (Ordered(read, moment)) {
      read = StampOf(moment, Who::kThread);
    } else if (read.thread / kWarpSize != moment.thread / kWarpSize) {
      read.who = Who::kWarps;
    } else if (read.who == Who::kThread) {
      read = StampOf(moment, Who::kLanes);
    }
  }
  return SharedProblem::kNone;
}

SharedProblem SharedShadow::CheckWrite(size_t index, const SharedMoment& moment) const {
  if (opened_[index] != first_barrier_) return SharedProblem::kOutside;
  const Cell& cell = cells_[index];
  if (!IsEmpty(cell.write) && cell.write.who == Who::kCopy) return SharedProblem::kBeforeWait;
  const bool ordered = Ordered(cell.write, moment) && Ordered(cell.read, moment);
  return ordered ? SharedProblem::kNone : SharedProblem::kRace;
}

SharedProblem SharedShadow::Write(const SharedMoment& moment, const void* address, size_t bytes) {
  const size_t first = IndexOf(address);
  for (size_t i = first; i < first + bytes; i++) {
    const SharedProblem problem = CheckWrite(i, moment);
    if (problem != SharedProblem::kNone) return problem;
    cells_[i].write = StampOf(moment, Who::kThread);
  }
  return SharedProblem::kNone;
}

SharedProblem SharedShadow::BeginCopy(const SharedMoment& moment, const void* address,
                                      size_t bytes) {
  const size_t first = IndexOf(address);
  for (size_t i = first; i < first + bytes; i++) {
    const SharedProblem problem = CheckWrite(i, moment);
    if (problem != SharedProblem::kNone) return problem;
    cells_[i].write = StampOf(moment, Who::kCopy);
  }
  return SharedProblem::kNone;
}

void SharedShadow::EndCopy(const SharedMoment& moment, const void* address, size_t bytes) {
  const size_t first = IndexOf(address);
  for (size_t i = first; i < first + bytes; i++) {
    cells_[i].write = StampOf(moment, Who::kThread);
  }
}

}  // namespace cairn::cuemu
