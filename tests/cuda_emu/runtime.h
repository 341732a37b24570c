// Shared by the files that emulate the CUDA runtime API: how its functions begin and answer.
#pragma once

#include <cuda_runtime.h>

#include "tests/cuda_emu/machine.h"

namespace cairn::cuemu {

inline constexpr int kBlockThreadsMax = 1024;

// Remembers an error for cudaGetLastError; returns it.
cudaError_t Answer(cudaError_t error);

// Notes, when a copy or the like runs, what it does with memory that CUDA knows.
void NoteAccess(const Moment& moment, const void* address, size_t bytes, AccessKind kind);

}  // namespace cairn::cuemu

// A runtime function returns here when it is to fail (FailCall), or everything does.
#define CUEMU_ENTER(function)                                                      \
  if (const cudaError_t refusal = ::cairn::cuemu::Machine::Get().Enter(#function); \
      refusal != cudaSuccess) {                                                    \
    return ::cairn::cuemu::Answer(refusal);                                        \
  }                                                                                \
  static_assert(true)

// Stream 0 orders itself with other streams in ways of its own, and is refused.
#define CUEMU_STREAM(stream)                                                                   \
  if (!::cairn::cuemu::Machine::Get().Knows(stream)) {                                         \
    ::cairn::cuemu::Machine::Get().AddReport("stream 0, or one that is not alive, is used\n"); \
    return ::cairn::cuemu::Answer(cudaErrorInvalidResourceHandle);                             \
  }                                                                                            \
  static_assert(true)
