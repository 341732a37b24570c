// What the clients of a simulation do. Every call may be refused, and the model says with what.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/engine_harness.h"
#include "tests/engine_simulation.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr uint32_t kBlockTokens = 16;

}  // namespace

const std::vector<Simulation::Act> Simulation::kActs = {
    {12, &Simulation::StartDecode},  {6, &Simulation::StartGenerate}, {4, &Simulation::StartProbe},
    {5, &Simulation::CreateSession}, {4, &Simulation::Append},        {3, &Simulation::Fork},
    {3, &Simulation::Truncate},      {1, &Simulation::Delete},        {2, &Simulation::Suspend},
    {2, &Simulation::Prefetch},      {3, &Simulation::Update},        {3, &Simulation::CancelOne},
    {1, &Simulation::ClearCache},    {3, &Simulation::Look},
};

void Simulation::ActOnce() {
  uint64_t total = 0;
  for (const Act& act : kActs) total += act.weight;
  uint64_t draw = rng_.Below(total);
  for (const Act& act : kActs) {
    if (draw < act.weight) return (this->*act.act)();
    draw -= act.weight;
  }
}

// Contexts begin alike now and then, so that blocks are shared while they are in use.
std::vector<uint32_t> Simulation::Prompt(size_t token_max) {
  const size_t count = 1 + rng_.Below(token_max);
  std::vector<uint32_t> tokens = RandomTokens(1 + rng_.Below(3), count);
  const size_t own_count = rng_.Chance(0.5) ? rng_.Below(count + 1) : 0;
  const std::vector<uint32_t> own = RandomTokens(rng_.Next(), own_count);
  std::copy(own.begin(), own.end(), tokens.end() - static_cast<long>(own_count));
  return tokens;
}

// One that exists, mostly.
std::string Simulation::SomeSession() {
  if (sessions_.empty() || rng_.Chance(0.05)) return "s" + std::to_string(rng_.Below(12));
  auto at = sessions_.begin();
  std::advance(at, static_cast<long>(rng_.Below(sessions_.size())));
  return at->first;
}

Expiration Simulation::SomeExpiration() {
  if (rng_.Chance(0.5)) return std::monostate();
  const nanoseconds time = milliseconds(10 + rng_.Below(1000));
  if (rng_.Chance(0.6)) return time;
  return clock_.WallNow() + std::chrono::duration_cast<Clock::Wall::duration>(time);
}

SessionSettings Simulation::SomeSettings() {
  SessionSettings settings;
  settings.expiration = SomeExpiration();
  settings.priority = static_cast<int32_t>(10 * rng_.Below(10));
  settings.pinned = rng_.Chance(0.2);
  return settings;
}

EncodedContent Simulation::Encode(const std::vector<uint32_t>& tokens) {
  return *core_->encoder().Encode(tokens);
}

Code Simulation::StreamRefusal() const {
  const size_t places = size_t{config_.waiting_max} + config_.concurrent_max;
  return core_->stream_count() < places ? Code::kOk : Code::kResourceExhausted;
}

Code Simulation::AppendRefusal(const std::string& session, size_t count) const {
  if (sessions_.at(session).size() + count > kContextLength) return Code::kInvalidArgument;
  const bool fits = TotalTokens() + count <= config_.session_tokens_max;
  return fits ? Code::kOk : Code::kResourceExhausted;
}

Simulation::Stream Simulation::NewStream(SamplingParams sampling) {
  Stream stream{.id = SequenceId(next_id_++), .sampling = std::move(sampling)};
  if (rng_.Chance(0.6)) {
    stream.reader = std::make_shared<Reader>(SIZE_MAX, 1);
  } else {
    stream.reader = std::make_shared<Reader>(1 + rng_.Below(6), rng_.Below(4));
  }
  if (rng_.Chance(0.2)) stream.deadline = clock_.Now() + milliseconds(rng_.Below(200));
  return stream;
}

void Simulation::EndStream(Stream& stream, Code code) {
  if (stream.reader->end) return;
  stream.must_end_with = code;
  core_->CancelStream(stream.id, Status(code, "by the simulation"));
  EXPECT_TRUE(stream.reader->end) << "a cancelled stream has not ended";
}

void Simulation::CreateSession() {
  const std::string id = "s" + std::to_string(rng_.Below(12));
  const std::vector<uint32_t> tokens = rng_.Chance(0.8) ? Prompt(100) : std::vector<uint32_t>();
  CreateSessionRequest request{.id = id, .settings = SomeSettings()};
  if (rng_.Chance(0.2)) request.cache_salt = "salt";
  Code expected = Code::kOk;
  if (sessions_.contains(id)) {
    expected = Code::kAlreadyExists;
  } else if (sessions_.size() == config_.session_count_max ||
             TotalTokens() + tokens.size() > config_.session_tokens_max) {
    expected = Code::kResourceExhausted;
  }
  ExpectCode(core_->CreateSession(request, Encode(tokens)).status(), expected, "create");
  if (expected != Code::kOk) return;
  sessions_[id] = tokens;
  salts_[id] = request.cache_salt;
}

