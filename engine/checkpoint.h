// A model of the `llama` architecture as its file has it: the configuration, and a checked view of
// every weight. (Llama: Touvron et al. 2023; grouped-query attention: Ainslie et al. 2023.)
//
// After Open: every tensor that the forward pass needs is there with the shape that the
// configuration gives it, every quantised group's scales and every float weight are finite, and the
// file has no tensor that the forward pass would leave out. Matrices stay in the file's pages until
// a backend packs them; norms are converted to float32.
// Threads: immutable, any thread. Views live as long as the Checkpoint (moving it keeps them).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/gguf_file.h"
#include "kernels/ops.h"

namespace cairn {

struct ModelConfig {
  std::string name;          // for people: general.name, else the file's name
  std::string architecture;  // "llama"
  uint32_t layer_count = 0;
  uint32_t width = 0;  // of the residual stream
  uint32_t head_count = 0;
  uint32_t kv_head_count = 0;  // divides head_count; equal for MHA, 1 for MQA
  uint32_t head_dim = 0;       // not always width / head_count
  uint32_t ffn_width = 0;
  uint32_t vocabulary_size = 0;
  uint32_t context_length = 0;  // positions the model was trained for
  uint32_t rope_dim = 0;        // even, at most head_dim; the rest of a head is not rotated
  double rope_base = 10000;
  double rope_linear_factor = 1;    // positions are divided by it
  std::vector<float> rope_factors;  // empty, or [rope_dim / 2]: frequencies are divided by them
  float rms_epsilon = 0;
  uint64_t parameter_count = 0;
};

// Matrices are [outputs, inputs], so that y = x * W^T.
struct LayerWeights {
  std::vector<float> attn_norm;  // [width]
  MatrixView q;                  // [head_count * head_dim, width]
  MatrixView k;                  // [kv_head_count * head_dim, width]
  MatrixView v;                  // [kv_head_count * head_dim, width]
  MatrixView o;                  // [width, head_count * head_dim]
  std::vector<float> ffn_norm;   // [width]
  MatrixView gate;               // [ffn_width, width]
  MatrixView up;                 // [ffn_width, width]
  MatrixView down;               // [width, ffn_width]
};

class Checkpoint {
 public:
  // What GgufFile::Open can say; kInvalidArgument for a model that contradicts itself or passes a
  // limit, kNotFound for a missing key or tensor, kUnimplemented for another architecture.
  static Result<Checkpoint> Open(const std::string& path);
  static Result<Checkpoint> FromFile(std::unique_ptr<GgufFile> file);

  const ModelConfig& config() const { return config_; }
  const GgufFile& file() const { return *file_; }

  const MatrixView& embedding() const { return embedding_; }  // [vocabulary_size, width]
  const MatrixView& output() const { return output_; }        // [vocabulary_size, width]
  bool tied_output() const { return tied_output_; }           // output() is embedding()
  const std::vector<float>& output_norm() const { return output_norm_; }  // [width]
  const std::vector<LayerWeights>& layers() const { return layers_; }

 private:
  Checkpoint() = default;

  std::unique_ptr<GgufFile> file_;
  ModelConfig config_;
  MatrixView embedding_ = {};
  MatrixView output_ = {};
  bool tied_output_ = false;
  std::vector<float> output_norm_;
  std::vector<LayerWeights> layers_;
};

}  // namespace cairn
