// What the disk can do to the disk tier: bytes that change, files that go, calls that fail, space
// that ends. Whatever happens, a read gives the right bytes or an error, and when the disk is well
// again, so is the tier.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <optional>

#include "offload/rocksdb_segments.h"
#include "tests/fakes/file_faults.h"
#include "tests/fakes/ordinary_user.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = 1024;

std::string Content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Overwrite(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

class SpillFaultTest : public testing::Test {
 protected:
  SpillStoreConfig Config() const {
    return {.directory = folder_.File("spill"),
            .quota_bytes = 8 << 20,
            .segment_bytes = 64 << 10,
            .idle_close = std::chrono::hours(1)};
  }

  // Numbers 0 to 29, ten a segment. A store that was stopped keeps three files, in this order.
  void WriteThreeSegments() {
    SpillDriver driver(Config(), layout_);
    for (const uint64_t first : {0, 10, 20}) {
      for (const auto& ended : driver.WriteAll(first, 10)) {
        ASSERT_TRUE(ended.completion.status.ok()) << ended.completion.status.ToString();
      }
    }
  }
  std::vector<fs::path> Files() const { return FilesBelow(Config().directory, ".sst"); }

  // What can be read, by number: the bytes are right, or it is kDataLoss and not among them.
  static std::vector<uint64_t> Readable(SpillDriver& driver) {
    std::vector<uint64_t> readable;
    for (const FoundRecord& found : driver.found()) {
      const auto read = driver.ReadOne(found.record, NumberOf(found.block));
      if (read.completion.status.ok()) {
        EXPECT_TRUE(read.intact);
        readable.push_back(read.number);
      } else {
        EXPECT_EQ(read.completion.status.code(), Code::kDataLoss);
        EXPECT_EQ(read.completion.status.message().find('\n'), std::string::npos);
      }
    }
    return readable;
  }

  static std::vector<uint64_t> Numbers(uint64_t first, uint64_t end) {
    std::vector<uint64_t> numbers;
    for (; first < end; ++first) numbers.push_back(first);
    return numbers;
  }

  static void ExpectItWorks(SpillDriver& driver) {
    const auto written = driver.WriteAll(1000, 3);
    for (const auto& ended : written) {
      ASSERT_TRUE(ended.completion.status.ok()) << ended.completion.status.ToString();
      EXPECT_TRUE(driver.ReadOne(ended.completion.record, ended.number).intact);
    }
    ASSERT_TRUE(driver.RetireOne(written[0].completion.segment).completion.status.ok());
  }

  const ScratchFolder folder_;
  const KvLayout layout_ = LayoutOf(kBlockBytes);
};

TEST_F(SpillFaultTest, AFlippedBitCostsItsRecordAndNoOther) {
  WriteThreeSegments();
  // Every third record, at a place that differs from record to record, its header and end included.
  for (const fs::path& path : Files()) {
    std::string content = Content(path);
    for (uint64_t number = 0; number < 30; number += 3) {
      const auto payload = NumberedPayload(number, kBlockBytes);
      const auto at = content.find(
          std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
      if (at == std::string::npos) continue;
      const size_t begin = at - 192, size = RecordBytes(layout_.block_tokens, kBlockBytes);
      ASSERT_EQ(content.substr(begin, 8), "CairnKVB");
      const size_t bit = (number * 7919) % (size * 8);
      content[begin + bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
    Overwrite(path, content);
  }
  SpillDriver driver(Config(), layout_);
  EXPECT_EQ(driver.found().size(), 30u);
  std::vector<uint64_t> expected = Numbers(0, 30);
  std::erase_if(expected, [](uint64_t number) { return number % 3 == 0; });
  EXPECT_EQ(Readable(driver), expected);
  // What is damaged is not moved.
  std::vector<RecordId> keep;
  for (const auto& found : driver.found()) {
    if (NumberOf(found.block) < 10) keep.push_back(found.record);
  }
  EXPECT_EQ(driver.RetireOne(driver.store().OldestSegment(), keep).completion.moved.size(), 6u);
  ExpectItWorks(driver);
}

TEST_F(SpillFaultTest, FlippedBitsAnywhereNeverGiveWrongBytes) {
  WriteThreeSegments();
  const fs::path path = Files()[1];
  const std::string intact = Content(path);
  // Through the index, the properties and the footer too, which follow the records.
  for (size_t bit = 7; bit < intact.size() * 8; bit += intact.size() / 5) {
    std::string content = intact;
    content[bit / 8] ^= static_cast<char>(1 << bit % 8);
    Overwrite(path, content);
    SpillDriver driver(Config(), layout_);
    const auto readable = Readable(driver);
    EXPECT_GE(readable.size(), 20u);
    if (Files().size() < 3) break;  // it was found damaged as a whole, and removed
  }
  SpillDriver driver(Config(), layout_);
  ExpectItWorks(driver);
}

TEST_F(SpillFaultTest, ATruncatedFileCostsItsSegment) {
  WriteThreeSegments();
  fs::resize_file(Files()[1], fs::file_size(Files()[1]) / 2);
  SpillDriver driver(Config(), layout_);
  std::vector<uint64_t> expected = Numbers(0, 10);
  for (const uint64_t number : Numbers(20, 30)) expected.push_back(number);
  EXPECT_EQ(Readable(driver), expected);
  EXPECT_EQ(Files().size(), 2u);
  ExpectItWorks(driver);
}

TEST_F(SpillFaultTest, AnEmptyOrMissingFileCostsItsSegment) {
  WriteThreeSegments();
  const auto files = Files();
  Overwrite(files[0], "");
  fs::remove(files[2]);
  SpillDriver driver(Config(), layout_);
  EXPECT_EQ(Readable(driver), Numbers(10, 20));
  ExpectItWorks(driver);
}

TEST_F(SpillFaultTest, SwappedFilesGiveNoWrongBytes) {
  WriteThreeSegments();
  const auto files = Files();
  fs::rename(files[0], files[0].string() + ".x");
  fs::rename(files[2], files[0]);
  fs::rename(files[0].string() + ".x", files[2]);
  SpillDriver driver(Config(), layout_);
  EXPECT_EQ(Readable(driver), Numbers(10, 20));
  ExpectItWorks(driver);
}

TEST_F(SpillFaultTest, AFileThatIsCutWhileTheStoreRunsIsAnErrorAndNoCrash) {
  SpillDriver driver(Config(), layout_);
  const auto written = driver.WriteAll(0, 10);
  fs::resize_file(Files()[0], 4096);
  const auto read = driver.ReadOne(written[9].completion.record, 9);
  EXPECT_EQ(read.completion.status.code(), Code::kDataLoss);
  ExpectItWorks(driver);
}

// Every call that writes, in turn, fails once. The records of that segment may be lost, and say so;
// nothing else is, and what comes after works.
TEST_F(SpillFaultTest, EachFailedCallCostsAtMostItsSegment) {
  for (const int error : {EIO, ENOSPC}) {
    bool reached = true;
    for (int failing = 1; reached; failing += error == EIO ? 1 : 3) {
      SCOPED_TRACE(failing);
      const ScratchFolder folder;
      SpillStoreConfig config = Config();
      config.directory = folder.File("spill");
      std::map<uint64_t, RecordId> stored;
      const auto take = [&](const std::vector<SpillDriver::Ended>& all) {
        for (const auto& ended : all) {
          if (ended.completion.status.ok()) stored[ended.number] = ended.completion.record;
        }
      };
      {
        SpillDriver driver(config, layout_);
        const SegmentId oldest = driver.WriteAll(50, 2)[0].completion.segment;
        take(driver.WriteAll(0, 3));
        {
          int count = 0;
          std::atomic<bool> failed = false;
          const FileFaults faults(folder.path(), [&](const FileCall& call) -> FileAnswer {
            if (call.kind == FileCall::Kind::kRead || ++count != failing) return {};
            failed = true;
            return {.error = error};
          });
          take(driver.WriteAll(10, 3));
          driver.RetireOne(oldest);
          reached = failed;
        }
        // The first order may be the one that finds out and opens the database again.
        take(driver.WriteAll(20, 1));
        const auto after = driver.WriteAll(30, 3);
        for (const auto& ended : after) {
          EXPECT_TRUE(ended.completion.status.ok()) << ended.completion.status.ToString();
        }
        take(after);
        for (const auto& [number, record] : stored) {
          EXPECT_TRUE(driver.ReadOne(record, number).intact) << number;
        }
        EXPECT_LE(DiskUsage(config.directory), driver.store().stats().used_bytes);
        EXPECT_TRUE(FilesBelow(config.directory + "/open", ".sst").empty());
      }
      SpillDriver driver(config, layout_);
      const auto readable = Readable(driver);
      for (const auto& [number, record] : stored) {
        EXPECT_THAT(readable, testing::Contains(number));
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(SpillFaultTest, ShortWritesAreGoneOnWith) {
  const FileFaults faults(folder_.path(), [](const FileCall&) -> FileAnswer {
    return {.size_max = 4096};  // direct writes are of whole sectors
  });
  WriteThreeSegments();
  SpillDriver driver(Config(), layout_);
  EXPECT_EQ(Readable(driver), Numbers(0, 30));
}

TEST_F(SpillFaultTest, AReadErrorAtTheStartIsNotALoss) {
  WriteThreeSegments();
  {
    const FileFaults faults(folder_.path(), [](const FileCall& call) -> FileAnswer {
      return {.error = call.path.ends_with("8.sst") ? EIO : 0};
    });
    SpillDriver driver(Config(), layout_);
    EXPECT_EQ(driver.found().size(), 20u);
    EXPECT_EQ(driver.store().stats().foreign_segments, 1u);
  }
  SpillDriver driver(Config(), layout_);
  EXPECT_EQ(Readable(driver), Numbers(0, 30));
}

TEST_F(SpillFaultTest, AReadErrorIsNotALoss) {
  WriteThreeSegments();
  SpillDriver driver(Config(), layout_);
  const FoundRecord& found = driver.found()[5];
  {
    const FileFaults faults(folder_.path(), [](const FileCall& call) -> FileAnswer {
      return {.error = call.kind == FileCall::Kind::kRead ? EIO : 0};
    });
    EXPECT_EQ(driver.ReadOne(found.record, 5).completion.status.code(), Code::kUnavailable);
  }
  EXPECT_TRUE(driver.ReadOne(found.record, 5).intact);
}

// The engine's thread never waits for the disk.
TEST_F(SpillFaultTest, ADiskThatHangsDoesNotHoldUpTheCaller) {
  WriteThreeSegments();
  SpillDriver driver(Config(), layout_);
  std::promise<void> hang;
  const std::shared_future<void> end = hang.get_future().share();
  {
    const FileFaults faults(folder_.path(), [&](const FileCall&) -> FileAnswer {
      end.wait();
      return {};
    });
    for (uint64_t i = 0; i < 200; ++i) driver.Write(100 + i);
    const SegmentId retired = driver.store().OldestSegment();
    driver.Retire(retired, {driver.found()[0].record});
    for (const FoundRecord& found : driver.found()) {
      if (found.segment != retired) driver.Read(found.record, NumberOf(found.block));
    }
    driver.store().Close();
    EXPECT_TRUE(driver.store().Poll().empty());
    EXPECT_LE(driver.store().stats().used_bytes, Config().quota_bytes);
    hang.set_value();
    for (const auto& ended : driver.WaitForAll()) {
      EXPECT_TRUE(ended.completion.status.ok()) << ended.completion.status.ToString();
    }
  }
}

TEST_F(SpillFaultTest, ALimitOnTheSizeOfFilesFailsWritesOnly) {
  SpillDriver driver(Config(), layout_);
  const auto before = driver.WriteAll(0, 10);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {.rlim_cur = 8 << 10, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto refused = driver.WriteAll(10, 20);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  signal(SIGXFSZ, old_handler);
  for (const auto& ended : refused) {
    EXPECT_EQ(ended.completion.status.code(), Code::kUnavailable);
  }
  EXPECT_TRUE(driver.ReadOne(before[3].completion.record, 3).intact);
  ExpectItWorks(driver);
}

TEST_F(SpillFaultTest, AFullDiskRefusesAndRetirementHelps) {
  const std::string disk = folder_.File("disk");
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=32m") != 0) {
    GTEST_SKIP() << "a file system cannot be mounted here: " << std::strerror(errno);
  }
  SpillStoreConfig config = Config();
  config.directory = disk + "/spill";
  config.quota_bytes = 64 << 20;  // twice what there is
  config.segment_bytes = 4 << 20;
  const KvLayout layout = LayoutOf(256 << 10);
  {
    SpillDriver driver(config, layout);
    std::vector<SpillDriver::Ended> all;
    for (uint64_t i = 0; i < 160; ++i) driver.Write(i);
    driver.store().Close();
    std::map<uint64_t, RecordId> stored;
    size_t refused = 0;
    for (const auto& ended : driver.WaitForAll()) {
      if (ended.completion.status.ok()) {
        stored[ended.number] = ended.completion.record;
      } else {
        EXPECT_EQ(ended.completion.status.code(), Code::kResourceExhausted);
        ++refused;
      }
    }
    EXPECT_GT(stored.size(), 80u);
    EXPECT_GT(refused, 30u);
    for (const auto& [number, record] : stored) {
      EXPECT_TRUE(driver.ReadOne(record, number).intact) << number;
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(driver.RetireOne(driver.store().OldestSegment()).completion.status.ok());
    }
    for (const auto& ended : driver.WriteAll(500, 8)) {
      EXPECT_TRUE(ended.completion.status.ok()) << ended.completion.status.ToString();
    }
  }
  EXPECT_EQ(umount(disk.c_str()), 0);
}

TEST_F(SpillFaultTest, AReadOnlyFolderIsRefused) {
  fs::create_directory(Config().directory);
  fs::permissions(folder_.path(), fs::perms::all);
  fs::permissions(Config().directory, fs::perms::owner_read | fs::perms::owner_exec);
  const OrdinaryUser user;
  const auto store = OpenSpillStore(Config(), {1, 2}, layout_, [] {});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), Code::kUnavailable);
  EXPECT_THAT(store.status().message(), testing::HasSubstr("ermission denied"));
}

// Ten times the quota goes through; after each call that writes, the folder is measured.
TEST_F(SpillFaultTest, TheFolderNeverTakesMoreThanTheQuota) {
  SpillStoreConfig config = Config();
  config.quota_bytes = kDatabaseBytesMax + (256 << 10);
  config.segment_bytes = 32 << 10;
  SpillDriver driver(config, layout_);
  std::atomic<uint64_t> most = 0;
  uint64_t written_bytes = 0;
  const FileFaults faults(folder_.path(), [&](const FileCall& call) -> FileAnswer {
    if (call.kind != FileCall::Kind::kRead) {
      most = std::max<uint64_t>(most, DiskUsage(config.directory) + call.size);
    }
    return {};
  });
  std::map<SegmentId, std::vector<RecordId>> segments;
  const uint64_t room = config.quota_bytes - kDatabaseBytesMax;
  for (uint64_t number = 0; written_bytes < 10 * room; ++number) {
    const SpillStats stats = driver.store().stats();
    if (stats.used_bytes + 12 * stats.record_bytes > stats.quota_bytes && !segments.empty()) {
      const SegmentId oldest = driver.store().OldestSegment();
      std::vector<RecordId> keep = segments[oldest];
      keep.resize(keep.size() / 8);
      driver.RetireOne(oldest, keep);
      segments.erase(oldest);
    }
    for (int i = 0; i < 12; ++i) driver.Write(number);
    driver.store().Close();
    for (const auto& ended : driver.WaitForAll()) {
      if (ended.completion.status.ok()) {
        segments[ended.completion.segment].push_back(ended.completion.record);
      }
    }
    written_bytes += 12 * kBlockBytes;
  }
  EXPECT_LE(most, config.quota_bytes);
  EXPECT_GT(most, 250u << 10);
}

}  // namespace
}  // namespace cairn
