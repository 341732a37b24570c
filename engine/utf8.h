// UTF-8 as the Unicode Standard defines it (chapter 3.9, table 3-7: no overlong forms, no
// surrogates, nothing above U+10FFFF). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class Utf8Kind {
  kCharacter,   // one whole code point
  kIncomplete,  // the text ends inside a code point that more bytes could still complete
  kInvalid,     // a maximal subpart of an ill-formed sequence: stands for one U+FFFD
};

struct Utf8Unit {
  Utf8Kind kind;
  uint32_t length;  // bytes, 1 to 4
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// What `text`, which is not empty, begins with. Cutting a text into units one after the other
// yields the replacement that the standard recommends (and that Python and the web use).
Utf8Unit NextUtf8Unit(std::string_view text);

// The code point that `unit`, a kCharacter, encodes.
uint32_t DecodeUtf8(std::string_view unit);

// Offset of the first byte that is not part of a whole code point; none if all of `text` is valid.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

}  // namespace cairn
