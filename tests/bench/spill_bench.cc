// How close the disk tier comes to the disk, beside plain O_DIRECT files and other ways to use
// RocksDB, on the same file system in the same run:
//
//   spill_bench FOLDER [QUOTA_MIB [STEADY_SECONDS [SHARE [NAME...]]]]
//
// Records have the size of a 16-token block of SmolLM2-135M and random bytes. Each way is filled to
// nine tenths of the quota, read in order and at random by two threads, and then written to at the
// quota for STEADY_SECONDS, where SHARE of what would go is read and written again. "device" is
// what the process made the kernel write (/proc/self/io) per byte that its user wrote.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "tests/bench/rocksdb_variants.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

constexpr size_t kPayloadBytes = 368'640;
constexpr size_t kSectorBytes = 4096;

struct Settings {
  std::string folder;
  uint64_t quota_bytes = uint64_t{1} << 30;
  double steady_seconds = 20;
  double share = 0.1;
  std::set<std::string> names;

  uint64_t fill_count() const { return quota_bytes * 9 / 10 / kPayloadBytes; }
  uint64_t segment_bytes() const { return std::min<uint64_t>(quota_bytes / 16, 64 << 20); }
};

// A way to keep records. Ids are 0, 1, 2...
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual void Put(uint64_t id) = 0;  // may return before it is done
  virtual void Finish() = 0;          // all that was put can be read
  // Reads the ids, with two threads.
  virtual void Get(const std::vector<uint64_t>& ids) = 0;
  // What a user writes at the quota: one more record, and the second chance of what goes for it.
  virtual void PutAtQuota(uint64_t id) = 0;
};

std::span<const std::byte> PayloadOf(uint64_t id) {
  static const std::vector<std::vector<std::byte>> payloads = [] {
    std::vector<std::vector<std::byte>> all;
    for (uint64_t i = 0; i < 16; ++i) all.push_back(NumberedPayload(i, kPayloadBytes));
    return all;
  }();
  return payloads[id % payloads.size()];
}

void OnTwoThreads(const std::vector<uint64_t>& ids, const std::function<void(uint64_t)>& read) {
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < ids.size(); i = next++) read(ids[i]);
  };
  std::thread other(run);
  run();
  other.join();
}

