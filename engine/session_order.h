// Sessions in the order of their tokens, those of one salt together: whoever has the most tokens in
// common with a session stands beside it. Finding that one is cheap, however many sessions there
// are, and a session that grows rarely changes its place.
// Threads: one at a time. A session's salt, id and address do not change while it is here; its
// tokens change in Append and Change only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "engine/session.h"

namespace cairn {

class SessionOrder {
 public:
  void Insert(const Session& session) {
    const auto [place, is_new] = order_.insert(&session);
    CHECK(is_new && places_.emplace(&session, place).second);
  }
  void Erase(const Session& session) {
    const auto place = places_.find(&session);
    CHECK(place != places_.end());
    order_.erase(place->second);
    places_.erase(place);
  }

  // Puts `tokens` behind those of `session`. O(log sessions) comparisons, if its successor begins
  // with all of its tokens; else one.
  void Append(Session& session, std::span<const uint32_t> tokens) {
    const auto after = std::next(places_.at(&session));
    const bool keeps_its_place = after == order_.end() ||
                                 (*after)->cache_salt != session.cache_salt ||
                                 CommonCount(session, **after) < session.tokens.size();
    const auto append = [&] {
      session.tokens.insert(session.tokens.end(), tokens.begin(), tokens.end());
    };
    if (keeps_its_place) return append();
    Change(session, append);
  }
  // `change` is a change of its tokens of any kind.
  template <class F>
  void Change(Session& session, F change) {
    Erase(session);
    change();
    Insert(session);
  }

  // The most tokens that `session` has in common with another one of its salt, from position 0 on.
  size_t SharedPrefix(const Session& session) const {
    const auto place = places_.at(&session);
    size_t longest = 0;
    if (place != order_.begin()) longest = Shared(session, **std::prev(place));
    if (std::next(place) != order_.end()) {
      longest = std::max(longest, Shared(session, **std::next(place)));
    }
    return longest;
  }

  size_t size() const { return order_.size(); }
  void CheckInvariants() const {
    CHECK(order_.size() == places_.size());
    CHECK(std::ranges::is_sorted(order_, ByTokens()));
  }

 private:
  struct ByTokens {
    bool operator()(const Session* a, const Session* b) const {
      return std::tie(a->cache_salt, a->tokens, a->id) < std::tie(b->cache_salt, b->tokens, b->id);
    }
  };
  static size_t CommonCount(const Session& a, const Session& b) {
    return static_cast<size_t>(std::ranges::mismatch(a.tokens, b.tokens).in1 - a.tokens.begin());
  }
  static size_t Shared(const Session& a, const Session& b) {
    return a.cache_salt == b.cache_salt ? CommonCount(a, b) : 0;
  }

  using Order = std::set<const Session*, ByTokens>;
  Order order_;
  std::map<const Session*, Order::iterator> places_;
};

}  // namespace cairn
