// Copies of blocks within memory: between the pools, and what they have to wait for.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "offload/block_change.h"
#include "offload/block_store.h"

namespace cairn {
namespace {

// Of copies ahead of need that are under way at once.
constexpr double kAheadSeconds = 0.005;

}  // namespace

// From the host pool to the device.
void BlockStore::BeginPromotion(Move& move) {
  move.waits = false;
  move.copy = copy_queue_->Add(CopyQueue::Way::kToDevice, device_pool_.Address(move.target.slot),
                               host_pool_->Address(At(move.block).host), layout_.block_bytes(),
                               prefix_copy_);
  host_meter_.Begin(clock_.Now());
}

// All that wait for somebody: together, layer by layer.
void BlockStore::BeginByLayer() {
  std::vector<Move*> moves;
  std::vector<CopyPart> blocks;
  for (auto& [id, move] : copies_) {
    if (!move.waits || move.turn == kTurnAhead) continue;
    moves.push_back(&move);
    blocks.push_back({device_pool_.Address(move.target.slot),
                      host_pool_->Address(At(move.block).host), layout_.block_bytes()});
  }
  if (blocks.empty()) return;
  const CopyRef copy = copy_queue_->AddByLayer(blocks, layout_.layer_count, prefix_copy_);
  for (Move* move : moves) {
    move->waits = false;
    move->copy = copy;
    host_meter_.Begin(clock_.Now());
  }
}

// Copies that nobody waits for yet, as long as nobody waits for another, and only so many that one
// who comes meanwhile does not wait for them long.
void BlockStore::BeginPromotionsAhead() {
  std::vector<Move*> waiting;
  uint32_t ahead_count = 0;  // under way
  for (auto& [id, move] : copies_) {
    if (move.target.tier != Tier::kDevice) continue;
    if (move.waits) {
      waiting.push_back(&move);
    } else if (move.turn == kTurnAhead) {
      ++ahead_count;
    } else {
      return;
    }
  }
  const double block_s = host_flow().block_s;
  const double count_max = block_s > 0 ? std::max(1.0, kAheadSeconds / block_s) : 1;
  for (Move* move : waiting) {
    if (ahead_count >= count_max) return;
    BeginPromotion(*move);
    ++ahead_count;
  }
}

// Those that were ordered and may begin: together, since each call to a device has its price.
void BlockStore::BeginCopies() {
  if (copy_queue_ != nullptr) copy_queue_->Advance();
}

// A slot that is about to change hands with the disk, which knows no streams, may have been read or
// written by CopyPrefix just now: one block within the device's memory. Only of a lost device the
// wait fails, and whatever reads the block then fails too.
void BlockStore::AwaitPrefixCopy() {
  if (prefix_copy_ != nullptr) (void)std::exchange(prefix_copy_, nullptr)->Wait();
}

// From the device to the host pool.
bool BlockStore::BeginDemotion(BlockId id, const DepartureRef& departure) {
  BlockMeta& meta = At(id);
  CHECK(meta.device.valid() && !meta.host.valid() && !meta.store.valid());
  if (!MakeHostRoom(id)) return false;
  const Place target{Tier::kHost, host_pool_->Take()};
  const MoveId move = NextMove();
  const Change change(*this, meta);
  meta.store = move;
  in_flight_count_ += host_in_place_;
  CopyRef copy =
      copy_queue_->Add(CopyQueue::Way::kToHost, host_pool_->Address(target.slot),
                       device_pool_.Address(meta.device), layout_.block_bytes(), prefix_copy_);
  copies_.emplace(
      move, Move{.block = id, .target = target, .copy = std::move(copy), .departure = departure});
  return true;
}

bool BlockStore::EndCopies() {
  std::vector<MoveId> over;
  for (const auto& [id, move] : copies_) {
    if (!move.waits && move.copy->IsOver()) over.push_back(id);
  }
  for (const MoveId id : over) {
    const Move move = std::move(copies_.extract(id).mapped());
    const Status status = move.copy->Outcome();
    if (move.target.tier == Tier::kDevice) {
      counts_.promotions += status.ok();
      host_meter_.End(move.copy->seconds());
      EndLoad(id, move, status, true);
    } else {
      EndDemotion(id, move, status);
    }
  }
  return !over.empty();
}

void BlockStore::EndDemotion(MoveId id, const Move& move, const Status& status) {
  in_flight_count_ -= host_in_place_;
  BlockMeta& meta = At(move.block);
  {
    const Change change(*this, meta);
    // In place there is one of the two; elsewhere the device's copy stays until it must go.
    const bool leaves = host_in_place_ ? meta.hold_count == 0 : move.departure != nullptr;
    const bool stays_where_it_was = !status.ok() || (host_in_place_ && !leaves);
    if (stays_where_it_was) {
      host_pool_->Give(move.target.slot);
    } else {
      ++counts_.demotions;
      SetSlot(move.block, move.target);
      if (leaves && meta.hold_count == 0) {
        device_pool_.Give(std::exchange(meta.device, SlotId()));
      }
    }
  }
  EndStore(id, move, RecordId());
}

}  // namespace cairn
