// Private to BlockStore's sources.
#pragma once

#include "offload/block_store.h"

namespace cairn {

// A block is changed while this lives: the accounts forget what it was and learn what it is then.
class BlockStore::Change {
 public:
  Change(BlockStore& store, BlockMeta& meta) : store_(store), meta_(meta) {
    --store_.Tally(store_.StandingOf(meta_));
  }
  ~Change() { ++store_.Tally(store_.StandingOf(meta_)); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  BlockStore& store_;
  BlockMeta& meta_;
};

}  // namespace cairn
