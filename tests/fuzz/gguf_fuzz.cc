// Any bytes as a model file: it loads, or there is one line that says what is wrong with it.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "engine/checkpoint.h"
#include "engine/fingerprint.h"
#include "engine/gguf_file.h"
#include "engine/rope.h"

namespace cairn {
namespace {

void CheckMessage(const Status& status) {
  CHECK(status.ok() || status.message().starts_with("fuzz.gguf: "));
  CHECK(status.message().find('\n') == std::string::npos);
}

// Asks for each key as if it were of each kind.
void AskForValues(const GgufFile& file) {
  for (const char* key : {"k", "n", "s", "b", "f", "as", "ai", "af", "tokenizer.ggml.tokens",
                          "tokenizer.ggml.token_type", "general.name"}) {
    CheckMessage(file.GetU32(key).status());
    CheckMessage(file.GetU32(key, 1).status());
    CheckMessage(file.GetF32(key).status());
    CheckMessage(file.GetBool(key).status());
    CheckMessage(file.GetString(key).status());
    CheckMessage(file.GetStrings(key).status());
    CheckMessage(file.GetI32s(key).status());
    CheckMessage(file.GetF32s(key).status());
  }
}

void CheckTensors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    CHECK(file.FindTensor(tensor.name) == &tensor);
    CHECK(tensor.file_offset + tensor.bytes.size() <= file.size_bytes());
    if (!tensor.type) continue;
    const TensorTypeTraits traits = TraitsOf(*tensor.type);
    CHECK(tensor.bytes.size() / traits.group_bytes * traits.group_elements ==
          tensor.element_count());
  }
}

void CheckModel(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  CHECK(checkpoint.layers().size() == config.layer_count);
  CHECK(checkpoint.embedding().rows == config.vocabulary_size);
  CHECK(RopeCosSin(config, 3).size() == size_t{3} * config.rope_dim);
  CHECK(ComputeFingerprint(checkpoint) == CachedFingerprint(checkpoint));
}

void Run(std::span<const std::byte> bytes) {
  auto file = GgufFile::Parse(bytes, "fuzz.gguf");
  CheckMessage(file.status());
  if (!file.ok()) return;
  AskForValues(**file);
  CheckTensors(**file);
  const auto checkpoint = Checkpoint::FromFile(*std::move(file));
  CheckMessage(checkpoint.status());
  if (checkpoint.ok()) CheckModel(*checkpoint);
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::Run(std::as_bytes(std::span(data, size)));
  return 0;
}
