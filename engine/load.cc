#include "engine/load.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "engine/calibration.h"
#include "engine/checkpoint.h"
#include "engine/fingerprint.h"
#include "engine/message_text.h"
#include "engine/planned_restores.h"
#include "engine/pool_sizes.h"
#include "engine/rope.h"
#include "engine/vocabulary.h"
#include "kernels/backend.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1u << 20;

uint32_t UsableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// "device   3,456 tokens in 216 blocks of 16, up to 76 MiB"
std::string TierLine(const char* tier, uint64_t blocks, const ModelInfo& info,
                     uint64_t size_bytes = 0) {
  if (size_bytes == 0) size_bytes = blocks * static_cast<uint64_t>(info.bytes_per_block);
  char line[160];
  std::snprintf(line, sizeof line, "%-8s %s tokens in %s blocks of %d, up to %.0f MiB", tier,
                Grouped(blocks * info.block_tokens).c_str(), Grouped(blocks).c_str(),
                info.block_tokens, double(size_bytes) / kMiB);
  return line;
}

ModelInfo DescribeModel(Model& model, const Tokenizer& tokenizer, const Digest& fingerprint,
                        const EngineConfig& config) {
  const ModelConfig& shape = model.config();
  const KvLayout& layout = model.kv_layout();
  const std::span<const uint32_t> end_ids = tokenizer.end_ids();
  return {.name = shape.name,
          .architecture = shape.architecture,
          .parameter_count = static_cast<int64_t>(shape.parameter_count),
          .context_length = static_cast<int32_t>(config.context_length),
          .vocabulary_size = static_cast<int32_t>(shape.vocabulary_size),
          .fingerprint = fingerprint.ToHex(),
          .backend = model.device().info().backend,
          .arithmetic = layout.arithmetic,
          .layer_count = static_cast<int32_t>(layout.layer_count),
          .kv_head_count = static_cast<int32_t>(layout.kv_head_count),
          .head_dim = static_cast<int32_t>(layout.head_dim),
          .kv_type = "f16",
          .block_tokens = static_cast<int32_t>(layout.block_tokens),
          .bytes_per_token = static_cast<int64_t>(layout.token_bytes()),
          .bytes_per_block = static_cast<int64_t>(layout.block_bytes()),
          .end_token_ids = {end_ids.begin(), end_ids.end()}};
}

// ", prefill 1,432 tokens/s": of passes as long as a step may have.
std::string PrefillText(const std::optional<PassFit>& calibrated, const EngineConfig& config) {
  if (!calibrated) return "";
  const uint32_t rows = config.prefill_chunk;
  const double seconds = calibrated->costs.Seconds(rows, PositionSum(0, rows));
  return ", prefill " + Grouped(static_cast<uint64_t>(rows / seconds)) + " tokens/s";
}

// ", of 1,024 MiB that were free; operations take up to 80 MiB": of a device with memory of its
// own.
std::string FreeText(const PoolSizes& sizes, const Model& model) {
  if (!sizes.device_free_bytes) return "";
  return ", of " + Grouped(*sizes.device_free_bytes / kMiB) +
         " MiB that were free; operations take up to " +
         Grouped((model.scratch_bytes_max() + kMiB - 1) / kMiB) + " MiB";
}

std::vector<std::string> Summarize(const EngineParts& parts, const DeviceInfo& device,
                                   const PoolSizes& sizes, const std::string& backend,
                                   const std::string& prefill) {
  const ModelInfo& info = parts.model_info;
  const BlockStoreStats blocks = parts.blocks->stats();
  char line[512];
  std::vector<std::string> lines;
  std::snprintf(line, sizeof line, "model    %s (%s, %.0f M parameters, %.0f MiB packed)",
                info.name.c_str(), info.architecture.c_str(), info.parameter_count / 1e6,
                double(parts.model->weight_bytes()) / kMiB);
  lines.push_back(line);
  lines.push_back("backend  " + backend);
  lines.push_back("context  " + Grouped(info.context_length) + " tokens");
  std::snprintf(line, sizeof line,
                "kv       %s bytes a token = 2 (K, V) x %d layers x %d KV heads x %d x 2 (%s)",
                Grouped(info.bytes_per_token).c_str(), info.layer_count, info.kv_head_count,
                info.head_dim, info.kv_type.c_str());
  lines.push_back(line);
  lines.push_back(TierLine("device", blocks.device_capacity, info) + FreeText(sizes, *parts.model));
  if (blocks.host_capacity > 0) lines.push_back(TierLine("host", blocks.host_capacity, info));
  if (const std::optional<DiskTierStats> disk = parts.blocks->disk_stats()) {
    lines.push_back(TierLine("disk", disk->capacity, info, disk->store.quota_bytes) + "; " +
                    Grouped(disk->records) + " blocks are there");
  }
  std::snprintf(line, sizeof line, "compute  %s, %u %s, %s%s", info.arithmetic.c_str(),
                device.thread_count, device.backend == "cuda" ? "multiprocessors" : "threads",
                device.name.c_str(), prefill.c_str());
  lines.push_back(line);
  return lines;
}

