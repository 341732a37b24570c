#include "service/wire_fields.h"

#include <string_view>
#include <utility>
#include <vector>

#include "engine/session_settings.h"

namespace cairn {
namespace {

constexpr std::string_view kSessionPrefix = "sessions/";

ChatContent ChatFromProto(const v1::ChatMessages& chat) {
  ChatContent content;
  content.omit_generation_prompt = chat.omit_generation_prompt();
  content.messages.reserve(chat.messages_size());
  for (const v1::ChatMessage& message : chat.messages()) {
    content.messages.push_back({.role = message.role(), .content = message.content()});
  }
  return content;
}

Result<Content> ContentFromProto(const v1::Content& content) {
  switch (content.kind_case()) {
    case v1::Content::kText:
      if (content.text().empty()) return InvalidField("content.text", "is empty");
      return Content(content.text());
    case v1::Content::kChat:
      if (content.chat().messages().empty()) {
        return InvalidField("content.chat.messages", "is empty");
      }
      return Content(ChatFromProto(content.chat()));
    case v1::Content::kTokens:
      if (content.tokens().ids().empty()) return InvalidField("content.tokens.ids", "is empty");
      return Content(
          std::vector<uint32_t>(content.tokens().ids().begin(), content.tokens().ids().end()));
    case v1::Content::KIND_NOT_SET:
      break;
  }
  return InvalidField("content", "must have one of text, chat, tokens");
}

}  // namespace

std::string SessionName(const std::string& id) { return std::string(kSessionPrefix) + id; }

Result<std::string> IdFromName(const std::string& name, const std::string& field) {
  if (!name.starts_with(kSessionPrefix)) return InvalidField(field, "must be sessions/{id}");
  std::string id = name.substr(kSessionPrefix.size());
  RETURN_IF_ERROR(ValidateSessionId(id, field));
  return id;
}

Result<Content> RequiredContent(bool is_present, const v1::Content& content) {
  if (!is_present) return InvalidField("content", "must be given");
  return ContentFromProto(content);
}

Result<Content> OptionalContent(bool is_present, const v1::Content& content) {
  if (!is_present) return Content();
  return ContentFromProto(content);
}

SamplingParams FromProto(const v1::SamplingParams& proto) {
  SamplingParams params;
  if (proto.has_temperature()) params.temperature = proto.temperature();
  if (proto.has_top_p()) params.top_p = proto.top_p();
  if (proto.has_top_k()) params.top_k = proto.top_k();
  if (proto.has_min_p()) params.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) params.repetition_penalty = proto.repetition_penalty();
  if (proto.has_presence_penalty()) params.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) params.frequency_penalty = proto.frequency_penalty();
  if (proto.has_seed()) params.seed = proto.seed();
  params.stop.assign(proto.stop().begin(), proto.stop().end());
  params.stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  params.ignore_eos = proto.ignore_eos();
  params.logit_bias.insert(proto.logit_bias().begin(), proto.logit_bias().end());
  if (proto.has_logprobs()) params.logprobs = proto.logprobs();
  return params;
}

}  // namespace cairn
