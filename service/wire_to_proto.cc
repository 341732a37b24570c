#include <algorithm>
#include <optional>
#include <utility>

#include "service/wire.h"
#include "service/wire_times.h"

namespace cairn {
namespace {

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::Session::State ToProto(SessionState state) {
  switch (state) {
    case SessionState::kIdle:
      return v1::Session::STATE_IDLE;
    case SessionState::kQueued:
      return v1::Session::STATE_QUEUED;
    case SessionState::kRestoring:
      return v1::Session::STATE_RESTORING;
    case SessionState::kDecoding:
      return v1::Session::STATE_DECODING;
  }
  return v1::Session::STATE_UNSPECIFIED;
}

// Nothing when nothing was compared.
std::optional<v1::PredictionHistogram> HistogramToProto(const PredictionHistogram& predictions) {
  const auto& counts = predictions.counts();
  if (std::ranges::count(counts, 0) == std::ssize(counts)) return std::nullopt;
  v1::PredictionHistogram proto;
  const auto& bounds = PredictionHistogram::kUpperBounds;
  proto.mutable_upper_bounds()->Add(bounds.begin(), bounds.end());
  proto.mutable_counts()->Add(counts.begin(), counts.end());
  return proto;
}

v1::TierStats ToProto(const TierStats& stats) {
  v1::TierStats proto;
  proto.set_tier(ToProto(stats.tier));
  proto.set_capacity_blocks(stats.capacity_blocks);
  proto.set_used_blocks(stats.used_blocks);
  proto.set_held_blocks(stats.held_blocks);
  proto.set_bytes_read(stats.bytes_read);
  proto.set_bytes_written(stats.bytes_written);
  proto.set_evictions(stats.evictions);
  proto.set_bandwidth_bytes_per_second(stats.bandwidth);
  if (stats.latency.count() > 0) *proto.mutable_latency() = DurationToProto(stats.latency);
  if (auto loads = HistogramToProto(stats.loads)) *proto.mutable_load_predictions() = *loads;
  return proto;
}

// The enumerators of both sides come in the same order.
v1::RestoreReport::Execution ToProto(Execution execution) {
  return static_cast<v1::RestoreReport::Execution>(v1::RestoreReport::EXECUTION_NONE +
                                                   static_cast<int>(execution));
}

v1::BlockDecision::Verdict ToProto(BlockFate fate) {
  return static_cast<v1::BlockDecision::Verdict>(v1::BlockDecision::VERDICT_KEEP +
                                                 static_cast<int>(fate));
}

google::protobuf::Duration SecondsToProto(double seconds) {
  return DurationToProto(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
}

// Kinds that occurred.
void RestoresToProto(const RestoreCounts& counts, v1::CacheStats& proto) {
  for (size_t i = 0; i < counts.by_execution.size(); ++i) {
    const RestoreCounts::Executed& executed = counts.by_execution[i];
    if (executed.restores == 0) continue;
    v1::RestoreStats& stats = *proto.add_restores();
    stats.set_execution(ToProto(static_cast<Execution>(i)));
    stats.set_restore_count(executed.restores);
    *stats.mutable_predicted_time() = DurationToProto(executed.predicted);
    *stats.mutable_actual_time() = DurationToProto(executed.actual);
  }
  for (size_t i = 0; i < counts.blocks.size(); ++i) {
    if (counts.blocks[i] == 0) continue;
    v1::RestoredBlocks& blocks = *proto.add_restored_blocks();
    blocks.set_verdict(ToProto(static_cast<BlockFate>(i)));
    blocks.set_block_count(counts.blocks[i]);
  }
  if (auto restores = HistogramToProto(counts.restores)) {
    *proto.mutable_restore_predictions() = *restores;
  }
  if (auto passes = HistogramToProto(counts.passes)) *proto.mutable_pass_predictions() = *passes;
}

void LogprobToProto(const TokenLogprob& logprob, v1::TokenLogprob* proto) {
  proto->set_token_id(logprob.token_id);
  proto->set_logprob(logprob.logprob);
  for (const TokenLogprob& top : logprob.top) LogprobToProto(top, proto->add_top());
}

void ExpirationToProto(const Expiration& expiration, v1::Session& proto) {
  if (const auto* time = std::get_if<Clock::Wall>(&expiration)) {
    *proto.mutable_expire_time() = TimeToProto(*time);
  } else if (const auto* ttl = std::get_if<std::chrono::nanoseconds>(&expiration)) {
    *proto.mutable_ttl() = DurationToProto(*ttl);
  }
}

// What the messages of both streams have in common.
template <class Response>
Response StreamToProto(StreamUpdate update, const StreamEnd* end) {
  Response proto;
  proto.mutable_token_ids()->Add(update.token_ids.begin(), update.token_ids.end());
  proto.set_text(std::move(update.text));
  for (const TokenLogprob& logprob : update.logprobs) {
    LogprobToProto(logprob, proto.add_logprobs());
  }
  if (end == nullptr) return proto;
  proto.set_finish_reason(ToProto(end->finish_reason));
  *proto.mutable_usage() = ToProto(end->usage);
  if (end->stop_token_id) proto.set_stop_token_id(*end->stop_token_id);
  if (end->stop_string) proto.set_stop_string(*end->stop_string);
  return proto;
}

}  // namespace

v1::Tier ToProto(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return v1::TIER_DEVICE;
    case Tier::kHost:
      return v1::TIER_HOST;
    case Tier::kDisk:
      return v1::TIER_DISK;
    case Tier::kRemote:
      return v1::TIER_REMOTE;
    case Tier::kAbsent:
      return v1::TIER_ABSENT;
  }
  return v1::TIER_UNSPECIFIED;
}

v1::SamplingParams ToProto(const SamplingParams& params) {
  v1::SamplingParams proto;
  if (params.temperature) proto.set_temperature(*params.temperature);
  if (params.top_p) proto.set_top_p(*params.top_p);
  if (params.top_k) proto.set_top_k(*params.top_k);
  if (params.min_p) proto.set_min_p(*params.min_p);
  if (params.repetition_penalty) proto.set_repetition_penalty(*params.repetition_penalty);
  if (params.presence_penalty) proto.set_presence_penalty(*params.presence_penalty);
  if (params.frequency_penalty) proto.set_frequency_penalty(*params.frequency_penalty);
  if (params.seed) proto.set_seed(*params.seed);
  for (const std::string& stop : params.stop) proto.add_stop(stop);
  proto.mutable_stop_token_ids()->Add(params.stop_token_ids.begin(), params.stop_token_ids.end());
  proto.set_ignore_eos(params.ignore_eos);
  for (const auto& [id, bias] : params.logit_bias) (*proto.mutable_logit_bias())[id] = bias;
  if (params.logprobs) proto.set_logprobs(*params.logprobs);
  return proto;
}

v1::Session ToProto(const SessionInfo& session) {
  const SessionSettings& settings = session.settings;
  v1::Session proto;
  proto.set_name(SessionName(session.id));
  proto.set_display_name(settings.display_name);
  proto.set_token_count(session.token_count);
  *proto.mutable_create_time() = TimeToProto(session.create_time);
  *proto.mutable_update_time() = TimeToProto(session.update_time);
  ExpirationToProto(settings.expiration, proto);
  if (session.expire_time) *proto.mutable_next_expire_time() = TimeToProto(*session.expire_time);
  proto.set_priority(settings.priority);
  *proto.mutable_sampling() = ToProto(settings.sampling);
  proto.set_state(ToProto(session.state));
  v1::Residency& residency = *proto.mutable_residency();
  residency.set_device_tokens(session.residency.device_tokens);
  residency.set_host_tokens(session.residency.host_tokens);
  residency.set_disk_tokens(session.residency.disk_tokens);
  residency.set_remote_tokens(session.residency.remote_tokens);
  residency.set_absent_tokens(session.residency.absent_tokens);
  residency.set_tail_tokens(session.residency.tail_tokens);
  if (!session.parent_id.empty()) proto.set_parent(SessionName(session.parent_id));
  proto.set_etag(session.etag);
  proto.set_pinned(settings.pinned);
  proto.mutable_annotations()->insert(settings.annotations.begin(), settings.annotations.end());
  proto.set_cache_salt(session.cache_salt);
  return proto;
}

v1::ListSessionsResponse ToProto(const SessionPage& page) {
  v1::ListSessionsResponse proto;
  for (const SessionInfo& session : page.sessions) *proto.add_sessions() = ToProto(session);
  proto.set_next_page_token(page.next_page_token);
  return proto;
}

v1::AppendContentResponse ToProto(const AppendResult& result) {
  v1::AppendContentResponse proto;
  proto.set_token_count(result.token_count);
  proto.set_appended_token_count(result.appended_token_count);
  return proto;
}

v1::ReadTokensResponse ToProto(TokenRange range) {
  v1::ReadTokensResponse proto;
  proto.set_position(range.position);
  proto.mutable_token_ids()->Add(range.token_ids.begin(), range.token_ids.end());
  proto.set_text(std::move(range.text));
  return proto;
}

v1::Usage ToProto(const Usage& usage) {
  v1::Usage proto;
  proto.set_prompt_tokens(usage.prompt_tokens);
  proto.set_completion_tokens(usage.completion_tokens);
  proto.set_device_tokens(usage.device_tokens);
  proto.set_host_tokens(usage.host_tokens);
  proto.set_disk_tokens(usage.disk_tokens);
  proto.set_remote_tokens(usage.remote_tokens);
  proto.set_recomputed_tokens(usage.recomputed_tokens);
  proto.set_new_tokens(usage.new_tokens);
  *proto.mutable_queue_time() = DurationToProto(usage.queue_time);
  *proto.mutable_restore_time() = DurationToProto(usage.restore_time);
  *proto.mutable_first_token_time() = DurationToProto(usage.first_token_time);
  *proto.mutable_decode_time() = DurationToProto(usage.decode_time);
  proto.set_seed(usage.seed);
  proto.set_cached_tokens(usage.device_tokens + usage.host_tokens + usage.disk_tokens +
                          usage.remote_tokens);
  return proto;
}

v1::LookupPrefixResponse PrefixToProto(const Residency& residency) {
  v1::LookupPrefixResponse proto;
  proto.set_token_count(residency.device_tokens + residency.host_tokens + residency.disk_tokens +
                        residency.remote_tokens + residency.absent_tokens + residency.tail_tokens);
  proto.set_device_tokens(residency.device_tokens);
  proto.set_host_tokens(residency.host_tokens);
  proto.set_disk_tokens(residency.disk_tokens);
  proto.set_remote_tokens(residency.remote_tokens);
  return proto;
}

v1::RestoreReport ToProto(const RestoreReport& report) {
  v1::RestoreReport proto;
  proto.set_execution(ToProto(report.execution));
  proto.set_no_wave(static_cast<v1::RestoreReport::NoWave>(report.no_wave));  // in the same order
  proto.set_block_tokens(static_cast<int32_t>(report.block_tokens));
  proto.set_token_count(static_cast<int64_t>(report.token_count));
  proto.set_computed_tokens(static_cast<int64_t>(report.computed_count));
  for (size_t i = 0; i < report.blocks.size(); ++i) {
    const BlockReport& block = report.blocks[i];
    v1::BlockDecision& decision = *proto.add_blocks();
    decision.set_first_position(static_cast<int64_t>(i) * report.block_tokens);
    decision.set_tier(ToProto(block.tier));
    decision.set_verdict(ToProto(block.fate));
    if (block.reload_s) *decision.mutable_reload_price() = SecondsToProto(*block.reload_s);
    if (block.recompute_s) *decision.mutable_recompute_price() = SecondsToProto(*block.recompute_s);
    if (block.actual_time) *decision.mutable_actual_time() = DurationToProto(*block.actual_time);
  }
  *proto.mutable_predicted_time() = SecondsToProto(report.predicted_s);
  *proto.mutable_predicted_load_all_time() = SecondsToProto(report.load_all_s);
  *proto.mutable_predicted_recompute_all_time() = SecondsToProto(report.recompute_all_s);
  if (report.actual_time) *proto.mutable_actual_time() = DurationToProto(*report.actual_time);
  *proto.mutable_planning_time() = DurationToProto(report.planning_time);
  *proto.mutable_decided_at() = TimeToProto(report.decided_at);
  return proto;
}

v1::CacheStats ToProto(const EngineStats& stats) {
  v1::CacheStats proto;
  for (const TierStats& tier : stats.tiers) *proto.add_tiers() = ToProto(tier);
  proto.set_session_count(stats.session_count);
  proto.set_running_count(stats.running_count);
  proto.set_waiting_count(stats.waiting_count);
  proto.set_blocks_reloaded(stats.blocks_reloaded);
  proto.set_blocks_recomputed(stats.blocks_recomputed);
  proto.set_blocks_corrupt(stats.blocks_corrupt);
  proto.set_segments_foreign(stats.segments_foreign);
  proto.set_preemptions(stats.preemptions);
  proto.set_steps(stats.steps);
  *proto.mutable_step_time() = DurationToProto(stats.step_time);
  *proto.mutable_forward_time() = DurationToProto(stats.forward_time);
  proto.set_session_commits(stats.session_commits);
  proto.set_session_commits_failed(stats.session_commits_failed);
  RestoresToProto(stats.restores, proto);
  return proto;
}

v1::Model ToProto(const ModelInfo& model) {
  v1::Model proto;
  proto.set_name(model.name);
  proto.set_architecture(model.architecture);
  proto.set_parameter_count(model.parameter_count);
  proto.set_context_length(model.context_length);
  proto.set_vocabulary_size(model.vocabulary_size);
  proto.set_fingerprint(model.fingerprint);
  proto.set_backend(model.backend);
  proto.set_arithmetic(model.arithmetic);
  v1::KvShape& kv = *proto.mutable_kv();
  kv.set_layer_count(model.layer_count);
  kv.set_kv_head_count(model.kv_head_count);
  kv.set_head_dim(model.head_dim);
  kv.set_dtype(model.kv_type);
  kv.set_block_tokens(model.block_tokens);
  kv.set_bytes_per_token(model.bytes_per_token);
  kv.set_bytes_per_block(model.bytes_per_block);
  proto.mutable_end_token_ids()->Add(model.end_token_ids.begin(), model.end_token_ids.end());
  return proto;
}

v1::DecodeResponse DecodeToProto(StreamUpdate update, const StreamEnd* end) {
  const int64_t position = update.position;
  auto proto = StreamToProto<v1::DecodeResponse>(std::move(update), end);
  proto.set_position(position);
  return proto;
}

v1::GenerateResponse GenerateToProto(StreamUpdate update, const StreamEnd* end) {
  return StreamToProto<v1::GenerateResponse>(std::move(update), end);
}

}  // namespace cairn
