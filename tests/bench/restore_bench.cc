// What coming back to a context takes under each policy, and how far the planner's own choice is
// from the best of the others in hindsight: one process, one model, and policies that take turns.
// (tools/bench_restore.py and bench_layouts.py ask the same of the server, one for each policy.)
// Each figure is one line of JSON (bench_figures.h).
//
//   restore_bench MODEL FOLDER [--compute exact|fast] [--context TOKENS] [--turns N] [--threads N]
//
// The disk tier lies in FOLDER. The same on a GPU is cuda_restore_bench.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/engine_core.h"
#include "engine/load.h"
#include "engine/planned_restores.h"
#include "offload/rocksdb_spill_store.h"
#include "tests/bench/bench_backend.h"
#include "tests/bench/bench_figures.h"

namespace cairn {
namespace {

constexpr double kHindsightGoal = 1.10;  // cairn's median over that of its best rival
constexpr uint32_t kNewTokens = 32;
constexpr uint32_t kControlTokens = 100;
const std::string kSession = "long";

struct RestoreOptions {
  LoadOptions load;
  std::string folder;
  uint32_t context = 4096;
  int turns = 2;
};

// A policy that restores are planned with. The first is the one that is measured against the rest.
struct Contender {
  std::string name;
  RestorePolicy policy;
  double cut_share = 0;
};
std::vector<Contender> Contenders() {
  std::vector<Contender> contenders = {{"cairn", RestorePolicy::kCairn},
                                       {"load all", RestorePolicy::kLoadAll},
                                       {"recompute all", RestorePolicy::kRecomputeAll}};
  if (IsEmulated()) return contenders;
  for (const int quarter : {1, 2, 3}) {
    contenders.push_back(
        {"cut " + std::to_string(quarter) + "/4", RestorePolicy::kCut, quarter / 4.0});
  }
  return contenders;
}

// Plans with the strategy that is chosen; all of them learn.
class TakenTurns final : public RestoreStrategy {
 public:
  TakenTurns(const BlockStore& store, const Clock& clock, uint32_t chunk_tokens,
             const size_t& chosen)
      : chosen_(chosen) {
    for (const Contender& contender : Contenders()) {
      const RestoreSettings settings = {.policy = contender.policy,
                                        .cut_share = contender.cut_share,
                                        .chunk_tokens = chunk_tokens};
      strategies_.push_back(std::make_unique<PlannedRestores>(settings, store, clock));
    }
  }
  RestorePlan Plan(const RestoreView& view) override { return now().Plan(view); }
  std::vector<RestorePlan> PlanTogether(std::span<const RestoreView> views) override {
    return now().PlanTogether(views);
  }
  std::optional<std::chrono::nanoseconds> revision_interval() const override {
    return strategies_[chosen_]->revision_interval();
  }
  void Learn(const PassSample& pass) override {
    for (const auto& strategy : strategies_) strategy->Learn(pass);
  }
  std::optional<PassCosts> pass_costs() const override {
    return strategies_[chosen_]->pass_costs();
  }

 private:
  RestoreStrategy& now() { return *strategies_[chosen_]; }

  const size_t& chosen_;  // the bench's
  std::vector<std::unique_ptr<PlannedRestores>> strategies_;
};

// A run of blocks in one tier, up to `end` of all, in eighths.
struct Run {
  Tier tier;
  uint32_t end;
};
struct Layout {
  const char* name;
  std::vector<Run> runs;
};
const std::vector<Layout> kLayouts = {
    {"all in the host's memory", {{Tier::kHost, 8}}},
    {"all on disk", {{Tier::kDisk, 8}}},
    {"front half on disk, back half in the host's memory", {{Tier::kDisk, 4}, {Tier::kHost, 8}}},
    {"front half in the host's memory, back half on disk", {{Tier::kHost, 4}, {Tier::kDisk, 8}}},
    {"an eighth nowhere, the rest in the host's memory",
     {{Tier::kHost, 3}, {Tier::kAbsent, 4}, {Tier::kHost, 8}}}};

class LastUsage final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate) override { return true; }
  void OnEnd(StreamEnd stream_end) override { end = std::move(stream_end); }
  std::optional<StreamEnd> end;
};

