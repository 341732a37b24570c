// The durable store over tables that are damaged, cut off or not there: what can be read goes on,
// what is lost is said, and neither a compaction nor kill -9 in the midst of it changes that.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "offload/durable_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/file_size_limit.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Map = std::map<std::string, std::string>;

std::vector<fs::path> TablesIn(const std::string& path) {
  std::vector<fs::path> tables;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".sst") tables.push_back(entry.path());
  }
  std::ranges::sort(tables);
  return tables;
}

void FlipByte(const fs::path& path, uintmax_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 0x10));
}

std::string ContentOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first place where `bytes` lie in the file.
uintmax_t PlaceOf(const fs::path& path, const std::string& bytes) {
  const size_t at = ContentOf(path).find(bytes);
  CHECK(at != std::string::npos);
  return at;
}

Map Everything(const DurableStore& store) {
  Map found;
  const Status scanned = store.Scan(
      "", [&](std::string_view key, std::string_view value) { found.emplace(key, value); });
  EXPECT_TRUE(scanned.ok()) << scanned.ToString();
  return found;
}

class DurableDamageTest : public testing::Test {
 protected:
  // Every opening makes a table of what the log has; four of those are compacted.
  void Open() {
    store_.reset();
    testing::internal::CaptureStderr();
    auto opened = OpenDurableStore(path_, clock_, remembered_);
    said_ = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store_ = *std::move(opened);
  }
  Status Change(const std::string& key, const std::string& value, bool append) {
    DurableBatch batch;
    append ? batch.Append(key, value) : batch.Put(key, value);
    return store_->Commit(batch, CommitSync::kSystem);
  }
  void Put(const std::string& key, const std::string& value) {
    const Status status = Change(key, value, false);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void Append(const std::string& key, const std::string& value) {
    const Status status = Change(key, value, true);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  // Enough for four tables, and so for a compaction of everything that is there.
  void FillTables() {
    for (int i = 0; i < 80; ++i) Put("z" + std::to_string(i % 8), std::string(1 << 20, 'z'));
  }

  ScratchFolder scratch_;
  FakeClock clock_;
  const std::string path_ = scratch_.File("store");
  std::string remembered_;  // the keys that begin so
  std::unique_ptr<DurableStore> store_;
  std::string said_;
};

TEST_F(DurableDamageTest, AFlippedByteCostsTheValueThatItLiesIn) {
  Open();
  for (int i = 10; i < 60; ++i)
    Put("k" + std::to_string(i), std::string(300, 'v') + std::to_string(i));
  Open();
  Append("k20", "+");
  Append("k21", "+");
  Put("k22", "new");
  Open();
  Map expected = Everything(*store_);
  store_.reset();
  FlipByte(TablesIn(path_)[0], PlaceOf(TablesIn(path_)[0], "vvvv21") - 100);
  Open();
  EXPECT_NE(said_.find(TablesIn(path_ + ".damaged")[0].filename()), std::string::npos) << said_;
  EXPECT_NE(said_.find("checksum"), std::string::npos) << said_;
  EXPECT_NE(said_.find("1 values are lost"), std::string::npos) << said_;
  expected["k21"] = "";
  EXPECT_EQ(Everything(*store_), expected);
  const auto before = store_->TakeBeforeDamage();
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(Everything(*before), (Map{{"k20", "+"}, {"k21", "+"}, {"k22", "new"}}));
  EXPECT_FALSE(store_->TakeLost()) << "nobody has had it in memory";
  Open();
  EXPECT_EQ(said_, "") << "it is said once";
  EXPECT_EQ(store_->TakeBeforeDamage(), nullptr);
  FillTables();
  EXPECT_EQ(Everything(*store_).size(), expected.size() + 8);
}

TEST_F(DurableDamageTest, OfATableThatIsGoneOrCutOffKeysAreWhatTheyWereBefore) {
  for (const bool gone : {true, false}) {
    store_.reset();
    fs::remove_all(path_);
    Open();
    Put("a", "1");
    Put("b", "1");
    Open();
    Put("b", "2");
    Put("c", "2");
    Open();
    Put("d", "3");
    Open();
    store_.reset();
    ASSERT_EQ(TablesIn(path_).size(), 3u);
    const fs::path second = TablesIn(path_)[1];
    const std::string line = second.filename().string() + ", a table of " +
                             std::to_string(fs::file_size(second)) + " bytes, is damaged: ";
    gone ? (void)fs::remove(second) : fs::resize_file(second, fs::file_size(second) / 2);
    Open();
    EXPECT_NE(said_.find(line), std::string::npos) << said_;
    EXPECT_EQ(Everything(*store_), (Map{{"a", "1"}, {"b", "1"}, {"d", "3"}}));
    Put("e", "4");
    FillTables();
    Open();
    EXPECT_EQ(said_, "");
  }
}

// Keys that are remembered are there after the table that they lay in alone, and nothing else of
// it.
TEST_F(DurableDamageTest, OfALostTableTheNamesAreLeft) {
  remembered_ = "s";
  const auto cut = [](const fs::path& table) { fs::resize_file(table, fs::file_size(table) - 1); };
  const auto flip_index = [](const fs::path& table) {  // the second place of a key is in the index
    const std::string content = ContentOf(table);
    FlipByte(table, content.find("s-there", content.find("s-there") + 1));
  };
  const auto remove = [](const fs::path& table) { fs::remove(table); };
  const std::vector<std::function<void(const fs::path&)>> damages = {cut, flip_index, remove};
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    store_.reset();
    fs::remove_all(path_);
    fs::remove(path_ + ".keys");
    Open();
    Put("s-old", "1");
    Open();
    Put("s-there", "1");
    Put("s-deleted", "1");
    Put("s-old", "2");
    Put("t", "1");
    DurableBatch gone;
    gone.Delete("s-deleted");
    ASSERT_TRUE(store_->Commit(gone, CommitSync::kSystem).ok());
    Open();
    Put("s-new", "3");
    store_.reset();
    damages[i](TablesIn(path_)[1]);
    Open();
    EXPECT_NE(said_.find("1 values are lost"), std::string::npos) << said_;
    const Map left{{"s-new", "3"}, {"s-old", "1"}, {"s-there", ""}};
    EXPECT_EQ(Everything(*store_), left);
    Open();
    EXPECT_EQ(said_, "");
    EXPECT_EQ(Everything(*store_), left);
  }
}

// Of a file of names, a damaged line costs one; and what is cut off of it, what was written last.
TEST_F(DurableDamageTest, ADamagedNameCostsOne) {
  remembered_ = "s";
  const std::string names = path_ + ".keys";
  Open();
  for (const char* key : {"s1", "s2", "s3", "s4"}) Put(key, "1");
  Open();
  store_.reset();
  FlipByte(names, ContentOf(names).find('\n') + 3);
  fs::resize_file(names, fs::file_size(names) - 5);
  for (const fs::path& table : TablesIn(path_)) fs::remove(table);
  Open();
  EXPECT_EQ(Everything(*store_), (Map{{"s1", ""}, {"s3", ""}}));
  Put("s5", "5");
  store_.reset();
  fs::remove(names);
  Open();  // it is made again
  store_.reset();
  for (const fs::path& table : TablesIn(path_)) fs::remove(table);
  Open();
  EXPECT_EQ(Everything(*store_), (Map{{"s1", ""}, {"s3", ""}, {"s5", ""}}));
}

// What cannot be remembered is not done.
TEST_F(DurableDamageTest, WithoutRoomForItsNameAKeyIsRefused) {
  remembered_ = "s";
  Open();
  Put("s1", "1");
  fs::remove(path_ + ".keys");
  fs::create_directory(path_ + ".keys");
  EXPECT_EQ(Change("s2", "2", false).code(), Code::kUnavailable);
  EXPECT_EQ(Everything(*store_), (Map{{"s1", "1"}}));
  fs::remove(path_ + ".keys");
  clock_.Advance(std::chrono::seconds(1));
  Put("s2", "2");
}

TEST_F(DurableDamageTest, WhenEveryTableIsGoneTheStoreIsEmptyAndTheDamagedOneIsKept) {
  Open();
  Put("a", "1");
  Open();
  Put("b", "2");
  store_.reset();
  for (const fs::path& table : TablesIn(path_)) fs::resize_file(table, 10);
  Open();
  EXPECT_EQ(Everything(*store_), (Map{{"b", "2"}})) << "what is in the log";
  EXPECT_EQ(TablesIn(path_ + ".damaged").size(), 1u);
  Put("c", "3");
  Open();
  EXPECT_EQ(Everything(*store_), (Map{{"b", "2"}, {"c", "3"}}));
}

TEST_F(DurableDamageTest, DamageThatACompactionFindsStopsNoCommit) {
  Open();
  for (int i = 10; i < 60; ++i)
    Put("k" + std::to_string(i), std::string(300, 'v') + std::to_string(i));
  Open();
  FlipByte(TablesIn(path_)[0], PlaceOf(TablesIn(path_)[0], "vvvv33") - 10);
  testing::internal::CaptureStderr();
  bool lost = false;
  for (int i = 0; i < 20 && !lost; ++i) {
    FillTables();
    Append("n", "+");
    lost = store_->TakeLost();
  }
  EXPECT_TRUE(lost);
  EXPECT_FALSE(store_->TakeLost()) << "once";
  EXPECT_NE(testing::internal::GetCapturedStderr().find("1 values are lost"), std::string::npos);
  const Map found = Everything(*store_);
  EXPECT_EQ(found.at("k33"), "");
  EXPECT_EQ(found.at("k34"), std::string(300, 'v') + "34");
  Put("k33", "again");
  Open();
  EXPECT_EQ(said_, "");
  EXPECT_EQ(Everything(*store_).at("k33"), "again");
}

// A store that cannot be salvaged for want of room says so, and is salvaged when there is some.
TEST_F(DurableDamageTest, WaitsForRoom) {
  Open();
  for (int i = 0; i < 30; ++i) Put("k" + std::to_string(i), std::string(100'000, 'v'));
  Open();
  store_.reset();
  FlipByte(TablesIn(path_)[0], 1'000'000);
  {
    const FileSizeLimit limit(1'000'000);
    testing::internal::CaptureStderr();
    const Status refused = OpenDurableStore(path_, clock_).status();
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(refused.code(), Code::kUnavailable);
    EXPECT_TRUE(refused.message().starts_with(path_ + " is damaged, and cannot be salvaged: "))
        << refused.message();
  }
  Open();
  EXPECT_EQ(Everything(*store_).size(), 30u);
}

// Random changes over many tables, then bytes flipped anywhere: what is found of each key is what
// it was at some time, or nothing; and a flip costs no more than one table.
TEST_F(DurableDamageTest, FlippedBytesAnywhere) {
  constexpr int kRounds = kSanitized ? 4 : 10;
  int kept = 0, key_count = 0;
  for (uint64_t seed = 1; seed <= kRounds; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    store_.reset();
    fs::remove_all(path_);
    std::map<std::string, std::set<std::string>> past;
    Map latest;
    for (uint64_t opens = 1 + rng.Below(7); opens > 0; --opens) {
      Open();
      for (int i = 0; i < 60; ++i) {
        const std::string key =
            std::string(1 + rng.Below(3), static_cast<char>('a' + rng.Below(20)));
        const std::string value(rng.Below(300), static_cast<char>(rng.Next()));
        const bool append = rng.Chance(0.5);
        append ? Append(key, value) : Put(key, value);
        latest[key] = (append ? latest[key] : "") + value;
        past[key].insert(latest[key]);
      }
    }
    Open();
    store_.reset();
    const std::vector<fs::path> tables = TablesIn(path_);
    for (uint64_t flips = 1 + rng.Below(2); flips > 0; --flips) {
      const fs::path& table = tables[rng.Below(tables.size())];
      FlipByte(table, rng.Below(fs::file_size(table)));
    }
    Open();
    const Map found = Everything(*store_);
    for (const auto& [key, value] : latest) {
      ++key_count;
      kept += found.contains(key) && found.at(key) == value;
    }
    for (int i = 0; i < 4; ++i) {
      Put("more", std::to_string(i));
      Open();
      ASSERT_EQ(said_, "");
    }
    Map later = Everything(*store_);
    later.erase("more");
    EXPECT_EQ(later, found);
  }
  EXPECT_GT(kept, key_count * 2 / 3);
}

// Copies of a damaged store are opened by processes that are killed at random moments; whoever
// opens it afterwards finds what a salvage without a crash gives.
TEST_F(DurableDamageTest, KillInTheMidstOfASalvage) {
  constexpr int kRounds = kSanitized ? 5 : 8;
  constexpr const char* kEnds[] = {"", ".damaged", ".salvage", ".salvaged"};
  Open();
  for (int i = 100; i < 400; ++i) Put("k" + std::to_string(i), std::string(9000, 'v'));
  Open();
  Put("k150", "new");
  store_.reset();
  FlipByte(TablesIn(path_)[0], 1'000'000);
  const std::string damaged = scratch_.File("copy");
  fs::copy(path_, damaged);
  const auto begin = std::chrono::steady_clock::now();
  Open();
  const std::chrono::duration<double, std::micro> whole = std::chrono::steady_clock::now() - begin;
  const Map expected = Everything(*store_);
  ASSERT_EQ(expected.size(), 300u);
  store_.reset();
  std::set<std::string> seen;  // which folders a crash left
  Rng rng(5);
  for (int round = 0; round < kRounds; ++round) {
    for (const char* end : kEnds) fs::remove_all(path_ + end);
    fs::copy(damaged, path_);
    const pid_t child = fork();
    if (child == 0) {
      close(STDERR_FILENO);
      execl("/proc/self/exe", "opener", "--open", path_.c_str(), nullptr);
      _exit(127);
    }
    usleep(static_cast<useconds_t>(rng.Uniform() * whole.count()));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    std::string left;
    for (const char* end : kEnds) {
      if (fs::exists(path_ + end)) left += std::string(" store") + end;
    }
    seen.insert(left);
    Open();
    ASSERT_EQ(Everything(*store_), expected) << round << left;
    store_.reset();
    EXPECT_FALSE(TablesIn(path_ + ".damaged").empty());
    EXPECT_FALSE(fs::exists(path_ + ".salvage"));
  }
  for (const std::string& left : seen) std::printf("left:%s\n", left.c_str());
}

TEST_F(DurableDamageTest, ASwitchThatWasCutOffIsEnded) {
  Open();
  Put("a", "saved");
  store_.reset();
  for (const bool moved : {false, true}) {
    fs::rename(path_, path_ + ".salvaged");
    fs::create_directory(path_ + ".salvage");
    if (!moved) {
      fs::create_directory(path_);
      std::ofstream(path_ + "/CURRENT") << "nonsense";
    }
    Open();
    EXPECT_EQ(Everything(*store_), (Map{{"a", "saved"}}));
    store_.reset();
    EXPECT_TRUE(fs::exists(path_ + ".damaged/CURRENT")) << "the latest evidence stays";
    EXPECT_FALSE(fs::exists(path_ + ".salvaged"));
    EXPECT_FALSE(fs::exists(path_ + ".salvage"));
  }
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--open") {
    const cairn::FakeClock clock;
    return cairn::OpenDurableStore(argv[2], clock).ok() ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
