// Untrusted bytes as each request of the API, through parsing and validation. What is accepted must
// satisfy what the engine relies on, and errors must name their field and fit a call's trailers.
//
// The first byte of the input chooses the request.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "service/error_details.h"
#include "service/request_bytes.h"
#include "service/wire.h"

namespace cairn {
namespace {

constexpr size_t kFieldsMax = 64;

void CheckError(const Status& status) {
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(!status.message().empty());
  const google::rpc::Status error =
      ErrorDetails(status, {.used = status.message(), .made = status.message()});
  CHECK(error.ByteSizeLong() < 8000);  // gRPC's limit of a call's metadata is 8 KiB
  google::rpc::Status again;
  CHECK(again.ParseFromString(error.SerializeAsString()));
}

bool IsValidId(const std::string& id) { return !id.empty() && id.size() <= 63; }

void CheckParsed(const SessionRef& session) { CHECK(IsValidId(session.id)); }
void CheckParsed(const ExplainRequest& explain) { CHECK(IsValidId(explain.id)); }
void CheckParsed(const CreateSessionRequest& create) {
  CHECK(create.id.empty() || IsValidId(create.id));
}
void CheckParsed(const ListSessionsRequest& list) {
  CHECK(list.page_size >= 0 && list.page_size <= 1000);
}
void CheckParsed(const UpdateSessionRequest& update) { CHECK(IsValidId(update.id)); }
void CheckParsed(const ForkSessionRequest& fork) {
  CHECK(IsValidId(fork.id));
  CHECK(fork.token_count.value_or(0) >= 0);
}
void CheckParsed(const TruncateRequest& truncate) { CHECK(truncate.token_count >= 0); }
void CheckParsed(const AppendRequest& append) {
  CHECK(append.content.index() != 0);
  CHECK(append.expected_token_count.value_or(0) >= 0);
}
void CheckParsed(const DecodeRequest& decode) {
  CHECK(decode.start_position.value_or(0) >= 0);
  CHECK(decode.expected_token_count.value_or(0) >= 0);
}
void CheckParsed(const ReadTokensRequest& read) {
  CHECK(read.start_position >= 0 && read.token_count >= 0);
}
void CheckParsed(const SuspendRequest& suspend) { CHECK(suspend.tier != Tier::kDevice); }
void CheckParsed(const GenerateRequest& generate) {
  CHECK(generate.content.index() != 0);
  // Sampling survives the way back, but for NaNs, which are not equal to themselves.
  const v1::SamplingParams proto = ToProto(generate.sampling);
  CHECK(ToProto(FromProto(proto)).ByteSizeLong() == proto.ByteSizeLong());
}
void CheckParsed(const LookupRequest& lookup) { CHECK(lookup.content.index() != 0); }
void CheckParsed(const Content& content) { CHECK(content.index() != 0); }
void CheckParsed(const std::optional<Tier>& tier) { CHECK(tier != Tier::kAbsent); }
void CheckParsed(const std::vector<uint32_t>&) {}

template <class Message>
void Try(std::string_view bytes) {
  Message message;
  const Status status = ParseMessage(bytes, kFieldsMax, message);
  if (!status.ok()) return CheckError(status);
  // Fields are counted so that memory has a bound: the largest object, a session, has some hundred
  // bytes, and strings are at most twice as large as what they hold.
  CHECK(message.SpaceUsedLong() <= kFieldsMax * 1024 + 2 * bytes.size());
  const auto parsed = FromProto(message);
  if (!parsed.ok()) return CheckError(parsed.status());
  CheckParsed(*parsed);
}

constexpr void (*kRequests[])(std::string_view) = {
    Try<v1::CreateSessionRequest>,   Try<v1::GetSessionRequest>,
    Try<v1::ListSessionsRequest>,    Try<v1::UpdateSessionRequest>,
    Try<v1::DeleteSessionRequest>,   Try<v1::ForkSessionRequest>,
    Try<v1::TruncateSessionRequest>, Try<v1::AppendContentRequest>,
    Try<v1::DecodeRequest>,          Try<v1::ReadTokensRequest>,
    Try<v1::SuspendSessionRequest>,  Try<v1::PrefetchSessionRequest>,
    Try<v1::GenerateRequest>,        Try<v1::TokenizeRequest>,
    Try<v1::DetokenizeRequest>,      Try<v1::LookupPrefixRequest>,
    Try<v1::ExplainRestoreRequest>,  Try<v1::ClearCacheRequest>,
};

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // it reports every string that is not UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  cairn::kRequests[data[0] % std::size(cairn::kRequests)](bytes);
  return 0;
}
