// What a restore is planned from: where the blocks of a context lie and what it costs to bring them
// back. The costs mean exactly this:
//
// * One pass over n > 0 tokens takes what pass_costs.h says, evenly spread over the layers.
// * A channel that n > 0 blocks cross is done at `backlog_s + latency_s + n * block_s`. Blocks that
//   come through a channel with a `then` cross that one too, pipelined; all channels work at once.
// * Front computes the recomputed blocks in order, in passes of chunk_tokens / block_tokens of
//   them. A pass begins when the one before is over and all that is loaded before its last block is
//   there: on each channel, in load order, everything up to the last block that it needs. A pass
//   over the new tokens comes last, when everything is there; it costs `new_pass`, if there is one.
// * With `starts_early`, Front's passes are those that end first of all ways to cut the recomputed
//   blocks and the new tokens, in order, into passes of at most chunk_tokens (early_passes.h).
// * Wave computes recomputed blocks and new tokens together, layer by layer; the loads of a layer
//   are a share of 1/layers of all loads. With a channel's loads taking w seconds after its backlog
//   b, layer l is there at b + w * l / layers, or at b + w where blocks come whole; compute begins
//   when the first layer is there and its own backlog is done, and no layer is computed before it
//   is there. One pass has the first `wave_tokens_max` tokens; the others come in passes of as many
//   after it, for which everything is there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/check.h"
#include "offload/pass_costs.h"
#include "offload/restore_plan.h"

namespace cairn {

inline constexpr uint32_t kRestoreChannelsMax = 8;

// Where a block is to come from: through a channel, or one of these.
enum class BlockSource : uint8_t {
  kDevice = 254,  // it is there, or used where it lies
  kAbsent = 255,  // only computing it again brings it back
};
constexpr BlockSource ThroughChannel(uint32_t channel) { return BlockSource(channel); }
constexpr bool IsLoadable(BlockSource source) { return source < BlockSource::kDevice; }
constexpr uint32_t ChannelOf(BlockSource source) { return static_cast<uint32_t>(source); }

// What computing blocks again costs where running streams leave it only `share` of the time: rows
// that their passes carry for nothing, below the ridge, and so many more as take that share. It
// costs by the token then; there are no passes of its own.
PassCosts CostsBesideStreams(const PassCosts& alone, uint32_t decode_rows, double share);

struct RestoreChannel {
  double latency_s = 0;
  double block_s = 0;            // of a block: overhead of its copy, and its bytes
  std::optional<uint32_t> then;  // another channel; following these never comes back
  double backlog_s = 0;          // of loads that were ordered before
  // In Wave no layer of its blocks is there before all of them are.
  bool comes_whole = false;
};

struct RestoreProblem {
  std::span<const BlockSource> blocks;  // of the context, in order
  uint32_t new_tokens = 0;              // to compute after them; 0: a restore ahead of its use
  uint32_t block_tokens = 0;            // >= 1
  uint32_t layers = 0;                  // >= 1
  uint32_t chunk_tokens = 0;            // >= block_tokens
  PassCosts pass;
  std::optional<PassCosts> new_pass;         // of the new tokens, where those cost something else
  std::span<const RestoreChannel> channels;  // at most kRestoreChannelsMax
  double compute_backlog_s = 0;              // before the first pass can begin
  double uncertainty = 0;                    // of predictions, as a share of them
  double cut_share = 0.5;                    // of the context, for RestorePolicy::kCut: 0..1
  double weight = 1;                         // of its time among those of others, > 0
  // Executions that the caller can carry out beside load-all and recompute-all.
  bool allows_front = true;
  bool allows_wave = true;
  NoWave no_wave = NoWave::kNone;         // why there is no Wave
  bool starts_early = false;              // Front, as above
  uint64_t wave_tokens_max = UINT64_MAX;  // of one pass of Wave, >= 1
};

}  // namespace cairn
