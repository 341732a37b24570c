// Token ids to text as they come, in whole characters: a token may end inside a character, and then
// its last bytes (at most 3) wait for the next token. Bytes that belong to no character become
// U+FFFD, one for each maximal ill-formed part (engine/utf8.h). Whatever the grouping, the deltas
// concatenate to the text of all tokens at once.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/tokenizer.h"

namespace cairn {

class Detokenizer {
 public:
  // `tokenizer` must outlive this.
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Puts a fresh Detokenizer into the state that it has after `earlier`, the tokens from the start
  // of the text, whose text is already known: the next delta then continues it exactly. Reads back
  // only as far as a character can reach.
  void Prime(std::span<const uint32_t> earlier);

  // The text that `token` completes; valid UTF-8, often empty or more than one character.
  std::string Push(uint32_t token) { return PushBytes(tokenizer_->TokenBytes(token)); }

  // The same for bytes that are no whole token: the part of one before a stop string.
  std::string PushBytes(std::string_view bytes);

  // What is still held back, as U+FFFD; empty if the text ended on a whole character. The next Push
  // begins a new text.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;  // the head of a character, 0 to 3 bytes
};

// The text of `tokens`: the concatenation of every Push and the Flush.
std::string Detokenize(const Tokenizer& tokenizer, std::span<const uint32_t> tokens);

}  // namespace cairn
