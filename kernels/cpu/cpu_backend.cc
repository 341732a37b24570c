// The CPU backend: chooses a table of kernels, checks shapes and shares the work out.
#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/top_logits.h"

namespace cairn {
namespace {

// Elements of a row-wise operation for which another thread is worth waking.
constexpr size_t kElementsPerThreadMin = 4096;
constexpr size_t kMatMulOutputsMax = 4;
// Rows whose activations are read again and again while they are in the second-level cache.
constexpr uint32_t kRowsPerTask = 256;
// Panels that some products compute at once; shares are whole multiples of it.
constexpr size_t kSharePanels = 2;

constexpr size_t CeilDivide(size_t value, size_t by) { return (value + by - 1) / by; }

const PackedWeight& AsPacked(const Weight* weight) {
  return static_cast<const PackedWeight&>(*weight);
}

// The compute stream works before its calls return, so an op may run here and now.
void CheckComputeStream(const Stream& stream) { CHECK(typeid(stream) == typeid(CpuComputeStream)); }

class CpuOps final : public Ops {
 public:
  CpuOps(const CpuKernels& kernels, uint32_t thread_count, ComputeMode mode)
      : kernels_(kernels), mode_(mode), pool_(thread_count) {}

  Result<std::unique_ptr<Weight>> Pack(const MatrixView& view) override {
    ASSIGN_OR_RETURN(std::unique_ptr<PackedWeight> weight, PackedWeight::Pack(view, arena_));
    return std::unique_ptr<Weight>(std::move(weight));
  }

  // Operations read the host's arrays.
  Result<std::unique_ptr<Batch>> NewBatch(const BatchLimits& /*limits*/) override {
    return std::make_unique<Batch>();
  }

  void Embed(const EmbedArgs& args, Stream& stream) override;
  void RmsNorm(const RmsNormArgs& args, Stream& stream) override;
  void MatMul(const MatMulArgs& args, Stream& stream) override;
  void RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) override;
  void PagedAttention(const PagedAttentionArgs& args, Stream& stream) override;
  void SwiGlu(const SwiGluArgs& args, Stream& stream) override;
  // A host that can read the rows has no use for it.
  void TopLogits(const TopLogitsArgs& args, Stream& stream) override {
    CheckComputeStream(stream);
    CHECK(args.count > 0 && args.count <= std::min(kTopLogitsMax, args.width));
    SelectTopLogits(args);
  }

 private:
  // Activations in one form, made once for all the products of a MatMul; grows to the largest.
  struct FormBuffer {
    size_t value_count_max = 0;
    std::optional<HostMemory> values;
    std::vector<GroupScale> scales;
  };

