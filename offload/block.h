// The life of one KV block. Only BlockStore moves a block along an edge; [x] names its method.
//
//   (no block) --[Reserve, CopyPrefix]--> filling --[Seal, Park]--> hot
//                                            |
//                                            +--[last Hold dropped]--> (no block)
//
//        hot <---[Demote]---> warm          copies of one sealed block, each a place where its
//         ^ \                /              bytes lie; a block may have several at once:
//   [Load] \ [Spill]  [Spill]               hot   in a slot of the device pool
//           \   v      v                    warm  in a slot of the host pool
//            +-- cold                       cold  in a record on disk
//
//   the last copy is gone [Evict, Drop, a record that fails] --> (no block), once no Hold is left
//
// A move along an edge between copies takes time. Its source stays until it is over, its target
// belongs to the move, and the new copy counts only then.
//
// (1) A filling block has one memory slot and one Hold. Nobody else can see it.
// (2) A sealed block's bytes never change, so any copy of it is as good as any other.
// (3) A sealed block is resident when the model can attend to it where it lies: on the device, and
//     in the host pool too if the device reads host memory. A resident block that is held stays so.
// (4) A block is held while it is not resident only while it is being loaded, or when its load has
//     failed (lost): whoever holds it then computes it again, and the first to seal it makes it
//     resident for all.
// (5) A parked tail has fewer tokens than a block. It has no copy on disk, and is held only while
//     CopyPrefix reads it.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>

#include "base/clock.h"
#include "base/ids.h"
#include "kernels/device.h"
#include "offload/block_key.h"
#include "offload/prefix_index.h"
#include "offload/spill_store.h"

namespace cairn {

// Where the fastest copy of a block lies; kAbsent: only computing it again brings it back.
enum class Tier : uint8_t { kAbsent, kDevice, kHost, kDisk, kRemote };

// What it takes to use a block: nothing, a copy from the host pool or from disk, or computing it.
enum class Origin : uint8_t { kResident, kHost, kDisk, kAbsent };

enum class BlockState : uint8_t { kFilling, kSealed };

// A move of a block's bytes that is under way.
using MoveId = StrongId<struct MoveIdTag, uint64_t>;

// What BlockStore knows of a block. There are far more on disk than in memory, so it is small.
struct BlockMeta {
  BlockState state = BlockState::kFilling;
  // Of sealed blocks.
  uint8_t token_count = 0;  // of a parked tail fewer than a block has
  uint8_t priority = 0;
  bool reused_since_spill = false;  // as reuse_count, counted from when its record was written
  bool doomed = false;              // to be dropped when the move that reads it is over
  uint32_t first_position = 0;
  uint32_t reuse_count = 0;  // how often it was found again

  uint32_t hold_count = 0;
  SlotId device;  // the copies: none where it is not valid
  SlotId host;
  RecordId record;
  EventRef ready;  // the copy that began the block; null when there was none
  MoveId load;     // brings a copy to where the block is resident
  MoveId store;    // reads a memory slot, to make a copy further down

  // Of sealed blocks.
  const PrefixIndex::Entry* entry = nullptr;  // its own; of a parked tail: of what it follows
  uint64_t seal_order = 0;
  Clock::Monotonic last_use;  // when its last Hold ended, or it was copied from
  uint64_t use_order = 0;     // unique; grows from use to use
};

inline constexpr uint32_t kPriorityMax = 100;  // 0 goes first, 100 stays longest
inline constexpr uint32_t kPriorityDefault = 50;
// What the user's wish counts for, beside the default: every ten are a factor of two.
inline double PriorityWeight(uint32_t priority) {
  return std::exp2((static_cast<double>(priority) - kPriorityDefault) / 10);
}

}  // namespace cairn
