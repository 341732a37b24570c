// The key of a record in the database: its id, 8 bytes, big-endian, so that keys sort as ids grow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "offload/spill_store.h"

namespace cairn {

inline std::string RecordKey(RecordId id) {
  std::string key(sizeof(uint64_t), '\0');
  for (int i = 0; i < 8; ++i) key[i] = static_cast<char>(id.value() >> (56 - 8 * i));
  return key;
}

inline std::optional<RecordId> ParseRecordKey(std::string_view key) {
  if (key.size() != sizeof(uint64_t)) return std::nullopt;
  uint64_t value = 0;
  for (const char byte : key) value = value << 8 | static_cast<unsigned char>(byte);
  return RecordId(value);
}

}  // namespace cairn
