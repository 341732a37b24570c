// The byte-level alphabet of GPT-2 (Radford et al., "Language Models are Unsupervised Multitask
// Learners", 2019): every byte is spelled as one printable character, so that a vocabulary of
// characters covers all bytes. Printable Latin-1 bytes spell themselves; the other 68 take the
// characters from U+0100 on, in order. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

// The character, as UTF-8, that spells `byte`.
std::string SpellByte(uint8_t byte);

// The bytes that `spelling` (valid UTF-8) stands for; none if it has a character outside the
// alphabet.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

}  // namespace cairn
