#include "engine/byte_pair_merger.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "base/check.h"

namespace cairn {
namespace {

// Up to here the quadratic scan beats the heap, and its state fits on the stack.
constexpr size_t kShortPieceBytesMax = 64;

constexpr uint32_t kNone = UINT32_MAX;

uint64_t Join(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }
uint32_t High(uint64_t joined) { return static_cast<uint32_t>(joined >> 32); }
uint32_t Low(uint64_t joined) { return static_cast<uint32_t>(joined); }

}  // namespace

BytePairMerger::BytePairMerger(const std::array<uint32_t, 256>& byte_tokens, size_t merge_count)
    : byte_tokens_(byte_tokens),
      slots_(std::bit_ceil(2 * merge_count + 2)),
      hash_shift_(64 - std::countr_zero(slots_.size())) {}

size_t BytePairMerger::FindSlot(uint64_t pair) const {
  size_t at = pair * 0x9e3779b97f4a7c15u >> hash_shift_;  // Fibonacci hashing
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

inline BytePairMerger::Merge BytePairMerger::Find(uint32_t left, uint32_t right) const {
  return slots_[FindSlot(Join(left, right))].merge;
}

void BytePairMerger::Add(uint32_t left, uint32_t right, uint32_t merged) {
  CHECK(2 * (added_ + 1) <= slots_.size());
  Slot& slot = slots_[FindSlot(Join(left, right))];
  slot.pair = Join(left, right);
  slot.merge = Join(added_++, merged);
}

void BytePairMerger::Encode(std::string_view piece, std::vector<uint32_t>& tokens) const {
  CHECK(piece.size() <= INT32_MAX);
  if (piece.size() <= kShortPieceBytesMax) {
    EncodeShort(piece, tokens);
  } else {
    EncodeLong(piece, tokens);
  }
}

void BytePairMerger::EncodeShort(std::string_view piece, std::vector<uint32_t>& tokens) const {
  uint32_t symbols[kShortPieceBytesMax];
  Merge merges[kShortPieceBytesMax];  // merges[i] is that of symbols i and i + 1
  size_t count = 0;
  for (const char byte : piece) {
    const uint32_t token = byte_tokens_[static_cast<uint8_t>(byte)];
    if (token != kNoToken) symbols[count++] = token;
  }
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = Find(symbols[i], symbols[i + 1]);

  while (count > 1) {
    const Merge* best = std::min_element(merges, merges + count - 1);
    if (*best == kNoMerge) break;
    const size_t at = best - merges;
    symbols[at] = Low(*best);
    std::copy(symbols + at + 2, symbols + count, symbols + at + 1);
    std::copy(merges + at + 1, merges + count - 1, merges + at);
    --count;
    if (at > 0) merges[at - 1] = Find(symbols[at - 1], symbols[at]);
    if (at + 1 < count) merges[at] = Find(symbols[at], symbols[at + 1]);
  }
  tokens.insert(tokens.end(), symbols, symbols + count);
}

void BytePairMerger::EncodeLong(std::string_view piece, std::vector<uint32_t>& tokens) const {
  struct Symbol {
    uint32_t token;  // kNoToken once it is part of the symbol before it
    uint32_t previous, next;
  };
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char byte : piece) {
    const uint32_t token = byte_tokens_[static_cast<uint8_t>(byte)];
    if (token == kNoToken) continue;
    const uint32_t at = static_cast<uint32_t>(symbols.size());
    symbols.push_back({token, at == 0 ? kNone : at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = kNone;

  // The merge of the symbol at `at` with its next one; kNoMerge if either is gone.
  const auto merge_at = [&](uint32_t at) -> Merge {
    const Symbol& symbol = symbols[at];
    if (symbol.token == kNoToken || symbol.next == kNone) return kNoMerge;
    return Find(symbol.token, symbols[symbol.next].token);
  };
  // Candidates are (rank, position), so equal ranks go from left to right. A candidate that a later
  // merge made stale stays in the heap and no longer agrees with merge_at when it comes up.
  std::vector<uint64_t> candidates;
  for (uint32_t at = 0; at < symbols.size(); ++at) {
    if (const Merge merge = merge_at(at); merge != kNoMerge) {
      candidates.push_back(Join(High(merge), at));
    }
  }
  std::priority_queue heap(std::greater<uint64_t>(), std::move(candidates));
  while (!heap.empty()) {
    const uint32_t rank = High(heap.top());
    const uint32_t at = Low(heap.top());
    heap.pop();
    const Merge merge = merge_at(at);
    if (merge == kNoMerge || High(merge) != rank) continue;
    Symbol& left = symbols[at];
    Symbol& right = symbols[left.next];
    left.token = Low(merge);
    left.next = right.next;
    right.token = kNoToken;
    if (left.next != kNone) symbols[left.next].previous = at;
    for (const uint32_t changed : {left.previous, at}) {
      if (changed == kNone) continue;
      if (const Merge next = merge_at(changed); next != kNoMerge) {
        heap.push(Join(High(next), changed));
      }
    }
  }
  for (uint32_t at = 0; at != kNone; at = symbols[at].next) tokens.push_back(symbols[at].token);
}

}  // namespace cairn
