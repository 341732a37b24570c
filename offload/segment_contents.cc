#include "offload/segment_contents.h"

#include <cstring>

#include "offload/byte_fields.h"

namespace cairn {
namespace {

constexpr size_t kHeadBytes = sizeof(uint32_t) + 2 * sizeof(Digest) + sizeof(uint64_t);
constexpr size_t kEntryBytesMin = sizeof(uint64_t) + 2 * sizeof(Digest) + 3 * sizeof(uint32_t);

Status Damaged(std::string why) {
  return Status(Code::kDataLoss, "table of contents: " + std::move(why));
}

Result<std::pair<RecordId, BlockIdentity>> TakeEntry(std::string_view& rest) {
  if (rest.size() < kEntryBytesMin) return Damaged("ends within an entry");
  const RecordId id(TakeField<uint64_t>(rest));
  BlockIdentity block;
  block.key.digest = TakeField<Digest>(rest);
  block.parent.digest = TakeField<Digest>(rest);
  block.first_position = TakeField<uint32_t>(rest);
  const uint32_t token_count = TakeField<uint32_t>(rest);
  if (token_count == 0 || token_count > kBlockTokensMax) {
    return Damaged("an entry has " + std::to_string(token_count) + " tokens, not 1 to " +
                   std::to_string(kBlockTokensMax));
  }
  if (rest.size() / sizeof(uint32_t) < token_count) return Damaged("ends within token ids");
  block.tokens.resize(token_count);
  std::memcpy(block.tokens.data(), rest.data(), token_count * sizeof(uint32_t));
  rest.remove_prefix(token_count * sizeof(uint32_t));
  return std::pair(id, std::move(block));
}

}  // namespace

std::string EncodeContents(const SegmentContents& contents) {
  std::string bytes;
  AppendField(bytes, kRecordVersion);
  AppendField(bytes, contents.origin.fingerprint);
  AppendField(bytes, contents.origin.layout);
  AppendField(bytes, uint64_t{contents.records.size()});
  for (const auto& [id, block] : contents.records) {
    AppendField(bytes, id.value());
    AppendField(bytes, block.key.digest);
    AppendField(bytes, block.parent.digest);
    AppendField(bytes, block.first_position);
    AppendField(bytes, static_cast<uint32_t>(block.tokens.size()));
    for (const uint32_t token : block.tokens) AppendField(bytes, token);
  }
  AppendField(bytes, DigestOf(bytes));
  return bytes;
}

Result<SegmentContents> ParseContents(std::string_view bytes) {
  if (bytes.size() < kHeadBytes + sizeof(Digest)) {
    return Damaged("has " + std::to_string(bytes.size()) + " bytes, at least " +
                   std::to_string(kHeadBytes + sizeof(Digest)) + " are needed");
  }
  std::string_view rest = bytes;
  const uint32_t version = TakeField<uint32_t>(rest);
  if (version != kRecordVersion) {
    return Status(Code::kUnimplemented, "table of contents: version is " + std::to_string(version) +
                                            ", not " + std::to_string(kRecordVersion));
  }
  std::string_view tail = bytes.substr(bytes.size() - sizeof(Digest));
  const Digest actual = DigestOf(bytes.substr(0, bytes.size() - sizeof(Digest)));
  if (const Digest written = TakeField<Digest>(tail); actual != written) {
    return Damaged("digest is " + actual.ToHex() + ", not " + written.ToHex());
  }
  rest.remove_suffix(sizeof(Digest));

  SegmentContents contents;
  contents.origin.fingerprint = TakeField<Digest>(rest);
  contents.origin.layout = TakeField<Digest>(rest);
  const uint64_t count = TakeField<uint64_t>(rest);
  if (count == 0 || count > rest.size() / kEntryBytesMin) {
    return Damaged(std::to_string(count) + " records in " + std::to_string(rest.size()) + " bytes");
  }
  contents.records.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(auto entry, TakeEntry(rest));
    if (i > 0 && entry.first <= contents.records.back().first) {
      return Damaged("record ids do not increase");
    }
    contents.records.push_back(std::move(entry));
  }
  if (!rest.empty()) return Damaged(std::to_string(rest.size()) + " bytes follow the last entry");
  return contents;
}

}  // namespace cairn
