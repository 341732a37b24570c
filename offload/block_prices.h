// What it takes to have a block again once a copy of it is gone, and to write one down: seconds, as
// measured lately. Values; BlockStore makes them from what its channels show and from what the
// engine says of passes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "offload/block.h"
#include "offload/pass_fit.h"

namespace cairn {

// Computing a block in a pass with many others: later ones attend to more.
struct RecomputePrice {
  double block_s = 0;     // at position 0
  double position_s = 0;  // more for each position before it

  double Seconds(uint32_t first_position) const { return block_s + position_s * first_position; }
};

// `chunk_tokens` of them in one pass.
inline RecomputePrice RecomputePriceOf(const PassCosts& pass, uint32_t chunk_tokens,
                                       uint32_t block_tokens) {
  return {.block_s = pass.FixedSeconds(chunk_tokens) * block_tokens / chunk_tokens +
                     pass.PositionSeconds(chunk_tokens, PositionSum(0, block_tokens)),
          .position_s = pass.PositionSeconds(chunk_tokens, block_tokens)};
}

// Until passes were measured: only their shape matters then.
inline constexpr RecomputePrice kNominalRecompute{.block_s = 0.016, .position_s = 0.016 / 4096};
// Loading a block over computing it, until loads were measured.
inline constexpr double kNominalReloadShare = 1.0 / 16;

struct BlockPrices {
  std::optional<RecomputePrice> recompute;  // none: not measured yet, as below
  std::optional<double> host_s;             // a load from the host pool
  std::optional<double> disk_s;             // a load from the disk
  double write_s = 0;                       // a write to the disk; 0: not known

  double Recompute(uint32_t first_position) const {
    return recompute.value_or(kNominalRecompute).Seconds(first_position);
  }

  // Bringing back a block that lies at `origin`. Restores load and compute at once, so a block with
  // a copy costs what both together take: between the cheaper way and half of it.
  double BringBack(Origin origin, uint32_t first_position) const {
    if (origin == Origin::kResident) return 0;
    const double recompute_s = Recompute(first_position);
    if (origin == Origin::kAbsent) return recompute_s;
    const double reload_s =
        (origin == Origin::kHost ? host_s : disk_s).value_or(recompute_s * kNominalReloadShare);
    return reload_s <= 0 ? 0 : recompute_s * reload_s / (recompute_s + reload_s);
  }

  // Blocks before this position are cheaper to compute than to write.
  uint32_t FirstWorthWriting() const {
    if (!recompute || write_s <= recompute->block_s) return 0;
    const double position = (write_s - recompute->block_s) / recompute->position_s;  // or infinite
    constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
    return position < kNever ? static_cast<uint32_t>(std::ceil(position)) : kNever;
  }
};

}  // namespace cairn
