// A launch while it runs: its blocks are taken by the pool's OS threads one after another. The
// first thing that is wrong in any block is kept, and the blocks after it are left out.
#pragma once

#include <cuemu/emulator.h>
#include <cuemu/thread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/cuda_emu/vector_clock.h"

namespace cairn::cuemu {

class Machine;

// Kernel and arguments, owned, and copied with the graphs that hold it.
struct OwnedLaunch {
  explicit OwnedLaunch(const Launch& what) : launch(what), closure(what.closure, what.destroy) {}
  Launch launch;
  std::shared_ptr<void> closure;
};

class Grid {
 public:
  Grid(const Launch& what, const Moment& when, Machine& where)
      : launch(what), moment(when), machine(where) {}

  uint64_t block_count() const { return uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z; }
  bool failed() const { return error() != cudaSuccess; }
  cudaError_t error() const { return error_; }
  void Fail(cudaError_t error) {
    cudaError_t none = cudaSuccess;
    error_.compare_exchange_strong(none, error);
  }

  const Launch launch;
  const Moment& moment;
  Machine& machine;

 private:
  std::atomic<cudaError_t> error_ = cudaSuccess;
};

// The OS threads that run blocks: the emulated multiprocessors. One grid at a time.
class WorkerPool {
 public:
  explicit WorkerPool(const Settings& settings);
  ~WorkerPool();

  void Run(Grid& grid);  // returns when every block has run, or one has failed; any thread
  Statistics statistics();

 private:
  void Work();

  const Settings settings_;
  std::mutex running_;  // held by whose grid it is
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  Grid* grid_ = nullptr;
  uint64_t next_block_ = 0;
  unsigned busy_count_ = 0;
  bool stop_ = false;
  Statistics statistics_;
  std::vector<std::thread> threads_;
};

}  // namespace cairn::cuemu
