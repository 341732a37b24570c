// K and V as a test can check them: the values of a position are a hash of all tokens up to it, as
// real K and V are a function of them. So a block that is served to the wrong context shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/digest.h"
#include "base/rng.h"
#include "kernels/kv_layout.h"

namespace cairn {

// Calls visit(byte offset in the block, f16 bits) for every element of the last token of `context`.
template <class Visit>
void ForEachPatternElement(const KvLayout& layout, std::span<const uint32_t> context, Visit visit) {
  constexpr uint16_t kFinite = 0xbbff;  // without the exponent bit that NaN and infinity need
  uint64_t bits = DigestOf(std::as_bytes(context)).low;
  const size_t token = (context.size() - 1) % layout.block_tokens;
  for (uint32_t layer = 0; layer < layout.layer_count; ++layer) {
    for (uint32_t head = 0; head < layout.kv_head_count; ++head) {
      for (size_t dim = 0; dim < layout.head_dim; ++dim) {
        bits = MixBits(bits);
        visit(layout.key_offset(layer, head) + 2 * (dim * layout.block_tokens + token),
              static_cast<uint16_t>(bits & kFinite));
        visit(layout.value_offset(layer, head) + 2 * (token * layout.head_dim + dim),
              static_cast<uint16_t>(bits >> 16 & kFinite));
      }
    }
  }
}

// Writes K and V of the last token of `context`, which begins at position 0.
inline void WritePatternKv(const KvLayout& layout, std::byte* block,
                           std::span<const uint32_t> context) {
  ForEachPatternElement(layout, context, [&](size_t offset, uint16_t value) {
    std::memcpy(block + offset, &value, sizeof(value));
  });
}

// Whether they are there.
inline bool HasPatternKv(const KvLayout& layout, const std::byte* block,
                         std::span<const uint32_t> context) {
  bool equal = true;
  ForEachPatternElement(layout, context, [&](size_t offset, uint16_t value) {
    equal = equal && std::memcmp(block + offset, &value, sizeof(value)) == 0;
  });
  return equal;
}

}  // namespace cairn
