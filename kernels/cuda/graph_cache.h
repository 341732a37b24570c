// Recordings of passes, each for one shape of batch: CUDA graphs.
//
// The first pass of a shape is done as it is, which takes what memory its kernels need; the second
// is recorded, and from then on one call does all of it. A recording holds addresses: those that
// can change, because a larger pass may move what lies there, are part of the shape.
// Threads: those of the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>

#include "kernels/cuda/cuda_stream.h"

namespace cairn::cuda {

struct GraphShape {
  const void* batch;
  uint32_t row_count;
  uint32_t span_count;  // that attention has room for
  const void* plan;     // where the work of attention lies
  const void* activations;
  const void* partials;
  auto operator<=>(const GraphShape&) const = default;
};

class GraphCache {
 public:
  static constexpr size_t kGraphsMax = 64;

  GraphCache() = default;
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Does `operations`, or what was recorded of them. When the runtime will not record them, they
  // are done one by one. `shape_now` may change while they are done.
  void Run(const std::function<GraphShape()>& shape_now, const std::function<void()>& operations,
           CudaStream& stream);

 private:
  struct Entry {
    cudaGraphExec_t graph = nullptr;
    bool is_refused = false;
    uint64_t last_use = 0;
  };
  static cudaGraphExec_t Record(const std::function<void()>& operations, CudaStream& stream);
  void DropOldest();

  std::map<GraphShape, Entry> entries_;
  uint64_t use_count_ = 0;
};

}  // namespace cairn::cuda
