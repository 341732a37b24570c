// Copies of blocks, or of parts of them, between the device's memory and the host's: each way on a
// stream of its own, so that neither queues behind the other nor behind what is computed; and
// perhaps at most so many bytes a second, both ways together.
//
// What is added begins when Advance is called next, in batches: a stream takes each in one call.
// Until then, and under a limit until it is due, it waits here and is not on a stream, which is the
// back-pressure: it can still be cancelled, and its slots stay with who ordered it.
//
// Under a limit, to the device goes first, since somebody may be waiting for it; but a copy to the
// host that has waited for kPatience is not put off any longer. Each way keeps its order; between
// the two, and between a copy and what is computed, there is none but `after`, and that a slot is
// not used for anything else before its copy is over.
//
// Blocks that are needed together may come layer by layer: of all of them the first layers, then of
// all of them the next ones, so that what needs one layer at a time need not wait for the rest.
// Under a limit each part of a block comes due by itself; such a copy cannot be cancelled.
// Threads: the engine thread only. Advance is to be called while anything waits.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/device.h"

namespace cairn {

// One copy that was ordered: of a block, or of blocks that come layer by layer.
class QueuedCopy {
 public:
  bool has_begun() const { return begun_; }
  bool IsOver() const { return begun_ && (ended_ == nullptr || ended_->Passed()); }
  // Of one that is over.
  Status Outcome() const;
  // 0: it is of one block.
  uint32_t layer_count() const { return layer_count_; }
  // The event that says that this layer has come, as have all before it. Only of one that has
  // begun, as all do at once without a limit.
  const EventRef& layer(uint32_t index) const { return layers_.at(index); }
  bool has_begun(uint32_t layer) const { return layer < layers_.size(); }
  // Of all layers, the share that has come.
  double ArrivedShare() const;
  // What a block took on the stream, as a share of its batch; 0: not known.
  double seconds() const {
    return began_ == nullptr || ended_ == nullptr ? 0 : ended_->SecondsSince(*began_) * share_;
  }

 private:
  friend class CopyQueue;
  CopyPart part_{};
  EventRef after_;
  Clock::Monotonic ordered_;
  bool begun_ = false;
  EventRef began_;  // of its batch
  EventRef ended_;
  double share_ = 0;
  uint32_t layer_count_ = 0;
  std::vector<EventRef> layers_;      // that have begun; several in a row are the same
  std::vector<CopyPart> parts_;       // of the first group of all blocks, then of the next one
  std::vector<uint32_t> group_ends_;  // by group: the layer behind it
  size_t begun_parts_ = 0;
};
using CopyRef = std::shared_ptr<QueuedCopy>;

class CopyQueue {
 public:
  static constexpr std::chrono::milliseconds kPatience{20};
  // What comes layer by layer comes in so many groups of layers, if there are as many layers: more
  // of them are waited for a little less, but make more and smaller copies.
  static constexpr uint32_t kLayerGroupsMax = 8;
  enum class Way : uint8_t { kToDevice, kToHost };

  // 0: no limit. Otherwise, while copies wait, they come due one after the other at this rate, and
  // each look begins what is due: over any time T between two looks at most bytes_per_second * T
  // and one copy.
  static Result<std::unique_ptr<CopyQueue>> Create(Device& device, uint64_t bytes_per_second,
                                                   const Clock& clock);
  // `batch_bytes`: as in DeviceInfo. A batch is over as a whole.
  CopyQueue(std::unique_ptr<Stream> to_device, std::unique_ptr<Stream> to_host,
            uint64_t bytes_per_second, const Clock& clock, size_t batch_bytes = 0)
      : lanes_{Lane{.stream = std::move(to_device)}, Lane{.stream = std::move(to_host)}},
        bytes_per_second_(bytes_per_second),
        clock_(clock),
        batch_bytes_(batch_bytes) {}

  // `after` (may be null) comes before it. The memory stays until the copy is over or cancelled.
  CopyRef Add(Way way, std::byte* to, const std::byte* from, size_t size_bytes,
              const EventRef& after = nullptr);
  // To the device, layer by layer. A part is a block, of which each layer takes as much. Without a
  // limit it begins at once.
  CopyRef AddByLayer(std::span<const CopyPart> blocks, uint32_t layer_count,
                     const EventRef& after = nullptr);
  // Begins what may begin by now.
  void Advance();
  // The event of a layer, which may have to be waited for until it is due.
  EventRef AwaitBegin(const QueuedCopy& copy, uint32_t layer);
  // True: it has not begun, and never will.
  bool Cancel(const CopyRef& copy);

  uint64_t begun_count() const { return begun_count_; }  // since the start
  bool has_waiting() const {
    return !LaneOf(Way::kToDevice).waiting.empty() || !LaneOf(Way::kToHost).waiting.empty();
  }
  uint64_t bytes_per_second() const { return bytes_per_second_; }
  // What so many bytes take at least under the limit; 0 without.
  double LimitedSeconds(size_t size_bytes) const;

  // Copies from the device now, and waits for it: for checks, past the queue and the limit.
  Status CopyToHostNow(std::byte* to, const std::byte* from, size_t size_bytes,
                       const EventRef& after);

 private:
  struct Lane {  // one way
    std::unique_ptr<Stream> stream;
    std::deque<CopyRef> waiting;
    std::vector<CopyRef> batch;  // what begins together; empty between calls
    size_t batch_bytes = 0;
    std::vector<CopyPart> parts;  // the same of what comes layer by layer, the first that waits
  };
  Lane& LaneOf(Way way) { return lanes_[static_cast<size_t>(way)]; }
  const Lane& LaneOf(Way way) const { return lanes_[static_cast<size_t>(way)]; }
  void BeginFirst(Lane& lane);
  void BeginBatch(Lane& lane);
  void BeginParts(Lane& lane);

  std::array<Lane, 2> lanes_;
  const uint64_t bytes_per_second_;
  const Clock& clock_;
  const size_t batch_bytes_;
  Clock::Monotonic due_;  // when what has begun is paid for
  uint64_t begun_count_ = 0;
  std::vector<CopyPart> parts_;  // of a batch
};

}  // namespace cairn
