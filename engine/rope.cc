#include "engine/rope.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace cairn {

double ContextExtension(const ModelConfig& config, uint32_t context_length) {
  return std::max(1.0, static_cast<double>(context_length) / config.context_length);
}

std::vector<float> RopeCosSin(const ModelConfig& config, uint32_t position_count,
                              double extension) {
  CHECK(extension >= 1);
  const uint32_t pair_count = config.rope_dim / 2;
  CHECK(config.rope_factors.empty() || config.rope_factors.size() == pair_count);
  std::vector<double> frequencies(pair_count);
  for (uint32_t i = 0; i < pair_count; ++i) {
    const double factor = config.rope_factors.empty() ? 1 : config.rope_factors[i];
    frequencies[i] = std::pow(config.rope_base, -2.0 * i / config.rope_dim) / factor /
                     (config.rope_linear_factor * extension);
  }
  std::vector<float> table(size_t{position_count} * config.rope_dim);
  float* out = table.data();
  for (uint32_t position = 0; position < position_count; ++position) {
    for (const double frequency : frequencies) {
      *out++ = static_cast<float>(std::cos(position * frequency));
      *out++ = static_cast<float>(std::sin(position * frequency));
    }
  }
  return table;
}

}  // namespace cairn
