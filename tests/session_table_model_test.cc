// Random operations on the table of sessions, against a trivial model of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/session_table.h"
#include "tests/fakes/fake_clock.h"

namespace cairn {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;
using Ids = std::vector<uint32_t>;

constexpr uint32_t kVocabularySize = 1000;

EngineConfig SmallConfig() {
  EngineConfig config;
  config.context_length = 100;
  config.session_count_max = 5;
  config.session_tokens_max = 250;
  return config;
}

// The table against what its contract says, kept in the simplest way.
struct ModelSession {
  Ids tokens;
  std::string salt;
  int64_t computed = 0;
  std::optional<seconds> ttl;
  Clock::Wall last_use;
};

class ModelRun {
 public:
  explicit ModelRun(uint64_t seed) : rng_(seed), table_(config_, kVocabularySize, clock_, seed) {}

  void Step() {
    const std::string id(1, static_cast<char>('a' + rng_.Below(8)));
    const auto found = model_.find(id);
    ModelSession* session = found == model_.end() ? nullptr : &found->second;
    switch (rng_.Below(7)) {
      case 0:
        return Create(id, session);
      case 1:
        return Fork(id, session);
      case 2:
        return Append(id, session);
      case 3:
        return Truncate(id, session);
      case 4:
        return MarkComputed(id, session);
      case 5: {
        EXPECT_EQ(table_.Delete(id).ok(), session != nullptr);
        model_.erase(id);
        return;
      }
      default:
        return PassTime();
    }
  }

  void Compare() {
    table_.CheckInvariants();
    ASSERT_EQ(table_.session_count(), model_.size());
    uint64_t total = 0;
    for (const auto& [id, expected] : model_) {
      const auto found = table_.Find(id);
      ASSERT_TRUE(found.ok());
      ASSERT_EQ((**found).tokens, expected.tokens);
      ASSERT_EQ((**found).computed_token_count, expected.computed);
      ASSERT_EQ(table_.SharedPrefix(**found), SharedPrefix(id));
      total += expected.tokens.size();
    }
    ASSERT_EQ(table_.total_token_count(), total);
  }

 private:
  uint64_t Total() const {
    uint64_t total = 0;
    for (const auto& [id, session] : model_) total += session.tokens.size();
    return total;
  }

  size_t SharedPrefix(const std::string& id) const {
    const ModelSession& session = model_.at(id);
    size_t longest = 0;
    for (const auto& [other_id, other] : model_) {
      if (other_id == id || other.salt != session.salt) continue;
      const auto end = std::ranges::mismatch(session.tokens, other.tokens).in1;
      longest = std::max<size_t>(longest, end - session.tokens.begin());
    }
    return longest;
  }

  void Create(const std::string& id, const ModelSession* session) {
    CreateSessionRequest request;
    request.id = id;
    ModelSession created;
    created.last_use = clock_.WallNow();
    if (rng_.Chance(0.3)) request.cache_salt = created.salt = "tenant";
    if (rng_.Chance(0.6)) {
      created.ttl = seconds(1 + rng_.Below(20));
      request.settings.expiration = nanoseconds(*created.ttl);
    }
    const bool fits = session == nullptr && model_.size() < config_.session_count_max;
    EXPECT_EQ(table_.Create(request).ok(), fits);
    if (fits) model_[id] = created;
  }

  void Fork(const std::string& id, ModelSession* session) {
    const std::string new_id(1, static_cast<char>('a' + rng_.Below(8)));
    const auto count = static_cast<int64_t>(rng_.Below(60));
    const auto size = session ? static_cast<int64_t>(session->tokens.size()) : 0;
    const bool fits = session && !model_.contains(new_id) && count <= size &&
                      model_.size() < config_.session_count_max &&
                      Total() + static_cast<uint64_t>(count) <= config_.session_tokens_max;
    EXPECT_EQ(table_.Fork({id, new_id, count}).ok(), fits);
    if (!fits) return;
    session->last_use = clock_.WallNow();
    ModelSession fork = *session;
    fork.tokens.resize(static_cast<size_t>(count));
    fork.computed = std::min(fork.computed, count);
    model_[new_id] = fork;
  }

  void Append(const std::string& id, ModelSession* session) {
    Ids tokens(rng_.Below(60));
    // Of few ids, so that sessions begin alike; in short steps too.
    if (rng_.Chance(0.5)) tokens.resize(tokens.size() % 4);
    const uint32_t ids = rng_.Chance(0.8) ? 2 : kVocabularySize;
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng_.Below(ids));
    const bool fits = session && session->tokens.size() + tokens.size() <= 100 &&
                      Total() + tokens.size() <= config_.session_tokens_max;
    EXPECT_EQ(table_.Append(id, tokens, std::nullopt).ok(), fits);
    if (!fits) return;
    session->tokens.insert(session->tokens.end(), tokens.begin(), tokens.end());
    session->last_use = clock_.WallNow();
  }

  void Truncate(const std::string& id, ModelSession* session) {
    const size_t count = rng_.Below(80);
    const bool fits = session && count <= session->tokens.size();
    EXPECT_EQ(table_.Truncate(id, static_cast<int64_t>(count)).ok(), fits);
    if (!fits) return;
    session->tokens.resize(count);
    session->computed = std::min(session->computed, static_cast<int64_t>(count));
    session->last_use = clock_.WallNow();
  }

  void MarkComputed(const std::string& id, ModelSession* session) {
    const size_t size = session ? session->tokens.size() : 0;
    const auto count = static_cast<int64_t>(rng_.Below(size + 1));
    EXPECT_EQ(table_.MarkComputed(id, count).ok(), session != nullptr);
    if (session) session->computed = std::max(session->computed, count);
  }

  void PassTime() {
    clock_.Advance(seconds(rng_.Below(6)));
    std::set<std::string> expected;
    std::erase_if(model_, [&](const auto& entry) {
      const auto& [id, session] = entry;
      const bool gone = session.ttl && session.last_use + *session.ttl <= clock_.WallNow();
      if (gone) expected.insert(id);
      return gone;
    });
    const std::vector<std::string> expired =
        table_.ExpireNow([](const std::string&) { return false; });
    EXPECT_EQ(std::set<std::string>(expired.begin(), expired.end()), expected);
    EXPECT_EQ(expired.size(), expected.size());
  }

  const EngineConfig config_ = SmallConfig();
  FakeClock clock_;
  Rng rng_;
  SessionTable table_;
  std::map<std::string, ModelSession> model_;
};

TEST(SessionTableModel, RandomOperationsAgree) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    ModelRun run(seed);
    for (int step = 0; step < 1000; ++step) {
      run.Step();
      run.Compare();
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace cairn