void Simulation::StartDecode() {
  DecodeRequest request{.id = SomeSession()};
  const std::vector<uint32_t> added = rng_.Chance(0.7) ? Prompt(60) : std::vector<uint32_t>();
  request.sampling = RandomSampling(rng_);
  request.max_tokens = rng_.Chance(0.05) ? 0 : static_cast<uint32_t>(1 + rng_.Below(40));
  const auto session = sessions_.find(request.id);
  const size_t old_count = session == sessions_.end() ? 0 : session->second.size();
  const size_t count = old_count + added.size();
  const bool stale = rng_.Chance(0.06);
  if (stale || rng_.Chance(0.3)) request.expected_token_count = old_count + stale;
  if (rng_.Chance(0.3)) request.start_position = rng_.Below(count + 2);
  const size_t start = static_cast<size_t>(request.start_position.value_or(count));
  Code expected = Code::kNotFound;
  if (session != sessions_.end()) {
    expected = StreamRefusal();
    if (expected == Code::kOk && StreamOf(request.id) != nullptr) expected = Code::kAborted;
    if (expected == Code::kOk && (count == 0 || start > count)) expected = Code::kInvalidArgument;
    if (expected == Code::kOk && stale) expected = Code::kAborted;
    if (expected == Code::kOk) expected = AppendRefusal(request.id, added.size());
  }
  Stream stream = NewStream(request.sampling);
  core_->Decode({stream.id, stream.reader, clock_.Now()}, request, Encode(added));
  if (expected != Code::kOk) {
    ASSERT_TRUE(stream.reader->end);
    return ExpectCode(stream.reader->end->status, expected, "decode");
  }
  stream.session = request.id;
  stream.context = session->second;
  stream.context.insert(stream.context.end(), added.begin(), added.end());
  stream.content = added;
  stream.start = start;
  const uint32_t max_tokens = request.max_tokens == 0 ? 20 : request.max_tokens;
  stream.end_count = std::min<size_t>(start + max_tokens, kContextLength);
  streams_.emplace(stream.id, std::move(stream));
}

void Simulation::StartGenerate() {
  GenerateRequest request;
  request.sampling = RandomSampling(rng_);
  request.max_tokens = static_cast<uint32_t>(1 + rng_.Below(40));
  request.priority = static_cast<int32_t>(10 * rng_.Below(10));
  if (rng_.Chance(0.2)) request.cache_salt = "salt";
  Stream stream = NewStream(request.sampling);
  stream.context = Prompt(200);
  stream.start = stream.context.size();
  stream.end_count = std::min<size_t>(stream.start + request.max_tokens, kContextLength);
  const Code expected = StreamRefusal();
  core_->Generate({stream.id, stream.reader, clock_.Now()}, request, Encode(stream.context));
  if (expected != Code::kOk) return ExpectCode(stream.reader->end->status, expected, "generate");
  streams_.emplace(stream.id, std::move(stream));
}

// A short request of the highest priority, for which there is a place.
void Simulation::StartProbe() {
  size_t taken = static_cast<size_t>(core_->GetStats()->running_count);
  for (const auto& [id, stream] : streams_) taken += stream.first_token_by.has_value();
  if (taken >= config_.concurrent_max || StreamRefusal() != Code::kOk) return;
  GenerateRequest request{.max_tokens = 1, .sampling = Greedy(), .priority = int32_t{kPriorityMax}};
  request.sampling.seed = 0;
  Stream stream = NewStream(request.sampling);
  stream.context = RandomTokens(rng_.Next(), 1 + rng_.Below(8));
  stream.start = stream.context.size();
  stream.end_count = stream.start + 1;
  stream.first_token_by = tick_ + (host_blocks_ == 0 ? 3 : kStallTicksMax);
  core_->Generate({stream.id, stream.reader, clock_.Now()}, request, Encode(stream.context));
  streams_.emplace(stream.id, std::move(stream));
  ++counts_.probes;
}

void Simulation::Append() {
  AppendRequest request{.id = SomeSession()};
  const std::vector<uint32_t> tokens = Prompt(50);
  Code expected = Code::kNotFound;
  if (sessions_.contains(request.id)) {
    const size_t count = sessions_.at(request.id).size();
    const bool stale = rng_.Chance(0.1);
    if (stale || rng_.Chance(0.3)) request.expected_token_count = count + stale;
    const bool aborted = StreamOf(request.id) != nullptr || stale;
    expected = aborted ? Code::kAborted : AppendRefusal(request.id, tokens.size());
  }
  const auto appended = core_->AppendContent(request, Encode(tokens));
  ExpectCode(appended.status(), expected, "append");
  if (expected != Code::kOk) return;
  std::vector<uint32_t>& session = sessions_.at(request.id);
  session.insert(session.end(), tokens.begin(), tokens.end());
  EXPECT_EQ(appended->token_count, static_cast<int64_t>(session.size()));
}

