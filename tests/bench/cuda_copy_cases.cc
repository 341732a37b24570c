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
    std::vector<cuda::BlockCopy> slices[2];
    for (size_t at = 0; at < bytes; at += size.layer_bytes) {
      slices[0].push_back({on_host_->data() + at, on_device_->data() + at});
      slices[1].push_back({on_device_->data() + at, on_host_->data() + at});
    }
    for (int way = 0; way < 2; ++way) {
      const size_t list_bytes = slices[way].size() * sizeof(cuda::BlockCopy);
      lists_[way] = Require(device.Allocate(list_bytes));
      stream_->Copy(lists_[way]->data(), slices[way].data(), list_bytes);
    }
    Require(stream_->Synchronize());
  }

  double bytes() const { return static_cast<double>(size_.count) * size_.block_bytes(); }

  // A copy a block, as the tiers' queue makes them.
  double CopySeconds(bool to_device, const Effort& effort) {
    return DeviceSeconds(*stream_, effort, [&] {
      for (uint32_t i = 0; i < size_.count; ++i) {
        const size_t at = i * size_.block_bytes();
        std::byte* const device = on_device_->data() + at;
        std::byte* const host = on_host_->data() + at;
        stream_->Copy(to_device ? device : host, to_device ? host : device, size_.block_bytes());
      }
    });
  }
  // A kernel that moves each layer of each block.
  double KernelSeconds(bool to_device, const Effort& effort) {
    auto& stream = static_cast<cuda::CudaStream&>(*stream_);
    const auto* const list =
        reinterpret_cast<const cuda::BlockCopy*>(lists_[to_device ? 0 : 1]->data());
    return DeviceSeconds(*stream_, effort, [&] {
      stream.Note(cuda::LaunchBlockCopies(list, size_.count * size_.layers, size_.layer_bytes,
                                          stream.handle()));
    });
  }

 private:
  const BlockSize size_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> on_device_, on_host_;
  std::unique_ptr<Buffer> lists_[2];
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
      print("layers of blocks of", problem.KernelSeconds(to_device, options.effort), false);
    }
  }
}

}  // namespace cairn
