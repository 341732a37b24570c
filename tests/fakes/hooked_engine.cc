#include "tests/fakes/hooked_engine.h"

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/checkpoint.h"
#include "engine/planned_restores.h"
#include "engine/vocabulary.h"
#include "kernels/backend.h"
#include "tests/fakes/forwarding_device.h"
#include "tests/fakes/forwarding_ops.h"

namespace cairn {
namespace {

// What is told of a forward pass. It begins with an embedding, its logits are the one product that
// is as wide as the vocabulary, each layer rotates its rows once, and the host waits for its end.
class PassWatch {
 public:
  explicit PassWatch(OpsHooks hooks) : hooks_(std::move(hooks)) {}

  void Begin(uint32_t row_count) {
    if (hooks_.on_pass) hooks_.on_pass(row_count);
    row_count_ = row_count;
  }
  void BeginLayer(uint32_t layer) {
    if (layer > 0) EndLayer();
  }
  void End() {
    if (row_count_ > 0) EndLayer();
    row_count_ = 0;
  }
  bool wants_layers() const { return hooks_.on_layer != nullptr; }
  bool wants_logits() const { return hooks_.on_logits != nullptr; }
  void Logits(std::span<float> logits, uint32_t row_count) { hooks_.on_logits(logits, row_count); }

 private:
  void EndLayer() {
    if (hooks_.on_layer) hooks_.on_layer(row_count_);
  }

  const OpsHooks hooks_;
  uint32_t row_count_ = 0;  // of the pass that is under way
};

class HookedStream final : public Stream {
 public:
  HookedStream(std::unique_ptr<Stream> inner, std::shared_ptr<PassWatch> watch)
      : inner_(std::move(inner)), watch_(std::move(watch)) {}
  Stream& inner() { return *inner_; }

  EventRef Record() override { return inner_->Record(); }
  void Wait(const EventRef& event) override { inner_->Wait(event); }
  void Copy(void* destination, const void* source, size_t size_bytes) override {
    inner_->Copy(destination, source, size_bytes);
  }
  void CopyBatch(std::span<const CopyPart> parts) override { inner_->CopyBatch(parts); }
  void Clear(void* destination, size_t size_bytes) override {
    inner_->Clear(destination, size_bytes);
  }
  bool failed() const override { return inner_->failed(); }
  Status Synchronize() override {
    watch_->End();
    return inner_->Synchronize();
  }

 private:
  const std::unique_ptr<Stream> inner_;
  const std::shared_ptr<PassWatch> watch_;
};

Stream& InnerOf(Stream& stream) { return static_cast<HookedStream&>(stream).inner(); }

class HookedDevice final : public ForwardingDevice {
 public:
  HookedDevice(std::unique_ptr<Device> inner, std::shared_ptr<PassWatch> watch,
               std::function<std::unique_ptr<Stream>()> make_copy_stream)
      : ForwardingDevice(std::move(inner)),
        watch_(std::move(watch)),
        make_copy_stream_(std::move(make_copy_stream)) {}

  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    if (use == StreamUse::kCopy && make_copy_stream_) return make_copy_stream_();
    ASSIGN_OR_RETURN(std::unique_ptr<Stream> inner, ForwardingDevice::NewStream(use));
    if (use == StreamUse::kCopy) return inner;
    return std::unique_ptr<Stream>(std::make_unique<HookedStream>(std::move(inner), watch_));
  }

 private:
  const std::shared_ptr<PassWatch> watch_;
  const std::function<std::unique_ptr<Stream>()> make_copy_stream_;
};

// The batch that crosses on the stream within.
class HookedBatch final : public Batch {
 public:
  explicit HookedBatch(std::unique_ptr<Batch> inner) : inner_(std::move(inner)) {}
  const Batch& inner() const { return *inner_; }

 private:
  void Send(Stream& stream) override { inner_->Set(rows(), segments(), InnerOf(stream)); }

  const std::unique_ptr<Batch> inner_;
};

const Batch& InnerOf(const Batch& batch) { return static_cast<const HookedBatch&>(batch).inner(); }

class HookedOps final : public ForwardingOps {
 public:
  HookedOps(std::unique_ptr<Ops> inner, uint32_t vocabulary_size, std::shared_ptr<PassWatch> watch)
      : ForwardingOps(std::move(inner)),
        vocabulary_size_(vocabulary_size),
        watch_(std::move(watch)) {}

