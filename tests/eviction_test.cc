// The choice of victims, as the pure function that it is: single comparisons, the laws of the list,
// and traces that a cache under this policy is driven with.
#include "offload/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "offload/block_prices.h"
#include "offload/idle_watch.h"
#include "offload/reuse_odds.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

EvictionCandidate Typical() {
  return {.block = BlockId(0), .cost_s = 0.01, .priority = 50, .return_rate = 0.1, .use_order = 1};
}

TEST(Worth, IsProportionalToTheCost) {
  EvictionCandidate dear = Typical();
  dear.cost_s *= 3;
  EXPECT_DOUBLE_EQ(Worth(dear), 3 * Worth(Typical()));
}

TEST(Worth, TenPointsOfPriorityDoubleIt) {
  EvictionCandidate urgent = Typical();
  urgent.priority = 60;
  EXPECT_DOUBLE_EQ(Worth(urgent), 2 * Worth(Typical()));
  urgent.priority = 0;
  EXPECT_DOUBLE_EQ(Worth(urgent), Worth(Typical()) / 32);
}

TEST(Worth, IsProportionalToTheRateOfReturns) {
  EvictionCandidate wanted = Typical();
  wanted.return_rate *= 7;
  EXPECT_DOUBLE_EQ(Worth(wanted), 7 * Worth(Typical()));
}

// As many as the window holds, so that what was before does not count.
TEST(ReuseOdds, FollowTheSharesThatComeBack) {
  ReuseOdds odds;
  EXPECT_DOUBLE_EQ(odds.Chance(1), 4 * odds.Chance(0));
  for (int i = 0; i < 10000; ++i) {  // every context comes back
    odds.NoteComputed();
    odds.NoteReuse(0);
    odds.NoteReuse(1);
  }
  EXPECT_NEAR(odds.Chance(0), 1, 0.01);
  EXPECT_NEAR(odds.Chance(3), 0.5, 0.01);
  for (int i = 0; i < 10000; ++i) {  // one in ten does, and then again and again
    odds.NoteComputed();
    if (i % 10 == 0) odds.NoteReuse(0);
    if (i % 10 == 0) odds.NoteReuse(1);
    if (i % 10 == 0) odds.NoteReuse(2);
  }
  EXPECT_NEAR(odds.Chance(0), 0.1, 0.01);
  EXPECT_NEAR(odds.Chance(1), 2.0 / 3, 0.02);
  for (int i = 0; i < 10000; ++i) odds.NoteComputed();  // none does
  EXPECT_DOUBLE_EQ(odds.Chance(0), 1e-3);
  EXPECT_NEAR(odds.Chance(1), 2.0 / 3, 0.02);
}

TEST(ReturnRates, OfWhatWasNeverSeenFallWithIdleTime) {
  const ReturnRates rates;
  for (const int times : {1, 60, 3600, 86400}) {
    const nanoseconds idle = milliseconds(1010) * times;
    EXPECT_NEAR(rates.PerSecond(0, idle) / rates.PerSecond(0, 2 * idle), 2, 1e-6) << times;
    EXPECT_NEAR(rates.PerSecond(2, idle) / rates.PerSecond(0, idle), 4, 0.5) << times;
  }
  EXPECT_EQ(rates.PerSecond(0, nanoseconds(0)), rates.PerSecond(0, kIdleMin / 2));
  EXPECT_GT(rates.PerSecond(7, std::chrono::hours(1000000)), 0);
}

// The largest, over all later ends, straight from its definition.
TEST(ReturnRates, AreTheBestOverAllTimesToGiveUp) {
  Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    const auto count = 1 + static_cast<size_t>(rng.Below(ReturnRates::kHalfOctaves));
    std::vector<double> chances, lengths, rates(count);
    for (size_t i = 0; i < count; ++i) {
      chances.push_back(rng.Chance(0.3) ? 0 : rng.Uniform());
      lengths.push_back(0.01 + rng.Uniform() * static_cast<double>(i + 1));
    }
    BestRates(chances, lengths, rates);
    for (size_t begin = 0; begin < count; ++begin) {
      double best = 0, returns = 0, stay = 0, left = 1;
      for (size_t i = begin; i < count; ++i) {
        returns += left * chances[i];
        stay += left * lengths[i] * (1 - chances[i] / 2);
        left *= 1 - chances[i];
        best = std::max(best, returns / stay);
      }
      ASSERT_NEAR(rates[begin], best, 1e-9 * best) << round << ' ' << begin;
    }
  }
}

BlockKey KeyNamed(uint64_t name) { return BlockKey{DigestOf(std::to_string(name))}; }

