// How the K and V of one block lie in memory: every offset and stride in the program comes from
// here.
//
// A block is `block_tokens` consecutive positions of one sequence. It is contiguous over all
// layers, so one copy moves it; a layer's slice is contiguous inside it, so a restore can go layer
// by layer:
//
//   block = [layer][ K: [kv_head][dim][token] f16 | V: [kv_head][token][dim] f16 ]
//
// K has the token innermost: the dot products of one query with 16 keys are then 16 parallel sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace cairn {

enum class KvType : uint8_t { kF16 };

constexpr size_t BytesPerElement(KvType type) {
  CHECK(type == KvType::kF16);
  return 2;
}

struct KvLayout {
  uint32_t layer_count = 0;
  uint32_t kv_head_count = 0;
  uint32_t head_dim = 0;
  uint32_t block_tokens = 16;
  KvType type = KvType::kF16;
  // Whose arithmetic wrote the bytes ("cpu-avx2-exact"): blocks of another are never mixed in.
  std::string arithmetic;

  size_t head_bytes() const { return size_t{head_dim} * block_tokens * BytesPerElement(type); }
  size_t layer_bytes() const { return 2 * kv_head_count * head_bytes(); }
  size_t block_bytes() const { return layer_count * layer_bytes(); }
  size_t token_bytes() const { return block_bytes() / block_tokens; }

  size_t key_offset(uint32_t layer, uint32_t kv_head) const {
    return layer * layer_bytes() + kv_head * head_bytes();
  }
  size_t value_offset(uint32_t layer, uint32_t kv_head) const {
    return layer * layer_bytes() + (kv_head_count + kv_head) * head_bytes();
  }

  // Names layout and arithmetic in full: "L30.H3.D64.T16.f16.kdt.cpu-avx2-exact".
  std::string Id() const {
    return "L" + std::to_string(layer_count) + ".H" + std::to_string(kv_head_count) + ".D" +
           std::to_string(head_dim) + ".T" + std::to_string(block_tokens) + ".f16.kdt." +
           arithmetic;
  }
};

}  // namespace cairn
