#include "engine/detokenizer.h"

#include "base/check.h"
#include "engine/utf8.h"

namespace cairn {
namespace {

constexpr size_t kPendingBytesMax = 3;

// Moves whole characters, and U+FFFD for what can be none, from `bytes` to the result; an
// incomplete character at the end stays in `bytes`.
std::string TakeText(std::string& bytes) {
  std::string text;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Utf8Unit unit = NextUtf8Unit(rest);
    if (unit.kind == Utf8Kind::kIncomplete) break;
    text += unit.kind == Utf8Kind::kCharacter ? rest.substr(0, unit.length) : kReplacementCharacter;
    rest.remove_prefix(unit.length);
  }
  bytes.erase(0, bytes.size() - rest.size());
  return text;
}

}  // namespace

void Detokenizer::Prime(std::span<const uint32_t> earlier) {
  CHECK(pending_.empty());
  // A character that is still incomplete began at most 3 bytes ago, with a byte that can begin
  // nothing but a character: where the reading before it starts makes no difference.
  size_t first = earlier.size();
  for (size_t bytes = 0; first > 0 && bytes < kPendingBytesMax; --first) {
    bytes += tokenizer_->TokenBytes(earlier[first - 1]).size();
  }
  for (const uint32_t token : earlier.subspan(first)) Push(token);
}

std::string Detokenizer::PushBytes(std::string_view bytes) {
  pending_ += bytes;
  std::string text = TakeText(pending_);
  CHECK(pending_.size() <= kPendingBytesMax);
  return text;
}

std::string Detokenizer::Flush() {
  const bool dangling = !pending_.empty();
  pending_.clear();
  return dangling ? std::string(kReplacementCharacter) : std::string();
}

std::string Detokenize(const Tokenizer& tokenizer, std::span<const uint32_t> tokens) {
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const uint32_t token : tokens) text += detokenizer.Push(token);
  return text + detokenizer.Flush();
}

}  // namespace cairn
