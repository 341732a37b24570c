// Speed of paged attention over scattered blocks on huge pages, beside what the machine can do at
// best in the same minute.
//
//   attention_bench [threads] [repetitions] [kv_heads group head_dim block_tokens]
//
// The defaults are 2 threads, 5 repetitions and the shape of SmolLM2-135M: 3 KV heads, 3 query
// heads each, 64 dimensions, 16 tokens a block. Every figure is the best of the repetitions over
// all layers of a step; each repetition measures the peaks again, and all cases in turn.
//   decode   GB of K and V that the rows of a step see, a second, beside the bandwidth of reading
//            one large buffer. (Only reading the same scattered blocks is slower; it is printed
//            too.) The rows of a batch have the same blocks in other orders.
//   prefill  GFLOP/s that causal attention needs, without any that a kernel does on top
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/bench/machine_peaks.h"

namespace cairn {
namespace {

constexpr uint32_t kLayers = 30;
constexpr uint32_t kContext = 8192;
constexpr uint32_t kRowsMax = 512;

using Attention = void (*)(const PagedAttentionArgs&, ThreadPool&);

struct Implementation {
  const char* name;
  Attention run;
};

// Those with vectors that this processor can run; the portable one only where there is no other.
std::vector<Implementation> Implementations() {
  std::vector<Implementation> all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    all.push_back({"avx2", PagedAttentionAvx2});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
      all.push_back({"avx512", PagedAttentionAvx512});
    }
  }
#endif
  if (all.empty()) all.push_back({"portable", PagedAttentionPortable});
  return all;
}

struct Case {
  Implementation implementation;
  uint32_t batch;  // segments
  uint32_t rows;   // of each
  uint32_t first_position;
  double best_seconds = 1e9;

  bool decode() const { return rows == 1; }
  uint32_t layers() const { return decode() ? kLayers : 2; }
};

class Bench {
 public:
  Bench(const KvLayout& layout, uint32_t group, uint32_t threads)
      : layout_(layout), group_(group), pool_(threads), memory_(Map(layout)) {
    Rng rng(1);
    const size_t halves = memory_.bytes().size() / 2;
    auto* half = reinterpret_cast<uint16_t*>(memory_.bytes().data());
    for (size_t i = 0; i < halves; ++i) {
      half[i] = FloatToHalf(static_cast<float>(MixBits(i) & 4095) / 1024.0f - 2.0f);
    }
    blocks_.resize(kContext / layout.block_tokens);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = memory_.bytes().data() + i * layout.block_bytes();
    }
    for (size_t i = blocks_.size(); i > 1; --i) std::swap(blocks_[i - 1], blocks_[rng.Below(i)]);
    q_.resize(kRowsMax * row_floats());
    for (float& x : q_) x = static_cast<float>(rng.Uniform() - 0.5) * 0.5f;
    out_.resize(q_.size());
  }

  void Measure(Case& c) {
    // Sequences of a batch are the same blocks in other orders.
    std::vector<std::vector<const std::byte*>> tables(c.batch, blocks_);
    std::vector<AttentionSegment> segments;
    for (uint32_t i = 0; i < c.batch; ++i) {
      std::rotate(tables[i].begin(), tables[i].begin() + i * tables[i].size() / c.batch,
                  tables[i].end());
      segments.push_back({i * c.rows, c.rows, c.first_position, tables[i].data()});
    }
    CpuComputeStream stream;
    Batch batch;
    batch.Set({}, segments, stream);
    const double seconds = SecondsOf([&] {
      for (uint32_t layer = 0; layer < c.layers(); ++layer) {
        c.implementation.run({.q = q_.data(),
                              .out = out_.data(),
                              .batch = &batch,
                              .segment_count = c.batch,
                              .layout = &layout_,
                              .layer = layer,
                              .head_count = group_ * layout_.kv_head_count},
                             pool_);
      }
    });
    c.best_seconds = std::min(c.best_seconds, seconds);
  }

  // Of reading all blocks in their order, layer by layer, as decode does.
  double MeasureBlockReadPeak() {
    std::vector<const std::byte*> slices;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const std::byte* block : blocks_) slices.push_back(block + layout_.key_offset(layer, 0));
    }
    return MeasureScatteredReadPeak(pool_, slices, layout_.layer_bytes(), 1);
  }

  void Print(const Case& c, double peak_fma, double peak_read) const {
    const double context = c.first_position + (c.rows + 1) / 2.0;
    const double flops = 4.0 * static_cast<double>(row_floats()) * context * c.rows * c.batch;
    const double bytes = static_cast<double>(layout_.token_bytes()) / kLayers * c.batch *
                         (c.first_position + c.rows);
    const double gflops = flops * c.layers() / c.best_seconds * 1e-9;
    const double gbytes = bytes * c.layers() / c.best_seconds * 1e-9;
    std::printf(
        "%-8s %-8s batch %u rows %3u at %4u: %8.3f ms  %6.1f GFLOP/s %4.0f %%  %5.1f GB/s %4.0f "
        "%%\n",
        c.implementation.name, c.decode() ? "decode" : "prefill", c.batch, c.rows, c.first_position,
        c.best_seconds * 1e3, gflops, 100 * gflops / peak_fma, gbytes, 100 * gbytes / peak_read);
  }

  ThreadPool& pool() { return pool_; }

 private:
  static HostMemory Map(const KvLayout& layout) {
    Result<HostMemory> memory = HostMemory::Map(layout.token_bytes() * kContext);
    CHECK(memory.ok());
    return std::move(*memory);
  }
  size_t row_floats() const { return size_t{group_} * layout_.kv_head_count * layout_.head_dim; }

  const KvLayout layout_;
  const uint32_t group_;
  ThreadPool pool_;
  HostMemory memory_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> q_;
  std::vector<float> out_;
};

