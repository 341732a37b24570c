#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <span>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_batch.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_weight.h"
#include "kernels/cuda/dense_products.h"
#include "kernels/cuda/embed_kernel.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/rope_kernel.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/top_k.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kHeadDimMax = 256;
// Products of more rows go to cuBLAS in fast mode: for fewer, turning the weights into float16
// would take longer than multiplying.
constexpr uint32_t kPackedRowsMax = 64;
constexpr uint32_t kContextMax = 1u << 30;  // positions times heads of a group stay below 2^32

CudaStream& AsCuda(Stream& stream) { return static_cast<CudaStream&>(stream); }
const CudaWeight& AsCuda(const Weight* weight) { return static_cast<const CudaWeight&>(*weight); }
CudaBatch& AsCuda(const Batch* batch) {
  // An operation may plan the work of a batch that it is given to read.
  return const_cast<CudaBatch&>(static_cast<const CudaBatch&>(*batch));
}
// Of activations that are split, and what a group takes.
constexpr size_t GroupCount(uint32_t cols) {
  return size_t{CeilDivide(cols, kBlockCols)} * kBlockGroups;
}
constexpr size_t kActivationGroupBytes =
    kActivationGroupHalves * sizeof(uint16_t) + sizeof(ActivationScale);
constexpr size_t PartialBytes(size_t count, uint32_t kv_head_count, uint32_t head_dim) {
  return count * kv_head_count * (head_dim * sizeof(float) + sizeof(float2));
}
uint32_t RowCount(const Batch* batch) { return static_cast<uint32_t>(batch->rows().size()); }

class CudaOps final : public Ops {
 public:
  CudaOps(Device& device, ComputeMode mode, std::unique_ptr<Stream> upload,
          std::unique_ptr<DenseProducts> dense)
      : device_(device), mode_(mode), upload_(std::move(upload)), dense_(std::move(dense)) {}

  Result<std::unique_ptr<Weight>> Pack(const MatrixView& view) override {
    ASSIGN_OR_RETURN(std::unique_ptr<CudaWeight> weight,
                     CudaWeight::Create(view, device_, *upload_));
    return std::unique_ptr<Weight>(std::move(weight));
  }
  Result<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) override {
    ASSIGN_OR_RETURN(std::unique_ptr<CudaBatch> batch, CudaBatch::Create(device_, limits));
    return std::unique_ptr<Batch>(std::move(batch));
  }

  uint64_t ScratchBytesMax(const PassLimits& limits) const override;

  void Embed(const EmbedArgs& args, Stream& stream) override;
  void RmsNorm(const RmsNormArgs& args, Stream& stream) override;
  void MatMul(const MatMulArgs& args, Stream& stream) override;
  void RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) override;
  void PagedAttention(const PagedAttentionArgs& args, Stream& stream) override;
  void SwiGlu(const SwiGluArgs& args, Stream& stream) override;
  void TopLogits(const TopLogitsArgs& args, Stream& stream) override;
  uint32_t RowsToRepeat(uint32_t row_count) const override;
  void Repeat(const Batch& batch, const std::function<void()>& operations, Stream& stream) override;

 private:
  bool IsDense(const MatMulArgs& args, const MatMulOutput& output) const;
  Result<SplitActivations> Split(const MatMulArgs& args, CudaStream& stream);
  Status Multiply(const MatMulArgs& args, CudaStream& stream);
  void MultiplyPacked(TensorType type, const MatMulArgs& args, const SplitActivations& split,
                      CudaStream& stream);
  Status Attend(const PagedAttentionArgs& args, CudaStream& stream);

  Device& device_;
  const ComputeMode mode_;
  const std::unique_ptr<Stream> upload_;
  const std::unique_ptr<DenseProducts> dense_;  // null in exact mode
  Scratch activations_{device_};
  Scratch partials_{device_};
  Scratch ranked_{device_};
  GraphCache graphs_;
};

// Each part as large as the operation that takes most of it.
uint64_t CudaOps::ScratchBytesMax(const PassLimits& limits) const {
  const uint32_t group = limits.head_count / limits.kv_head_count;
  const uint32_t chunk_queries = ChunkQueries(mode_, limits.head_dim);
  const AttentionRoom room = AttentionRoomOf(limits.batch, group, chunk_queries);
  const uint32_t rows = limits.batch.rows_max;
  const TopLogitsArgs top = {.logits = nullptr,
                             .row_count = limits.logits_max,
                             .width = limits.vocabulary_size,
                             .count = std::min(kTopLogitsMax, limits.vocabulary_size),
                             .out = nullptr};
  uint64_t total = rows * GroupCount(limits.cols_max) * kActivationGroupBytes +
                   PartialBytes(room.partials, limits.kv_head_count, limits.head_dim) +
                   room.plan_bytes + TopLogitsScratchCount(top) * sizeof(uint64_t);
  if (dense_ != nullptr && rows > kPackedRowsMax) {
    total += DenseProducts::ScratchBytesMax(rows, limits.cols_max, limits.matrix_max);
  }
  return total;
}

