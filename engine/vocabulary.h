// What a model file says about text: the tokens, how they merge, and which of them are special.
// Token strings of a "gpt2" vocabulary spell bytes in the byte-level alphabet
// (engine/byte_alphabet.h); those of control and user-defined tokens are the text itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace cairn {

class GgufFile;

// Values of GGUF's tokenizer.ggml.token_type.
enum TokenType : int32_t {
  kTokenNormal = 1,
  kTokenUnknown = 2,
  kTokenControl = 3,
  kTokenUserDefined = 4,
  kTokenUnused = 5,
  kTokenByte = 6,
};

struct Vocabulary {
  std::vector<std::string> tokens;  // index = token id
  std::vector<int32_t> types;       // TokenType of each; empty: all normal
  std::vector<std::string> merges;  // "left right", the first merge has the lowest rank
  std::string model;                // "gpt2": byte-level BPE
  std::string pre;                  // how text is cut before merging: "smollm", "llama-bpe", ...
  std::optional<uint32_t> bos;
  std::optional<uint32_t> eos;  // ends a text
  std::optional<uint32_t> eot;  // ends a turn
  bool add_bos = false;         // a plain prompt starts with bos
  std::string chat_template;    // Jinja; empty if the file has none
};

// The tokenizer.* metadata of `file`. kInvalidArgument if an entry is of the wrong kind, if
// tokens, types and merges do not fit in number, or if a special token's id is out of range;
// kNotFound if the model or the tokens are missing. Tokenizer::Create checks the rest.
Result<Vocabulary> ReadVocabulary(const GgufFile& file);

}  // namespace cairn