int Main(int argc, char** argv) {
  std::vector<uint32_t> values = {2, 5, 3, 3, 64, 16};
  for (int i = 1; i < argc; ++i) {
    const uint64_t value = std::strtoul(argv[i], nullptr, 10);
    if (value == 0 || value > 65536 || i > static_cast<int>(values.size())) {
      std::fprintf(stderr,
                   "usage: attention_bench [threads] [repetitions] [kv_heads group head_dim "
                   "block_tokens]\n");
      return 2;
    }
    values[i - 1] = static_cast<uint32_t>(value);
  }
  KvLayout layout;
  layout.layer_count = kLayers;
  layout.kv_head_count = values[2];
  layout.head_dim = values[4];
  layout.block_tokens = values[5];
  Bench bench(layout, values[3], values[0]);

  std::vector<Case> cases;
  for (const uint32_t context : {64u, 512u, 2048u, 8000u, 8192u}) {
    for (const uint32_t batch : {1u, 8u}) {
      for (const Implementation& i : Implementations()) cases.push_back({i, batch, 1, context - 1});
    }
  }
  for (const uint32_t rows : {16u, 128u, 512u}) {
    for (const uint32_t depth : {0u, 2048u, 6144u}) {
      for (const Implementation& i : Implementations()) cases.push_back({i, 1, rows, depth});
    }
  }
  double peak_fma = 0;
  double peak_read = 0;
  double peak_blocks = 0;
  for (uint32_t repetition = 0; repetition < values[1]; ++repetition) {
    peak_fma = std::max(peak_fma, MeasureFmaPeak(bench.pool(), 1));
    peak_read = std::max(peak_read, MeasureReadPeak(bench.pool(), 1));
    peak_blocks = std::max(peak_blocks, bench.MeasureBlockReadPeak());
    for (Case& c : cases) bench.Measure(c);
  }
  std::printf("%u threads: FMA peak %.1f GFLOP/s, read peak %.1f GB/s, of the blocks %.1f GB/s\n",
              values[0], peak_fma, peak_read, peak_blocks);
  for (const Case& c : cases) bench.Print(c, peak_fma, peak_read);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
