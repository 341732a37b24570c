// Blocks between a disk and a device whose memory threads of the host cannot touch.
#include "offload/staged_spill_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <semaphore>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "kernels/cpu/cpu_device.h"
#include "offload/block_store.h"
#include "offload/rocksdb_spill_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"
#include "tests/fakes/far_device.h"
#include "tests/fakes/late_copy_device.h"
#include "tests/fakes/pattern_kv.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

constexpr size_t kBlockBytes = 128;
constexpr uint32_t kSlots = 4;
constexpr uint32_t kBlocks = 16;  // places on the device

BlockIdentity Numbered(uint64_t number) {
  return {.key = {Digest{7, number}}, .tokens = {static_cast<uint32_t>(number)}};
}

class StagedSpillStoreTest : public testing::Test {
 protected:
  StagedSpillStoreTest() : device_(std::make_unique<LateCopyDevice>(1 << 20, 1)) {
    auto memory = device_.Allocate(kBlocks * kBlockBytes);
    CHECK(memory.ok());
    memory_ = *std::move(memory);
    const FakeSpillOptions options = {.segment_blocks = 100, .answer_chance = 1};
    auto disk = std::make_unique<FakeSpillStore>(disk_, options, kBlockBytes);
    fake_ = disk.get();
    copies_ = *CopyQueue::Create(device_, 0, clock_);
    auto store =
        StagedSpillStore::Create(std::move(disk), device_, *copies_,
                                 {memory_->data(), memory_->size_bytes()}, kBlockBytes, kSlots);
    CHECK(store.ok());
    store_ = *std::move(store);
  }

  std::span<std::byte> Place(uint64_t index) {
    return {memory_->data() + index * kBlockBytes, kBlockBytes};
  }
  void Fill(uint64_t index, uint64_t number) {
    std::memset(device_.Reach(Place(index).data()), static_cast<int>(number), kBlockBytes);
  }
  bool Has(uint64_t index, uint64_t number) {
    const std::byte* const bytes = device_.Reach(Place(index).data());
    return std::all_of(bytes, bytes + kBlockBytes,
                       [&](std::byte byte) { return byte == static_cast<std::byte>(number); });
  }
  void Write(uint64_t number) {
    Fill(number % kBlocks, number);
    store_->Write({SpillTicket(number), Numbered(number), Place(number % kBlocks)});
    copies_->Advance();
  }
  std::vector<SpillCompletion> Poll() {
    std::vector<SpillCompletion> done = store_->Poll();
    copies_->Advance();
    return done;
  }
  std::vector<SpillCompletion> PollUntil(size_t count) {
    std::vector<SpillCompletion> all;
    for (int i = 0; i < 1000 && all.size() < count; ++i) {
      for (SpillCompletion& one : Poll()) all.push_back(std::move(one));
      store_->CheckInvariants();
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }
  // Blocks [first, first + count), on disk: their records.
  std::vector<RecordId> WriteAll(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) Write(first + i);
    store_->Close();
    std::vector<RecordId> records(count);
    for (const SpillCompletion& one : PollUntil(count)) {
      EXPECT_TRUE(one.status.ok());
      records[one.ticket.value() - first] = one.record;
    }
    return records;
  }
  uint32_t staged() const { return store_->stats().staged_count; }

  FakeClock clock_;
  FakeDisk disk_;
  FarDevice device_;
  std::unique_ptr<Buffer> memory_;
  FakeSpillStore* fake_ = nullptr;
  std::unique_ptr<StagedSpillStore> store_;
  std::unique_ptr<CopyQueue> copies_;  // first to go: it may still copy
};