void CudaOps::Embed(const EmbedArgs& args, Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  if (cuda.failed()) return;
  cuda.Note(LaunchEmbed(AsCuda(args.table).matrix(), AsCuda(args.batch).device_rows(),
                        RowCount(args.batch), args.out, cuda.handle()));
}

void CudaOps::RmsNorm(const RmsNormArgs& args, Stream& stream) {
  CHECK(args.width > 0);
  CudaStream& cuda = AsCuda(stream);
  if (cuda.failed()) return;
  cuda.Note(LaunchRmsNorm(args, cuda.handle()));
}

void CudaOps::SwiGlu(const SwiGluArgs& args, Stream& stream) {
  CHECK(args.width > 0);
  CudaStream& cuda = AsCuda(stream);
  if (cuda.failed()) return;
  cuda.Note(LaunchSwiGlu(args, cuda.handle()));
}

void CudaOps::TopLogits(const TopLogitsArgs& args, Stream& stream) {
  CHECK(args.count > 0 && args.count <= std::min(kTopLogitsMax, args.width));
  CudaStream& cuda = AsCuda(stream);
  if (cuda.failed()) return;
  const Result<uint64_t*> scratch = ranked_.Reserve<uint64_t>(TopLogitsScratchCount(args), stream);
  if (!scratch.ok()) return cuda.Fail(scratch.status());
  cuda.Note(LaunchTopLogits(args, *scratch, cuda.handle()));
}

// Up to kPackedRowsMax rows a pass has the same kernels in both modes, and the bits of a row do not
// depend on how many rows there are.
uint32_t CudaOps::RowsToRepeat(uint32_t row_count) const {
  constexpr uint32_t kStep = 8;
  if (row_count == 0 || row_count > kPackedRowsMax) return row_count;
  return row_count < kStep ? std::bit_ceil(row_count) : CeilDivide(row_count, kStep) * kStep;
}

void CudaOps::Repeat(const Batch& batch, const std::function<void()>& operations, Stream& stream) {
  const auto work = AsCuda(&batch).repeated_work();
  const uint32_t row_count = RowCount(&batch);
  if (!work.has_value() || row_count > kPackedRowsMax) return operations();
  const auto shape_now = [&] {
    return GraphShape{.batch = &batch,
                      .row_count = row_count,
                      .span_count = work->span_count,
                      .plan = work->plan,
                      .activations = activations_.data(),
                      .partials = partials_.data()};
  };
  graphs_.Run(shape_now, operations, AsCuda(stream));
}

// For all the products of a MatMul.
Result<SplitActivations> CudaOps::Split(const MatMulArgs& args, CudaStream& stream) {
  const uint32_t cols = args.outputs[0].weight->cols();
  const auto group_count = static_cast<uint32_t>(GroupCount(cols));
  const size_t groups = size_t{args.row_count} * group_count;
  const size_t half_bytes = groups * kActivationGroupHalves * sizeof(uint16_t);
  ASSIGN_OR_RETURN(std::byte * memory,
                   activations_.Reserve<std::byte>(groups * kActivationGroupBytes, stream));
  const SplitActivations split = {.halves = reinterpret_cast<uint16_t*>(memory),
                                  .scales = reinterpret_cast<ActivationScale*>(memory + half_bytes),
                                  .row_count = args.row_count,
                                  .group_count = group_count};
  stream.Note(LaunchSplitActivations(args.x, cols, split, stream.handle()));
  return split;
}

bool CudaOps::IsDense(const MatMulArgs& args, const MatMulOutput& output) const {
  return dense_ != nullptr && !output.fine && args.row_count > kPackedRowsMax &&
         HasDenseProduct(AsCuda(output.weight).matrix());
}

void CudaOps::MatMul(const MatMulArgs& args, Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  CHECK(!args.outputs.empty() && args.outputs.size() <= kProductsMax);
  if (args.row_count == 0 || cuda.failed()) return;
  if (const Status status = Multiply(args, cuda); !status.ok()) cuda.Fail(status);
}

