// How many KV blocks the pools in memory have: as many as the flags say, or as fit. Memory that is
// promised and not there would end the process later, in the middle of its work, so it is refused.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "engine/engine_config.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"

namespace cairn {

struct PoolSizes {
  uint32_t device_blocks = 0;
  uint32_t host_blocks = 0;
  // Of a device with memory of its own: what was left beside the weights.
  std::optional<uint64_t> device_free_bytes;
};

// `device_bytes` 0: what fits, and no more than all places full to the context take. That is half
// of the memory that is left, where the host's plays the device. Of a device with memory of its own
// it is all that is left but for `scratch_bytes`, which operations take as they go, and a 64th of
// the whole, for code, graphs and others. `host_bytes` 0: there is no host pool.
//
// Call it when the weights are on the device. kInvalidArgument naming the flag (--device-memory,
// --host-memory) for what is too little or more than there is; kResourceExhausted when nothing
// fits.
Result<PoolSizes> ChoosePoolSizes(uint64_t device_bytes, uint64_t host_bytes,
                                  const KvLayout& layout, const EngineConfig& config,
                                  uint64_t scratch_bytes, Device& device);

}  // namespace cairn
