// Chat messages to token ids, in the way of the model's own chat template, for six families of
// templates that are recognised by their text (engine/chat_format.h): ChatML, Llama 3, Gemma,
// Mistral, Zephyr and Phi-3.
//
// Control tokens are placed as ids; roles and contents are encoded as plain text, so no content can
// open or close a turn. Text that the template and a message put next to each other is encoded as
// one text, as if the rendered template had been cut at its control tokens and encoded. One
// exception: an assistant's content is encoded on its own. The model writes it after the generation
// prompt, which ends in text ("<|im_start|>assistant\n"), and the session keeps the prompt's tokens
// and the model's apart; so a conversation that is rendered at once has the tokens that it has when
// it grows turn by turn:
//
//   RenderStart(m[0..k], true) + Encode(answer) + Closing(so far) + RenderNext(m[k+1..], true)
//     == RenderStart(m[0..k] + {"assistant", answer} + m[k+1..], true)
//
// (for an answer without white space at its ends, where the template trims contents.)
//
// Threads: immutable; any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/chat_format.h"
#include "engine/tokenizer.h"

namespace cairn {

struct ChatMessage {
  std::string role;     // one of kRoles that the template renders
  std::string content;  // UTF-8
};

class ChatTemplate {
 public:
  // `template_text` is the model's Jinja template. `tokenizer` must outlive the ChatTemplate.
  // kFailedPrecondition, to be the answer to chat content, if the text is empty or of no known
  // family, or if the vocabulary lacks a control token that it needs.
  static Result<std::unique_ptr<ChatTemplate>> Detect(const std::string& template_text,
                                                      const Tokenizer& tokenizer);

  // "ChatML" and so on.
  const std::string& family() const { return format_.family; }

  // The first tokens of an empty session: bos and a default system message where the template has
  // them, then the messages, then, with `add_generation_prompt`, what opens the assistant's turn.
  // kInvalidArgument, naming content.chat.messages[i].role or .content, for a role that the
  // template does not render where it stands, for invalid UTF-8, or for no messages at all. That
  // roles alternate, as some templates demand, is not required.
  Result<std::vector<uint32_t>> RenderStart(std::span<const ChatMessage> messages,
                                            bool add_generation_prompt) const;

  // The same for a session that already has tokens and no open turn: see Closing. There may be no
  // messages, only a generation prompt.
  Result<std::vector<uint32_t>> RenderNext(std::span<const ChatMessage> messages,
                                           bool add_generation_prompt) const;

  // What closes the turn that `session`, all tokens so far, has left open; empty if none is open.
  // The end token that stopped the model is not part of the session: it is in the result. Reads
  // back to the last token that opens or closes a turn.
  std::vector<uint32_t> Closing(std::span<const uint32_t> session) const;

 private:
  class Writer;

  ChatTemplate(ChatFormat format, const Tokenizer& tokenizer);
  Status ResolveTokens();
  Status Write(std::span<const ChatMessage> messages, bool is_start, Writer& writer) const;
  Result<std::vector<uint32_t>> Render(std::span<const ChatMessage> messages, bool is_start,
                                       bool add_generation_prompt) const;
  // The last control token of a literal.
  std::optional<uint32_t> LastControl(std::string_view literal) const;
  bool IsMark(uint32_t id) const;

  const ChatFormat format_;
  const Tokenizer& tokenizer_;
  std::vector<std::pair<std::string, uint32_t>> controls_;  // spelling in literals -> id

  // How a session shows whether it is inside an assistant's turn.
  std::vector<uint32_t> marks_;       // the control tokens that open or close turns
  std::vector<uint32_t> footer_;      // of an assistant's turn: the mark that ends it, then text
  std::optional<uint32_t> opener_;    // last mark before an answer; none if plain text opens turns
  bool answer_follows_user_ = false;  // there is no generation prompt
};

}  // namespace cairn