Status CheckOptions(const LoadOptions& options) {
  const uint32_t block = options.block_tokens;
  if (block != 16 && block != 32 && block != 64) {
    return InvalidField("block_tokens", "must be 16, 32 or 64, is " + std::to_string(block));
  }
  constexpr uint32_t kContextMax = 4u << 20;
  if (options.context_length > kContextMax) {
    return InvalidField("--context-length", "must be at most " + Grouped(kContextMax) + ", is " +
                                                Grouped(options.context_length));
  }
  return Status();
}

Result<std::unique_ptr<BlockStore>> OpenBlocks(const LoadOptions& options, const PoolSizes& sizes,
                                               const Digest& fingerprint, Model& model,
                                               const Clock& clock,
                                               std::shared_ptr<WakeSignal> wake) {
  const KvLayout& layout = model.kv_layout();
  const OffloadConfig offload = {.device_blocks_max = sizes.device_blocks,
                                 .host_blocks_max = sizes.host_blocks,
                                 .host_in_place = options.host_in_place,
                                 .lock_host = options.lock_host,
                                 .host_bandwidth_limit = options.host_bandwidth_limit,
                                 .verify_duplicates = options.verify_duplicate_blocks};
  std::unique_ptr<SpillStore> spill;
  if (options.open_spill) {
    ASSIGN_OR_RETURN(
        spill, options.open_spill(fingerprint, layout, [wake = std::move(wake)] { wake->Ring(); }));
  }
  return BlockStore::Create(offload, layout, model.device(), clock, std::move(spill));
}

// Builds with checks inside compute many times slower, on the same machine.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr const char* kBuild = ", sanitized";
#elif !defined(__OPTIMIZE__)
constexpr const char* kBuild = ", not optimized";
#else
constexpr const char* kBuild = "";
#endif

Result<ChosenBackend> MakeBackend(const LoadOptions& options) {
  if (options.make_backend) {
    ASSIGN_OR_RETURN(Backend backend, options.make_backend());
    return ChosenBackend{std::move(backend), "the caller's"};
  }
  const uint32_t threads = options.thread_count > 0 ? options.thread_count : UsableProcessors();
  return ChooseBackend({.kind = options.backend,
                        .cpu = {.thread_count = threads,
                                .mode = options.mode,
                                .instruction_set = options.instruction_set},
                        .cuda = {.plugin = options.cuda_plugin, .mode = options.mode}});
}

// What passes cost. Nothing when it cannot be found out, which is a warning.
std::optional<PassFit> CalibratePasses(const LoadOptions& options, Model& model,
                                       const ModelInfo& info, const EngineConfig& config,
                                       const Clock& clock, std::vector<std::string>& warnings) {
  constexpr auto kTime = std::chrono::milliseconds(1500);
  constexpr uint32_t kRowsMax = 256, kPositionsMax = 8192;  // beyond, costs are straight lines
  if (options.calibrate == Calibrate::kNever) return std::nullopt;
  const DeviceInfo& device = model.device().info();
  const std::string path = options.model_path + ".calibration";
  const uint32_t rows_max = std::min(config.prefill_chunk, kRowsMax);
  const uint32_t positions_max = std::min(config.context_length, kPositionsMax);
  const CalibrationSubject subject = {.machine = device.name + ", " + info.arithmetic + kBuild +
                                                 ", passes of " + std::to_string(rows_max) +
                                                 " below " + std::to_string(positions_max),
                                      .model = info.fingerprint,
                                      .threads = device.thread_count};
  if (options.calibrate == Calibrate::kOnce) {
    if (const std::optional<PassFit> kept = FindCalibration(path, subject)) return kept;
  }
  const Result<PassFit> measured = MeasurePasses(model, rows_max, positions_max, kTime, clock);
  if (!measured.ok()) {
    warnings.push_back("not calibrated, restores are planned once passes were seen: " +
                       measured.status().message());
    return std::nullopt;
  }
  KeepCalibration(path, subject, *measured);
  return *measured;
}

