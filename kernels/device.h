// The device seam: memory, in-order streams and events, with the semantics of CUDA's and no type of
// any backend. On the CPU backend host RAM plays the device and a device address is a pointer.
//
// Work that is put on a Stream happens in order, at some time between the call and the next
// Synchronize. (The CPU backend's compute stream does it before the call returns, on the calling
// thread and its helpers; its copy streams do it on a thread of their own.) Work on different
// streams is ordered only by events: Record on one, Wait on the other.
// Threads: a Stream belongs to one thread at a time; Events and Device are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace cairn {

// Device memory. Freed on destruction; the owner sees to it that no stream still uses it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() = 0;
  virtual size_t size_bytes() const = 0;
  // The first `size_bytes` will be written soon: memory that comes on its first use may come now,
  // beside other work. A hint; does not wait.
  virtual void WillUse(size_t /*size_bytes*/) {}
  // From now on the system does not swap it out. kResourceExhausted when it may not promise that.
  virtual Status Lock() { return Status(); }  // memory that is never swapped out
};

// A point in a stream's work, passed once everything before its Record is done.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Passed() const = 0;
  // Blocks the calling thread. Says what failed of the work between the Record before and this one.
  virtual Status Wait() = 0;
  // What the work between the two took, of one stream and both passed; 0: not known.
  virtual double SecondsSince(const Event& /*earlier*/) const { return 0; }
};
using EventRef = std::shared_ptr<Event>;  // null: already passed

// A block, or a part of one, that is to be copied.
struct CopyPart {
  void* to;
  const void* from;
  size_t size_bytes;
};

class Stream {
 public:
  virtual ~Stream() = default;  // synchronises
  virtual EventRef Record() = 0;
  virtual void Wait(const EventRef& event) = 0;  // later work waits; the calling thread need not
  virtual void Copy(void* destination, const void* source, size_t size_bytes) = 0;
  // Many copies, in few calls where a call costs something. They do not overlap, and have no order
  // among themselves.
  virtual void CopyBatch(std::span<const CopyPart> parts) {
    for (const CopyPart& part : parts) Copy(part.to, part.from, part.size_bytes);
  }
  virtual void Clear(void* destination, size_t size_bytes) = 0;
  virtual Status Synchronize() = 0;
  // A call since the last Synchronize could not put its work on the stream; the next one says why.
  // Operations do nothing until then, so that none runs on half of its inputs.
  virtual bool failed() const { return false; }
};

enum class StreamUse { kCompute, kCopy };

struct DeviceInfo {
  std::string backend;             // "cpu"
  std::string name;                // the processor's, for people
  std::string instruction_set;     // "avx2", "portable": part of a block's layout id
  uint32_t thread_count = 0;       // compute threads, the caller of an op included
  uint64_t memory_bytes = 0;       // in all
  bool reads_host_memory = false;  // its operations take addresses from AllocateHost as well
  bool host_addressable = false;   // threads of the host may touch addresses from Allocate
  // Copies of so many bytes together keep a copy stream busy while the next are put on it, so that
  // larger batches gain nothing. 0: a call costs nothing, and neither do batches of one.
  size_t copy_batch_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // Of a device that is lost, why it is: nothing works on it any more, and what its memory holds is
  // not to be used. Known once some call has met it; never ok again. Any thread; cheap.
  virtual Status lost() const { return Status(); }
  // Of its memory, what nobody has taken by now.
  virtual Result<uint64_t> FreeBytes() { return info().memory_bytes; }
  // Zero-filled, on huge pages where there are any. kResourceExhausted when there is not so much.
  virtual Result<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) = 0;
  // The same in the host's memory, page-locked where that makes copies faster.
  virtual Result<std::unique_ptr<Buffer>> AllocateHost(size_t size_bytes) = 0;
  virtual Result<std::unique_ptr<Stream>> NewStream(StreamUse use) = 0;
};

}  // namespace cairn
