#include "offload/idle_watch.h"

#include <algorithm>

namespace cairn {

IdleWatch::Watched* IdleWatch::Find(uint64_t name) {
  if (!IsWatched(name)) return nullptr;
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &watched_[place->second];
}

void IdleWatch::NoteUse(const BlockKey& key, Clock::Monotonic now) {
  const uint64_t name = key.digest.high;
  if (Watched* watched = Find(name)) {
    if (!watched->in_use) {
      rates_.NoteReturn(watched->reuse_count, now - watched->idle_since, watched->counted);
    }
    watched->in_use = true;
    return;
  }
  if (!IsWatched(name)) return;
  places_.emplace(name, static_cast<uint32_t>(watched_.size()));
  watched_.push_back({.name = name});
  if (watched_.size() > kWatchedMax) MakeRoom(now);
}

void IdleWatch::NoteIdle(const BlockKey& key, uint32_t reuse_count, Clock::Monotonic now) {
  Watched* watched = Find(key.digest.high);
  if (watched == nullptr) return;
  *watched = {
      .name = watched->name, .idle_since = now, .reuse_count = reuse_count, .in_use = false};
}

void IdleWatch::Look(Clock::Monotonic now, const ReuseOdds& odds) {
  for (size_t looks = std::min(kLooks, watched_.size()); looks > 0; --looks) {
    if (next_ >= watched_.size()) next_ = 0;
    Watched& watched = watched_[next_++];
    if (watched.in_use) continue;
    watched.counted =
        rates_.NoteIdle(watched.reuse_count, now - watched.idle_since, watched.counted);
  }
  rates_.Learn(odds);
}

// Those that have been idle for long go, and then, if that is not enough, every second one.
void IdleWatch::MakeRoom(Clock::Monotonic now) {
  std::erase_if(watched_, [&](const Watched& watched) {
    return !watched.in_use && now - watched.idle_since > kWatchTime;
  });
  if (watched_.size() > kWatchedMax / 4 * 3) {
    unwatched_bits_ = unwatched_bits_ << 1 | 1;
    std::erase_if(watched_, [&](const Watched& watched) { return !IsWatched(watched.name); });
  }
  places_.clear();
  for (uint32_t i = 0; i < watched_.size(); ++i) places_.emplace(watched_[i].name, i);
}

}  // namespace cairn
