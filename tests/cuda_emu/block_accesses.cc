// What the threads of a block do to memory: cp.async, and the checks of every load and store.

#include <cstring>
#include <string>
#include <utility>

#include "tests/cuda_emu/block_runner.h"
#include "tests/cuda_emu/machine.h"
#include "tests/cuda_emu/sanitizers.h"
#include "tests/cuda_emu/source_line.h"

// The program's own image: constants and tags of device code. The linker's names.
extern "C" const char __executable_start;
extern "C" const char _end;

namespace cairn::cuemu {
namespace {

bool Contains(const void* begin, size_t bytes, const void* address) {
  return static_cast<size_t>(static_cast<const char*>(address) - static_cast<const char*>(begin)) <
         bytes;
}

const char* Text(SharedProblem problem) {
  switch (problem) {
    case SharedProblem::kNone:
      return "";
    case SharedProblem::kOutside:
      return "an access outside of shared memory: ";
    case SharedProblem::kUnwritten:
      return "shared memory is read that nothing has written: ";
    case SharedProblem::kRace:
      return "a race in shared memory, with another thread: ";
    case SharedProblem::kBeforeWait:
      return "shared memory is touched before the wait for its cp.async: ";
  }
  return "?";
}

}  // namespace

SharedMoment BlockRunner::Now() {
  const Thread& thread = scheduler_.current().thread;
  return {thread.linear, barrier_count_, warps_[thread.warp].sync_count};
}

// Memory that is the emulation's: the thread's stack, kernel arguments, payloads of meetings.
bool BlockRunner::IsOwnMemory(const void* address) const {
  const Launch& launch = grid_->launch;
  return scheduler_.OnStack(address) || Contains(launch.closure, launch.closure_bytes, address) ||
         Contains(current_thread, sizeof *current_thread, address) ||
         Contains(collectives_.data(), collectives_.size() * sizeof(Collective), address) ||
         Contains(&__executable_start, static_cast<size_t>(&_end - &__executable_start), address);
}

void BlockRunner::TrapAccess(cudaError_t error, const char* what, const void* address,
                             const void* return_address) {
  detail_ = shared_.FindShadow(address) != nullptr ? shared_.Describe(address) : "";
  if (return_address != nullptr) detail_ += "; in " + SourceLineOf(return_address);
  Trap(error, what, scheduler_.current().place, detail_);
}

void BlockRunner::NoteShared(SharedShadow& shadow, const void* address, size_t bytes,
                             AccessKind kind, const void* return_address) {
  const SharedProblem problem = kind == AccessKind::kRead ? shadow.Read(Now(), address, bytes)
                                                          : shadow.Write(Now(), address, bytes);
  if (problem == SharedProblem::kNone) return;
  const bool outside = problem == SharedProblem::kOutside;
  TrapAccess(outside ? cudaErrorIllegalAddress : cudaErrorLaunchFailure, Text(problem), address,
             return_address);
}

void BlockRunner::NoteGlobal(MemoryShadow& shadow, const void* address, size_t bytes,
                             AccessKind kind, const void* return_address) {
  const auto problem = shadow.Note(grid_->moment, address, bytes, kind);
  if (!problem.has_value()) return;
  if (problem->outside) {
    TrapAccess(cudaErrorIllegalAddress, "an access outside of device memory", address,
               return_address);
  }
  const std::string where =
      return_address != nullptr ? "in " + SourceLineOf(return_address) : "by cp.async";
  grid_->machine.ReportConflict(grid_->moment, kind, *problem, where);
}

void BlockRunner::CheckAccess(const void* address, size_t bytes, size_t alignment, AccessKind kind,
                              const void* return_address) {
  if ((reinterpret_cast<uintptr_t>(address) & (alignment - 1)) != 0) {
    TrapAccess(cudaErrorMisalignedAddress, "a misaligned access", address, return_address);
  }
  if (SharedShadow* shared = shared_.FindShadow(address); shared != nullptr) {
    NoteShared(*shared, address, bytes, kind, return_address);
  } else if (IsOwnMemory(address)) {
    return;
  } else if (MemoryShadow* memory = grid_->machine.memory().FindShadow(address);
             memory != nullptr) {
    NoteGlobal(*memory, address, bytes, kind, return_address);
  } else {
    TrapAccess(cudaErrorIllegalAddress, "device code touches the host's memory", address,
               return_address);
  }
}

// ---- cp.async
// ------------------------------------------------------------------------------------

void BlockRunner::AsyncCopy(const PendingCopy& copy, Place place) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(copy.shared) |
                              (copy.copy_bytes > 0 ? reinterpret_cast<uintptr_t>(copy.global) : 0);
  {
    const IgnoreAccesses ignore;
    Strand& strand = scheduler_.current();
    strand.place = place;
    if (addresses % copy.bytes != 0) {
      Trap(cudaErrorMisalignedAddress, "cp.async: an address is not a multiple of the size", place);
    }
    SharedShadow* shadow = shared_.FindShadow(copy.shared);
    if (shadow == nullptr) {
      Trap(cudaErrorIllegalAddress, "cp.async to what is not shared memory", place);
    }
    const SharedProblem problem = shadow->BeginCopy(Now(), copy.shared, copy.bytes);
    if (problem != SharedProblem::kNone) {
      TrapAccess(cudaErrorLaunchFailure, Text(problem), copy.shared, nullptr);
    }
    if (copy.copy_bytes > 0) {
      MemoryShadow* memory = grid_->machine.memory().FindShadow(copy.global);
      if (memory == nullptr) {
        Trap(cudaErrorIllegalAddress, "cp.async from what is not device memory", place);
      }
      NoteGlobal(*memory, copy.global, copy.copy_bytes, AccessKind::kRead, nullptr);
    }
    strand.open_copies.push_back(copy);
  }
  if (settings_.async_copy == AsyncCopyTime::kEarly) Land(copy);
}

void BlockRunner::Land(const PendingCopy& copy) {
  std::memcpy(copy.shared, copy.global, copy.copy_bytes);
  std::memset(static_cast<std::byte*>(copy.shared) + copy.copy_bytes, 0,
              copy.bytes - copy.copy_bytes);
}

void BlockRunner::AsyncCopyCommit() {
  const IgnoreAccesses ignore;
  Strand& strand = scheduler_.current();
  strand.committed_copies.push_back(std::exchange(strand.open_copies, {}));
}

void BlockRunner::AsyncCopyWait(unsigned pending_max) {
  Strand& strand = scheduler_.current();
  while (strand.committed_copies.size() > pending_max) {
    for (const PendingCopy& copy : strand.committed_copies.front()) {
      if (settings_.async_copy == AsyncCopyTime::kLate) Land(copy);
      shared_.FindShadow(copy.shared)->EndCopy(Now(), copy.shared, copy.bytes);
    }
    const IgnoreAccesses ignore;
    strand.committed_copies.pop_front();
  }
}

}  // namespace cairn::cuemu