class RestoreBench {
 public:
  RestoreBench(EngineCore& core, const Clock& clock, const RestoreOptions& options, size_t& chosen)
      : core_(core), clock_(clock), options_(options), chosen_(chosen) {
    vocabulary_size_ = static_cast<uint32_t>(core.model_info().vocabulary_size);
    block_tokens_ = static_cast<uint32_t>(core.model_info().block_tokens);
    tokens_ = RandomTokens(options.context);
    Require(core.CreateSession({.id = kSession}, {.next = tokens_}).status());
    ComeBack();  // computes all of it
  }

  void Measure(const Layout& layout) {
    const std::vector<Contender> contenders = Contenders();
    std::vector<std::vector<double>> times(contenders.size());
    std::vector<double> predicted;
    const int first_turn =
        IsEmulated() ? 0 : -1;  // in the one that is not counted, costs are learned
    for (int turn = first_turn; turn < options_.turns; ++turn) {
      for (chosen_ = 0; chosen_ < contenders.size(); ++chosen_) {
        Arrange(layout);
        const double took = ComeBack();
        if (turn < 0) continue;
        times[chosen_].push_back(took);
        if (chosen_ == 0) predicted.push_back(PredictedOverActual());
      }
    }
    chosen_ = 0;
    std::vector<double> medians;
    for (size_t i = 0; i < contenders.size(); ++i) {
      medians.push_back(Median(times[i]));
      Print({.name = contenders[i].name + ": " + layout.name,
             .value = medians.back() * 1e3,
             .unit = "ms"});
    }
    const double best = *std::min_element(medians.begin() + 1, medians.end());
    Print({.name = std::string("cairn over its best rival: ") + layout.name,
           .value = medians[0] / best,
           .unit = "x",
           .at_most = kHindsightGoal});
    Print({.name = std::string("predicted over actual: ") + layout.name,
           .value = Median(std::move(predicted)),
           .unit = "x"});
  }

 private:
  std::vector<uint32_t> RandomTokens(size_t count) {
    std::vector<uint32_t> tokens(count);
    for (uint32_t& token : tokens) {
      token = kControlTokens + static_cast<uint32_t>(rng_.Below(vocabulary_size_ - kControlTokens));
    }
    return tokens;
  }

  // Seconds to the first token of the session with some new ones; then it is as before.
  double ComeBack() {
    const auto sink = std::make_shared<LastUsage>();
    DecodeRequest request{.id = kSession, .max_tokens = 1};
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    core_.Decode({NextSequence(), sink, clock_.Now()}, request, {.next = RandomTokens(kNewTokens)});
    StepUntil([&] { return sink->end.has_value(); });
    Require(sink->end->status);
    Require(core_.TruncateSession(kSession, options_.context).status());
    return std::chrono::duration<double>(sink->end->usage.first_token_time).count();
  }

  double PredictedOverActual() {
    const RestoreReport report = Require(core_.ExplainRestore({.id = kSession, .last = true}));
    const double actual = std::chrono::duration<double>(*report.actual_time).count();
    return report.predicted_s / actual;
  }

  // A block that is still being read for an earlier restore cannot leave: then once more.
  void Arrange(const Layout& layout) {
    constexpr int kTries = 20;
    std::string elsewhere = "?";
    for (int i = 0; i < kTries && !elsewhere.empty(); ++i) {
      Place(layout);
      elsewhere = Elsewhere(layout);
    }
    if (elsewhere.empty()) return;
    Require(Status(Code::kInternal, std::string(layout.name) + ": " + elsewhere));
  }

  // Puts each run into its tier, from the back: what lies before it is held on the device
  // meanwhile.
  void Place(const Layout& layout) {
    for (size_t i = layout.runs.size(); i-- > 0;) {
      const uint32_t begin = i == 0 ? 0 : TokensUntil(layout.runs[i - 1].end);
      const uint32_t end = TokensUntil(layout.runs[i].end);
      if (begin > 0) Hold("held", begin);
      Require(core_.CreateSession({.id = "leaving"}, FirstTokens(end)).status());
      bool has_left = false;
      core_.SuspendSession("leaving", layout.runs[i].tier, [&](const Result<SessionInfo>& info) {
        Require(info.status());
        has_left = true;
      });
      StepUntil([&] { return has_left; });
      Require(core_.DeleteSession("leaving").status());
      if (begin > 0) Require(core_.DeleteSession("held").status());
    }
  }

  void Hold(const std::string& id, uint32_t token_count) {
    CreateSessionRequest request{.id = id};
    request.settings.pinned = true;
    Require(core_.CreateSession(request, FirstTokens(token_count)).status());
    Require(core_.PrefetchSession(id, NextSequence()).status());
    StepUntil([&] { return Require(core_.GetSession(id)).state == SessionState::kIdle; });
  }

