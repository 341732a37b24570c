#include "service/ctl/text.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <initializer_list>
#include <utility>
#include <vector>

namespace cairn {
namespace {

using google::protobuf::util::TimeUtil;

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(arguments);
  return text;
}

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(TimeUtil::DurationToNanoseconds(duration)) * 1e-9;
}

std::string Milliseconds(const google::protobuf::Duration& duration) {
  return Format("%.1f ms", Seconds(duration) * 1e3);
}

// "name   value" lines, the values one under another. An empty value leaves its line out.
std::string Lines(std::initializer_list<std::pair<const char*, std::string>> rows) {
  std::string text;
  for (const auto& [name, value] : rows) {
    if (value.empty()) continue;
    text += Format("%s%-16s %s", text.empty() ? "" : "\n", name, value.c_str());
  }
  return text;
}

// "device 32, disk 16": the parts that are not zero, or `none`.
std::string Parts(std::initializer_list<std::pair<const char*, int64_t>> parts, const char* none) {
  std::string text;
  for (const auto& [name, count] : parts) {
    if (count == 0) continue;
    text += Format("%s%s %lld", text.empty() ? "" : ", ", name, static_cast<long long>(count));
  }
  return text.empty() ? none : text;
}

std::string ResidencyText(const v1::Residency& residency) {
  return Parts({{"device", residency.device_tokens()},
                {"host", residency.host_tokens()},
                {"disk", residency.disk_tokens()},
                {"remote", residency.remote_tokens()},
                {"absent", residency.absent_tokens()},
                {"tail", residency.tail_tokens()}},
               "nothing");
}

// The name of an enum value without its prefix, in small letters: TIER_DEVICE is "device".
std::string Plain(const std::string& enum_name, size_t prefix_length) {
  std::string text = enum_name.substr(prefix_length);
  for (char& c : text) {
    c = c == '_' ? ' ' : static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return text;
}

std::string StateText(v1::Session::State state) {
  return Plain(v1::Session::State_Name(state), sizeof("STATE_") - 1);
}

std::string TierText(v1::Tier tier) { return Plain(v1::Tier_Name(tier), sizeof("TIER_") - 1); }

std::string ExpirationText(const v1::Session& session) {
  if (session.has_ttl()) return TimeUtil::ToString(session.ttl()) + " after the last use";
  if (session.has_expire_time()) return TimeUtil::ToString(session.expire_time());
  return "never";
}

// Whether no copy of a block can be anywhere, since it was never computed, or not as a whole.
bool IsNew(const v1::RestoreReport& report, const v1::BlockDecision& block) {
  return block.tier() == v1::TIER_ABSENT &&
         block.first_position() + report.block_tokens() > report.computed_tokens();
}

// Blocks of which the report of a restore says the same.
bool IsSameRun(const v1::RestoreReport& report, int first, int second) {
  const v1::BlockDecision& a = report.blocks(first);
  const v1::BlockDecision& b = report.blocks(second);
  return a.tier() == b.tier() && a.verdict() == b.verdict() && IsNew(report, a) == IsNew(report, b);
}

std::string RunRow(int64_t begin, int64_t end, const std::string& tier, const std::string& reload,
                   const std::string& recompute) {
  const std::string positions =
      Format("%lld..%lld", static_cast<long long>(begin), static_cast<long long>(end - 1));
  return Format("%-16s %-8s %12s %15s  ", positions.c_str(), tier.c_str(), reload.c_str(),
                recompute.c_str());
}

// The prices are those of one block, at the middle of the run; of a restore that was carried out,
// also when the last of them was in place.
std::string RunText(const v1::RestoreReport& report, int first, int end) {
  const v1::BlockDecision& block = report.blocks(first);
  const v1::BlockDecision& middle = report.blocks(first + (end - first) / 2);
  const int64_t next = report.blocks(end - 1).first_position() + report.block_tokens();
  const auto price = [](bool is_known, const google::protobuf::Duration& duration) {
    return is_known ? Milliseconds(duration) : std::string("-");
  };
  const bool is_new = IsNew(report, block);
  const std::string text =
      RunRow(block.first_position(), next, is_new ? "new" : TierText(block.tier()),
             price(middle.has_reload_price(), middle.reload_price()),
             price(middle.has_recompute_price(), middle.recompute_price()));
  const std::string verdict =
      is_new ? "compute"
             : Plain(v1::BlockDecision::Verdict_Name(block.verdict()), sizeof("VERDICT_") - 1);
  if (!report.has_actual_time()) return text + verdict;
  double in_place_s = 0;
  for (int i = first; i < end; ++i) {
    in_place_s = std::max(in_place_s, Seconds(report.blocks(i).actual_time()));
  }
  const std::string in_place = block.has_actual_time() ? Format("%.1f ms", in_place_s * 1e3) : "-";
  return text + Format("%-25s %12s", verdict.c_str(), in_place.c_str());
}

// Where computing and loading met, and when each was through; "" when there was only one of them.
std::string MeetingText(const v1::RestoreReport& report) {
  double computed_s = -1, loaded_s = -1;
  int64_t position = 0;
  for (const v1::BlockDecision& block : report.blocks()) {
    if (!block.has_actual_time() || IsNew(report, block)) continue;
    const bool is_loaded = block.verdict() == v1::BlockDecision::VERDICT_RELOAD;
    double& side_s = is_loaded ? loaded_s : computed_s;
    side_s = std::max(side_s, Seconds(block.actual_time()));
    if (!is_loaded) position = block.first_position() + report.block_tokens();
  }
  if (computed_s < 0 || loaded_s < 0) return "";
  return Format("position %lld: computed after %.1f ms, loaded after %.1f ms",
                static_cast<long long>(position), computed_s * 1e3, loaded_s * 1e3);
}

// A row of a table of histograms. All of them have the same bounds.
std::string PredictionRow(const std::string& name, const v1::PredictionHistogram& predictions) {
  std::string row = Format("\n%-16s", name.c_str());
  for (const int64_t count : predictions.counts()) {
    row += Format(" %6s", count == 0 ? "-" : std::to_string(count).c_str());
  }
  return row;
}

std::string PredictionsText(const v1::CacheStats& stats) {
  std::vector<std::pair<std::string, v1::PredictionHistogram>> rows;
  if (stats.has_restore_predictions()) rows.emplace_back("restores", stats.restore_predictions());
  if (stats.has_pass_predictions()) rows.emplace_back("passes", stats.pass_predictions());
  for (const v1::TierStats& tier : stats.tiers()) {
    if (!tier.has_load_predictions()) continue;
    rows.emplace_back("loads from " + TierText(tier.tier()), tier.load_predictions());
  }
  if (rows.empty()) return "";
  std::string text = "\npredicted / actual time, how often up to:";
  text += Format("\n%-16s", "");
  for (const double bound : rows.front().second.upper_bounds()) text += Format(" %6g", bound);
  text += Format(" %6s", "more");
  for (const auto& [name, predictions] : rows) text += PredictionRow(name, predictions);
  return text;
}

std::string Bytes(int64_t count) {
  return Format("%.1f MiB", static_cast<double>(count) / (1 << 20));
}

}  // namespace

