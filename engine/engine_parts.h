// What an engine is made of. engine/load.h makes it from a model file.
#pragma once

#include <memory>

#include "base/digest.h"
#include "base/status.h"
#include "base/wake_signal.h"
#include "engine/api.h"
#include "engine/chat_template.h"
#include "engine/model.h"
#include "engine/restore_strategy.h"
#include "engine/session_journal.h"
#include "engine/tokenizer.h"
#include "engine/trace.h"
#include "offload/block_store.h"

namespace cairn {

struct EngineParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<BlockStore> blocks;         // on the model's device
  std::unique_ptr<RestoreStrategy> restores;  // knows `blocks`
  std::unique_ptr<const Tokenizer> tokenizer;
  Result<std::unique_ptr<ChatTemplate>> chat_template;  // a Status is the answer to chat content
  ModelInfo model_info;
  Digest fingerprint;                       // of the weights, with the context extension
  std::unique_ptr<TraceWriter> trace;       // null: no trace
  std::unique_ptr<SessionJournal> journal;  // null: sessions end with the process
  std::shared_ptr<WakeSignal> wake;         // rings when a move of `blocks` has ended; null: never
};

}  // namespace cairn
