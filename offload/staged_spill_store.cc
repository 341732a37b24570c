#include "offload/staged_spill_store.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace cairn {
Result<std::unique_ptr<StagedSpillStore>> StagedSpillStore::Create(
    std::unique_ptr<SpillStore> disk, Device& device, CopyQueue& copies,
    std::span<const std::byte> device_memory, size_t block_bytes, uint32_t slot_count) {
  CHECK(slot_count >= kSlotCountMin);
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> memory,
                   device.AllocateHost(slot_count * SlotPool::StrideBytes(block_bytes)));
  return std::unique_ptr<StagedSpillStore>(
      new StagedSpillStore(std::move(disk), copies, device_memory, block_bytes,
                           SlotPool(std::move(memory), slot_count, block_bytes)));
}

// Addresses of different memories have no order but std::less's.
bool StagedSpillStore::IsOnDevice(std::span<const std::byte> payload) const {
  const std::byte* const begin = device_memory_.data();
  const std::byte* const end = begin + device_memory_.size();
  return !std::less<>()(payload.data(), begin) && std::less<>()(payload.data(), end);
}

void StagedSpillStore::Read(SpillRead order) {
  if (!IsOnDevice(order.payload)) return disk_->Read(std::move(order));
  waiting_loads_.push_back(std::move(order));
  HandOverReads();
}

void StagedSpillStore::Write(SpillWrite order) {
  writer_orders_.push_back(Store{.order = std::move(order)});
  HandOverWrites();
}

void StagedSpillStore::Close() {
  writer_orders_.push_back(CloseOrder());
  HandOverWrites();
}

void StagedSpillStore::Retire(SpillRetire order) {
  writer_orders_.push_back(std::move(order));
  HandOverWrites();
}

void StagedSpillStore::HandOverReads() {
  while (!waiting_loads_.empty()) {
    const auto load_slot_count = static_cast<uint32_t>(loads_.size() + uploads_.size());
    if (slots_.free_count() == 0 || load_slot_count + 1 == slots_.capacity()) return;
    SpillRead order = std::move(waiting_loads_.front());
    waiting_loads_.pop_front();
    const SlotId slot = slots_.Take();
    loads_.emplace(order.ticket, Load{.target = order.payload, .slot = slot});
    order.payload = BytesOf(slot);
    disk_->Read(std::move(order));
  }
}

// For the first of the waiting writes, as far as there are slots.
void StagedSpillStore::BeginDownloads() {
  for (WriterOrder& one : writer_orders_) {
    if (slots_.free_count() == 0 || store_slot_count_ == slots_.capacity() / 2) return;
    auto* const store = std::get_if<Store>(&one);
    if (store == nullptr || store->slot.valid() || !IsOnDevice(store->order.payload)) continue;
    store->slot = slots_.Take();
    ++store_slot_count_;
    ++download_count_;
    store->copy = copies_.Add(CopyQueue::Way::kToHost, slots_.Address(store->slot),
                              store->order.payload.data(), block_bytes_);
  }
}

void StagedSpillStore::HandOverWrites() {
  BeginDownloads();
  while (!writer_orders_.empty() && HandOver(writer_orders_.front())) writer_orders_.pop_front();
}

// False: it has to wait.
bool StagedSpillStore::HandOver(WriterOrder& order) {
  if (std::holds_alternative<CloseOrder>(order)) {
    disk_->Close();
  } else if (auto* const retire = std::get_if<SpillRetire>(&order)) {
    disk_->Retire(std::move(*retire));
  } else {
    auto& store = std::get<Store>(order);
    if (IsOnDevice(store.order.payload)) {
      if (!store.slot.valid() || !store.copy->IsOver()) return false;
      --download_count_;
      written_.emplace(store.order.ticket, store.slot);
      if (const Status status = store.copy->Outcome(); !status.ok()) {
        ReturnSlot(store.order.ticket);
        failed_.push_back({.ticket = store.order.ticket, .status = status, .copy_failed = true});
        return true;
      }
      store.order.payload = BytesOf(store.slot);
      store.order.returns_payload = true;
    }
    disk_->Write(std::move(store.order));
  }
  return true;
}