  // The first block that does not lie where it should; empty: all do.
  std::string Elsewhere(const Layout& layout) {
    const RestoreReport report = Require(core_.ExplainRestore({.id = kSession}));
    uint32_t block = 0;
    for (const Run& run : layout.runs) {
      for (; block < TokensUntil(run.end) / block_tokens_; ++block) {
        const Tier tier = report.blocks[block].tier;
        if (tier == run.tier) continue;
        return "block " + std::to_string(block) + " lies in tier " +
               std::to_string(static_cast<int>(tier)) + ", not " +
               std::to_string(static_cast<int>(run.tier));
      }
    }
    return "";
  }

  uint32_t TokensUntil(uint32_t eighth) const {
    return options_.context / block_tokens_ * eighth / 8 * block_tokens_;
  }
  EncodedContent FirstTokens(uint32_t count) const {
    return {.next = {tokens_.begin(), tokens_.begin() + count}};
  }
  SequenceId NextSequence() { return SequenceId(next_sequence_++); }

  template <class Condition>
  void StepUntil(const Condition& condition) {
    while (!condition()) {
      if (!core_.Step()) std::this_thread::yield();  // until copies are done
    }
  }

  EngineCore& core_;
  const Clock& clock_;
  const RestoreOptions& options_;
  size_t& chosen_;
  Rng rng_{17};
  uint32_t vocabulary_size_ = 0;
  uint32_t block_tokens_ = 0;
  std::vector<uint32_t> tokens_;
  uint64_t next_sequence_ = 0;
};

int Usage() {
  std::fprintf(stderr,
               "usage: restore_bench MODEL FOLDER [--compute exact|fast] [--context TOKENS]\n"
               "                     [--turns N] [--threads N]\n");
  return 2;
}

bool Parse(int argc, char** argv, RestoreOptions& options) {
  if (argc < 3 || argc % 2 == 0) return false;
  options.load.model_path = argv[1];
  options.folder = argv[2];
  for (int i = 3; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--compute") {
      options.load.mode = ModeNamed(argv[i + 1]);
    } else if (flag == "--context") {
      options.context = static_cast<uint32_t>(std::atoi(argv[i + 1]));
    } else if (flag == "--turns") {
      options.turns = std::atoi(argv[i + 1]);
    } else if (flag == "--threads") {
      options.load.thread_count = static_cast<uint32_t>(std::atoi(argv[i + 1]));
    } else {
      return false;
    }
  }
  return options.context >= 128 && options.turns >= 1;
}

// Pools that hold the context twice, and a disk tier without a limit.
Status SizeTiers(RestoreOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options.load.model_path));
  const ModelConfig& model = checkpoint.config();
  const uint64_t token_bytes =
      uint64_t{4} * model.layer_count * model.kv_head_count * model.head_dim;
  const uint64_t bytes = 2 * token_bytes * (options.context + 8 * kNewTokens);
  LoadOptions& load = options.load;
  load.device_memory_bytes = bytes;
  load.host_memory_bytes = bytes;
  load.host_in_place = false;
  load.context_length = options.context + 4 * kNewTokens;
  load.engine.prefill_chunk = std::min(options.context / 4, 512u);
  const SpillStoreConfig spill = {.directory = options.folder,
                                  .quota_bytes = 4 * bytes + (uint64_t{64} << 20)};
  load.open_spill = [spill](const Digest& fingerprint, const KvLayout& layout,
                            std::function<void()> wake) {
    return OpenSpillStore(spill, fingerprint, layout, std::move(wake));
  };
  return Status();
}

int Main(int argc, char** argv) {
  RestoreOptions options;
  if (!Parse(argc, argv, options)) return Usage();
  Require(SizeTiers(options));
  const SystemClock clock;
  size_t chosen = 0;
  LoadOptions& load = options.load;
  load.make_backend = [&load] { return MakeBenchBackend(load.mode, load.thread_count); };
  load.make_restores = [&](const BlockStore& store) {
    return std::make_unique<TakenTurns>(store, clock, load.engine.prefill_chunk, chosen);
  };
  LoadedEngine loaded = Require(LoadEngine(load, clock, nullptr));
  EngineCore core(std::move(loaded.parts), loaded.config, clock, 1);
  RestoreBench bench(core, clock, options, chosen);
  for (const Layout& layout : kLayouts) {
    if (!IsEmulated() || &layout == &kLayouts.back()) bench.Measure(layout);
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