class RawFile final : public Contestant {
 public:
  explicit RawFile(const Settings& settings)
      : fd_(open((settings.folder + "/raw").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600)),
        capacity_(settings.quota_bytes / kStride) {
    CHECK(fd_ >= 0);
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kSectorBytes, kStride)));
    std::memcpy(buffer_.get(), PayloadOf(0).data(), kPayloadBytes);
  }
  ~RawFile() override { close(fd_); }

  void Put(uint64_t id) override {
    CHECK(pwrite(fd_, buffer_.get(), kStride, OffsetOf(id)) == static_cast<ssize_t>(kStride));
  }
  void Finish() override { CHECK(fdatasync(fd_) == 0); }
  void Get(const std::vector<uint64_t>& ids) override {
    OnTwoThreads(ids, [this](uint64_t id) {
      thread_local const Buffer target(
          static_cast<std::byte*>(std::aligned_alloc(kSectorBytes, kStride)));
      CHECK(pread(fd_, target.get(), kStride, OffsetOf(id)) == static_cast<ssize_t>(kStride));
    });
  }
  void PutAtQuota(uint64_t id) override { Put(id); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Buffer = std::unique_ptr<std::byte, Free>;
  static constexpr size_t kStride =
      (kPayloadBytes + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
  off_t OffsetOf(uint64_t id) const { return static_cast<off_t>(id % capacity_ * kStride); }

  const int fd_;
  const uint64_t capacity_;
  Buffer buffer_;
};

class Variant final : public Contestant {
 public:
  Variant(std::unique_ptr<SpillVariant> variant, const Settings& settings)
      : variant_(std::move(variant)), settings_(settings) {}

  void Put(uint64_t /*id*/) override { Append(); }
  void Finish() override { variant_->Flush(); }
  void Get(const std::vector<uint64_t>& ids) override {
    OnTwoThreads(ids, [this](uint64_t id) {
      thread_local std::vector<char> target(kPayloadBytes);
      CHECK(variant_->Get(id, target));
    });
  }
  void PutAtQuota(uint64_t /*id*/) override {
    Append();
    // The next to go is a segment away from the end of the quota.
    const uint64_t kept = (settings_.quota_bytes - 2 * settings_.segment_bytes()) / kPayloadBytes;
    if (next_id_ < kept || !rng_.Chance(settings_.share)) return;
    std::vector<char> target(kPayloadBytes);
    if (variant_->Get(next_id_ - kept, target)) Append();
  }

 private:
  void Append() {
    const auto payload = PayloadOf(next_id_);
    variant_->Put(next_id_++, {reinterpret_cast<const char*>(payload.data()), payload.size()});
  }

  const std::unique_ptr<SpillVariant> variant_;
  const Settings settings_;
  uint64_t next_id_ = 0;
  Rng rng_{1};
};

// The disk tier itself, through its interface.
class DiskTier final : public Contestant {
 public:
  explicit DiskTier(const Settings& settings) : settings_(settings) {
    auto store = OpenSpillStore(
        {.directory = settings.folder + "/tier", .quota_bytes = settings.quota_bytes}, {1, 2},
        LayoutOf(kPayloadBytes), [this] { ended_.release(); });
    CHECK(store.ok());
    store_ = *std::move(store);
    for (auto& target : targets_) target.resize(kPayloadBytes);
  }
  ~DiskTier() override { store_.reset(); }

  void Put(uint64_t id) override {
    // As many as two segments are under way, as when the host tier is written out.
    while (writing_.size() * kPayloadBytes > 2 * store_->stats().segment_bytes) Take();
    const SpillTicket ticket(next_ticket_++);
    writing_[ticket] = id;
    store_->Write({ticket, NumberedBlock(id, 16), PayloadOf(id)});
  }

  void Finish() override {
    store_->Close();
    while (!writing_.empty() || retiring_) Take();
  }

  void Get(const std::vector<uint64_t>& ids) override {
    size_t next = 0;
    while (next < ids.size() || reading_ > 0) {
      for (; next < ids.size() && reading_ < targets_.size(); ++next, ++reading_) {
        const uint64_t id = ids[next];
        store_->Read({SpillTicket(next_ticket_++), places_.at(id), NumberedBlock(id, 16),
                      targets_[next % targets_.size()]});
      }
      Take();
    }
  }

  void PutAtQuota(uint64_t id) override {
    SpillStats stats = store_->stats();
    for (; stats.used_bytes + stats.record_bytes > stats.quota_bytes; stats = store_->stats()) {
      Take();
    }
    Put(id);
    if (retiring_ || stats.used_bytes + 4 * stats.segment_bytes < stats.quota_bytes) return;
    const SegmentId oldest = store_->OldestSegment();
    std::vector<RecordId> keep;
    for (const auto& [record, number] : segments_[oldest]) {
      if (rng_.Chance(settings_.share)) keep.push_back(record);
    }
    retiring_ = true;
    store_->Retire({SpillTicket(next_ticket_++), oldest, std::move(keep)});
  }

 private:
  void Take() {
    ended_.acquire();
    for (const SpillCompletion& ended : store_->Poll()) {
      if (const auto write = writing_.find(ended.ticket); write != writing_.end()) {
        CHECK(ended.status.ok());
        places_[write->second] = ended.record;
        segments_[ended.segment][ended.record] = write->second;
        writing_.erase(write);
      } else if (reading_ > 0) {
        CHECK(ended.status.ok());
        --reading_;
      } else {
        CHECK(ended.status.ok());
        retiring_ = false;
        for (const auto& moved : ended.moved) segments_[moved.segment][moved.to] = 0;
      }
    }
  }

  // A counter to wait for; more than it needs are harmless.
  class Bell {
   public:
    void release() {
      ++count_;
      count_.notify_one();
    }
    void acquire() {
      count_.wait(seen_);
      seen_ = count_;
    }

   private:
    std::atomic<uint64_t> count_ = 0;
    uint64_t seen_ = 0;
  };

  const Settings settings_;
  Bell ended_;
  std::unique_ptr<SpillStore> store_;
  std::vector<std::vector<std::byte>> targets_ = std::vector<std::vector<std::byte>>(4);
  std::map<SpillTicket, uint64_t> writing_;
  std::map<uint64_t, RecordId> places_;
  std::map<SegmentId, std::map<RecordId, uint64_t>> segments_;
  size_t reading_ = 0;
  bool retiring_ = false;
  uint64_t next_ticket_ = 0;
  Rng rng_{1};
};

uint64_t DeviceBytes() {
  std::ifstream file("/proc/self/io");
  std::string key;
  uint64_t value = 0, written = 0;
  while (file >> key >> value) {
    if (key == "write_bytes:") written = value;
  }
  return written;
}

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double MegabytesPerSecond(uint64_t count, double seconds) {
  return static_cast<double>(count) * kPayloadBytes / 1e6 / seconds;
}

void Measure(const std::string& name, const Settings& settings,
             const std::function<std::unique_ptr<Contestant>()>& make) {
  if (!settings.names.empty() && !settings.names.contains(name)) return;
  const auto contestant = make();
  const uint64_t count = settings.fill_count();
  uint64_t before = DeviceBytes();
  const double put = SecondsOf([&] {
    for (uint64_t id = 0; id < count; ++id) contestant->Put(id);
    contestant->Finish();
  });
  const double amplification =
      static_cast<double>(DeviceBytes() - before) / static_cast<double>(count * kPayloadBytes);

  std::vector<uint64_t> ids(count);
  for (uint64_t i = 0; i < count; ++i) ids[i] = i;
  const double in_order = SecondsOf([&] { contestant->Get(ids); });
  Rng rng(2);
  for (uint64_t& id : ids) id = rng.Below(count);
  const double at_random = SecondsOf([&] { contestant->Get(ids); });

  before = DeviceBytes();
  uint64_t next = count;
  const double steady = SecondsOf([&] {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(settings.steady_seconds);
    while (std::chrono::steady_clock::now() < end) contestant->PutAtQuota(next++);
    contestant->Finish();
  });
  std::printf("| %-14s | %5.0f | %5.2f | %5.0f | %5.0f | %6.0f | %5.2f |\n", name.c_str(),
              MegabytesPerSecond(count, put), amplification, MegabytesPerSecond(count, in_order),
              MegabytesPerSecond(count, at_random), MegabytesPerSecond(next - count, steady),
              static_cast<double>(DeviceBytes() - before) /
                  static_cast<double>((next - count) * kPayloadBytes));
  std::fflush(stdout);
}

void Run(Settings settings) {
  settings.folder += "/spill_bench";
  std::filesystem::remove_all(settings.folder);
  std::filesystem::create_directories(settings.folder);
  std::printf("| MB/s           |   put | device | in order | random | steady put | device |\n");
  const auto fresh = [&](const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator(settings.folder)) {
      std::filesystem::remove_all(entry.path());
    }
    sync();
    return settings.folder + "/" + name;
  };
  const uint64_t quota = settings.quota_bytes, table = settings.segment_bytes();
  const auto variant = [&](auto make) {
    return [&, make] {
      return std::make_unique<Variant>(make(fresh("variant"), quota, table), settings);
    };
  };
  const auto raw = [&] {
    fresh("raw");
    return std::make_unique<RawFile>(settings);
  };
  Measure("raw", settings, raw);
  Measure("level", settings, variant(Leveled));
  Measure("memtable-fifo", settings, variant(MemtableFifo));
  Measure("ingest-fifo", settings, variant(IngestFifo));
  Measure("tier", settings, [&] {
    fresh("tier");
    return std::make_unique<DiskTier>(settings);
  });
  Measure("raw", settings, raw);
  std::filesystem::remove_all(settings.folder);
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: %s FOLDER [QUOTA_MIB [STEADY_SECONDS [SHARE [NAME...]]]]\n",
                 argv[0]);
    return 2;
  }
  cairn::Settings settings{.folder = argv[1]};
  if (argc > 2) settings.quota_bytes = std::stoull(argv[2]) << 20;
  if (argc > 3) settings.steady_seconds = std::stod(argv[3]);
  if (argc > 4) settings.share = std::stod(argv[4]);
  for (int i = 5; i < argc; ++i) settings.names.insert(argv[i]);
  cairn::Run(settings);
  return 0;
}
