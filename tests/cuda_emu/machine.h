// The emulated machine: one device, its memory, its streams, what went wrong. There is one, since
// CUDA's runtime API knows no other; only the functions of that API and of emulator.h name it.
// Threads: any, but for Replace.
#pragma once

#include <cuda_runtime.h>
#include <cuemu/emulator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/cuda_emu/grid.h"
#include "tests/cuda_emu/memory_map.h"
#include "tests/cuda_emu/stream.h"
#include "tests/cuda_emu/vector_clock.h"

namespace cairn::cuemu {

class Machine {
 public:
  explicit Machine(const Settings& settings);
  ~Machine();

  static Machine& Get();
  static void Replace(const Settings& settings);

  const Settings& settings() const { return settings_; }
  MemoryMap& memory() { return memory_; }
  WorkerPool& pool() { return pool_; }

  // ---- errors
  // What a runtime function returns before it does anything: a sticky error, or one of FailCall.
  cudaError_t Enter(const char* function);
  size_t CancelFailures();
  void FailCall(const std::string& function, int call_number, cudaError_t error);
  uint64_t CallCount(const std::string& function);
  cudaError_t sticky_error() const { return sticky_error_; }
  void SetStickyError(cudaError_t error);  // the first one stays
  void ClearStickyError() { sticky_error_ = cudaSuccess; }
  void AddReport(const std::string& text);
  // Reports that two works conflict and nothing orders them; once for each pair of names.
  void ReportConflict(const Moment& moment, AccessKind kind, const AccessProblem& problem,
                      const std::string& where);
  std::vector<std::string> TakeReports();

  // ---- streams and events
  cudaStream_t NewStream();
  void DestroyStream(cudaStream_t stream);
  bool Knows(cudaStream_t stream);
  void DrainAll();
  VectorClock HostClock();
  void HostWaitedFor(const VectorClock& clock);  // the host knows that all of it is done
  // A new stream goes on with the count of the one that had its number before.
  VectorClock StreamClock(uint32_t number);
  void KeepStreamClock(uint32_t number, const VectorClock& clock);
  void NameWork(Epoch epoch, const char* name);
  void CountEvents(int change) { event_count_ += change; }

  // ---- kernels
  void AllowSharedBytes(const void* kernel, size_t bytes);
  size_t SharedBytesAllowed(const void* kernel);

  Statistics statistics();

 private:
  static constexpr uint32_t kNamedWorks = 4096;
  struct Fault {
    int calls_left;
    cudaError_t error;
  };

  const Settings settings_;
  MemoryMap memory_;
  WorkerPool pool_;
  std::atomic<cudaError_t> sticky_error_ = cudaSuccess;
  std::atomic<int> event_count_ = 0;
  std::mutex mutex_;  // of what follows
  std::map<std::string, std::vector<Fault>> faults_;
  std::map<std::string, uint64_t> call_counts_;
  std::vector<std::string> reports_;
  std::set<std::string> conflicts_;  // that were reported
  std::set<cudaStream_t> streams_;
  std::set<uint32_t> free_stream_numbers_;
  std::unordered_map<const void*, size_t> shared_bytes_;
  std::mutex clock_mutex_;  // of the clocks; taken last
  // The names of the newest works of each stream, by their count.
  std::array<std::array<const char*, kNamedWorks>, kStreamsMax> work_names_ = {};
  VectorClock host_clock_;
  VectorClock ended_streams_;
};

}  // namespace cairn::cuemu
