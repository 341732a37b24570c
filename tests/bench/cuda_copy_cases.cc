#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/block_copies.h"
#include "kernels/cuda/cuda_stream.h"
#include "tests/bench/cuda_cases.h"

namespace cairn {
namespace {

constexpr double kGoal = 0.9;  // of a plain copy between page-locked memory and the device

struct BlockSize {
  uint32_t layers;
  size_t layer_bytes;
  uint32_t count;
  bool has_goal;
  size_t block_bytes() const { return layers * layer_bytes; }
};
// The 8B model's blocks of 16 tokens, and those of a model of 135M.
constexpr BlockSize kBlockSizes[] = {{32, 64 << 10, 128, true}, {30, 12288, 256, true}};
constexpr BlockSize kTinySizes[] = {{2, 256, 3, true}};

class CopyProblem {
 public:
  CopyProblem(Device& device, const BlockSize& size) : size_(size) {
    stream_ = Require(device.NewStream(StreamUse::kCopy));
    const size_t bytes = size.count * size.block_bytes();
    on_device_ = Require(device.Allocate(bytes));
    on_host_ = Require(device.AllocateHost(bytes));
    for (const bool to_device : {false, true}) {
      blocks_[to_device] = PartsOf(to_device, size.block_bytes());
      layers_[to_device] = PartsOf(to_device, size.layer_bytes);
    }
    Require(stream_->Synchronize());
  }

  double bytes() const { return static_cast<double>(size_.count) * size_.block_bytes(); }

  // A copy a block.
  double CopySeconds(bool to_device, const Effort& effort) {
    return DeviceSeconds(*stream_, effort, [&] {
      for (const CopyPart& part : blocks_[to_device]) {
        stream_->Copy(part.to, part.from, part.size_bytes);
      }
    });
  }
  // All in one call, as the tiers' queue makes them.
  double BatchSeconds(bool to_device, const Effort& effort) {
    return DeviceSeconds(*stream_, effort, [&] { stream_->CopyBatch(blocks_[to_device]); });
  }
  // A kernel that moves each layer of each block.
  double KernelSeconds(bool to_device, const Effort& effort) {
    auto& stream = static_cast<cuda::CudaStream&>(*stream_);
    return DeviceSeconds(*stream_, effort, [&] {
      stream.Note(cuda::LaunchBlockCopies(layers_[to_device], stream.handle()));
    });
  }

 private:
  std::vector<CopyPart> PartsOf(bool to_device, size_t part_bytes) {
    std::vector<CopyPart> parts;
    for (size_t at = 0; at < on_host_->size_bytes(); at += part_bytes) {
      std::byte* const device = on_device_->data() + at;
      std::byte* const host = on_host_->data() + at;
      parts.push_back({to_device ? device : host, to_device ? host : device, part_bytes});
    }
    return parts;
  }

  const BlockSize size_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> on_device_, on_host_;
  std::vector<CopyPart> blocks_[2], layers_[2];  // to the host, to the device
};

}  // namespace

void MeasureBlockCopies(Backend& backend, const CaseOptions& options) {
  const std::span<const BlockSize> sizes =
      options.tiny ? std::span<const BlockSize>(kTinySizes) : kBlockSizes;
  for (const BlockSize& size : sizes) {
    CopyProblem problem(*backend.device, size);
    for (const bool to_device : {true, false}) {
      const double peak =
          to_device ? options.peaks.to_device_bytes_s : options.peaks.to_host_bytes_s;
      const auto print = [&](const char* how, double seconds, bool has_goal) {
        const double rate = problem.bytes() / seconds;
        Print({.name = std::string(to_device ? "to the device, " : "to the host, ") + how + " " +
                       std::to_string(size.block_bytes()) + " bytes",
               .value = rate * 1e-9,
               .unit = "GB/s",
               .ratio = rate / peak,
               .of = "a plain copy",
               .at_least = has_goal ? kGoal : 0});
      };
      print("blocks of", problem.CopySeconds(to_device, options.effort), size.has_goal);
      print("blocks in one call of", problem.BatchSeconds(to_device, options.effort),
            size.has_goal);
      print("layers of blocks of", problem.KernelSeconds(to_device, options.effort), false);
    }
  }
}

}  // namespace cairn
