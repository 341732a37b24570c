// One running generation over a context: a stream of Decode or Generate, or a prefetch.
//
//   kReplaying --> kWaiting --> kRestoring --> kRunning --> (ended)
//                     ^             |              |
//                     +-------------+--------------+   preempted
//
// kReplaying  hands out tokens that the session has already; needs no blocks.
// kWaiting    wants blocks: not yet admitted, or preempted.
// kRestoring  holds all the blocks of its context, some of which are still being loaded; meanwhile
//             it computes what comes before those.
// kRunning    holds all the blocks of its context, and takes part in steps unless it is paused.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "engine/api.h"
#include "engine/context_blocks.h"
#include "engine/output_assembler.h"
#include "engine/restore_report.h"
#include "engine/sampler.h"

namespace cairn {

enum class Phase { kReplaying, kWaiting, kRestoring, kRunning };

struct Sequence {
  SequenceId id;                    // in order of arrival
  std::string session_id;           // empty: a one-shot generation
  std::shared_ptr<TokenSink> sink;  // null: a prefetch, which ends when nothing is missing
  int32_t priority = 0;
  BlockKey root;
  Clock::Monotonic received;

  Phase phase = Phase::kWaiting;
  std::vector<uint32_t> tokens;  // the context: prompt, and what was sampled, released or not
  size_t end_count = 0;          // the stream ends with kLength at so many tokens
  size_t released_count = 0;     // the prompt, and what was handed out; `output` has the rest
  size_t content_count = 0;      // of the prompt's last tokens, those that the session lacks yet
  size_t computed_end = 0;       // positions below it were written by this sequence, or before
  size_t computed_before = 0;    // tokens of the session that had been computed before this
  size_t restored_end = 0;       // positions below it come back; set when it is admitted

  SamplingParams sampling;
  uint64_t seed = 0;
  std::optional<TokenCounts> counts;  // when a penalty needs them
  std::optional<OutputAssembler> output;
  std::unique_ptr<ContextBlocks> blocks;  // exactly in kRestoring and kRunning

  size_t replay_next = 0;  // the next position to hand out, in kReplaying
  size_t replay_end = 0;
  std::optional<Detokenizer> replay_text;

  bool paused = false;  // its sink is full
  Clock::Monotonic paused_since;
  uint32_t passed_over_count = 0;  // how often a later one was admitted before it
  std::optional<Clock::Monotonic> awaits_room_since;  // blocks that make room for it, in kWaiting

  Usage usage;
  bool admitted_before = false;
  bool is_first_restore = false;  // of which `usage` tells
  std::optional<Clock::Monotonic> first_token;
  Clock::Monotonic last_token;
  Clock::Monotonic admitted;
  Clock::Monotonic planned;                // when its restore was planned last
  std::unique_ptr<RestoreReport> restore;  // while it comes back
  double arrived = 0;  // of what comes layer by layer, the share that was there at the last look
  Clock::Monotonic arrived_since;  // when it was first seen

  bool is_admitted() const { return blocks != nullptr; }

  // A token is handed out at `now`.
  void MarkToken(Clock::Monotonic now) {
    if (!first_token) first_token = now;
    last_token = now;
  }

  // Rows that it can compute now; when nothing that it waits for is loading any more these are the
  // rows until its next token can be sampled. The row of the last token runs even when its K and V
  // are in place: its logits are wanted.
  uint32_t rows_left() const {
    const bool waits = blocks->is_loading() && !blocks->reaches_behind_arrivals();
    if (waits) return blocks->computable_count(tokens.size());
    const uint32_t missing = blocks->missing_count(tokens.size());
    return missing > 0 || sink == nullptr ? missing : 1;
  }
  // Its next row gives its next token.
  bool is_decoding() const { return phase == Phase::kRunning && rows_left() == 1; }
  // Those of rows_left, the first ones, whose positions come back.
  uint32_t restore_rows() const {
    uint32_t count = 0;
    const size_t end = std::min(restored_end, tokens.size());
    for (const PositionRange& run : blocks->MissingRuns(end, UINT32_MAX)) count += run.count;
    return count;
  }
};

// What a sequence was about when a step began: for the log of a step that does not end.
struct SequenceState {
  SequenceId id;
  std::string session_id;
  Phase phase = Phase::kWaiting;
  bool paused = false;
  size_t token_count = 0;
  uint32_t rows_left = 0;  // in kRunning
};

std::string Describe(const SequenceState& state);

}  // namespace cairn
