// Streams, events and graphs behind CUDA's handles. A stream is a queue and the OS thread that does
// its work in order; different streams really run side by side.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "tests/cuda_emu/vector_clock.h"

namespace cairn::cuemu {

class Machine;

// Something to do on the stream's thread. The moment says what it is ordered after; the name is for
// reports, and lives as long as the program.
struct Work {
  const char* name;
  std::function<void(const Moment& moment)> run;
};

// Shared by the handle and by the works that name it: an event may be destroyed before it is
// passed.
class EventState {
 public:
  explicit EventState(bool timed) : timed_(timed) {}
  bool timed() const { return timed_; }
  // Returns the number of this record, which Pass and Wait name.
  uint64_t Record(const VectorClock& clock);
  void Pass(uint64_t record);
  void Wait(uint64_t record);
  struct Last {
    uint64_t record;
    bool passed;
    VectorClock clock;
    std::chrono::steady_clock::time_point time;
  };
  Last last() const;

 private:
  const bool timed_;
  mutable std::mutex mutex_;
  std::condition_variable passed_;
  uint64_t recorded_count_ = 0;
  uint64_t passed_count_ = 0;
  VectorClock clock_;
  std::chrono::steady_clock::time_point time_;
};

}  // namespace cairn::cuemu

// The types behind CUDA's handles, which it declares in the global namespace.
struct CUevent_st {
  std::shared_ptr<cairn::cuemu::EventState> state;
};

struct CUgraph_st {
  std::vector<cairn::cuemu::Work> works;
};

struct CUgraphExec_st {
  std::vector<cairn::cuemu::Work> works;
};

struct CUstream_st {
 public:
  CUstream_st(cairn::cuemu::Machine& machine, uint32_t number);
  ~CUstream_st();  // does all its work first

  uint32_t number() const { return number_; }
  // While the stream is captured, the work goes into the graph instead.
  void Push(cairn::cuemu::Work work);
  void Record(const std::shared_ptr<cairn::cuemu::EventState>& event);
  void Wait(const std::shared_ptr<cairn::cuemu::EventState>& event);
  void Drain();
  bool idle();
  cairn::cuemu::VectorClock clock();

  bool capturing();
  void BeginCapture();
  std::unique_ptr<CUgraph_st> EndCapture();

 private:
  struct Queued {
    cairn::cuemu::Work work;
    cairn::cuemu::Moment moment;
  };
  void Run();
  void PushLocked(cairn::cuemu::Work work);

  cairn::cuemu::Machine& machine_;
  const uint32_t number_;
  cairn::Rng jitter_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::deque<Queued> queue_;
  cairn::cuemu::VectorClock clock_;
  std::unique_ptr<CUgraph_st> capture_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;
};
