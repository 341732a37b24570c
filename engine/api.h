// What the engine is asked and what it answers: plain values, no type of the wire.
// Errors name fields as the wire does ("content.tokens.ids[3]").
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/chat_template.h"  // ChatMessage
#include "engine/restore_report.h"
#include "engine/sampling_params.h"
#include "offload/block.h"  // Tier

namespace cairn {

// What is put into a context.
struct ChatContent {
  std::vector<ChatMessage> messages;
  bool omit_generation_prompt = false;
};
using Content = std::variant<std::monostate,          // none
                             std::string,             // UTF-8, tokenized as it is
                             ChatContent,             // rendered by the model's chat template
                             std::vector<uint32_t>>;  // token ids

// kNone: not finished. kStop: end token, stop token or stop string. kLength: max_tokens or context.
enum class FinishReason { kNone, kStop, kLength };

struct TokenLogprob {
  uint32_t token_id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;  // the most likely, descending; one level deep
};

// prompt_tokens = device + host + disk + remote + recomputed + new, over the context when decoding
// began: recomputed had been computed before, new never.
struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t device_tokens = 0;
  int64_t host_tokens = 0;
  int64_t disk_tokens = 0;
  int64_t remote_tokens = 0;
  int64_t recomputed_tokens = 0;
  int64_t new_tokens = 0;
  std::chrono::nanoseconds queue_time{0};
  std::chrono::nanoseconds restore_time{0};
  std::chrono::nanoseconds first_token_time{0};  // request read -> first token handed to the sink
  std::chrono::nanoseconds decode_time{0};       // first token -> last token
  uint64_t seed = 0;
};

// Some tokens of a stream and the text that they complete. `text` is whole UTF-8 characters; the
// deltas concatenate to the output.
struct StreamUpdate {
  int64_t position = 0;  // of token_ids[0]; of the next token when there is none
  std::vector<uint32_t> token_ids;
  std::string text;
  std::vector<TokenLogprob> logprobs;  // one a token when asked for, except for replayed tokens
};

struct StreamEnd {
  Status status;  // not ok: the stream failed; what was handed out before stays valid
  FinishReason finish_reason = FinishReason::kNone;
  Usage usage;
  std::optional<uint32_t> stop_token_id;
  std::optional<std::string> stop_string;
};

// Where a stream's tokens go. Called on the engine thread or the journal's, which must not be
// blocked: a sink hands over and returns. OnEnd is the last call, and comes exactly once.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // False: the sink is full now (it has taken this update all the same). The sequence is paused
  // until Engine::ResumeStream; with a journal, updates that were under way come all the same.
  virtual bool OnTokens(StreamUpdate update) = 0;
  virtual void OnEnd(StreamEnd end) = 0;
};

enum class SessionState { kIdle, kQueued, kRestoring, kDecoding };

// Where a session's tokens have their KV, counted once at the fastest tier, in whole blocks.
struct Residency {
  int64_t device_tokens = 0;
  int64_t host_tokens = 0;
  int64_t disk_tokens = 0;
  int64_t remote_tokens = 0;
  int64_t absent_tokens = 0;  // lost, or not computed yet
  int64_t tail_tokens = 0;    // of a last, partial block: found or computed when it is wanted
};

// Never; at a fixed moment; or a time after the last use.
using Expiration = std::variant<std::monostate, Clock::Wall, std::chrono::nanoseconds>;

// What a user sets of a session.
struct SessionSettings {
  std::string display_name;  // at most 256 bytes
  Expiration expiration;
  int32_t priority = 50;  // 0..100; the lowest loses its place first
  SamplingParams sampling;
  bool pinned = false;
  std::map<std::string, std::string> annotations;  // at most 32; keys 1..63 bytes, values <= 1024
};

struct SessionInfo {
  std::string id;  // without "sessions/"
  SessionSettings settings;
  int64_t token_count = 0;
  Clock::Wall create_time;
  Clock::Wall update_time;
  std::optional<Clock::Wall> expire_time;
  SessionState state = SessionState::kIdle;
  Residency residency;
  std::string parent_id;
  std::string etag;
  std::string cache_salt;
};

struct CreateSessionRequest {
  std::string id;  // minted when empty; [a-z0-9][a-z0-9-]{0,62}
  SessionSettings settings;
  std::string cache_salt;  // sessions share blocks only with equal salts; at most 64 bytes
  Content content;
};

