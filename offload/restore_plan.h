// What is to become of the blocks of a context that comes back: values that the planner
// (restore_planner.h) makes, the engine carries out and an operator is shown.
//
// A block is named by its index in the context: block i holds the positions from i * block_tokens
// on. A channel is named by its index in the problem that was planned. Times are seconds from the
// moment of planning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace cairn {

// How plans are made. All but kCairn are rivals, to be measured beside it.
enum class RestorePolicy : uint8_t {
  kCairn,         // the plan of least predicted time
  kLoadAll,       // whatever has a copy is loaded
  kRecomputeAll,  // whatever is not on the device is computed again
  kGreedy,        // each block by itself, whichever is cheaper alone
  kThreshold,     // all or nothing: loads when at least so many tokens have copies
  kCake,          // one cut: computes from the front and loads from the back until both meet
  kCut,           // one cut, where it is told: computes before it and loads behind it
  kWave,          // the Wave of least predicted time; where there is none, as kCairn
};

// What the engine does for a plan.
enum class Execution : uint8_t {
  kNone,          // nothing is missing
  kLoadAll,       // Front in which only what has no copy is computed
  kRecomputeAll,  // Front without loads
  kFront,  // passes over the recomputed blocks in order, each when every earlier block is there
  kWave,   // one pass over recomputed blocks and new tokens; loads come layer by layer
};

inline constexpr size_t kExecutionCount = 5;

// Why there is no Wave where the policy is kWave, or where one was planned.
enum class NoWave : uint8_t {
  kNone,           // there is one, or nobody wanted one
  kCostsUnknown,   // no passes have been seen yet
  kAhead,          // nobody waits for what comes back
  kStreams,        // others are running, which would wait for it
  kInPlace,        // what lies in the host's pool is used there, or there is none
  kShared,         // others took a part of the pass
  kNothingToLoad,  // all that is missing is computed, so that no pass waits for anything
};

enum class Verdict : uint8_t {
  kKeep,  // it is on the device, or used where it lies
  kReload,
  kRecompute,
};

// What one more block costs the plan in time to first token, either way. A block with a copy is
// reloaded when that is the lower of its two prices, up to the grain of fixed charges.
struct RestorePrices {
  std::vector<double> reload_s;      // by channel, of a block
  double recompute_s = 0;            // of block 0 ...
  double recompute_s_per_block = 0;  // ... and so much more for each block before it

  double RecomputeSeconds(uint32_t block) const {
    return recompute_s + recompute_s_per_block * block;
  }
};

// Of several restores that share channels and compute, the one of the lower turn goes first. One
// that nobody waits for yet loads only while nobody else does.
inline constexpr uint32_t kTurnAhead = UINT32_MAX;

struct RestorePlan {
  Execution execution = Execution::kNone;
  std::vector<Verdict> verdicts;                  // by block
  std::vector<std::vector<uint32_t>> load_order;  // by channel: its blocks, first to load first
  uint32_t chunk_tokens = 0;  // of recomputed blocks in one pass, at most (Front)
  // The first pass begins when everything before this block is there; 0: with whatever is there.
  uint32_t first_pass_end = 0;
  uint32_t turn = 0;
  NoWave no_wave = NoWave::kNone;

  // Until the first new token is computed.
  double predicted_s = 0;
  double uncertainty_s = 0;  // the prediction is within so much of the truth
  double load_all_s = 0;     // of the two plans without a choice
  double recompute_all_s = 0;
  RestorePrices prices;
};

// "cairn", "load_all", "recompute_all", "greedy", "threshold", "cake", "cut", "wave".
std::string_view NameOf(RestorePolicy policy);
std::optional<RestorePolicy> ParseRestorePolicy(std::string_view name);
// "none", "load_all", "recompute_all", "front", "wave".
std::string_view NameOf(Execution execution);
std::optional<Execution> ParseExecution(std::string_view name);
// "keep", "reload", "recompute".
std::string_view NameOf(Verdict verdict);
// "none", "costs_unknown", "ahead", "streams", "in_place", "shared", "nothing_to_load".
std::string_view NameOf(NoWave no_wave);

}  // namespace cairn
