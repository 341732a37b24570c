// The tiny models of gguf_writer.h.
#include <cmath>
#include <fstream>
#include <string>

#include "base/check.h"
#include "base/rng.h"
#include "tests/fakes/gguf_writer.h"

namespace cairn {
namespace {

constexpr char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}";

// What byte-level BPE writes for a byte (GPT-2's table): itself if it is printable Latin-1 and no
// space, else the next free code point from U+0100 on. In UTF-8.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens(256);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const uint32_t code = printable ? byte : next++;
    if (code < 0x80) {
      tokens[byte] = static_cast<char>(code);
    } else {
      tokens[byte] = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    }
  }
  return tokens;
}

// Space and a letter, two letters, three letters, four: each made of tokens before it.
void AddVocabulary(GgufWriter& writer, const TinyModelOptions& options) {
  static constexpr char kLetters[] = "etaoinshrdlucmfwypvbgkjqxz";
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), 3);  // control
  const std::vector<std::string> bytes = ByteTokens();
  tokens.insert(tokens.end(), bytes.begin(), bytes.end());
  CHECK(options.vocab >= tokens.size());
  std::vector<std::string> merges;
  const auto merge = [&](const std::string& left, const std::string& right) {
    if (tokens.size() == options.vocab) return;
    tokens.push_back(left + right);
    merges.push_back(left + " " + right);
  };
  for (int i = 0; i < 26; ++i) merge(bytes[' '], {kLetters[i]});
  for (int i = 0; i < 26 * 26; ++i) merge({kLetters[i / 26]}, {kLetters[i % 26]});
  for (int i = 0; i < 26 * 26 * 26; ++i) {
    merge({kLetters[i / 676], kLetters[i / 26 % 26]}, {kLetters[i % 26]});
  }
  for (int i = 0; i < 26 * 26 * 26 * 26; ++i) {
    merge({kLetters[i / 17576], kLetters[i / 676 % 26], kLetters[i / 26 % 26]}, {kLetters[i % 26]});
  }
  CHECK(tokens.size() == options.vocab);
  types.resize(tokens.size(), 1);  // normal
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetString("tokenizer.ggml.pre", options.pre);
  writer.SetStrings("tokenizer.ggml.tokens", tokens);
  writer.SetI32s("tokenizer.ggml.token_type", types);
  writer.SetStrings("tokenizer.ggml.merges", merges);
  writer.SetU32("tokenizer.ggml.bos_token_id", 1);
  writer.SetU32("tokenizer.ggml.eos_token_id", 2);
  writer.SetU32("tokenizer.ggml.unknown_token_id", 0);
  writer.SetU32("tokenizer.ggml.padding_token_id", 2);
  writer.SetBool("tokenizer.ggml.add_bos_token", false);
  writer.SetBool("tokenizer.ggml.add_space_prefix", false);
  writer.SetString("tokenizer.chat_template",
                   options.chat_template.empty() ? kChatMl : options.chat_template);
}

void AddConfig(GgufWriter& writer, const TinyModelOptions& options) {
  writer.SetString("general.architecture", "llama");
  writer.SetString("general.name", "Tiny");
  writer.SetU32("llama.block_count", options.layers);
  writer.SetU32("llama.context_length", options.context_length);
  writer.SetU32("llama.embedding_length", options.width);
  writer.SetU32("llama.feed_forward_length", options.ffn);
  writer.SetU32("llama.attention.head_count", options.heads);
  writer.SetU32("llama.attention.head_count_kv", options.kv_heads);
  if (options.head_dim * options.heads != options.width) {
    writer.SetU32("llama.attention.key_length", options.head_dim);
    writer.SetU32("llama.attention.value_length", options.head_dim);
  }
  writer.SetU32("llama.rope.dimension_count", options.head_dim);
  writer.SetF32("llama.rope.freq_base", options.rope_base);
  if (options.rope_linear_factor != 1) {
    writer.SetString("llama.rope.scaling.type", "linear");
    writer.SetF32("llama.rope.scaling.factor", options.rope_linear_factor);
  }
  writer.SetF32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.SetU32("llama.vocab_size", options.vocab);
}

class WeightMaker {
 public:
  WeightMaker(GgufWriter& writer, uint64_t seed, bool random_codes)
      : writer_(writer), random_codes_(random_codes), rng_(seed) {}

  void AddMatrix(const std::string& name, TensorType type, uint32_t rows, uint32_t cols) {
    const double limit = std::sqrt(3.0 / cols);
    if (random_codes_) {  // sixteen of them, evenly spread as below
      const auto scale = static_cast<float>(2 * limit / 16);
      const std::string codes = RandomCodes(type, size_t{rows} * cols, scale, rng_);
      return writer_.AddTensor(name, GgufTypeId(type), {cols, rows}, codes);
    }
    std::vector<float> values(size_t{rows} * cols);
    for (float& value : values) value = static_cast<float>((2 * rng_.Uniform() - 1) * limit);
    writer_.AddTensor(name, GgufTypeId(type), {cols, rows}, EncodeTensor(type, values));
  }

  void AddNorm(const std::string& name, uint32_t width) {
    std::vector<float> values(width);
    for (float& value : values) value = static_cast<float>(0.75 + 0.5 * rng_.Uniform());
    AddVector(name, values);
  }

  void AddVector(const std::string& name, const std::vector<float>& values) {
    writer_.AddTensor(name, GgufTypeId(TensorType::kF32), {values.size()},
                      EncodeTensor(TensorType::kF32, values));
  }

 private:
  GgufWriter& writer_;
  const bool random_codes_;
  Rng rng_;
};

}  // namespace

GgufWriter TinyModel(const TinyModelOptions& options) {
  GgufWriter writer;
  AddConfig(writer, options);
  AddVocabulary(writer, options);
  WeightMaker maker(writer, options.seed, options.random_codes);
  const uint32_t q_width = options.heads * options.head_dim;
  const uint32_t kv_width = options.kv_heads * options.head_dim;
  maker.AddMatrix("token_embd.weight", options.embedding_type, options.vocab, options.width);
  for (uint32_t layer = 0; layer < options.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    maker.AddNorm(prefix + "attn_norm.weight", options.width);
    maker.AddMatrix(prefix + "attn_q.weight", options.type, q_width, options.width);
    maker.AddMatrix(prefix + "attn_k.weight", options.type, kv_width, options.width);
    maker.AddMatrix(prefix + "attn_v.weight", options.type, kv_width, options.width);
    maker.AddMatrix(prefix + "attn_output.weight", options.type, options.width, q_width);
    maker.AddNorm(prefix + "ffn_norm.weight", options.width);
    maker.AddMatrix(prefix + "ffn_gate.weight", options.type, options.ffn, options.width);
    maker.AddMatrix(prefix + "ffn_up.weight", options.type, options.ffn, options.width);
    maker.AddMatrix(prefix + "ffn_down.weight", options.type, options.width, options.ffn);
  }
  maker.AddNorm("output_norm.weight", options.width);
  if (!options.tied) {
    maker.AddMatrix("output.weight", options.embedding_type, options.vocab, options.width);
  }
  if (!options.rope_factors.empty()) maker.AddVector("rope_freqs.weight", options.rope_factors);
  return writer;
}

void WriteTinyModel(const std::string& path, const TinyModelOptions& options) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  TinyModel(options).Write(file);
  file.close();
  CHECK(file.good());
}

}  // namespace cairn
