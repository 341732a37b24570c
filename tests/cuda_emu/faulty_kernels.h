// Kernels with deliberate bugs, one for each thing that the emulator, or a sanitizer in it, finds.
#pragma once

#include <cuda_runtime.h>

namespace cairn::cuemu {

enum class Bug {
  kNone,
  kMissedBarrier,         // some threads end instead
  kDivergentBarriers,     // one block, two lines
  kDivergentShuffle,      // one mask, two lines
  kLaneLeftOut,           // a mask without the caller
  kEndedLane,             // a mask with lanes that have ended
  kForeignLane,           // a shuffle from outside of its mask
  kDeadlock,              // half a warp at a barrier, half in a shuffle
  kTrap,                  // __trap()
  kReadBeforeWait,        // of a cp.async
  kNeverWaited,           // for a cp.async
  kMisalignedAsync,       // a cp.async off its 16 bytes
  kSharedUnwritten,       // reads what nobody wrote
  kStaticSharedTooLarge,  // more than 48 KiB
  kLost,                  // a block that is given up while others of its grid run
  // Found by the instrumentation of device code, in builds without sanitizers:
  kMissingBarrier,       // another warp's write is read
  kMissingWarpSync,      // another lane's write is read
  kShuffleIsNoSync,      // a shuffle between the two does not help
  kWriteAfterRead,       // others still read what is written
  kWriteAfterLanesRead,  // the same within a warp
  kSharedOutside,        // beyond a static object
  kDynamicOutside,       // beyond dynamic shared memory
  kGlobalOutside,        // beyond an allocation
  kHostMemory,           // a pointer of the host's
  kMisaligned,           // a vector off its boundary
};

// 64 threads; out and in hold 64 floats.
cudaError_t LaunchBug(Bug bug, float* out, const float* in, cudaStream_t stream);

}  // namespace cairn::cuemu
