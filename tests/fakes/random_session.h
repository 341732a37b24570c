// Sessions with everything in them that a session can have, drawn from a seed.
#pragma once

#include <string>
#include <tuple>

#include "base/rng.h"
#include "engine/session.h"

namespace cairn {

inline std::string RandomBytes(Rng& rng, size_t size_max) {
  std::string bytes(rng.Below(size_max + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.Next());
  return bytes;
}

inline std::chrono::nanoseconds RandomTime(Rng& rng) {
  return std::chrono::nanoseconds(static_cast<int64_t>(rng.Below(uint64_t{1} << 62)));
}

inline Clock::Wall RandomMoment(Rng& rng) {
  return Clock::Wall(std::chrono::duration_cast<Clock::Wall::duration>(RandomTime(rng)));
}

inline SamplingParams RandomParams(Rng& rng) {
  SamplingParams params;
  const auto number = [&] { return static_cast<float>(rng.Uniform()); };
  if (rng.Chance(0.5)) params.temperature = number();
  if (rng.Chance(0.5)) params.top_p = number();
  if (rng.Chance(0.5)) params.top_k = static_cast<uint32_t>(rng.Below(1000));
  if (rng.Chance(0.5)) params.min_p = number();
  if (rng.Chance(0.5)) params.repetition_penalty = number();
  if (rng.Chance(0.5)) params.presence_penalty = -number();
  if (rng.Chance(0.5)) params.frequency_penalty = number();
  if (rng.Chance(0.5)) params.seed = rng.Next();
  for (uint64_t i = rng.Below(4); i > 0; --i) params.stop.push_back(RandomBytes(rng, 20));
  for (uint64_t i = rng.Below(4); i > 0; --i) {
    params.stop_token_ids.push_back(static_cast<uint32_t>(rng.Next()));
  }
  params.ignore_eos = rng.Chance(0.5);
  for (uint64_t i = rng.Below(5); i > 0; --i) {
    params.logit_bias[static_cast<uint32_t>(rng.Next())] = number();
  }
  if (rng.Chance(0.5)) params.logprobs = static_cast<uint32_t>(rng.Below(21));
  return params;
}

inline Expiration RandomExpiration(Rng& rng) {
  switch (rng.Below(3)) {
    case 0:
      return std::monostate();
    case 1:
      return RandomMoment(rng);
    default:
      return RandomTime(rng);
  }
}

inline Session RandomSession(Rng& rng) {
  Session session;
  session.id = "id-" + std::to_string(rng.Below(1000));
  session.serial = 1 + rng.Below(1u << 20);
  session.settings = {.display_name = RandomBytes(rng, 256),
                      .expiration = RandomExpiration(rng),
                      .priority = static_cast<int32_t>(rng.Below(101)),
                      .sampling = RandomParams(rng),
                      .pinned = rng.Chance(0.5),
                      .annotations = {}};
  for (uint64_t i = rng.Below(5); i > 0; --i) {
    session.settings.annotations[RandomBytes(rng, 63)] = RandomBytes(rng, 1024);
  }
  for (uint64_t i = rng.Below(3000); i > 0; --i) {
    session.tokens.push_back(static_cast<uint32_t>(rng.Below(1000)));
  }
  session.token_digest = ExtendTokenDigest(kNoTokensDigest, session.tokens);
  session.computed_token_count = static_cast<int64_t>(rng.Below(session.tokens.size() + 1));
  session.seed = rng.Next();
  session.create_time = RandomMoment(rng);
  session.update_time = RandomMoment(rng);
  session.last_use_time = RandomMoment(rng);
  session.last_use_lived = RandomTime(rng);
  if (rng.Chance(0.5)) session.parent_id = "parent";
  session.revision = rng.Next();
  session.cache_salt = RandomBytes(rng, 64);
  return session;
}

// Everything is equal.
inline bool SameSession(const Session& a, const Session& b) {
  const auto settings = [](const SessionSettings& s) {
    return std::tie(s.display_name, s.expiration, s.priority, s.sampling, s.pinned, s.annotations);
  };
  const auto rest = [](const Session& s) {
    return std::tie(s.id, s.serial, s.tokens, s.token_digest, s.computed_token_count, s.seed,
                    s.create_time, s.update_time, s.last_use_time, s.last_use_lived, s.parent_id,
                    s.revision, s.cache_salt);
  };
  return settings(a.settings) == settings(b.settings) && rest(a) == rest(b);
}

}  // namespace cairn
