#include "engine/planned_restores.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

// What is gained by planning again is at most what drifts meanwhile.
constexpr std::chrono::milliseconds kRevisionInterval{20};
// A disk that is too slow to be used is tried so often, so that it is noticed when it is not.
constexpr std::chrono::seconds kProbeInterval{1};
// Of a channel that has not been used yet: as fast as there are, so it is used, and known then.
constexpr double kUnknownBytesPerSecond = 2e9;
constexpr double kUncertaintyMin = 0.03;  // of any prediction
constexpr double kUncertaintyMax = 0.25;

BlockSource SourceOf(Origin origin) {
  switch (origin) {
    case Origin::kResident:
      return BlockSource::kDevice;
    case Origin::kHost:
      return ThroughChannel(kHostChannel);
    case Origin::kDisk:
      return ThroughChannel(kDiskChannel);
    case Origin::kAbsent:
      return BlockSource::kAbsent;
  }
  CHECK(false);
}

// `own`: of the loads under way, those of the contexts that are planned.
RestoreChannel ChannelOf(const LoadFlow& flow, size_t block_bytes, uint32_t own) {
  const double unknown_s = static_cast<double>(block_bytes) / kUnknownBytesPerSecond;
  const double block_s = flow.block_s > 0 ? flow.block_s : unknown_s;
  return {.block_s = block_s,
          .backlog_s = block_s * (flow.under_way - std::min(own, flow.under_way))};
}

}  // namespace

PlannedRestores::PlannedRestores(const RestoreSettings& settings, const BlockStore& store,
                                 const Clock& clock)
    : settings_(settings), store_(store), clock_(clock) {
  if (settings.calibrated) passes_.emplace(*settings.calibrated);
}

std::optional<std::chrono::nanoseconds> PlannedRestores::revision_interval() const {
  const bool adapts = settings_.policy == RestorePolicy::kCairn ||
                      settings_.policy == RestorePolicy::kCake ||
                      settings_.policy == RestorePolicy::kWave;
  if (!adapts || !passes_) return std::nullopt;
  return kRevisionInterval;
}

void PlannedRestores::Learn(const PassSample& pass) {
  if (passes_) return passes_->Note(pass);
  if (pass.rows < store_.layout().block_tokens) return;  // says little of a restore
  first_passes_.push_back(pass);
  const Result<PassFit> fit = FitPasses(first_passes_);
  if (fit.ok()) passes_.emplace(*fit);
}

std::optional<PassCosts> PlannedRestores::pass_costs() const {
  if (!passes_) return std::nullopt;
  return passes_->costs();
}

RestorePolicy PlannedRestores::PolicyNow() const {
  const bool knows = passes_ || settings_.policy == RestorePolicy::kRecomputeAll;
  return knows ? settings_.policy : RestorePolicy::kLoadAll;
}

// Why no wave can be carried out now.
NoWave PlannedRestores::NoWaveFor(const RestoreView& view) const {
  if (!passes_) return NoWave::kCostsUnknown;
  if (view.is_ahead) return NoWave::kAhead;
  if (view.decode_rows > 0) return NoWave::kStreams;
  return store_.may_arrive_by_layer() ? NoWave::kNone : NoWave::kInPlace;
}

// Where a Wave was wanted and nothing was chosen: while nothing is known of passes, and where all
// that is missing, if anything is, was taken for new tokens.
void PlannedRestores::NoteNoWave(const RestoreView& view, RestorePlan& plan) const {
  if (settings_.policy != RestorePolicy::kWave) return;
  if (passes_ && plan.execution != Execution::kNone) return;
  const NoWave why = NoWaveFor(view);
  plan.no_wave = why != NoWave::kNone ? why : NoWave::kNothingToLoad;
}

void PlannedRestores::LookAtChannels(std::span<const RestoreView> views) {
  std::array<uint32_t, kRestoreChannels> own{};
  for (const RestoreView& view : views) {
    for (uint32_t c = 0; c < kRestoreChannels; ++c) own[c] += view.loading[c];
  }
  const size_t block_bytes = store_.layout().block_bytes();
  channels_[kHostChannel] = ChannelOf(store_.host_flow(), block_bytes, own[kHostChannel]);
  channels_[kDiskChannel] = ChannelOf(store_.disk_flow(), block_bytes, own[kDiskChannel]);
  channels_[kDiskChannel].comes_whole = true;  // a record counts when all of it is verified
}

