#include "tests/fakes/far_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "tests/fakes/forwarding_device.h"
#include "tests/fakes/late_copy_device.h"

namespace cairn {
namespace {

// No process has memory there, whatever the depth of its page tables.
constexpr uintptr_t kFarBit = uintptr_t{1} << 55;

bool IsFar(const void* address) { return (reinterpret_cast<uintptr_t>(address) & kFarBit) != 0; }

template <class T>
T* Far(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) | kFarBit);
}

template <class T>
T* Near(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) & ~kFarBit);
}

// Of what an operation was given, which must be the device's.
template <class T>
T* NearOnly(T* address) {
  CHECK(IsFar(address));
  return Near(address);
}

class FarBuffer final : public Buffer {
 public:
  explicit FarBuffer(std::unique_ptr<Buffer> inner) : inner_(std::move(inner)) {}
  std::byte* data() override { return Far(inner_->data()); }
  size_t size_bytes() const override { return inner_->size_bytes(); }

 private:
  const std::unique_ptr<Buffer> inner_;
};

class FarEvent final : public Event {
 public:
  FarEvent(EventRef inner, Status status) : inner_(std::move(inner)), outcome_(std::move(status)) {}
  const EventRef& inner() const { return inner_; }

  bool Passed() const override { return inner_ == nullptr || inner_->Passed(); }
  Status Wait() override {
    if (inner_ != nullptr) RETURN_IF_ERROR(inner_->Wait());
    return outcome_;
  }
  double SecondsSince(const Event& earlier) const override {
    const EventRef& other = static_cast<const FarEvent&>(earlier).inner_;
    return inner_ == nullptr || other == nullptr ? 0 : inner_->SecondsSince(*other);
  }

 private:
  const EventRef inner_;
  const Status outcome_;
};

class FarStream final : public Stream {
 public:
  FarStream(std::unique_ptr<Stream> inner, double failure_chance, uint64_t seed)
      : inner_(std::move(inner)), failure_chance_(failure_chance), rng_(seed) {}
  Stream& inner() { return *inner_; }

  EventRef Record() override {
    return std::make_shared<FarEvent>(inner_->Record(), std::exchange(failed_, Status()));
  }
  void Wait(const EventRef& event) override {
    if (event != nullptr) inner_->Wait(static_cast<const FarEvent&>(*event).inner());
  }
  void Copy(void* destination, const void* source, size_t size_bytes) override {
    const bool is_to_device = IsFar(destination) && !IsFar(source);
    if (is_to_device && failure_chance_ > 0 && rng_.Chance(failure_chance_)) {
      failed_ = Unavailable("the test says that this copy fails");
      return;
    }
    inner_->Copy(Near(destination), Near(source), size_bytes);
  }
  void Clear(void* destination, size_t size_bytes) override {
    inner_->Clear(NearOnly(destination), size_bytes);
  }
  Status Synchronize() override {
    RETURN_IF_ERROR(inner_->Synchronize());
    return std::exchange(failed_, Status());
  }

 private:
  const std::unique_ptr<Stream> inner_;
  const double failure_chance_;
  Rng rng_;
  Status failed_;
};

Stream& InnerOf(Stream& stream) { return static_cast<FarStream&>(stream).inner(); }

class FarDevice final : public ForwardingDevice {
 public:
  FarDevice(std::unique_ptr<Device> inner, const FarCopies& copies)
      : ForwardingDevice(std::move(inner)), copies_(copies), info_(ForwardingDevice::info()) {
    info_.backend = "far";
    info_.reads_host_memory = false;
    info_.host_addressable = false;
  }

  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Buffer> inner, ForwardingDevice::Allocate(size_bytes));
    return std::unique_ptr<Buffer>(std::make_unique<FarBuffer>(std::move(inner)));
  }
  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Stream> inner, ForwardingDevice::NewStream(use));
    const double failure_chance = use == StreamUse::kCopy ? copies_.failure_chance : 0;
    return std::unique_ptr<Stream>(
        std::make_unique<FarStream>(std::move(inner), failure_chance, copies_.seed));
  }

 private:
  const FarCopies copies_;
  DeviceInfo info_;
};

// Takes its copy of the host's arrays when it is set, as a device does.
class FarBatch final : public Batch {
 public:
  FarBatch(const BatchLimits& limits, std::unique_ptr<Batch> inner)
      : limits_(limits), inner_(std::move(inner)) {}
  const Batch* inner() const { return inner_.get(); }