// Sessions of 100 blocks come back after eight seconds, whatever became of their blocks; documents
// do not.
TEST(IdleWatch, SeesHowSoonBlocksComeBack) {
  IdleWatch watch;
  const ReuseOdds odds;
  Clock::Monotonic now(seconds(1));
  uint64_t document = 100000;
  const auto use = [&](uint64_t name, uint32_t reuse_count) {
    watch.NoteUse(KeyNamed(name), now);
    watch.NoteIdle(KeyNamed(name), reuse_count, now);
  };
  for (uint32_t turn = 0; turn < 50; ++turn) {
    for (uint64_t i = 0; i < 100; ++i) use(i, turn);
    for (uint64_t i = 0; i < 100; ++i) use(document++, 0);
    for (int second = 0; second < 8; ++second) {
      now += seconds(1);
      for (int look = 0; look < 50; ++look) watch.Look(now, odds);
    }
  }
  const auto rate = [&](uint32_t reuse_count, int tenths) {
    return watch.rates().PerSecond(reuse_count, milliseconds(100) * tenths);
  };
  // Who waits from one second on waits for about seven more, and from seven on for two.
  EXPECT_NEAR(rate(2, 10), 1.0 / 7, 1.0 / 28);
  EXPECT_GT(rate(2, 70), 2 * rate(2, 10));
  EXPECT_LT(rate(2, 110), rate(2, 10) / 4);  // overdue
  EXPECT_LT(rate(0, 10), rate(2, 10) / 10);
  EXPECT_LT(rate(0, 70), rate(2, 70) / 10);
}

TEST(IdleWatch, HasABoundAndStillSees) {
  IdleWatch watch;
  const ReuseOdds odds;
  Clock::Monotonic now(seconds(1));
  for (uint64_t name = 0; name < 10 * IdleWatch::kWatchedMax; ++name) {
    watch.NoteUse(KeyNamed(name), now);
    watch.NoteIdle(KeyNamed(name), 0, now);
    ASSERT_LE(watch.watched_count(), IdleWatch::kWatchedMax);
  }
  EXPECT_GE(watch.watched_count(), IdleWatch::kWatchedMax / 4);
  now += seconds(8);
  for (int look = 0; look < 100; ++look) watch.Look(now, odds);
  const double before = watch.rates().PerSecond(0, seconds(7));
  for (uint64_t name = 0; name < IdleWatch::kWatchedMax; ++name) watch.NoteUse(KeyNamed(name), now);
  watch.Look(now, odds);
  EXPECT_GT(watch.rates().PerSecond(0, seconds(7)), 10 * before);
}

std::vector<EvictionCandidate> RandomView(Rng& rng, uint32_t count) {
  std::vector<EvictionCandidate> view;
  for (uint32_t i = 0; i < count; ++i) {
    view.push_back({.block = BlockId(i),
                    .cost_s = 0.001 * static_cast<double>(rng.Below(40)),
                    .priority = static_cast<uint32_t>(rng.Below(11) * 10),
                    .reuse_count = static_cast<uint32_t>(rng.Below(3)),
                    .return_rate = 0.001 * static_cast<double>(rng.Below(1000)),
                    .use_order = i + 1,
                    .seal_order = count - i});
  }
  return view;
}

TEST(PickVictims, TakesTheLeastWorthFirst) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    const auto view = RandomView(rng, static_cast<uint32_t>(rng.Below(80)));
    const auto need = static_cast<uint32_t>(rng.Below(100));
    const std::vector<BlockId> victims = PickVictims(view, need);
    ASSERT_EQ(victims.size(), std::min<size_t>(need, view.size()));
    std::vector<bool> taken(view.size(), false);
    double worst = 0;
    for (const BlockId victim : victims) {
      ASSERT_FALSE(taken[victim.value()]);
      taken[victim.value()] = true;
      ASSERT_GE(Worth(view[victim.value()]), worst);
      worst = Worth(view[victim.value()]);
    }
    for (size_t i = 0; i < view.size(); ++i) {
      ASSERT_TRUE(taken[i] || victims.empty() || Worth(view[i]) >= worst);
    }
  }
}

TEST(PickVictims, DoesNotDependOnTheOrderOfTheView) {
  Rng rng(8);
  for (int round = 0; round < 100; ++round) {
    auto view = RandomView(rng, 60);
    for (EvictionCandidate& candidate : view) candidate.return_rate = rng.Chance(0.5) ? 1 : 0.5;
    const std::vector<BlockId> victims = PickVictims(view, 20);
    for (size_t i = view.size(); i > 1; --i) std::swap(view[i - 1], view[rng.Below(i)]);
    ASSERT_EQ(PickVictims(view, 20), victims);
  }
}

