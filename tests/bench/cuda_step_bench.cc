// What a decoding step of one stream costs beyond its kernels: the step of the engine, the pass in
// it, and the pass's operations alone, captured once and launched as a graph. Each figure is one
// line of JSON (bench_figures.h).
//
//   cuda_step_bench MODEL [--compute exact|fast] [--context TOKENS] [--steps N]
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/load.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/cuda_stream.h"
#include "tests/bench/bench_backend.h"
#include "tests/bench/bench_figures.h"
#include "tests/bench/recording_ops.h"

namespace cairn {
namespace {

constexpr double kBeyondKernelsGoal = 30;  // microseconds

struct StepOptions {
  LoadOptions load;
  uint32_t context = 128;
  int steps = 200;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void RequireCuda(cudaError_t error, const char* doing) { Require(cuda::ToStatus(error, doing)); }

// A pass of one row at the end of a context, whose blocks are zero.
class LonePass {
 public:
  LonePass(Model& model, RecordingOps& ops, uint32_t context) : model_(model), ops_(ops) {
    const KvLayout& layout = model.kv_layout();
    const uint32_t count = (context + layout.block_tokens - 1) / layout.block_tokens;
    blocks_ = Require(model.device().Allocate(count * layout.block_bytes()));
    for (uint32_t i = 0; i < count; ++i) {
      table_.push_back(blocks_->data() + i * layout.block_bytes());
    }
    segment_ = {.tokens = {&token_, 1},
                .first_position = context - 1,
                .blocks = table_.data(),
                .want_logits = true};
  }

  double Seconds(int repeat) {
    std::vector<double> times;
    for (int i = 0; i < repeat + 2; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      Require(model_.Forward({&segment_, 1}).status());
      if (i >= 2) times.push_back(SecondsSince(begin));
    }
    return Median(std::move(times));
  }

  // Of the graph of its operations; `launches` counts them.
  double GraphSeconds(const Effort& effort, size_t& launches) {
    ops_.Record(true);
    Require(model_.Forward({&segment_, 1}).status());
    auto& stream = static_cast<cuda::CudaStream&>(model_.compute_stream());
    RequireCuda(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
                "capturing");
    ops_.PlayBack(stream);
    cudaGraph_t graph = nullptr;
    RequireCuda(cudaStreamEndCapture(stream.handle(), &graph), "ending a capture");
    ops_.Record(false);
    RequireCuda(cudaGraphGetNodes(graph, nullptr, &launches), "counting launches");
    cudaGraphExec_t executable = nullptr;
    RequireCuda(cudaGraphInstantiate(&executable, graph, 0), "a graph");
    const double seconds = DeviceSeconds(
        stream, effort, [&] { stream.Note(cudaGraphLaunch(executable, stream.handle())); });
    RequireCuda(cudaGraphExecDestroy(executable), "ending a graph");
    RequireCuda(cudaGraphDestroy(graph), "ending a graph");
    return seconds;
  }

 private:
  Model& model_;
  RecordingOps& ops_;
  std::unique_ptr<Buffer> blocks_;
  std::vector<std::byte*> table_;
  uint32_t token_ = 7;
  BatchSegment segment_;
};

class CountingSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate) override { return true; }
  void OnEnd(StreamEnd stream_end) override { Require(stream_end.status); }
};

// The median step of a stream that decodes behind `context` tokens.
double StepSeconds(EngineCore& core, const Clock& clock, uint32_t context, int steps) {
  GenerateRequest request;
  request.max_tokens = static_cast<uint32_t>(steps) + 4;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  core.Generate({SequenceId(1), std::make_shared<CountingSink>(), clock.Now()}, request,
                {.next = std::vector<uint32_t>(context, 7)});
  std::vector<double> times;
  for (bool more = true; more;) {
    const auto begin = std::chrono::steady_clock::now();
    more = core.Step();
    times.push_back(SecondsSince(begin));
  }
  if (times.size() > 8) times.erase(times.begin(), times.end() - static_cast<int>(steps));
  return Median(std::move(times));
}

int Usage() {
  std::fprintf(stderr,
               "usage: cuda_step_bench MODEL [--compute exact|fast] [--context TOKENS] [--steps "
               "N]\n");
  return 2;
}

void Measure(const StepOptions& options, LoadedEngine loaded, RecordingOps& ops) {
  const Effort effort = IsEmulated() ? kOneCall : Effort();
  double pass_s = 0, kernels_s = 0;
  size_t launches = 0;
  {
    LonePass pass(*loaded.parts.model, ops, options.context);
    pass_s = pass.Seconds(options.steps);
    kernels_s = pass.GraphSeconds(effort, launches);
  }
  SystemClock clock;
  EngineCore core(std::move(loaded.parts), loaded.config, clock, 1);
  const double step_s = StepSeconds(core, clock, options.context, options.steps);
  const std::string at = " at " + std::to_string(options.context);
  Print({.name = "launches a pass", .value = static_cast<double>(launches), .unit = ""});
  Print({.name = "kernels of a pass, one row" + at, .value = kernels_s * 1e6, .unit = "us"});
  Print({.name = "a pass, one row" + at, .value = pass_s * 1e6, .unit = "us"});
  Print({.name = "a step, one stream" + at, .value = step_s * 1e6, .unit = "us"});
  Print({.name = "a step beyond its kernels" + at,
         .value = (step_s - kernels_s) * 1e6,
         .unit = "us",
         .at_most = kBeyondKernelsGoal});
}

int Main(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) return Usage();
  StepOptions options;
  options.load.model_path = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--compute") {
      options.load.mode = ModeNamed(argv[i + 1]);
    } else if (flag == "--context") {
      options.context = static_cast<uint32_t>(std::atoi(argv[i + 1]));
    } else if (flag == "--steps") {
      options.steps = std::atoi(argv[i + 1]);
    } else {
      return Usage();
    }
  }
  if (options.context < 1 || options.steps < 1) return Usage();
  RecordingOps* ops = nullptr;  // the model's
  options.load.make_backend = [&]() -> Result<Backend> {
    ASSIGN_OR_RETURN(Backend backend, MakeBenchBackend(options.load.mode, 0));
    auto recording = std::make_unique<RecordingOps>(std::move(backend.ops));
    ops = recording.get();
    backend.ops = std::move(recording);
    return backend;
  };
  SystemClock clock;
  LoadedEngine loaded = Require(LoadEngine(options.load, clock, nullptr));
  Measure(options, std::move(loaded), *ops);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
