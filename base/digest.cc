#include "base/digest.h"

#include <xxhash.h>

#include "base/check.h"

namespace cairn {
namespace {

Digest FromXxh(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }
XXH3_state_t* State(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

std::string Digest::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint64_t word : {high, low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(word >> shift) & 15];
  }
  return text;
}

Digest DigestOf(std::span<const std::byte> bytes) {
  return FromXxh(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest DigestOf(std::string_view text) { return DigestOf(std::as_bytes(std::span(text))); }

std::string LineWithDigest(const std::string& text) {
  return text + " " + DigestOf(text).ToHex() + "\n";
}

DigestStream::DigestStream() : state_(XXH3_createState()) {
  CHECK(state_ != nullptr);
  CHECK(XXH3_128bits_reset(State(state_)) == XXH_OK);
}

DigestStream::~DigestStream() { XXH3_freeState(State(state_)); }

void DigestStream::Add(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  CHECK(XXH3_128bits_update(State(state_), bytes.data(), bytes.size()) == XXH_OK);
}

Digest DigestStream::Finish() const { return FromXxh(XXH3_128bits_digest(State(state_))); }

}  // namespace cairn
