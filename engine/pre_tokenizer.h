// Cuts text into the pieces inside which BPE merges: words, numbers, runs of punctuation or white
// space. The cut is defined by a regular expression that was fixed when the model was trained, and
// must be reproduced exactly; PCRE2 runs it with its Unicode tables (version 14).
//
// Every expression here matches at any position of any text, so the pieces follow each other
// without gaps and their concatenation is the text. Time is linear in the text.
//
// Threads: immutable; any number of threads may cut texts at once.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace cairn {

class PreTokenizer {
 public:
  // `name` is GGUF's tokenizer.ggml.pre, e.g. "smollm", "gpt-2", "llama-bpe"; "" and "default" (old
  // files that do not say) mean "gpt-2". kInvalidArgument for a name that is not known.
  static Result<std::unique_ptr<const PreTokenizer>> Create(std::string_view name);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Whether a piece that is a token as a whole is taken as that token without merging, as Llama 3
  // does.
  bool whole_pieces_first() const { return whole_pieces_first_; }

  // One pass over a text, which must be valid UTF-8 and outlive the pass.
  class Pieces {
   public:
    Pieces(const PreTokenizer& pre_tokenizer, std::string_view text);
    ~Pieces();
    Pieces(const Pieces&) = delete;
    Pieces& operator=(const Pieces&) = delete;

    // The next piece, never empty; none at the end of the text.
    std::optional<std::string_view> Next();

   private:
    const PreTokenizer& pre_tokenizer_;
    const std::string_view text_;
    size_t at_ = 0;
    void* match_;  // pcre2_match_data
  };

 private:
  PreTokenizer(void* code, void* context, bool whole_pieces_first);
  void* const code_;     // pcre2_code
  void* const context_;  // pcre2_match_context
  const bool whole_pieces_first_;
};

}  // namespace cairn
