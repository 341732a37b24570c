// A record: one sealed block outside the process, complete in itself. Whoever finds its bytes can
// tell what they are, whose they are, and whether they are still what was written.
//
//   record = header | payload | digest
//
//   header    0  magic              8 bytes "CairnKVB"
//             8  byte order         u32  0x01020304
//            12  format version     u32  1
//            16  header bytes       u32  a multiple of 64, so that the payload is aligned as it
//            20  codec              u32  0: none                          is in the record
//            24  first position     u32
//            28  token count        u32  1 to kBlockTokensMax
//            32  key, parent        2 x 16 bytes (high, low)
//            64  model fingerprint  16 bytes
//            80  layout id digest   16 bytes
//            96  payload bytes      u64
//           104  token ids          u32 each; zeros up to the end of the header
//   payload      the block's bytes
//   digest       16 bytes: XXH3-128 of header and payload
//
// Everything is little-endian. Decoding reads any bytes: what is wrong with them is one line, "what
// is X, not Y", with kDataLoss; nothing is returned that the digest does not cover.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/status.h"
#include "offload/spill_store.h"

namespace cairn {

inline constexpr uint32_t kRecordVersion = 1;

// Whose blocks these are: which weights, and which layout and arithmetic wrote the bytes.
struct RecordOrigin {
  Digest fingerprint;
  Digest layout;  // of KvLayout::Id()
  friend bool operator==(const RecordOrigin&, const RecordOrigin&) = default;
};
RecordOrigin OriginOf(const Digest& fingerprint, std::string_view layout_id);

// The parts of a record, to be written one after the other; the payload is the caller's.
struct EncodedRecord {
  std::string header;
  std::span<const std::byte> payload;
  std::array<std::byte, sizeof(Digest)> digest;
  size_t size() const { return header.size() + payload.size() + digest.size(); }
};
EncodedRecord EncodeRecord(const RecordOrigin& origin, const BlockIdentity& block,
                           std::span<const std::byte> payload);

// The size of the record of a block with so many tokens and bytes.
size_t RecordBytes(size_t token_count, size_t payload_bytes);

struct RecordHeader {
  RecordOrigin origin;
  BlockIdentity block;
  size_t header_bytes = 0;
  uint64_t payload_bytes = 0;
};

// Reads the header at the beginning of `bytes`. It is well-formed then; whether it is what was
// written, only the whole record tells.
Result<RecordHeader> ParseRecordHeader(std::span<const std::byte> bytes);

struct Record {
  RecordHeader header;
  std::span<const std::byte> payload;  // in the bytes that were decoded
};

// `bytes` is one whole record, well-formed, and has its digest.
Result<Record> DecodeRecord(std::span<const std::byte> bytes);

// `header` is of `origin` and `block`.
Status ExpectRecord(const RecordHeader& header, const RecordOrigin& origin,
                    const BlockIdentity& block);

}  // namespace cairn
