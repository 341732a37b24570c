// Runs the forward pass of a model as the engine runs it, for tests in other languages: prompts are
// read in chunks into paged blocks, then the logits of their positions are computed over the
// blocks.
//
//   logits_tool MODEL.gguf [--compute exact|fast] [--instruction-set NAME] [--threads N]
//               [--chunk ROWS]
//
// A line on stdin is a prompt: FIRST_POSITION and then token ids, separated by spaces. It is
// answered on stdout with the logits of the positions from FIRST_POSITION on, [positions,
// vocabulary], as raw little-endian float32.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "engine/context_blocks.h"
#include "engine/load.h"

namespace cairn {
namespace {

class LogitsTool {
 public:
  LogitsTool(EngineParts parts, const EngineConfig& config)
      : parts_(std::move(parts)),
        config_(config),
        root_(RootKey(parts_.fingerprint, parts_.blocks->layout().Id(), "")) {}

  Status Answer(uint32_t first_position, const std::vector<uint32_t>& tokens) {
    const uint32_t vocabulary_size = parts_.model->config().vocabulary_size;
    for (const uint32_t token : tokens) {
      if (token >= vocabulary_size) return InvalidArgument("no token " + std::to_string(token));
    }
    if (first_position >= tokens.size() || tokens.size() > config_.context_length) {
      return InvalidArgument("no prompt of " + std::to_string(tokens.size()) + " tokens from " +
                             std::to_string(first_position));
    }
    ASSIGN_OR_RETURN(
        const auto blocks,
        ContextBlocks::Acquire(*parts_.blocks, root_, tokens, 0, parts_.model->compute_stream(),
                               [this](std::span<const Origin> all) {
                                 return parts_.restores->Plan({.blocks = all});
                               }));
    Read(tokens, *blocks);
    WriteLogits(first_position, tokens, *blocks);
    blocks->Release(tokens);
    return Status();
  }

 private:
  // Computes K and V of the positions that are not in place, a chunk at a time.
  void Read(const std::vector<uint32_t>& tokens, ContextBlocks& blocks) {
    while (blocks.missing_count(tokens.size()) > 0) {
      const auto runs = blocks.MissingRuns(tokens.size(), config_.prefill_chunk);
      std::vector<BatchSegment> segments;
      segments.reserve(runs.size());
      for (const PositionRange& run : runs) {
        segments.push_back({.tokens = std::span(tokens).subspan(run.begin, run.count),
                            .first_position = run.begin,
                            .blocks = blocks.addresses()});
      }
      CHECK(parts_.model->Forward(segments).ok());
      for (const PositionRange& run : runs) blocks.Written(run, tokens, Clock::Monotonic());
    }
  }

  void WriteLogits(uint32_t first_position, const std::vector<uint32_t>& tokens,
                   const ContextBlocks& blocks) {
    std::vector<BatchSegment> segments;
    for (uint32_t position = first_position; position < tokens.size(); ++position) {
      segments.push_back({.tokens = std::span(tokens).subspan(position, 1),
                          .first_position = position,
                          .blocks = blocks.addresses(),
                          .write_kv = false,
                          .want_logits = true});
      if (segments.size() < config_.concurrent_max && position + 1 < tokens.size()) continue;
      const std::span<const RowLogits> rows = *parts_.model->Forward(segments);
      for (const RowLogits& row : rows) {
        CHECK(std::fwrite(row.all.data(), sizeof(float), row.all.size(), stdout) == row.all.size());
      }
      segments.clear();
    }
    CHECK(std::fflush(stdout) == 0);
  }

  EngineParts parts_;
  const EngineConfig config_;
  const BlockKey root_;
};

int Usage() {
  std::fprintf(stderr,
               "usage: logits_tool MODEL.gguf [--compute exact|fast] [--instruction-set NAME]\n"
               "                   [--threads N] [--chunk ROWS]\n");
  return 2;
}

int Fail(const Status& status) {
  std::fprintf(stderr, "logits_tool: %s\n", status.ToString().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  if (argc % 2 != 0) return Usage();
  LoadOptions options{.model_path = argv[1], .device_memory_bytes = uint64_t{256} << 20};
  for (int i = 2; i < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--compute" && (value == "exact" || value == "fast")) {
      options.mode = value == "fast" ? ComputeMode::kFast : ComputeMode::kExact;
    } else if (flag == "--instruction-set") {
      options.instruction_set = value;
    } else if (flag == "--threads") {
      options.thread_count = static_cast<uint32_t>(std::atoi(value.c_str()));
    } else if (flag == "--chunk") {
      options.engine.prefill_chunk = static_cast<uint32_t>(std::atoi(value.c_str()));
    } else {
      return Usage();
    }
  }
  SystemClock clock;
  Result<LoadedEngine> loaded = LoadEngine(options, clock, nullptr);
  if (!loaded.ok()) return Fail(loaded.status());
  LogitsTool tool(std::move(loaded->parts), loaded->config);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream numbers(line);
    uint32_t first_position = 0;
    numbers >> first_position;
    std::vector<uint32_t> tokens;
    for (uint32_t token = 0; numbers >> token;) tokens.push_back(token);
    if (const Status status = tool.Answer(first_position, tokens); !status.ok()) {
      return Fail(status);
    }
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
