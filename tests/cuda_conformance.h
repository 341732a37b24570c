// What the conformance tests of the CUDA kernels share: a machine with a backend, and arrays in its
// memory. Shapes are small, since an emulated machine runs them too.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cuda_machine.h"
#include "tests/reference_ops.h"

namespace cairn {

constexpr double kUlp = 0x1p-24;  // of one rounding to float32, relative

inline constexpr TensorType kTensorTypes[] = {TensorType::kF32,  TensorType::kF16,
                                              TensorType::kBF16, TensorType::kQ8_0,
                                              TensorType::kQ4_0, TensorType::kQ4_1};

template <class T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class CudaConformance : public testing::TestWithParam<std::tuple<CudaMachine, ComputeMode>> {
 protected:
  // Some elements in the device's memory.
  template <class T>
  class Array {
   public:
    Array(CudaConformance& test, const std::vector<T>& values)
        : test_(test), count_(values.size()) {
      buffer_ = *test.device().Allocate(std::max<size_t>(1, count_) * sizeof(T));
      test.stream().Copy(buffer_->data(), values.data(), count_ * sizeof(T));
      EXPECT_TRUE(test.stream().Synchronize().ok());
    }
    T* data(size_t index = 0) { return reinterpret_cast<T*>(buffer_->data()) + index; }
    std::vector<T> Read() {
      std::vector<T> values(count_);
      test_.stream().Copy(values.data(), buffer_->data(), count_ * sizeof(T));
      const Status status = test_.stream().Synchronize();
      EXPECT_TRUE(status.ok()) << status.ToString();
      return values;
    }

   private:
    CudaConformance& test_;
    size_t count_;
    std::unique_ptr<Buffer> buffer_;
  };
  using Floats = Array<float>;

  static constexpr BatchLimits kLimits = {
      .rows_max = 512, .contexts_max = 8, .context_blocks_max = 64, .block_tokens = 16};

  void SetUp() override {
    StartMachine(std::get<0>(GetParam()));
    backend_ = *MakeCudaTestBackend(mode());
    stream_ = *backend_.device->NewStream(StreamUse::kCompute);
    batch_ = *ops().NewBatch(kLimits);
  }
  void TearDown() override {
    batch_.reset();
    stream_.reset();
    backend_ = {};
    ExpectNothingFound();
  }

  ComputeMode mode() const { return std::get<1>(GetParam()); }
  // One machine goes through every shape, the others through some: they differ in the order of
  // threads alone.
  bool is_thorough() const { return std::get<0>(GetParam()).index == 0; }
  Device& device() { return *backend_.device; }
  Ops& ops() { return *backend_.ops; }
  Stream& stream() { return *stream_; }
  const Batch& SetBatch(std::span<const BatchRow> rows,
                        std::span<const AttentionSegment> segments = {}) {
    batch_->Set(rows, segments, *stream_);
    return *batch_;
  }

 private:
  Backend backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Batch> batch_;
};

inline std::string MachineName(const testing::TestParamInfo<CudaConformance::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + ComputeModeName(std::get<1>(info.param));
}

}  // namespace cairn
