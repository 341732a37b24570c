// The CUDA runtime API, emulated: memory and copies.
//
// A copy names its direction, and both pointers must fit it and lie in one allocation each, or it
// is reported. Host memory that is not page-locked is read when the copy is asked for, as the
// runtime does; page-locked memory is read when the copy runs, so a host that writes to it too
// early is found by TSan, or by the bytes.

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emu/machine.h"
#include "tests/cuda_emu/runtime.h"

namespace cairn::cuemu {
namespace {

cudaError_t Refuse(const std::string& what) {
  Machine::Get().AddReport(what + "\n");
  return Answer(cudaErrorInvalidValue);
}

bool IsDevice(const std::optional<Allocation>& allocation) {
  return allocation.has_value() && allocation->kind == MemoryKind::kDevice;
}

bool Fits(const std::optional<Allocation>& allocation, const void* address, size_t bytes) {
  if (!allocation.has_value()) return true;  // the host's own memory
  const size_t offset =
      static_cast<size_t>(static_cast<const std::byte*>(address) - allocation->address);
  return bytes <= allocation->bytes - offset;
}

}  // namespace

void NoteAccess(const Moment& moment, const void* address, size_t bytes, AccessKind kind) {
  Machine& machine = Machine::Get();
  MemoryShadow* shadow = machine.memory().FindShadow(address);
  if (shadow == nullptr) return;
  const auto problem = shadow->Note(moment, address, bytes, kind);
  if (!problem.has_value()) return;
  if (problem->outside) {
    machine.AddReport("a copy outlives the memory that it is from or to\n");
  } else {
    machine.ReportConflict(moment, kind, *problem, std::to_string(bytes) + " bytes");
  }
}

// What is wrong with a copy; empty: nothing.
std::string CopyMistake(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const MemoryMap& memory = Machine::Get().memory();
  const auto target = memory.Find(to);
  const auto source = memory.Find(from);
  if (!Fits(target, to, bytes)) return "a copy writes past the end of an allocation";
  if (!Fits(source, from, bytes)) return "a copy reads past the end of an allocation";
  if (kind == cudaMemcpyDefault) return "";
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (IsDevice(target) != to_device || IsDevice(source) != from_device) {
    return "the direction of a copy does not fit its pointers";
  }
  return "";
}

void PushCopy(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  Machine& machine = Machine::Get();
  std::vector<std::byte> snapshot;
  if (!machine.memory().Find(from).has_value()) {
    const auto* first = static_cast<const std::byte*>(from);
    snapshot.assign(first, first + bytes);
  }
  const auto run = [to, from, bytes, snapshot = std::move(snapshot),
                    &machine](const Moment& moment) {
    if (machine.sticky_error() != cudaSuccess) return;
    NoteAccess(moment, from, bytes, AccessKind::kRead);
    NoteAccess(moment, to, bytes, AccessKind::kWrite);
    std::memcpy(to, snapshot.empty() ? from : snapshot.data(), bytes);
  };
  stream->Push({"a copy", run});
}

}  // namespace cairn::cuemu

using cairn::cuemu::Answer;
using cairn::cuemu::Machine;
using cairn::cuemu::MemoryKind;
using cairn::cuemu::Moment;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  CUEMU_ENTER(cudaMemGetInfo);
  const cairn::cuemu::MemoryMap& memory = Machine::Get().memory();
  *total_bytes = memory.device_bytes();
  *free_bytes = memory.device_bytes() - memory.device_bytes_used();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  CUEMU_ENTER(cudaMalloc);
  *address = bytes == 0 ? nullptr : Machine::Get().memory().Allocate(MemoryKind::kDevice, bytes);
  return Answer(bytes > 0 && *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

// As the real one, it waits for the device.
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  Machine& machine = Machine::Get();
  machine.DrainAll();
  // Memory goes even after a sticky error, so that a test can end.
  if (!machine.memory().Free(MemoryKind::kDevice, address)) {
    return cairn::cuemu::Refuse("cudaFree of what cudaMalloc did not give");
  }
  return Answer(machine.Enter("cudaFree"));
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  CUEMU_ENTER(cudaHostAlloc);
  *address = Machine::Get().memory().Allocate(MemoryKind::kPinned, bytes);
  return Answer(*address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return cudaHostAlloc(address, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* address) {
  if (address == nullptr) return cudaSuccess;
  Machine& machine = Machine::Get();
  machine.DrainAll();
  if (!machine.memory().Free(MemoryKind::kPinned, address)) {
    return cairn::cuemu::Refuse("cudaFreeHost of what cudaHostAlloc did not give");
  }
  return Answer(machine.Enter("cudaFreeHost"));
}

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  CUEMU_ENTER(cudaHostRegister);
  const bool fresh = Machine::Get().memory().Register(address, bytes);
  return Answer(fresh ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* address) {
  Machine& machine = Machine::Get();
  machine.DrainAll();
  const bool known = machine.memory().Unregister(address);
  return Answer(known ? machine.Enter("cudaHostUnregister") : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  CUEMU_ENTER(cudaPointerGetAttributes);
  const auto allocation = Machine::Get().memory().Find(address);
  *attributes = {};
  if (!allocation.has_value()) return cudaSuccess;  // cudaMemoryTypeUnregistered
  const bool device = allocation->kind == MemoryKind::kDevice;
  attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  if (device) attributes->devicePointer = const_cast<void*>(address);
  if (!device) attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  CUEMU_ENTER(cudaMemcpyAsync);
  CUEMU_STREAM(stream);
  const std::string mistake = cairn::cuemu::CopyMistake(to, from, bytes, kind);
  if (!mistake.empty()) return cairn::cuemu::Refuse("cudaMemcpyAsync: " + mistake);
  cairn::cuemu::PushCopy(stream, to, from, bytes);
  return cudaSuccess;
}

// The copies have no order among themselves: here the last comes first.
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                 size_t count, cudaMemcpyAttributes* attributes,
                                 size_t* attribute_starts, size_t attribute_count,
                                 cudaStream_t stream) {
  CUEMU_ENTER(cudaMemcpyBatchAsync);
  CUEMU_STREAM(stream);
  const bool fits = count > 0 && attribute_count == 1 && attribute_starts[0] == 0 &&
                    attributes[0].srcAccessOrder == cudaMemcpySrcAccessOrderStream;
  if (!fits) return cairn::cuemu::Refuse("cudaMemcpyBatchAsync: what is not emulated");
  for (size_t i = count; i-- > 0;) {
    const std::string mistake =
        cairn::cuemu::CopyMistake(to[i], from[i], bytes[i], cudaMemcpyDefault);
    if (!mistake.empty()) return cairn::cuemu::Refuse("cudaMemcpyBatchAsync: " + mistake);
    cairn::cuemu::PushCopy(stream, to[i], from[i], bytes[i]);
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  CUEMU_ENTER(cudaMemsetAsync);
  CUEMU_STREAM(stream);
  Machine& machine = Machine::Get();
  const auto allocation = machine.memory().Find(address);
  if (!cairn::cuemu::IsDevice(allocation) || !cairn::cuemu::Fits(allocation, address, bytes)) {
    return cairn::cuemu::Refuse("cudaMemsetAsync outside of an allocation");
  }
  const auto run = [address, value, bytes, &machine](const Moment& moment) {
    if (machine.sticky_error() != cudaSuccess) return;
    cairn::cuemu::NoteAccess(moment, address, bytes, cairn::cuemu::AccessKind::kWrite);
    std::memset(address, value, bytes);
  };
  stream->Push({"a memset", run});
  return cudaSuccess;
}

}  // extern "C"
