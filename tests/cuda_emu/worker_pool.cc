#include <utility>

#include "tests/cuda_emu/block_runner.h"
#include "tests/cuda_emu/grid.h"

namespace cairn::cuemu {

WorkerPool::WorkerPool(const Settings& settings) : settings_(settings) {
  for (unsigned i = 0; i < settings.worker_count; i++) {
    threads_.emplace_back([this] { Work(); });
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Work() {
  BlockRunner runner(settings_);
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || grid_ != nullptr; });
    if (stop_) return;
    Grid& grid = *grid_;
    const uint64_t block = next_block_++;
    // The last block is taken: nobody looks at the grid any more once those at work are done.
    if (next_block_ == grid.block_count() || grid.failed()) grid_ = nullptr;
    busy_count_++;
    lock.unlock();
    if (!grid.failed()) runner.Run(grid, block);
    lock.lock();
    runner.AddTo(statistics_);
    if (--busy_count_ == 0 && grid_ == nullptr) idle_.notify_all();
  }
}

void WorkerPool::Run(Grid& grid) {
  const std::lock_guard turn(running_);
  std::unique_lock lock(mutex_);
  grid_ = &grid;
  next_block_ = 0;
  work_.notify_all();
  idle_.wait(lock, [&] { return grid_ == nullptr && busy_count_ == 0; });
}

Statistics WorkerPool::statistics() {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

}  // namespace cairn::cuemu