TEST_F(StagedSpillStoreTest, BytesGoThereAndBackInOrder) {
  const std::vector<RecordId> records = WriteAll(100, 12);  // three times as many as slots
  EXPECT_TRUE(std::ranges::is_sorted(records));
  for (uint64_t i = 0; i < 12; ++i) Fill(i, 0);
  for (uint64_t i = 0; i < 12; ++i) {
    store_->Read({SpillTicket(200 + i), records[i], Numbered(100 + i), Place(i)});
    EXPECT_LT(staged(), kSlots);  // one is left for spills
  }
  for (int polls = 0; polls < 1000; ++polls) {
    for (const SpillCompletion& one : Poll()) {
      ASSERT_TRUE(one.status.ok());
      const uint64_t index = one.ticket.value() - 200;
      EXPECT_TRUE(Has(index, 100 + index));  // a completion says that the bytes are there
    }
    EXPECT_LE(staged(), kSlots);
  }
  EXPECT_EQ(staged(), 0u);
  EXPECT_FALSE(store_->is_copying());
}

TEST_F(StagedSpillStoreTest, ACloseComesBehindTheWritesBeforeItAndBeforeThoseAfterIt) {
  for (uint64_t i = 0; i < 5; ++i) Write(i);
  store_->Close();
  for (uint64_t i = 5; i < 7; ++i) Write(i);
  const std::vector<SpillCompletion> done = PollUntil(5);
  for (const SpillCompletion& one : done) EXPECT_LT(one.ticket.value(), 5u);
  EXPECT_EQ(disk_.segments.size(), 1u);
}

TEST_F(StagedSpillStoreTest, WhatWaitsCountsAsUsed) {
  fake_->options.hangs = true;
  for (uint64_t i = 0; i < 6; ++i) {
    Write(i);
    EXPECT_EQ(store_->stats().used_bytes, (i + 1) * kBlockBytes);
  }
  EXPECT_EQ(staged(), kSlots / 2);  // the others are for loads
}

TEST_F(StagedSpillStoreTest, AFailedReadFreesItsSlotAndLeavesTheDeviceAlone) {
  const std::vector<RecordId> records = WriteAll(0, 1);
  Fill(9, 77);
  fake_->options.corruption = 1;
  store_->Read({SpillTicket(50), records[0], Numbered(0), Place(9)});
  EXPECT_EQ(PollUntil(1).front().status.code(), Code::kDataLoss);
  EXPECT_EQ(staged(), 0u);
  EXPECT_TRUE(Has(9, 77));
}

TEST_F(StagedSpillStoreTest, ALoadCanBeCancelledUntilItsCopyBegins) {
  const std::vector<RecordId> records = WriteAll(0, 8);
  const auto read = [&](uint64_t ticket) {
    store_->Read({SpillTicket(ticket), records[ticket % 8], Numbered(ticket % 8), Place(9)});
  };
  fake_->options.answer_chance = 0;  // the disk begins nothing
  for (uint64_t ticket = 100; ticket < 105; ++ticket) read(ticket);
  EXPECT_EQ(staged(), kSlots - 1);
  EXPECT_TRUE(store_->Cancel(SpillTicket(104)));  // it waits for a slot
  for (uint64_t ticket = 100; ticket < 104; ++ticket) {
    while (!store_->Cancel(SpillTicket(ticket))) {  // the disk may refuse
    }
    store_->CheckInvariants();
  }
  EXPECT_EQ(staged(), 0u);
  EXPECT_TRUE(Poll().empty());

  fake_->options.answer_chance = 1;
  int copying_count = 0;
  for (uint64_t ticket = 200; ticket < 240; ++ticket) {
    read(ticket);
    std::vector<SpillCompletion> done = Poll();
    copying_count += store_->is_copying();
    EXPECT_FALSE(store_->Cancel(SpillTicket(ticket)));
    if (done.empty()) done = PollUntil(1);
    EXPECT_TRUE(Has(9, ticket % 8));
  }
  EXPECT_GT(copying_count, 5);
  EXPECT_EQ(staged(), 0u);
}

