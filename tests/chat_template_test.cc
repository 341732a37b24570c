// Chat templates, case by case. tests/chat_template_oracle_test.py compares random conversations
// with what Jinja makes of the templates.
#include "engine/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/chat_format.h"
#include "engine/tokenizer.h"
#include "tests/fakes/tiny_vocabulary.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::vector<uint32_t> Text(const Tokenizer& tokenizer, std::string_view text) {
  return *tokenizer.Encode(text);
}

std::vector<uint32_t> Join(const std::vector<std::vector<uint32_t>>& parts) {
  std::vector<uint32_t> ids;
  for (const auto& part : parts) ids.insert(ids.end(), part.begin(), part.end());
  return ids;
}

TEST(ChatFormat, FindsADefaultSystemMessage) {
  const auto default_system = [](std::string_view text) {
    return DetectChatFormat(text)->default_system;
  };
  EXPECT_EQ(default_system(kChatMl), std::nullopt);
  EXPECT_EQ(default_system("{{ '<|im_start|>system\\nBe brief.\\nBe kind.<|im_end|>\\n' }}"),
            "Be brief.\nBe kind.");
  EXPECT_EQ(
      default_system("{{- '<|im_start|>system\\n' + messages[0]['content'] + "
                     "'<|im_end|>\\n' }}{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}"),
      "You help.");
}

TEST(ChatFormat, KnowsAFamilyByItsTokens) {
  const auto family = [](std::string_view text) {
    const auto format = DetectChatFormat(text);
    return format.has_value() ? format->family : "none";
  };
  EXPECT_EQ(family(kChatMl), "ChatML");
  EXPECT_EQ(family("'<|start_header_id|>' + role + '<|end_header_id|>'"), "Llama 3");
  EXPECT_EQ(family("'<start_of_turn>' + role"), "Gemma");
  EXPECT_EQ(family("'[INST] ' + content + ' [/INST]'"), "Mistral");
  EXPECT_EQ(family("'<|user|>\\n' + content + eos_token '<|assistant|>'"), "Zephyr");
  EXPECT_EQ(family("'<|user|>\\n' + content + '<|end|>' '<|assistant|>'"), "Phi-3");
  EXPECT_EQ(family(""), "none");
  EXPECT_EQ(family("{{ messages }}"), "none");
  EXPECT_EQ(family("'<|im_start|>user<|im_sep|>'"), "none");      // Phi-4
  EXPECT_EQ(family("'<s>[INST] <<SYS>>\\n' + content"), "none");  // Llama 2
  EXPECT_EQ(family("'<|user|>' + content + '<|assistant|>'"), "none");
}

TEST(ChatFormat, RolesAreThoseOfTheApiThatTheTemplateRenders) {
  const auto format = DetectChatFormat(kChatMl);
  EXPECT_EQ(format->TurnOf("tool")->header, "<|im_start|>tool\n");
  EXPECT_THAT(format->Roles(), ElementsAre("system", "user", "assistant", "tool"));
  for (const char* role : {"", "robot", "User", "user ", "a\nb", "<|im_end|>"}) {
    EXPECT_FALSE(format->TurnOf(role).has_value()) << role;
  }
  const auto roles = [](const char* text) { return DetectChatFormat(text)->Roles(); };
  EXPECT_THAT(roles("<start_of_turn> system"), ElementsAre("system", "user", "assistant"));
  EXPECT_THAT(roles("[INST] content [/INST]"), ElementsAre("user", "assistant"));
}

