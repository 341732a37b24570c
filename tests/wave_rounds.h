// A session comes back from the host's pool again and again, with holes, while its blocks arrive
// layer by layer beside passes; now and then its stream is cancelled. Its tokens and the bytes of
// its blocks must be those of a lone engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "tests/engine_harness.h"

namespace cairn {

// How large a round is. Counts of tokens are bounds of what is drawn.
struct WaveShape {
  int turns = 5;
  uint32_t prompt = 120;  // of each turn
  uint32_t decode = 8;
};

class WaveRounds {
 public:
  explicit WaveRounds(const WaveShape& shape = {}) : shape_(shape) {}

  // Engines of their own, of which that with waves has `waves_backend`. A failure ends the round.
  void Play(Rng& rng, HarnessOptions options, const BackendMaker& waves_backend);

  int64_t waiting_passes() const { return waiting_passes_; }
  int64_t failed_blocks() const { return failed_blocks_; }  // whose loads failed
  size_t compared_blocks() const { return compared_blocks_; }

 private:
  void PlayTurn(Rng& rng, EngineHarness& waves, EngineHarness& lone);
  void CompareBlocks(EngineHarness& waves, EngineHarness& lone,
                     const std::vector<uint32_t>& tokens);

  const WaveShape shape_;
  int64_t waiting_passes_ = 0;
  int64_t failed_blocks_ = 0;
  size_t compared_blocks_ = 0;
};

}  // namespace cairn
