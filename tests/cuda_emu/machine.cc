#include "tests/cuda_emu/machine.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "base/check.h"
#include "tests/cuda_emu/shared_memory.h"

namespace cairn::cuemu {
namespace {

std::unique_ptr<Machine>& TheMachine() {
  static auto* machine = new std::unique_ptr<Machine>(std::make_unique<Machine>(Settings{}));
  return *machine;
}

// Errors after which CUDA refuses everything in this process.
bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorDevicesUnavailable:
      return true;
    default:
      return false;
  }
}

}  // namespace

Machine::Machine(const Settings& settings)
    : settings_(settings),
      memory_(settings.device_memory_bytes, settings.host_memory_bytes),
      pool_(settings) {
  for (uint32_t i = 0; i < kStreamsMax; i++) free_stream_numbers_.insert(i);
}

Machine::~Machine() {
  CHECK(streams_.empty());
  CHECK(memory_.empty());
}

Machine& Machine::Get() { return *TheMachine(); }

void Machine::Replace(const Settings& settings) {
  TheMachine().reset();
  TheMachine() = std::make_unique<Machine>(settings);
}

cudaError_t Machine::Enter(const char* function) {
  if (sticky_error_ != cudaSuccess) return sticky_error_;
  const std::lock_guard lock(mutex_);
  ++call_counts_[function];
  const auto found = faults_.find(function);
  if (found == faults_.end()) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (Fault& fault : found->second) {
    if (--fault.calls_left == 0) error = fault.error;
  }
  std::erase_if(found->second, [](const Fault& fault) { return fault.calls_left == 0; });
  if (IsSticky(error)) SetStickyError(error);
  return error;
}

void Machine::FailCall(const std::string& function, int call_number, cudaError_t error) {
  CHECK(call_number > 0 && error != cudaSuccess);
  const std::lock_guard lock(mutex_);
  faults_[function].push_back({call_number, error});
}

uint64_t Machine::CallCount(const std::string& function) {
  const std::lock_guard lock(mutex_);
  const auto found = call_counts_.find(function);
  return found == call_counts_.end() ? 0 : found->second;
}

size_t Machine::CancelFailures() {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [function, faults] : faults_) count += faults.size();
  faults_.clear();
  return count;
}

void Machine::SetStickyError(cudaError_t error) {
  cudaError_t none = cudaSuccess;
  sticky_error_.compare_exchange_strong(none, error);
}

void Machine::AddReport(const std::string& text) {
  std::fprintf(stderr, "cuemu: %s", text.c_str());
  const std::lock_guard lock(mutex_);
  reports_.push_back(text);
}

void Machine::NameWork(Epoch epoch, const char* name) {
  const std::lock_guard lock(clock_mutex_);
  work_names_[epoch.stream()][epoch.count() % kNamedWorks] = name;
}

void Machine::ReportConflict(const Moment& moment, AccessKind kind, const AccessProblem& problem,
                             const std::string& where) {
  const auto describe = [&](Epoch epoch, AccessKind how) {
    const std::lock_guard lock(clock_mutex_);
    const char* name = work_names_[epoch.stream()][epoch.count() % kNamedWorks];
    return std::string(name == nullptr ? "?" : name) + " on stream " +
           std::to_string(epoch.stream()) +
           (how == AccessKind::kRead ? ", which reads" : ", which writes");
  };
  const std::string text = "no event orders " + describe(moment.epoch, kind) + ", after " +
                           describe(problem.other, problem.other_kind);
  {
    const std::lock_guard lock(mutex_);
    if (!conflicts_.insert(text).second) return;
  }
  AddReport(text + "\n  " + where + "\n");
}

std::vector<std::string> Machine::TakeReports() {
  const std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

cudaStream_t Machine::NewStream() {
  uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    CHECK(!free_stream_numbers_.empty());  // kStreamsMax is a limit of the emulator's
    number = free_stream_numbers_.extract(free_stream_numbers_.begin()).value();
  }
  auto* stream = new CUstream_st(*this, number);
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return stream;
}

void Machine::DestroyStream(cudaStream_t stream) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(streams_.erase(stream) == 1);
  }
  const uint32_t number = stream->number();
  delete stream;
  const std::lock_guard lock(mutex_);
  free_stream_numbers_.insert(number);
}

bool Machine::Knows(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  return streams_.contains(stream);
}

void Machine::DrainAll() {
  std::set<cudaStream_t> streams;
  {
    const std::lock_guard lock(mutex_);
    streams = streams_;
  }
  for (CUstream_st* stream : streams) {
    const VectorClock clock = stream->clock();
    stream->Drain();
    HostWaitedFor(clock);
  }
}

VectorClock Machine::HostClock() {
  const std::lock_guard lock(clock_mutex_);
  return host_clock_;
}

void Machine::HostWaitedFor(const VectorClock& clock) {
  const std::lock_guard lock(clock_mutex_);
  host_clock_.Join(clock);
}

VectorClock Machine::StreamClock(uint32_t number) {
  const std::lock_guard lock(clock_mutex_);
  VectorClock clock = host_clock_;
  clock.Continue(number, ended_streams_);
  return clock;
}

void Machine::KeepStreamClock(uint32_t number, const VectorClock& clock) {
  const std::lock_guard lock(clock_mutex_);
  ended_streams_.Continue(number, clock);
}

void Machine::AllowSharedBytes(const void* kernel, size_t bytes) {
  const std::lock_guard lock(mutex_);
  shared_bytes_[kernel] = bytes;
}

size_t Machine::SharedBytesAllowed(const void* kernel) {
  const std::lock_guard lock(mutex_);
  const auto found = shared_bytes_.find(kernel);
  return found == shared_bytes_.end() ? kStaticSharedBytesMax : found->second;
}

Statistics Machine::statistics() {
  Statistics statistics = pool_.statistics();
  statistics.device_bytes_used = memory_.device_bytes_used();
  statistics.event_count = static_cast<size_t>(event_count_);
  const std::lock_guard lock(mutex_);
  statistics.stream_count = streams_.size();
  return statistics;
}

// ---- emulator.h
// -----------------------------------------------------------------------------------

void Configure(const Settings& settings) {
  Machine::Replace(settings);
  cudaGetLastError();
}
void FailCall(const std::string& function, int call_number, cudaError_t error) {
  Machine::Get().FailCall(function, call_number, error);
}
size_t CancelFailures() { return Machine::Get().CancelFailures(); }
std::vector<std::string> TakeReports() { return Machine::Get().TakeReports(); }
void ClearStickyError() {
  Machine::Get().ClearStickyError();
  cudaGetLastError();
}
uint64_t CallCount(const std::string& function) { return Machine::Get().CallCount(function); }
Statistics ReadStatistics() { return Machine::Get().statistics(); }

}  // namespace cairn::cuemu
