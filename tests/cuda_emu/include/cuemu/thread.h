// What emulated device code asks of the emulator: who am I, and everything that involves other
// threads of the block. device.h builds CUDA's words on top of it; kernels never name it.
//
// Each emulated CUDA thread is a fiber. The threads of a block share one OS thread and run one at a
// time, so code between two of these calls is atomic to the rest of its block. Every call says
// where it stands (`Place`), so that a report can name the line. A call that the hardware would
// leave undefined ends the block, is reported, and makes the context's error sticky.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace cairn::cuemu {

// A line of device code. (clang 14 and GCC 12 agree on the builtins, not on std::source_location.)
struct Place {
  const char* file = "";
  unsigned line = 0;
  static constexpr Place Here(const char* file = __builtin_FILE(),
                              unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

class BlockRunner;

struct Thread {
  uint3 index{};  // threadIdx
  uint3 block{};  // blockIdx
  dim3 block_dim;
  dim3 grid_dim;
  unsigned linear = 0;
  unsigned lane = 0;
  unsigned warp = 0;
  BlockRunner* runner = nullptr;
};

// Null outside device code. A fiber never moves to another OS thread, so its address may be cached.
extern thread_local constinit Thread* current_thread __attribute__((tls_model("initial-exec")));

enum class WarpOp : uint8_t { kSync, kShuffle, kBallot, kReduce, kMatch, kMma, kLdMatrix };

inline constexpr unsigned kWarpSize = 32;
inline constexpr uint32_t kFullMask = 0xffffffffu;
inline constexpr size_t kPayloadBytes = 64;

// One meeting of the lanes in `mask`: what each of them brought.
struct Collective {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  unsigned readers = 0;
  WarpOp op = WarpOp::kSync;
  Place place;
  alignas(16) std::byte payload[kWarpSize][kPayloadBytes];
};

// Brings a payload and waits for the other lanes of `mask`. The result stays until each of them has
// called LeaveWarp.
Collective& MeetWarp(uint32_t mask, WarpOp op, const void* payload, size_t bytes, Place place);
void LeaveWarp(Collective& collective);

enum class BarrierKind : uint8_t { kPlain, kCount, kAnd, kOr };
int MeetBlock(int predicate, BarrierKind kind, Place place);  // __syncthreads and its kin

void Yield(Place place);  // lets others run: for loops that wait for another thread
[[noreturn]] void Trap(const char* what, Place place);

// Static shared memory: one object per tag and block, with red zones, filled with NaN.
void* StaticShared(const void* tag, size_t bytes, size_t alignment, const char* name);
void* DynamicShared();

// cp.async: `copy_bytes` from device memory, the rest of `bytes` zero. It lands when it is waited
// for, or at once (Settings::async_copy); both are legal on hardware.
void AsyncCopy(void* shared, const void* global, unsigned bytes, unsigned copy_bytes, Place place);
void AsyncCopyCommit();
void AsyncCopyWait(unsigned pending_max);

// Atomic read-modify-write is built on these; no thread sees a half-written word.
bool CompareExchange(uint16_t* word, uint16_t& expected, uint16_t desired);
bool CompareExchange(uint32_t* word, uint32_t& expected, uint32_t desired);
bool CompareExchange(uint64_t* word, uint64_t& expected, uint64_t desired);
uint16_t AtomicLoad(const uint16_t* word);
uint32_t AtomicLoad(const uint32_t* word);
uint64_t AtomicLoad(const uint64_t* word);
void MemoryFence();

// A kernel with its arguments, as it waits on a stream.
struct Launch {
  const void* kernel = nullptr;
  const char* name = "";
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  void (*run)(const void* closure) = nullptr;
  void (*destroy)(void* closure) = nullptr;
  void* closure = nullptr;  // owned
  size_t closure_bytes = 0;
};
cudaError_t EnqueueLaunch(const Launch& launch);

}  // namespace cairn::cuemu
