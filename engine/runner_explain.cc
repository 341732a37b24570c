// How contexts come back, as it is told: the report of a restore from its plan to its end.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/runner.h"

namespace cairn {
namespace {

// Whether blocks have to come back that were there before.
bool IsRestore(std::span<const Origin> origins, size_t old_blocks) {
  return std::ranges::any_of(origins.first(std::min(old_blocks, origins.size())),
                             [](Origin origin) { return origin != Origin::kResident; });
}

std::string Microseconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

// The index after the last block that has a copy anywhere.
size_t EndOfFound(std::span<const Origin> origins) {
  size_t end = origins.size();
  while (end > 0 && origins[end - 1] == Origin::kAbsent) --end;
  return end;
}

}  // namespace

RestoreReport Runner::ReportFor(const Sequence& sequence, const RestorePlan& plan,
                                std::span<const Origin> origins) const {
  RestoreReport report = ReportOf(plan, origins, store_.Locate(sequence.root, sequence.tokens),
                                  store_.layout().block_tokens,
                                  std::min(sequence.restored_end, sequence.tokens.size()));
  report.token_count = sequence.tokens.size();
  return report;
}

RestorePlan Runner::PlanAndReport(const Sequence& sequence, std::span<const Origin> origins,
                                  RestoreReport& report) {
  const Clock::Monotonic begin = clock_.Now();
  RestorePlan plan = PlannerFor(sequence)(origins);
  const Clock::Monotonic end = clock_.Now();
  report = ReportFor(sequence, plan, origins);
  report.planning_time = end - begin;
  report.decided_at = clock_.WallNow();
  return plan;
}

// The plan that the sequence begins with is another one, beside those that come back with it.
void Runner::ReportAgain(Sequence& sequence, const RestorePlan& plan,
                         std::span<const Origin> origins) {
  RestoreReport report = ReportFor(sequence, plan, origins);
  report.planning_time = sequence.restore->planning_time;
  report.decided_at = sequence.restore->decided_at;
  *sequence.restore = std::move(report);
}

void Runner::SetRestoredEnd(Sequence& sequence, std::span<const Origin> origins) const {
  const size_t found_end = EndOfFound(origins) * store_.layout().block_tokens;
  sequence.restored_end = std::max({sequence.computed_before, sequence.computed_end, found_end});
}

// Makes the plan that the sequence begins with, and opens the report of its restore.
ContextBlocks::Planner Runner::FirstPlannerFor(Sequence& sequence) {
  return [this, &sequence](std::span<const Origin> origins) {
    SetRestoredEnd(sequence, origins);
    const size_t old_blocks = sequence.restored_end / store_.layout().block_tokens;
    if (!IsRestore(origins, old_blocks)) return PlannerFor(sequence)(origins);
    sequence.restore = std::make_unique<RestoreReport>();
    return PlanAndReport(sequence, origins, *sequence.restore);
  };
}

RestoreReport Runner::ExplainNow(const BlockKey& root, const std::vector<uint32_t>& tokens,
                                 size_t computed_count) {
  Sequence asked;  // as it would be started
  asked.computed_before = computed_count;
  asked.root = root;
  asked.tokens = tokens;
  const std::vector<Origin> origins = store_.Survey(root, tokens);
  SetRestoredEnd(asked, origins);
  RestoreReport report;
  PlanAndReport(asked, origins, report);
  return report;
}

// Everything is in place that was to come back.
void Runner::FinishRestore(Sequence& sequence) {
  const std::unique_ptr<RestoreReport> report = std::move(sequence.restore);
  if (report == nullptr) return;
  const Clock::Monotonic now = clock_.Now();
  report->actual_time = now - sequence.admitted;
  for (size_t i = 0; i < report->blocks.size(); ++i) {
    BlockReport& block = report->blocks[i];
    block.fate = sequence.blocks->FateOf(i);
    if (block.fate == BlockFate::kKept) continue;
    block.actual_time = sequence.blocks->InPlaceSince(i) - sequence.admitted;
  }
  if (trace_ != nullptr) TraceRestore(sequence, *report, now);
  restore_log_.Add(sequence.session_id, std::move(*report));
}

// On a track of the sequence, with the rows that it computed meanwhile below, and the moment when
// both sides were through.
void Runner::TraceRestore(const Sequence& sequence, const RestoreReport& report,
                          Clock::Monotonic now) {
  const auto count = [&](BlockFate fate) {
    return std::to_string(std::ranges::count_if(report.blocks, [&](const BlockReport& block) {
      return block.fate == fate && !block.is_new;
    }));
  };
  trace_->Span("restore", sequence.admitted, now,
               "\"session\":\"" + sequence.session_id + "\",\"execution\":\"" +
                   std::string(NameOf(report.execution)) + "\",\"no_wave\":\"" +
                   std::string(NameOf(report.no_wave)) +
                   "\",\"reloaded\":" + count(BlockFate::kReloaded) +
                   ",\"recomputed\":" + count(BlockFate::kRecomputed) +
                   ",\"failed\":" + count(BlockFate::kReloadFailed) +
                   ",\"predicted_s\":" + std::to_string(report.predicted_s),
               TraceWriter::ComputeTrack(sequence.id.value()));
  const std::optional<MeetingPoint> meeting = MeetingPointOf(report);
  if (!meeting) return;
  trace_->Instant("meeting point",
                  sequence.admitted + std::max(meeting->computed_time, meeting->loaded_time),
                  "\"position\":" + std::to_string(meeting->position) +
                      ",\"computed_us\":" + Microseconds(meeting->computed_time) +
                      ",\"loaded_us\":" + Microseconds(meeting->loaded_time),
                  TraceWriter::ComputeTrack(sequence.id.value()));
}

void Runner::TraceRestoredRows(const std::vector<Work>& works, Clock::Monotonic begin,
                               Clock::Monotonic end) {
  for (const Work& work : works) {
    if (work.sequence->restore == nullptr || work.runs.empty()) continue;
    const PositionRange& last = work.runs.back();
    trace_->Span("compute", begin, end,
                 "\"from\":" + std::to_string(work.runs.front().begin) +
                     ",\"to\":" + std::to_string(last.begin + last.count) +
                     (work.arrival != nullptr ? ",\"waits_by_layer\":true" : ""),
                 TraceWriter::ComputeTrack(work.sequence->id.value()));
  }
}

}  // namespace cairn
