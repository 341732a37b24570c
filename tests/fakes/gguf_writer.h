// Writes GGUF files for tests: any keys and tensors, well formed or not, and whole tiny models of
// the llama architecture with random weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "engine/gguf_file.h"
#include "kernels/ops.h"

namespace cairn {

// Keys and tensors come out in the order of the calls; nothing is checked, so that a test can write
// what a correct program never would.
class GgufWriter {
 public:
  uint32_t version = 3;
  uint32_t alignment = 32;                      // of the layout; the key is SetU32's business
  std::optional<uint64_t> stated_tensor_count;  // instead of the true one
  std::optional<uint64_t> stated_key_count;

  void SetU32(std::string_view key, uint32_t value);
  void SetF32(std::string_view key, float value);
  void SetBool(std::string_view key, bool value);
  void SetString(std::string_view key, std::string_view value);
  void SetStrings(std::string_view key, const std::vector<std::string>& values);
  void SetI32s(std::string_view key, std::span<const int32_t> values);
  void SetF32s(std::string_view key, std::span<const float> values);
  // A value of any type id with the bytes of its encoding.
  void SetRaw(std::string_view key, uint32_t type_id, std::string_view encoding);
  void Remove(std::string_view key);     // CHECKs that there is one
  void RepeatKey(std::string_view key);  // so that the file has it twice

  // Dimensions as the file has them: the fastest first. `offset` instead of the next free place.
  void AddTensor(std::string_view name, uint32_t type_id, std::vector<uint64_t> dims,
                 std::string_view data, std::optional<uint64_t> offset = std::nullopt);
  void RemoveTensor(std::string_view name);
  struct Tensor {
    std::string name;
    uint32_t type_id;
    std::vector<uint64_t> dims;
    std::string data;
    std::optional<uint64_t> offset;
  };
  Tensor& tensor(std::string_view name);  // to change it; CHECKs that there is one

  void Write(std::ostream& out) const;
  std::string Bytes() const;  // what Write writes

 private:
  struct Key {
    std::string name;
    uint32_t type_id;
    std::string encoding;
  };
  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
};

// The format's number of a tensor type.
uint32_t GgufTypeId(TensorType type);

// `values` in the encoding of `type`, rounded to nearest; whole groups only.
std::string EncodeTensor(TensorType type, std::span<const float> values);

// `count` elements of a quantised type with independent random codes and one scale, as fast as
// random numbers come; Q4 codes are about `scale` apart, Q8_0 ones have the same range.
std::string RandomCodes(TensorType type, size_t count, float scale, Rng& rng);

// A llama model small enough to run in microseconds, or one of any size for benches. Matrices have
// independent uniform weights of variance 1 / inputs, from `seed`; norms are near 1. The vocabulary
// is a byte-level BPE one: the control tokens <|endoftext|> (0), <|im_start|> (1, bos) and
// <|im_end|> (2, eos), the 256 bytes, then merges of letters.
struct TinyModelOptions {
  uint32_t layers = 2;
  uint32_t width = 64;
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 16;  // key_length is written when it is not width / heads
  uint32_t ffn = 128;
  uint32_t vocab = 320;  // 259 .. 475513
  uint32_t context_length = 2048;
  TensorType type = TensorType::kQ8_0;            // of the layers' matrices
  TensorType embedding_type = TensorType::kQ8_0;  // of token_embd and output
  bool tied = true;
  bool random_codes = false;  // matrices are RandomCodes, which large ones need: about as good
  uint64_t seed = 1;
  float rope_base = 10000;
  float rope_linear_factor = 1;     // written when it is not 1
  std::vector<float> rope_factors;  // [head_dim / 2] writes rope_freqs.weight
  std::string pre = "smollm";       // tokenizer.ggml.pre
  std::string chat_template;        // empty: ChatML
};

GgufWriter TinyModel(const TinyModelOptions& options);

// Writes TinyModel(options) to `path`; CHECKs that it can.
void WriteTinyModel(const std::string& path, const TinyModelOptions& options = {});

// `bytes` as the whole content of `path`.
void WriteFile(const std::string& path, std::string_view bytes);

}  // namespace cairn
