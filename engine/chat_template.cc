#include "engine/chat_template.h"

#include <algorithm>

#include "base/check.h"
#include "engine/message_text.h"
#include "engine/utf8.h"

namespace cairn {
namespace {

constexpr std::string_view kEos = "{eos}";
constexpr std::string_view kSystemSeparator = "\n\n";

// What Python's str.strip, and so Jinja's trim, takes away.
bool IsPythonSpace(uint32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) || (code_point >= 0x1C && code_point <= 0x20) ||
         code_point == 0x85 || code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
         code_point == 0x3000;
}

// `text`, valid UTF-8, without white space at its ends.
std::string_view Trim(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const std::string_view unit = text.substr(at, NextUtf8Unit(text.substr(at)).length);
    if (!IsPythonSpace(DecodeUtf8(unit))) {
      begin = std::min(begin, at);
      end = at + unit.size();
    }
    at += unit.size();
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::string FieldOf(size_t index, std::string_view name) {
  return "content.chat.messages[" + std::to_string(index) + "]." + std::string(name);
}

std::string NoSuchRole(const ChatFormat& format, std::string_view role) {
  std::string roles;
  for (const std::string_view known : format.Roles()) {
    roles += (roles.empty() ? "" : ", ") + std::string(known);
  }
  return "must be one of " + roles + " in the model's " + format.family + " template, is " +
         Quoted(role);
}

Status NoTemplate(const std::string& why) {
  return FailedPrecondition("chat content needs a chat template: " + why +
                            "; send text or tokens instead");
}

}  // namespace

// Collects control tokens and the texts between them.
class ChatTemplate::Writer {
 public:
  explicit Writer(const ChatTemplate& chat_template) : template_(chat_template) {}

  // What stands before and what comes after are encoded apart.
  void Seam() { segments_.emplace_back(); }

  void Control(uint32_t id) { segments_.push_back({id, ""}); }

  void Text(std::string_view text) { segments_.back().text += text; }

  void Literal(std::string_view literal) {
    while (!literal.empty()) {
      size_t nearest = std::string_view::npos;
      const std::pair<std::string, uint32_t>* control = nullptr;
      for (const auto& candidate : template_.controls_) {
        if (const size_t at = literal.find(candidate.first); at < nearest) {
          nearest = at;
          control = &candidate;
        }
      }
      Text(literal.substr(0, nearest));
      if (control == nullptr) return;
      Control(control->second);
      literal.remove_prefix(nearest + control->first.size());
    }
  }

  Result<std::vector<uint32_t>> Finish() const {
    std::vector<uint32_t> tokens;
    for (const Segment& segment : segments_) {
      if (segment.control.has_value()) tokens.push_back(*segment.control);
      ASSIGN_OR_RETURN(const auto text, template_.tokenizer_.Encode(segment.text));
      tokens.insert(tokens.end(), text.begin(), text.end());
    }
    return tokens;
  }

 private:
  struct Segment {
    std::optional<uint32_t> control;
    std::string text;  // after the control token
  };

