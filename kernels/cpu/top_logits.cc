#include "kernels/cpu/top_logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace cairn {
namespace {

float ValueOf(float logit) {
  if (std::isnan(logit)) return -std::numeric_limits<float>::infinity();
  const float value = std::min(logit, std::numeric_limits<float>::max());
  return value == 0 ? 0 : value;  // not negative
}

}  // namespace

void SelectTopLogits(const TopLogitsArgs& args) {
  std::vector<RankedLogit> all(args.width);
  for (uint32_t row = 0; row < args.row_count; ++row) {
    const float* const logits = args.logits + size_t{row} * args.width;
    for (uint32_t id = 0; id < args.width; ++id) all[id] = {ValueOf(logits[id]), id};
    std::partial_sort_copy(all.begin(), all.end(), args.out + size_t{row} * args.count,
                           args.out + size_t{row + 1} * args.count, RanksBefore);
  }
}

}  // namespace cairn
