// Paged K and V for tests and benches of attention: sequences whose blocks lie scattered, each in
// memory of its own, with random finite values in the positions that exist and NaN in every slot
// behind the last one, which no kernel may let through.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/half.h"
#include "kernels/kv_layout.h"

namespace cairn {

inline constexpr uint16_t kHalfNan = 0x7e00;

inline KvLayout AttentionLayout(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                uint32_t block_tokens) {
  KvLayout layout;
  layout.layer_count = layers;
  layout.kv_head_count = kv_heads;
  layout.head_dim = head_dim;
  layout.block_tokens = block_tokens;
  return layout;
}

class CachedSequence {
 public:
  CachedSequence(const KvLayout& layout, uint32_t length, Rng& rng) : layout_(layout) {
    const size_t halves = layout.block_bytes() / 2;
    for (uint32_t first = 0; first < length; first += layout.block_tokens) {
      auto& block = blocks_.emplace_back(new uint16_t[halves]);
      std::fill_n(block.get(), halves, kHalfNan);
      for (uint32_t t = 0; t < layout.block_tokens && first + t < length; ++t) {
        FillPosition(block.get(), t, rng);
      }
    }
    for (const auto& block : blocks_) {
      table_.push_back(reinterpret_cast<const std::byte*>(block.get()));
    }
  }

  const std::byte* const* blocks() const { return table_.data(); }

  uint16_t Key(uint32_t layer, uint32_t head, uint32_t position, uint32_t d) const {
    return Block(position)[layout_.key_offset(layer, head) / 2 + d * layout_.block_tokens +
                           position % layout_.block_tokens];
  }
  uint16_t Value(uint32_t layer, uint32_t head, uint32_t position, uint32_t d) const {
    return Block(position)[layout_.value_offset(layer, head) / 2 +
                           position % layout_.block_tokens * layout_.head_dim + d];
  }

 private:
  const uint16_t* Block(uint32_t position) const {
    return blocks_[position / layout_.block_tokens].get();
  }
  // About normal with deviation 1: the sum of four bytes.
  static uint16_t RandomHalf(uint64_t bits) {
    const uint64_t sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255);
    return FloatToHalf((static_cast<float>(sum) - 510.0f) / 148.0f);
  }
  void FillPosition(uint16_t* block, uint32_t t, Rng& rng) {
    for (uint32_t layer = 0; layer < layout_.layer_count; ++layer) {
      for (uint32_t head = 0; head < layout_.kv_head_count; ++head) {
        uint16_t* keys = block + layout_.key_offset(layer, head) / 2;
        uint16_t* values = block + layout_.value_offset(layer, head) / 2;
        for (uint32_t d = 0; d < layout_.head_dim; ++d) {
          const uint64_t bits = rng.Next();
          keys[d * layout_.block_tokens + t] = RandomHalf(bits);
          values[t * layout_.head_dim + d] = RandomHalf(bits >> 32);
        }
      }
    }
  }

  KvLayout layout_;
  std::vector<std::unique_ptr<uint16_t[]>> blocks_;
  std::vector<const std::byte*> table_;
};

}  // namespace cairn
