// A session: what the engine knows of a conversation while it runs, and what a disk keeps of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/api.h"

namespace cairn {

// A digest over tokens in their order, which grows with them: of no tokens, and of some more.
inline constexpr uint64_t kNoTokensDigest = 0x9ae16a3b2f90404fu;
inline uint64_t ExtendTokenDigest(uint64_t digest, std::span<const uint32_t> tokens) {
  for (const uint32_t token : tokens) digest = MixBits(digest ^ token);
  return digest;
}

struct Session {
  std::string id;
  // Tells sessions apart that have the same id one after the other; from 1, never given twice.
  uint64_t serial = 0;
  SessionSettings settings;
  std::vector<uint32_t> tokens;
  uint64_t token_digest = kNoTokensDigest;  // of `tokens`
  // Tokens at the front whose KV has ever been computed, whether or not a copy is left.
  int64_t computed_token_count = 0;
  // Drawn at creation; samples where neither request nor settings name a seed, so that a stream
  // that is asked for again gives the same tokens. A fork draws its own.
  uint64_t seed = 0;
  Clock::Wall create_time;
  Clock::Wall update_time;  // last change of settings or tokens
  Clock::Wall last_use_time;
  // When it was used last, in the time that a time to live counts (SessionTable).
  std::chrono::nanoseconds last_use_lived{0};
  std::string parent_id;  // the session that this was forked from; empty if none
  // Counts changes of the settings. Tokens have their own guard, expected_token_count, so that a
  // running stream does not make every update of a setting stale.
  uint64_t revision = 1;
  std::string cache_salt;

  int64_t token_count() const { return static_cast<int64_t>(tokens.size()); }
  std::string etag() const { return std::to_string(revision); }
};

}  // namespace cairn
