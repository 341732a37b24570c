// Decides which thread of a block runs next, and switches to it. The threads that may run are a
// stack, so that a warp that meets often stays in the cache; threads that have not begun come after
// them, in the order of Settings. With kRandom each choice is drawn, from the seed and the block's
// number, so that it is the same whichever OS thread runs the block.
//
// A strand is a CUDA thread in progress. When it ends, the next one begins on the same stack: a
// kernel without barriers costs no switch at all. Threads: one scheduler belongs to one OS thread.
#pragma once

#include <cuemu/emulator.h>
#include <cuemu/thread.h>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tests/cuda_emu/fiber.h"

namespace cairn::cuemu {

enum class WaitingFor : uint8_t { kNothing, kWarp, kBlock, kOthers };

struct PendingCopy {
  void* shared;
  const void* global;
  unsigned bytes;
  unsigned copy_bytes;
};

struct Strand {
  explicit Strand(void (*body)()) : fiber(body) {}
  Strand() = default;  // the OS thread's own

  Thread thread;
  Fiber fiber;
  WaitingFor waiting_for = WaitingFor::kNothing;
  Place place;  // where it waits, or waited last
  int barrier_result = 0;
  std::vector<PendingCopy> open_copies;                   // cp.async without a commit
  std::deque<std::vector<PendingCopy>> committed_copies;  // groups, oldest first
};

class ThreadScheduler {
 public:
  // `body` is what a fresh stack runs: the current thread, EndThread, and so on for ever.
  ThreadScheduler(ThreadOrder order, uint64_t seed, void (*body)());
  ~ThreadScheduler();

  // Runs `thread_count` threads like `pattern`, from the OS thread's own stack. Returns when none
  // can run: all have ended, or they wait for what cannot come, or GiveUp was called. In the two
  // bad cases DropStacks comes before the next Run.
  void Run(const Thread& pattern, unsigned thread_count, uint64_t block_number);
  void DropStacks();

  // From a strand, inside an IgnoreAccesses:
  Strand& current() { return *current_; }
  void Wait(WaitingFor what, Place place);  // until Wake
  void Wake(Strand& strand);                // the last one woken runs first
  void StepBack(Place place);               // all others that can run come first
  void BeginThread();                       // outside of an IgnoreAccesses, as EndThread
  // The current thread has ended. False when the current strand has no other to run, and was left;
  // it is entered again when it has one.
  void EndThread();
  [[noreturn]] void GiveUp();  // the block is lost; stacks are dropped

  bool OnStack(const void* address) const {  // of the current strand, or of the OS thread
    return current_->fiber.OnStack(address) || root_.fiber.OnStack(address);
  }
  ThreadOrder order() const { return order_; }
  bool given_up() const { return given_up_; }
  unsigned ended_count() const { return ended_count_; }
  bool DrawsYield() { return order_ == ThreadOrder::kRandom && rng_.Chance(0.5); }
  // Those that began and have not ended; for reports.
  std::vector<const Strand*> Waiting() const;
  uint64_t TakeSwitchCount() { return std::exchange(switch_count_, 0); }  // since the last time

 private:
  Strand& Choose();
  Strand& StartThread(Strand& strand);
  Strand& FreeStrand();
  void SwitchTo(Strand& strand);
  void PrepareTsan();
  void DropTsanThreads();

  ThreadOrder order_;
  uint64_t seed_;
  void (*body_)();
  Rng rng_;
  Strand root_;
  Strand* current_ = &root_;
  std::vector<std::unique_ptr<Strand>> strands_;
  std::vector<Strand*> free_;
  std::vector<Strand*> ready_;
  std::vector<void*> tsan_threads_;  // by thread of the block, made before any of them runs
  Thread pattern_;
  unsigned thread_count_ = 0;
  unsigned started_count_ = 0;
  unsigned ended_count_ = 0;
  bool given_up_ = false;
  uint64_t switch_count_ = 0;
};

}  // namespace cairn::cuemu
