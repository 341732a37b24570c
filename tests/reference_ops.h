// Every operation of kernels/ops.h in double precision, as plainly as its definition reads: the one
// reference that all backends are compared with. Also the test matrices of every tensor type, and
// the list of backends that this machine can run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace cairn::reference {

// IEEE float16, written independently of the kernels' conversions.
double HalfValue(uint16_t half);
uint16_t NearestHalf(double value);  // ties to even; beyond the range: the largest finite half

// Standard normal numbers times `scale`.
std::vector<float> RandomFloats(size_t count, double scale, Rng& rng);

// A matrix in a file's format. Values are about normal with a deviation of 1 / sqrt(cols).
struct Matrix {
  TensorType type;
  uint32_t rows;
  uint32_t cols;
  std::vector<std::byte> bytes;

  MatrixView view() const { return {type, rows, cols, bytes}; }
};
Matrix RandomMatrix(TensorType type, uint32_t rows, uint32_t cols, Rng& rng);

// Element [row][col] is scale * quant + offset; for float types scale is 1 and offset 0.
struct Decoded {
  std::vector<double> values;      // [rows][cols]
  std::vector<double> magnitudes;  // |scale * quant| + |offset|: what rounding errors scale with
};
Decoded Decode(const Matrix& matrix);

std::vector<double> MatMul(const Decoded& weight, uint32_t rows, uint32_t cols,
                           std::span<const float> x);

// One row.
struct NormedRow {
  std::vector<double> x;    // with delta added
  std::vector<double> out;  // normalised
};
NormedRow RmsNorm(std::span<const float> x, std::span<const float> delta,
                  std::span<const float> gain, double epsilon);

// One head, rotated by its position's (cos, sin) pairs.
std::vector<double> Rotate(std::span<const float> head, std::span<const float> cos_sin);

double SwiGlu(double gate, double up);

// A backend under test.
struct BackendCase {
  std::string instruction_set;
  ComputeMode mode;
  std::string Name() const { return instruction_set + "_" + ComputeModeName(mode); }
};
std::vector<BackendCase> AvailableBackends();
Backend MakeBackend(const BackendCase& backend, uint32_t thread_count);

}  // namespace cairn::reference