void Simulation::Fork() {
  ForkSessionRequest request{.id = SomeSession(), .new_id = "s" + std::to_string(rng_.Below(12))};
  const auto session = sessions_.find(request.id);
  Code expected = Code::kNotFound;
  size_t count = 0;
  if (session != sessions_.end()) {
    const size_t size = session->second.size();
    if (rng_.Chance(0.6)) request.token_count = rng_.Below(size + 2);
    count = static_cast<size_t>(request.token_count.value_or(size));
    expected = count > size ? Code::kInvalidArgument : Code::kOk;
    const bool full = TotalTokens() + count > config_.session_tokens_max;
    if (expected == Code::kOk && full) expected = Code::kResourceExhausted;
    if (expected == Code::kOk && sessions_.contains(request.new_id)) {
      expected = Code::kAlreadyExists;
    }
    if (expected == Code::kOk && sessions_.size() == config_.session_count_max) {
      expected = Code::kResourceExhausted;
    }
  }
  ExpectCode(core_->ForkSession(request).status(), expected, "fork");
  if (expected != Code::kOk) return;
  std::vector<uint32_t> tokens = session->second;
  tokens.resize(count);
  sessions_[request.new_id] = std::move(tokens);
  salts_[request.new_id] = salts_.at(request.id);
}

void Simulation::Truncate() {
  const std::string id = SomeSession();
  const auto session = sessions_.find(id);
  Code expected = Code::kNotFound;
  size_t count = 0;
  if (session != sessions_.end()) {
    count = rng_.Below(session->second.size() + 2);
    expected = count > session->second.size() ? Code::kInvalidArgument : Code::kOk;
    if (StreamOf(id) != nullptr) expected = Code::kAborted;
  }
  ExpectCode(core_->TruncateSession(id, static_cast<int64_t>(count)).status(), expected,
             "truncate");
  if (expected == Code::kOk) session->second.resize(count);
}

void Simulation::Delete() {
  const std::string id = SomeSession();
  Stream* const stream = StreamOf(id);
  if (stream != nullptr) stream->must_end_with = Code::kAborted;
  ExpectCode(core_->DeleteSession(id).status(),
             sessions_.contains(id) ? Code::kOk : Code::kNotFound, "delete");
  EXPECT_TRUE(stream == nullptr || stream->reader->end);
  sessions_.erase(id);
}

void Simulation::Suspend() {
  const std::string id = SomeSession();
  Code expected = sessions_.contains(id) ? Code::kOk : Code::kNotFound;
  if (StreamOf(id) != nullptr) expected = Code::kAborted;
  const Tier tier = rng_.Chance(0.8) ? Tier::kAbsent : Tier::kHost;
  const bool has_no_place = tier == Tier::kHost && host_blocks_ == 0 && expected != Code::kNotFound;
  if (has_no_place) expected = Code::kFailedPrecondition;
  ExpectCode(cairn::Suspend(*core_, id, tier).status(), expected, "suspend");
}

void Simulation::Prefetch() {
  const std::string id = SomeSession();
  ExpectCode(core_->PrefetchSession(id, SequenceId(next_id_++)).status(),
             sessions_.contains(id) ? Code::kOk : Code::kNotFound, "prefetch");
}

void Simulation::Update() {
  UpdateSessionRequest request{.id = SomeSession()};
  if (rng_.Chance(0.5)) request.patch.pinned = rng_.Chance(0.5);
  if (rng_.Chance(0.5)) request.patch.expiration = SomeExpiration();
  if (rng_.Chance(0.5)) request.patch.priority = static_cast<int32_t>(10 * rng_.Below(10));
  if (rng_.Chance(0.1)) request.etag = "stale";
  Code expected = request.etag.empty() ? Code::kOk : Code::kAborted;
  if (!sessions_.contains(request.id)) expected = Code::kNotFound;
  ExpectCode(core_->UpdateSession(request).status(), expected, "update");
}

void Simulation::CancelOne() {
  if (streams_.empty()) return;
  auto at = streams_.begin();
  std::advance(at, static_cast<long>(rng_.Below(streams_.size())));
  EndStream(at->second, Code::kCancelled);
  core_->CancelStream(at->first, Status(Code::kCancelled, "again"));
}

void Simulation::ClearCache() {
  ASSERT_TRUE(core_->ClearCache(std::nullopt).ok());
  const BlockStoreStats stats = blocks_->stats();
  const uint32_t moving = stats.busy + stats.in_flight;
  EXPECT_EQ(stats.device_used, stats.filling + stats.held_hot + moving);
  EXPECT_TRUE(moving == 0 || host_blocks_ > 0);
}

void Simulation::Look() {
  const std::vector<uint32_t> tokens = Prompt(200);
  const Result<Residency> residency = core_->LookupPrefix(Encode(tokens), "");
  ASSERT_TRUE(residency.ok());
  EXPECT_EQ(residency->device_tokens % kBlockTokens, 0);
  EXPECT_EQ(residency->tail_tokens, static_cast<int64_t>(tokens.size() % kBlockTokens));
  EXPECT_EQ(residency->device_tokens + residency->host_tokens + residency->absent_tokens +
                residency->tail_tokens,
            static_cast<int64_t>(tokens.size()));
}

}  // namespace cairn