 private:
  void Send(Stream& stream) override {
    CHECK(rows().size() <= limits_.rows_max && segments().size() <= limits_.rows_max);
    near_rows_.assign(rows().begin(), rows().end());
    for (BatchRow& row : near_rows_) {
      if (row.block != nullptr) row.block = NearOnly(row.block);
    }
    near_tables_.clear();
    near_segments_.assign(segments().begin(), segments().end());
    for (AttentionSegment& segment : near_segments_) {
      const uint32_t end = segment.first_position + segment.row_count;
      const uint32_t block_count = (end + limits_.block_tokens - 1) / limits_.block_tokens;
      CHECK(block_count <= limits_.context_blocks_max);
      std::vector<const std::byte*>& table = near_tables_[segment.blocks];
      for (size_t i = table.size(); i < block_count; ++i) {
        table.push_back(NearOnly(segment.blocks[i]));
      }
    }
    CHECK(near_tables_.size() <= limits_.contexts_max);
    for (AttentionSegment& segment : near_segments_) {
      segment.blocks = near_tables_.at(segment.blocks).data();
    }
    inner_->Set(near_rows_, near_segments_, InnerOf(stream));
  }

  const BatchLimits limits_;
  const std::unique_ptr<Batch> inner_;
  std::vector<BatchRow> near_rows_;
  std::vector<AttentionSegment> near_segments_;
  std::map<const std::byte* const*, std::vector<const std::byte*>> near_tables_;
};

const Batch* InnerOf(const Batch* batch) { return static_cast<const FarBatch*>(batch)->inner(); }

class FarOps final : public Ops {
 public:
  explicit FarOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  Result<std::unique_ptr<Weight>> Pack(const MatrixView& view) override {
    return inner_->Pack(view);
  }
  Result<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Batch> inner, inner_->NewBatch(limits));
    return std::unique_ptr<Batch>(std::make_unique<FarBatch>(limits, std::move(inner)));
  }

  void Embed(const EmbedArgs& args, Stream& stream) override {
    EmbedArgs near = args;
    near.batch = InnerOf(args.batch);
    near.out = NearOnly(args.out);
    inner_->Embed(near, InnerOf(stream));
  }
  void RmsNorm(const RmsNormArgs& args, Stream& stream) override {
    RmsNormArgs near = args;
    near.x = NearOnly(args.x);
    if (args.delta != nullptr) near.delta = NearOnly(args.delta);
    near.gain = NearOnly(args.gain);
    near.out = NearOnly(args.out);
    inner_->RmsNorm(near, InnerOf(stream));
  }
  void MatMul(const MatMulArgs& args, Stream& stream) override {
    std::vector<MatMulOutput> outputs(args.outputs.begin(), args.outputs.end());
    for (MatMulOutput& output : outputs) output.y = NearOnly(output.y);
    MatMulArgs near = args;
    near.x = NearOnly(args.x);
    near.outputs = outputs;
    inner_->MatMul(near, InnerOf(stream));
  }
  void RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) override {
    RopeWriteKvArgs near = args;
    near.q = NearOnly(args.q);
    near.k = NearOnly(args.k);
    near.v = NearOnly(args.v);
    near.cos_sin = NearOnly(args.cos_sin);
    near.batch = InnerOf(args.batch);
    inner_->RopeWriteKv(near, InnerOf(stream));
  }
  void PagedAttention(const PagedAttentionArgs& args, Stream& stream) override {
    PagedAttentionArgs near = args;
    near.q = NearOnly(args.q);
    near.out = NearOnly(args.out);
    near.batch = InnerOf(args.batch);
    inner_->PagedAttention(near, InnerOf(stream));
  }
  void SwiGlu(const SwiGluArgs& args, Stream& stream) override {
    SwiGluArgs near = args;
    near.gate = NearOnly(args.gate);
    near.up = NearOnly(args.up);
    near.out = NearOnly(args.out);
    inner_->SwiGlu(near, InnerOf(stream));
  }
  void TopLogits(const TopLogitsArgs& args, Stream& stream) override {
    TopLogitsArgs near = args;
    near.logits = NearOnly(args.logits);
    near.out = NearOnly(args.out);
    inner_->TopLogits(near, InnerOf(stream));
  }

 private:
  const std::unique_ptr<Ops> inner_;
};

}  // namespace

Result<Backend> MakeFarBackend(const CpuBackendOptions& options, const FarCopies& copies) {
  ASSIGN_OR_RETURN(Backend backend, MakeCpuBackend(options));
  if (copies.are_late) {
    backend.device = std::make_unique<LateCopyDevice>(std::move(backend.device), copies.seed);
  }
  backend.device = std::make_unique<FarDevice>(std::move(backend.device), copies);
  backend.ops = std::make_unique<FarOps>(std::move(backend.ops));
  return backend;
}

}  // namespace cairn
