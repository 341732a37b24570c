// Between the messages of proto/cairn/v1 and the engine's types (engine/api.h).
//
// FromProto checks what the wire's types leave open: names ("sessions/{id}"), presence, signs,
// enum values, times, field masks. What depends on the model or on a session's state is the
// engine's to check. Errors are kInvalidArgument and name the field as the client wrote it.
// ToProto cannot fail. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cairn/v1/cache_service.pb.h"
#include "cairn/v1/common.pb.h"
#include "cairn/v1/decode_service.pb.h"
#include "cairn/v1/model_service.pb.h"
#include "cairn/v1/session_service.pb.h"
#include "engine/api.h"

namespace cairn {

// "sessions/" + id.
std::string SessionName(const std::string& id);

Result<SessionRef> FromProto(const v1::GetSessionRequest& request);
Result<SessionRef> FromProto(const v1::DeleteSessionRequest& request);
Result<SessionRef> FromProto(const v1::PrefetchSessionRequest& request);
Result<ExplainRequest> FromProto(const v1::ExplainRestoreRequest& request);

SamplingParams FromProto(const v1::SamplingParams& params);
Result<CreateSessionRequest> FromProto(const v1::CreateSessionRequest& request);
Result<ListSessionsRequest> FromProto(const v1::ListSessionsRequest& request);
Result<UpdateSessionRequest> FromProto(const v1::UpdateSessionRequest& request);
Result<ForkSessionRequest> FromProto(const v1::ForkSessionRequest& request);
Result<AppendRequest> FromProto(const v1::AppendContentRequest& request);
Result<DecodeRequest> FromProto(const v1::DecodeRequest& request);
Result<GenerateRequest> FromProto(const v1::GenerateRequest& request);

Result<TruncateRequest> FromProto(const v1::TruncateSessionRequest& request);

struct ReadTokensRequest {
  std::string id;
  int64_t start_position = 0;
  int64_t token_count = 0;  // 0: to the end
};
Result<ReadTokensRequest> FromProto(const v1::ReadTokensRequest& request);

Result<SuspendRequest> FromProto(const v1::SuspendSessionRequest& request);

struct LookupRequest {
  Content content;
  std::string cache_salt;
};
Result<LookupRequest> FromProto(const v1::LookupPrefixRequest& request);

// The tier to clear; nothing: every tier.
Result<std::optional<Tier>> FromProto(const v1::ClearCacheRequest& request);

Result<Content> FromProto(const v1::TokenizeRequest& request);
Result<std::vector<uint32_t>> FromProto(const v1::DetokenizeRequest& request);
Result<Done> FromProto(const v1::GetCacheStatsRequest& request);
Result<Done> FromProto(const v1::GetModelRequest& request);

v1::Tier ToProto(Tier tier);
v1::SamplingParams ToProto(const SamplingParams& params);
v1::Session ToProto(const SessionInfo& session);
v1::ListSessionsResponse ToProto(const SessionPage& page);
v1::AppendContentResponse ToProto(const AppendResult& result);
v1::ReadTokensResponse ToProto(TokenRange range);
v1::Usage ToProto(const Usage& usage);
v1::LookupPrefixResponse PrefixToProto(const Residency& residency);
v1::CacheStats ToProto(const EngineStats& stats);
v1::RestoreReport ToProto(const RestoreReport& report);
v1::Model ToProto(const ModelInfo& model);

// One message of a stream: an update and, on the last message, how the stream ended (else null).
v1::DecodeResponse DecodeToProto(StreamUpdate update, const StreamEnd* end);
v1::GenerateResponse GenerateToProto(StreamUpdate update, const StreamEnd* end);

}  // namespace cairn
