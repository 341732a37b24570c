#include "tests/cuda_emu/stream.h"

#include <utility>

#include "base/check.h"
#include "tests/cuda_emu/machine.h"

namespace cairn::cuemu {

uint64_t EventState::Record(const VectorClock& clock) {
  const std::lock_guard lock(mutex_);
  clock_ = clock;
  return ++recorded_count_;
}

void EventState::Pass(uint64_t record) {
  const std::lock_guard lock(mutex_);
  passed_count_ = std::max(passed_count_, record);
  time_ = std::chrono::steady_clock::now();
  passed_.notify_all();
}

void EventState::Wait(uint64_t record) {
  std::unique_lock lock(mutex_);
  passed_.wait(lock, [&] { return passed_count_ >= record; });
}

EventState::Last EventState::last() const {
  const std::lock_guard lock(mutex_);
  return {recorded_count_, passed_count_ >= recorded_count_, clock_, time_};
}

}  // namespace cairn::cuemu

using cairn::cuemu::EventState;
using cairn::cuemu::Moment;
using cairn::cuemu::VectorClock;
using cairn::cuemu::Work;

CUstream_st::CUstream_st(cairn::cuemu::Machine& machine, uint32_t number)
    : machine_(machine), number_(number), jitter_(machine.settings().seed + number) {
  clock_ = machine.StreamClock(number);
  thread_ = std::thread([this] { Run(); });
}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  thread_.join();
  machine_.KeepStreamClock(number_, clock_);
}

void CUstream_st::Run() {
  const unsigned jitter_us_max = machine_.settings().jitter_us_max;
  for (;;) {
    Queued next;
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      if (queue_.empty()) idle_.notify_all();
      work_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    if (jitter_us_max > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(jitter_.Below(jitter_us_max)));
    }
    next.work.run(next.moment);
  }
}

void CUstream_st::PushLocked(Work work) {
  if (capture_ != nullptr) {
    capture_->works.push_back(std::move(work));
    return;
  }
  clock_.Join(machine_.HostClock());
  const cairn::cuemu::Epoch epoch = clock_.Tick(number_);
  machine_.NameWork(epoch, work.name);
  queue_.push_back({std::move(work), {epoch, clock_}});
  work_.notify_one();
}

void CUstream_st::Push(Work work) {
  const std::lock_guard lock(mutex_);
  PushLocked(std::move(work));
}

void CUstream_st::Record(const std::shared_ptr<EventState>& event) {
  const std::lock_guard lock(mutex_);
  clock_.Join(machine_.HostClock());
  const uint64_t record = event->Record(clock_);
  PushLocked({"an event", [event, record](const Moment&) { event->Pass(record); }});
}

void CUstream_st::Wait(const std::shared_ptr<EventState>& event) {
  const EventState::Last last = event->last();
  if (last.record == 0) return;  // an event that was never recorded is passed
  const std::lock_guard lock(mutex_);
  clock_.Join(last.clock);
  PushLocked({"a wait", [event, record = last.record](const Moment&) { event->Wait(record); }});
}

void CUstream_st::Drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

bool CUstream_st::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !busy_;
}

VectorClock CUstream_st::clock() {
  const std::lock_guard lock(mutex_);
  return clock_;
}

bool CUstream_st::capturing() {
  const std::lock_guard lock(mutex_);
  return capture_ != nullptr;
}

void CUstream_st::BeginCapture() {
  const std::lock_guard lock(mutex_);
  CHECK(capture_ == nullptr);
  capture_ = std::make_unique<CUgraph_st>();
}

std::unique_ptr<CUgraph_st> CUstream_st::EndCapture() {
  const std::lock_guard lock(mutex_);
  return std::move(capture_);
}
