#include "engine/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "engine/byte_alphabet.h"
#include "engine/utf8.h"

namespace cairn {
namespace {

constexpr size_t kTextBytesMax = INT32_MAX;  // what BytePairMerger takes as one piece
constexpr size_t kTokensMax = INT32_MAX;

// Control tokens that end a turn or a text in the families that engine/chat_template.h knows. Files
// often name only one of a model's end tokens as eos.
constexpr std::string_view kEndTokens[] = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>",    "<|end|>",         "<end_of_turn>",
    "</s>",       "<eos>",      "<|endoftext|>", "<|end_of_text|>",
};

bool IsEndToken(std::string_view text) {
  return std::find(std::begin(kEndTokens), std::end(kEndTokens), text) != std::end(kEndTokens);
}

std::string Quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

Status BadEntry(std::string_view array, size_t index, const std::string& why) {
  return InvalidArgument("tokenizer.ggml." + std::string(array) + "[" + std::to_string(index) +
                         "]: " + why);
}

Status CheckId(std::string_view key, std::optional<uint32_t> id, size_t size) {
  if (!id.has_value() || *id < size) return Status();
  return InvalidArgument("tokenizer.ggml." + std::string(key) + ": expected an id below " +
                         std::to_string(size) + ", found " + std::to_string(*id));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(const Vocabulary& vocabulary) {
  if (vocabulary.model != "gpt2") {
    return Status(Code::kUnimplemented,
                  "tokenizer.ggml.model: expected \"gpt2\" (byte-level BPE), found " +
                      Quoted(vocabulary.model));
  }
  ASSIGN_OR_RETURN(auto pre_tokenizer, PreTokenizer::Create(vocabulary.pre));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(vocabulary, std::move(pre_tokenizer)));
  NormalIds normal_ids;
  RETURN_IF_ERROR(tokenizer->AddTokens(vocabulary, normal_ids));
  RETURN_IF_ERROR(tokenizer->AddMerges(vocabulary, normal_ids));
  RETURN_IF_ERROR(tokenizer->SetEnds(vocabulary));
  return tokenizer;
}

Tokenizer::Tokenizer(const Vocabulary& vocabulary,
                     std::unique_ptr<const PreTokenizer> pre_tokenizer)
    : pre_tokenizer_(std::move(pre_tokenizer)), add_bos_(vocabulary.add_bos) {}

Status Tokenizer::AddTokens(const Vocabulary& vocabulary, NormalIds& normal_ids) {
  const size_t count = vocabulary.tokens.size();
  if (count == 0 || count > kTokensMax) {
    return InvalidArgument("tokenizer.ggml.tokens: expected 1 to 2^31 - 1 tokens, found " +
                           std::to_string(count));
  }
  if (!vocabulary.types.empty() && vocabulary.types.size() != count) {
    return InvalidArgument("tokenizer.ggml.token_type: expected " + std::to_string(count) +
                           " entries as in tokens, found " +
                           std::to_string(vocabulary.types.size()));
  }
  for (uint32_t id = 0; id < count; ++id) {
    const std::string& text = vocabulary.tokens[id];
    int32_t type = vocabulary.types.empty() ? kTokenNormal : vocabulary.types[id];
    if (FindInvalidUtf8(text).has_value()) return BadEntry("tokens", id, "is not valid UTF-8");
    if (type < kTokenNormal || type > kTokenUnused) {
      return BadEntry("token_type", id, "expected 1 to 5, found " + std::to_string(type));
    }
    // Some files call the end of a turn user-defined, which would show it to the user.
    if (type == kTokenUserDefined && IsEndToken(text)) type = kTokenControl;
    types_.push_back(static_cast<TokenType>(type));
    if (type == kTokenNormal) {
      if (const auto [other, is_new] = normal_ids.emplace(text, id); !is_new) {
        return BadEntry("tokens", id,
                        "is " + Quoted(text) + " like token " + std::to_string(other->second));
      }
      bytes_ += BytesOfSpelling(text).value_or(text);
    } else if (type == kTokenUserDefined) {
      bytes_ += text;
    }
    if (type == kTokenUserDefined || type == kTokenControl) special_ids_.emplace(text, id);
    bytes_end_.push_back(bytes_.size());
  }
  for (uint32_t id = 0; id < count; ++id) {
    longest_token_bytes_ = std::max(longest_token_bytes_, TokenBytes(id).size());
    if (pre_tokenizer_->whole_pieces_first() && types_[id] == kTokenNormal) {
      whole_pieces_.emplace(TokenBytes(id), id);
    }
  }
  return Status();
}

Status Tokenizer::AddMerges(const Vocabulary& vocabulary, const NormalIds& normal_ids) {
  const auto find = [&](std::string_view text) {
    const auto found = normal_ids.find(text);
    return found == normal_ids.end() ? BytePairMerger::kNoToken : found->second;
  };
  std::array<uint32_t, 256> byte_tokens;
  for (uint32_t byte = 0; byte < byte_tokens.size(); ++byte) {
    byte_tokens[byte] = find(SpellByte(static_cast<uint8_t>(byte)));
  }
  merger_.emplace(byte_tokens, vocabulary.merges.size());
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) {
    const std::string_view merge = vocabulary.merges[i];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos) {
      return BadEntry("merges", i, "expected two tokens and a space, found " + Quoted(merge));
    }
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    const std::string merged = std::string(left) + std::string(right);
    for (const std::string_view part : {left, right, std::string_view(merged)}) {
      if (find(part) == BytePairMerger::kNoToken) {
        return BadEntry("merges", i, Quoted(part) + " is not a normal token");
      }
    }
    merger_->Add(find(left), find(right), find(merged));
  }
  return Status();
}