class ChatMlTest : public testing::Test {
 protected:
  ChatMlTest() {
    auto chat_template = ChatTemplate::Detect(kChatMl, *tokenizer_);
    EXPECT_TRUE(chat_template.ok());
    template_ = *std::move(chat_template);
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Create(TinyVocabulary());
  std::unique_ptr<ChatTemplate> template_;
};

TEST_F(ChatMlTest, PlacesControlTokensAndKeepsContentPlain) {
  const ChatMessage messages[] = {{"system", "hello"}, {"user", "<|im_end|>\n<|im_start|>"}};
  const auto expected = Join({{kTinyImStart},
                              Text(*tokenizer_, "system\nhello"),
                              {kTinyImEnd},
                              Text(*tokenizer_, "\n"),
                              {kTinyImStart},
                              Text(*tokenizer_, "user\n<|im_end|>\n<|im_start|>"),
                              {kTinyImEnd},
                              Text(*tokenizer_, "\n"),
                              {kTinyImStart},
                              Text(*tokenizer_, "assistant\n")});
  EXPECT_EQ(*template_->RenderStart(messages, true), expected);
  EXPECT_EQ(*template_->RenderNext(messages, true), expected);
}

TEST_F(ChatMlTest, EncodesAnAssistantsContentOnItsOwn) {
  // Two line feeds would merge; the model writes its own one after the prompt's.
  const ChatMessage answer[] = {{"assistant", "\nhello"}};
  EXPECT_EQ(*template_->RenderNext(answer, false), Join({{kTinyImStart},
                                                         Text(*tokenizer_, "assistant\n"),
                                                         Text(*tokenizer_, "\nhello"),
                                                         {kTinyImEnd},
                                                         Text(*tokenizer_, "\n")}));
  const ChatMessage question[] = {{"user", "\nhello"}};
  EXPECT_EQ(*template_->RenderNext(question, false), Join({{kTinyImStart},
                                                           Text(*tokenizer_, "user\n\nhello"),
                                                           {kTinyImEnd},
                                                           Text(*tokenizer_, "\n")}));
}

TEST_F(ChatMlTest, ClosesWhatIsOpen) {
  const uint32_t line_feed = TinyByte('\n');
  const ChatMessage question[] = {{"user", "hello"}};
  std::vector<uint32_t> session = *template_->RenderStart(question, true);
  EXPECT_THAT(template_->Closing({}), IsEmpty());
  EXPECT_THAT(template_->Closing(session), ElementsAre(kTinyImEnd, line_feed));
  session.push_back(TinyByte('a'));
  EXPECT_THAT(template_->Closing(session), ElementsAre(kTinyImEnd, line_feed));
  session.push_back(kTinyEndOfText);  // structures no turn
  EXPECT_THAT(template_->Closing(session), ElementsAre(kTinyImEnd, line_feed));
  session.push_back(kTinyImEnd);
  EXPECT_THAT(template_->Closing(session), ElementsAre(line_feed));
  session.push_back(line_feed);
  EXPECT_THAT(template_->Closing(session), IsEmpty());
  EXPECT_THAT(template_->Closing(*template_->RenderStart(question, false)), IsEmpty());
  EXPECT_THAT(template_->Closing(Text(*tokenizer_, "no chat")), IsEmpty());
}

TEST_F(ChatMlTest, NamesTheFieldAtFault) {
  const ChatMessage bad_role[] = {{"user", "a"}, {"robot", "b"}};
  Status status = template_->RenderNext(bad_role, true).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.field(), "content.chat.messages[1].role");
  EXPECT_EQ(status.message(),
            "content.chat.messages[1].role: must be one of system, user, assistant, tool in the "
            "model's ChatML template, is 'robot'");

  const ChatMessage bad_content[] = {{"user", "a\xFF"}};
  status = template_->RenderStart(bad_content, true).status();
  EXPECT_EQ(status.field(), "content.chat.messages[0].content");
  EXPECT_EQ(status.message(), "content.chat.messages[0].content: invalid UTF-8 at byte 1");

  status = template_->RenderStart({}, true).status();
  EXPECT_EQ(status.field(), "content.chat.messages");
  EXPECT_EQ(*template_->RenderNext({}, true),
            Join({{kTinyImStart}, Text(*tokenizer_, "assistant\n")}));
}

TEST(ChatTemplate, SaysWhyThereIsNone) {
  const auto tokenizer = *Tokenizer::Create(TinyVocabulary());
  const auto error = [&](const std::string& text) {
    const Status status = ChatTemplate::Detect(text, *tokenizer).status();
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    return status.message();
  };
  EXPECT_EQ(error(""),
            "chat content needs a chat template: the model has none; send text or tokens instead");
  EXPECT_EQ(error("{{ messages }}"),
            "chat content needs a chat template: the model's is none of ChatML, Llama 3, Gemma, "
            "Mistral, Zephyr and Phi-3; send text or tokens instead");
  EXPECT_EQ(error("<start_of_turn>"),
            "chat content needs a chat template: the model's uses <start_of_turn>, which its "
            "vocabulary lacks; send text or tokens instead");
}

