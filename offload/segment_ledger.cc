#include "offload/segment_ledger.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn {

void SegmentLedger::Install(std::vector<SegmentFile> files) {
  std::map<SegmentId, Segment> before = std::exchange(segments_, {});
  for (SegmentFile& file : files) {
    const auto known = before.find(file.id);
    Segment segment = known == before.end() ? Segment() : std::move(known->second);
    segment.file = std::move(file);
    segments_.emplace(segment.file.id, std::move(segment));
  }
}

void SegmentLedger::Add(SegmentFile file, uint64_t record_count) {
  CHECK(file.file_bytes <= record_count * record_bytes_);
  Release(record_count);
  const SegmentId id = file.id;
  CHECK(segments_.emplace(id, Segment{std::move(file)}).second);
}

uint64_t SegmentLedger::used_bytes() const {
  uint64_t bytes = kDatabaseBytesMax + reserved_count_ * record_bytes_;
  for (const auto& [id, segment] : segments_) bytes += segment.file.file_bytes;
  return bytes;
}

uint64_t SegmentLedger::Reserve(uint64_t record_count) {
  const uint64_t used = used_bytes();
  const uint64_t room = used < quota_bytes_ ? (quota_bytes_ - used) / record_bytes_ : 0;
  const uint64_t count = std::min(record_count, room);
  reserved_count_ += count;
  return count;
}

void SegmentLedger::Release(uint64_t record_count) {
  CHECK(record_count <= reserved_count_);
  reserved_count_ -= record_count;
}

const SegmentFile* SegmentLedger::Find(SegmentId id) const {
  const auto entry = segments_.find(id);
  return entry == segments_.end() ? nullptr : &entry->second.file;
}

SegmentId SegmentLedger::Oldest() const {
  for (const auto& [id, segment] : segments_) {
    if (!segment.retiring) return id;
  }
  return SegmentId();
}

void SegmentLedger::BeginRetire(SegmentId id) {
  const auto entry = segments_.find(id);
  CHECK(entry != segments_.end() && !entry->second.retiring);
  entry->second.retiring = true;
}

void SegmentLedger::EndRetire(SegmentId id, bool gone) {
  const auto entry = segments_.find(id);
  if (entry == segments_.end()) return;
  entry->second.retiring = false;
  if (gone) segments_.erase(entry);
}

void SegmentLedger::BeginRead(RecordId record) {
  if (Segment* segment = SegmentOf(record)) ++segment->reads;
}

void SegmentLedger::EndRead(RecordId record) {
  if (Segment* segment = SegmentOf(record)) --segment->reads;
}

bool SegmentLedger::is_read(SegmentId id) const {
  const auto entry = segments_.find(id);
  return entry != segments_.end() && entry->second.reads > 0;
}

size_t SegmentLedger::foreign_count() const {
  return std::count_if(segments_.begin(), segments_.end(),
                       [](const auto& entry) { return entry.second.file.foreign; });
}

// The closed segment whose ids `record` is among; null when there is none (any more).
SegmentLedger::Segment* SegmentLedger::SegmentOf(RecordId record) {
  auto entry = segments_.upper_bound(SegmentId(record.value()));
  if (entry == segments_.begin()) return nullptr;
  --entry;
  return record <= entry->second.file.last ? &entry->second : nullptr;
}

}  // namespace cairn
