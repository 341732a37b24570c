#include "offload/rocksdb_spill_store.h"

#include <algorithm>

#include "offload/rocksdb_segments.h"
#include "offload/segment_spill_store.h"

namespace cairn {
namespace {

constexpr uint64_t kSegmentBytesMin = uint64_t{1} << 20;
constexpr uint64_t kSegmentBytesMax = uint64_t{64} << 20;

// The quota may have become smaller since the segments were written.
Status FitQuota(RocksdbSegments& files, std::vector<SegmentFile>& found, uint64_t quota_bytes) {
  uint64_t used = kDatabaseBytesMax;
  for (const SegmentFile& file : found) used += file.file_bytes;
  size_t dropped = 0;
  for (; used > quota_bytes; ++dropped) {
    RETURN_IF_ERROR(files.Drop(found[dropped]));
    used -= found[dropped].file_bytes;
  }
  found.erase(found.begin(), found.begin() + static_cast<ptrdiff_t>(dropped));
  return Status();
}

}  // namespace

Result<SpillStoreConfig> SpillStoreConfig::Resolve(const KvLayout& layout) const {
  SpillStoreConfig resolved = *this;
  const uint64_t record_bytes = RecordFileBytesMax(layout.block_tokens, layout.block_bytes());
  if (segment_bytes == 0) {
    resolved.segment_bytes = std::clamp(quota_bytes / 16, kSegmentBytesMin, kSegmentBytesMax);
  }
  resolved.segment_bytes = std::max(resolved.segment_bytes, record_bytes);
  // One record, and room for the next segment while the one before it goes.
  const uint64_t needed = kDatabaseBytesMax + resolved.segment_bytes + 2 * record_bytes;
  if (quota_bytes < needed) {
    return InvalidArgument("disk tier: a quota of " + std::to_string(quota_bytes) +
                           " bytes is too small, at least " + std::to_string(needed) +
                           " are needed");
  }
  return resolved;
}

Result<std::unique_ptr<SpillStore>> OpenSpillStore(const SpillStoreConfig& config,
                                                   const Digest& fingerprint,
                                                   const KvLayout& layout,
                                                   std::function<void()> wake) {
  ASSIGN_OR_RETURN(const SpillStoreConfig resolved, config.Resolve(layout));
  ASSIGN_OR_RETURN(auto files,
                   RocksdbSegments::Open(config.directory, OriginOf(fingerprint, layout.Id())));
  ASSIGN_OR_RETURN(auto found, files->Scan());
  RETURN_IF_ERROR(FitQuota(*files, found, resolved.quota_bytes));
  return std::unique_ptr<SpillStore>(std::make_unique<SegmentSpillStore>(
      resolved, layout, std::move(files), std::move(found), std::move(wake)));
}

}  // namespace cairn
