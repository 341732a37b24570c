// 128-bit digests (XXH3-128). Not cryptographic: whoever looks something up by digest compares the
// content too where a collision would matter (a KV block's token ids, for one).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  friend constexpr auto operator<=>(const Digest&, const Digest&) = default;
  std::string ToHex() const;  // 32 lower-case digits
};

Digest DigestOf(std::span<const std::byte> bytes);
Digest DigestOf(std::string_view text);
// A line of a file that is damaged in one place at a time: the text, a blank, the text's digest.
std::string LineWithDigest(const std::string& text);

// Digests pieces one after the other; equal to DigestOf their concatenation.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  DigestStream(const DigestStream&) = delete;
  DigestStream& operator=(const DigestStream&) = delete;
  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text))); }
  Digest Finish() const;

 private:
  void* state_;  // XXH3_state_t
};

}  // namespace cairn

template <>
struct std::hash<cairn::Digest> {
  size_t operator()(const cairn::Digest& digest) const noexcept { return digest.low; }
};
