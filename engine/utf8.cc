#include "engine/utf8.h"

#include <cstring>

#include "base/check.h"

namespace cairn {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080u;

struct LeadByte {
  uint32_t length;                 // of the code point; 0: no code point begins with this byte
  uint8_t second_min, second_max;  // what may follow; later bytes are always 80..BF
};

LeadByte Classify(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit NextUtf8Unit(std::string_view text) {
  DCHECK(!text.empty());
  const LeadByte lead = Classify(static_cast<uint8_t>(text[0]));
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1};
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kCharacter, lead.length};
}

uint32_t DecodeUtf8(std::string_view unit) {
  const uint8_t lead = static_cast<uint8_t>(unit[0]);
  if (unit.size() == 1) return lead;
  uint32_t code_point = lead & (0x7Fu >> unit.size());
  for (const char byte : unit.substr(1)) {
    code_point = code_point << 6 | (static_cast<uint8_t>(byte) & 0x3Fu);
  }
  return code_point;
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & kHighBits) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Unit unit = NextUtf8Unit(text.substr(at));
    if (unit.kind != Utf8Kind::kCharacter) return at;
    at += unit.length;
  }
  return std::nullopt;
}

}  // namespace cairn
