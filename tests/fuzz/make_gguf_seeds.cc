// Writes the seeds of gguf_fuzz: make_gguf_seeds FOLDER. Small files, so that a mutation is likely
// to hit something that matters.
#include <cstdio>
#include <string>

#include "tests/fakes/gguf_writer.h"

namespace cairn {
namespace {

GgufWriter EveryKindOfValue() {
  GgufWriter writer;
  writer.SetU32("n", 7);
  writer.SetString("s", "text");
  writer.SetBool("b", true);
  writer.SetF32("f", 0.5f);
  writer.SetStrings("as", {"a", "", "ccc"});
  writer.SetI32s("ai", std::vector<int32_t>{1, -2});
  writer.SetF32s("af", std::vector<float>{0.5f});
  writer.SetRaw("k", static_cast<uint32_t>(GgufType::kUint64), std::string(8, '\1'));
  writer.AddTensor("t", 0, {3}, std::string(12, 'x'));
  writer.AddTensor("u", GgufTypeId(TensorType::kQ4_1), {32, 2}, std::string(40, '\0'));
  return writer;
}

GgufWriter SmallLlama(TensorType type, bool tied) {
  GgufWriter writer = TinyModel({.layers = 1,
                                 .width = 32,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 16,
                                 .ffn = 32,
                                 .vocab = 259,
                                 .type = type,
                                 .embedding_type = type,
                                 .tied = tied,
                                 .rope_linear_factor = 2,
                                 .rope_factors = std::vector<float>(8, 1.0f)});
  // A vocabulary of two rows and no tokenizer leave what the loader reads.
  for (const char* key :
       {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.chat_template"}) {
    writer.Remove(key);
  }
  writer.SetU32("llama.vocab_size", 2);
  const size_t row_bytes = TraitsOf(type).group_bytes;
  for (const char* name : {"token_embd.weight", "output.weight"}) {
    if (tied && name[0] == 'o') continue;
    writer.tensor(name).dims = {32, 2};
    writer.tensor(name).data.resize(2 * row_bytes);
  }
  return writer;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/";
  cairn::WriteFile(folder + "values.gguf", cairn::EveryKindOfValue().Bytes());
  cairn::WriteFile(folder + "tied_q4_0.gguf",
                   cairn::SmallLlama(cairn::TensorType::kQ4_0, true).Bytes());
  cairn::WriteFile(folder + "untied_q4_1.gguf",
                   cairn::SmallLlama(cairn::TensorType::kQ4_1, false).Bytes());
  return 0;
}
