// Measures the engine, all parts in (embedding, norms, RoPE, attention, sampling, KV writes): the
// rate of prefill and of decoding by context and streams, and the time to the first token of a
// prompt that is on the device already. Prints one JSON object about the model, with what a token
// costs, and then one for each case and run; tools/bench.py alternates it with other engines and
// draws the table.
//
//   engine_bench MODEL [--threads N] [--compute exact|fast] [--chunk TOKENS] [--repeat N] CASE...
//   CASE: prefill:TOKENS | decode:CONTEXT:STREAMS[:DECODED] | cached:TOKENS
//
// The same on a GPU is cuda_engine_bench, and on the emulator cuda_engine_bench_emulated.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/engine_core.h"
#include "engine/load.h"
#include "tests/bench/bench_backend.h"

namespace cairn {
namespace {

constexpr uint32_t kDecodedTokens = 32;  // by each stream in one run, unless the case says

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

class CountingSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate update) override {
    token_count += update.token_ids.size();
    return true;
  }
  void OnEnd(StreamEnd stream_end) override { end = std::move(stream_end); }
  size_t token_count = 0;
  std::optional<StreamEnd> end;
};

class Bench {
 public:
  Bench(EngineCore& core, std::string mode, uint32_t vocabulary_size)
      : core_(core), mode_(std::move(mode)), vocabulary_size_(vocabulary_size) {}

  // A fresh prompt to its first token, in blocks that another has used: memory that was never
  // touched is the system's affair, and other engines clear theirs before they are timed.
  void Prefill(uint32_t token_count) {
    Generate(RandomPrompt(token_count));
    Check(core_.ClearCache(std::nullopt).status());
    Print("prefill", token_count, 1, token_count / Generate(RandomPrompt(token_count)));
  }

  // The same prompt again: everything is on the device but the logits of its last token.
  void Cached(uint32_t token_count) {
    const std::vector<uint32_t> prompt = RandomPrompt(token_count);
    Generate(prompt);
    Print("cached", token_count, 1, Generate(prompt) * 1e3);
  }

  // `streams` sessions at `context` tokens decode `decoded` tokens each, together; tokens a second
  // of all of them.
  void Decode(uint32_t context, uint32_t streams, uint32_t decoded) {
    std::vector<std::string> ids;
    for (uint32_t i = 0; i < streams; ++i) {
      ids.push_back("bench-" + std::to_string(context) + "-" + std::to_string(i));
      if (core_.GetSession(ids.back()).ok()) continue;
      Start(ids.back(), RandomPrompt(context - 1), 1);  // reads the prompt
      Finish();
    }
    std::vector<std::shared_ptr<CountingSink>> sinks;
    for (const std::string& id : ids) {
      Check(core_.TruncateSession(id, context).status());
      sinks.push_back(Start(id, {}, decoded + 1));
    }
    // The first step brings every stream to its first token; from there on they run together.
    core_.Step();
    const auto begin = clock_.Now();
    Finish();
    const double seconds = Seconds(clock_.Now() - begin);
    size_t token_count = 0;
    for (const auto& sink : sinks) token_count += sink->token_count - 1;
    Print("decode", context, streams, static_cast<double>(token_count) / seconds);
  }

 private:
  std::vector<uint32_t> RandomPrompt(size_t count) {
    constexpr uint32_t kControlTokens = 100;  // at most so many, in front of all others
    std::vector<uint32_t> tokens;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t token = kControlTokens + rng_.Below(vocabulary_size_ - kControlTokens);
      tokens.push_back(static_cast<uint32_t>(token));
    }
    return tokens;
  }

  static void Check(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "engine_bench: %s\n", status.ToString().c_str());
    std::exit(1);
  }

  static SamplingParams Greedy() {
    SamplingParams sampling;
    sampling.temperature = 0.0f;
    sampling.ignore_eos = true;
    return sampling;
  }

  double Generate(const std::vector<uint32_t>& prompt) {
    GenerateRequest request{.max_tokens = 1, .sampling = Greedy()};
    auto sink = std::make_shared<CountingSink>();
    const auto begin = clock_.Now();
    core_.Generate({SequenceId(next_id_++), sink, begin}, request, {.next = prompt});
    Finish();
    Check(sink->end->status);
    return Seconds(clock_.Now() - begin);
  }

  std::shared_ptr<CountingSink> Start(const std::string& id, std::vector<uint32_t> content,
                                      uint32_t max_tokens) {
    if (!core_.GetSession(id).ok()) Check(core_.CreateSession({.id = id}, {}).status());
    auto sink = std::make_shared<CountingSink>();
    DecodeRequest request{.id = id, .max_tokens = max_tokens, .sampling = Greedy()};
    core_.Decode({SequenceId(next_id_++), sink, clock_.Now()}, request,
                 {.next = std::move(content)});
    if (sink->end) Check(sink->end->status);
    return sink;
  }

  void Finish() {
    while (core_.Step()) {
    }
  }

  void Print(const char* name, uint32_t context, uint32_t streams, double value) const {
    std::printf("{\"case\":\"%s\",\"context\":%u,\"streams\":%u,\"compute\":\"%s\",\"%s\":%.2f}\n",
                name, context, streams, mode_.c_str(),
                std::strcmp(name, "cached") == 0 ? "ms" : "tokens_per_s", value);
    std::fflush(stdout);
  }

  EngineCore& core_;
  const std::string mode_;
  const uint32_t vocabulary_size_;
  SystemClock clock_;
  Rng rng_{2026};
  uint64_t next_id_ = 0;
};