TEST(ChatTemplate, ASystemMessageJoinsTheUsersWhereTheTemplateSaysSo) {
  const auto tokenizer =
      *Tokenizer::Create(TinyVocabulary("smollm", {"<start_of_turn>", "<end_of_turn>"}));
  const auto chat_template = *ChatTemplate::Detect(
      "{{ bos_token }}{% if role == 'system' %}...<start_of_turn>", *tokenizer);
  const uint32_t start = *tokenizer->FindSpecial("<start_of_turn>");
  const uint32_t end = *tokenizer->FindSpecial("<end_of_turn>");
  const ChatMessage messages[] = {{"system", "hello"}, {"user", "aa"}};
  EXPECT_EQ(*chat_template->RenderStart(messages, true),
            Join({{kTinyImStart, start},  // the bos of this vocabulary
                  Text(*tokenizer, "user\nhello\n\naa"),
                  {end},
                  Text(*tokenizer, "\n"),
                  {start},
                  Text(*tokenizer, "model\n")}));
  const ChatMessage alone[] = {{"user", "aa"}, {"system", "hello"}};
  EXPECT_EQ(chat_template->RenderNext(alone, true).status().field(),
            "content.chat.messages[1].role");
}

TEST(ChatTemplate, RefusesASystemMessageWhereTheTemplateDoes) {
  const auto tokenizer = *Tokenizer::Create(TinyVocabulary());
  const auto chat_template =
      *ChatTemplate::Detect("'[INST] ' + content + ' [/INST]' + eos_token", *tokenizer);
  const ChatMessage messages[] = {{"system", "hello"}, {"user", "aa"}};
  EXPECT_EQ(chat_template->RenderStart(messages, true).status().message(),
            "content.chat.messages[0].role: must be one of user, assistant in the model's Mistral "
            "template, is 'system'");
}

TEST(ChatTemplate, OnlyWhatOpensAnAnswerIsClosed) {
  const std::vector<std::string> marks = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]",
                                          "[/INST]"};
  const auto tokenizer = *Tokenizer::Create(TinyVocabulary("smollm", marks));
  const auto chat_template = *ChatTemplate::Detect(
      "'[SYSTEM_PROMPT]' + content + '[/SYSTEM_PROMPT]' '[INST]' + content + '[/INST]' + eos_token",
      *tokenizer);
  const ChatMessage system[] = {{"system", "hello"}}, question[] = {{"user", "aa"}};
  std::vector<uint32_t> session = *chat_template->RenderStart(system, false);
  EXPECT_EQ(session, Join({{*tokenizer->FindSpecial("[SYSTEM_PROMPT]")},
                           Text(*tokenizer, "hello"),
                           {*tokenizer->FindSpecial("[/SYSTEM_PROMPT]")}}));
  EXPECT_THAT(chat_template->Closing(session), IsEmpty());
  session = Join({session, *chat_template->RenderNext(question, true)});
  EXPECT_THAT(chat_template->Closing(session), ElementsAre(kTinyImEnd));
}

// Where the template's marks are plain text, only eos shows where a turn ends.
TEST(ChatTemplate, ClosesTurnsThatPlainTextOpened) {
  const auto tokenizer = *Tokenizer::Create(TinyVocabulary());
  const auto mistral =
      *ChatTemplate::Detect("'[INST] ' + content + ' [/INST]' + eos_token", *tokenizer);
  const ChatMessage question[] = {{"user", "aa"}};
  std::vector<uint32_t> session = *mistral->RenderStart(question, true);
  EXPECT_EQ(session, Text(*tokenizer, "[INST] aa [/INST]"));
  EXPECT_THAT(mistral->Closing({}), IsEmpty());
  EXPECT_THAT(mistral->Closing(session), ElementsAre(kTinyImEnd));
  session.push_back(kTinyImEnd);
  EXPECT_THAT(mistral->Closing(session), IsEmpty());

  const auto zephyr =
      *ChatTemplate::Detect("'<|user|>\\n' + content + eos_token + '<|assistant|>\\n'", *tokenizer);
  session = *zephyr->RenderStart(question, false);
  EXPECT_THAT(zephyr->Closing(session), IsEmpty());
  session = *zephyr->RenderStart(question, true);
  EXPECT_THAT(zephyr->Closing(session), ElementsAre(kTinyImEnd, TinyByte('\n')));
  EXPECT_THAT(zephyr->Closing(Text(*tokenizer, "no chat")), IsEmpty());
}

}  // namespace
}  // namespace cairn
