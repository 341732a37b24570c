// The life of one KV block. Only BlockStore moves a block along an edge; [x] names its method.
//
//   (no block) --[Reserve, CopyPrefix]--> kFilling --[Seal, Park]--> kHot --[Evict]--> (no block)
//                                             |
//                                             +--[last Hold dropped]--> (no block)
//
// kFilling  one sequence writes it; nobody else can see it.
// kHot      sealed: on the device, complete and immutable, found by its tokens. A full block comes
//           from Seal; a parked tail, which has fewer tokens than a block, from Park.
//
// A further tier adds states between kHot and (no block), with edges out (demote) and back
// (reload); what is held stays kHot, so users of Holds do not see them.
//
// (1) A block owns a device slot in kFilling and in kHot.
// (2) A sealed block's bytes never change, so any copy of it is as good as any other.
// (3) A kFilling block is held; a held block is never evicted. A parked tail is held only while
//     CopyPrefix reads it.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "kernels/device.h"
#include "offload/block_key.h"

namespace cairn {

// Where the fastest copy of a block lies; kAbsent: only computing it again brings it back. The
// store has a device tier so far, so its answers are kDevice and kAbsent.
enum class Tier : uint8_t { kAbsent, kDevice, kHost, kDisk, kRemote };

enum class BlockState : uint8_t { kFilling, kHot };

// What BlockStore knows of a block.
struct BlockMeta {
  BlockState state = BlockState::kFilling;
  SlotId slot;
  EventRef ready;  // the copy that began the block; null when there was none
  uint32_t hold_count = 0;

  // Of sealed blocks.
  BlockKey key;  // of full ones
  BlockKey parent;
  std::vector<uint32_t> tail_tokens;  // of parked ones; what full ones hold is in the PrefixIndex
  uint32_t first_position = 0;
  uint32_t token_count = 0;
  uint32_t priority = 0;
  bool reused = false;  // it was found again
  uint64_t seal_order = 0;
  Clock::Monotonic last_use;  // when its last Hold ended, or it was copied from
  uint64_t use_order = 0;     // unique; grows from use to use
};

inline constexpr uint32_t kPriorityMax = 100;  // 0 goes first, 100 stays longest
inline constexpr uint32_t kPriorityDefault = 50;

}  // namespace cairn
