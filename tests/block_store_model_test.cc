// Random histories of many sequences over one small pool, beside a model that knows three things:
// which blocks are held, which sealed prefixes must still be there, and what every byte has to be.
// The store's own invariants are checked after each operation. One seed replays one history.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/cpu_device.h"
#include "offload/block_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/pattern_kv.h"

namespace cairn {
namespace {

using Tokens = std::vector<uint32_t>;

struct Setup {
  const char* name;
  uint64_t seed;
  uint32_t capacity;
  uint32_t block_tokens;
  uint32_t operation_count;
  bool weak_keys;
};
std::ostream& operator<<(std::ostream& out, const Setup& setup) { return out << setup.name; }

// Seven keys for everything: nearly every block collides with another.
BlockKey WeakKey(const BlockKey& parent, std::span<const uint32_t> tokens) {
  return {Digest{1, ChildKey(parent, tokens).digest.low % 7}};
}

// A running generation: holds of the blocks of tokens[0, written).
struct Run {
  Tokens tokens;
  size_t written = 0;
  std::vector<Hold> holds;     // sealed ones, then perhaps one that is filling
  std::vector<BlockKey> keys;  // of the sealed ones
  uint32_t priority = 0;
};

class History {
 public:
  explicit History(const Setup& setup)
      : setup_(setup),
        rng_(setup.seed),
        layout_{.layer_count = 2,
                .kv_head_count = 2,
                .head_dim = 2,
                .block_tokens = setup.block_tokens},
        device_(MakeCpuDevice({.backend = "cpu", .memory_bytes = 1 << 24})) {
    const OffloadConfig config{.device_blocks_max = setup.capacity, .verify_duplicates = true};
    auto store = BlockStore::Create(config, layout_, *device_, clock_, nullptr,
                                    setup.weak_keys ? &WeakKey : &ChildKey);
    CHECK(store.ok());
    store_ = *std::move(store);
  }

  void Step() {
    clock_.Advance(std::chrono::milliseconds(rng_.Below(50)));
    const uint64_t choice = rng_.Below(100);
    if (choice < 15) {
      Start();
    } else if (choice < 70) {
      if (Run* run = AnyRun()) Write(*run);
    } else if (choice < 82) {
      Finish();
    } else if (choice < 86) {
      Cancel();
    } else if (choice < 90) {
      CloneAndDropOne();
    } else if (choice < 93) {
      DropContext();
    } else if (choice < 98) {
      ReserveAndDrop();
    } else if (choice == 98) {
      CheckEverythingFound();
    } else if (rng_.Chance(0.2)) {
      ClearAll();
    }
    Check();
  }

  void FinishAll() {
    extra_.clear();
    while (!runs_.empty()) Finish(), Check();
  }
  const BlockStore& store() const { return *store_; }

 private:
  uint32_t Available() const {  // the model's count: what is not held can be had
    std::set<BlockId> held;
    for (const Run& run : runs_) {
      for (const Hold& hold : run.holds) held.insert(hold.id());
    }
    for (const Hold& hold : extra_) held.insert(hold.id());
    return setup_.capacity - static_cast<uint32_t>(held.size());
  }

  Run* AnyRun() { return runs_.empty() ? nullptr : &runs_[rng_.Below(runs_.size())]; }

  // Tokens that often share a beginning with something that ran before.
  Tokens SomeContext() {
    Tokens tokens;
    if (!contexts_.empty() && rng_.Chance(0.8)) {
      tokens = contexts_[rng_.Below(contexts_.size())];
      if (rng_.Chance(0.5)) tokens.resize(rng_.Below(tokens.size() + 1));
    }
    for (uint64_t more = rng_.Below(2 * setup_.block_tokens); more > 0; --more) {
      tokens.push_back(static_cast<uint32_t>(rng_.Below(3)));
    }
    tokens.resize(std::min<size_t>(tokens.size(), 5 * setup_.block_tokens));
    return tokens;
  }

  // Match, take the leading blocks, then perhaps the beginning of the next by copy.
  void Start() {
    if (runs_.size() >= 6) return;
    Run run{.tokens = SomeContext(), .priority = static_cast<uint32_t>(rng_.Below(101))};
    const std::vector<Tier> tiers = store_->Locate(root_, run.tokens);
    std::vector<Hold> found = store_->Match(root_, run.tokens, run.priority);
    for (size_t i = 0; i < tiers.size(); ++i) {
      const bool is_there = i < found.size() && found[i];
      EXPECT_EQ(tiers[i] == Tier::kDevice, is_there);
      if (is_there)
        ExpectBytes(found[i], run.tokens, i * layout_.block_tokens, layout_.block_tokens);
    }
    for (Hold& hold : found) {
      if (!hold) break;
      run.keys.push_back(hold.key());
      run.holds.push_back(std::move(hold));
      run.written += layout_.block_tokens;
    }
    found.clear();
    if (rng_.Chance(0.7)) Copy(run);
    contexts_.push_back(run.tokens);
    if (contexts_.size() > 12) contexts_.erase(contexts_.begin());
    runs_.push_back(std::move(run));
  }