TEST_F(StagedSpillStoreTest, ASpillCanBeCancelledBeforeItsCopyAndWhileTheDiskHasNotBegun) {
  fake_->options.answer_chance = 0;
  Write(0);
  EXPECT_FALSE(store_->Cancel(SpillTicket(0)));  // it is being copied
  Write(1);
  Write(2);
  EXPECT_EQ(staged(), kSlots / 2);
  EXPECT_TRUE(store_->Cancel(SpillTicket(2)));  // it waits for a slot
  fake_->options.answer_chance = 1;
  store_->Close();
  PollUntil(2);
  EXPECT_EQ(staged(), 0u);
}

TEST_F(StagedSpillStoreTest, WhatLiesInTheHostsMemoryGoesStraightThrough) {
  std::vector<std::byte> payload(kBlockBytes, std::byte{42});
  store_->Write({SpillTicket(1), Numbered(1), payload});
  store_->Close();
  const RecordId record = PollUntil(1).front().record;
  std::ranges::fill(payload, std::byte{0});
  store_->Read({SpillTicket(2), record, Numbered(1), payload});
  EXPECT_EQ(staged(), 0u);
  EXPECT_TRUE(PollUntil(1).front().status.ok());
  EXPECT_EQ(payload.back(), std::byte{42});
}

// On real files, with the threads of both: many more blocks than slots become one segment, because
// a slot is free again when its block is appended.
TEST(StagedOnDisk, OneSegmentOfMoreBlocksThanSlots) {
  constexpr uint64_t kCount = 40;
  const ScratchFolder folder;
  const KvLayout layout = LayoutOf(kBlockBytes);
  FarDevice device(MakeCpuDevice({.backend = "cpu", .memory_bytes = 1 << 20}));
  const auto memory = *device.Allocate(kCount * kBlockBytes);
  std::counting_semaphore<> rings{0};
  const SystemClock clock;
  const auto copies = *CopyQueue::Create(device, 0, clock);
  auto disk = OpenSpillStore({.directory = folder.path() + "/spill",
                              .quota_bytes = 8 << 20,
                              .segment_bytes = 2 << 20,
                              .idle_close = std::chrono::hours(1)},
                             {1, 2}, layout, [&] { rings.release(); });
  ASSERT_TRUE(disk.ok()) << disk.status().ToString();
  const auto store =
      *StagedSpillStore::Create(*std::move(disk), device, *copies,
                                {memory->data(), memory->size_bytes()}, kBlockBytes, kSlots);
  const auto place = [&](uint64_t i) {
    return std::span(memory->data() + i * kBlockBytes, kBlockBytes);
  };
  const auto wait_for = [&](size_t count) {
    std::vector<SpillCompletion> all;
    while (all.size() < count) {
      copies->Advance();
      for (SpillCompletion& one : store->Poll()) all.push_back(std::move(one));
      if (all.size() < count && !store->is_copying()) rings.acquire();
    }
    return all;
  };
  for (uint64_t i = 0; i < kCount; ++i) {
    std::memset(device.Reach(place(i).data()), static_cast<int>(i), kBlockBytes);
    store->Write({SpillTicket(i), NumberedBlock(i, layout.block_tokens), place(i)});
  }
  store->Close();
  std::vector<SpillCompletion> written = wait_for(kCount);
  EXPECT_EQ(store->stats().segment_count, 1u);
  std::memset(device.Reach(place(0).data()), 0xff, kCount * kBlockBytes);
  for (const SpillCompletion& one : written) {
    ASSERT_TRUE(one.status.ok()) << one.status.ToString();
    const uint64_t i = one.ticket.value();
    store->Read(
        {SpillTicket(kCount + i), one.record, NumberedBlock(i, layout.block_tokens), place(i)});
  }
  for (const SpillCompletion& one : wait_for(kCount)) {
    ASSERT_TRUE(one.status.ok()) << one.status.ToString();
    const uint64_t i = one.ticket.value() - kCount;
    EXPECT_EQ(*device.Reach(place(i).data() + kBlockBytes - 1), static_cast<std::byte>(i));
  }
  EXPECT_EQ(store->stats().staged_count, 0u);
}

