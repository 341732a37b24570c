// How near the products come to what the machine can do: kernel_bench [threads] [seconds a point].
//
// Each round measures the two ceilings (fused multiply-adds out of registers, streaming reads out
// of memory) and every product once, so that all of them see the same weather; the best of the
// rounds counts. Figures of merit are the ratios. Weights of products with few rows are cold: they
// are taken in turn from so many copies that no cache holds them, as in a forward pass.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/bench/machine_peaks.h"

namespace cairn {
namespace {

constexpr uint32_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 128, 512};
constexpr uint32_t kRowCountMax = 512;
constexpr size_t kColdBytes = size_t{192} << 20;
constexpr int kRounds = 5;

struct Product {
  TensorType type;
  uint32_t rows, cols;
  ComputeMode mode;
};
constexpr Product kProducts[] = {
    {TensorType::kQ4_1, 1536, 576, ComputeMode::kFast},
    {TensorType::kQ4_1, 1536, 576, ComputeMode::kExact},
    {TensorType::kQ4_0, 1536, 576, ComputeMode::kFast},
    {TensorType::kQ4_1, 576, 1536, ComputeMode::kFast},
    {TensorType::kQ4_1, 192, 576, ComputeMode::kFast},
    {TensorType::kQ8_0, 49152, 576, ComputeMode::kExact},
    {TensorType::kF32, 1536, 576, ComputeMode::kExact},
    {TensorType::kF16, 1536, 576, ComputeMode::kExact},
};

// The shortest of as many calls as fit the time, at least three.
template <class F>
double BestSeconds(double seconds, F&& f) {
  double best = 1e9, total = 0;
  for (int calls = 0; calls < 3 || total < seconds; ++calls) {
    const double spent = SecondsOf(f);
    best = std::min(best, spent);
    total += spent;
  }
  return best;
}

// A product with weights of random bits but sane scales.
class ProductBench {
 public:
  ProductBench(const Product& product, uint32_t thread_count, Rng& rng)
      : product_(product),
        backend_(*MakeCpuBackend({thread_count, product.mode, {}})),
        stream_(*backend_.device->NewStream(StreamUse::kCompute)),
        x_(size_t{kRowCountMax} * product.cols),
        y_(size_t{kRowCountMax} * product.rows) {
    for (float& value : x_) value = static_cast<float>(rng.Uniform() - 0.5);
    const TensorTypeTraits traits = TraitsOf(product.type);
    std::vector<std::byte> bytes(size_t{product.rows} * product.cols / traits.group_elements *
                                 traits.group_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Next() & 0x3b);  // no NaN
    const MatrixView view = {product.type, product.rows, product.cols, bytes};
    do {
      copies_.push_back(*backend_.ops->Pack(view));
    } while (copies_.size() * copies_[0]->size_bytes() < kColdBytes);
  }

  const Product& product() const { return product_; }
  double weight_bytes() const { return static_cast<double>(copies_[0]->size_bytes()); }
  double operations(uint32_t row_count) const {
    return 2.0 * row_count * product_.rows * product_.cols;
  }

  double Seconds(uint32_t row_count, double seconds) {
    const int calls = row_count <= 16 && copies_.size() > 8 ? 8 : 1;
    return BestSeconds(
               seconds,
               [&] {
                 for (int i = 0; i < calls; ++i) {
                   const MatMulOutput output = {copies_[next_++ % copies_.size()].get(), y_.data()};
                   backend_.ops->MatMul({x_.data(), row_count, {&output, 1}}, *stream_);
                 }
               }) /
           calls;
  }

 private:
  const Product product_;
  Backend backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<float> x_, y_;
  std::vector<std::unique_ptr<Weight>> copies_;
  size_t next_ = 0;
};

int Main(uint32_t thread_count, double seconds) {
  ThreadPool pool(thread_count);
  Rng rng(1);
  std::vector<std::unique_ptr<ProductBench>> benches;
  for (const Product& product : kProducts) {
    benches.push_back(std::make_unique<ProductBench>(product, thread_count, rng));
  }

  double fma_peak = 0, bandwidth = 0;
  std::vector<std::vector<double>> best(benches.size(),
                                        std::vector<double>(std::size(kRowCounts), 1e9));
  for (int round = 0; round < kRounds; ++round) {
    fma_peak = std::max(fma_peak, MeasureFmaPeak(pool, 1));
    bandwidth = std::max(bandwidth, MeasureReadPeak(pool, 2));
    for (size_t i = 0; i < benches.size(); ++i) {
      for (size_t j = 0; j < std::size(kRowCounts); ++j) {
        best[i][j] = std::min(best[i][j], benches[i]->Seconds(kRowCounts[j], seconds));
      }
    }
  }

  std::printf("%u threads: FMA peak %.0f GFLOP/s, stream %.1f GB/s\n", thread_count, fma_peak,
              bandwidth);
  std::printf("%-26s", "GFLOP/s (/ FMA peak) at M =");
  for (uint32_t row_count : kRowCounts) std::printf(" %12u", row_count);
  std::printf("   GB/s at M = 1 (/ stream)\n");
  for (size_t i = 0; i < benches.size(); ++i) {
    const Product& product = benches[i]->product();
    std::printf("%-4s %5u x %-5u %-6s", TraitsOf(product.type).name, product.rows, product.cols,
                ComputeModeName(product.mode));
    for (size_t j = 0; j < std::size(kRowCounts); ++j) {
      const double rate = benches[i]->operations(kRowCounts[j]) / best[i][j] * 1e-9;
      std::printf("  %5.0f (%.2f)", rate, rate / fma_peak);
    }
    const double bytes = benches[i]->weight_bytes() / best[i][0] * 1e-9;
    std::printf("   %5.1f (%.2f)\n", bytes, bytes / bandwidth);
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const int thread_count = argc > 1 ? std::atoi(argv[1]) : 1;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.02;
  if (thread_count < 1 || thread_count > 256 || seconds <= 0) {
    std::fprintf(stderr, "usage: kernel_bench [threads 1..256] [seconds a point]\n");
    return 2;
  }
  return cairn::Main(static_cast<uint32_t>(thread_count), seconds);
}