  void Copy(Run& run) {
    const BlockKey parent = run.keys.empty() ? root_ : run.keys.back();
    const auto rest = std::span(run.tokens).subspan(run.written);
    std::optional<PartialBlock> copy = store_->CopyPrefix(parent, rest, stream_);
    if (!copy) return;
    ASSERT_GE(copy->token_count, 1u);
    ASSERT_LE(copy->token_count, std::min<size_t>(rest.size(), layout_.block_tokens));
    ExpectBytes(copy->block, run.tokens, run.written, copy->token_count);
    run.holds.push_back(std::move(copy->block));
    run.written += copy->token_count;
    if (copy->token_count == layout_.block_tokens) SealLast(run);
  }

  // Computes the next tokens, new ones when the context is at its end.
  void Write(Run& run) {
    for (uint64_t count = 1 + rng_.Below(layout_.block_tokens); count > 0; --count) {
      if (run.written == run.tokens.size()) {
        if (run.tokens.size() >= 6 * layout_.block_tokens) return;
        run.tokens.push_back(static_cast<uint32_t>(rng_.Below(3)));
      }
      if (run.written % layout_.block_tokens == 0) {
        const bool possible = Available() > 0;
        Result<std::vector<Hold>> fresh = store_->Reserve(1);
        ASSERT_EQ(fresh.ok(), possible) << fresh.status().ToString();
        if (!possible) return;
        run.holds.push_back(std::move(fresh->front()));
      }
      ++run.written;
      WritePatternKv(layout_, run.holds.back().writable_address(),
                     std::span(run.tokens).first(run.written));
      if (run.written % layout_.block_tokens == 0) SealLast(run);
    }
  }

  void SealLast(Run& run) {
    const BlockKey parent = run.keys.empty() ? root_ : run.keys.back();
    const auto context = std::span(run.tokens).first(run.written);
    Hold sealed = store_->Seal(std::move(run.holds.back()), parent,
                               context.last(layout_.block_tokens), run.priority);
    ExpectBytes(sealed, run.tokens, run.written - layout_.block_tokens, layout_.block_tokens);
    run.keys.push_back(sealed.key());
    run.holds.back() = std::move(sealed);
    present_.insert(Tokens(context.begin(), context.end()));
  }

  Run TakeRun() {
    const size_t index = rng_.Below(runs_.size());
    Run run = std::move(runs_[index]);
    runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(index));
    return run;
  }

  void Finish() {
    if (runs_.empty()) return;
    Run run = TakeRun();
    const size_t tail_count = run.written % layout_.block_tokens;
    if (tail_count == 0) return;
    store_->Park(std::move(run.holds.back()), run.keys.empty() ? root_ : run.keys.back(),
                 std::span(run.tokens).subspan(run.written - tail_count, tail_count), run.priority);
  }

  void Cancel() {
    if (!runs_.empty()) (void)TakeRun();
  }

  void CloneAndDropOne() {
    if (extra_.size() > 3) extra_.erase(extra_.begin());
    Run* run = AnyRun();
    if (run != nullptr && !run->keys.empty()) {
      extra_.push_back(run->holds[rng_.Below(run->keys.size())].Clone());
    }
  }

  void DropContext() {
    const Tokens context = SomeContext();
    const uint32_t hot_count = store_->stats().hot;
    const uint32_t dropped = store_->DropUnheld(root_, context);
    EXPECT_EQ(store_->stats().hot, hot_count - dropped);
    for (size_t end = layout_.block_tokens; end <= context.size(); end += layout_.block_tokens) {
      const auto prefix = std::span(context).first(end);
      const bool still_there = store_->Locate(root_, prefix).back() == Tier::kDevice;
      EXPECT_EQ(still_there, IsHeld(prefix));
      if (!still_there) present_.erase(Tokens(prefix.begin(), prefix.end()));
    }
  }

  // Whether the block at the end of this prefix is held, by the model's account.
  bool IsHeld(std::span<const uint32_t> prefix) const {
    const size_t index = prefix.size() / layout_.block_tokens - 1;
    for (const Run& run : runs_) {
      if (run.keys.size() > index &&
          std::ranges::equal(std::span(run.tokens).first(prefix.size()), prefix)) {
        if (!setup_.weak_keys) return true;
        // A block whose key collided is held under a key of its own and is not found.
        return store_->Locate(root_, prefix).back() == Tier::kDevice;
      }
    }
    const std::vector<Hold> found = store_->Match(root_, prefix, kPriorityDefault);
    return found.size() == index + 1 && std::ranges::any_of(extra_, [&](const Hold& hold) {
             return hold.id() == found.back().id();
           });
  }

