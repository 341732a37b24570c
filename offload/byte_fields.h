// Fields in bytes, one after the other, as the machine has them; what is written this way is
// little-endian because the program is built for such machines only.
#pragma once

#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/check.h"

namespace cairn {

static_assert(std::endian::native == std::endian::little);

template <class T>
void AppendField(std::string& bytes, const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The next field; what is read is gone from `bytes`, which has it (CHECK).
template <class T>
T TakeField(std::string_view& bytes) {
  static_assert(std::has_unique_object_representations_v<T>);
  CHECK(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

inline std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace cairn
