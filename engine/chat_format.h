// The shape of a chat template as a value, and how it is recognised in the Jinja text that model
// files carry. Cairn does not run Jinja: templates in the field come in a few families, and inside
// a family they differ in a handful of properties that the text gives away.
//
// A literal is text that the template itself writes. It contains control tokens by their spelling,
// and "{eos}" for the model's own end of text. Pure functions.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Whoever else is named is a mistake, though many a template would write any name into a header.
inline constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};

struct ChatTurn {
  std::string header, footer;  // literals around the content
};

enum class SystemPlace {
  kOwnTurn,   // like any other message
  kUserTurn,  // in front of the content of the user message that follows, and an empty line
  kNowhere,   // the template refuses it
};

struct ChatFormat {
  std::string family;
  bool starts_with_bos = false;

  // By role. One of kRoles that is not there has `other_turn`, whose header names it "{role}"; if
  // that is not there either, the template does not render the role.
  std::map<std::string, ChatTurn, std::less<>> turns;
  std::optional<ChatTurn> other_turn;
  SystemPlace system_place = SystemPlace::kOwnTurn;

  // The content of the system message that a conversation without one begins with.
  std::optional<std::string> default_system;
  // Text in front of the content of a conversation's first system message.
  std::string system_preface;

  bool trims_contents = false;  // white space at both ends of a content is dropped

  // Spellings in literals. Those of `control_tokens` must be special tokens of the vocabulary;
  // those of `optional_control_tokens` are plain text where they are not.
  std::vector<std::string> control_tokens;
  std::vector<std::string> optional_control_tokens;

  // None if a message of this role is not rendered.
  std::optional<ChatTurn> TurnOf(std::string_view role) const;
  // Those that messages may have, in the order of kRoles.
  std::vector<std::string_view> Roles() const;
};

// None for a template of no known family.
std::optional<ChatFormat> DetectChatFormat(std::string_view template_text);

}  // namespace cairn
