#include "offload/block_key.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "base/check.h"

namespace cairn {
namespace {

void AddDigest(DigestStream& stream, const Digest& digest) {
  const uint64_t words[2] = {digest.high, digest.low};
  stream.Add(std::as_bytes(std::span(words)));
}

// A text goes in with its length, so that no two lists of texts look alike.
void AddText(DigestStream& stream, std::string_view text) {
  const uint64_t size = text.size();
  stream.Add(std::as_bytes(std::span(&size, 1)));
  stream.Add(text);
}

}  // namespace

BlockKey RootKey(const Digest& fingerprint, std::string_view layout_id, std::string_view salt) {
  DigestStream stream;
  AddText(stream, "cairn block root 1");
  AddDigest(stream, fingerprint);
  AddText(stream, layout_id);
  AddText(stream, salt);
  return {stream.Finish()};
}

BlockKey ChildKey(const BlockKey& parent, std::span<const uint32_t> tokens) {
  // One call of the hash over a small frame: this runs for every block of every prompt.
  CHECK(tokens.size() <= kBlockTokensMax);
  std::array<std::byte, sizeof(Digest) + kBlockTokensMax * sizeof(uint32_t)> frame;
  std::memcpy(frame.data(), &parent.digest, sizeof(Digest));
  std::memcpy(frame.data() + sizeof(Digest), tokens.data(), tokens.size_bytes());
  return {DigestOf(std::span(frame).first(sizeof(Digest) + tokens.size_bytes()))};
}

}  // namespace cairn
