#include "kernels/cuda/graph_cache.h"

#include <algorithm>

namespace cairn::cuda {

GraphCache::~GraphCache() {
  for (const auto& [shape, entry] : entries_) {
    if (entry.graph != nullptr) (void)cudaGraphExecDestroy(entry.graph);
  }
}

void GraphCache::Run(const std::function<GraphShape()>& shape_now,
                     const std::function<void()>& operations, CudaStream& stream) {
  if (stream.failed()) return;
  const auto found = entries_.find(shape_now());
  if (found == entries_.end()) {
    operations();
    entries_[shape_now()].last_use = ++use_count_;
    if (entries_.size() > kGraphsMax) DropOldest();
    return;
  }
  Entry& entry = found->second;
  entry.last_use = ++use_count_;
  if (entry.graph == nullptr && !entry.is_refused) {
    entry.graph = Record(operations, stream);
    if (stream.failed()) return;  // the next pass records it
    entry.is_refused = entry.graph == nullptr;
  }
  if (entry.is_refused) return operations();
  stream.Note(cudaGraphLaunch(entry.graph, stream.handle()));
}

// Null when it could not be recorded. Nothing has been done then either. What failed on the way is
// not in the graph, which is then good for nothing.
cudaGraphExec_t GraphCache::Record(const std::function<void()>& operations, CudaStream& stream) {
  // Other threads may do what they like meanwhile.
  if (cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
    return nullptr;
  }
  operations();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.handle(), &graph);
  if (ended != cudaSuccess || graph == nullptr) return nullptr;
  if (stream.failed()) {
    (void)cudaGraphDestroy(graph);
    return nullptr;
  }
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  return made == cudaSuccess ? executable : nullptr;
}

// It is not running: each pass is waited for before the next.
void GraphCache::DropOldest() {
  const auto oldest = std::ranges::min_element(
      entries_, {}, [](const auto& entry) { return entry.second.last_use; });
  if (oldest->second.graph != nullptr) (void)cudaGraphExecDestroy(oldest->second.graph);
  entries_.erase(oldest);
}

}  // namespace cairn::cuda
