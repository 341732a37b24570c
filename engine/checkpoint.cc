#include "engine/checkpoint.h"

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "engine/message_text.h"
#include "engine/tensor_values.h"

namespace cairn {
namespace {

// No model is near these; a file that passes them is broken or made to do harm.
constexpr uint32_t kLayersMax = 1024;
constexpr uint32_t kWidthMax = 1 << 16;
constexpr uint32_t kHeadsMax = 1024;
constexpr uint32_t kHeadDimMax = 1024;
constexpr uint32_t kFfnWidthMax = 1 << 20;
constexpr uint32_t kVocabularyMax = 1 << 20;
constexpr uint32_t kContextMax = 1 << 24;

// Reads llama.* keys, each within its limits.
class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {}

  Result<ModelConfig> Read() {
    ModelConfig config;
    ASSIGN_OR_RETURN(config.architecture, file_.GetString("general.architecture"));
    if (config.architecture != "llama") {
      return Status(Code::kUnimplemented, file_.name() + ": key 'general.architecture' is " +
                                              Quoted(config.architecture) + ", expected 'llama'");
    }
    const size_t slash = file_.name().rfind('/');
    const std::string file_name = file_.name().substr(slash == std::string::npos ? 0 : slash + 1);
    ASSIGN_OR_RETURN(config.name, file_.GetString("general.name", file_name));
    RETURN_IF_ERROR(ReadShape(config));
    RETURN_IF_ERROR(ReadHeads(config));
    RETURN_IF_ERROR(ReadRope(config));
    RETURN_IF_ERROR(RefuseExperts());
    ASSIGN_OR_RETURN(config.rms_epsilon, file_.GetF32("llama.attention.layer_norm_rms_epsilon"));
    if (!(config.rms_epsilon > 0 && config.rms_epsilon < 1)) {
      return Fail("key 'llama.attention.layer_norm_rms_epsilon' is " +
                  std::to_string(config.rms_epsilon) + ", expected more than 0 and less than 1");
    }
    for (const GgufTensor& tensor : file_.tensors()) {
      config.parameter_count += tensor.element_count();
    }
    return config;
  }

 private:
  Status Fail(const std::string& text) const { return InvalidArgument(file_.name() + ": " + text); }

  Status CheckCount(const std::string& what, uint64_t count, uint32_t max) const {
    if (count >= 1 && count <= max) return Status();
    return Fail(what + " is " + Grouped(count) + ", expected 1 to " + Grouped(max));
  }

  Result<uint32_t> Count(const std::string& key, uint32_t max) const {
    ASSIGN_OR_RETURN(const uint32_t count, file_.GetU32(key));
    RETURN_IF_ERROR(CheckCount("key " + Quoted(key), count, max));
    return count;
  }
  Result<uint32_t> Count(const std::string& key, uint32_t max, uint32_t absent) const {
    if (!file_.Has(key)) return absent;
    return Count(key, max);
  }

  Status ReadShape(ModelConfig& config) const {
    ASSIGN_OR_RETURN(config.layer_count, Count("llama.block_count", kLayersMax));
    ASSIGN_OR_RETURN(config.width, Count("llama.embedding_length", kWidthMax));
    ASSIGN_OR_RETURN(config.ffn_width, Count("llama.feed_forward_length", kFfnWidthMax));
    ASSIGN_OR_RETURN(config.context_length, Count("llama.context_length", kContextMax));
    // Older files leave the vocabulary's size to the shape of the embedding.
    uint32_t rows = 0;
    if (const GgufTensor* embedding = file_.FindTensor("token_embd.weight")) {
      RETURN_IF_ERROR(CheckCount("the number of rows of tensor 'token_embd.weight'",
                                 embedding->dims[1], kVocabularyMax));
      rows = static_cast<uint32_t>(embedding->dims[1]);
    }
    ASSIGN_OR_RETURN(config.vocabulary_size, Count("llama.vocab_size", kVocabularyMax, rows));
    return Status();
  }