  // f(row_begin, row_end) over all rows; few elements stay on the calling thread.
  template <class F>
  void ForRows(uint32_t row_count, size_t row_elements, F&& f) {
    pool_.ForRanges(row_count, CeilDivide(kElementsPerThreadMin, row_elements),
                    [&](size_t begin, size_t end) {
                      f(static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
                    });
  }

  Activations InForm(ActivationForm form, const MatMulArgs& args, uint32_t cols);
  void CutShares(size_t panel_count);

  const CpuKernels& kernels_;
  const ComputeMode mode_;
  ThreadPool pool_;
  WeightArena arena_;
  std::array<FormBuffer, kActivationFormCount> form_buffers_;
  std::vector<size_t> share_ends_;  // of the panels of one MatMul
};

void CpuOps::Embed(const EmbedArgs& args, Stream& stream) {
  CheckComputeStream(stream);
  const PackedWeight& table = AsPacked(args.table);
  const std::span<const BatchRow> rows = args.batch->rows();
  ForRows(static_cast<uint32_t>(rows.size()), table.cols(), [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
      table.ReadRow(rows[row].token, args.out + size_t{row} * table.cols());
    }
  });
}

void CpuOps::RmsNorm(const RmsNormArgs& args, Stream& stream) {
  CheckComputeStream(stream);
  CHECK(args.width > 0);
  ForRows(args.row_count, args.width,
          [&](uint32_t begin, uint32_t end) { kernels_.rms_norm(args, begin, end); });
}

Activations CpuOps::InForm(ActivationForm form, const MatMulArgs& args, uint32_t cols) {
  if (form == ActivationForm::kFloat) return {form, cols, args.x, nullptr};
  FormBuffer& buffer = form_buffers_[static_cast<size_t>(form)];
  const size_t value_count = size_t{args.row_count} * cols;
  if (value_count > buffer.value_count_max) {
    Result<HostMemory> values = HostMemory::Map(value_count * BytesPerActivation(form));
    CHECK(values.ok());  // like any allocation of a container
    buffer.values.emplace(*std::move(values));
    buffer.scales.resize(value_count / kQuantGroup);
    buffer.value_count_max = value_count;
  }
  std::byte* const values = buffer.values->bytes().data();
  const QuantizeArgs quantize = {args.x, cols, form, values, buffer.scales.data()};
  ForRows(args.row_count, cols,
          [&](uint32_t begin, uint32_t end) { kernels_.quantize(quantize, begin, end); });
  return {form, cols, values, buffer.scales.data()};
}

// Large shares first, since each begins with cold reading, and ever smaller ones, so that threads
// that run at unequal speed end together: each is three quarters of an even part of what is left.
void CpuOps::CutShares(size_t panel_count) {
  share_ends_.clear();
  for (size_t begin = 0; begin < panel_count;) {
    const size_t part = CeilDivide(3 * (panel_count - begin), 4 * pool_.thread_count());
    begin = std::min(panel_count, begin + CeilDivide(part, kSharePanels) * kSharePanels);
    share_ends_.push_back(begin);
  }
}

void CpuOps::MatMul(const MatMulArgs& args, Stream& stream) {
  CheckComputeStream(stream);
  const size_t output_count = args.outputs.size();
  CHECK(output_count >= 1 && output_count <= kMatMulOutputsMax);
  if (args.row_count == 0) return;

  // The panels of all outputs in one line: [panel_starts[i], panel_starts[i + 1]) are output i's.
  std::array<PanelProductArgs, kMatMulOutputsMax> products;
  std::array<size_t, kMatMulOutputsMax + 1> panel_starts = {};
  std::array<bool, kActivationFormCount> is_made = {};
  std::array<Activations, kActivationFormCount> made;
  for (size_t i = 0; i < output_count; ++i) {
    const PackedWeight& weight = AsPacked(args.outputs[i].weight);
    const uint32_t cols = weight.cols();
    CHECK(cols == args.outputs[0].weight->cols());
    const ActivationForm form =
        FormFor(weight.format(), args.outputs[i].fine || mode_ == ComputeMode::kExact);
    const size_t slot = static_cast<size_t>(form);
    if (!is_made[slot]) made[slot] = InForm(form, args, cols);
    is_made[slot] = true;
    products[i] = {.weight = &weight, .x = made[slot], .y = args.outputs[i].y};
    panel_starts[i + 1] = panel_starts[i] + weight.panel_count();
  }

  CutShares(panel_starts[output_count]);
  const size_t shares = share_ends_.size();
  pool_.ForEach(CeilDivide(args.row_count, kRowsPerTask) * shares, [&](size_t task) {
    const uint32_t row_begin = static_cast<uint32_t>(task / shares * kRowsPerTask);
    const uint32_t row_end = std::min(args.row_count, row_begin + kRowsPerTask);
    const size_t share = task % shares;
    const size_t share_begin = share == 0 ? 0 : share_ends_[share - 1];
    const size_t share_end = share_ends_[share];
    for (size_t i = 0; i < output_count; ++i) {
      const size_t begin = std::max(share_begin, panel_starts[i]);
      const size_t end = std::min(share_end, panel_starts[i + 1]);
      if (begin >= end) continue;
      PanelProductArgs product = products[i];
      product.row_begin = row_begin;
      product.row_end = row_end;
      product.panel_begin = static_cast<uint32_t>(begin - panel_starts[i]);
      product.panel_end = static_cast<uint32_t>(end - panel_starts[i]);
      kernels_.panel_product(product);
    }
  });
}

void CpuOps::RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) {
  CheckComputeStream(stream);
  const KvLayout& layout = *args.layout;
  CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= layout.head_dim);
  CHECK(args.layer < layout.layer_count);
  const size_t row_elements = size_t{args.head_count + 2 * layout.kv_head_count} * layout.head_dim;
  ForRows(static_cast<uint32_t>(args.batch->rows().size()), row_elements,
          [&](uint32_t begin, uint32_t end) { kernels_.rope_write_kv(args, begin, end); });
}

