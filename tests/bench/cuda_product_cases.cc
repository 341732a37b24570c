#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/bench/cuda_cases.h"

namespace cairn {
namespace {

constexpr double kGoal = 0.75;  // of the copy bandwidth
constexpr size_t kColdBytes = size_t{256} << 20;
constexpr uint32_t kRowCounts[] = {1, 2, 4, 8, 16};
constexpr uint32_t kRowCountMax = 16;

// `outputs` products of [rows, cols] that share their activations, on as many copies of the weights
// as no cache holds.
struct ProductShape {
  uint32_t outputs;
  uint32_t rows;
  uint32_t cols;
  bool has_goal;
};
constexpr ProductShape kShapes[] = {
    {2, 14336, 4096, true}, {1, 4096, 14336, true}, {1, 4096, 4096, false}};
constexpr ProductShape kTinyShapes[] = {{2, 40, 64, true}};

class ProductProblem {
 public:
  ProductProblem(Backend& backend, TensorType type, const ProductShape& shape, size_t cold_bytes)
      : backend_(backend), shape_(shape) {
    stream_ = Require(backend.device->NewStream(StreamUse::kCompute));
    Rng rng(6);
    const TensorTypeTraits traits = TraitsOf(type);
    std::vector<std::byte> bytes(size_t{shape.rows} * shape.cols / traits.group_elements *
                                 traits.group_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Next() & 0x3b);  // no NaN
    do {
      weights_.push_back(Require(backend.ops->Pack({type, shape.rows, shape.cols, bytes})));
    } while (weights_.size() % shape.outputs != 0 ||
             weights_.size() * weights_[0]->size_bytes() < cold_bytes);
    std::vector<float> values(size_t{kRowCountMax} * shape.cols);
    for (float& value : values) value = static_cast<float>(rng.Uniform() - 0.5);
    x_ = Require(backend.device->Allocate(values.size() * sizeof(float)));
    stream_->Copy(x_->data(), values.data(), values.size() * sizeof(float));
    y_ = Require(backend.device->Allocate(size_t{shape.outputs} * kRowCountMax * shape.rows *
                                          sizeof(float)));
    Require(stream_->Synchronize());
  }

  double weight_bytes() const {
    return static_cast<double>(weights_[0]->size_bytes()) * shape_.outputs;
  }
  double Seconds(uint32_t row_count, const Effort& effort) {
    return DeviceSeconds(*stream_, effort, [&] { Multiply(row_count); });
  }

 private:
  void Multiply(uint32_t row_count) {
    std::vector<MatMulOutput> outputs;
    for (uint32_t i = 0; i < shape_.outputs; ++i) {
      outputs.push_back(
          {weights_[next_++ % weights_.size()].get(),
           reinterpret_cast<float*>(y_->data()) + size_t{i} * kRowCountMax * shape_.rows});
    }
    backend_.ops->MatMul({reinterpret_cast<const float*>(x_->data()), row_count, outputs},
                         *stream_);
  }

  Backend& backend_;
  const ProductShape shape_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Weight>> weights_;
  std::unique_ptr<Buffer> x_, y_;
  size_t next_ = 0;
};

}  // namespace

void MeasureProducts(Backend& backend, const CaseOptions& options) {
  for (const TensorType type : {TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ8_0}) {
    const std::span<const ProductShape> shapes =
        options.tiny ? std::span<const ProductShape>(kTinyShapes) : kShapes;
    for (const ProductShape& shape : shapes) {
      ProductProblem problem(backend, type, shape, options.tiny ? 0 : kColdBytes);
      for (const uint32_t row_count : kRowCounts) {
        const double rate = problem.weight_bytes() / problem.Seconds(row_count, options.effort);
        Print({.name = std::string(TraitsOf(type).name) + ", " +
                       std::to_string(shape.outputs * shape.rows) + " x " +
                       std::to_string(shape.cols) + ", " + std::to_string(row_count) + " rows",
               .value = rate * 1e-9,
               .unit = "GB/s",
               .ratio = rate / options.peaks.copy_bytes_s,
               .of = "copies",
               .at_least = shape.has_goal ? kGoal : 0});
      }
    }
  }
}

}  // namespace cairn
