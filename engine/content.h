// Content of a request as token ids. What a content becomes depends on the context that it is put
// into (empty or not, an assistant's turn open or not), which only the engine thread knows; the
// costly part, tokenizing, is done before, on the caller's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/api.h"
#include "engine/chat_template.h"
#include "engine/tokenizer.h"

namespace cairn {

struct EncodedContent {
  std::vector<uint32_t> next;                  // for a context that has tokens
  std::optional<std::vector<uint32_t>> start;  // for an empty one, when that differs
  bool is_chat = false;                        // `next` comes after the template's Closing

  bool empty() const { return next.empty() && (!start || start->empty()); }
};

class ContentEncoder {
 public:
  // `chat_template` may be a Status, which is then the answer to chat content. All outlive this.
  ContentEncoder(const Tokenizer& tokenizer,
                 const Result<std::unique_ptr<ChatTemplate>>& chat_template,
                 uint32_t context_length)
      : tokenizer_(tokenizer), chat_template_(chat_template), context_length_(context_length) {}

  // Thread-safe. kInvalidArgument naming the field: invalid UTF-8, an id outside the vocabulary, a
  // role that the template does not know, a text that no context can hold, which its bytes tell
  // before it is tokenized. No content gives an empty one.
  Result<EncodedContent> Encode(const Content& content) const;

  // The ids that go to the end of `context`.
  std::vector<uint32_t> Resolve(EncodedContent content, std::span<const uint32_t> context) const;

 private:
  Status CheckFits(uint64_t text_bytes, const std::string& field) const;
  Result<EncodedContent> EncodeText(const std::string& text) const;
  Result<EncodedContent> EncodeChat(const ChatContent& chat) const;
  Result<EncodedContent> EncodeTokens(const std::vector<uint32_t>& ids) const;

  const Tokenizer& tokenizer_;
  const Result<std::unique_ptr<ChatTemplate>>& chat_template_;
  const uint32_t context_length_;
};

}  // namespace cairn
