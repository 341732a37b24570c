#include "engine/chat_format.h"

#include <algorithm>
#include <initializer_list>

namespace cairn {
namespace {

constexpr std::string_view kRolePlaceholder = "{role}";

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool HasAny(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](auto part) { return Has(text, part); });
}

// What a Jinja string literal with escaped line ends stands for.
std::string Unescape(std::string_view literal) {
  std::string text;
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] == '\\' && i + 1 < literal.size()) {
      ++i;
      text += literal[i] == 'n' ? '\n' : literal[i];
    } else {
      text += literal[i];
    }
  }
  return text;
}

// The part of `text` between `before` and the next `after`; none if `before` is not there.
std::optional<std::string_view> Between(std::string_view text, std::string_view before,
                                        std::string_view after) {
  const size_t begin = text.find(before);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + before.size());
  const size_t end = text.find(after);
  if (end == std::string_view::npos) return std::nullopt;
  return text.substr(0, end);
}

// A system message that the template writes word for word, as opposed to one that it puts together
// from expressions, which has quotes in it where the literal ends.
std::optional<std::string> FindDefaultSystem(std::string_view text) {
  for (const std::string_view line_end : {"\\n", "\n"}) {
    const std::string opening = "<|im_start|>system" + std::string(line_end);
    for (size_t at = text.find(opening); at != std::string_view::npos;
         at = text.find(opening, at + 1)) {
      const auto content = Between(text.substr(at), opening, "<|im_end|>");
      if (content.has_value() && !HasAny(*content, {"'", "\"", "{", "}"})) {
        return Unescape(*content);
      }
    }
  }
  return std::nullopt;
}

// Whether message contents pass through Jinja's trim filter or Python's strip.
bool TrimsContents(std::string_view text) {
  std::string compact;
  std::copy_if(text.begin(), text.end(), std::back_inserter(compact),
               [](char c) { return c != ' ' && c != '\n'; });
  return HasAny(compact, {"content']|trim", "content\"]|trim", "content|trim", "content'].strip()",
                          "content\"].strip()", "content.strip()"});
}

ChatFormat ChatMl(std::string_view text) {
  ChatFormat format;
  format.family = "ChatML";
  format.other_turn = {"<|im_start|>{role}\n", "<|im_end|>\n"};
  format.default_system = FindDefaultSystem(text);
  format.control_tokens = {"<|im_start|>", "<|im_end|>"};
  return format;
}

ChatFormat Llama3(std::string_view text) {
  ChatFormat format;
  format.family = "Llama 3";
  format.other_turn = {"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"};
  format.control_tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  // From 3.1 on every conversation has a system message that begins with two dates. The second is
  // today's where the template can ask for it; here it is the one that the template falls back to,
  // since the same messages must always give the same tokens.
  if (Has(text, "Cutting Knowledge Date: December 2023")) {
    const auto date = Between(text, "date_string = \"", "\"");
    format.default_system = "";
    format.system_preface = "Cutting Knowledge Date: December 2023\nToday Date: " +
                            std::string(date.value_or("26 Jul 2024")) + "\n\n";
  }
  return format;
}

ChatFormat Gemma(std::string_view text) {
  ChatFormat format;
  format.family = "Gemma";
  format.turns["user"] = {"<start_of_turn>user\n", "<end_of_turn>\n"};
  format.turns["assistant"] = {"<start_of_turn>model\n", "<end_of_turn>\n"};
  format.control_tokens = {"<start_of_turn>", "<end_of_turn>"};
  const bool refuses = Has(text, "System role not supported") || !Has(text, "system");
  format.system_place = refuses ? SystemPlace::kNowhere : SystemPlace::kUserTurn;
  return format;
}

ChatFormat Mistral(std::string_view text) {
  ChatFormat format;
  format.family = "Mistral";
  format.turns["user"] = {Has(text, "[INST] ") ? "[INST] " : "[INST]",
                          Has(text, " [/INST]") ? " [/INST]" : "[/INST]"};
  const bool spaced = HasAny(text, {"eos_token + ' '", "eos_token+' '", "eos_token + \" \""});
  format.turns["assistant"] = {"", spaced ? "{eos} " : "{eos}"};
  format.optional_control_tokens = {"[INST]", "[/INST]"};
  if (Has(text, "[SYSTEM_PROMPT]")) {
    format.turns["system"] = {
        Has(text, "[SYSTEM_PROMPT] ") ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"};
    format.control_tokens = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"};
  } else {
    format.system_place = Has(text, "system") ? SystemPlace::kUserTurn : SystemPlace::kNowhere;
  }
  return format;
}

// Zephyr and Phi-3: a turn opens with its role as a tag on a line of its own.
ChatFormat Tagged(std::string_view text, std::string family, const std::string& end) {
  ChatFormat format;
  format.family = std::move(family);
  for (const std::string role : {"system", "user", "assistant"}) {
    const std::string tag = "<|" + role + "|>";
    if (!Has(text, tag)) continue;
    format.turns[role] = {tag + "\n", end + "\n"};
    format.optional_control_tokens.push_back(tag);
  }
  if (!format.turns.contains("system")) format.system_place = SystemPlace::kNowhere;
  return format;
}

std::optional<ChatFormat> DetectFamily(std::string_view text) {
  if (Has(text, "<|im_start|>")) {
    if (Has(text, "<|im_sep|>")) return std::nullopt;  // Phi-4 has another header
    return ChatMl(text);
  }
  if (Has(text, "<|start_header_id|>")) return Llama3(text);
  if (Has(text, "<start_of_turn>")) return Gemma(text);
  if (Has(text, "[INST]")) {
    if (Has(text, "<<SYS>>")) return std::nullopt;  // Llama 2 repeats bos in every turn
    return Mistral(text);
  }
  if (Has(text, "<|user|>") && Has(text, "<|assistant|>")) {
    if (Has(text, "<|end|>")) {
      ChatFormat format = Tagged(text, "Phi-3", "<|end|>");
      format.control_tokens = {"<|end|>"};
      return format;
    }
    if (Has(text, "eos_token")) return Tagged(text, "Zephyr", "{eos}");
  }
  return std::nullopt;
}

}  // namespace

std::optional<ChatTurn> ChatFormat::TurnOf(std::string_view role) const {
  if (role == "system" && system_place == SystemPlace::kNowhere) return std::nullopt;
  if (const auto turn = turns.find(role); turn != turns.end()) return turn->second;
  if (!other_turn.has_value() || std::ranges::find(kRoles, role) == kRoles.end()) {
    return std::nullopt;
  }
  ChatTurn turn = *other_turn;
  turn.header.replace(turn.header.find(kRolePlaceholder), kRolePlaceholder.size(), role);
  return turn;
}

std::vector<std::string_view> ChatFormat::Roles() const {
  std::vector<std::string_view> roles;
  for (const std::string_view role : kRoles) {
    const bool joins_user = role == "system" && system_place == SystemPlace::kUserTurn;
    if (joins_user || TurnOf(role).has_value()) roles.push_back(role);
  }
  return roles;
}

std::optional<ChatFormat> DetectChatFormat(std::string_view template_text) {
  std::optional<ChatFormat> format = DetectFamily(template_text);
  if (!format.has_value()) return std::nullopt;
  format->starts_with_bos = HasAny(template_text, {"bos_token", "<|begin_of_text|>"});
  format->trims_contents = TrimsContents(template_text);
  return format;
}

}  // namespace cairn
