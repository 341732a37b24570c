// The world of a simulation and what must be true in it. engine_simulation_clients.cc has what
// clients do.
#include "tests/engine_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cairn {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kDrainTicksMax = 2000;

}  // namespace

SimulationCounts& SimulationCounts::operator+=(const SimulationCounts& other) {
  steps += other.steps;
  preemptions += other.preemptions;
  ended_ok += other.ended_ok;
  probes += other.probes;
  bad_rows += other.bad_rows;
  expired += other.expired;
  pauses += other.pauses;
  compared_blocks += other.compared_blocks;
  reloaded_tokens += other.reloaded_tokens;
  stall_ticks_max = std::max(stall_ticks_max, other.stall_ticks_max);
  for (const auto& [code, count] : other.failed) failed[code] += count;
  for (const auto& [code, count] : other.refused) refused[code] += count;
  return *this;
}

void SimulationCounts::Print() const {
  std::printf(
      "%ld steps, %ld preemptions, %ld ended well, longest wait %ld ticks, %ld blocks compared, "
      "%ld tokens reloaded, %ld rows spoilt\n",
      steps, preemptions, ended_ok, stall_ticks_max, compared_blocks, reloaded_tokens, bad_rows);
}

Simulation::Simulation(uint64_t seed, const SimulatedWorld& world, LoneDecoder& lone)
    : rng_(seed),
      lone_(lone),
      config_(MakeConfig()),
      device_blocks_(static_cast<uint32_t>(6 + rng_.Below(world.device_blocks_max - 5))),
      host_blocks_(world.has_host_pool ? static_cast<uint32_t>(4 + rng_.Below(25)) : 0) {
  EngineParts parts = MakeHookedEngine({.model_path = world.model_path,
                                        .device_blocks = device_blocks_,
                                        .host_blocks = host_blocks_,
                                        .config = config_,
                                        .hooks = MakeHooks(),
                                        .make_backend = world.make_backend},
                                       clock_);
  blocks_ = parts.blocks.get();
  reader_stream_ = *parts.model->device().NewStream(StreamUse::kCopy);
  fingerprint_ = parts.fingerprint;
  core_ = std::make_unique<EngineCore>(std::move(parts), config_, clock_, seed);
}

Simulation::~Simulation() = default;

EngineConfig Simulation::MakeConfig() {
  EngineConfig config;
  config.context_length = kContextLength;
  config.concurrent_max = static_cast<uint32_t>(1 + rng_.Below(6));
  config.prefill_chunk = static_cast<uint32_t>(16 + rng_.Below(48));
  config.waiting_max = static_cast<uint32_t>(1 + rng_.Below(6));
  config.session_count_max = 8;
  if (rng_.Chance(0.3)) config.session_tokens_max = 500;
  config.max_tokens_default = 20;
  config.paused_max = milliseconds(20);
  return config;
}

