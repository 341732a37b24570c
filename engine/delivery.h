// What one stream is told next.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "engine/api.h"

namespace cairn {

struct Delivery {
  SequenceId id;
  std::string session_id;           // empty: a one-shot generation
  std::shared_ptr<TokenSink> sink;  // null: a prefetch, whose end nobody hears of
  std::optional<StreamUpdate> update;
  std::optional<StreamEnd> end;
};

}  // namespace cairn
