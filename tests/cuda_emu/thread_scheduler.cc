#include "tests/cuda_emu/thread_scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/cuda_emu/sanitizers.h"

namespace cairn::cuemu {

thread_local constinit Thread* current_thread = nullptr;

ThreadScheduler::ThreadScheduler(ThreadOrder order, uint64_t seed, void (*body)())
    : order_(order), seed_(seed), body_(body), rng_(seed) {}

ThreadScheduler::~ThreadScheduler() { DropTsanThreads(); }

void ThreadScheduler::Run(const Thread& pattern, unsigned thread_count, uint64_t block_number) {
  pattern_ = pattern;
  thread_count_ = thread_count;
  started_count_ = ended_count_ = 0;
  given_up_ = false;
  rng_ = Rng(MixBits(seed_) ^ block_number);
  ready_.clear();
  free_.clear();
  for (const auto& strand : strands_) free_.push_back(strand.get());
  PrepareTsan();
  SwitchTo(Choose());
  current_thread = nullptr;
  Acquire(&ended_count_);
}

void ThreadScheduler::DropStacks() {
  DropTsanThreads();
  for (const auto& strand : strands_) {
    strand->fiber.Restart();
    strand->waiting_for = WaitingFor::kNothing;
    strand->open_copies.clear();
    strand->committed_copies.clear();
  }
}

// Whoever makes a TSan thread is ordered before it, so the root makes all of them: were they made
// as the threads begin, thread 0 would be ordered before thread 1, and races between them hidden.
// They serve block after block, which are ordered by the root anyway.
void ThreadScheduler::PrepareTsan() {
#if defined(CAIRN_CUEMU_TSAN)
  while (free_.size() < thread_count_) {
    strands_.push_back(std::make_unique<Strand>(body_));
    free_.push_back(strands_.back().get());
  }
  while (tsan_threads_.size() < thread_count_) tsan_threads_.push_back(__tsan_create_fiber(0));
  Release(&started_count_);
#endif
}

void ThreadScheduler::DropTsanThreads() {
#if defined(CAIRN_CUEMU_TSAN)
  for (void* thread : tsan_threads_) __tsan_destroy_fiber(thread);
#endif
  tsan_threads_.clear();
}

void ThreadScheduler::BeginThread() { Acquire(&started_count_); }

Strand& ThreadScheduler::FreeStrand() {
  if (free_.empty()) {
    strands_.push_back(std::make_unique<Strand>(body_));
    return *strands_.back();
  }
  Strand& strand = *free_.back();
  free_.pop_back();
  return strand;
}

Strand& ThreadScheduler::StartThread(Strand& strand) {
  const unsigned turn = started_count_++;
  const unsigned linear = order_ == ThreadOrder::kReverse ? thread_count_ - 1 - turn : turn;
  const dim3 shape = pattern_.block_dim;
  Thread& thread = strand.thread;
  thread = pattern_;
  thread.linear = linear;
  thread.lane = linear % kWarpSize;
  thread.warp = linear / kWarpSize;
  thread.index = {linear % shape.x, linear / shape.x % shape.y, linear / (shape.x * shape.y)};
  strand.waiting_for = WaitingFor::kNothing;
  strand.place = {};
#if defined(CAIRN_CUEMU_TSAN)
  strand.fiber.tsan_thread = tsan_threads_[linear];
#endif
  return strand;
}

Strand& ThreadScheduler::Choose() {
  const bool can_start = started_count_ < thread_count_;
  if (given_up_ || (ready_.empty() && !can_start)) return root_;
  if (order_ == ThreadOrder::kRandom) {
    const size_t choice = rng_.Below(ready_.size() + (can_start ? 1 : 0));
    if (choice == ready_.size()) return StartThread(FreeStrand());
    std::swap(ready_[choice], ready_.back());
  }
  if (ready_.empty()) return StartThread(FreeStrand());
  Strand& strand = *ready_.back();
  ready_.pop_back();
  return strand;
}

void ThreadScheduler::SwitchTo(Strand& strand) {
  Strand& from = *std::exchange(current_, &strand);
  current_thread = &strand.thread;
  switch_count_++;
  Fiber::Switch(from.fiber, strand.fiber);
}

void ThreadScheduler::Wait(WaitingFor what, Place place) {
  Strand& strand = *current_;
  strand.waiting_for = what;
  strand.place = place;
  Strand& next = Choose();
  {
    const NoticeAccesses notice;
    SwitchTo(next);
  }
  strand.waiting_for = WaitingFor::kNothing;
}

void ThreadScheduler::Wake(Strand& strand) {
  strand.waiting_for = WaitingFor::kNothing;
  ready_.push_back(&strand);
}

void ThreadScheduler::StepBack(Place place) {
  Strand& strand = *current_;
  ready_.insert(ready_.begin(), &strand);
  Strand& next = started_count_ < thread_count_ ? StartThread(FreeStrand()) : Choose();
  if (&next == &strand) return;
  strand.waiting_for = WaitingFor::kOthers;
  strand.place = place;
  {
    const NoticeAccesses notice;
    SwitchTo(next);
  }
  strand.waiting_for = WaitingFor::kNothing;
}

void ThreadScheduler::EndThread() {
  ended_count_++;
#if defined(CAIRN_CUEMU_TSAN)
  // Another thread on the same stack would be the same thread to TSan's eyes, and a strand is not
  // entered again before the block's end.
  Strand* next = nullptr;
  {
    const IgnoreAccesses ignore;
    next = &Choose();
  }
  Release(&ended_count_);
  SwitchTo(*next);
#else
  Strand& strand = *current_;
  if (!given_up_ && ready_.empty() && started_count_ < thread_count_) {
    StartThread(strand);
    return;
  }
  // Choose first: the strand that ends must not be the one that begins the next thread, since this
  // is its own stack that is left here.
  Strand& next = Choose();
  free_.push_back(&strand);
  SwitchTo(next);
#endif
}

void ThreadScheduler::GiveUp() {
  given_up_ = true;
  const NoticeAccesses notice;
  SwitchTo(root_);
  CHECK(false);  // a strand of a block that was given up is never entered again
  __builtin_unreachable();
}

std::vector<const Strand*> ThreadScheduler::Waiting() const {
  std::vector<const Strand*> waiting;
  for (const auto& strand : strands_) {
    if (strand->waiting_for != WaitingFor::kNothing) waiting.push_back(strand.get());
  }
  return waiting;
}

}  // namespace cairn::cuemu
