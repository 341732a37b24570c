#include "tests/fakes/hooked_engine.h"

#include <utility>

#include "base/check.h"
#include "engine/checkpoint.h"
#include "engine/planned_restores.h"
#include "engine/vocabulary.h"
#include "kernels/backend.h"
#include "tests/fakes/forwarding_ops.h"

namespace cairn {
namespace {

// A forward pass begins with an embedding, and its logits are the one product that is as wide as
// the vocabulary.
class HookedOps final : public ForwardingOps {
 public:
  HookedOps(std::unique_ptr<Ops> inner, uint32_t vocabulary_size, OpsHooks hooks)
      : ForwardingOps(std::move(inner)),
        vocabulary_size_(vocabulary_size),
        hooks_(std::move(hooks)) {}

  void Embed(const EmbedArgs& args, Stream& stream) override {
    if (hooks_.on_pass) hooks_.on_pass(static_cast<uint32_t>(args.batch->rows().size()));
    ForwardingOps::Embed(args, stream);
  }
  void MatMul(const MatMulArgs& args, Stream& stream) override {
    ForwardingOps::MatMul(args, stream);
    const MatMulOutput& output = args.outputs[0];
    if (!hooks_.on_logits || output.weight->rows() != vocabulary_size_) return;
    CHECK(stream.Synchronize().ok());
    hooks_.on_logits({output.y, size_t{args.row_count} * vocabulary_size_}, args.row_count);
  }

 private:
  const uint32_t vocabulary_size_;
  const OpsHooks hooks_;
};

// The value of what a good model file cannot fail at.
template <class T>
T Must(Result<T> result) {
  CHECK(result.ok());
  return *std::move(result);
}

}  // namespace

EngineParts MakeHookedEngine(const HookedEngineOptions& options, const Clock& clock) {
  const EngineConfig& config = options.config;
  CHECK(config.Validate().ok());
  const Checkpoint checkpoint = Must(Checkpoint::Open(options.model_path));
  const Vocabulary vocabulary = Must(ReadVocabulary(checkpoint.file()));
  std::unique_ptr<const Tokenizer> tokenizer = Must(Tokenizer::Create(vocabulary));
  auto chat_template = ChatTemplate::Detect(vocabulary.chat_template, *tokenizer);
  Backend backend = Must(MakeCpuBackend({.thread_count = 1}));
  backend.ops =
      std::make_unique<HookedOps>(std::move(backend.ops), tokenizer->size(), options.hooks);
  const ModelLimits limits = {.context_length = config.context_length,
                              .rows_max = config.prefill_chunk + 2 * config.concurrent_max,
                              .logits_max = config.concurrent_max};
  std::unique_ptr<Model> model =
      Must(Model::Create(checkpoint, std::move(backend), limits, nullptr));
  const Digest fingerprint = DigestOf(options.model_path);
  std::unique_ptr<SpillStore> spill;
  if (options.open_spill) {
    spill = Must(options.open_spill(fingerprint, model->kv_layout(), [] {}));
  }
  std::unique_ptr<BlockStore> blocks = Must(
      BlockStore::Create({.device_blocks_max = options.device_blocks, .verify_duplicates = true},
                         model->kv_layout(), model->device(), clock, std::move(spill)));
  std::unique_ptr<RestoreStrategy> restores;
  if (options.make_restores) {
    restores = options.make_restores(*blocks);
  } else {
    restores = std::make_unique<PlannedRestores>(RestoreSettings{.policy = RestorePolicy::kLoadAll},
                                                 *blocks, clock);
  }
  return {.model = std::move(model),
          .blocks = std::move(blocks),
          .restores = std::move(restores),
          .tokenizer = std::move(tokenizer),
          .chat_template = std::move(chat_template),
          .model_info = {},
          .fingerprint = fingerprint,
          .trace = nullptr};
}

}  // namespace cairn