std::string SessionText(const v1::Session& session) {
  std::string annotations;
  for (const auto& [key, value] : session.annotations()) {
    if (!annotations.empty()) annotations += ", ";
    annotations += key;
    annotations += '=';
    annotations += value;
  }
  return Lines({{"name", session.name()},
                {"display name", session.display_name()},
                {"tokens", std::to_string(session.token_count())},
                {"state", StateText(session.state())},
                {"KV on", ResidencyText(session.residency())},
                {"priority", std::to_string(session.priority())},
                {"pinned", session.pinned() ? "yes" : ""},
                {"expires", ExpirationText(session)},
                {"forked from", session.parent()},
                {"sampling", session.sampling().ShortDebugString()},
                {"annotations", annotations},
                {"created", TimeUtil::ToString(session.create_time())},
                {"updated", TimeUtil::ToString(session.update_time())},
                {"etag", session.etag()}});
}

std::string SessionRowTitles() {
  return Format("%-32s %9s %-10s %8s  %s", "NAME", "TOKENS", "STATE", "PRIORITY", "KV ON");
}

std::string SessionRow(const v1::Session& session) {
  return Format("%-32s %9lld %-10s %8d  %s", session.name().c_str(),
                static_cast<long long>(session.token_count()), StateText(session.state()).c_str(),
                session.priority(), ResidencyText(session.residency()).c_str());
}

std::string UsageText(const v1::Usage& usage) {
  std::string text = Format("prompt %lld", static_cast<long long>(usage.prompt_tokens()));
  const std::string parts = Parts({{"device", usage.device_tokens()},
                                   {"host", usage.host_tokens()},
                                   {"disk", usage.disk_tokens()},
                                   {"remote", usage.remote_tokens()},
                                   {"recomputed", usage.recomputed_tokens()},
                                   {"new", usage.new_tokens()}},
                                  "");
  if (!parts.empty()) text += " (" + parts + ")";
  text += Format(", output %lld", static_cast<long long>(usage.completion_tokens()));
  // The first token's time is the prompt's, so decoding made one token fewer.
  const double seconds = Seconds(usage.decode_time());
  if (usage.completion_tokens() > 1 && seconds > 0) {
    text += Format(", %.1f tokens/s", static_cast<double>(usage.completion_tokens() - 1) / seconds);
  }
  return text + ", first token after " + Milliseconds(usage.first_token_time());
}

std::string LookupText(const v1::LookupPrefixResponse& response) {
  return Format("%lld tokens: ", static_cast<long long>(response.token_count())) +
         Parts({{"device", response.device_tokens()},
                {"host", response.host_tokens()},
                {"disk", response.disk_tokens()},
                {"remote", response.remote_tokens()}},
               "none held");
}

