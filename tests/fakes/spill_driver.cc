#include "tests/fakes/spill_driver.h"

#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>

#include "base/check.h"
#include "base/rng.h"

namespace cairn {
namespace fs = std::filesystem;

uint64_t DiskUsage(const std::string& folder) {
  uint64_t blocks = 0;
  std::set<ino_t> counted;
  const auto count = [&](const fs::path& path) {
    struct stat info = {};
    if (lstat(path.c_str(), &info) == 0 && counted.insert(info.st_ino).second) {
      blocks += static_cast<uint64_t>(info.st_blocks);
    }
  };
  count(folder);
  std::error_code gone;  // files may go while they are counted
  if (!fs::is_directory(folder)) return blocks * 512;
  for (fs::recursive_directory_iterator entry(folder, gone), end; !gone && entry != end;
       entry.increment(gone)) {
    count(entry->path());
  }
  return blocks * 512;
}

std::vector<fs::path> FilesBelow(const std::string& folder, std::string_view suffix) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().string().ends_with(suffix)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

BlockIdentity NumberedBlock(uint64_t number, uint32_t token_count) {
  BlockIdentity block;
  block.key.digest = {number, MixBits(number)};
  block.parent.digest = {MixBits(number + 1), number};
  block.first_position = static_cast<uint32_t>(number % 1000) * token_count;
  Rng rng(number);
  for (uint32_t i = 0; i < token_count; ++i) {
    block.tokens.push_back(static_cast<uint32_t>(rng.Next()));
  }
  return block;
}

std::vector<std::byte> NumberedPayload(uint64_t number, size_t size) {
  CHECK(size % sizeof(uint64_t) == 0);
  std::vector<std::byte> bytes(size);
  Rng rng(~number);
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t word = rng.Next();
    std::memcpy(&bytes[i], &word, sizeof word);
  }
  return bytes;
}

uint64_t NumberOf(const BlockIdentity& block) {
  const uint64_t number = block.key.digest.high;
  CHECK(block == NumberedBlock(number, static_cast<uint32_t>(block.tokens.size())));
  return number;
}

KvLayout LayoutOf(size_t block_bytes) {
  KvLayout layout{.layer_count = static_cast<uint32_t>(block_bytes / 64),
                  .kv_head_count = 1,
                  .head_dim = 1,
                  .block_tokens = 16,
                  .arithmetic = "test"};
  CHECK(layout.block_bytes() == block_bytes);
  return layout;
}

struct SpillDriver::Bell {
  std::mutex mutex;
  std::condition_variable rung;
  uint64_t count = 0;
  void Ring() {
    {
      std::lock_guard lock(mutex);
      ++count;
    }
    rung.notify_all();
  }
};

SpillDriver::SpillDriver(const SpillStoreConfig& config, const KvLayout& layout,
                         const Digest& fingerprint)
    : layout_(layout), bell_(std::make_shared<Bell>()) {
  auto store = OpenSpillStore(config, fingerprint, layout, [bell = bell_] { bell->Ring(); });
  if (!store.ok()) fprintf(stderr, "%s\n", store.status().ToString().c_str());
  store_ = *std::move(store);
  found_ = store_->TakeFound();
}

SpillDriver::~SpillDriver() { store_.reset(); }  // before the memory of its orders

SpillTicket SpillDriver::Write(uint64_t number) {
  const SpillTicket ticket = NextTicket();
  Order& order = orders_[ticket];
  order = {Ended::Kind::kWrite, number, {}, NumberedPayload(number, layout_.block_bytes())};
  store_->Write({ticket, NumberedBlock(number, layout_.block_tokens), order.payload});
  return ticket;
}

SpillTicket SpillDriver::Read(RecordId record, uint64_t number) {
  const SpillTicket ticket = NextTicket();
  Order& order = orders_[ticket];
  order = {Ended::Kind::kRead, number, {}, std::vector<std::byte>(layout_.block_bytes())};
  store_->Read({ticket, record, NumberedBlock(number, layout_.block_tokens), order.payload});
  return ticket;
}

SpillTicket SpillDriver::Retire(SegmentId segment, std::vector<RecordId> keep) {
  const SpillTicket ticket = NextTicket();
  orders_[ticket] = {Ended::Kind::kRetire, 0, segment, {}};
  store_->Retire({ticket, segment, std::move(keep)});
  return ticket;
}

bool SpillDriver::Cancel(SpillTicket ticket) {
  if (!store_->Cancel(ticket)) return false;
  CHECK(orders_.erase(ticket) == 1);
  return true;
}

std::vector<SpillDriver::Ended> SpillDriver::Wait(size_t count) {
  std::vector<Ended> ended;
  for (;;) {
    std::unique_lock lock(bell_->mutex);
    const uint64_t before = bell_->count;
    lock.unlock();
    for (SpillCompletion& completion : store_->Poll()) {
      const auto order = orders_.find(completion.ticket);
      CHECK(order != orders_.end());  // each order ends once
      const auto& [kind, number, retired, payload] = order->second;
      const bool intact =
          kind == Ended::Kind::kRead && payload == NumberedPayload(number, layout_.block_bytes());
      ended.push_back({kind, number, intact, retired, std::move(completion)});
      orders_.erase(order);
    }
    if (ended.size() >= count) return ended;
    lock.lock();
    bell_->rung.wait(lock, [&] { return bell_->count != before; });
  }
}

std::vector<SpillDriver::Ended> SpillDriver::WriteAll(uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) Write(first + i);
  store_->Close();
  return WaitForAll();
}

SpillDriver::Ended SpillDriver::ReadOne(RecordId record, uint64_t number) {
  CHECK(orders_.empty());
  Read(record, number);
  return Wait(1).front();
}

SpillDriver::Ended SpillDriver::RetireOne(SegmentId segment, std::vector<RecordId> keep) {
  CHECK(orders_.empty());
  Retire(segment, std::move(keep));
  store_->Close();
  return Wait(1).front();
}

}  // namespace cairn
