// One answer: a mix is a random script over some sessions. It runs once on a busy engine, many
// streams at once, and once alone: each session's own operations one after the other. Tokens and
// block bytes must be equal.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/engine_harness.h"

namespace cairn {

struct MixOperation {
  enum Kind { kDecode, kFork, kTruncate, kSuspend } kind = kDecode;
  std::vector<uint32_t> content;
  uint32_t max_tokens = 0;
  SamplingParams sampling;
  int64_t keep = 0;           // kTruncate, kFork: tokens
  std::string new_id;         // kFork
  Tier tier = Tier::kAbsent;  // kSuspend: how far down; a lone run is not suspended
  uint32_t cancel_at = 0;     // kDecode: cancelled after so many steps; 0: not
};

using MixScript = std::map<std::string, std::vector<MixOperation>>;

// How large a script is. Counts are exclusive bounds of what is drawn on top of the least.
struct MixShape {
  uint32_t sessions = 5;       // on top of 2
  uint32_t turns = 3;          // on top of 1
  uint32_t shared = 120;       // tokens of the shared beginning, on top of 20
  uint32_t prompt = 90;        // tokens of a turn, on top of 1
  uint32_t decode = 40;        // tokens to decode, on top of 1
  double cancel_share = 0.15;  // of decodes
  double change_share = 0.2;   // of turns after which the session is suspended, cut, forked: each
  std::vector<Tier> suspended_to = {Tier::kAbsent};
  std::function<std::vector<uint32_t>(Rng& rng, size_t count)> text =  // token ids of a prompt
      [](Rng& rng, size_t count) { return RandomTokens(rng.Next(), count); };
};

// An engine that may be restarted: its sessions come back with their tokens, and of their blocks
// what its disk has.
struct MixEngine {
  std::unique_ptr<EngineHarness> harness;
  std::function<std::unique_ptr<EngineHarness>()> reopen;  // empty: it is never restarted
  double restart_chance = 0;                               // whenever it has nothing to do
};

// Sessions share a prefix now and then, so that blocks are shared while they are in use.
MixScript RandomScript(Rng& rng, const MixShape& shape);

// Runs scripts on pairs of engines and compares; block bytes over all of its runs.
class MixComparison {
 public:
  // `busy` and `lone` have the same model and mode.
  void Run(const MixScript& script, MixEngine& busy, MixEngine& lone, uint64_t seed);

  size_t compared_blocks() const { return compared_blocks_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t reloads() const { return reloads_; }
  int64_t restarts() const { return restarts_; }

 private:
  void ReadBlocks(EngineHarness& harness, const std::vector<uint32_t>& tokens);

  std::map<BlockKey, Digest> digests_;  // of block bytes: equal keys, equal bytes, in every engine
  size_t compared_blocks_ = 0;
  int64_t preemptions_ = 0;
  int64_t reloads_ = 0;
  int64_t restarts_ = 0;
};

// Blocks that the largest context of the script takes: no pool may be smaller.
uint32_t LargestContextBlocks(const MixScript& script);

}  // namespace cairn
