#include "engine/pool_sizes.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "engine/message_text.h"
#include "offload/slot_pool.h"

namespace cairn {
namespace {

constexpr uint64_t kDefaultMin = uint64_t{64} << 20;
constexpr uint64_t kBlocksMin = 2;
constexpr uint64_t kSharesKeptFree = 64;  // one of so many of a device's memory

// A line of /proc/meminfo, in bytes; 0 when it cannot be read.
uint64_t MemoryInfo(const std::string& wanted) {
  uint64_t bytes = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    uint64_t kibibytes = 0;
    meminfo >> kibibytes;
    std::getline(meminfo, unit);
    if (key == wanted) bytes = kibibytes * 1024;
  }
  return bytes;
}

// The host's memory that this process may have in all.
uint64_t HostMemory() {
  uint64_t limit = 0;
  const uint64_t all = MemoryInfo("MemTotal:");
  return std::ifstream("/sys/fs/cgroup/memory.max") >> limit ? std::min(all, limit) : all;
}

// What this process may still take of it: the machine's available memory or, when it is less, the
// room in its control group (version 2). 0 when neither can be read.
uint64_t AvailableHostMemory() {
  uint64_t available = MemoryInfo("MemAvailable:");
  uint64_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit - std::min(limit, used));
  }
  return available;
}

uint32_t BlockCount(uint64_t bytes, const KvLayout& layout) {
  const uint64_t blocks = bytes / layout.block_bytes();
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX / 2));
}

Status TooFew(const char* flag, uint64_t blocks_min, uint64_t bytes, const KvLayout& layout) {
  return InvalidField(flag, "must hold at least " + std::to_string(blocks_min) + " blocks of " +
                                Grouped(layout.block_bytes()) + " bytes, is " + Grouped(bytes) +
                                " bytes");
}

Status TooMuch(const char* flag, const std::string& what, uint64_t bytes, const std::string& most) {
  return InvalidField(flag, what + " " + Grouped(bytes) + " bytes; " + most);
}

uint64_t EveryPlaceBytes(const KvLayout& layout, const EngineConfig& config) {
  return uint64_t{config.concurrent_max} * config.context_length * layout.token_bytes();
}

// Where the host's memory plays the device.
Result<PoolSizes> ChooseInHostMemory(uint64_t device_bytes, uint64_t host_bytes,
                                     const KvLayout& layout, const EngineConfig& config,
                                     const Device& device) {
  if (device_bytes == 0) {
    device_bytes =
        std::min(EveryPlaceBytes(layout, config), std::max(AvailableHostMemory() / 2, kDefaultMin));
  }
  const PoolSizes sizes = {.device_blocks = BlockCount(device_bytes, layout),
                           .host_blocks = BlockCount(host_bytes, layout),
                           .device_free_bytes = std::nullopt};
  if (sizes.device_blocks < kBlocksMin) {
    return TooFew("--device-memory", kBlocksMin, device_bytes, layout);
  }
  uint64_t most = device.info().memory_bytes;
  uint64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) most = std::min(most, limit);
  const std::string may_have = "this process may have " + Grouped(most);
  const uint64_t device_pool = sizes.device_blocks * layout.block_bytes();
  const uint64_t both_pools = device_pool + sizes.host_blocks * layout.block_bytes();
  if (device_pool > most) return TooMuch("--device-memory", "takes", device_pool, may_have);
  if (both_pools > most) {
    return TooMuch("--host-memory", "takes, with --device-memory,", both_pools, may_have);
  }
  return sizes;
}

// Of a device with memory of its own; the host pool is not in it.
Result<PoolSizes> ChooseInDeviceMemory(uint64_t device_bytes, uint64_t host_bytes,
                                       const KvLayout& layout, const EngineConfig& config,
                                       uint64_t scratch_bytes, Device& device) {
  ASSIGN_OR_RETURN(const uint64_t free_bytes, device.FreeBytes());
  const std::string is_free = Grouped(free_bytes) + " are free on the device beside the weights";
  if (device_bytes > free_bytes) {
    return TooMuch("--device-memory", "takes", device_bytes, is_free);
  }
  const bool is_default = device_bytes == 0;
  const uint64_t margin = device.info().memory_bytes / kSharesKeptFree;
  if (is_default) {
    const uint64_t fitting = free_bytes - std::min(free_bytes, scratch_bytes + margin);
    // Slots may lie further apart than a block is long.
    const uint64_t slots = fitting / SlotPool::StrideBytes(layout.block_bytes());
    device_bytes = std::min(EveryPlaceBytes(layout, config), slots * layout.block_bytes());
  }
  const PoolSizes sizes = {.device_blocks = BlockCount(device_bytes, layout),
                           .host_blocks = BlockCount(host_bytes, layout),
                           .device_free_bytes = free_bytes};
  if (sizes.device_blocks < kBlocksMin && is_default) {
    return ResourceExhausted("the device has no room for KV blocks: " + is_free + ", of which " +
                             Grouped(scratch_bytes) + " are for operations (--prefill-chunk, " +
                             "--max-concurrent, --context-length) and " + Grouped(margin) +
                             " are to stay free");
  }
  if (sizes.device_blocks < kBlocksMin) {
    return TooFew("--device-memory", kBlocksMin, device_bytes, layout);
  }
  const uint64_t most = HostMemory();
  const uint64_t host_pool = sizes.host_blocks * layout.block_bytes();
  if (host_pool > most) {
    return TooMuch("--host-memory", "takes", host_pool, "this process may have " + Grouped(most));
  }
  return sizes;
}

}  // namespace

Result<PoolSizes> ChoosePoolSizes(uint64_t device_bytes, uint64_t host_bytes,
                                  const KvLayout& layout, const EngineConfig& config,
                                  uint64_t scratch_bytes, Device& device) {
  if (host_bytes > 0 && BlockCount(host_bytes, layout) == 0) {
    return InvalidField("--host-memory", "must hold a block of " + Grouped(layout.block_bytes()) +
                                             " bytes, is " + Grouped(host_bytes) + " bytes");
  }
  return device.info().host_addressable
             ? ChooseInHostMemory(device_bytes, host_bytes, layout, config, device)
             : ChooseInDeviceMemory(device_bytes, host_bytes, layout, config, scratch_bytes,
                                    device);
}

}  // namespace cairn