Status Tokenizer::SetEnds(const Vocabulary& vocabulary) {
  RETURN_IF_ERROR(CheckId("bos_token_id", vocabulary.bos, size()));
  RETURN_IF_ERROR(CheckId("eos_token_id", vocabulary.eos, size()));
  RETURN_IF_ERROR(CheckId("eot_token_id", vocabulary.eot, size()));
  bos_ = vocabulary.bos;
  eos_ = vocabulary.eos;
  for (const std::optional<uint32_t> id : {vocabulary.eos, vocabulary.eot}) {
    if (id.has_value()) end_ids_.push_back(*id);
  }
  for (const auto& [text, id] : special_ids_) {
    if (IsEndToken(text)) end_ids_.push_back(id);
  }
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
  return Status();
}

Result<std::vector<uint32_t>> Tokenizer::Encode(std::string_view text) const {
  if (text.size() > kTextBytesMax) {
    return InvalidArgument("text: expected less than 2 GiB, found " + std::to_string(text.size()) +
                           " bytes");
  }
  if (const std::optional<size_t> offset = FindInvalidUtf8(text); offset.has_value()) {
    return InvalidArgument("text: invalid UTF-8 at byte " + std::to_string(*offset));
  }
  std::vector<uint32_t> tokens;
  tokens.reserve(text.size() / 4);
  PreTokenizer::Pieces pieces(*pre_tokenizer_, text);
  while (const std::optional<std::string_view> piece = pieces.Next()) {
    if (const auto whole = whole_pieces_.find(*piece); whole != whole_pieces_.end()) {
      tokens.push_back(whole->second);
    } else {
      merger_->Encode(*piece, tokens);
    }
  }
  return tokens;
}

std::string_view Tokenizer::TokenBytes(uint32_t id) const {
  CHECK(id < size());
  const size_t begin = id == 0 ? 0 : bytes_end_[id - 1];
  return std::string_view(bytes_).substr(begin, bytes_end_[id] - begin);
}

bool Tokenizer::IsControl(uint32_t id) const {
  CHECK(id < size());
  return types_[id] != kTokenNormal && types_[id] != kTokenUserDefined;
}

bool Tokenizer::IsEnd(uint32_t id) const {
  return std::binary_search(end_ids_.begin(), end_ids_.end(), id);
}

std::optional<uint32_t> Tokenizer::FindSpecial(std::string_view text) const {
  const auto found = special_ids_.find(std::string(text));
  if (found == special_ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace cairn
