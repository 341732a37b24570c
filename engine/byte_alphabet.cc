#include "engine/byte_alphabet.h"

#include <array>

#include "engine/utf8.h"

namespace cairn {
namespace {

constexpr uint32_t kCodePointEnd = 0x100 + 68;
constexpr int16_t kNotInAlphabet = -1;

constexpr bool SpellsItself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<uint16_t, 256> code_point_of_byte;
  std::array<int16_t, kCodePointEnd> byte_of_code_point;
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet{};
  for (int16_t& byte : alphabet.byte_of_code_point) byte = kNotInAlphabet;
  uint16_t next = 0x100;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const uint16_t code_point = SpellsItself(byte) ? byte : next++;
    alphabet.code_point_of_byte[byte] = code_point;
    alphabet.byte_of_code_point[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string SpellByte(uint8_t byte) {
  const uint16_t code_point = kAlphabet.code_point_of_byte[byte];
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const std::string_view unit = spelling.substr(0, NextUtf8Unit(spelling).length);
    const uint32_t code_point = DecodeUtf8(unit);
    if (code_point >= kCodePointEnd) return std::nullopt;
    const int16_t byte = kAlphabet.byte_of_code_point[code_point];
    if (byte == kNotInAlphabet) return std::nullopt;
    bytes += static_cast<char>(byte);
    spelling.remove_prefix(unit.size());
  }
  return bytes;
}

}  // namespace cairn