  Status ReadHeads(ModelConfig& config) const {
    ASSIGN_OR_RETURN(config.head_count, Count("llama.attention.head_count", kHeadsMax));
    ASSIGN_OR_RETURN(config.kv_head_count,
                     Count("llama.attention.head_count_kv", kHeadsMax, config.head_count));
    if (config.head_count % config.kv_head_count != 0) {
      return Fail("key 'llama.attention.head_count_kv' is " + Grouped(config.kv_head_count) +
                  ", expected a divisor of the head count " + Grouped(config.head_count));
    }
    if (file_.Has("llama.attention.key_length")) {
      ASSIGN_OR_RETURN(config.head_dim, Count("llama.attention.key_length", kHeadDimMax));
    } else if (config.width % config.head_count == 0) {
      config.head_dim = config.width / config.head_count;
      RETURN_IF_ERROR(
          CheckCount("the head size (width / head count)", config.head_dim, kHeadDimMax));
    } else {
      return Fail("key 'llama.embedding_length' is " + Grouped(config.width) +
                  ", expected a multiple of the head count " + Grouped(config.head_count));
    }
    ASSIGN_OR_RETURN(const uint32_t value_length,
                     Count("llama.attention.value_length", kHeadDimMax, config.head_dim));
    if (value_length != config.head_dim) {
      return Fail("key 'llama.attention.value_length' is " + Grouped(value_length) +
                  ", expected the size of a key, " + Grouped(config.head_dim));
    }
    return Status();
  }

  Status ReadRope(ModelConfig& config) const {
    ASSIGN_OR_RETURN(config.rope_dim,
                     Count("llama.rope.dimension_count", kHeadDimMax, config.head_dim));
    if (config.rope_dim % 2 != 0 || config.rope_dim > config.head_dim) {
      return Fail("the number of rotated dimensions (key 'llama.rope.dimension_count') is " +
                  Grouped(config.rope_dim) + ", expected an even number up to the head size " +
                  Grouped(config.head_dim));
    }
    ASSIGN_OR_RETURN(config.rope_base, Positive("llama.rope.freq_base", 10000));
    ASSIGN_OR_RETURN(const std::string_view scaling,
                     file_.GetString("llama.rope.scaling.type", "linear"));
    if (scaling == "linear") {
      // The second name is that of older files.
      ASSIGN_OR_RETURN(const double older, Positive("llama.rope.scale_linear", 1));
      ASSIGN_OR_RETURN(config.rope_linear_factor, Positive("llama.rope.scaling.factor", older));
    } else if (scaling != "none") {
      return Status(Code::kUnimplemented, file_.name() + ": key 'llama.rope.scaling.type' is " +
                                              Quoted(scaling) + ", expected 'linear' or 'none'");
    }
    return Status();
  }

  Result<double> Positive(const std::string& key, double absent) const {
    if (!file_.Has(key)) return absent;
    ASSIGN_OR_RETURN(const float value, file_.GetF32(key));
    if (std::isfinite(value) && value > 0) return double{value};
    return Fail("key " + Quoted(key) + " is " + std::to_string(value) +
                ", expected a finite number above 0");
  }

  Status RefuseExperts() const {
    ASSIGN_OR_RETURN(const uint32_t experts, file_.GetU32("llama.expert_count", 0));
    if (experts == 0) return Status();
    return Status(Code::kUnimplemented, file_.name() + ": key 'llama.expert_count' is " +
                                            Grouped(experts) +
                                            ", expected 0: mixtures of experts are not supported");
  }

  const GgufFile& file_;
};

// Hands out checked tensors and remembers which.
class WeightReader {
 public:
  explicit WeightReader(const GgufFile& file) : file_(file) {}

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  Result<MatrixView> Matrix(const std::string& name, uint32_t rows, uint32_t cols) {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, {cols, rows}));
    return MatrixView{*tensor->type, rows, cols, tensor->bytes};
  }

  Result<std::vector<float>> Vector(const std::string& name, uint32_t size) {
    ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, {size}));
    if (TraitsOf(*tensor->type).group_elements != 1) {
      return InvalidArgument(
          About(*tensor, "is " + TensorTypeText(*tensor) + ", expected F32, F16 or BF16"));
    }
    return ToFloats(*tensor->type, tensor->bytes);
  }

  // A tensor that the forward pass would leave out (a bias, say) means another model than ours.
  Status CheckAllUsed() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (used_.contains(tensor.name)) continue;
      return Status(Code::kUnimplemented,
                    file_.name() + ": tensor " + Quoted(tensor.name) + " " + ShapeText(tensor) +
                        " has no place in a llama model of this configuration; leaving it out "
                        "would change the output");
    }
    return Status();
  }

 private:
  std::string About(const GgufTensor& tensor, const std::string& text) const {
    return file_.name() + ": tensor " + Quoted(tensor.name) + " at byte " +
           Grouped(tensor.file_offset) + " " + text;
  }

  Result<const GgufTensor*> Find(const std::string& name, std::vector<uint64_t> dims) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return NotFound(file_.name() + ": tensor " + Quoted(name) + " is missing");
    }
    GgufTensor expected;
    expected.dim_count = static_cast<uint32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), expected.dims.begin());
    if (tensor->dim_count != expected.dim_count || tensor->dims != expected.dims) {
      return InvalidArgument(
          About(*tensor, "has shape " + ShapeText(*tensor) + ", expected " + ShapeText(expected)));
    }
    if (!tensor->type) {
      return Status(Code::kUnimplemented,
                    About(*tensor, "is " + TensorTypeText(*tensor) +
                                       ", expected one of F32, F16, BF16, Q8_0, Q4_0, Q4_1"));
    }
    if (const auto group = FirstNonFinite(*tensor->type, tensor->bytes)) {
      const TensorTypeTraits traits = TraitsOf(*tensor->type);
      const std::string what = traits.group_elements > 1 ? "scale" : "value";
      return InvalidArgument(
          About(*tensor, "has a " + what + " that is NaN or infinite, at byte " +
                             Grouped(tensor->file_offset + *group * traits.group_bytes)));
    }
    used_.insert(tensor->name);
    return tensor;
  }

  const GgufFile& file_;
  std::set<std::string_view> used_;
};

