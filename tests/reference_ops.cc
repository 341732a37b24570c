#include "tests/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"

namespace cairn::reference {
namespace {

double Normal(Rng& rng) {  // Box and Muller
  const double radius = std::sqrt(-2.0 * std::log(1.0 - rng.Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * rng.Uniform());
}

void Append(std::vector<std::byte>& bytes, const void* value, size_t size) {
  const auto* begin = static_cast<const std::byte*>(value);
  bytes.insert(bytes.end(), begin, begin + size);
}

void AppendHalf(std::vector<std::byte>& bytes, double value) {
  const uint16_t half = NearestHalf(value);
  Append(bytes, &half, sizeof(half));
}

void AppendFloat(TensorType type, double value, std::vector<std::byte>& bytes) {
  if (type == TensorType::kF16) return AppendHalf(bytes, value);
  const float number = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  const uint16_t bfloat = static_cast<uint16_t>(bits >> 16);
  if (type == TensorType::kBF16) return Append(bytes, &bfloat, sizeof(bfloat));
  Append(bytes, &number, sizeof(number));
}

// Quants fill their whole range, so the scale follows from the wanted deviation.
void AppendGroup(TensorType type, double deviation, Rng& rng, std::vector<std::byte>& bytes) {
  const double scale = deviation * (0.5 + rng.Uniform());
  if (type == TensorType::kQ8_0) {
    AppendHalf(bytes, scale / 74);  // the deviation of uniform bytes
    for (uint32_t i = 0; i < kQuantGroup; ++i)
      bytes.push_back(static_cast<std::byte>(rng.Below(256)));
    return;
  }
  AppendHalf(bytes, scale / 4.6);  // the deviation of uniform nibbles
  if (type == TensorType::kQ4_1)
    AppendHalf(bytes, -7.5 * scale / 4.6 * (0.8 + 0.4 * rng.Uniform()));
  for (uint32_t i = 0; i < kQuantGroup / 2; ++i) {
    bytes.push_back(static_cast<std::byte>(rng.Below(256)));
  }
}

uint16_t ReadHalf(const std::byte* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return half;
}

double ReadFloat(TensorType type, const std::byte* from) {
  if (type == TensorType::kF16) return HalfValue(ReadHalf(from));
  const uint32_t bfloat_bits = static_cast<uint32_t>(ReadHalf(from)) << 16;
  float value;
  std::memcpy(&value, type == TensorType::kBF16 ? static_cast<const void*>(&bfloat_bits) : from, 4);
  return value;
}

}  // namespace

double HalfValue(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  CHECK(exponent != 31);  // tests hold no infinities
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t NearestHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  // The spacing of halves around the value; rint rounds ties to even.
  const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : -14, -14);
  const double units = std::rint(std::ldexp(magnitude, 10 - exponent));
  const double bits = (exponent + 14) * 1024.0 + units;  // a carry moves into the exponent
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::min(bits, double{0x7bff})));
}

std::vector<float> RandomFloats(size_t count, double scale, Rng& rng) {
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(scale * Normal(rng));
  return numbers;
}

Matrix RandomMatrix(TensorType type, uint32_t rows, uint32_t cols, Rng& rng) {
  Matrix matrix = {type, rows, cols, {}};
  const uint32_t group_elements = TraitsOf(type).group_elements;
  const double deviation = 1.0 / std::sqrt(cols);
  for (size_t i = 0; i < size_t{rows} * cols; i += group_elements) {
    if (group_elements == 1) {
      AppendFloat(type, deviation * Normal(rng), matrix.bytes);
    } else {
      AppendGroup(type, deviation, rng, matrix.bytes);
    }
  }
  return matrix;
}

Decoded Decode(const Matrix& matrix) {
  const TensorTypeTraits traits = TraitsOf(matrix.type);
  const size_t count = size_t{matrix.rows} * matrix.cols;
  CHECK(matrix.bytes.size() == count / traits.group_elements * traits.group_bytes);
  Decoded decoded = {std::vector<double>(count), std::vector<double>(count)};
  const std::byte* group = matrix.bytes.data();
  for (size_t i = 0; i < count; i += traits.group_elements, group += traits.group_bytes) {
    if (traits.group_elements == 1) {
      decoded.values[i] = ReadFloat(matrix.type, group);
      decoded.magnitudes[i] = std::fabs(decoded.values[i]);
      continue;
    }
    const bool has_offset = matrix.type == TensorType::kQ4_1;
    const double scale = HalfValue(ReadHalf(group));
    const double offset = has_offset                         ? HalfValue(ReadHalf(group + 2))
                          : matrix.type == TensorType::kQ4_0 ? -8.0 * scale
                                                             : 0.0;
    const std::byte* const quants = group + (has_offset ? 4 : 2);
    for (uint32_t k = 0; k < kQuantGroup; ++k) {
      const double quant = matrix.type == TensorType::kQ8_0 ? static_cast<int8_t>(quants[k])
                           : k < 16                         ? static_cast<int>(quants[k]) % 16
                                                            : static_cast<int>(quants[k - 16]) / 16;
      decoded.values[i + k] = scale * quant + offset;
      decoded.magnitudes[i + k] = std::fabs(scale * quant) + std::fabs(offset);
    }
  }
  return decoded;
}

std::vector<double> MatMul(const Decoded& weight, uint32_t rows, uint32_t cols,
                           std::span<const float> x) {
  const size_t row_count = x.size() / cols;
  std::vector<double> y(row_count * rows);
  for (size_t i = 0; i < row_count; ++i) {
    for (size_t output = 0; output < rows; ++output) {
      double sum = 0;
      for (size_t k = 0; k < cols; ++k) sum += x[i * cols + k] * weight.values[output * cols + k];
      y[i * rows + output] = sum;
    }
  }
  return y;
}

NormedRow RmsNorm(std::span<const float> x, std::span<const float> delta,
                  std::span<const float> gain, double epsilon) {
  NormedRow row;
  double squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    row.x.push_back(x[i] + (delta.empty() ? 0.0 : delta[i]));
    squares += row.x[i] * row.x[i];
  }
  const double rms = std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  for (size_t i = 0; i < x.size(); ++i) row.out.push_back(row.x[i] / rms * gain[i]);
  return row;
}

std::vector<double> Rotate(std::span<const float> head, std::span<const float> cos_sin) {
  std::vector<double> rotated(head.begin(), head.end());
  for (size_t i = 0; i < cos_sin.size(); i += 2) {
    const double a = head[i], b = head[i + 1];
    rotated[i] = a * cos_sin[i] - b * cos_sin[i + 1];
    rotated[i + 1] = b * cos_sin[i] + a * cos_sin[i + 1];
  }
  return rotated;
}

double SwiGlu(double gate, double up) { return gate / (1.0 + std::exp(-gate)) * up; }

std::vector<BackendCase> AvailableBackends() {
  std::vector<BackendCase> backends;
  for (const char* instruction_set : {"portable", "avx2", "avx512"}) {
    for (const ComputeMode mode : {ComputeMode::kExact, ComputeMode::kFast}) {
      const CpuBackendOptions options = {1, mode, instruction_set};
      if (MakeCpuBackend(options).ok()) backends.push_back({instruction_set, mode});
    }
  }
  return backends;
}

Backend MakeBackend(const BackendCase& backend, uint32_t thread_count) {
  return *MakeCpuBackend({thread_count, backend.mode, backend.instruction_set});
}

}  // namespace cairn::reference