std::string CacheStatsText(const v1::CacheStats& stats) {
  std::string text = Lines({{"sessions", std::to_string(stats.session_count())},
                            {"running", std::to_string(stats.running_count())},
                            {"waiting", std::to_string(stats.waiting_count())},
                            {"preemptions", std::to_string(stats.preemptions())},
                            {"steps", std::to_string(stats.steps())},
                            {"step time", Format("%.3f s", Seconds(stats.step_time()))},
                            {"in the model", Format("%.3f s", Seconds(stats.forward_time()))},
                            {"reloaded", std::to_string(stats.blocks_reloaded()) + " blocks"},
                            {"recomputed", std::to_string(stats.blocks_recomputed()) + " blocks"},
                            {"corrupt", std::to_string(stats.blocks_corrupt()) + " blocks"},
                            {"foreign", std::to_string(stats.segments_foreign()) + " segments"}});
  for (const v1::TierStats& tier : stats.tiers()) {
    text += Format(
        "\n%-16s %lld of %lld blocks used, %lld held, %lld evicted, %s read, %s written",
        ("tier " + TierText(tier.tier())).c_str(), static_cast<long long>(tier.used_blocks()),
        static_cast<long long>(tier.capacity_blocks()), static_cast<long long>(tier.held_blocks()),
        static_cast<long long>(tier.evictions()), Bytes(tier.bytes_read()).c_str(),
        Bytes(tier.bytes_written()).c_str());
    if (tier.has_latency()) text += ", " + Milliseconds(tier.latency()) + " a block";
  }
  for (const v1::RestoreStats& restores : stats.restores()) {
    const double count = static_cast<double>(restores.restore_count());
    text += Format(
        "\n%-16s %lld by %s, %.1f ms each, predicted %.1f ms", "restores",
        static_cast<long long>(restores.restore_count()),
        Plain(v1::RestoreReport::Execution_Name(restores.execution()), sizeof("EXECUTION_") - 1)
            .c_str(),
        Seconds(restores.actual_time()) * 1e3 / count,
        Seconds(restores.predicted_time()) * 1e3 / count);
  }
  for (const v1::RestoredBlocks& blocks : stats.restored_blocks()) {
    text += Format(
        "\n%-16s %lld of restores: %s", "blocks", static_cast<long long>(blocks.block_count()),
        Plain(v1::BlockDecision::Verdict_Name(blocks.verdict()), sizeof("VERDICT_") - 1).c_str());
  }
  return text + PredictionsText(stats);
}

std::string RestoreText(const v1::RestoreReport& report) {
  const bool is_plan = !report.has_actual_time();
  std::string text;
  if (report.blocks_size() > 0) {
    text += Format("%-16s %-8s %12s %15s  %s", "POSITIONS", "TIER", "RELOAD/BLOCK",
                   "RECOMPUTE/BLOCK", "VERDICT");
    if (!is_plan) text += Format("%18s %12s", "", "IN PLACE");
  }
  for (int first = 0; first < report.blocks_size();) {
    int end = first + 1;
    while (end < report.blocks_size() && IsSameRun(report, first, end)) ++end;
    text += '\n' + RunText(report, first, end);
    first = end;
  }
  const int64_t tail = int64_t{report.blocks_size()} * report.block_tokens();
  if (report.blocks_size() > 0 && tail < report.token_count()) {
    text += '\n' + RunRow(tail, report.token_count(), "tail", "-", "-") + "compute";
  }
  if (!text.empty()) text += '\n';
  const std::string last = is_plan ? "" : Milliseconds(report.actual_time());
  const std::string no_wave =
      report.no_wave() == v1::RestoreReport::NO_WAVE_UNSPECIFIED
          ? ""
          : Plain(v1::RestoreReport::NoWave_Name(report.no_wave()), sizeof("NO_WAVE_") - 1);
  return text + Lines({{"execution", Plain(v1::RestoreReport::Execution_Name(report.execution()),
                                           sizeof("EXECUTION_") - 1)},
                       {"no wave", no_wave},
                       {"predicted", Milliseconds(report.predicted_time())},
                       {"actual", last},
                       {"met at", MeetingText(report)},
                       {"if all loaded", Milliseconds(report.predicted_load_all_time())},
                       {"if recomputed", Milliseconds(report.predicted_recompute_all_time())},
                       {"planning", Milliseconds(report.planning_time())},
                       {"decided", TimeUtil::ToString(report.decided_at())}});
}

std::string ModelText(const v1::Model& model) {
  const v1::KvShape& kv = model.kv();
  return Lines(
      {{"name", model.name()},
       {"architecture", model.architecture()},
       {"parameters", std::to_string(model.parameter_count())},
       {"context length", std::to_string(model.context_length()) + " tokens"},
       {"vocabulary", std::to_string(model.vocabulary_size())},
       {"backend", model.backend() + ", " + model.arithmetic()},
       {"KV", Format("%s, %d layers x %d heads x %d; %lld bytes a token, %lld a block of %d tokens",
                     kv.dtype().c_str(), kv.layer_count(), kv.kv_head_count(), kv.head_dim(),
                     static_cast<long long>(kv.bytes_per_token()),
                     static_cast<long long>(kv.bytes_per_block()), kv.block_tokens())},
       {"fingerprint", model.fingerprint()}});
}

}  // namespace cairn