TEST(PickVictims, ShorterListsBeginLongerOnes) {
  Rng rng(9);
  const auto view = RandomView(rng, 300);
  const std::vector<BlockId> all = PickVictims(view, 300);
  for (uint32_t need = 0; need <= 300; ++need) {
    const std::vector<BlockId> some = PickVictims(view, need);
    ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
}

TEST(PickVictims, AmongEqualsTheLeastRecentlyUsedGoes) {
  std::vector<EvictionCandidate> view(3, Typical());
  for (uint32_t i = 0; i < 3; ++i) view[i].block = BlockId(i), view[i].use_order = 10 - i;
  EXPECT_EQ(PickVictims(view, 2), (std::vector{BlockId(2), BlockId(1)}));
}

TEST(PickVictims, AnIdleChainGoesFromItsBeginning) {
  std::vector<EvictionCandidate> view;
  for (uint32_t i = 0; i < 100; ++i) {
    view.push_back(Typical());
    view.back().block = BlockId(i);
    view.back().cost_s = BlockPrices().Recompute(i * 16);
    view.back().use_order = i + 1;
  }
  const std::vector<BlockId> victims = PickVictims(view, 40);
  for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(victims[i], BlockId(i));
}

TEST(PickVictims, RivalsGoByTheirOwnOrder) {
  std::vector<EvictionCandidate> view(4, Typical());
  for (uint32_t i = 0; i < 4; ++i) view[i].block = BlockId(i);
  view[0].use_order = 7, view[0].seal_order = 1, view[0].reuse_count = 2;
  view[1].use_order = 5, view[1].seal_order = 4, view[1].reuse_count = 1;
  view[2].use_order = 6, view[2].seal_order = 3, view[2].reuse_count = 1;
  view[3].use_order = 8, view[3].seal_order = 2, view[3].reuse_count = 0;
  for (uint32_t i = 0; i < 4; ++i) view[i].cost_s = 0.01 * (4 - i);
  const auto all = [&](EvictionPolicy policy) {
    std::vector<uint32_t> order;
    for (const BlockId block : PickVictims(view, 4, policy)) order.push_back(block.value());
    return order;
  };
  EXPECT_EQ(all(EvictionPolicy::kLru), (std::vector<uint32_t>{1, 2, 0, 3}));
  EXPECT_EQ(all(EvictionPolicy::kFifo), (std::vector<uint32_t>{0, 3, 2, 1}));
  EXPECT_EQ(all(EvictionPolicy::kLfu), (std::vector<uint32_t>{3, 1, 2, 0}));
  EXPECT_EQ(all(EvictionPolicy::kFixed), (std::vector<uint32_t>{3, 2, 1, 0}));
}

// A cache of whole conversations' blocks under a policy; hit rates are in blocks.
class CacheSim {
 public:
  CacheSim(EvictionPolicy policy, uint32_t capacity) : policy_(policy), capacity_(capacity) {}

  // One turn of a session at time `now`: all its blocks are wanted, the missing ones are made.
  // Returns how many were there.
  uint32_t Turn(uint32_t session, uint32_t block_count, Clock::Monotonic now) {
    uint32_t hits = 0;
    for (uint32_t i = 0; i < block_count; ++i) {
      const uint32_t name = session * 1000 + i;
      auto [it, is_new] = blocks_.try_emplace(name);
      Block& block = it->second;
      EvictionCandidate& candidate = block.candidate;
      if (is_new) {
        candidate = {.block = BlockId(name), .cost_s = BlockPrices().Recompute(i * 16)};
        candidate.priority = kPriorityDefault;
        odds_.NoteComputed();
      } else {
        ++hits;
        odds_.NoteReuse(candidate.reuse_count++);
      }
      candidate.use_order = ++order_;
      block.last_use = now;
      const BlockKey key = KeyNamed(name);
      watch_.NoteUse(key, now);
      watch_.NoteIdle(key, candidate.reuse_count, now);
    }
    for (int look = 0; look < 16; ++look) watch_.Look(now, odds_);
    while (blocks_.size() > capacity_) Shrink(now);
    return hits;
  }

  uint32_t Resident(uint32_t session, uint32_t block_count) const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < block_count; ++i) count += blocks_.count(session * 1000 + i);
    return count;
  }

 private:
  struct Block {
    EvictionCandidate candidate;
    Clock::Monotonic last_use;
  };

  void Shrink(Clock::Monotonic now) {
    std::vector<EvictionCandidate> view;
    for (const auto& [name, block] : blocks_) {
      view.push_back(block.candidate);
      view.back().return_rate =
          watch_.rates().PerSecond(block.candidate.reuse_count, now - block.last_use);
    }
    const auto excess = static_cast<uint32_t>(blocks_.size() - capacity_);
    for (const BlockId victim : PickVictims(view, excess, policy_)) blocks_.erase(victim.value());
  }

  const EvictionPolicy policy_;
  const uint32_t capacity_;
  std::unordered_map<uint32_t, Block> blocks_;
  ReuseOdds odds_;
  IdleWatch watch_;
  uint64_t order_ = 0;
};