// The disk has what it is to write; or it never will.
void StagedSpillStore::ReturnSlot(SpillTicket ticket) {
  const auto written = written_.find(ticket);
  if (written == written_.end()) return;  // it was not staged, or is returned already
  slots_.Give(written->second);
  --store_slot_count_;
  written_.erase(written);
}

bool StagedSpillStore::Cancel(SpillTicket ticket) {
  const auto is_it = [&](const SpillRead& order) { return order.ticket == ticket; };
  if (std::erase_if(waiting_loads_, is_it) > 0) return true;
  for (auto order = writer_orders_.begin(); order != writer_orders_.end(); ++order) {
    const auto* const store = std::get_if<Store>(&*order);
    if (store == nullptr || store->order.ticket != ticket) continue;
    if (store->slot.valid()) {
      if (!copies_.Cancel(store->copy)) return false;
      slots_.Give(store->slot);
      --store_slot_count_;
      --download_count_;
    }
    writer_orders_.erase(order);
    return true;
  }
  const auto upload = std::ranges::find_if(
      uploads_, [&](const Upload& one) { return one.completion.ticket == ticket; });
  if (upload != uploads_.end()) {
    if (!copies_.Cancel(upload->copy)) return false;
    slots_.Give(upload->slot);
    uploads_.erase(upload);
    return true;
  }
  if (!disk_->Cancel(ticket)) return false;
  ReturnSlot(ticket);
  if (const auto load = loads_.find(ticket); load != loads_.end()) {
    slots_.Give(load->second.slot);
    loads_.erase(load);
  }
  return true;
}

std::vector<SpillCompletion> StagedSpillStore::Poll() {
  std::vector<SpillCompletion> done = std::exchange(failed_, {});
  for (SpillCompletion& completion : disk_->Poll()) OnCompletion(std::move(completion), done);
  for (const SpillTicket ticket : disk_->TakeReturned()) ReturnSlot(ticket);
  EndUploads(done);
  HandOverReads();
  HandOverWrites();
  return done;
}

void StagedSpillStore::OnCompletion(SpillCompletion completion,
                                    std::vector<SpillCompletion>& done) {
  ReturnSlot(completion.ticket);
  const auto found = loads_.find(completion.ticket);
  if (found == loads_.end()) return done.push_back(std::move(completion));
  const Load load = found->second;
  loads_.erase(found);
  if (!completion.status.ok()) {
    slots_.Give(load.slot);
    return done.push_back(std::move(completion));
  }
  CopyRef copy = copies_.Add(CopyQueue::Way::kToDevice, load.target.data(),
                             slots_.Address(load.slot), block_bytes_);
  uploads_.push_back({std::move(completion), load.slot, std::move(copy)});
}

void StagedSpillStore::EndUploads(std::vector<SpillCompletion>& done) {
  while (!uploads_.empty() && uploads_.front().copy->IsOver()) {
    Upload& upload = uploads_.front();
    upload.completion.status = upload.copy->Outcome();
    upload.completion.copy_failed = !upload.completion.status.ok();
    slots_.Give(upload.slot);
    done.push_back(std::move(upload.completion));
    uploads_.pop_front();
  }
}

void StagedSpillStore::CheckInvariants() const {
  const uint32_t used_count = slots_.capacity() - slots_.free_count();
  CHECK(used_count == loads_.size() + uploads_.size() + store_slot_count_);
  CHECK(store_slot_count_ == written_.size() + download_count_);
}

SpillStats StagedSpillStore::stats() const {
  SpillStats stats = disk_->stats();
  const auto waiting = std::ranges::count_if(
      writer_orders_, [](const auto& order) { return std::holds_alternative<Store>(order); });
  stats.used_bytes += static_cast<uint64_t>(waiting) * stats.record_bytes;
  stats.record_count += copies_.begun_count();  // it gets on
  const uint64_t copy_limit = copies_.bytes_per_second();
  if (copy_limit > 0 && (stats.bandwidth_limit == 0 || copy_limit < stats.bandwidth_limit)) {
    stats.bandwidth_limit = copy_limit;
  }
  stats.staging_count = slots_.capacity();
  stats.staged_count = slots_.capacity() - slots_.free_count();
  return stats;
}

}  // namespace cairn
