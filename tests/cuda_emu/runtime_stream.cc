// The CUDA runtime API, emulated: streams, events, graphs and launches.
//
// Left out: stream 0 and streams that synchronise with it; captures that fork to a second stream.

#include <memory>
#include <utility>

#include "tests/cuda_emu/grid.h"
#include "tests/cuda_emu/machine.h"
#include "tests/cuda_emu/runtime.h"
#include "tests/cuda_emu/shared_memory.h"
#include "tests/cuda_emu/stream.h"

namespace cairn::cuemu {
namespace {

bool Fits(const Launch& launch) {
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  const dim3 grid = launch.grid;
  return threads >= 1 && threads <= kBlockThreadsMax && launch.block.z <= 64 && grid.x >= 1 &&
         grid.x <= 0x7fffffff && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535;
}

}  // namespace

cudaError_t EnqueueLaunch(const Launch& launch) {
  const OwnedLaunch owned(launch);
  CUEMU_ENTER(cudaLaunchKernel);
  CUEMU_STREAM(launch.stream);
  Machine& machine = Machine::Get();
  if (!Fits(launch)) return Answer(cudaErrorInvalidConfiguration);
  if (launch.shared_bytes > machine.SharedBytesAllowed(launch.kernel)) {
    return Answer(cudaErrorInvalidValue);
  }
  const auto run = [owned, &machine](const Moment& moment) {
    if (machine.sticky_error() != cudaSuccess) return;
    Grid grid(owned.launch, moment, machine);
    machine.pool().Run(grid);
    if (grid.failed()) machine.SetStickyError(grid.error());
  };
  launch.stream->Push({launch.name, run});
  return cudaSuccess;
}

}  // namespace cairn::cuemu

using cairn::cuemu::Answer;
using cairn::cuemu::EventState;
using cairn::cuemu::Machine;
using cairn::cuemu::Moment;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  CUEMU_ENTER(cudaFuncSetAttribute);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;  // hints
  if (value < 0 || static_cast<size_t>(value) > cairn::cuemu::kDynamicSharedBytesMax) {
    return Answer(cudaErrorInvalidValue);
  }
  Machine::Get().AllowSharedBytes(kernel, static_cast<size_t>(value));
  return cudaSuccess;
}

// ---- streams
// --------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  CUEMU_ENTER(cudaStreamCreateWithFlags);
  if (flags != cudaStreamNonBlocking) {
    Machine::Get().AddReport("a stream is created that synchronises with stream 0\n");
    return Answer(cudaErrorNotSupported);
  }
  *stream = Machine::Get().NewStream();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  CUEMU_ENTER(cudaDeviceGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  CUEMU_STREAM(stream);
  Machine::Get().DestroyStream(stream);
  return Answer(Machine::Get().Enter("cudaStreamDestroy"));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUEMU_ENTER(cudaStreamSynchronize);
  CUEMU_STREAM(stream);
  if (stream->capturing()) return Answer(cudaErrorStreamCaptureUnsupported);
  const cairn::cuemu::VectorClock clock = stream->clock();
  stream->Drain();
  Machine::Get().HostWaitedFor(clock);
  return Answer(Machine::Get().sticky_error());
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CUEMU_ENTER(cudaStreamQuery);
  CUEMU_STREAM(stream);
  const cairn::cuemu::VectorClock clock = stream->clock();
  if (!stream->idle()) return Answer(cudaErrorNotReady);
  Machine::Get().HostWaitedFor(clock);
  return Answer(Machine::Get().sticky_error());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CUEMU_ENTER(cudaStreamWaitEvent);
  CUEMU_STREAM(stream);
  if (stream->capturing()) return Answer(cudaErrorStreamCaptureUnsupported);
  stream->Wait(event->state);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  CUEMU_ENTER(cudaLaunchHostFunc);
  CUEMU_STREAM(stream);
  stream->Push({"a host function", [function, argument](const Moment&) { function(argument); }});
  return cudaSuccess;
}

// ---- events
// ---------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  CUEMU_ENTER(cudaEventCreateWithFlags);
  const bool timed = (flags & cudaEventDisableTiming) == 0;
  *event = new CUevent_st{std::make_shared<EventState>(timed)};
  Machine::Get().CountEvents(1);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Machine::Get().CountEvents(-1);
  delete event;
  return Answer(Machine::Get().Enter("cudaEventDestroy"));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUEMU_ENTER(cudaEventRecord);
  CUEMU_STREAM(stream);
  if (stream->capturing()) return Answer(cudaErrorStreamCaptureUnsupported);
  stream->Record(event->state);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  CUEMU_ENTER(cudaEventQuery);
  const EventState::Last last = event->state->last();
  if (!last.passed) return Answer(cudaErrorNotReady);
  Machine::Get().HostWaitedFor(last.clock);
  return Answer(Machine::Get().sticky_error());
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CUEMU_ENTER(cudaEventSynchronize);
  const EventState::Last last = event->state->last();
  event->state->Wait(last.record);
  Machine::Get().HostWaitedFor(last.clock);
  return Answer(Machine::Get().sticky_error());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  CUEMU_ENTER(cudaEventElapsedTime);
  if (!begin->state->timed() || !end->state->timed()) {
    return Answer(cudaErrorInvalidResourceHandle);
  }
  const EventState::Last first = begin->state->last();
  const EventState::Last last = end->state->last();
  if (first.record == 0 || last.record == 0) return Answer(cudaErrorInvalidResourceHandle);
  if (!first.passed || !last.passed) return Answer(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(last.time - first.time).count();
  return cudaSuccess;
}

// ---- graphs
// ---------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  CUEMU_ENTER(cudaStreamBeginCapture);
  CUEMU_STREAM(stream);
  if (stream->capturing()) return Answer(cudaErrorIllegalState);
  stream->BeginCapture();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  CUEMU_STREAM(stream);
  std::unique_ptr<CUgraph_st> captured = stream->EndCapture();  // whatever comes of it
  CUEMU_ENTER(cudaStreamEndCapture);
  if (captured == nullptr) return Answer(cudaErrorIllegalState);
  *graph = captured.release();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CUEMU_ENTER(cudaStreamIsCapturing);
  CUEMU_STREAM(stream);
  *status = stream->capturing() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

// Their number alone: nodes have no handles here.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  CUEMU_ENTER(cudaGraphGetNodes);
  if (nodes != nullptr) return Answer(cudaErrorNotSupported);
  *count = graph->works.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  CUEMU_ENTER(cudaGraphInstantiate);
  *executable = new CUgraphExec_st{graph->works};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  CUEMU_ENTER(cudaGraphLaunch);
  CUEMU_STREAM(stream);
  for (const cairn::cuemu::Work& work : executable->works) stream->Push(work);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Answer(Machine::Get().Enter("cudaGraphDestroy"));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return Answer(Machine::Get().Enter("cudaGraphExecDestroy"));
}

}  // extern "C"
