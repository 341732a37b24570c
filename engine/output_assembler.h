// Stands between sampled tokens and the stream: says which tokens may be shown, and their text.
//
// A stop string is matched in the bytes of the tokens, so it may begin and end inside a token or a
// character. A token is released only when none of its bytes can belong to a stop string that may
// still match: the longest end of the bytes so far that begins a stop string is held back, with
// the tokens that reach into it. When a stop string matches at byte s (of several the one that
// begins first, then the one listed first among those that match), the tokens that end at or
// before s are released; of a token that reaches over s the bytes before s become text, but the
// token is not released: it is not part of the session.
//
// Text comes in whole UTF-8 characters, in the detokenizer's rendering: the deltas concatenate to
// the rendering of all visible bytes. It covers released tokens only (and the piece before s), so
// text is never ahead of the tokens.
//
// Matching starts with the first token pushed: a released token cannot be part of a match, so a
// stream that is resumed after any released token finds the same matches as an uninterrupted one
// (unless Finish released what was held back, because the stream had come to its length).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api.h"
#include "engine/detokenizer.h"
#include "engine/tokenizer.h"

namespace cairn {

struct Released {
  std::vector<uint32_t> token_ids;
  std::string text;
  std::vector<TokenLogprob> logprobs;      // of those of token_ids that came with one
  std::optional<std::string> stop_string;  // set: this one has matched; the output has ended
};

class OutputAssembler {
 public:
  // `tokenizer` outlives the assembler. `stop`: none of them empty.
  OutputAssembler(const Tokenizer& tokenizer, std::vector<std::string> stop);

  // The tokens before the stream (their end suffices), whose last character the first tokens of
  // the stream may complete. Before the first Push.
  void Prime(std::span<const uint32_t> previous);

  // The next sampled token, end tokens included if they are to be part of the output. Not after a
  // match or Finish.
  Released Push(uint32_t id, std::optional<TokenLogprob> logprob);

  // The stream ends here without a match: releases what is held back and renders the bytes of an
  // incomplete character.
  Released Finish();

  // Tokens pushed and not released.
  size_t held_count() const { return held_.size(); }

 private:
  // Follows one stop string through the bytes: `matched` is the length of the longest end of them
  // that begins it (Knuth, Morris, Pratt: Fast Pattern Matching in Strings, 1977).
  class StopMatcher {
   public:
    explicit StopMatcher(std::string stop);
    // True when the stop string is complete with `byte`.
    bool Push(char byte);
    size_t matched() const { return matched_; }
    const std::string& stop() const { return stop_; }

   private:
    std::string stop_;
    std::vector<uint16_t> fallback_;  // [n]: the longest proper end of the first n that begins it
    size_t matched_ = 0;
  };

  struct HeldToken {
    uint32_t id;
    uint64_t end;  // of its bytes in the stream
    std::optional<TokenLogprob> logprob;
  };

  struct Match {
    uint64_t start;
    const std::string* stop;
  };

  // Takes the bytes of a token; the best match that it completes, if any.
  std::optional<Match> MatchStops(std::string_view bytes);
  // Moves the held tokens that end at or before `limit` to `released`.
  void ReleaseUntil(uint64_t limit, Released& released);

  const Tokenizer& tokenizer_;
  Detokenizer detokenizer_;
  std::vector<StopMatcher> matchers_;
  std::deque<HeldToken> held_;
  uint64_t pushed_bytes_ = 0;    // of all tokens
  uint64_t released_bytes_ = 0;  // of those released
  bool finished_ = false;
};

}  // namespace cairn