RestoreProblem PlannedRestores::ProblemOf(const RestoreView& view,
                                          std::vector<BlockSource>& sources) const {
  const uint32_t block_tokens = store_.layout().block_tokens;
  sources.clear();
  for (const Origin origin : view.blocks) sources.push_back(SourceOf(origin));
  uint32_t new_tokens = view.new_tokens;
  const NoWave no_wave = NoWaveFor(view);
  // Whole blocks of new tokens are absent ones, and lost blocks at the end cost what new ones do:
  // ReportOf tells them apart. Beside streams, passes are by the block anyway.
  while (view.decode_rows == 0 && !sources.empty() && sources.back() == BlockSource::kAbsent) {
    sources.pop_back();
    new_tokens += block_tokens;
  }
  RestoreProblem problem{
      .blocks = sources,
      .new_tokens = new_tokens,
      .block_tokens = block_tokens,
      .layers = std::min(store_.layout().layer_count, CopyQueue::kLayerGroupsMax),
      .chunk_tokens = std::max(settings_.chunk_tokens, block_tokens),
      .pass = passes_ ? passes_->costs() : PassCosts(),
      .channels = channels_,
      .uncertainty = passes_ ? std::clamp(passes_->uncertainty(), kUncertaintyMin, kUncertaintyMax)
                             : kUncertaintyMax,
      .cut_share = settings_.cut_share,
      .weight = PriorityWeight(view.priority),
      .allows_wave = settings_.allows_wave && no_wave == NoWave::kNone,
      .no_wave = no_wave,
      .wave_tokens_max = settings_.chunk_tokens};
  if (view.decode_rows > 0) {
    problem.new_pass = problem.pass;
    problem.new_pass->decode_rows = view.decode_rows;
    problem.pass = CostsBesideStreams(problem.pass, view.decode_rows, settings_.share);
    problem.chunk_tokens = block_tokens;
  }
  return problem;
}

RestorePlan PlannedRestores::Plan(const RestoreView& view) {
  LookAtChannels({&view, 1});
  RestorePlan plan;
  RestoreProblem problem = ProblemOf(view, sources_);
  problem.starts_early = view.decode_rows == 0;  // beside others, passes are shared
  PlanRestore(problem, PolicyNow(), scratch_, plan);
  const std::optional<uint32_t> probe = BlockToProbe(view, plan);
  if (probe && plan.execution == Execution::kWave) {  // which would wait for what is tried
    problem.allows_wave = false;
    PlanRestore(problem, PolicyNow(), scratch_, plan);
  }
  NoteNoWave(view, plan);
  plan.verdicts.resize(view.blocks.size(), Verdict::kRecompute);
  if (probe && plan.load_order[kDiskChannel].empty()) {
    plan.verdicts[*probe] = Verdict::kReload;
    plan.load_order[kDiskChannel].push_back(*probe);
    plan.first_pass_end = 0;  // nothing waits for it
  }
  return plan;
}

std::vector<RestorePlan> PlannedRestores::PlanTogether(std::span<const RestoreView> views) {
  if (views.size() == 1) return {Plan(views[0])};
  LookAtChannels(views);
  std::vector<std::vector<BlockSource>> sources(views.size());
  std::vector<RestoreProblem> problems;
  for (size_t i = 0; i < views.size(); ++i) problems.push_back(ProblemOf(views[i], sources[i]));
  std::vector<RestorePlan> plans(views.size());
  uint32_t turn = 0;
  for (QueuedRestore& queued : PlanRestores(problems, PolicyNow())) {
    RestorePlan& plan = plans[queued.problem] = std::move(queued.plan);
    NoteNoWave(views[queued.problem], plan);
    plan.verdicts.resize(views[queued.problem].blocks.size(), Verdict::kRecompute);
    plan.turn = turn++;
  }
  return plans;
}

// The last block that has a copy on disk, where it is to be loaded though that does not pay: if it
// comes too late it is computed after all.
std::optional<uint32_t> PlannedRestores::BlockToProbe(const RestoreView& view,
                                                      const RestorePlan& plan) const {
  const LoadFlow flow = store_.disk_flow();
  const bool is_due = plan.load_order[kDiskChannel].empty() && flow.under_way == 0 &&
                      clock_.Now() - flow.last_begin >= kProbeInterval;
  if (PolicyNow() != RestorePolicy::kCairn || !is_due) return std::nullopt;
  for (size_t block = view.blocks.size(); block-- > 0;) {
    if (view.blocks[block] == Origin::kDisk) return static_cast<uint32_t>(block);
  }
  return std::nullopt;
}

}  // namespace cairn