std::unique_ptr<RestoreStrategy> MakeRestores(const LoadOptions& options,
                                              const EngineConfig& config, const BlockStore& blocks,
                                              const std::optional<PassFit>& calibrated,
                                              const Clock& clock,
                                              std::vector<std::string>& warnings) {
  if (options.make_restores) return options.make_restores(blocks);
  if (options.restore_policy == RestorePolicy::kWave && !blocks.may_arrive_by_layer()) {
    warnings.push_back(
        "--restore-policy wave: there is none here, restores are planned as by cairn; it takes "
        "--host-memory and, where the device could use that in place, --host-blocks copied");
  }
  return std::make_unique<PlannedRestores>(RestoreSettings{.policy = options.restore_policy,
                                                           .cut_share = options.restore_cut_share,
                                                           .chunk_tokens = config.prefill_chunk,
                                                           .share = config.restore_share / 100.0,
                                                           .calibrated = calibrated},
                                           blocks, clock);
}

Result<std::unique_ptr<const Tokenizer>> MakeTokenizer(const std::string& model_path,
                                                       const Vocabulary& vocabulary,
                                                       const ModelConfig& model) {
  Result<std::unique_ptr<Tokenizer>> made = Tokenizer::Create(vocabulary);
  if (!made.ok()) {
    return Status(made.status().code(), model_path + ": " + made.status().message());
  }
  if ((*made)->size() != model.vocabulary_size) {
    return InvalidArgument(model_path + ": the vocabulary has " + std::to_string((*made)->size()) +
                           " tokens, the embedding " + std::to_string(model.vocabulary_size) +
                           " rows");
  }
  return std::unique_ptr<const Tokenizer>(*std::move(made));
}

}  // namespace

Result<LoadedEngine> LoadEngine(const LoadOptions& options, const Clock& clock,
                                void (*progress)(double share)) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options.model_path));
  const uint32_t trained = checkpoint.config().context_length;
  EngineConfig config = options.engine;
  config.context_length = options.context_length > 0 ? options.context_length : trained;
  config.max_tokens_default = std::min(config.max_tokens_default, config.context_length);
  RETURN_IF_ERROR(config.Validate());
  std::vector<std::string> warnings;
  if (config.context_length > trained) {
    warnings.push_back("--context-length " + std::to_string(config.context_length) +
                       " is beyond the " + std::to_string(trained) +
                       " that the model was trained for: positions are interpolated");
  }

  // Before the weights are packed, which gives their pages back.
  const Digest fingerprint = ExtendedFingerprint(
      CachedFingerprint(checkpoint), ContextExtension(checkpoint.config(), config.context_length));

  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(checkpoint.file()));
  ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                   MakeTokenizer(options.model_path, vocabulary, checkpoint.config()));
  Result<std::unique_ptr<ChatTemplate>> chat_template =
      ChatTemplate::Detect(vocabulary.chat_template, *tokenizer);

  ASSIGN_OR_RETURN(ChosenBackend chosen, MakeBackend(options));
  const DeviceInfo device = chosen.backend.device->info();
  const ModelLimits limits = {.context_length = config.context_length,
                              .block_tokens = options.block_tokens,
                              .rows_max = config.prefill_chunk + 2 * config.concurrent_max,
                              .logits_max = config.concurrent_max};
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                   Model::Create(checkpoint, std::move(chosen.backend), limits, progress));

  auto wake = std::make_shared<WakeSignal>();
  ASSIGN_OR_RETURN(
      const PoolSizes sizes,
      ChoosePoolSizes(options.device_memory_bytes, options.host_memory_bytes, model->kv_layout(),
                      config, model->scratch_bytes_max(), model->device()));
  ASSIGN_OR_RETURN(std::unique_ptr<BlockStore> blocks,
                   OpenBlocks(options, sizes, fingerprint, *model, clock, wake));
  std::unique_ptr<TraceWriter> trace;
  if (!options.trace_path.empty()) {
    ASSIGN_OR_RETURN(trace, TraceWriter::Open(options.trace_path));
  }
  ModelInfo info = DescribeModel(*model, *tokenizer, fingerprint, config);
  LoadedEngine loaded{.parts = {.model = std::move(model),
                                .blocks = std::move(blocks),
                                .tokenizer = std::move(tokenizer),
                                .chat_template = std::move(chat_template),
                                .model_info = std::move(info),
                                .fingerprint = fingerprint,
                                .trace = std::move(trace),
                                .wake = std::move(wake)},
                      .config = config,
                      .warnings = std::move(warnings)};
  const std::optional<PassFit> calibrated = CalibratePasses(
      options, *loaded.parts.model, loaded.parts.model_info, config, clock, loaded.warnings);
  loaded.parts.restores =
      MakeRestores(options, config, *loaded.parts.blocks, calibrated, clock, loaded.warnings);
  loaded.summary =
      Summarize(loaded.parts, device, sizes, chosen.reason, PrefillText(calibrated, config));
  return loaded;
}

}  // namespace cairn
