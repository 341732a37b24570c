// The table of contents of a segment: what lies in its file, without the payloads. It is kept in
// the file itself (a property of the table), so that a start reads a few kilobytes a segment and
// knows every block.
//
//   contents = version u32 | origin 2 x 16 bytes | record count u64 | entries | digest 16 bytes
//   entry    = record id u64 | key, parent 2 x 16 bytes | first position u32 | token count u32 |
//              token ids u32 each
//
// Everything is little-endian; the digest is XXH3-128 of what precedes it. The version is that of
// the records (kRecordVersion): one number for all that a segment consists of.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "offload/block_record.h"
#include "offload/spill_store.h"

namespace cairn {

struct SegmentContents {
  RecordOrigin origin;
  std::vector<std::pair<RecordId, BlockIdentity>> records;  // in increasing order of their ids
  friend bool operator==(const SegmentContents&, const SegmentContents&) = default;
};

std::string EncodeContents(const SegmentContents& contents);

// Any bytes: kDataLoss says what is wrong with them, kUnimplemented that they are of another
// version.
Result<SegmentContents> ParseContents(std::string_view bytes);

}  // namespace cairn