// Which settings an update changes.
struct SessionPatch {
  std::optional<std::string> display_name;
  std::optional<Expiration> expiration;
  std::optional<int32_t> priority;
  std::optional<SamplingParams> sampling;
  std::optional<bool> pinned;
  std::optional<std::map<std::string, std::string>> annotations;
};
struct UpdateSessionRequest {
  std::string id;
  SessionPatch patch;
  std::string etag;                       // kAborted when it is not empty and not the session's
  std::optional<std::string> cache_salt;  // immutable: kInvalidArgument unless it is the session's
};

struct ListSessionsRequest {
  int32_t page_size = 0;   // 0: 100; at most 1000
  std::string page_token;  // from the page before; kInvalidArgument when it is from nowhere
};
struct SessionPage {
  std::vector<SessionInfo> sessions;  // by id; about 2 MiB at most
  std::string next_page_token;
};

// What names a session and says nothing more.
struct SessionRef {
  std::string id;
};

struct ExplainRequest {
  std::string id;
  bool last = false;  // the last restore that was carried out, instead of a plan made now
};

struct ForkSessionRequest {
  std::string id;
  std::string new_id;
  std::optional<int64_t> token_count;
};

struct TruncateRequest {
  std::string id;
  int64_t token_count = 0;
};

struct SuspendRequest {
  std::string id;
  Tier tier = Tier::kHost;  // how far down: kHost, kDisk or kAbsent
};

struct AppendRequest {
  std::string id;
  Content content;
  std::optional<int64_t> expected_token_count;
};
struct AppendResult {
  int64_t token_count = 0;
  int64_t appended_token_count = 0;
};

struct DecodeRequest {
  std::string id;
  Content content;  // the session has it from the first update on, or from an end that is ok
  std::optional<int64_t> expected_token_count;
  std::optional<int64_t> start_position;
  uint32_t max_tokens = 0;  // from start_position; 0: the configured default
  SamplingParams sampling;
};

struct GenerateRequest {
  Content content;
  uint32_t max_tokens = 0;
  SamplingParams sampling;
  int32_t priority = 50;
  std::string cache_salt;
};

struct TokenRange {
  int64_t position = 0;
  int64_t end = 0;  // of the session's tokens when they were read
  std::vector<uint32_t> token_ids;
  std::string text;
};

struct TierStats {
  Tier tier = Tier::kDevice;
  int64_t capacity_blocks = 0;  // of the disk, what the quota has room for
  int64_t used_blocks = 0;
  int64_t held_blocks = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t evictions = 0;                // blocks that left because room was needed
  double bandwidth = 0;                 // bytes a second, as measured lately; 0: not yet
  std::chrono::nanoseconds latency{0};  // of one block
  PredictionHistogram loads;            // of one block's load from there
};
struct EngineStats {
  std::vector<TierStats> tiers;
  int64_t session_count = 0;
  int64_t running_count = 0;
  int64_t waiting_count = 0;
  int64_t blocks_reloaded = 0;
  int64_t blocks_recomputed = 0;  // blocks' worth of tokens that had been computed before
  int64_t blocks_corrupt = 0;     // records that failed verification
  int64_t segments_foreign = 0;   // files of records of another model, arithmetic or version
  int64_t preemptions = 0;
  int64_t steps = 0;
  std::chrono::nanoseconds step_time{0};     // in all steps: planning to commit
  std::chrono::nanoseconds forward_time{0};  // of it, inside the model
  int64_t session_commits = 0;               // batches of changes that were made durable
  int64_t session_commits_failed = 0;        // and that the disk did not take
  RestoreCounts restores;
};

struct ModelInfo {
  std::string name;
  std::string architecture;
  int64_t parameter_count = 0;
  int32_t context_length = 0;
  int32_t vocabulary_size = 0;
  std::string fingerprint;
  std::string backend;
  std::string arithmetic;
  int32_t layer_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  std::string kv_type;
  int32_t block_tokens = 0;
  int64_t bytes_per_token = 0;
  int64_t bytes_per_block = 0;
  std::vector<uint32_t> end_token_ids;
};

// Called once: on the engine thread, the journal's when there is one, or, when the request is
// refused at the door, the caller's.
template <class T>
using Reply = std::function<void(Result<T>)>;
struct Done {};

}  // namespace cairn
