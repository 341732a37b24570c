// The planner by itself, as text: a problem in one line of JSON, with costs given by hand, and the
// plan for it as another. For capacity questions, and for whoever wants to check the planner.
//
// A problem (restore_problem.h says what the costs mean; a block on a channel takes per_copy_s +
// block_bytes / bytes_per_s):
//
//   {"block_tokens": 16, "block_bytes": 368640, "layers": 30, "new_tokens": 32, "pass_s": 2e-4,
//    "sweep_s": 4e-3, "per_token_s": 7e-4, "per_token_position_s": 1e-7, "chunk_tokens": 512,
//    "channels": {"h": {"latency_s": 0, "per_copy_s": 2e-6, "bytes_per_s": 8e9},
//                 "d": {"latency_s": 1e-4, "per_copy_s": 1e-5, "bytes_per_s": 4e7, "then": "h"}},
//    "blocks": "..hhdd-dh"}
//
// `blocks` has a letter a block: its channel, '.' for one on the device, '-' for one that is
// absent. Optional: "backlog_s" of a channel, and "comes_whole", true where Wave cannot use a layer
// of its blocks before all of them are there; "compute_backlog_s"; "decode_rows"; "uncertainty", a
// share of the prediction (default 0); "policy" (default "cairn"); "cut_share" (default 0.5);
// "executions", which of "front" and "wave" may be used beside load-all and recompute-all (default
// both); "wave_tokens_max", tokens of one pass of Wave (default: no bound).
//
// The plan: "recompute" lists what is computed and "load_order" what each channel loads, by index:
//
//   {"execution": "front", "recompute": [2, 6], "load_order": {"d": [4, 5, 7], "h": [3, 8]},
//    "predicted_s": 1.5, "load_all_s": 2.5, "recompute_all_s": 3.5}
//
// and where the policy is "wave" but there is none, "no_wave": why (NoWave).
//
// What is no problem gets {"error": "FIELD: what was expected, and what came"}. Never throws.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cairn {

inline constexpr size_t kWhatIfBytesMax = size_t{4} << 20;  // of a problem
inline constexpr uint32_t kWhatIfBlocksMax = uint32_t{1} << 20;

// The plan for a problem, or the error; one line without its end.
std::string AnswerWhatIf(std::string_view problem);

}  // namespace cairn