OpsHooks Simulation::MakeHooks() {
  OpsHooks hooks;
  hooks.on_pass = [this](uint32_t) {
    clock_.Advance(rng_.Chance(0.01) ? microseconds(500'000) : microseconds(rng_.Below(2000)));
  };
  hooks.on_logits = [this](std::span<float> logits, uint32_t row_count) {
    if (!rng_.Chance(0.005)) return;
    const size_t width = logits.size() / row_count;
    std::ranges::fill(logits.subspan(rng_.Below(row_count) * width, width), NAN);
    ++bad_rows_open_;
    ++counts_.bad_rows;
  };
  return hooks;
}

void Simulation::Run(int tick_count) {
  for (int i = 0; i < tick_count && !testing::Test::HasFailure(); ++i) {
    Tick(true);
    if (rng_.Chance(0.005)) Drain();
  }
  if (rng_.Chance(0.3)) {  // the process is told to stop
    for (auto& [id, stream] : streams_) stream.must_end_with = Code::kUnavailable;
    core_->CancelAll(Status(Code::kUnavailable, "shutting down"));
    Harvest();
  }
  Drain();
  const EngineStats stats = *core_->GetStats();
  counts_.steps = stats.steps;
  counts_.preemptions = stats.preemptions;
}

void Simulation::Tick(bool clients_act) {
  ++tick_;
  PassTime();
  for (uint64_t i = clients_act ? rng_.Below(3) : 0; i > 0; --i) {
    ActOnce();
    Harvest();
  }
  ExpireDeadlines();
  ReadersRead();
  const Clock::Monotonic step_began = clock_.Now();
  core_->Step();
  Harvest();
  CheckWorld();
  CheckProgress();
  CheckPaused(step_began);
}

// A session goes when its time has come, unless it slides and is in use.
void Simulation::PassTime() {
  const SessionPage before = *core_->ListSessions({.page_size = 1000});
  clock_.Advance(rng_.Chance(0.02) ? milliseconds(rng_.Below(5000))
                                   : microseconds(500 + rng_.Below(2500)));
  core_->ExpireSessions();
  for (const SessionInfo& info : before.sessions) {
    const bool due = info.expire_time && *info.expire_time <= clock_.WallNow();
    const bool slides = std::holds_alternative<std::chrono::nanoseconds>(info.settings.expiration);
    const bool goes = due && !(slides && info.state != SessionState::kIdle);
    ExpectCode(core_->GetSession(info.id).status(), goes ? Code::kNotFound : Code::kOk, "expiry");
    if (!goes) continue;
    ++counts_.expired;
    if (Stream* stream = StreamOf(info.id)) stream->must_end_with = Code::kNotFound;
    sessions_.erase(info.id);
  }
  Harvest();
}

void Simulation::ExpireDeadlines() {
  for (auto& [id, stream] : streams_) {
    if (stream.deadline && *stream.deadline <= clock_.Now()) {
      EndStream(stream, Code::kDeadlineExceeded);
    }
  }
  Harvest();
}

void Simulation::ReadersRead() {
  for (auto& [id, stream] : streams_) {
    if (stream.reader->Read()) core_->ResumeStream(id);
  }
  if (rng_.Chance(0.05)) core_->ResumeStream(SequenceId(rng_.Below(next_id_ + 1) + 1'000'000));
}

// No new work: what runs comes to its end, but for those that nobody reads. Then nothing is left.
void Simulation::Drain() {
  for (int tick = 0; core_->stream_count() > 0; ++tick) {
    if (testing::Test::HasFailure()) return;
    ASSERT_LT(tick, kDrainTicksMax) << "the engine does not come to rest";
    for (auto& [id, stream] : streams_) {
      if (stream.reader->is_dead()) EndStream(stream, Code::kCancelled);
    }
    Harvest();
    Tick(false);
  }
  EXPECT_TRUE(streams_.empty());
  EXPECT_FALSE(core_->HasWork());
  EXPECT_FALSE(core_->Step());
  CheckBlocks();
  for (const auto& [id, tokens] : sessions_) {
    ExpectCode(core_->UpdateSession({.id = id, .patch = {.pinned = false}}).status(), Code::kOk,
               "unpin");
  }
  EXPECT_EQ(core_->GetStats()->tiers[0].held_blocks, 0);
}

// Takes what streams have said since the last time into the model, and sees ended ones off.
void Simulation::Harvest() {
  int64_t bad_ends = 0;
  for (auto it = streams_.begin(); it != streams_.end();) {
    Stream& stream = it->second;
    TakeTokens(stream);
    if (!stream.reader->end) {
      EXPECT_EQ(stream.reader->updates_while_full, 0) << "a full reader hears on";
      ++it;
      continue;
    }
    CheckEnd(stream);
    bad_ends += stream.reader->end->status.code() == Code::kInternal;
    last_progress_ = tick_;
    it = streams_.erase(it);
  }
  EXPECT_EQ(bad_ends, std::exchange(bad_rows_open_, 0)) << "streams that the model failed on";
}

void Simulation::TakeTokens(Stream& stream) {
  const std::vector<uint32_t> news = stream.reader->TakeNews();
  if (!news.empty()) last_progress_ = tick_;
  const auto session = sessions_.find(stream.session);
  if (session == sessions_.end()) return;
  const bool ends_well = stream.reader->end && stream.reader->end->status.ok();
  if (!news.empty() || ends_well) {
    const std::vector<uint32_t> content = std::exchange(stream.content, {});
    session->second.insert(session->second.end(), content.begin(), content.end());
  }
  std::vector<uint32_t>& tokens = session->second;
  size_t position = stream.start + stream.reader->tokens.size() - news.size();
  for (const uint32_t token : news) {
    if (position < tokens.size()) {
      EXPECT_EQ(tokens[position], token) << "replayed";
    } else {
      tokens.push_back(token);
    }
    ++position;
  }
}

void Simulation::CheckEnd(const Stream& stream) {
  const StreamEnd& end = *stream.reader->end;
  const size_t replay_end = std::min(stream.context.size(), stream.end_count);
  std::vector<uint32_t> expected(stream.context.begin() + stream.start,
                                 stream.context.begin() + replay_end);
  const LoneDecoder::Answer answer =
      lone_.Decode(stream.context, stream.sampling, *stream.sampling.seed, stream.end_count);
  expected.insert(expected.end(), answer.tokens.begin(), answer.tokens.end());
  if (end.status.ok()) {
    ++counts_.ended_ok;
    EXPECT_FALSE(stream.must_end_with);
    EXPECT_EQ(stream.reader->tokens, expected);
    EXPECT_EQ(end.finish_reason, answer.finish_reason);
  } else {
    ++counts_.failed[end.status.code()];
    ASSERT_LE(stream.reader->tokens.size(), expected.size());
    expected.resize(stream.reader->tokens.size());
    EXPECT_EQ(stream.reader->tokens, expected) << end.status.ToString();
    EXPECT_TRUE(MayFail(stream, end.status)) << end.status.ToString();
  }
  const Usage& usage = end.usage;
  EXPECT_EQ(usage.completion_tokens, static_cast<int64_t>(stream.reader->tokens.size()));
  EXPECT_EQ(usage.prompt_tokens,
            usage.device_tokens + usage.host_tokens + usage.recomputed_tokens + usage.new_tokens);
  counts_.reloaded_tokens += usage.host_tokens;
}

// Whether a stream may fail so: because something has ended it, because of a bound that it has come
// to, or because of spoilt logits, which Harvest counts.
bool Simulation::MayFail(const Stream& stream, const Status& status) {
  if (stream.must_end_with) return status.code() == *stream.must_end_with;
  if (status.code() == Code::kInternal) return true;
  if (status.code() != Code::kResourceExhausted) return false;
  constexpr size_t kHeldBackMax = 4;  // tokens that may be the beginning of a stop string
  const size_t told_until = stream.start + stream.reader->tokens.size();
  const size_t reached = std::max(stream.context.size(), told_until) + kHeldBackMax;
  const bool outgrows_pool = ContextBlocks::BlocksFor(reached, 16) > device_blocks_;
  const size_t wanted = stream.content.size() + kHeldBackMax;
  return outgrows_pool || TotalTokens() + wanted > config_.session_tokens_max;
}

void Simulation::CheckWorld() {
  core_->CheckInvariants();
  const EngineStats stats = *core_->GetStats();
  EXPECT_EQ(stats.running_count + stats.waiting_count, static_cast<int64_t>(core_->stream_count()));
  EXPECT_LE(stats.running_count, config_.concurrent_max);
  bool pinned = false;
  const SessionPage page = *core_->ListSessions({.page_size = 1000});
  ASSERT_EQ(page.sessions.size(), sessions_.size());
  for (const SessionInfo& info : page.sessions) {
    ASSERT_TRUE(sessions_.contains(info.id)) << info.id;
    ASSERT_EQ(core_->ReadTokens(info.id, 0, 0)->token_ids, sessions_.at(info.id)) << info.id;
    const Residency& residency = info.residency;
    EXPECT_EQ(residency.device_tokens + residency.host_tokens + residency.absent_tokens +
                  residency.tail_tokens,
              info.token_count);
    pinned = pinned || info.settings.pinned;
  }
  if (core_->stream_count() == 0 && !pinned) {
    EXPECT_EQ(stats.tiers[0].held_blocks, 0) << "held by nobody";
  }
}

void Simulation::CheckProgress() {
  bool wanted = false;
  for (const auto& [id, stream] : streams_) {
    wanted = wanted || !stream.reader->is_full();
    if (!stream.first_token_by || !stream.reader->tokens.empty()) continue;
    EXPECT_LT(tick_, *stream.first_token_by) << "a short request waits for its first token";
  }
  if (!wanted) last_progress_ = tick_;
  counts_.stall_ticks_max = std::max(counts_.stall_ticks_max, tick_ - last_progress_);
  EXPECT_LE(tick_ - last_progress_, kStallTicksMax) << "nobody gets on";
}

void Simulation::CheckPaused(Clock::Monotonic step_began) {
  for (auto& [id, stream] : streams_) {
    if (stream.pauses != stream.reader->pauses) {
      counts_.pauses += stream.reader->pauses - stream.pauses;
      stream.pauses = stream.reader->pauses;
      stream.paused_since = clock_.Now();
    }
    if (!stream.reader->is_full() || stream.session.empty()) continue;
    if (step_began - stream.paused_since <= config_.paused_max) continue;
    EXPECT_EQ(core_->GetSession(stream.session)->state, SessionState::kQueued)
        << "nobody reads it, and it holds its place";
  }
}

// The bytes of every block that is shared are those that a lone pass writes.
void Simulation::CheckBlocks() {
  for (const auto& [id, tokens] : sessions_) {
    if (tokens.empty()) continue;
    const BlockKey root = RootKey(fingerprint_, blocks_->layout().Id(), salts_.at(id));
    const std::vector<Hold> holds = blocks_->Match(root, tokens, 50);
    const auto is_loading = [](const Hold& hold) { return hold && hold.is_loading(); };
    while (std::ranges::any_of(holds, is_loading)) blocks_->Poll();
    const auto expected = lone_.Blocks(tokens);
    for (size_t i = 0; i < holds.size(); ++i) {
      if (!holds[i]) continue;
      ASSERT_TRUE(holds[i].is_ready()) << "block " << i << " of " << id << " did not come";
      std::vector<std::byte> bytes(expected[i].size());
      reader_stream_->Wait(holds[i].ready());
      reader_stream_->Copy(bytes.data(), holds[i].address(), bytes.size());
      ASSERT_TRUE(reader_stream_->Synchronize().ok());
      EXPECT_EQ(bytes, expected[i]) << "block " << i << " of " << id;
      ++counts_.compared_blocks;
    }
  }
}

void Simulation::ExpectCode(const Status& status, Code expected, const char* what) {
  EXPECT_EQ(status.code(), expected) << what << ": " << status.ToString();
  if (expected != Code::kOk) ++counts_.refused[expected];
}

Simulation::Stream* Simulation::StreamOf(const std::string& session) {
  for (auto& [id, stream] : streams_) {
    if (stream.session == session) return &stream;
  }
  return nullptr;
}

uint64_t Simulation::TotalTokens() const {
  uint64_t total = 0;
  for (const auto& [id, tokens] : sessions_) total += tokens.size();
  return total;
}

}  // namespace cairn
