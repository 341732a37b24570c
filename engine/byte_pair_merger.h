// Byte-pair encoding: a piece of text starts as one token a byte, and as long as two neighbours
// have a merge, the pair with the lowest rank (the leftmost of equals) becomes one token. Sennrich,
// Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units, ACL 2016.
//
// Short pieces are merged in place by scanning for the lowest rank; long ones with a heap over a
// linked list, in O(n log n) time and about 28 bytes of working memory a byte of the piece.
//
// Threads: const methods from any thread, once every merge has been added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn {

class BytePairMerger {
 public:
  static constexpr uint32_t kNoToken = UINT32_MAX;

  // `byte_tokens[b]` is the token of byte b, or kNoToken: such a byte is left out of the encoding,
  // and its neighbours meet. Room is made for `merge_count` merges.
  BytePairMerger(const std::array<uint32_t, 256>& byte_tokens, size_t merge_count);

  // The pair (left, right) merges into `merged`; ranks ascend from call to call. A pair that is
  // added again takes the later rank.
  void Add(uint32_t left, uint32_t right, uint32_t merged);

  // Appends the tokens of `piece`, of less than 2^31 bytes.
  void Encode(std::string_view piece, std::vector<uint32_t>& tokens) const;

 private:
  // Rank in the upper half and merged token in the lower one, so that the least Merge is the merge
  // to do first.
  using Merge = uint64_t;
  static constexpr Merge kNoMerge = UINT64_MAX;
  static constexpr uint64_t kEmpty = UINT64_MAX;

  struct Slot {
    uint64_t pair = kEmpty;  // left token in the upper half, right token in the lower one
    Merge merge = kNoMerge;
  };

  // The slot that has `pair`, or the empty one where it belongs.
  size_t FindSlot(uint64_t pair) const;
  Merge Find(uint32_t left, uint32_t right) const;
  void EncodeShort(std::string_view piece, std::vector<uint32_t>& tokens) const;
  void EncodeLong(std::string_view piece, std::vector<uint32_t>& tokens) const;

  std::array<uint32_t, 256> byte_tokens_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  uint32_t hash_shift_;
  uint32_t added_ = 0;
};

}  // namespace cairn