// A copy that begins a block runs on the compute stream, after CopyPrefix has returned. The slots
// that it uses may be given back, and be wanted for a load, before it has run.
TEST(StagedBlockStore, ALoadWaitsForACopyOfAPrefixThatUsesItsSlot) {
  const KvLayout layout{.layer_count = 1, .kv_head_count = 1, .head_dim = 2, .block_tokens = 2};
  const BlockKey root = RootKey({1, 2}, "layout", "");
  const FakeClock clock;
  FarDevice device(std::make_unique<LateCopyDevice>(1 << 20, 1));
  const auto compute = *device.NewStream(StreamUse::kCompute);
  FakeDisk disk;
  auto spill = std::make_unique<FakeSpillStore>(disk, FakeSpillOptions{.answer_chance = 1},
                                                layout.block_bytes());
  auto store =
      *BlockStore::Create({.device_blocks_max = 2}, layout, device, clock, std::move(spill));
  const std::vector<uint32_t> tokens = {1, 2}, others = {3, 4};
  for (const auto* context : {&tokens, &others}) {
    std::vector<Hold> fresh = *store->Reserve(1);
    for (size_t i = 1; i <= 2; ++i) {
      WritePatternKv(layout, device.Reach(fresh[0].writable_address()),
                     std::span(*context).first(i));
    }
    const Hold sealed = store->Seal(std::move(fresh[0]), root, *context, kPriorityDefault);
  }
  bool is_on_disk = false;
  store->Suspend(root, tokens, Tier::kDisk, [&] { is_on_disk = true; });
  while (!is_on_disk) store->Poll();

  ASSERT_TRUE(store->CopyPrefix(root, others, *compute));  // and nobody wants it after all
  const std::vector<Hold> loaded = store->Match(root, tokens, kPriorityDefault);
  ASSERT_EQ(loaded.size(), 1u);
  while (loaded[0].is_loading()) store->Poll();
  ASSERT_TRUE(compute->Synchronize().ok());
  EXPECT_TRUE(HasPatternKv(layout, device.Reach(loaded[0].address()), tokens));
}

// Six blocks, of which the third failure in a row would have the disk left alone if it were one of
// the disk's. Nothing is lost: what is on the device stays there, and what is on the disk too.
TEST(StagedBlockStore, ACopyThatFailsIsNoFailureOfTheDisk) {
  constexpr uint32_t kCount = 6;
  const KvLayout layout{.layer_count = 1, .kv_head_count = 1, .head_dim = 2, .block_tokens = 2};
  const BlockKey root = RootKey({1, 2}, "layout", "");
  const FakeClock clock;
  FarDevice device(std::make_unique<LateCopyDevice>(1 << 20, 1));
  FakeDisk disk;
  auto spill = std::make_unique<FakeSpillStore>(disk, FakeSpillOptions{.answer_chance = 1},
                                                layout.block_bytes());
  auto store =
      *BlockStore::Create({.device_blocks_max = 8}, layout, device, clock, std::move(spill));
  const auto disk_stats = [&] { return *store->disk_stats(); };
  std::vector<uint32_t> tokens;
  BlockKey parent = root;
  for (uint32_t i = 0; i < kCount; ++i) {
    tokens.insert(tokens.end(), {2 * i, 2 * i + 1});
    std::vector<Hold> fresh = *store->Reserve(1);
    WritePatternKv(layout, device.Reach(fresh[0].writable_address()), tokens);
    const Hold sealed =
        store->Seal(std::move(fresh[0]), parent, std::span(tokens).last(2), kPriorityDefault);
    parent = sealed.key();
  }
  const auto suspend = [&] {
    bool is_over = false;
    store->Suspend(root, tokens, Tier::kDisk, [&] { is_over = true; });
    while (!is_over) store->Poll();
    store->CheckInvariants();
  };
  const auto load = [&] {
    std::vector<Hold> holds = store->Match(root, tokens, kPriorityDefault);
    const auto is_loading = [](const Hold& hold) { return hold && hold.is_loading(); };
    while (std::ranges::any_of(holds, is_loading)) store->Poll();
    store->CheckInvariants();
    return holds;
  };

  testing::internal::CaptureStderr();
  device.FailCopies(1);
  suspend();
  EXPECT_EQ(store->stats().device_used, kCount);
  EXPECT_EQ(disk_stats().copy_failures, kCount);
  device.FailCopies(0);
  suspend();
  EXPECT_EQ(store->stats().device_used, 0u);
  EXPECT_EQ(disk_stats().spills, kCount);

  device.FailCopies(1);
  for (const Hold& hold : load()) EXPECT_TRUE(hold && hold.is_lost());
  EXPECT_EQ(disk_stats().copy_failures, 2 * kCount);
  EXPECT_EQ(disk_stats().load_failures + disk_stats().spill_failures, 0u);
  EXPECT_FALSE(disk_stats().is_paused);
  EXPECT_EQ(disk_stats().records, kCount) << "they are as they were";
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 2) << "one line when copies begin to fail: " << log;
  device.FailCopies(0);
  const std::vector<Hold> loaded = load();
  ASSERT_EQ(loaded.size(), kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(loaded[i].is_ready());
    EXPECT_TRUE(HasPatternKv(layout, device.Reach(loaded[i].address()),
                             std::span(tokens).first(2 * i + 2)));
  }
}

