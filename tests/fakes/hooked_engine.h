// An engine of real parts whose forward passes a test can watch, delay or spoil.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "engine/engine_config.h"
#include "engine/engine_parts.h"
#include "engine/load.h"
#include "kernels/ops.h"

namespace cairn {

// Called on the engine thread; an empty one is not called.
struct OpsHooks {
  std::function<void(uint32_t row_count)> on_pass;  // before a forward pass begins
  // Each time that a layer is done, of a pass of so many rows. Then no pass is repeated as a whole
  // (Ops::Repeat).
  std::function<void(uint32_t row_count)> on_layer;
  // With the logits of a pass, [row_count, vocabulary], before they are sampled; a copy in the
  // host's memory, which goes back.
  std::function<void(std::span<float> logits, uint32_t row_count)> on_logits;
};

struct HookedEngineOptions {
  std::string model_path;
  uint32_t device_blocks = 64;
  uint32_t host_blocks = 0;           // copied to the device before they are used
  uint64_t host_bandwidth_limit = 0;  // bytes a second; 0: none
  EngineConfig config;                // context_length included
  OpsHooks hooks;
  BackendMaker make_backend;                                  // empty: the CPU's, of one thread
  std::function<std::unique_ptr<Stream>()> make_copy_stream;  // empty: the CPU's
  SpillOpener open_spill;                                     // empty: there is no disk tier
  RestoreStrategyMaker make_restores;                         // empty: loads whatever can be loaded
};

// Parts as LoadEngine would make them, except for the hooks. Duplicate blocks are compared byte for
// byte. CHECKs that the file is a good one.
EngineParts MakeHookedEngine(const HookedEngineOptions& options, const Clock& clock);

}  // namespace cairn
