// From a model file to an engine that is ready to start: backend, weights, tokenizer, block pool.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/engine_parts.h"
#include "engine/restore_strategy.h"
#include "kernels/backend.h"
#include "kernels/backend_choice.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"
#include "offload/restore_plan.h"
#include "offload/spill_store.h"

namespace cairn {

// Opens the disk tier for blocks of `layout`, made by the model of `fingerprint`; `wake` as for
// OpenSpillStore (offload/rocksdb_spill_store.h).
using SpillOpener = std::function<Result<std::unique_ptr<SpillStore>>(
    const Digest& fingerprint, const KvLayout& layout, std::function<void()> wake)>;

using BackendMaker = std::function<Result<Backend>()>;

// Whether passes are measured (engine/calibration.h): never, so that restores are planned by what
// is learned meanwhile; unless an earlier process left it beside the model file; or in any case.
enum class Calibrate { kNever, kOnce, kAnew };

struct LoadOptions {
  std::string model_path;
  uint32_t thread_count = 0;  // compute threads; 0: one a processor that this process may use
  ComputeMode mode = ComputeMode::kExact;
  std::optional<std::string> instruction_set;
  BackendKind backend = BackendKind::kCpu;
  std::string cuda_plugin;            // as in CudaBackendOptions
  BackendMaker make_backend;          // empty: what these five say
  uint64_t device_memory_bytes = 0;   // of the block pool; 0: what fits (engine/pool_sizes.h)
  uint64_t host_memory_bytes = 0;     // of the host pool; 0: there is none
  bool host_in_place = true;          // OffloadConfig has the meaning
  bool lock_host = false;             // the same
  uint64_t host_bandwidth_limit = 0;  // the same
  SpillOpener open_spill;             // empty: there is no disk tier
  Calibrate calibrate = Calibrate::kNever;
  RestorePolicy restore_policy = RestorePolicy::kCairn;
  double restore_cut_share = 0.5;      // of the context, for RestorePolicy::kCut
  RestoreStrategyMaker make_restores;  // empty: PlannedRestores with that policy
  uint32_t context_length = 0;         // 0: what the model was trained for
  uint32_t block_tokens = 16;          // 16, 32 or 64
  bool verify_duplicate_blocks = false;
  std::string trace_path;  // empty: no trace
  EngineConfig engine;     // context_length is filled in by LoadEngine
};

struct LoadedEngine {
  EngineParts parts;
  EngineConfig config;               // complete
  std::vector<std::string> summary;  // what was loaded, for people; at most 7 lines
  std::vector<std::string> warnings;
};

// kInvalidArgument naming the flag for options out of bounds; what Checkpoint::Open says of the
// file; kResourceExhausted when the memory is not there. `clock` outlives the engine; `progress`
// (may be null) hears the share of the weights that is packed.
Result<LoadedEngine> LoadEngine(const LoadOptions& options, const Clock& clock,
                                void (*progress)(double share));

}  // namespace cairn