// The pool has room for nobody but who gets all of it, and one of its blocks is being written ahead
// of need. Who has waited for long enough does not get its slot, but has its segment closed, full
// or not.
TEST(StagedBlockStore, WhoWaitsTooLongForRoomDoesNotWaitForASegmentToFill) {
  constexpr uint32_t kCount = 8;
  const KvLayout layout{.layer_count = 1, .kv_head_count = 1, .head_dim = 2, .block_tokens = 2};
  const BlockKey root = RootKey({1, 2}, "layout", "");
  FakeClock clock;
  FarDevice device(std::make_unique<LateCopyDevice>(1 << 20, 1));
  FakeDisk disk;
  auto spill = std::make_unique<FakeSpillStore>(
      disk, FakeSpillOptions{.segment_blocks = 100, .answer_chance = 1}, layout.block_bytes());
  auto store =
      *BlockStore::Create({.device_blocks_max = kCount}, layout, device, clock, std::move(spill));
  for (uint32_t i = 0; i < kCount; ++i) {
    const std::vector<uint32_t> tokens = {2 * i, 2 * i + 1};
    std::vector<Hold> fresh = *store->Reserve(1);
    WritePatternKv(layout, device.Reach(fresh[0].writable_address()), tokens);
    const Hold sealed = store->Seal(std::move(fresh[0]), root, tokens, kPriorityDefault);
  }
  const auto poll = [&] {
    for (int i = 0; i < 100; ++i) store->Poll();
  };
  const auto lossless = [&] { return store->NeedOf(root, {}, kCount).lossless; };
  const auto available = [&] { return store->NeedOf(root, {}, kCount).available; };
  clock.Advance(std::chrono::seconds(1));
  store->WriteBack();
  poll();
  const uint32_t writing = kCount - available();
  ASSERT_GT(writing, 0u);
  EXPECT_EQ(lossless(), 0u) << "the segment is open";
  EXPECT_FALSE(store->AwaitsRoom(kCount, std::chrono::hours(1)));
  EXPECT_EQ(available(), kCount - writing) << "a slot that is being copied is not to be had";
  poll();
  EXPECT_EQ(available(), kCount);
  EXPECT_EQ(lossless(), writing);
  EXPECT_EQ((*store->Reserve(kCount)).size(), kCount);
}

}  // namespace
}  // namespace cairn
