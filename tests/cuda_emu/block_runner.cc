#include "tests/cuda_emu/block_runner.h"

#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "tests/cuda_emu/machine.h"
#include "tests/cuda_emu/sanitizers.h"

namespace cairn::cuemu {
namespace {

std::string Text(uint3 at) {
  return "(" + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) + ")";
}

std::string Text(Place place) { return std::string(place.file) + ":" + std::to_string(place.line); }

const char* Text(WaitingFor what) {
  switch (what) {
    case WaitingFor::kNothing:
      return "running";
    case WaitingFor::kWarp:
      return "waiting for lanes of their warp";
    case WaitingFor::kBlock:
      return "waiting at __syncthreads";
    case WaitingFor::kOthers:
      return "letting others run";
  }
  return "?";
}

}  // namespace

BlockRunner::BlockRunner(const Settings& settings)
    : settings_(settings),
      scheduler_(settings.order, settings.seed, &BlockRunner::RunThreads),
      collectives_(kCollectivesMax) {}

BlockRunner::~BlockRunner() = default;

void BlockRunner::Prepare(Grid& grid) {
  const dim3 shape = grid.launch.block;
  grid_ = &grid;
  thread_count_ = shape.x * shape.y * shape.z;
  warps_.resize((thread_count_ + kWarpSize - 1) / kWarpSize);
  for (size_t i = 0; i < warps_.size(); i++) {
    const unsigned lanes = thread_count_ - static_cast<unsigned>(i) * kWarpSize;
    warps_[i].live = lanes >= kWarpSize ? kFullMask : (1u << lanes) - 1;
    warps_[i].gathering.clear();
  }
  barrier_ = {};
  free_collectives_.clear();
  for (Collective& collective : collectives_) free_collectives_.push_back(&collective);
  shared_.Begin(grid.launch.shared_bytes, ++barrier_count_);
}

void BlockRunner::Run(Grid& grid, uint64_t block_number) {
  Prepare(grid);
  const dim3 blocks = grid.launch.grid;
  Thread pattern;
  pattern.block = {static_cast<unsigned>(block_number % blocks.x),
                   static_cast<unsigned>(block_number / blocks.x % blocks.y),
                   static_cast<unsigned>(block_number / blocks.x / blocks.y)};
  pattern.block_dim = grid.launch.block;
  pattern.grid_dim = blocks;
  pattern.runner = this;
  scheduler_.Run(pattern, thread_count_, block_number);
  statistics_.threads += thread_count_;
  if (scheduler_.ended_count() == thread_count_) return;
  if (!scheduler_.given_up()) {
    Report(cudaErrorLaunchTimeout, "deadlock: no thread of the block can run",
           "block " + Text(pattern.block));
  }
  scheduler_.DropStacks();
}

void BlockRunner::AddTo(Statistics& statistics) {
  const Statistics done = std::exchange(statistics_, {});
  statistics.threads += done.threads;
  statistics.meetings += done.meetings;
  statistics.barriers += done.barriers;
  statistics.switches += scheduler_.TakeSwitchCount();
}

void BlockRunner::RunThreads() {
  BlockRunner& runner = Current();
  for (;;) {
    Strand& strand = runner.scheduler_.current();
    runner.warps_[strand.thread.warp].lanes[strand.thread.lane] = &strand;
    runner.scheduler_.BeginThread();
    runner.grid_->launch.run(runner.grid_->launch.closure);
    runner.ThreadEnds(strand);
  }
}

void BlockRunner::ThreadEnds(Strand& strand) {
  {
    const IgnoreAccesses ignore;
    const Thread& thread = strand.thread;
    Warp& warp = warps_[thread.warp];
    warp.live &= ~(1u << thread.lane);
    if (!strand.open_copies.empty() || !strand.committed_copies.empty()) {
      Trap(cudaErrorLaunchFailure, "a thread ended with cp.async copies that nobody waited for",
           strand.place);
    }
    for (const Collective* collective : warp.gathering) {
      if ((collective->mask >> thread.lane & 1) == 0) continue;
      Trap(cudaErrorLaunchFailure, "a thread ended while lanes of its warp wait for it",
           collective->place);
    }
    if (barrier_.arrived > 0) {
      Trap(cudaErrorLaunchFailure, "a thread ended while others wait at __syncthreads",
           barrier_.place);
    }
  }
  scheduler_.EndThread();
}

void BlockRunner::Report(cudaError_t error, const std::string& what, const std::string& where) {
  std::string text = what + "\n  kernel " + grid_->launch.name + ", " + where + "\n";
  std::map<std::string, unsigned> groups;  // what they do: how many
  for (const Strand* strand : scheduler_.Waiting()) {
    groups[std::string(Text(strand->waiting_for)) + " at " + Text(strand->place)]++;
  }
  for (const auto& [activity, count] : groups) {
    text += "  " + std::to_string(count) + " threads " + activity + "\n";
  }
  text += "  " + std::to_string(scheduler_.ended_count()) + " of " + std::to_string(thread_count_) +
          " threads had ended\n";
  grid_->Fail(error);
  grid_->machine.AddReport(text);
}

void BlockRunner::Trap(cudaError_t error, const char* what, Place place, std::string_view detail) {
  const Thread& thread = scheduler_.current().thread;
  Report(error, std::string(what) + std::string(detail),
         "block " + Text(thread.block) + ", thread " + Text(thread.index) + ", warp " +
             std::to_string(thread.warp) + ", lane " + std::to_string(thread.lane) + ", at " +
             Text(place));
  scheduler_.GiveUp();
}

void* BlockRunner::StaticShared(const void* tag, size_t bytes, size_t alignment, const char* name) {
  const IgnoreAccesses ignore;
  void* object = shared_.Static(tag, bytes, alignment, name);
  if (object != nullptr) return object;
  Trap(cudaErrorLaunchOutOfResources, "a block has 48 KiB of static shared memory; too large: ", {},
       name);
}

}  // namespace cairn::cuemu
