#include "offload/block_record.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "offload/byte_fields.h"

namespace cairn {
namespace {

constexpr std::string_view kMagic = "CairnKVB";
constexpr uint32_t kByteOrder = 0x01020304;
constexpr uint32_t kCodecNone = 0;
constexpr size_t kFixedBytes = 104;
constexpr size_t kAlignment = 64;

size_t HeaderBytes(size_t token_count) {
  const size_t bytes = kFixedBytes + token_count * sizeof(uint32_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Status Damaged(std::string why) { return Status(Code::kDataLoss, "record: " + std::move(why)); }

template <class T>
Status Expect(const char* what, const T& found, const T& expected) {
  if (found == expected) return Status();
  return Damaged(std::string(what) + " is " + std::to_string(found) + ", not " +
                 std::to_string(expected));
}

Status ExpectDigest(const char* what, const Digest& found, const Digest& expected) {
  if (found == expected) return Status();
  return Damaged(std::string(what) + " is " + found.ToHex() + ", not " + expected.ToHex());
}

std::string HexOf(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

Digest DigestOfParts(std::string_view header, std::span<const std::byte> payload) {
  DigestStream stream;
  stream.Add(header);
  stream.Add(payload);
  return stream.Finish();
}

}  // namespace

RecordOrigin OriginOf(const Digest& fingerprint, std::string_view layout_id) {
  return {fingerprint, DigestOf(layout_id)};
}

size_t RecordBytes(size_t token_count, size_t payload_bytes) {
  return HeaderBytes(token_count) + payload_bytes + sizeof(Digest);
}

EncodedRecord EncodeRecord(const RecordOrigin& origin, const BlockIdentity& block,
                           std::span<const std::byte> payload) {
  CHECK(!block.tokens.empty() && block.tokens.size() <= kBlockTokensMax);
  const size_t header_bytes = HeaderBytes(block.tokens.size());
  EncodedRecord record;
  record.header.reserve(header_bytes);
  record.header.append(kMagic);
  AppendField(record.header, kByteOrder);
  AppendField(record.header, kRecordVersion);
  AppendField(record.header, static_cast<uint32_t>(header_bytes));
  AppendField(record.header, kCodecNone);
  AppendField(record.header, block.first_position);
  AppendField(record.header, static_cast<uint32_t>(block.tokens.size()));
  AppendField(record.header, block.key.digest);
  AppendField(record.header, block.parent.digest);
  AppendField(record.header, origin.fingerprint);
  AppendField(record.header, origin.layout);
  AppendField(record.header, uint64_t{payload.size()});
  CHECK(record.header.size() == kFixedBytes);
  for (const uint32_t token : block.tokens) AppendField(record.header, token);
  record.header.resize(header_bytes, '\0');
  record.payload = payload;
  record.digest =
      std::bit_cast<std::array<std::byte, sizeof(Digest)>>(DigestOfParts(record.header, payload));
  return record;
}

Result<RecordHeader> ParseRecordHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < kFixedBytes) {
    return Damaged("has " + std::to_string(bytes.size()) + " bytes, a header at least " +
                   std::to_string(kFixedBytes));
  }
  std::string_view rest = AsText(bytes);
  const std::string_view magic = rest.substr(0, kMagic.size());
  if (magic != kMagic) return Damaged("magic is " + HexOf(magic) + ", not " + HexOf(kMagic));
  rest.remove_prefix(kMagic.size());
  RETURN_IF_ERROR(Expect("byte order", TakeField<uint32_t>(rest), kByteOrder));
  RETURN_IF_ERROR(Expect("format version", TakeField<uint32_t>(rest), kRecordVersion));

  RecordHeader header;
  header.header_bytes = TakeField<uint32_t>(rest);
  RETURN_IF_ERROR(Expect("codec", TakeField<uint32_t>(rest), kCodecNone));
  header.block.first_position = TakeField<uint32_t>(rest);
  const uint32_t token_count = TakeField<uint32_t>(rest);
  if (token_count == 0 || token_count > kBlockTokensMax) {
    return Damaged("token count is " + std::to_string(token_count) + ", not 1 to " +
                   std::to_string(kBlockTokensMax));
  }
  RETURN_IF_ERROR(Expect("header size", header.header_bytes, HeaderBytes(token_count)));
  if (bytes.size() < header.header_bytes) {
    return Damaged("has " + std::to_string(bytes.size()) + " bytes, its header " +
                   std::to_string(header.header_bytes));
  }
  header.block.key.digest = TakeField<Digest>(rest);
  header.block.parent.digest = TakeField<Digest>(rest);
  header.origin.fingerprint = TakeField<Digest>(rest);
  header.origin.layout = TakeField<Digest>(rest);
  header.payload_bytes = TakeField<uint64_t>(rest);
  header.block.tokens.resize(token_count);
  std::memcpy(header.block.tokens.data(), rest.data(), token_count * sizeof(uint32_t));
  return header;
}

Result<Record> DecodeRecord(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(RecordHeader header, ParseRecordHeader(bytes));
  std::string_view rest = AsText(bytes.subspan(header.header_bytes));
  if (rest.size() < sizeof(Digest) || rest.size() - sizeof(Digest) != header.payload_bytes) {
    return Damaged("has " + std::to_string(rest.size()) + " bytes after its header, not " +
                   std::to_string(header.payload_bytes) + " and a digest");
  }
  const auto payload = bytes.subspan(header.header_bytes, header.payload_bytes);
  rest.remove_prefix(header.payload_bytes);
  const Digest actual = DigestOf(bytes.first(bytes.size() - sizeof(Digest)));
  RETURN_IF_ERROR(ExpectDigest("digest", actual, TakeField<Digest>(rest)));
  return Record{std::move(header), payload};
}

Status ExpectRecord(const RecordHeader& header, const RecordOrigin& origin,
                    const BlockIdentity& block) {
  RETURN_IF_ERROR(ExpectDigest("model fingerprint", header.origin.fingerprint, origin.fingerprint));
  RETURN_IF_ERROR(ExpectDigest("layout", header.origin.layout, origin.layout));
  RETURN_IF_ERROR(ExpectDigest("key", header.block.key.digest, block.key.digest));
  RETURN_IF_ERROR(ExpectDigest("parent", header.block.parent.digest, block.parent.digest));
  RETURN_IF_ERROR(Expect("first position", header.block.first_position, block.first_position));
  if (header.block.tokens != block.tokens) return Damaged("token ids are not those of its block");
  return Status();
}

}  // namespace cairn
