#include "engine/vocabulary.h"

#include <string_view>

#include "engine/gguf_file.h"

namespace cairn {
namespace {

// The id under `key`, which may be absent.
Result<std::optional<uint32_t>> ReadId(const GgufFile& file, const std::string& key,
                                       size_t token_count) {
  if (!file.Has(key)) return std::optional<uint32_t>();
  ASSIGN_OR_RETURN(const uint32_t id, file.GetU32(key));
  if (id >= token_count) {
    return InvalidArgument(file.name() + ": " + key + ": expected an id below " +
                           std::to_string(token_count) + ", found " + std::to_string(id));
  }
  return std::optional<uint32_t>(id);
}

std::vector<std::string> ToStrings(const std::vector<std::string_view>& views) {
  return std::vector<std::string>(views.begin(), views.end());
}

}  // namespace

Result<Vocabulary> ReadVocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  ASSIGN_OR_RETURN(vocabulary.model, file.GetString("tokenizer.ggml.model"));
  ASSIGN_OR_RETURN(vocabulary.pre, file.GetString("tokenizer.ggml.pre", ""));
  ASSIGN_OR_RETURN(const auto tokens, file.GetStrings("tokenizer.ggml.tokens"));
  vocabulary.tokens = ToStrings(tokens);
  if (file.Has("tokenizer.ggml.token_type")) {
    ASSIGN_OR_RETURN(vocabulary.types, file.GetI32s("tokenizer.ggml.token_type"));
    if (vocabulary.types.size() != tokens.size()) {
      return InvalidArgument(file.name() + ": tokenizer.ggml.token_type: expected " +
                             std::to_string(tokens.size()) + " entries, found " +
                             std::to_string(vocabulary.types.size()));
    }
  }
  // A vocabulary of another kind than BPE has no merges; Tokenizer::Create says that it is foreign.
  if (file.Has("tokenizer.ggml.merges")) {
    ASSIGN_OR_RETURN(const auto merges, file.GetStrings("tokenizer.ggml.merges"));
    vocabulary.merges = ToStrings(merges);
  }
  ASSIGN_OR_RETURN(vocabulary.bos, ReadId(file, "tokenizer.ggml.bos_token_id", tokens.size()));
  ASSIGN_OR_RETURN(vocabulary.eos, ReadId(file, "tokenizer.ggml.eos_token_id", tokens.size()));
  ASSIGN_OR_RETURN(vocabulary.eot, ReadId(file, "tokenizer.ggml.eot_token_id", tokens.size()));
  // Llama 3 was trained with bos before every text, and its files tend not to mention it.
  const bool is_llama3 = vocabulary.pre == "llama-bpe";
  ASSIGN_OR_RETURN(vocabulary.add_bos, file.GetBool("tokenizer.ggml.add_bos_token", is_llama3));
  ASSIGN_OR_RETURN(vocabulary.chat_template, file.GetString("tokenizer.chat_template", ""));
  return vocabulary;
}

}  // namespace cairn