Result<LayerWeights> ReadLayer(WeightReader& reader, const ModelConfig& config, uint32_t layer) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const uint32_t q_width = config.head_count * config.head_dim;
  const uint32_t kv_width = config.kv_head_count * config.head_dim;
  const uint32_t width = config.width;
  const auto matrix = [&](const char* name, uint32_t rows, uint32_t cols) {
    return reader.Matrix(prefix + name + ".weight", rows, cols);
  };
  LayerWeights weights;
  ASSIGN_OR_RETURN(weights.attn_norm, reader.Vector(prefix + "attn_norm.weight", width));
  ASSIGN_OR_RETURN(weights.q, matrix("attn_q", q_width, width));
  ASSIGN_OR_RETURN(weights.k, matrix("attn_k", kv_width, width));
  ASSIGN_OR_RETURN(weights.v, matrix("attn_v", kv_width, width));
  ASSIGN_OR_RETURN(weights.o, matrix("attn_output", width, q_width));
  ASSIGN_OR_RETURN(weights.ffn_norm, reader.Vector(prefix + "ffn_norm.weight", width));
  ASSIGN_OR_RETURN(weights.gate, matrix("ffn_gate", config.ffn_width, width));
  ASSIGN_OR_RETURN(weights.up, matrix("ffn_up", config.ffn_width, width));
  ASSIGN_OR_RETURN(weights.down, matrix("ffn_down", width, config.ffn_width));
  return weights;
}

Result<std::vector<float>> ReadRopeFactors(WeightReader& reader, const ModelConfig& config,
                                           const std::string& file_name) {
  static const std::string kName = "rope_freqs.weight";
  if (!reader.Has(kName)) return std::vector<float>();
  ASSIGN_OR_RETURN(std::vector<float> factors, reader.Vector(kName, config.rope_dim / 2));
  for (size_t i = 0; i < factors.size(); ++i) {
    if (factors[i] > 0) continue;
    return InvalidArgument(file_name + ": tensor " + Quoted(kName) + " has " +
                           std::to_string(factors[i]) + " at index " + std::to_string(i) +
                           ", expected numbers above 0");
  }
  return factors;
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return FromFile(std::move(file));
}

Result<Checkpoint> Checkpoint::FromFile(std::unique_ptr<GgufFile> file) {
  Checkpoint checkpoint;
  checkpoint.file_ = std::move(file);
  ASSIGN_OR_RETURN(checkpoint.config_, ConfigReader(checkpoint.file()).Read());
  ModelConfig& config = checkpoint.config_;
  WeightReader reader(checkpoint.file());
  ASSIGN_OR_RETURN(config.rope_factors, ReadRopeFactors(reader, config, checkpoint.file().name()));
  ASSIGN_OR_RETURN(checkpoint.embedding_,
                   reader.Matrix("token_embd.weight", config.vocabulary_size, config.width));
  checkpoint.tied_output_ = !reader.Has("output.weight");
  checkpoint.output_ = checkpoint.embedding_;
  if (!checkpoint.tied_output_) {
    ASSIGN_OR_RETURN(checkpoint.output_,
                     reader.Matrix("output.weight", config.vocabulary_size, config.width));
  }
  ASSIGN_OR_RETURN(checkpoint.output_norm_, reader.Vector("output_norm.weight", config.width));
  for (uint32_t layer = 0; layer < config.layer_count; ++layer) {
    ASSIGN_OR_RETURN(LayerWeights weights, ReadLayer(reader, config, layer));
    checkpoint.layers_.push_back(std::move(weights));
  }
  RETURN_IF_ERROR(reader.CheckAllUsed());
  return checkpoint;
}

}  // namespace cairn
