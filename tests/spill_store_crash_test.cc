// The disk tier after kill -9. A process of its own writes, moves and retires, and says on a pipe
// what it ordered and what has ended; it is killed after some number of words, at whatever it does
// then. Every record that it said was stored must be found and verify.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "offload/rocksdb_segments.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 1024;

// What the writer says, one at a time: a pipe takes so few bytes whole or not at all.
struct Word {
  enum class Kind : uint64_t { kStored, kRetires, kKeeps, kMoved, kRetired } kind;
  uint64_t number = 0;
  RecordId record;    // stored, kept or moved from
  RecordId to;        // moved
  SegmentId segment;  // stored or retired
};

SpillStoreConfig ConfigOf(const std::string& directory) {
  return {.directory = directory,
          .quota_bytes = kDatabaseBytesMax + (400 << 10),
          .segment_bytes = 32 << 10,
          .idle_close = std::chrono::hours(1)};
}

class Writer {
 public:
  Writer(const std::string& directory, uint64_t seed)
      : rng_(seed), next_number_(seed << 32), driver_(ConfigOf(directory), LayoutOf(kBlockBytes)) {
    for (const FoundRecord& found : driver_.found()) {
      segments_[found.segment][found.record] = NumberOf(found.block);
    }
  }

  [[noreturn]] void RunForEver() {
    for (;;) {
      for (uint64_t n = rng_.Below(8); n > 0; --n) driver_.Write(next_number_++);
      if (rng_.Chance(0.3)) driver_.store().Close();
      const SpillStats stats = driver_.store().stats();
      if (stats.used_bytes + 40 * stats.record_bytes > stats.quota_bytes) Retire();
      Tell(driver_.Wait(0));
    }
  }

 private:
  void Retire() {
    const SegmentId oldest = driver_.store().OldestSegment();
    if (!oldest.valid()) return driver_.store().Close();
    const SpillStats stats = driver_.store().stats();
    const uint64_t room = (stats.quota_bytes - stats.used_bytes) / stats.record_bytes;
    Say({.kind = Word::Kind::kRetires, .segment = oldest});
    std::vector<RecordId> keep;
    for (const auto& [record, number] : segments_[oldest]) {
      if (keep.size() == room || !rng_.Chance(0.2)) continue;
      Say({.kind = Word::Kind::kKeeps, .number = number, .record = record});
      keep.push_back(record);
    }
    driver_.Retire(oldest, keep);
    driver_.store().Close();
    Tell(driver_.WaitForAll());
  }

  void Tell(const std::vector<SpillDriver::Ended>& all) {
    for (const auto& [kind, number, intact, retired, completion] : all) {
      if (!completion.status.ok()) continue;
      if (kind == SpillDriver::Ended::Kind::kWrite) {
        Say({Word::Kind::kStored, number, completion.record, {}, completion.segment});
        segments_[completion.segment][completion.record] = number;
        continue;
      }
      for (const auto& moved : completion.moved) {
        const uint64_t moved_number = segments_[retired][moved.from];
        Say({Word::Kind::kMoved, moved_number, moved.from, moved.to, moved.segment});
        segments_[moved.segment][moved.to] = moved_number;
      }
      Say({.kind = Word::Kind::kRetired, .segment = retired});
      segments_.erase(retired);
    }
  }

  void Say(const Word& word) { CHECK(write(STDOUT_FILENO, &word, sizeof word) == sizeof word); }

  Rng rng_;
  uint64_t next_number_;
  SpillDriver driver_;
  std::map<SegmentId, std::map<RecordId, uint64_t>> segments_;
};

// What the words promise.
class Promises {
 public:
  struct Place {
    uint64_t number;
    SegmentId segment;
  };

  void Hear(const Word& word) {
    switch (word.kind) {
      case Word::Kind::kStored:
        records_[word.record] = {word.number, word.segment};
        break;
      case Word::Kind::kRetires:
        retiring_ = word.segment;
        kept_.clear();
        break;
      case Word::Kind::kKeeps:
        kept_.insert(word.number);
        break;
      case Word::Kind::kMoved:
        records_[word.to] = {word.number, word.segment};
        break;
      case Word::Kind::kRetired:
        std::erase_if(records_, [&](const auto& e) { return e.second.segment == word.segment; });
        retiring_ = SegmentId();
        kept_.clear();
        break;
    }
  }

  // `found` becomes what there is.
  void Check(SpillDriver& driver) {
    std::map<RecordId, Place> found;
    std::set<uint64_t> numbers;
    for (const FoundRecord& record : driver.found()) {
      const uint64_t number = NumberOf(record.block);
      found[record.record] = {number, record.segment};
      numbers.insert(number);
      EXPECT_TRUE(driver.ReadOne(record.record, number).intact);
    }
    for (const auto& [record, place] : records_) {
      if (place.segment != retiring_) {
        EXPECT_TRUE(found.contains(record)) << record.value();
      }
    }
    for (const uint64_t number : kept_) EXPECT_TRUE(numbers.contains(number)) << number;
    records_ = std::move(found);
    retiring_ = SegmentId();
    kept_.clear();
  }

  size_t record_count() const { return records_.size(); }

 private:
  std::map<RecordId, Place> records_;
  SegmentId retiring_;
  std::set<uint64_t> kept_;  // of the segment that is being retired
};

// Runs a writer until it has said `word_count` words, kills it, and hears what it had still said.
void RunAndKill(const std::string& directory, uint64_t seed, size_t word_count,
                Promises& promises) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string seed_text = std::to_string(seed);
  const pid_t writer = fork();
  if (writer == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    execl("/proc/self/exe", "writer", "--writer", directory.c_str(), seed_text.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  Word word;
  size_t heard = 0;
  while (read(ends[0], &word, sizeof word) == sizeof word) {
    promises.Hear(word);
    if (++heard == word_count) kill(writer, SIGKILL);
  }
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(writer, &status, 0), writer);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_GE(heard, word_count);
}

TEST(SpillStoreCrashTest, WhatWasSaidToBeStoredIsThereAfterAKill) {
  const ScratchFolder folder;
  const std::string directory = folder.File("spill");
  Rng rng(1);
  Promises promises;
  size_t checked = 0;
  for (uint64_t round = 1; round <= 24 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    RunAndKill(directory, round, 1 + rng.Below(200), promises);
    SpillDriver driver(ConfigOf(directory), LayoutOf(kBlockBytes));
    promises.Check(driver);
    checked += promises.record_count();
    EXPECT_LE(DiskUsage(directory), ConfigOf(directory).quota_bytes);
    EXPECT_TRUE(FilesBelow(directory + "/open", "").empty());  // what was being written is gone
    EXPECT_EQ(FilesBelow(directory, ".sst").size(), driver.store().stats().segment_count);
  }
  EXPECT_GT(checked, 500u);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--writer") {
    cairn::Writer(argv[2], std::stoull(argv[3])).RunForEver();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
