// Strong ids: a BlockId is not a SlotId, and neither is a number. Explicit construction,
// comparison, hashing; no arithmetic, no conversion. The default value is "none".
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace cairn {

template <class Tag, class Value = uint32_t>
class StrongId {
 public:
  using ValueType = Value;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Value value) : value_(value) {}
  constexpr Value value() const { return value_; }
  constexpr bool valid() const { return value_ != static_cast<Value>(-1); }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Value value_ = static_cast<Value>(-1);
};

using BlockId = StrongId<struct BlockIdTag>;  // KV content, wherever it lives
using SlotId = StrongId<struct SlotIdTag>;    // a place for one block in one tier's pool
using SequenceId =
    StrongId<struct SequenceIdTag, uint64_t>;  // one running generation; never reused

}  // namespace cairn

template <class Tag, class Value>
struct std::hash<cairn::StrongId<Tag, Value>> {
  size_t operator()(cairn::StrongId<Tag, Value> id) const noexcept {
    return std::hash<Value>()(id.value());
  }
};
