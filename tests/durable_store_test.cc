// The durable store on a real disk: batches, appends, scans, what a new start finds, and what it
// does when the disk fails under it.
#include "offload/durable_store.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/check.h"
#include "base/rng.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/file_size_limit.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Map = std::map<std::string, std::string>;

class DurableStoreTest : public testing::Test {
 protected:
  void Open() {
    store_.reset();
    auto opened = OpenDurableStore(path_, clock_);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store_ = *std::move(opened);
  }
  Map Everything(const std::string& prefix = "") const {
    Map found;
    std::string last;
    const Status scanned = store_->Scan(prefix, [&](std::string_view key, std::string_view value) {
      EXPECT_TRUE(found.empty() || last < key) << "in order";
      last = key;
      found.emplace(key, value);
    });
    EXPECT_TRUE(scanned.ok()) << scanned.ToString();
    return found;
  }
  Status Put(const std::string& key, const std::string& value) {
    DurableBatch batch;
    batch.Put(key, value);
    return store_->Commit(batch, CommitSync::kDevice);
  }

  ScratchFolder scratch_;
  FakeClock clock_;
  std::string path_ = scratch_.File("store");
  std::unique_ptr<DurableStore> store_;
};

TEST_F(DurableStoreTest, KeepsWhatWasCommitted) {
  Open();
  DurableBatch batch;
  batch.Put("a1", "one");
  batch.Append("a2", "x");
  batch.Append("a2", "yz");
  batch.Put("b", std::string("\0\xff", 2));
  batch.Put("c", "gone");
  batch.Delete("c");
  ASSERT_TRUE(store_->Commit(batch, CommitSync::kDevice).ok());
  DurableBatch more;
  more.Append("a1", "+");
  more.Append("a2", "!");
  ASSERT_TRUE(store_->Commit(more, CommitSync::kSystem).ok());
  const Map expected = {{"a1", "one+"}, {"a2", "xyz!"}, {"b", std::string("\0\xff", 2)}};
  EXPECT_EQ(Everything(), expected);
  Open();
  EXPECT_EQ(Everything(), expected);
  EXPECT_EQ(Everything("a"), (Map{{"a1", "one+"}, {"a2", "xyz!"}}));
  EXPECT_EQ(Everything("a2"), (Map{{"a2", "xyz!"}}));
  EXPECT_EQ(Everything("d"), Map());
}

TEST_F(DurableStoreTest, ARangeGoesAndWhatComesAfterItStays) {
  Open();
  for (const char* key : {"t1", "t2", "t3", "t4", "u"}) ASSERT_TRUE(Put(key, key).ok());
  DurableBatch batch;
  batch.DeleteRange("t2", "t4");
  batch.Append("t2", "new");  // not behind the value that has gone
  ASSERT_TRUE(store_->Commit(batch, CommitSync::kDevice).ok());
  const Map expected = {{"t1", "t1"}, {"t2", "new"}, {"t4", "t4"}, {"u", "u"}};
  EXPECT_EQ(Everything(), expected);
  Open();
  EXPECT_EQ(Everything(), expected);
}

// Against a map, over flushes (values of 64 KiB fill the memtable) and new starts.
TEST_F(DurableStoreTest, RandomBatchesAgreeWithAMap) {
  Rng rng(7);
  Map model;
  Open();
  const auto key = [&] { return std::string(1, static_cast<char>('a' + rng.Below(12))); };
  for (int round = 0; round < 600; ++round) {
    DurableBatch batch;
    for (uint64_t i = 1 + rng.Below(4); i > 0; --i) {
      const std::string at = key();
      const std::string value(rng.Below(rng.Chance(0.2) ? 65536 : 8),
                              static_cast<char>(rng.Next()));
      switch (rng.Below(5)) {
        case 0:
          batch.Put(at, value);
          model[at] = value;
          break;
        case 1:
        case 2:
          batch.Append(at, value);
          model[at] += value;
          break;
        case 3:
          batch.Delete(at);
          model.erase(at);
          break;
        default: {
          const std::string end = key();
          if (at >= end) break;
          batch.DeleteRange(at, end);
          model.erase(model.lower_bound(at), model.lower_bound(end));
        }
      }
    }
    ASSERT_TRUE(
        store_->Commit(batch, rng.Chance(0.1) ? CommitSync::kDevice : CommitSync::kSystem).ok());
    if (rng.Chance(0.02)) Open();
    if (rng.Chance(0.1)) {
      ASSERT_EQ(Everything(), model) << round;
    }
  }
  Open();
  EXPECT_EQ(Everything(), model);
}

TEST_F(DurableStoreTest, SaysWhyItCannotBeOpened) {
  std::ofstream(path_) << "a file";
  const Status refused = OpenDurableStore(path_, clock_).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_TRUE(refused.message().starts_with(path_ + ": ")) << refused.message();
  EXPECT_EQ(refused.message().find('\n'), std::string::npos);
}