  void ReserveAndDrop() {
    const auto count = static_cast<uint32_t>(rng_.Below(setup_.capacity + 2));
    const bool possible = count <= Available();
    const BlockStoreStats before = store_->stats();
    const Result<std::vector<Hold>> holds = store_->Reserve(count);
    ASSERT_EQ(holds.ok(), possible) << holds.status().ToString();
    const uint32_t due = possible && count > before.free ? count - before.free : 0;
    ASSERT_EQ(store_->stats().evictions, before.evictions + due);
    ASSERT_EQ(possible ? holds->size() : count, count);
    store_->CheckInvariants();
  }

  void ClearAll() {
    store_->Clear();
    EXPECT_EQ(store_->stats().evictable, 0u);
    std::erase_if(present_, [&](const Tokens& prefix) { return !IsLocated(prefix); });
  }

  bool IsLocated(const Tokens& prefix) const {
    return store_->Locate(root_, prefix).back() == Tier::kDevice;
  }

  // Every block on the device can be found by its tokens and has the right bytes.
  void CheckEverythingFound() {
    for (const Tokens& prefix : present_) {
      const std::vector<Hold> found = store_->Match(root_, prefix, kPriorityDefault);
      for (size_t i = 0; i < found.size(); ++i) {
        if (found[i]) ExpectBytes(found[i], prefix, i * layout_.block_tokens, layout_.block_tokens);
      }
    }
  }

  void ExpectBytes(const Hold& hold, const Tokens& context, size_t first, size_t count) {
    for (size_t i = first + 1; i <= first + count; ++i) {
      ASSERT_TRUE(HasPatternKv(layout_, hold.address(), std::span(context).first(i)));
    }
  }

  // Gauges agree with the model, and sealed blocks are lost only to evictions that were counted.
  void Check() {
    store_->CheckInvariants();
    const BlockStoreStats stats = store_->stats();
    ASSERT_EQ(stats.free + stats.evictable, Available());
    ASSERT_EQ(stats.free + stats.filling + stats.hot, setup_.capacity);
    const size_t lost =
        std::erase_if(present_, [&](const Tokens& prefix) { return !IsLocated(prefix); });
    if (setup_.weak_keys) return;  // a block whose key collided is never located
    ASSERT_LE(lost, stats.evictions - evictions_);
    ASSERT_EQ(present_.size(), stats.hot - stats.parked);
    evictions_ = stats.evictions;
  }

  const Setup setup_;
  Rng rng_;
  const KvLayout layout_;
  const BlockKey root_ = RootKey({1, 2}, "layout", "");
  FakeClock clock_;
  std::unique_ptr<Device> device_;
  CpuComputeStream stream_;
  std::unique_ptr<BlockStore> store_;
  std::vector<Run> runs_;
  std::vector<Hold> extra_;
  std::vector<Tokens> contexts_;
  std::set<Tokens> present_;  // prefixes of whole blocks whose last block is sealed and not lost
  uint64_t evictions_ = 0;
};

class BlockStoreModelTest : public testing::TestWithParam<Setup> {};

TEST_P(BlockStoreModelTest, RandomHistory) {
  History history(GetParam());
  for (uint32_t i = 0; i < GetParam().operation_count; ++i) {
    ASSERT_NO_FATAL_FAILURE(history.Step()) << "operation " << i;
    ASSERT_FALSE(testing::Test::HasNonfatalFailure()) << "operation " << i;
  }
  history.FinishAll();
  const BlockStoreStats stats = history.store().stats();
  EXPECT_EQ(stats.filling + stats.held_hot, 0u);
  for (const uint64_t count : {stats.hits, stats.misses, stats.prefix_copies, stats.evictions,
                               stats.duplicate_seals, stats.drops}) {
    EXPECT_GT(count, GetParam().operation_count / 1000);  // the history went everywhere
  }
  EXPECT_EQ(stats.collisions > 0, GetParam().weak_keys);
}

INSTANTIATE_TEST_SUITE_P(All, BlockStoreModelTest,
                         testing::Values(Setup{"SmallPool", 1, 12, 4, 40000, false},
                                         Setup{"LargePool", 2, 60, 4, 30000, false},
                                         Setup{"WholeBlocks", 3, 24, 16, 20000, false},
                                         Setup{"CollidingKeys", 4, 24, 4, 30000, true},
                                         Setup{"CollidingKeysSmallPool", 5, 9, 4, 20000, true}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace cairn