// What the figures are held against the machine's peaks with: a step reads all weights and the KV
// of every position that it attends to; a token multiplies with the weights of all layers (the
// output matrix is for the last token of a prompt alone) and attends in every layer and head.
void PrintCosts(const Model& model) {
  const ModelConfig& config = model.config();
  const uint64_t query_width = uint64_t{config.head_count} * config.head_dim;
  const uint64_t layer_parameters =
      uint64_t{config.layer_count} *
      (2 * query_width * config.width + 3ull * config.ffn_width * config.width +
       2ull * config.kv_head_count * config.head_dim * config.width);
  std::printf(
      "{\"weight_bytes\":%zu,\"kv_bytes_per_token\":%zu,\"flop_per_token\":%llu,"
      "\"attention_flop_per_position\":%llu}\n",
      model.weight_bytes(), model.kv_layout().token_bytes(),
      static_cast<unsigned long long>(2 * layer_parameters),
      static_cast<unsigned long long>(4 * config.layer_count * query_width));
  std::fflush(stdout);
}

int Usage() {
  std::fprintf(stderr,
               "usage: engine_bench MODEL [--threads N] [--compute exact|fast] [--chunk TOKENS]\n"
               "                    [--repeat N] CASE...\n"
               "CASE: prefill:TOKENS, decode:CONTEXT:STREAMS[:DECODED] or cached:TOKENS\n");
  return 2;
}

int Main(int argc, char** argv) {
  if (argc < 3) return Usage();
  LoadOptions options;
  options.model_path = argv[1];
  options.engine.prefill_chunk = 512;
  int repeat = 1;
  std::vector<std::string> cases;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--threads") {
      options.thread_count = static_cast<uint32_t>(std::atoi(value)), ++i;
    } else if (argument == "--chunk") {
      options.engine.prefill_chunk = static_cast<uint32_t>(std::atoi(value)), ++i;
    } else if (argument == "--repeat") {
      repeat = std::atoi(value), ++i;
    } else if (argument == "--compute") {
      options.mode = ModeNamed(value), ++i;
    } else {
      cases.push_back(argument);
    }
  }
  options.make_backend = [&options] {
    return MakeBenchBackend(options.mode, options.thread_count);
  };
  SystemClock clock;
  Result<LoadedEngine> loaded = LoadEngine(options, clock, nullptr);
  if (!loaded.ok()) {
    std::fprintf(stderr, "engine_bench: %s\n", loaded.status().ToString().c_str());
    return 1;
  }
  PrintCosts(*loaded->parts.model);
  const uint32_t vocabulary_size = loaded->parts.model->config().vocabulary_size;
  EngineCore core(std::move(loaded->parts), loaded->config, clock, 1);
  Bench bench(core, ComputeModeName(options.mode), vocabulary_size);
  for (int run = 0; run < repeat; ++run) {
    for (const std::string& name : cases) {
      uint32_t tokens = 0, streams = 0, decoded = kDecodedTokens;
      if (std::sscanf(name.c_str(), "prefill:%u", &tokens) == 1) {
        bench.Prefill(tokens);
      } else if (std::sscanf(name.c_str(), "cached:%u", &tokens) == 1) {
        bench.Cached(tokens);
      } else if (std::sscanf(name.c_str(), "decode:%u:%u:%u", &tokens, &streams, &decoded) >= 2) {
        bench.Decode(tokens, streams, decoded);
      } else {
        return Usage();
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