  const ChatTemplate& template_;
  std::vector<Segment> segments_{Segment()};
};

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Detect(const std::string& template_text,
                                                           const Tokenizer& tokenizer) {
  if (template_text.empty()) return NoTemplate("the model has none");
  std::optional<ChatFormat> format = DetectChatFormat(template_text);
  if (!format.has_value()) {
    return NoTemplate("the model's is none of ChatML, Llama 3, Gemma, Mistral, Zephyr and Phi-3");
  }
  std::unique_ptr<ChatTemplate> chat_template(new ChatTemplate(*std::move(format), tokenizer));
  RETURN_IF_ERROR(chat_template->ResolveTokens());
  return chat_template;
}

ChatTemplate::ChatTemplate(ChatFormat format, const Tokenizer& tokenizer)
    : format_(std::move(format)), tokenizer_(tokenizer) {}

Status ChatTemplate::ResolveTokens() {
  for (const std::string& spelling : format_.control_tokens) {
    const std::optional<uint32_t> id = tokenizer_.FindSpecial(spelling);
    if (!id.has_value()) {
      return NoTemplate("the model's uses " + spelling + ", which its vocabulary lacks");
    }
    controls_.emplace_back(spelling, *id);
  }
  for (const std::string& spelling : format_.optional_control_tokens) {
    const std::optional<uint32_t> id = tokenizer_.FindSpecial(spelling);
    if (id.has_value()) controls_.emplace_back(spelling, *id);
  }
  const ChatTurn assistant = *format_.TurnOf("assistant");
  const ChatTurn user = *format_.TurnOf("user");
  if (assistant.footer.starts_with(kEos)) {
    if (!tokenizer_.eos().has_value()) {
      return NoTemplate("the model's ends turns with eos, which its vocabulary lacks");
    }
    controls_.emplace_back(kEos, *tokenizer_.eos());
  }

  for (const auto& [spelling, id] : controls_) marks_.push_back(id);
  answer_follows_user_ = assistant.header.empty();
  opener_ = LastControl(answer_follows_user_ ? user.footer : assistant.header);
  Writer writer(*this);
  writer.Literal(assistant.footer);
  ASSIGN_OR_RETURN(footer_, writer.Finish());
  CHECK(!footer_.empty() && std::count(marks_.begin(), marks_.end(), footer_.front()) > 0);
  return Status();
}

std::optional<uint32_t> ChatTemplate::LastControl(std::string_view literal) const {
  std::optional<uint32_t> last;
  size_t last_end = 0;
  for (const auto& [spelling, id] : controls_) {
    const size_t at = literal.rfind(spelling);
    if (at == std::string_view::npos || at + spelling.size() <= last_end) continue;
    last = id;
    last_end = at + spelling.size();
  }
  return last;
}

Status ChatTemplate::Write(std::span<const ChatMessage> messages, bool is_start,
                           Writer& writer) const {
  std::string user_preface;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (const auto offset = FindInvalidUtf8(content); offset.has_value()) {
      return InvalidField(FieldOf(i, "content"),
                          "invalid UTF-8 at byte " + std::to_string(*offset));
    }
    if (role == "system" && format_.system_place == SystemPlace::kUserTurn) {
      if (i + 1 == messages.size() || messages[i + 1].role != "user") {
        return InvalidField(FieldOf(i, "role"), "in the model's " + format_.family +
                                                    " template, a system message needs a user "
                                                    "message right after it");
      }
      user_preface = content + std::string(kSystemSeparator);
      continue;
    }
    const std::optional<ChatTurn> turn = format_.TurnOf(role);
    if (!turn.has_value()) {
      return InvalidField(FieldOf(i, "role"), NoSuchRole(format_, role));
    }
    writer.Seam();
    writer.Literal(turn->header);
    if (role == "assistant") writer.Seam();
    if (role == "system" && is_start && i == 0) writer.Text(format_.system_preface);
    writer.Text(std::exchange(user_preface, ""));
    writer.Text(format_.trims_contents ? Trim(content) : content);
    writer.Literal(turn->footer);
  }
  return Status();
}

Result<std::vector<uint32_t>> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                   bool is_start,
                                                   bool add_generation_prompt) const {
  Writer writer(*this);
  if (is_start && format_.starts_with_bos && tokenizer_.bos().has_value()) {
    writer.Control(*tokenizer_.bos());
  }
  if (is_start && format_.default_system.has_value() && messages.front().role != "system") {
    const ChatMessage system[] = {{"system", *format_.default_system}};
    RETURN_IF_ERROR(Write(system, is_start, writer));
  }
  RETURN_IF_ERROR(Write(messages, is_start, writer));
  if (add_generation_prompt) {
    writer.Seam();
    writer.Literal(format_.TurnOf("assistant")->header);
  }
  return writer.Finish();
}

Result<std::vector<uint32_t>> ChatTemplate::RenderStart(std::span<const ChatMessage> messages,
                                                        bool add_generation_prompt) const {
  if (messages.empty()) return InvalidField("content.chat.messages", "is empty");
  return Render(messages, /*is_start=*/true, add_generation_prompt);
}

Result<std::vector<uint32_t>> ChatTemplate::RenderNext(std::span<const ChatMessage> messages,
                                                       bool add_generation_prompt) const {
  return Render(messages, /*is_start=*/false, add_generation_prompt);
}

std::vector<uint32_t> ChatTemplate::Closing(std::span<const uint32_t> session) const {
  size_t after_mark = session.size();
  while (after_mark > 0 && !IsMark(session[after_mark - 1])) --after_mark;
  const std::span<const uint32_t> rest = session.subspan(after_mark);
  if (after_mark == 0) {
    // A template without marks before an answer: all but bos is a user's turn with its answer.
    const size_t bos_count = !rest.empty() && tokenizer_.bos() == rest.front() ? 1 : 0;
    const bool is_open = answer_follows_user_ && !opener_.has_value() && rest.size() > bos_count;
    return is_open ? footer_ : std::vector<uint32_t>();
  }
  const uint32_t mark = session[after_mark - 1];
  if (mark != footer_.front()) return mark == opener_ ? footer_ : std::vector<uint32_t>();
  const std::span<const uint32_t> footer_text = std::span(footer_).subspan(1);
  if (rest.size() <= footer_text.size() &&
      std::equal(rest.begin(), rest.end(), footer_text.begin())) {
    const auto missing = footer_text.subspan(rest.size());  // often nothing
    return {missing.begin(), missing.end()};
  }
  // More text after the end of a turn: in a template that opens turns with plain text, the next
  // turn; else text that the template has not written, which is no turn.
  return opener_.has_value() ? std::vector<uint32_t>() : footer_;
}

bool ChatTemplate::IsMark(uint32_t id) const {
  return std::find(marks_.begin(), marks_.end(), id) != marks_.end();
}

}  // namespace cairn
