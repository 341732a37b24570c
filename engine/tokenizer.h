// Text to token ids and back, for byte-level BPE vocabularies.
//
// Encode treats its argument as plain text: special tokens are never read out of it, so nothing a
// user types becomes a control token. Only a chat template (engine/chat_template.h) places them, by
// id. Where the vocabulary has a token for every byte, the token bytes of Encode(text) concatenate
// to `text`; a byte without a token is dropped, as in the tokenizer that trained the model.
//
// Threads: immutable; any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/byte_pair_merger.h"
#include "engine/pre_tokenizer.h"
#include "engine/vocabulary.h"

namespace cairn {

class Tokenizer {
 public:
  // kInvalidArgument, naming the entry at fault, if the vocabulary contradicts itself;
  // kUnimplemented if its model is not "gpt2".
  static Result<std::unique_ptr<Tokenizer>> Create(const Vocabulary& vocabulary);

  // kInvalidArgument, naming the byte offset, if `text` is not valid UTF-8; also from 2 GiB on.
  Result<std::vector<uint32_t>> Encode(std::string_view text) const;

  // What token `id` adds to a text: raw bytes, which may be part of a character; nothing for a
  // control token. `id` is below size(). The view lives as long as the tokenizer.
  std::string_view TokenBytes(uint32_t id) const;

  // Whether `id` structures the text and is not part of it.
  bool IsControl(uint32_t id) const;

  // Whether the model says with `id` that its answer is complete: eos, eot, or a control token that
  // is known by name to end turns, such as <|im_end|> or <|eot_id|>.
  bool IsEnd(uint32_t id) const;
  std::span<const uint32_t> end_ids() const { return end_ids_; }  // ascending

  // The special (control or user-defined) token that is written `text`, e.g. "<|im_start|>".
  std::optional<uint32_t> FindSpecial(std::string_view text) const;

  uint32_t size() const { return static_cast<uint32_t>(types_.size()); }
  std::optional<uint32_t> bos() const { return bos_; }
  std::optional<uint32_t> eos() const { return eos_; }
  bool add_bos() const { return add_bos_; }  // a plain prompt starts with bos

  // No token stands for more bytes: a text of n bytes has at least n / longest_token_bytes()
  // tokens.
  size_t longest_token_bytes() const { return longest_token_bytes_; }

 private:
  Tokenizer(const Vocabulary& vocabulary, std::unique_ptr<const PreTokenizer> pre_tokenizer);
  // Token string -> id, of the normal tokens: those that text may become.
  using NormalIds = std::unordered_map<std::string_view, uint32_t>;
  Status AddTokens(const Vocabulary& vocabulary, NormalIds& normal_ids);
  Status AddMerges(const Vocabulary& vocabulary, const NormalIds& normal_ids);
  Status SetEnds(const Vocabulary& vocabulary);

  const std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::vector<TokenType> types_;
  std::string bytes_;              // of all tokens, one after the other
  std::vector<size_t> bytes_end_;  // of each token in bytes_
  std::optional<BytePairMerger> merger_;
  std::unordered_map<std::string, uint32_t> special_ids_;        // of control and user-defined text
  std::unordered_map<std::string_view, uint32_t> whole_pieces_;  // bytes -> id, if taken whole
  std::vector<uint32_t> end_ids_;
  std::optional<uint32_t> bos_, eos_;
  bool add_bos_;
  size_t longest_token_bytes_ = 1;
};

}  // namespace cairn
