#include "engine/content.h"

#include <utility>
#include <variant>

namespace cairn {

Result<EncodedContent> ContentEncoder::Encode(const Content& content) const {
  if (const auto* text = std::get_if<std::string>(&content)) return EncodeText(*text);
  if (const auto* chat = std::get_if<ChatContent>(&content)) return EncodeChat(*chat);
  if (const auto* ids = std::get_if<std::vector<uint32_t>>(&content)) return EncodeTokens(*ids);
  return EncodedContent();
}

Status ContentEncoder::CheckFits(uint64_t text_bytes, const std::string& field) const {
  const uint64_t bytes_max = uint64_t{context_length_} * tokenizer_.longest_token_bytes();
  if (text_bytes <= bytes_max) return Status();
  return InvalidField(field, "has " + std::to_string(text_bytes) + " bytes; a context of " +
                                 std::to_string(context_length_) + " tokens holds at most " +
                                 std::to_string(bytes_max));
}

Result<EncodedContent> ContentEncoder::EncodeText(const std::string& text) const {
  RETURN_IF_ERROR(CheckFits(text.size(), "content.text"));
  Result<std::vector<uint32_t>> ids = tokenizer_.Encode(text);
  if (!ids.ok()) return InvalidField("content.text", ids.status().message());
  EncodedContent encoded;
  if (tokenizer_.add_bos() && tokenizer_.bos() && !ids->empty()) {
    encoded.start = {*tokenizer_.bos()};
    encoded.start->insert(encoded.start->end(), ids->begin(), ids->end());
  }
  encoded.next = *std::move(ids);
  return encoded;
}

Result<EncodedContent> ContentEncoder::EncodeChat(const ChatContent& chat) const {
  if (!chat_template_.ok()) return chat_template_.status();
  if (chat.messages.empty()) return InvalidField("content.chat.messages", "is empty");
  uint64_t text_bytes = 0;
  for (const ChatMessage& message : chat.messages) text_bytes += message.content.size();
  RETURN_IF_ERROR(CheckFits(text_bytes, "content.chat.messages"));
  const ChatTemplate& chat_template = **chat_template_;
  EncodedContent encoded;
  encoded.is_chat = true;
  ASSIGN_OR_RETURN(encoded.start,
                   chat_template.RenderStart(chat.messages, !chat.omit_generation_prompt));
  ASSIGN_OR_RETURN(encoded.next,
                   chat_template.RenderNext(chat.messages, !chat.omit_generation_prompt));
  return encoded;
}

Result<EncodedContent> ContentEncoder::EncodeTokens(const std::vector<uint32_t>& ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= tokenizer_.size()) {
      return InvalidField("content.tokens.ids[" + std::to_string(i) + "]",
                          "must be below the vocabulary size of " +
                              std::to_string(tokenizer_.size()) + ", is " + std::to_string(ids[i]));
    }
  }
  EncodedContent encoded;
  encoded.next = ids;
  return encoded;
}

std::vector<uint32_t> ContentEncoder::Resolve(EncodedContent content,
                                              std::span<const uint32_t> context) const {
  if (context.empty()) return content.start ? *std::move(content.start) : std::move(content.next);
  if (!content.is_chat) return std::move(content.next);
  std::vector<uint32_t> ids = (*chat_template_)->Closing(context);
  ids.insert(ids.end(), content.next.begin(), content.next.end());
  return ids;
}

}  // namespace cairn