  Result<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Batch> batch, ForwardingOps::NewBatch(limits));
    return std::unique_ptr<Batch>(std::make_unique<HookedBatch>(std::move(batch)));
  }
  void Embed(const EmbedArgs& args, Stream& stream) override {
    pass_rows_ = static_cast<uint32_t>(args.batch->rows().size());
    if (!is_repeating_) watch_->Begin(pass_rows_);
    ForwardingOps::Embed(OnInnerBatch(args), InnerOf(stream));
  }
  void RmsNorm(const RmsNormArgs& args, Stream& stream) override {
    ForwardingOps::RmsNorm(args, InnerOf(stream));
  }
  void MatMul(const MatMulArgs& args, Stream& stream) override {
    ForwardingOps::MatMul(args, InnerOf(stream));
    const MatMulOutput& output = args.outputs[0];
    if (output.weight->rows() != vocabulary_size_) return;
    logits_ = output.y;
    if (is_repeating_) return;
    TellLogits(args.row_count == pass_rows_ ? decode_rows_ : args.row_count, InnerOf(stream));
  }
  void RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) override {
    watch_->BeginLayer(args.layer);
    ForwardingOps::RopeWriteKv(OnInnerBatch(args), InnerOf(stream));
  }
  void PagedAttention(const PagedAttentionArgs& args, Stream& stream) override {
    ForwardingOps::PagedAttention(OnInnerBatch(args), InnerOf(stream));
  }
  void SwiGlu(const SwiGluArgs& args, Stream& stream) override {
    ForwardingOps::SwiGlu(args, InnerOf(stream));
  }
  void TopLogits(const TopLogitsArgs& args, Stream& stream) override {
    ForwardingOps::TopLogits(args, InnerOf(stream));
  }
  // Asked for each batch whose rows all want logits, before it is filled up.
  uint32_t RowsToRepeat(uint32_t row_count) const override {
    decode_rows_ = row_count;
    return watch_->wants_layers() ? row_count : inner().RowsToRepeat(row_count);
  }
  // What is repeated is not seen, so the logits are where they were when it was done.
  void Repeat(const Batch& batch, const std::function<void()>& operations,
              Stream& stream) override {
    if (watch_->wants_layers()) return operations();
    watch_->Begin(decode_rows_);
    is_repeating_ = true;
    inner().Repeat(InnerOf(batch), operations, InnerOf(stream));
    is_repeating_ = false;
    TellLogits(decode_rows_, InnerOf(stream));
  }

 private:
  template <class Args>
  static Args OnInnerBatch(Args args) {
    args.batch = &InnerOf(*args.batch);
    return args;
  }
  void TellLogits(uint32_t row_count, Stream& stream) {
    if (!watch_->wants_logits()) return;
    std::vector<float> logits(size_t{row_count} * vocabulary_size_);
    const size_t size_bytes = logits.size() * sizeof(float);
    stream.Copy(logits.data(), logits_, size_bytes);
    CHECK(stream.Synchronize().ok());
    watch_->Logits(logits, row_count);
    stream.Copy(logits_, logits.data(), size_bytes);
    CHECK(stream.Synchronize().ok());
  }

  const uint32_t vocabulary_size_;
  const std::shared_ptr<PassWatch> watch_;
  uint32_t pass_rows_ = 0;
  mutable uint32_t decode_rows_ = 0;  // that are wanted of a batch that is filled up
  bool is_repeating_ = false;
  float* logits_ = nullptr;
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
  Backend backend =
      Must(options.make_backend ? options.make_backend() : MakeCpuBackend({.thread_count = 1}));
  const auto watch = std::make_shared<PassWatch>(options.hooks);
  backend.device =
      std::make_unique<HookedDevice>(std::move(backend.device), watch, options.make_copy_stream);
  backend.ops = std::make_unique<HookedOps>(std::move(backend.ops), tokenizer->size(), watch);
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
  std::unique_ptr<BlockStore> blocks =
      Must(BlockStore::Create({.device_blocks_max = options.device_blocks,
                               .host_blocks_max = options.host_blocks,
                               .host_in_place = false,
                               .host_bandwidth_limit = options.host_bandwidth_limit,
                               .verify_duplicates = true},
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
