// The table of AVX-512: its own products; the row-wise operations, which wait for memory more than
// they compute, are those of AVX2.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx512.h"

namespace cairn {
namespace {

void PanelProduct(const PanelProductArgs& args) {
  switch (args.weight->format()) {
    case PanelFormat::kF32:
    case PanelFormat::kF16:
    case PanelFormat::kBF16:
      return FloatProductAvx512(args);
    case PanelFormat::kQ8Pairs:
      return PairProductAvx512(args);
    case PanelFormat::kQ4Quads:
    case PanelFormat::kQ4QuadsMin:
      return QuadProductAvx512(args);
  }
}

}  // namespace

constinit const CpuKernels kAvx512Kernels = {
    .instruction_set = "avx512",
    .quantize = QuantizeAvx2,
    .panel_product = PanelProduct,
    .rms_norm = RmsNormAvx2,
    .rope_write_kv = RopeWriteKvAvx2,
    .swiglu = SwiGluAvx2,
    .paged_attention = PagedAttentionAvx512,
};

}  // namespace cairn
