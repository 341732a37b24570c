// Runs the tokenizer of a model file for tests in other languages.
//
//   tokenize_tool MODEL.gguf [KEY=VALUE ...]
//
// changes the file's vocabulary: pre=NAME, special=TEXT (adds a control token), bos=TEXT, eos=TEXT,
// template_file=PATH. Then it answers frames on stdin, one by one, with frames on stdout. A frame
// is a 32-bit little-endian byte count and that many bytes; the first byte of a request says what
// is asked, that of an answer is 0 before a result and 1 before the text of an error.
//
//   'E' text               ids                Encode
//   'D' ids                text               one Push per token, and Flush
//   'S' prompt messages    ids                RenderStart; prompt is a byte, 0 or 1
//   'N' prompt messages    ids                RenderNext
//   'C' ids                ids                Closing
//
// ids are 32-bit little-endian; messages are frames of role and content in turn.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/chat_template.h"
#include "engine/detokenizer.h"
#include "engine/gguf_file.h"
#include "engine/tokenizer.h"
#include "engine/vocabulary.h"

namespace cairn {
namespace {

struct Tool {
  std::unique_ptr<Tokenizer> tokenizer;
  Result<std::unique_ptr<ChatTemplate>> chat_template;
};

std::optional<std::string> ReadFrame() {
  uint32_t size;
  if (std::fread(&size, sizeof size, 1, stdin) != 1) return std::nullopt;
  std::string bytes(size, '\0');
  CHECK(std::fread(bytes.data(), 1, size, stdin) == size);
  return bytes;
}

void WriteFrame(char kind, std::string_view bytes) {
  const uint32_t size = static_cast<uint32_t>(bytes.size() + 1);
  std::fwrite(&size, sizeof size, 1, stdout);
  std::fputc(kind, stdout);
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fflush(stdout);
}

std::string BytesOfIds(const std::vector<uint32_t>& ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint32_t));
}

std::vector<uint32_t> IdsOfBytes(std::string_view bytes) {
  std::vector<uint32_t> ids(bytes.size() / sizeof(uint32_t));
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(uint32_t));
  return ids;
}

std::vector<ChatMessage> MessagesOfBytes(std::string_view bytes) {
  std::vector<ChatMessage> messages;
  const auto take = [&] {
    uint32_t size;
    std::memcpy(&size, bytes.data(), sizeof size);
    std::string field(bytes.substr(sizeof size, size));
    bytes.remove_prefix(sizeof size + size);
    return field;
  };
  while (!bytes.empty()) {
    std::string role = take();
    messages.push_back({std::move(role), take()});
  }
  return messages;
}

uint32_t IdOf(const Vocabulary& vocabulary, std::string_view text) {
  for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id] == text) return id;
  }
  CHECK(false);  // the caller names a token of the vocabulary
}

void Change(Vocabulary& vocabulary, std::string_view change) {
  const size_t equals = change.find('=');
  const std::string_view key = change.substr(0, equals);
  const std::string value(change.substr(equals + 1));
  if (key == "pre") {
    vocabulary.pre = value;
  } else if (key == "special") {
    vocabulary.tokens.push_back(value);
    vocabulary.types.push_back(kTokenControl);
  } else if (key == "bos") {
    vocabulary.bos = IdOf(vocabulary, value);
  } else if (key == "eos") {
    vocabulary.eos = IdOf(vocabulary, value);
  } else if (key == "template_file") {
    std::ifstream file(value, std::ios::binary);
    vocabulary.chat_template.assign(std::istreambuf_iterator<char>(file), {});
  } else {
    CHECK(false);
  }
}

Result<Tool> MakeTool(const std::string& path, std::span<char* const> changes) {
  ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(*file));
  for (const char* change : changes) Change(vocabulary, change);
  ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Create(vocabulary));
  auto chat_template = ChatTemplate::Detect(vocabulary.chat_template, *tokenizer);
  return Tool{std::move(tokenizer), std::move(chat_template)};
}

std::string DetokenizeOneByOne(const Tokenizer& tokenizer, std::span<const uint32_t> ids) {
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const uint32_t id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

Result<std::string> Answer(const Tool& tool, std::string_view request) {
  const char kind = request[0];
  request.remove_prefix(1);
  if (kind == 'E') {
    ASSIGN_OR_RETURN(const auto ids, tool.tokenizer->Encode(request));
    return BytesOfIds(ids);
  }
  if (kind == 'D') return DetokenizeOneByOne(*tool.tokenizer, IdsOfBytes(request));
  RETURN_IF_ERROR(tool.chat_template.status());
  const ChatTemplate& chat_template = **tool.chat_template;
  if (kind == 'C') return BytesOfIds(chat_template.Closing(IdsOfBytes(request)));
  CHECK(kind == 'S' || kind == 'N');
  const bool prompt = request[0] == 1;
  const std::vector<ChatMessage> messages = MessagesOfBytes(request.substr(1));
  ASSIGN_OR_RETURN(const auto ids, kind == 'S' ? chat_template.RenderStart(messages, prompt)
                                               : chat_template.RenderNext(messages, prompt));
  return BytesOfIds(ids);
}

int Main(std::span<char* const> arguments) {
  const Result<Tool> tool = MakeTool(arguments[1], arguments.subspan(2));
  if (!tool.ok()) {
    std::fprintf(stderr, "tokenize_tool: %s\n", tool.status().ToString().c_str());
    return 1;
  }
  while (const std::optional<std::string> request = ReadFrame()) {
    const Result<std::string> answer = Answer(*tool, *request);
    WriteFrame(answer.ok() ? 0 : 1, answer.ok() ? *answer : answer.status().ToString());
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: tokenize_tool MODEL.gguf [KEY=VALUE ...]\n");
    return 1;
  }
  return cairn::Main(std::span(argv, argc));
}
