// A busy engine over tiers of random size, with restores planned at random and a disk with random
// faults. It may be restarted over what the disk has.
#pragma once

#include <algorithm>
#include <memory>

#include "tests/batch_mix.h"
#include "tests/fakes/fake_spill_store.h"
#include "tests/fakes/random_restores.h"

namespace cairn {

class TieredWorld {
 public:
  // `base` says what is not drawn. A backend of its own does not read the host's memory.
  TieredWorld(Rng& rng, const MixScript& script, const HarnessOptions& base)
      : options_(base), seed_(rng.Next()) {
    const uint32_t largest = LargestContextBlocks(script);
    options_.threads = rng.Chance(0.7) ? 1 : rng.Chance(0.8) ? 2 : 4;
    options_.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(80));
    options_.concurrent_max = static_cast<uint32_t>(2 + rng.Below(8));
    if (rng.Chance(0.8)) {
      options_.make_restores = [this](const BlockStore&) {
        return std::make_unique<RandomRestores>(MixBits(++seed_));
      };
    }
    const bool has_host = rng.Chance(0.7);
    options_.host_in_place = rng.Chance(0.6) && !options_.make_backend;
    options_.host_blocks = has_host ? static_cast<uint32_t>(1 + rng.Below(2 * largest)) : 0;
    // In place the two pools together have room for one sequence at least.
    const uint32_t elsewhere = options_.host_in_place ? options_.host_blocks : 0;
    options_.device_blocks = std::max<uint32_t>(2, largest - std::min(largest - 1, elsewhere)) +
                             static_cast<uint32_t>(rng.Below(8));
    if (has_host && !rng.Chance(0.7)) return;  // and no disk
    spill_.quota_blocks = 12 + rng.Below(200);
    spill_.segment_blocks = 1 + rng.Below(4);
    spill_.answer_chance = 0.2 + 0.8 * rng.Uniform();
    if (rng.Chance(0.5)) {
      spill_.corruption = 0.1 * rng.Uniform();
      spill_.read_error = 0.05 * rng.Uniform();
      spill_.write_error = 0.05 * rng.Uniform();
    }
    options_.open_spill = [this](const Digest&, const KvLayout& layout, auto) {
      spill_.seed = MixBits(++seed_);
      return Result<std::unique_ptr<SpillStore>>(
          std::make_unique<FakeSpillStore>(disk_, spill_, layout.block_bytes()));
    };
  }
  TieredWorld(const TieredWorld&) = delete;  // what it opens points to it

  MixEngine Open() {
    const auto open = [this] { return std::make_unique<EngineHarness>(options_); };
    return {.harness = open(), .reopen = open, .restart_chance = 0.2};
  }

 private:
  HarnessOptions options_;
  FakeDisk disk_;
  FakeSpillOptions spill_;
  uint64_t seed_;
};

}  // namespace cairn
