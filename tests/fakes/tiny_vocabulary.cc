#include "tests/fakes/tiny_vocabulary.h"

#include <algorithm>

#include "base/check.h"
#include "engine/byte_alphabet.h"

namespace cairn {

Vocabulary TinyVocabulary(const std::string& pre, const std::vector<std::string>& specials) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  vocabulary.bos = kTinyImStart;
  vocabulary.eos = kTinyImEnd;
  const auto add = [&](const std::string& token, int32_t type) {
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(type);
  };
  for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    add(token, kTokenControl);
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    add(SpellByte(static_cast<uint8_t>(byte)), kTokenNormal);
  }
  // Ġ spells a space, Ċ a line feed.
  for (const std::string merge :
       {"h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "i n", "in g", "' s", "t h",
        "th e", "Ġ the", "a a", "aa aa", "Ã ©", "1 2"}) {
    vocabulary.merges.push_back(merge);
    std::string merged = merge;
    merged.erase(merged.find(' '), 1);
    add(merged, kTokenNormal);
  }
  for (const std::string& special : specials) add(special, kTokenControl);
  return vocabulary;
}

uint32_t IdOf(const Vocabulary& vocabulary, const std::string& token) {
  const auto found = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), token);
  CHECK(found != vocabulary.tokens.end());
  return static_cast<uint32_t>(found - vocabulary.tokens.begin());
}

}  // namespace cairn
