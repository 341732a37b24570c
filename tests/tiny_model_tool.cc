// Writes a tiny model (tests/fakes/gguf_writer.h) for tests in other languages, or one of any size
// for benches.
//
//   tiny_model_tool OUT.gguf [KEY=VALUE ...]
//
// Keys are layers, width, heads, kv_heads, head_dim, ffn, vocab, context_length, seed, tied and
// random_codes (0 or 1), type and embedding_type (F32, F16, BF16, Q8_0, Q4_0, Q4_1), rope_base,
// rope_linear_factor, and rope_factors (separated by commas).
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "tests/fakes/gguf_writer.h"

namespace cairn {
namespace {

bool SetType(const std::string& name, TensorType& type) {
  for (const TensorType each : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    if (name != TraitsOf(each).name) continue;
    type = each;
    return true;
  }
  return false;
}

bool Set(TinyModelOptions& options, const std::string& key, const std::string& value) {
  const std::map<std::string, uint32_t*> numbers = {
      {"layers", &options.layers}, {"width", &options.width},
      {"heads", &options.heads},   {"kv_heads", &options.kv_heads},
      {"vocab", &options.vocab},   {"head_dim", &options.head_dim},
      {"ffn", &options.ffn},       {"context_length", &options.context_length}};
  if (const auto found = numbers.find(key); found != numbers.end()) {
    *found->second = static_cast<uint32_t>(std::atoi(value.c_str()));
    return true;
  }
  if (key == "type") return SetType(value, options.type);
  if (key == "embedding_type") return SetType(value, options.embedding_type);
  if (key == "tied") {
    options.tied = value == "1";
  } else if (key == "random_codes") {
    options.random_codes = value == "1";
  } else if (key == "rope_base") {
    options.rope_base = std::strtof(value.c_str(), nullptr);
  } else if (key == "seed") {
    options.seed = std::strtoull(value.c_str(), nullptr, 10);
  } else if (key == "rope_linear_factor") {
    options.rope_linear_factor = std::strtof(value.c_str(), nullptr);
  } else if (key == "rope_factors") {
    std::istringstream factors(value);
    for (std::string factor; std::getline(factors, factor, ',');) {
      options.rope_factors.push_back(std::strtof(factor.c_str(), nullptr));
    }
  } else {
    return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  TinyModelOptions options;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals != std::string::npos &&
        Set(options, argument.substr(0, equals), argument.substr(equals + 1))) {
      continue;
    }
    std::fprintf(stderr, "tiny_model_tool: cannot set %s\n", argv[i]);
    return 2;
  }
  WriteTinyModel(argv[1], options);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: tiny_model_tool OUT.gguf [KEY=VALUE ...]\n");
    return 2;
  }
  return cairn::Main(argc, argv);
}
