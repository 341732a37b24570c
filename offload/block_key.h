// The name of a block's content: a digest chained over everything that its bytes depend on. The
// chain starts at a root (which weights, which layout and arithmetic, which tenant) and every block
// adds its token ids, so equal keys mean equal token ids from position 0 on.
//
// A digest can collide. Keys therefore only find; BlockStore compares the token ids of the block,
// and of every block before it, before it serves one. Of a block that an earlier process left on
// disk the store knows the tokens of that block alone; for those before it the key has to do, so it
// is cryptographic: the first 128 bits of SHA-256 (FIPS 180-4), of which nobody can make two equal.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/digest.h"

namespace cairn {

inline constexpr uint32_t kBlockTokensMax = 64;  // tokens of the largest block

struct BlockKey {
  Digest digest;
  friend constexpr auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

// The parent of a sequence's first block. `fingerprint` covers the weights, `layout_id` is
// KvLayout::Id(), `salt` keeps tenants apart ("" if there is one tenant).
BlockKey RootKey(const Digest& fingerprint, std::string_view layout_id, std::string_view salt);

// The key of the block that holds `tokens`, at most kBlockTokensMax, and follows `parent`.
BlockKey ChildKey(const BlockKey& parent, std::span<const uint32_t> tokens);

}  // namespace cairn

template <>
struct std::hash<cairn::BlockKey> {
  size_t operator()(const cairn::BlockKey& key) const noexcept {
    return std::hash<cairn::Digest>()(key.digest);
  }
};
