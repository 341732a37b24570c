// A DurableStore in memory, which a test can make fail, wait, or lose power.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "offload/durable_store.h"

namespace cairn {

class MemoryStore final : public DurableStore {
 public:
  using Map = std::map<std::string, std::string, std::less<>>;

  Status Commit(const DurableBatch& batch, CommitSync sync) override {
    if (on_commit) RETURN_IF_ERROR(on_commit(batch));
    const std::lock_guard lock(mutex_);
    if (dead_) return Unavailable("the process is dead");
    Apply(batch, current_);
    if (sync == CommitSync::kDevice) {
      for (const DurableBatch& earlier : unsynced_) Apply(earlier, synced_);
      unsynced_.clear();
      Apply(batch, synced_);
    } else {
      unsynced_.push_back(batch);
    }
    ++commit_count_;
    return Status();
  }

  Status Scan(std::string_view prefix, const Visitor& visit) const override {
    const std::lock_guard lock(mutex_);
    for (auto at = current_.lower_bound(prefix); at != current_.end(); ++at) {
      if (!at->first.starts_with(prefix)) break;
      visit(at->first, at->second);
    }
    return Status();
  }

  // What TakeBeforeDamage gives, once.
  std::unique_ptr<const DurableStore> before_damage;
  std::unique_ptr<const DurableStore> TakeBeforeDamage() override {
    return std::move(before_damage);
  }

  // What TakeLost says, once.
  std::atomic<bool> lost = false;
  bool TakeLost() override { return lost.exchange(false); }

  // From now on nothing is written any more.
  void Die() {
    const std::lock_guard lock(mutex_);
    dead_ = true;
  }
  // What is left are the batches up to the last synced one, and `more` of those behind it.
  void LosePower(size_t more) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < std::min(more, unsynced_.size()); ++i) Apply(unsynced_[i], synced_);
    unsynced_.clear();
    current_ = synced_;
  }

  Map Everything() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }
  // Changes what lies there behind everybody's back.
  void Damage(const std::function<void(Map&)>& change) {
    const std::lock_guard lock(mutex_);
    change(current_);
    synced_ = current_;
  }
  size_t commit_count() const {
    const std::lock_guard lock(mutex_);
    return commit_count_;
  }

  // Before a commit does anything; what it returns is the answer unless it is ok. Set it while
  // nobody commits.
  std::function<Status(const DurableBatch&)> on_commit;

 private:
  static void Apply(const DurableBatch& batch, Map& map) {
    for (const DurableBatch::Change& change : batch.changes()) {
      switch (change.kind) {
        case DurableBatch::Kind::kPut:
          map[change.key] = change.value;
          break;
        case DurableBatch::Kind::kAppend:
          map[change.key] += change.value;
          break;
        case DurableBatch::Kind::kDelete:
          map.erase(change.key);
          break;
        case DurableBatch::Kind::kDeleteRange:
          map.erase(map.lower_bound(change.key), map.lower_bound(change.value));
          break;
      }
    }
  }

  mutable std::mutex mutex_;  // of all below
  Map current_;
  Map synced_;
  std::vector<DurableBatch> unsynced_;
  size_t commit_count_ = 0;
  bool dead_ = false;
};

}  // namespace cairn
