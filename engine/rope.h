// The rotation table of rotary position embeddings (Su et al. 2021), for Ops::RopeWriteKv.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/checkpoint.h"

namespace cairn {

// How far positions must be drawn together so that `context_length` of them span what the model was
// trained for (linear position interpolation: Chen et al. 2023): at least 1.
double ContextExtension(const ModelConfig& config, uint32_t context_length);

// [position][rope_dim / 2][2]: cosine and sine of the angle
//
//   position / (rope_linear_factor * extension) * rope_base^(-2 i / rope_dim) / rope_factors[i]
//
// for i in 0 .. rope_dim / 2, computed in double precision. `extension` >= 1.
std::vector<float> RopeCosSin(const ModelConfig& config, uint32_t position_count,
                              double extension = 1);

}  // namespace cairn
