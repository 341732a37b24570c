// Any bytes as text: they encode, and come back from their tokens unchanged, or they are not UTF-8
// and the message says so. And any bytes as token ids: they decode to the same valid UTF-8 at once,
// piece by piece, and after a resume. The first byte of the input chooses the pre-tokenizer and the
// place of the resume.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/detokenizer.h"
#include "engine/tokenizer.h"
#include "engine/utf8.h"
#include "tests/fakes/tiny_vocabulary.h"

namespace cairn {
namespace {

void CheckText(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text);
  const auto invalid = FindInvalidUtf8(text);
  CHECK(ids.ok() == !invalid.has_value());
  if (!ids.ok()) {
    CHECK(ids.status().message() == "text: invalid UTF-8 at byte " + std::to_string(*invalid));
    return;
  }
  for (const uint32_t id : *ids) CHECK(!tokenizer.IsControl(id));
  CHECK(Detokenize(tokenizer, *ids) == text);
}

void CheckIds(const Tokenizer& tokenizer, std::string_view bytes, size_t cut) {
  std::vector<uint32_t> ids;
  for (const char byte : bytes) ids.push_back(TinyByte(static_cast<uint8_t>(byte)));
  const std::string whole = Detokenize(tokenizer, ids);
  CHECK(!FindInvalidUtf8(whole).has_value());

  Detokenizer before(tokenizer), after(tokenizer);
  after.Prime(std::span(ids).first(cut));
  std::string text;
  for (size_t i = 0; i < cut; ++i) text += before.Push(ids[i]);
  for (size_t i = cut; i < ids.size(); ++i) text += after.Push(ids[i]);
  CHECK(text + after.Flush() == whole);
}

void Run(std::string_view input) {
  static const std::unique_ptr<Tokenizer> tokenizers[] = {
      *Tokenizer::Create(TinyVocabulary("smollm")), *Tokenizer::Create(TinyVocabulary("gpt-2")),
      *Tokenizer::Create(TinyVocabulary("llama-bpe"))};
  if (input.empty()) return;
  const uint8_t choice = static_cast<uint8_t>(input.front());
  input.remove_prefix(1);
  CheckText(*tokenizers[choice % std::size(tokenizers)], input);
  CheckIds(*tokenizers[0], input, choice % (input.size() + 1));
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
