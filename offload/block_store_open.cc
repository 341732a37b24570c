// How a BlockStore begins and ends: its memory, its disk, and what an earlier process left there.
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "offload/block_store.h"

namespace cairn {

Status OffloadConfig::Validate() const {
  if (device_blocks_max == 0) return InvalidArgument("device_blocks_max is 0");
  if (staging_blocks_max < StagedSpillStore::kSlotCountMin) {
    return InvalidArgument("staging_blocks_max is " + std::to_string(staging_blocks_max) +
                           ", at least " + std::to_string(StagedSpillStore::kSlotCountMin) +
                           " are needed");
  }
  return Status();
}

namespace {

Result<size_t> PoolBytes(const char* name, uint32_t block_count, const KvLayout& layout) {
  const size_t stride_bytes = SlotPool::StrideBytes(layout.block_bytes());
  if (block_count > std::numeric_limits<size_t>::max() / stride_bytes) {
    return ResourceExhausted(std::string(name) + " blocks are more than the address space");
  }
  return block_count * stride_bytes;
}

}  // namespace

Result<std::unique_ptr<BlockStore>> BlockStore::Create(const OffloadConfig& config,
                                                       const KvLayout& layout, Device& device,
                                                       const Clock& clock,
                                                       std::unique_ptr<SpillStore> spill,
                                                       ChildKeyFunction child_key) {
  RETURN_IF_ERROR(config.Validate());
  CHECK(layout.block_bytes() > 0 && layout.block_tokens <= kBlockTokensMax);
  Parts parts = {.host_in_place = config.host_in_place && device.info().reads_host_memory,
                 .host_addressable = device.info().host_addressable,
                 .spill = std::move(spill)};
  RETURN_IF_ERROR(TakeMemory(config, layout, device, clock, parts));
  return std::unique_ptr<BlockStore>(
      new BlockStore(config, layout, clock, std::move(parts), child_key));
}

Status BlockStore::TakeMemory(const OffloadConfig& config, const KvLayout& layout, Device& device,
                              const Clock& clock, Parts& parts) {
  ASSIGN_OR_RETURN(const size_t device_bytes,
                   PoolBytes("device_blocks_max", config.device_blocks_max, layout));
  ASSIGN_OR_RETURN(const size_t host_bytes,
                   PoolBytes("host_blocks_max", config.host_blocks_max, layout));
  ASSIGN_OR_RETURN(parts.device, device.Allocate(device_bytes));
  if (config.host_blocks_max > 0) {
    ASSIGN_OR_RETURN(parts.host, device.AllocateHost(host_bytes));
    if (config.lock_host) RETURN_IF_ERROR(parts.host->Lock());
  }
  const bool is_staged = parts.spill != nullptr && !parts.host_addressable;
  const bool looks_into_device = config.verify_duplicates && !parts.host_addressable;
  if (config.host_blocks_max > 0 || is_staged || looks_into_device) {
    ASSIGN_OR_RETURN(parts.copies, CopyQueue::Create(device, config.host_bandwidth_limit, clock));
  }
  if (is_staged) {
    ASSIGN_OR_RETURN(auto staging,
                     StagedSpillStore::Create(std::move(parts.spill), device, *parts.copies,
                                              {parts.device->data(), parts.device->size_bytes()},
                                              layout.block_bytes(), config.staging_blocks_max));
    parts.staging = staging.get();
    parts.spill = std::move(staging);
  }
  return Status();
}

BlockStore::BlockStore(const OffloadConfig& config, const KvLayout& layout, const Clock& clock,
                       Parts parts, ChildKeyFunction child_key)
    : config_(config),
      layout_(layout),
      clock_(clock),
      host_in_place_(parts.host_in_place),
      host_addressable_(parts.host_addressable),
      device_pool_(std::move(parts.device), config.device_blocks_max, layout.block_bytes()),
      index_(layout.block_tokens, config.device_blocks_max + config.host_blocks_max, child_key),
      staging_(parts.staging),
      copy_queue_(std::move(parts.copies)) {
  if (parts.host != nullptr) {
    host_pool_.emplace(std::move(parts.host), config.host_blocks_max, layout.block_bytes());
  }
  if (parts.spill == nullptr) return;
  disk_.emplace(std::move(parts.spill), clock);
  const std::vector<FoundRecord> records = disk_->TakeFound();
  found_.reserve(records.size());
  found_keys_.reserve(records.size());
  for (const FoundRecord& record : records) {
    if (found_.try_emplace(record.block.key, record.record).second) {
      found_keys_.emplace(record.record, record.block.key);
    } else {
      disk_->Forget(record.record);  // written twice
    }
  }
}

BlockStore::~BlockStore() {
  CHECK(Count(Standing::kFilling) + Count(Standing::kHeld) == 0);
  AwaitPrefixCopy();  // before the memory goes
}

}  // namespace cairn