// Eight sessions of 50 blocks talk in turns in a pool of 600, perhaps with a document now and then;
// then 60 documents of 50 blocks, five times the pool, are read once each while the sessions pause.
uint32_t HotBlocksAfterScan(EvictionPolicy policy, bool has_documents) {
  CacheSim cache(policy, 600);
  Clock::Monotonic now(seconds(1));
  uint32_t document = 100;
  for (int turn = 0; turn < 20; ++turn) {
    for (uint32_t session = 0; session < 8; ++session) {
      cache.Turn(session, 50, now += seconds(1));
      if (has_documents && session % 4 == 0) cache.Turn(document++, 50, now);
    }
  }
  for (uint32_t i = 0; i < 60; ++i) cache.Turn(document++, 50, now += seconds(1));
  uint32_t resident = 0;
  for (uint32_t session = 0; session < 8; ++session) resident += cache.Resident(session, 50);
  return resident;
}

TEST(EvictionTrace, OnePassOverColdChainsDoesNotFlushTheHotSet) {
  EXPECT_EQ(HotBlocksAfterScan(EvictionPolicy::kPrices, true), 400u);
  EXPECT_EQ(HotBlocksAfterScan(EvictionPolicy::kLru, true),
            0u);  // the trace does tell policies apart
}

// Where everything came back within eight seconds until now, documents are believed to come back
// like that, too, and sessions to be overdue; most of the hot set is the price of learning.
TEST(EvictionTrace, AScanThatNobodyExpectsTakesAPartOfTheHotSet) {
  EXPECT_GE(HotBlocksAfterScan(EvictionPolicy::kPrices, false), 50u);
  EXPECT_EQ(HotBlocksAfterScan(EvictionPolicy::kLru, false), 0u);
}

// What was hot and is over gives way to new sessions that come back, in bounded time.
TEST(EvictionTrace, AFormerHotSetAgesOut) {
  CacheSim cache(EvictionPolicy::kPrices, 400);
  Clock::Monotonic now(seconds(1));
  for (int turn = 0; turn < 10; ++turn) {
    for (uint32_t session = 0; session < 7; ++session) cache.Turn(session, 50, now += seconds(1));
  }
  uint32_t late_hits = 0;
  for (int turn = 0; turn < 40; ++turn) {
    for (uint32_t session = 20; session < 27; ++session) {
      const uint32_t hits = cache.Turn(session, 50, now += seconds(1));
      if (turn >= 30) late_hits += hits;
    }
  }
  EXPECT_GE(late_hits, 10u * 7 * 50 * 95 / 100);
  uint32_t stale = 0;
  for (uint32_t session = 0; session < 7; ++session) stale += cache.Resident(session, 50);
  EXPECT_LE(stale, 50u);
}

// Sessions that return mix with one-shot requests; the policy keeps more of what returns than LRU.
double HitRate(EvictionPolicy policy, uint64_t seed) {
  CacheSim cache(policy, 1000);
  Rng rng(seed);
  Clock::Monotonic now(seconds(1));
  uint64_t hits = 0, wanted = 0;
  uint32_t one_shot = 100;
  for (int turn = 0; turn < 1500; ++turn) {
    now += milliseconds(100 + rng.Below(2000));
    if (rng.Chance(0.6)) {
      cache.Turn(one_shot++, 20 + static_cast<uint32_t>(rng.Below(40)), now);
    } else {
      const auto session = static_cast<uint32_t>(rng.Below(20));
      hits += cache.Turn(session, 40 + session, now);
      wanted += 40 + session;
    }
  }
  return static_cast<double>(hits) / static_cast<double>(wanted);
}

TEST(EvictionTrace, BeatsLruWhenSessionsMixWithOneShots) {
  for (const uint64_t seed : {1, 2, 3}) {
    const double worth = HitRate(EvictionPolicy::kPrices, seed);
    const double lru = HitRate(EvictionPolicy::kLru, seed);
    RecordProperty("worth_" + std::to_string(seed), std::to_string(worth));
    RecordProperty("lru_" + std::to_string(seed), std::to_string(lru));
    EXPECT_GT(worth, lru + 0.25) << "hit rates " << worth << " and " << lru;
  }
}

}  // namespace
}  // namespace cairn
