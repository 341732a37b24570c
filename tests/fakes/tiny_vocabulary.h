// A byte-level BPE vocabulary small enough to work out its tokens by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/vocabulary.h"

namespace cairn {

// Ids of TinyVocabulary.
inline constexpr uint32_t kTinyEndOfText = 0;  // <|endoftext|>
inline constexpr uint32_t kTinyImStart = 1;    // <|im_start|>, bos
inline constexpr uint32_t kTinyImEnd = 2;      // <|im_end|>, eos
constexpr uint32_t TinyByte(uint8_t byte) { return 3u + byte; }

// The three control tokens, the 256 bytes in order, the merged tokens of a few merges ("he", "ll",
// "hell", "hello", " w", "  ", "    ", "aa", "aaaa" and others), then `specials` as control tokens.
Vocabulary TinyVocabulary(const std::string& pre = "smollm",
                          const std::vector<std::string>& specials = {});

// The id of the token that is spelled `token` in `vocabulary`, which has it.
uint32_t IdOf(const Vocabulary& vocabulary, const std::string& token);

}  // namespace cairn
