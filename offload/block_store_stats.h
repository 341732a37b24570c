// What a BlockStore tells of itself, as numbers.
#pragma once

#include <cstdint>

namespace cairn {

// Counts since the start, except for the gauges.
struct BlockStoreStats {
  // Gauges, in blocks. Slots where blocks are resident: capacity = free + filling + hot +
  // in_flight; hot = held_hot + busy + evictable, evictable = clean + dirty.
  uint32_t capacity = 0;
  uint32_t free = 0;
  uint32_t filling = 0;
  uint32_t hot = 0;  // sealed and resident
  uint32_t held_hot = 0;
  uint32_t busy = 0;       // not held, but a move reads it
  uint32_t evictable = 0;  // the rest: tails and those with a copy further down, or the others
  uint32_t clean = 0;
  uint32_t dirty = 0;
  uint32_t in_flight = 0;  // slots that moves write
  uint32_t cold = 0;       // sealed and not resident
  uint32_t parked = 0;     // tails, part of evictable
  uint64_t block_bytes = 0;
  // Of each pool: slots, and those that are not free.
  uint32_t device_capacity = 0;
  uint32_t device_used = 0;
  uint32_t host_capacity = 0;
  uint32_t host_used = 0;

  uint64_t hits = 0;             // blocks that Match found, resident or on their way
  uint64_t misses = 0;           // full blocks that it looked for in vain
  uint64_t prefix_copies = 0;    // blocks that CopyPrefix began with another's bytes
  uint64_t seals = 0;            // blocks that became hot
  uint64_t duplicate_seals = 0;  // sealed while an equal block was there: one of the two freed
  uint64_t collisions = 0;       // sealed while the key was taken by other tokens: not findable
  uint64_t evictions = 0;        // left a pool because slots of it were needed
  uint64_t host_evictions = 0;   // of them, the host's pool
  uint64_t losses = 0;           // of them those without another copy
  uint64_t drops = 0;            // dropped on request, or as a tail that a longer block covers
  uint64_t demotions = 0;        // device -> host
  uint64_t promotions = 0;       // host -> device
};

}  // namespace cairn
