// A small ordered map from keys to values, both bytes, that survives the process and the machine.
//
// A batch is made durable as a whole or not at all, and batches in the order of their commits: what
// a crash leaves is the state after one of them, the last synced one or a later one.
//
// A commit that fails changes nothing that a later Scan shows, but for one case: when the bytes
// reached the log and only their sync failed, they may be there. Either way Scan shows from then on
// what later commits build on, so whoever keeps a copy in memory reads it again after a failure.
// The store mends itself: a commit tries to open it anew, no more often than each half a second,
// and until that succeeds every commit fails at once.
//
// A damaged log costs the batches that lie where it is damaged (RocksDB skips the rest of 32 KiB)
// and no later one. A damaged table costs the values that lie where it is damaged, which are empty
// from then on; when what cannot be read is its index, or all of it, its keys are again what they
// were before it was written, and only those that are remembered by name (`remembered`) are there
// with an empty value when they were not before. Tables are verified as the store is opened, and
// whenever they are compacted; what can be read goes on in new ones, so damage stops nothing.
//
// Threads: any for Scan; one at a time for Commit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace cairn {

// Changes that are made together, in their order.
class DurableBatch {
 public:
  enum class Kind { kPut, kAppend, kDelete, kDeleteRange };
  struct Change {
    Kind kind;
    std::string key;
    std::string value;  // of kDeleteRange: the key before which it ends
  };

  void Put(std::string key, std::string value) {
    Add({Kind::kPut, std::move(key), std::move(value)});
  }
  // Puts `bytes` behind the value of `key`; without one they are the value.
  void Append(std::string key, std::string bytes) {
    Add({Kind::kAppend, std::move(key), std::move(bytes)});
  }
  void Delete(std::string key) { Add({Kind::kDelete, std::move(key), {}}); }
  // Every key in [begin, end).
  void DeleteRange(std::string begin, std::string end) {
    Add({Kind::kDeleteRange, std::move(begin), std::move(end)});
  }
  // Everything of `other`, behind what is here.
  void Add(DurableBatch other) {
    for (Change& change : other.changes_) Add(std::move(change));
  }

  const std::vector<Change>& changes() const { return changes_; }
  bool empty() const { return changes_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  void Add(Change change) {
    bytes_ += change.key.size() + change.value.size();
    changes_.push_back(std::move(change));
  }

  std::vector<Change> changes_;
  size_t bytes_ = 0;
};

enum class CommitSync {
  kDevice,  // survives a loss of power: the log is synced to the device before Commit returns
  kSystem,  // survives the death of the process: the log is written to the operating system
};

class DurableStore {
 public:
  virtual ~DurableStore() = default;

  // kResourceExhausted when the disk is full, kUnavailable for any other failure; both with the
  // time after which a retry makes sense.
  virtual Status Commit(const DurableBatch& batch, CommitSync sync) = 0;

  // Every key that begins with `prefix`, in order. Values are given as they lie on the disk: who
  // reads them checks them. kUnavailable when the disk cannot be read.
  using Visitor = std::function<void(std::string_view key, std::string_view value)>;
  virtual Status Scan(std::string_view prefix, const Visitor& visit) const = 0;

  // Once: when the log or a table was found damaged as the store was opened, the state before the
  // damaged log, or without the damaged tables, for reading only. Scan then shows the rest as well,
  // without the changes that are lost, so what depends on those has to be recognised, and may be
  // put back to what is here. Null: nothing was damaged.
  virtual std::unique_ptr<const DurableStore> TakeBeforeDamage() { return nullptr; }

  // Once: whether a table was found damaged since the store was opened. Commits have gone on, but
  // values of any age may be lost, so whoever has them in memory should put them again.
  virtual bool TakeLost() { return false; }
};

// A store in the folder `path`, which is made when it is missing; `clock` outlives it. Keys that
// begin with `remembered`, if that is not empty, are remembered in the file PATH.keys. kUnavailable
// when the disk or the database in it does not let itself be opened.
Result<std::unique_ptr<DurableStore>> OpenDurableStore(const std::string& path, const Clock& clock,
                                                       const std::string& remembered = "");

}  // namespace cairn
