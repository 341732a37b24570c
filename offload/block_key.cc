#include "offload/block_key.h"

#include <openssl/sha.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/check.h"

namespace cairn {
namespace {

BlockKey KeyOf(std::span<const std::byte> frame) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(frame.data()), frame.size(), hash.data());
  BlockKey key;
  std::memcpy(&key.digest.high, hash.data(), 8);
  std::memcpy(&key.digest.low, hash.data() + 8, 8);
  return key;
}

// A text goes in with its length, so that no two lists of texts look alike.
void AddText(std::string& frame, std::string_view text) {
  const uint64_t size = text.size();
  frame.append(reinterpret_cast<const char*>(&size), sizeof(size));
  frame.append(text);
}

}  // namespace

BlockKey RootKey(const Digest& fingerprint, std::string_view layout_id, std::string_view salt) {
  std::string frame;
  AddText(frame, "cairn block root 2");
  frame.append(reinterpret_cast<const char*>(&fingerprint), sizeof(fingerprint));
  AddText(frame, layout_id);
  AddText(frame, salt);
  return KeyOf(std::as_bytes(std::span(frame)));
}

BlockKey ChildKey(const BlockKey& parent, std::span<const uint32_t> tokens) {
  // One call of the hash over a small frame: this runs for every block of every prompt.
  CHECK(tokens.size() <= kBlockTokensMax);
  std::array<std::byte, sizeof(Digest) + kBlockTokensMax * sizeof(uint32_t)> frame;
  std::memcpy(frame.data(), &parent.digest, sizeof(Digest));
  std::memcpy(frame.data() + sizeof(Digest), tokens.data(), tokens.size_bytes());
  return KeyOf(std::span(frame).first(sizeof(Digest) + tokens.size_bytes()));
}

}  // namespace cairn