// Each form of the activations is made once, when the first product needs it.
Status CudaOps::Multiply(const MatMulArgs& args, CudaStream& stream) {
  const uint32_t cols = args.outputs[0].weight->cols();
  bool is_packed = false, is_rounded = false;
  for (const MatMulOutput& output : args.outputs) {
    const PackedMatrix& weight = AsCuda(output.weight).matrix();
    CHECK(weight.cols == cols);
    if (weight.type == TensorType::kF32) {
      stream.Note(LaunchFloatProduct(weight, args.x, args.row_count, output.y, stream.handle()));
    } else if (IsDense(args, output)) {
      if (!is_rounded) {
        RETURN_IF_ERROR(dense_->SetActivations(args.x, args.row_count, cols, stream));
      }
      is_rounded = true;
      RETURN_IF_ERROR(dense_->Multiply(weight, output.y, stream));
    } else {
      is_packed = true;
    }
  }
  if (!is_packed) return Status();
  ASSIGN_OR_RETURN(const SplitActivations split, Split(args, stream));
  for (const TensorType type :
       {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    MultiplyPacked(type, args, split, stream);
  }
  return Status();
}

// The packed products whose weights have this type run together.
void CudaOps::MultiplyPacked(TensorType type, const MatMulArgs& args, const SplitActivations& split,
                             CudaStream& stream) {
  std::array<ProductOutput, kProductsMax> products;
  size_t count = 0;
  for (const MatMulOutput& output : args.outputs) {
    const PackedMatrix& weight = AsCuda(output.weight).matrix();
    if (weight.type != type || IsDense(args, output)) continue;
    products[count++] = {.weight = weight, .y = output.y, .first_block = 0};
  }
  if (count == 0) return;
  stream.Note(LaunchProducts(std::span(products).first(count), split, stream.handle()));
}

void CudaOps::RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  const KvLayout& layout = *args.layout;
  CHECK(layout.type == KvType::kF16 && args.layer < layout.layer_count);
  CHECK(layout.head_dim % 2 == 0 && args.rotary_dim % 2 == 0);
  CHECK(args.rotary_dim <= layout.head_dim);
  if (cuda.failed()) return;
  cuda.Note(LaunchRopeWriteKv(args, AsCuda(args.batch).device_rows(), RowCount(args.batch),
                              cuda.handle()));
}

void CudaOps::PagedAttention(const PagedAttentionArgs& args, Stream& stream) {
  CudaStream& cuda = AsCuda(stream);
  if (cuda.failed()) return;
  if (const Status status = Attend(args, cuda); !status.ok()) cuda.Fail(status);
}

Status CudaOps::Attend(const PagedAttentionArgs& args, CudaStream& stream) {
  const KvLayout& layout = *args.layout;
  CHECK(layout.type == KvType::kF16 && args.layer < layout.layer_count);
  CHECK(layout.head_dim % 8 == 0 && layout.head_dim > 0 && layout.head_dim <= kHeadDimMax);
  CHECK(layout.block_tokens % 16 == 0 && kAttentionSpan % layout.block_tokens == 0);
  CHECK(layout.kv_head_count > 0 && args.head_count % layout.kv_head_count == 0);
  const uint32_t group = args.head_count / layout.kv_head_count;
  CHECK(group > 0);
  CudaBatch& batch = AsCuda(args.batch);
  for (const AttentionSegment& segment : batch.segments().first(args.segment_count)) {
    CHECK(segment.row_count > 0 && segment.row_count <= kContextMax / group);
    CHECK(segment.first_position <= kContextMax - segment.row_count);
  }
  ASSIGN_OR_RETURN(
      const CudaBatch::Work work,
      batch.WorkOf(args.segment_count, group, ChunkQueries(mode_, layout.head_dim), stream));
  const size_t partials = size_t{work.partial_count} * layout.kv_head_count;
  const size_t value_bytes = partials * layout.head_dim * sizeof(float);
  const size_t partial_bytes =
      PartialBytes(work.partial_count, layout.kv_head_count, layout.head_dim);
  ASSIGN_OR_RETURN(std::byte * memory, partials_.Reserve<std::byte>(partial_bytes, stream));
  const AttentionParams params = {.q = args.q,
                                  .out = args.out,
                                  .segments = batch.device_segments(),
                                  .partial_values = reinterpret_cast<float*>(memory),
                                  .partial_sums = reinterpret_cast<float2*>(memory + value_bytes),
                                  .head_count = args.head_count,
                                  .kv_head_count = layout.kv_head_count,
                                  .group = group,
                                  .head_dim = layout.head_dim,
                                  .block_tokens = layout.block_tokens,
                                  .head_bytes = static_cast<uint32_t>(layout.head_bytes()),
                                  .key_offset = layout.key_offset(args.layer, 0),
                                  .value_offset = layout.value_offset(args.layer, 0)};
  stream.Note(LaunchAttentionChunks(params, mode_, work.chunks, work.chunk_count, stream.handle()));
  stream.Note(LaunchAttentionSpans(params, work.spans, work.span_count, stream.handle()));
  stream.Note(LaunchAttentionMerge(params, work.merges, work.merge_count, stream.handle()));
  return Status();
}

}  // namespace

Result<std::unique_ptr<Ops>> MakeCudaOps(Device& device, ComputeMode mode) {
  ASSIGN_OR_RETURN(std::unique_ptr<Stream> upload, device.NewStream(StreamUse::kCopy));
  std::unique_ptr<DenseProducts> dense;
  if (mode == ComputeMode::kFast) {
    ASSIGN_OR_RETURN(dense, DenseProducts::Create(device));
  }
  return std::unique_ptr<Ops>(
      std::make_unique<CudaOps>(device, mode, std::move(upload), std::move(dense)));
}

}  // namespace cairn::cuda