void CpuOps::PagedAttention(const PagedAttentionArgs& args, Stream& stream) {
  CheckComputeStream(stream);
  kernels_.paged_attention(args, pool_);
}

void CpuOps::SwiGlu(const SwiGluArgs& args, Stream& stream) {
  CheckComputeStream(stream);
  CHECK(args.width > 0);
  ForRows(args.row_count, args.width,
          [&](uint32_t begin, uint32_t end) { kernels_.swiglu(args, begin, end); });
}

const CpuKernels* FindKernels(const std::string& instruction_set) {
  if (instruction_set == kPortableKernels.instruction_set) return &kPortableKernels;
#if defined(__x86_64__)
  if (instruction_set == kAvx2Kernels.instruction_set) return &kAvx2Kernels;
  if (instruction_set == kAvx512Kernels.instruction_set) return &kAvx512Kernels;
#endif
  return nullptr;
}

bool ProcessorRuns(const CpuKernels& kernels) {
#if defined(__x86_64__)
  if (&kernels == &kAvx2Kernels) {
    // F16C is older than AVX2 and came with every processor that has it; not every compiler can ask
    // for it by name.
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
  if (&kernels == &kAvx512Kernels) {
    return ProcessorRuns(kAvx2Kernels) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  }
#endif
  return &kernels == &kPortableKernels;
}

const CpuKernels& BestKernels() {
#if defined(__x86_64__)
  if (ProcessorRuns(kAvx512Kernels)) return kAvx512Kernels;
  if (ProcessorRuns(kAvx2Kernels)) return kAvx2Kernels;
#endif
  return kPortableKernels;
}

Result<const CpuKernels*> ChooseKernels(const std::optional<std::string>& instruction_set) {
  if (!instruction_set.has_value()) return &BestKernels();
  const CpuKernels* const kernels = FindKernels(*instruction_set);
  if (kernels == nullptr) {
    return InvalidField("--instruction-set",
                        "must be portable, avx2 or avx512, is " + *instruction_set);
  }
  if (!ProcessorRuns(*kernels)) {
    return FailedPrecondition("this processor has no " + *instruction_set);
  }
  return kernels;
}

std::string ProcessorName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

Result<Backend> MakeCpuBackend(const CpuBackendOptions& options) {
  if (options.thread_count < 1 || options.thread_count > kThreadCountMax) {
    return InvalidField("thread_count", "must be in 1.." + std::to_string(kThreadCountMax) +
                                            ", is " + std::to_string(options.thread_count));
  }
  ASSIGN_OR_RETURN(const CpuKernels* kernels, ChooseKernels(options.instruction_set));
  Backend backend;
  backend.device = MakeCpuDevice({.backend = "cpu",
                                  .name = ProcessorName(),
                                  .instruction_set = kernels->instruction_set,
                                  .thread_count = options.thread_count,
                                  .memory_bytes = HostMemoryLimit()});
  backend.ops = std::make_unique<CpuOps>(*kernels, options.thread_count, options.mode);
  backend.arithmetic =
      std::string("cpu-") + kernels->instruction_set + "-" + ComputeModeName(options.mode);
  return backend;
}

}  // namespace cairn
