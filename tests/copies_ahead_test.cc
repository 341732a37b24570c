// Copies from the host pool to a device that cannot read there: those of a prefetch give way to
// those that somebody waits for. Time passes as the test says; a copy takes a millisecond.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "offload/block_store.h"
#include "tests/fakes/timed_tiers.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlockTokens = 4;

class CopiesAhead : public testing::Test {
 protected:
  CopiesAhead() {
    auto store =
        BlockStore::Create({.device_blocks_max = 64, .host_blocks_max = 64, .host_in_place = false},
                           layout_, device_, clock_);
    CHECK(store.ok());
    store_ = *std::move(store);
    // From which it is known what a copy takes.
    const Tokens warm = InHost(9, 8);
    const std::vector<Hold> holds = Load(warm, 0);
    Pass(20);
  }

  // A context of so many blocks, in the host pool.
  Tokens InHost(uint32_t name, uint32_t block_count) {
    Tokens tokens(size_t{block_count} * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), 1000 * name);
    BlockKey parent = root_;
    std::vector<Hold> holds = *store_->Reserve(block_count);
    for (uint32_t i = 0; i < block_count; ++i) {
      const auto own = std::span(tokens).subspan(size_t{i} * kBlockTokens, kBlockTokens);
      holds[i] = store_->Seal(std::move(holds[i]), parent, own, kPriorityDefault);
      parent = holds[i].key();
    }
    holds.clear();
    store_->Suspend(root_, tokens, Tier::kHost, [] {});
    Pass(100);
    EXPECT_EQ(store_->Locate(root_, tokens), std::vector<Tier>(block_count, Tier::kHost));
    return tokens;
  }

  std::vector<Hold> Load(const Tokens& tokens, uint32_t turn) {
    std::vector<uint32_t> loads(tokens.size() / kBlockTokens);
    std::iota(loads.begin(), loads.end(), 0);
    std::vector<Hold> holds = store_->Match(root_, tokens, kPriorityDefault, loads, turn);
    EXPECT_EQ(holds.size(), loads.size());
    store_->OrderLoads();
    return holds;
  }

  // So many looks, a millisecond apart.
  void Pass(int count) {
    for (int i = 0; i < count; ++i) {
      clock_.Advance(milliseconds(1));
      store_->Poll();
      store_->CheckInvariants();
    }
  }
  static int64_t ReadyOf(const std::vector<Hold>& holds) {
    return std::ranges::count_if(holds, &Hold::is_ready);
  }
  uint32_t under_way() const { return store_->host_flow().under_way; }

  const KvLayout layout_{
      .layer_count = 1, .kv_head_count = 1, .head_dim = 2, .block_tokens = kBlockTokens};
  const BlockKey root_ = RootKey({1, 2}, "layout", "");
  FakeClock clock_;
  TimedDevice device_{1 << 20, milliseconds(1), clock_, /*tells_time=*/true};
  std::unique_ptr<BlockStore> store_;
};

TEST_F(CopiesAhead, FiveMillisecondsOfThemAreUnderWay) {
  const Tokens tokens = InHost(1, 20);
  const std::vector<Hold> ahead = Load(tokens, kTurnAhead);
  EXPECT_EQ(under_way(), 5u);
  Pass(1);
  EXPECT_EQ(ReadyOf(ahead), 1);
  EXPECT_EQ(under_way(), 5u) << "the next one has begun";
  Pass(19);
  EXPECT_EQ(ReadyOf(ahead), 20) << "the channel was never idle";
}

TEST_F(CopiesAhead, WaitWhileSomebodyWaits) {
  const Tokens early = InHost(1, 20);
  const Tokens late = InHost(2, 10);
  const std::vector<Hold> ahead = Load(early, kTurnAhead);
  const std::vector<Hold> waited = Load(late, 3);
  EXPECT_EQ(under_way(), 15u);
  Pass(5 + 9);
  EXPECT_EQ(ReadyOf(waited), 9);
  EXPECT_EQ(ReadyOf(ahead), 5) << "those that had begun";
  Pass(1);
  EXPECT_EQ(ReadyOf(waited), 10);
  Pass(15);
  EXPECT_EQ(ReadyOf(ahead), 20);
}

TEST_F(CopiesAhead, BeginAtOnceWhenSomebodyComesToWait) {
  const Tokens tokens = InHost(1, 20);
  const std::vector<Hold> ahead = Load(tokens, kTurnAhead);
  const std::vector<Hold> waited = Load(tokens, 0);
  EXPECT_EQ(under_way(), 20u);
  Pass(20);
  EXPECT_EQ(ReadyOf(waited), 20);
}

TEST_F(CopiesAhead, GiveTheirSlotsBackWhenNobodyWantsThemAnyMore) {
  const Tokens tokens = InHost(1, 20);
  const uint32_t free = store_->stats().free;
  std::vector<Hold> ahead = Load(tokens, kTurnAhead);
  EXPECT_EQ(store_->stats().in_flight, 20u);
  ahead.clear();
  EXPECT_EQ(store_->stats().in_flight, 5u) << "those that had begun";
  store_->CheckInvariants();
  Pass(5);
  EXPECT_EQ(store_->stats().in_flight, 0u);
  EXPECT_EQ(store_->stats().free, free - 5);
  EXPECT_FALSE(store_->has_copies_under_way());
}

}  // namespace
}  // namespace cairn