TEST_F(DurableStoreTest, ADamagedLogCostsWhatLiesThereAndNothingBehindIt) {
  constexpr int kCount = 100;
  const auto key = [](int i) { return std::to_string(100 + i); };
  Open();
  EXPECT_EQ(store_->TakeBeforeDamage(), nullptr);
  for (int i = 0; i < kCount; ++i) ASSERT_TRUE(Put(key(i), std::string(1000, 'a')).ok());
  store_.reset();
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    if (entry.path().extension() != ".log" || entry.file_size() == 0) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1500);  // in the second record
    file.put('x');
  }
  testing::internal::CaptureStderr();
  Open();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the log in " + path_ + " is damaged"), std::string::npos) << said;
  const Map found = Everything();
  EXPECT_TRUE(found.contains(key(0)));
  EXPECT_FALSE(found.contains(key(1)));
  // RocksDB reads a log by 32 KiB, and does not trust the rest of those.
  for (int i = 33; i < kCount; ++i) EXPECT_EQ(found.at(key(i)).size(), 1000u) << i;
  const std::unique_ptr<const DurableStore> before = store_->TakeBeforeDamage();
  ASSERT_NE(before, nullptr);
  Map earlier;
  ASSERT_TRUE(before->Scan("1", [&](auto at, auto value) { earlier.emplace(at, value); }).ok());
  EXPECT_EQ(earlier, (Map{{key(0), std::string(1000, 'a')}}));
  EXPECT_EQ(store_->TakeBeforeDamage(), nullptr);  // once
  ASSERT_TRUE(Put("d", "4").ok());
  Open();
  EXPECT_EQ(store_->TakeBeforeDamage(), nullptr);  // the log is whole again
  EXPECT_EQ(Everything().size(), found.size() + 1);
}

TEST_F(DurableStoreTest, ATornEndOfTheLogCostsOnlyWhatWasNotCommitted) {
  Open();
  ASSERT_TRUE(Put("a", "1").ok());
  ASSERT_TRUE(Put("b", "2").ok());
  store_.reset();
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    if (entry.path().extension() != ".log" || entry.file_size() == 0) continue;
    std::ofstream(entry.path(), std::ios::app) << "the beginning of a record";
  }
  Open();
  EXPECT_EQ(Everything(), (Map{{"a", "1"}, {"b", "2"}}));
  ASSERT_TRUE(Put("c", "3").ok());
  Open();
  EXPECT_EQ(Everything(), (Map{{"a", "1"}, {"b", "2"}, {"c", "3"}}));
}

// Writes until it fails; then what is there is what was committed, whatever is tried meanwhile.
// `heal` ends the trouble.
template <class Heal>
void ExpectHeals(DurableStore& store, FakeClock& clock, Code code, const Heal& heal) {
  Map model;
  const auto put = [&](size_t bytes) {
    DurableBatch batch;
    const std::string key = "k" + std::to_string(model.size());
    batch.Put(key, std::string(bytes, 'v'));
    Status status = store.Commit(batch, CommitSync::kDevice);
    if (status.ok()) model[key] = std::string(bytes, 'v');
    return status;
  };
  const auto expect_model = [&] {
    Map found;
    ASSERT_TRUE(store.Scan("", [&](auto key, auto value) { found.emplace(key, value); }).ok());
    ASSERT_EQ(found.size(), model.size());
    ASSERT_EQ(found, model);
  };
  Status failed;
  for (int i = 0; i < 10'000 && failed.ok(); ++i) failed = put(64 << 10);
  ASSERT_EQ(failed.code(), code) << failed.ToString();
  ASSERT_TRUE(failed.retry_after());
  ASSERT_GT(model.size(), 0u);
  expect_model();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(put(64 << 10).ok()) << "at once, without another try";
    expect_model();
    clock.Advance(std::chrono::seconds(1));
    EXPECT_FALSE(put(8 << 20).ok()) << "a try that fails again";
    expect_model();
  }
  heal();
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(put(100).ok());
  expect_model();
  EXPECT_TRUE(put(64 << 10).ok());
  expect_model();
}

TEST_F(DurableStoreTest, GoesOnWhenTheFilesMayGrowAgain) {
  Open();
  auto limit = std::make_unique<FileSizeLimit>(1 << 20);
  ExpectHeals(*store_, clock_, Code::kUnavailable, [&] { limit.reset(); });
  const Map before = Everything();
  Open();
  EXPECT_EQ(Everything(), before);
}

// A disk of 24 MiB at `path`, while it lives.
class SmallDisk {
 public:
  explicit SmallDisk(std::string path) : path_(std::move(path)) {
    fs::create_directory(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=24m") == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) CHECK(umount2(path_.c_str(), MNT_DETACH) == 0);
  }
  bool mounted() const { return mounted_; }

 private:
  const std::string path_;
  bool mounted_ = false;
};

TEST_F(DurableStoreTest, GoesOnWhenAFullDiskHasRoomAgain) {
  const SmallDisk disk(path_);
  if (!disk.mounted()) GTEST_SKIP() << "a small disk can be mounted by root only";
  const std::string ballast = path_ + "/ballast";
  std::ofstream(ballast) << std::string(16 << 20, 'b');
  path_ += "/store";
  Open();
  ExpectHeals(*store_, clock_, Code::kResourceExhausted, [&] { fs::remove(ballast); });
  const Map before = Everything();
  Open();
  EXPECT_EQ(Everything(), before);
  store_.reset();
}

}  // namespace
}  // namespace cairn
